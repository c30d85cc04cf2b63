//! The drawers of all formats, by the list of formats in the walker's package.

use crate::disk::image_format::{ImageFormat, for_each_format};
use crate::images;
use crate::images::format::ImageDrawer;

macro_rules! drawers {
    (
        $($(#[$about:meta])* $format:ident = $name:literal in $drawer:ident [$($fact:ident),*],)*
    ) => {
        /// Returns the drawer of a format.
        pub fn drawer(format: ImageFormat) -> &'static dyn ImageDrawer {
            match format {
                $(ImageFormat::$format => &images::$drawer::Drawer,)*
            }
        }
    };
}

for_each_format!(drawers);
