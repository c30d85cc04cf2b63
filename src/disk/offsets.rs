//! Offsets of the virtual disk and of a file, which cannot be mistaken for each other.
//!
//! # Arithmetic
//! No disk and no file has a byte at 2^64 - 1. So an offset that is held there reads as zeros and maps to nothing, like all
//! others past the end. A caller that has to notice uses `checked_add`.

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The first one.
            pub const ZERO: Self = Self(0);

            /// From a plain number.
            #[inline]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// As a plain number.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// `distance` further on, in the same unit; `None` past 64 bits.
            #[inline]
            pub const fn checked_add(self, distance: u64) -> Option<Self> {
                match self.0.checked_add(distance) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// `distance` further on, held at the largest 64-bit value.
            #[inline]
            pub const fn saturating_add(self, distance: u64) -> Self {
                Self(self.0.saturating_add(distance))
            }

            /// How far this lies past `earlier`; `None` where it lies before it.
            #[inline]
            pub const fn distance_from(self, earlier: Self) -> Option<u64> {
                self.0.checked_sub(earlier.0)
            }

            /// How far this lies past `earlier`; 0 where it lies before it.
            #[inline]
            pub const fn saturating_distance_from(self, earlier: Self) -> u64 {
                self.0.saturating_sub(earlier.0)
            }
        }

        impl ::std::fmt::LowerHex for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

quantity! {
    /// A byte of the virtual disk.
    GuestOffset
}
quantity! {
    /// A byte of the image file.
    HostOffset
}

pub(crate) use quantity;
