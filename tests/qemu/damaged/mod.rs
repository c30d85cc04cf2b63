//! Damaged images: we open, walk and check an image as qemu-img does, and fail for the same reasons.

mod headers;
mod hostile;
mod reason_files;
mod reason_images;
mod reasons;
mod refusals;
mod refused_formats;
mod snapshots;
