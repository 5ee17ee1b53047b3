//! Who a stored object is, by its key.
//!
//! **Shape**: `PREFIX/RESOURCE/[NAMESPACE/]NAME` for most built-in resources, whose group is not
//! in the key; `PREFIX/GROUP/RESOURCE/[NAMESPACE/]NAME` for custom resources and for the two API
//! groups that are servers of their own (a group always holds a dot, a built-in resource never).
//! PREFIX is the API server's `--etcd-prefix`, `/registry` by default. A few built-in resources
//! are stored under an older name: nodes as `minions`, services as `services/specs`, endpoints as
//! `services/endpoints`, replicationcontrollers as `controllers`, ingresses as `ingress`.
//!
//! A key alone does not say whether a resource is namespaced; for one that is not in the table
//! the number of parts decides, and the object's own metadata is the better witness.
//!
//! **Source**: Kubernetes 1.28 to 1.35, `pkg/registry` and
//! `pkg/kubeapiserver/default_storage_factory_builder.go`.

/// The API server's default `--etcd-prefix`.
pub const DEFAULT_PREFIX: &str = "/registry";

/// What a key says about the object under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredKey<'a> {
    /// API group; empty for the core group, `None` when the key does not tell.
    pub group: Option<&'a str>,
    /// Resource in the plural, as `kubectl api-resources` names it.
    pub resource: &'a str,
    /// Namespace, where the resource has one.
    pub namespace: Option<&'a str>,
    /// Name of the object; it may hold `:` and `.`.
    pub name: &'a str,
}

impl StoredKey<'_> {
    /// Writes resource and group as kubectl takes them: `deployments.apps`, `pods`.
    #[must_use]
    pub fn resource_name(&self) -> String {
        match self.group {
            None | Some("") => self.resource.to_owned(),
            Some(group) => format!("{}.{group}", self.resource),
        }
    }
}

/// Reads a key below a prefix such as [`DEFAULT_PREFIX`]; slashes at the prefix's end are ignored.
///
/// Returns `None` for a key outside of the prefix or of another shape, such as
/// `compact_rev_key`. No part of the result is empty but the group.
#[must_use]
pub fn parse_key<'a>(key: &'a [u8], prefix: &str) -> Option<StoredKey<'a>> {
    let key = std::str::from_utf8(key).ok()?;
    let rest = key.strip_prefix(prefix.trim_end_matches('/'))?.strip_prefix('/')?;
    let mut parts = rest.split('/');
    let first = parts.next()?;
    let mut rest: [&str; 3] = [""; 3];
    let mut count = 0_usize;
    for part in parts {
        // A part too many, or an empty one: no API server wrote this key.
        *rest.get_mut(count).filter(|_| !part.is_empty())? = part;
        count = count.checked_add(1)?;
    }
    let [second, third, fourth] = rest;
    let (path, group, tail) = if first.contains('.') {
        (second, Some(first), [third, fourth, ""])
    } else if matches!(first, "services" | "ranges") {
        (second, Some(""), [third, fourth, ""])
    } else {
        (first, None, rest)
    };
    if first == "ranges" {
        // One object a resource: the allocation map, which has no name of its own.
        return (count == 1).then_some(StoredKey {
            group,
            resource: "ranges",
            namespace: None,
            name: second,
        });
    }
    let (group, resource, namespaced) = match (first, path) {
        ("services", "specs") => (group, "services", Some(true)),
        ("services", "endpoints") => (group, "endpoints", Some(true)),
        ("services", _) => return None,
        (_, "") => return None,
        _ if group.is_some() => {
            // Both are cluster-wide; custom resources may be either.
            let own = matches!(path, "apiservices" | "customresourcedefinitions")
                && first.ends_with(".k8s.io");
            (group, path, own.then_some(false))
        }
        _ => match BUILT_IN.iter().find(|(stored, ..)| *stored == path) {
            Some((_, resource, group, namespaced)) => (Some(*group), *resource, Some(*namespaced)),
            None => (None, path, None),
        },
    };
    let (namespace, name) = match (tail, namespaced) {
        ([name, "", ""], Some(false) | None) => (None, name),
        ([namespace, name, ""], Some(true) | None) => (Some(namespace), name),
        _ => return None,
    };
    (!name.is_empty()).then_some(StoredKey { group, resource, namespace, name })
}

