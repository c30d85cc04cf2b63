//! Every bound on sizes, steps and memory, each with its reason. What a program may build is limited by
//! `images::limits`.

/// The longest compressed payload: 64 KiB that cannot be compressed, and the zeros of a 2 MiB cluster
/// behind them.
pub const MAX_PAYLOAD_BYTES: usize = 80 << 10;
/// The largest tolerance for growth of the refcount table, in clusters: what a program's operand can
/// say, and enough for a table to grow into it more than once.
pub const MAX_TABLE_TOLERANCE: u64 = 3;
/// How many operations a program can have; libFuzzer's default `-max_len` of 4,096 gives 509.
pub const MAX_OPERATIONS: usize = 4096;
/// How many layers a program's backing chain can have, the image itself among them.
pub const MAX_LAYERS: usize = 4;
/// How many images a chain of files can have, each of them opened because the one above names it.
pub const MAX_FILE_LAYERS: usize = 64;
/// How often the refcount table may move before the fixpoint is declared broken. Two moves are enough:
/// see `images::qcow2::refcounts`.
pub const MAX_TABLE_ROUNDS: u32 = 16;
/// The steps that one walk may take for each byte of tables that it could read, and for each extent.
/// A walk that takes more hangs.
pub const FUEL_PER_UNIT: u64 = 4;
/// The steps that any walk may take.
pub const FUEL_BASE: u64 = 4096;
/// How many references to clusters, and how many runs of counts, a recount keeps: 4 TiB of data in
/// 64 KiB clusters, and some GiB of memory. An image of 33 MiB can ask for a thousand times as much, by
/// naming one table again and again.
pub const MAX_RECOUNTED: usize = 1 << 26;
/// How far into a compressed cluster the loop reads: all that most shapes fill (`content`), and zeros
/// behind it. A 2 MiB cluster takes a millisecond to inflate.
pub const MAX_INFLATED_BYTES: u64 = 16 << 10;
/// How many entries the log of a run keeps; a person reads a few hundred of them, a test all.
pub const MAX_LOGGED: usize = 1 << 16;
/// How many fields and entries of an image are kept, to be attacked: more than the operations of most programs
/// write, and some MiB.
pub const MAX_ELEMENTS: usize = 1 << 16;
/// How many extents of a walk are waited for by who wants to know what it reads.
pub const MAX_WATCHED_EXTENTS: usize = 4096;
/// How much of a file the embedded loop takes for an input: as much as libFuzzer does.
pub const MAX_INPUT_BYTES: u64 = 1 << 20;
/// How many fields and entries of each image are explained: more than anybody reads.
pub const MAX_EXPLAINED_ENTRIES: usize = 4096;
/// How many references and runs of counts of an image are explained: those of a file that is an input, and more.
pub const MAX_EXPLAINED_RUNS: usize = 1 << 18;
/// How many extents are explained: more than any program's disk has, of which each cluster has 32 subclusters.
pub const MAX_EXPLAINED_EXTENTS: usize = 1 << 18;
/// The steps that a walk may take that is explained: none is waited for longer than a second.
pub const EXPLAINED_FUEL: u64 = 1 << 24;
/// How many times all reducers of a minimization run: the second time they seldom find anything.
pub const MAX_MINIMIZE_ROUNDS: u32 = 16;
