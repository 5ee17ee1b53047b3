module etcdkit.test/interop/yaml

go 1.26.0

require (
	github.com/goccy/go-yaml v1.19.2
	sigs.k8s.io/yaml v1.6.0
)

require go.yaml.in/yaml/v2 v2.4.2 // indirect