/// Built-in resources by the name they are stored under: stored, resource, group, namespaced.
const BUILT_IN: &[(&str, &str, &str, bool)] = &[
    ("certificatesigningrequests", "certificatesigningrequests", "certificates.k8s.io", false),
    ("clusterrolebindings", "clusterrolebindings", "rbac.authorization.k8s.io", false),
    ("clusterroles", "clusterroles", "rbac.authorization.k8s.io", false),
    ("clustertrustbundles", "clustertrustbundles", "certificates.k8s.io", false),
    ("configmaps", "configmaps", "", true),
    ("controllerrevisions", "controllerrevisions", "apps", true),
    ("controllers", "replicationcontrollers", "", true),
    ("cronjobs", "cronjobs", "batch", true),
    ("csidrivers", "csidrivers", "storage.k8s.io", false),
    ("csinodes", "csinodes", "storage.k8s.io", false),
    ("csistoragecapacities", "csistoragecapacities", "storage.k8s.io", true),
    ("daemonsets", "daemonsets", "apps", true),
    ("deployments", "deployments", "apps", true),
    ("deviceclasses", "deviceclasses", "resource.k8s.io", false),
    ("endpointslices", "endpointslices", "discovery.k8s.io", true),
    ("events", "events", "", true),
    ("flowschemas", "flowschemas", "flowcontrol.apiserver.k8s.io", false),
    ("horizontalpodautoscalers", "horizontalpodautoscalers", "autoscaling", true),
    ("ingress", "ingresses", "networking.k8s.io", true),
    ("ingressclasses", "ingressclasses", "networking.k8s.io", false),
    ("ipaddresses", "ipaddresses", "networking.k8s.io", false),
    ("jobs", "jobs", "batch", true),
    ("leases", "leases", "coordination.k8s.io", true),
    ("limitranges", "limitranges", "", true),
    ("masterleases", "masterleases", "", false),
    ("minions", "nodes", "", false),
    (
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicies",
        "admissionregistration.k8s.io",
        false,
    ),
    (
        "mutatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
        "admissionregistration.k8s.io",
        false,
    ),
    ("namespaces", "namespaces", "", false),
    ("networkpolicies", "networkpolicies", "networking.k8s.io", true),
    ("persistentvolumeclaims", "persistentvolumeclaims", "", true),
    ("persistentvolumes", "persistentvolumes", "", false),
    ("poddisruptionbudgets", "poddisruptionbudgets", "policy", true),
    ("pods", "pods", "", true),
    ("podtemplates", "podtemplates", "", true),
    ("priorityclasses", "priorityclasses", "scheduling.k8s.io", false),
    (
        "prioritylevelconfigurations",
        "prioritylevelconfigurations",
        "flowcontrol.apiserver.k8s.io",
        false,
    ),
    ("replicasets", "replicasets", "apps", true),
    ("resourceclaims", "resourceclaims", "resource.k8s.io", true),
    ("resourceclaimtemplates", "resourceclaimtemplates", "resource.k8s.io", true),
    ("resourcequotas", "resourcequotas", "", true),
    ("resourceslices", "resourceslices", "resource.k8s.io", false),
    ("rolebindings", "rolebindings", "rbac.authorization.k8s.io", true),
    ("roles", "roles", "rbac.authorization.k8s.io", true),
    ("runtimeclasses", "runtimeclasses", "node.k8s.io", false),
    ("secrets", "secrets", "", true),
    ("serviceaccounts", "serviceaccounts", "", true),
    ("servicecidrs", "servicecidrs", "networking.k8s.io", false),
    ("statefulsets", "statefulsets", "apps", true),
    ("storageclasses", "storageclasses", "storage.k8s.io", false),
    (
        "validatingadmissionpolicies",
        "validatingadmissionpolicies",
        "admissionregistration.k8s.io",
        false,
    ),
    (
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicybindings",
        "admissionregistration.k8s.io",
        false,
    ),
    (
        "validatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "admissionregistration.k8s.io",
        false,
    ),
    ("volumeattachments", "volumeattachments", "storage.k8s.io", false),
    ("volumeattributesclasses", "volumeattributesclasses", "storage.k8s.io", false),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str) -> Option<(String, Option<&str>, &str)> {
        let key = parse_key(key.as_bytes(), DEFAULT_PREFIX)?;
        Some((key.resource_name(), key.namespace, key.name))
    }

    #[test]
    fn keys_of_every_kind() {
        for (key, resource, namespace, name) in [
            ("/registry/pods/shop/web-1", "pods", Some("shop"), "web-1"),
            ("/registry/namespaces/shop", "namespaces", None, "shop"),
            ("/registry/deployments/shop/web", "deployments.apps", Some("shop"), "web"),
            ("/registry/minions/cp-1", "nodes", None, "cp-1"),
            ("/registry/services/specs/shop/web", "services", Some("shop"), "web"),
            ("/registry/services/endpoints/shop/web", "endpoints", Some("shop"), "web"),
            ("/registry/controllers/shop/web", "replicationcontrollers", Some("shop"), "web"),
            ("/registry/ingress/shop/web", "ingresses.networking.k8s.io", Some("shop"), "web"),
            ("/registry/ranges/serviceips", "ranges", None, "serviceips"),
            ("/registry/masterleases/192.0.2.2", "masterleases", None, "192.0.2.2"),
            (
                "/registry/roles/kube-public/system:controller:bootstrap-signer",
                "roles.rbac.authorization.k8s.io",
                Some("kube-public"),
                "system:controller:bootstrap-signer",
            ),
            (
                "/registry/apiregistration.k8s.io/apiservices/v1.",
                "apiservices.apiregistration.k8s.io",
                None,
                "v1.",
            ),
            (
                "/registry/farm.example.com/widgets/shop/w1",
                "widgets.farm.example.com",
                Some("shop"),
                "w1",
            ),
            ("/registry/farm.example.com/fields/f1", "fields.farm.example.com", None, "f1"),
            ("/registry/unheardof/a/b", "unheardof", Some("a"), "b"),
        ] {
            assert_eq!(read(key), Some((resource.to_owned(), namespace, name)), "{key}");
        }
        assert_eq!(parse_key(b"/registry/unheardof/a/b", "/registry").unwrap().group, None);
    }

    #[test]
    fn other_prefixes() {
        let key = parse_key(b"/kubernetes.io/pods/a/b", "/kubernetes.io/").unwrap();
        assert_eq!((key.resource, key.name), ("pods", "b"));
        assert!(parse_key(b"/registry2/pods/a/b", "/registry").is_none());
    }

    #[test]
    fn what_is_no_object() {
        for key in [
            "compact_rev_key",
            "/registry",
            "/registry/",
            "/registry/pods",
            "/registry/pods/web-1",
            "/registry/pods//web-1",
            "/registry/pods/shop/",
            "/registry/pods/shop/web/1",
            "/registry/namespaces/shop/x",
            "/registry/services/other/a/b",
            "/registry/ranges",
            "/registry/ranges/serviceips/x",
            "/registry/farm.example.com/widgets",
            "/registry/a/b/c/d/e/f",
        ] {
            assert_eq!(read(key), None, "{key}");
        }
        assert!(parse_key(b"/registry/pods/a/\xff", DEFAULT_PREFIX).is_none());
    }

    #[test]
    fn the_table_is_sorted_and_without_doubles() {
        assert!(BUILT_IN.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
