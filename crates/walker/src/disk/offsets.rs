//! Offsets in the virtual disk and in a file. Their types cannot be mixed.
//!
//! # Arithmetic
//! No disk and no file has a byte at 2^64 - 1. So an offset or a length that saturates there, by `+` or by
//! `saturating_add` and `saturating_mul` of plain numbers, lies past the end of everything: its bytes read as zeros and
//! map to nothing. A count that saturates is above every limit. A difference that saturates at 0 stands for an empty
//! range, or for the beginning. This holds in the whole project. So code states a reason of its own only where a number
//! wraps, or where a default replaces it. A caller that has to notice an overflow uses `checked_add`.

/// Declares a number of bytes or clusters with a type of its own. `$form` is how it is printed: offsets in hexadecimal,
/// numbers of clusters in decimal.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $form:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The value 0.
            pub const ZERO: Self = Self(0);

            /// Creates the value from a plain number.
            #[inline]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// Returns the value as a plain number.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Returns the value plus `distance`, in the same unit, or `None` if the sum exceeds 64 bits.
            #[inline]
            pub const fn checked_add(self, distance: u64) -> Option<Self> {
                match self.0.checked_add(distance) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Returns the distance from `earlier` to this value, or `None` if `earlier` is larger.
            #[inline]
            pub const fn distance_from(self, earlier: Self) -> Option<u64> {
                self.0.checked_sub(earlier.0)
            }

            /// Returns the distance from `earlier` to this value, or 0 if `earlier` is larger.
            #[inline]
            pub const fn saturating_distance_from(self, earlier: Self) -> u64 {
                self.0.saturating_sub(earlier.0)
            }
        }

        // The sum saturates at the largest value: see the module documentation.
        impl ::std::ops::Add<u64> for $name {
            type Output = Self;

            #[inline]
            fn add(self, distance: u64) -> Self {
                Self(self.0.saturating_add(distance))
            }
        }

        impl ::std::ops::AddAssign<u64> for $name {
            #[inline]
            fn add_assign(&mut self, distance: u64) {
                *self = *self + distance;
            }
        }

        impl ::std::fmt::LowerHex for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, $form, self.0)
            }
        }
    };
}

quantity! {
    /// A byte of the virtual disk.
    GuestOffset, "{:#x}"
}
quantity! {
    /// A byte of the image file.
    HostOffset, "{:#x}"
}

pub(crate) use quantity;
