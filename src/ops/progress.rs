//! How an operation says how far it is, and hears that it should stop.

/// Receives progress; implemented by the command line and by tests.
pub trait Progress: Sync {
    /// A step begins. `total` is in bytes, 0 where it is not known.
    fn step(&self, name: &str, total: u64);

    /// So many bytes of the step are done.
    fn advance(&self, done: u64);

    /// Something that the person should read now.
    fn note(&self, text: &str);

    /// Tells whether to stop: asked often, answers at once.
    fn stopped(&self) -> bool;
}

/// Says nothing and never stops.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn stopped(&self) -> bool {
        false
    }
}
