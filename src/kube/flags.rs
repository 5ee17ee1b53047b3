//! What a container's command line and environment tell etcd.
//!
//! **Shape**: words of `command` and `args` as one list, the first being the program; `-flag` and
//! `--flag` mean the same, `=VALUE` or the next word is its value, the last one of a flag wins.
//! `ETCD_FLAG_NAME` in `env` stands in for a flag that is not there. `$(NAME)` is expanded from
//! `env` first.
//!
//! **Errors**: [`Error::At`]. Values are never part of one: an environment may hold passwords.
//!
//! **Source**: etcd `server/etcdmain/config.go` and Go's package `flag` (3.4 to 3.7); Kubernetes
//! `third_party/forked/golang/expansion` (1.34) for variables.

use std::collections::BTreeMap;

use super::manifest::{Error, Trouble, at, items, text_of};
use super::yaml::{Node, Position};

/// etcd's settings by flag name without dashes, each with the place it was given at.
pub(super) struct Settings {
    values: BTreeMap<String, (String, Position)>,
    /// Every word that gives one, in order; the last one of a flag wins.
    given: Vec<Given>,
}

/// The word of a container's command line that holds a flag's value.
pub(super) struct Given {
    pub(super) flag: String,
    /// `command` or `args`.
    pub(super) list: &'static str,
    /// Which item of it.
    pub(super) index: usize,
    /// What stands before the value: `--flag=`, or nothing where the value is a word of its own.
    pub(super) lead: String,
}

/// A word of a container's command line.
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    pub(super) node: &'a Node,
    /// `command` or `args`.
    pub(super) list: &'static str,
    /// Which item of it.
    pub(super) index: usize,
}

/// Lists the words of `command` and `args` as one list.
pub(super) fn words(container: &Node) -> Result<Vec<Word<'_>>, Error> {
    let mut words = Vec::new();
    for list in ["command", "args"] {
        for (index, node) in items(container, list)?.iter().enumerate() {
            let Some(text) = node.text() else {
                return Err(at(Trouble::Shape, node, "an argument that is not a text"));
            };
            words.push(Word { text, node, list, index });
        }
    }
    Ok(words)
}

/// Flags that take a value and that this module reads; the others are skipped by their form.
const VALUED: &[&str] = &[
    "advertise-client-urls",
    "cert-file",
    "config-file",
    "data-dir",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
    "key-file",
    "listen-client-urls",
    "name",
    "peer-cert-file",
    "peer-key-file",
    "peer-trusted-ca-file",
    "quota-backend-bytes",
    "trusted-ca-file",
    "wal-dir",
];

impl Settings {
    pub(super) fn read(container: &Node) -> Result<Self, Error> {
        let mut variables = Variables::read(container)?;
        let mut flags = BTreeMap::new();
        for (name, variable) in &variables.known {
            let flag = name.strip_prefix("ETCD_").map(|n| n.to_ascii_lowercase().replace('_', "-"));
            let Some(flag) = flag.filter(|flag| VALUED.contains(&flag.as_str())) else { continue };
            match &variable.value {
                Some(value) if value.is_empty() => {}
                Some(value) => drop(flags.insert(flag, (value.clone(), variable.at))),
                None => {
                    return Err(Error::At {
                        trouble: Trouble::Variable,
                        at: variable.at,
                        what: format!("--{flag} is a variable that only the running pod knows"),
                    });
                }
            }
        }
        let mut given = Vec::new();
        let mut rest = words(container)?.into_iter().skip(1).peekable();
        while let Some(word) = rest.next() {
            let bare = word.text.strip_prefix("--").or_else(|| word.text.strip_prefix('-'));
            let Some(bare) = bare else {
                // etcd itself refuses to start on a word that belongs to no flag.
                return Err(at(Trouble::Flag, word.node, "a word that belongs to no flag"));
            };
            let (flag, value, word) = match bare.split_once('=') {
                Some((flag, value)) => (flag, value, word),
                None if VALUED.contains(&bare) => match rest.next() {
                    Some(value) => (bare, value.text, value),
                    None => return Err(at(Trouble::Flag, word.node, "a flag without its value")),
                },
                None => {
                    // A flag of no interest: a word without dashes after it is its value.
                    rest.next_if(|word| !word.text.starts_with('-'));
                    continue;
                }
            };
            if VALUED.contains(&flag) {
                let lead = word.text.strip_suffix(value).unwrap_or_default().to_owned();
                let Word { list, index, .. } = word;
                given.push(Given { flag: flag.to_owned(), list, index, lead });
                let value = variables.expand(value, word.node)?;
                // The last one wins, as in etcd.
                flags.insert(flag.to_owned(), (value, word.node.at));
            }
        }
        if let Some((_, at)) = flags.get("config-file") {
            return Err(Error::At {
                trouble: Trouble::ConfigFile,
                at: *at,
                what: "etcd reads its settings from a file and ignores its flags".to_owned(),
            });
        }
        Ok(Self { values: flags, given })
    }

