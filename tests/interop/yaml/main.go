// Yamljson reads YAML as Kubernetes does and prints it as JSON.
//
// It reads lines from standard input, each a JSON string that holds a text of
// one YAML document. For each it prints one line: the JSON that
// sigs.k8s.io/yaml makes of the text, or an empty line where it refuses it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var text string
		if err := json.Unmarshal(line, &text); err != nil {
			fmt.Fprintln(os.Stderr, "yamljson:", err)
			os.Exit(1)
		}
		made, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			made = nil
		}
		fmt.Fprintln(out, string(made))
	}
}
