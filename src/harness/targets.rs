//! The fuzz targets: what each makes of an input, on buffers that are reused from run to run. The target `map_extents` is
//! [`Harness`](crate::harness::Harness).

mod hostile;
mod raw_image;
mod refcounts;

pub use hostile::Hostile;
pub use raw_image::RawImage;
pub use refcounts::Refcounts;
