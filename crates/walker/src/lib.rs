//! A walker of disk images in the format qcow2 and others, and of raw files. It opens a chain of files, and
//! answers where the bytes of a guest's disk lie, which bytes they are, and whether the structures of an image are
//! sound. If the specification leaves room, it answers as qemu-img does. It reads any
//! [`Storage`](disk::storage::Storage), in bounded memory, and no image makes it panic.
//!
//! It is the implementation that the fuzz harness qcowfuzz tests by default, and knows nothing of the harness: an
//! [`Observer`](disk::observer::Observer) receives events.
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use qcowfuzz_walker::disk::extent::{Extent, Window};
//! use qcowfuzz_walker::disk::image_format::ImageFormat;
//! use qcowfuzz_walker::disk::offsets::GuestOffset;
//! use qcowfuzz_walker::disk::storage::Layer;
//! use qcowfuzz_walker::walkers::{Disk, WalkScratch, map_extents, read};
//!
//! // Files are opened by `walkers::chain::FileChain`. Here, the bytes of a raw file lie in memory.
//! let file: &[u8] = &[7; 4096];
//! let disk = Disk::open_as(ImageFormat::Raw, &[Layer::alone(file)])?;
//! let mut scratch = WalkScratch::new();
//! map_extents(&disk, Window::ALL, &mut scratch, &mut |extent: Extent| {
//!     assert_eq!((extent.length_bytes, extent.mapping.data), (4096, true));
//!     ControlFlow::Continue(())
//! })?;
//! let mut bytes = [0; 16];
//! read(&disk, GuestOffset::new(512), &mut bytes, &mut scratch)?;
//! assert_eq!(bytes, [7; 16]);
//! # Ok::<(), qcowfuzz_walker::walkers::MapError>(())
//! ```

pub mod disk;
pub mod formats;
pub mod walkers;