    /// Returns the words that give a flag, in order; none where a variable does.
    pub(super) fn given<'a>(&'a self, flag: &'a str) -> impl Iterator<Item = &'a Given> {
        self.given.iter().filter(move |given| given.flag == flag)
    }

    pub(super) fn text(&self, flag: &str) -> Option<String> {
        self.values.get(flag).map(|(value, _)| value.clone()).filter(|value| !value.is_empty())
    }

    pub(super) fn list(&self, flag: &str) -> Vec<String> {
        let value = self.text(flag).unwrap_or_default();
        value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn number(&self, flag: &str) -> Result<Option<i64>, Error> {
        let Some((value, at)) = self.values.get(flag) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| Error::At {
            trouble: Trouble::Flag,
            at: *at,
            what: format!("--{flag} is not a whole number"),
        })
    }

    pub(super) fn members(&self, flag: &str) -> Result<Vec<(String, String)>, Error> {
        let place = self.values.get(flag).map(|(_, at)| *at).unwrap_or_default();
        let parts = self.list(flag);
        parts
            .iter()
            .map(|part| match part.split_once('=') {
                Some((name, url)) if !name.is_empty() && !url.is_empty() => {
                    Ok((name.to_owned(), url.to_owned()))
                }
                _ => Err(Error::At {
                    trouble: Trouble::Flag,
                    at: place,
                    what: format!("--{flag} has a part that is not NAME=URL"),
                }),
            })
            .collect()
    }
}

/// Longest text that variables may be expanded to, in bytes, all of a container taken together.
///
/// Each variable may use those before it twice, so without a limit a short text could grow to
/// any size.
const EXPANSION_LIMIT: usize = 1 << 20;

/// The container's environment, as far as the manifest says it.
struct Variables<'a> {
    known: BTreeMap<&'a str, Variable>,
    /// Tells whether a whole set of variables comes from elsewhere.
    more: bool,
    /// Bytes made by expansion so far.
    expanded: usize,
}

struct Variable {
    /// `None` when it comes from elsewhere.
    value: Option<String>,
    at: Position,
}

impl<'a> Variables<'a> {
    fn read(container: &'a Node) -> Result<Self, Error> {
        let more = !items(container, "envFrom")?.is_empty();
        let mut all = Self { known: BTreeMap::new(), more, expanded: 0 };
        for item in items(container, "env")? {
            let Some(name) = text_of(item, "name")? else {
                return Err(at(Trouble::Shape, item, "a variable without a name"));
            };
            let value = match item.get("valueFrom") {
                Some(_) => None,
                None => Some(all.expand(text_of(item, "value")?.unwrap_or_default(), item)?),
            };
            // The last one of a name wins.
            all.known.insert(name, Variable { value, at: item.at });
        }
        Ok(all)
    }

    /// Puts values in for `$(NAME)`, as the kubelet does; `$$` stands for one `$`.
    fn expand(&mut self, text: &str, node: &Node) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            out.push_str(before);
            rest = after;
            if let Some(after) = after.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some((name, after)) =
                after.strip_prefix('(').and_then(|after| after.split_once(')'))
            {
                self.put_value(name, node, &mut out)?;
                rest = after;
            } else {
                out.push('$');
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    fn put_value(&mut self, name: &str, node: &Node, out: &mut String) -> Result<(), Error> {
        match self.known.get(name) {
            Some(Variable { value: Some(value), .. }) => {
                self.expanded = self.expanded.saturating_add(value.len());
                if self.expanded > EXPANSION_LIMIT {
                    return Err(at(Trouble::Variable, node, "variables make it too long"));
                }
                out.push_str(value);
            }
            None if !self.more => {
                // Nothing sets it: the kubelet leaves the text as it is.
                out.push_str("$(");
                out.push_str(name);
                out.push(')');
            }
            _ => {
                let what = "a variable that only the running pod knows";
                return Err(at(Trouble::Variable, node, what));
            }
        }
        Ok(())
    }
}
