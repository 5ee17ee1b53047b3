//! The program under another program's name.

/// As which program this one runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Program {
    /// Itself.
    #[default]
    Etcdkit,
    /// etcdctl.
    Etcdctl,
}
