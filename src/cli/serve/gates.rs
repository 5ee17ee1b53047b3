//! Feature gates of the server.
//!
//! **Source**: etcd server/features, pkg/featuregate, 3.6.16 and 3.7.3.

use super::value::{quoted, read_bool};
use crate::store::Compat;
use crate::store::serve::Feature;

/// A gate: its name, its default, whether it is beta, and what it does here.
struct Known(&'static str, bool, bool, Effect);

/// What comes of a gate.
enum Effect {
    Acts,
    /// It sets others.
    Many,
    /// Nothing, and why.
    None(&'static str),
}

const PEERS: &str = "there are no other members";

const KNOWN: &[Known] = &[
    Known("AllAlpha", false, false, Effect::Many),
    Known("AllBeta", false, true, Effect::Many),
    Known("CompactHashCheck", false, false, Effect::None(PEERS)),
    Known("FastLeaseKeepAlive", true, true, Effect::None("there is one way to renew leases")),
    Known("InitialCorruptCheck", false, false, Effect::None(PEERS)),
    Known("LeaseCheckpoint", false, false, Effect::Acts),
    Known("LeaseCheckpointPersist", false, false, Effect::Acts),
    Known("PriorityRequest", false, false, Effect::None("requests have no ranks")),
    Known("SetMemberLocalAddr", false, false, Effect::None(PEERS)),
    Known("StopGRPCServiceOnDefrag", false, false, Effect::Acts),
    Known("TxnModeWriteWithSharedBuffer", true, true, Effect::None("no buffer is copied")),
];

/// Which gates were set, in the order of [`KNOWN`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gates {
    set: [Option<bool>; KNOWN.len()],
}

impl Gates {
    /// Sets gates from `Name=bool,...`.
    ///
    /// # Errors
    ///
    /// etcd's words for what is wrong.
    pub(super) fn set_text(&mut self, text: &str) -> Result<(), String> {
        let mut given: Vec<(&str, bool)> = Vec::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').map_or((pair, None), |(n, v)| (n, Some(v)));
            let name = name.trim();
            let value = value.ok_or_else(|| format!("missing bool value for {name}"))?.trim();
            let on = read_bool(value).ok_or_else(|| {
                let what = format!("strconv.ParseBool: parsing {}: invalid syntax", quoted(value));
                format!("invalid value of {name}={value}, err: {what}")
            })?;
            given.push((name, on));
        }
        for (name, on) in given {
            self.set(name, on)?;
        }
        Ok(())
    }

    /// Sets one gate. The gates for all of a kind leave those that were set before.
    ///
    /// # Errors
    ///
    /// A name that is not known.
    pub(super) fn set(&mut self, name: &str, on: bool) -> Result<(), String> {
        let slot = KNOWN.iter().zip(&mut self.set).find(|(known, _)| known.0 == name);
        let (known, slot) = slot.ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
        *slot = Some(on);
        if name == "AllAlpha" || name == "AllBeta" {
            let is_beta = known.2;
            for (_, slot) in KNOWN.iter().zip(&mut self.set).filter(|(k, _)| k.2 == is_beta) {
                slot.get_or_insert(on);
            }
        }
        Ok(())
    }

    /// Tells whether a gate is open.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        let found = KNOWN.iter().zip(&self.set).find(|(known, _)| known.0 == name);
        found.is_some_and(|(known, set)| set.unwrap_or(known.1))
    }

    /// Tells whether somebody set a gate.
    pub(super) fn is_set(&self, name: &str) -> bool {
        KNOWN.iter().zip(&self.set).any(|(known, set)| known.0 == name && set.is_some())
    }

    /// Returns the gates that are set away from their defaults to no effect, and why there is none.
    pub(super) fn idle(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        KNOWN.iter().zip(&self.set).filter_map(|(known, set)| match known.3 {
            Effect::None(why) if set.is_some_and(|on| on != known.1) => Some((known.0, why)),
            _ => None,
        })
    }

    /// Returns the gates of an etcd, for the metric that reports them.
    pub(crate) fn features(&self, compat: Compat) -> Vec<Feature> {
        let known = KNOWN.iter().zip(&self.set);
        let known = known.filter(|(known, _)| {
            compat != Compat::V3_6 || !matches!(known.0, "FastLeaseKeepAlive" | "PriorityRequest")
        });
        let feature = |(known, set): (&Known, &Option<bool>)| Feature {
            name: known.0.to_owned(),
            stage: if known.2 { "BETA" } else { "ALPHA" }.to_owned(),
            enabled: set.unwrap_or(known.1),
        };
        known.map(feature).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_set_as_etcd_sets_them() {
        let mut gates = Gates::default();
        gates.set_text("CompactHashCheck=false, AllAlpha = true,").unwrap();
        assert!(!gates.is_on("CompactHashCheck") && gates.is_on("LeaseCheckpoint"));
        assert!(gates.is_on("FastLeaseKeepAlive") && !gates.is_on("AllBeta"));
        for (text, words) in [
            ("Foo=true", "unrecognized feature gate: Foo"),
            ("AllBeta", "missing bool value for AllBeta"),
            (
                "AllBeta=maybe",
                "invalid value of AllBeta=maybe, err: strconv.ParseBool: parsing \"maybe\": \
                 invalid syntax",
            ),
        ] {
            assert_eq!(gates.set_text(text).unwrap_err(), words);
        }
        let idle: Vec<_> = gates.idle().map(|(name, _)| name).collect();
        assert_eq!(idle, ["InitialCorruptCheck", "PriorityRequest", "SetMemberLocalAddr"]);
        assert_eq!(gates.features(Compat::V3_7).len(), 11);
        assert_eq!(gates.features(Compat::V3_6).len(), 9);
    }
}
