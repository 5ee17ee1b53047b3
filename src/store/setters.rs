//! Setters by field, for what users make and is to grow: `Options::default().snapshot_count(100)`.

macro_rules! setters {
    ($owner:ident: $($name:ident: $kind:ty,)*) => {
        impl $owner {
            $(
                #[doc = concat!("Sets the field `", stringify!($name), "`.")]
                #[must_use]
                pub fn $name(mut self, value: impl Into<$kind>) -> Self {
                    self.$name = value.into();
                    self
                }
            )*
        }
    };
}

pub(super) use setters;
