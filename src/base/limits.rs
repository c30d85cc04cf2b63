//! Bounds on sizes, steps and memory, each with its reason. `images::limits` holds the bounds on what a program may
//! build.

/// The longest compressed payload in bytes: 64 KiB that cannot be compressed, followed by the zeros that fill a
/// cluster of 2 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 80 << 10;
/// The largest tolerance for growth of the refcount table, in clusters. A program's operand has this range, and the
/// table can grow into it more than once.
pub const MAX_TABLE_TOLERANCE: u64 = 3;
/// The largest number of operations in a program. libFuzzer's default `-max_len` of 4,096 allows 509.
pub const MAX_OPERATIONS: usize = 4096;
/// The largest number of layers in a program's backing chain, the image itself included.
pub const MAX_LAYERS: usize = 4;
/// The largest number of places that the allocator tries for the refcount table. More would be a bug of the allocator,
/// because two moves are always enough: see `images::qcow2::refcounts`.
pub const MAX_TABLE_ROUNDS: u32 = 16;
/// The number of steps that a walk may take for each byte of tables that it can read, and for each extent. A walk
/// that takes more steps counts as endless.
pub const FUEL_PER_UNIT: u64 = 4;
/// The number of steps that every walk may take.
pub const FUEL_BASE: u64 = 4096;
/// The largest number of references to clusters, and of runs of counts, that a recount keeps. That is enough
/// for 4 TiB of data in clusters of 64 KiB, and takes some GiB of memory. An image of 33 MiB can cause a thousand times
/// as many references, because its entries can name one table again and again.
pub const MAX_RECOUNTED: usize = 1 << 26;
/// The number of bytes in which the command `check` keeps the references and the counts of a qcow2 image's clusters.
/// That is enough for 64 TiB of data in clusters of 64 KiB.
#[cfg(feature = "cli")]
pub const MAX_CHECK_KEPT_BYTES: u64 = 2 << 30;
/// The number of references to clusters that the command `check` follows in any image, in a second. An image of 33 MiB
/// can cause 2^35, because its entries can name one table again and again.
#[cfg(feature = "cli")]
pub const MIN_CHECKED_REFERENCES: u64 = 1 << 26;
/// The number of references to clusters that the command `check` follows for each byte that the file stores. An entry
/// has eight bytes, and only snapshots and compressed clusters cause more references than there are entries.
#[cfg(feature = "cli")]
pub const CHECKED_REFERENCES_PER_BYTE: u64 = 2;
/// The largest number of references to clusters that the command `check` follows. They take some minutes.
#[cfg(feature = "cli")]
pub const MAX_CHECKED_REFERENCES: u64 = 1 << 34;
/// The number of bytes from the start of a compressed cluster that the loop reads. Most shapes fill no more (see
/// `content`), and zeros follow. Inflating a cluster of 2 MiB takes a millisecond.
pub const MAX_INFLATED_BYTES: u64 = 16 << 10;
/// The largest number of entries in the log of a run. A person reads a few hundred of them, a test all.
#[cfg(feature = "fuzzer")]
pub const MAX_LOGGED: usize = 1 << 16;
/// The number of extents after which a watched walk ends.
pub const MAX_WATCHED_EXTENTS: usize = 4096;
/// The number of bytes of a file that the embedded loop takes as an input: as many as libFuzzer takes.
pub const MAX_INPUT_BYTES: u64 = 1 << 20;
/// The largest number of fields and entries that an explanation lists for each image: more than a person reads.
pub const MAX_EXPLAINED_ENTRIES: usize = 4096;
/// The largest number of references and runs of counts that an explanation lists for each image: more than an image
/// that a fuzzer's input builds has.
pub const MAX_EXPLAINED_RUNS: usize = 1 << 18;
/// The largest number of extents in an explanation: more than any program's disk has, counting 32 subclusters in each
/// cluster.
pub const MAX_EXPLAINED_EXTENTS: usize = 1 << 18;
/// The number of steps that an explained walk may take. No such walk takes longer than a second.
pub const EXPLAINED_FUEL: u64 = 1 << 24;
/// The number of times that a minimization runs all reducers. The second time, they seldom find anything.
pub const MAX_MINIMIZE_ROUNDS: u32 = 16;
