//! Bounds on what the walker keeps, each with its reason.

/// The largest number of images in a chain of files, where each image names the next.
pub const MAX_FILE_LAYERS: usize = 64;
/// The largest number of grain tables whose offsets the check of an image keeps, in order to read them only once.
/// That is enough for 32 TiB of data in the usual grains of 64 KiB, and takes some dozen MiB. The check reads further
/// tables each time that an entry names them.
pub const MAX_SOUND_TABLES: usize = 1 << 20;
/// The largest number of fields and entries of an image that attacks can change: more than the operations of most
/// programs write. They take some MiB.
pub const MAX_ELEMENTS: usize = 1 << 16;
