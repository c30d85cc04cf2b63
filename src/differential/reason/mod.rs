//! The reason why a command failed, as a class. Two programs word their errors differently, so the campaign compares
//! the classes of their messages.
//!
//! [`class_of`] searches tables of phrases for the ones that a program prints. It does not check whether the reason is
//! true, and does not compare offsets or values. If the name of a file contains one of the phrases, the class may be
//! wrong. A message without a class is a finding of its own. The programs must print the texts of system errors in
//! English (`LC_ALL=C`).

#[cfg(test)]
mod tests;

use crate::base::reasons::ReasonClass::{
    Bitmaps, CheckFindings, EndlessChain, Entry, Invalid, LogReplay, MissingFile, NoChecks,
    NoHostOffset, NotThisFormat, Output, Payload, Read, TooLarge, Unsupported, UnusableFile, Usage,
};
use crate::base::reasons::{FormatMessages, family};
use crate::disk::image_format::ImageFormat;
use crate::images::format::list::drawer;

pub use crate::base::reasons::{MessageFamily, NamedPair, ReasonClass};

/// Findings of a completed check, which both programs print in this form. An error that ended the check counts for
/// more, so these come last.
const FINDINGS: &[MessageFamily] = &[
    family("ERROR", CheckFindings, "a finding of check"),
    family("Leaked cluster", CheckFindings, "a finding of check"),
];

/// Returns the class of the reason that a program printed to standard error. Returns `None` if no phrase is known.
pub fn class_of(stderr: &str) -> Option<ReasonClass> {
    family_of(stderr).map(|family| family.class)
}

/// Returns the first family whose phrase the text contains. Families with more specific phrases come first.
pub fn family_of(stderr: &str) -> Option<&'static MessageFamily> {
    // clap begins its messages with "error: ".
    let is_ours = |line: &str| line.starts_with("qcowfuzz: ") || line.starts_with("error: ");
    let families = || families(stderr.lines().any(is_ours));
    let is_printed = |family: &&MessageFamily| stderr.contains(family.phrase);
    let error = families().find(|it| it.class != CheckFindings && is_printed(it));
    error.or_else(|| families().find(is_printed))
}

/// Returns our families or those of QEMU: those of each format, then those of all formats.
fn families(are_ours: bool) -> impl Iterator<Item = &'static MessageFamily> {
    let of_format = move |messages: FormatMessages| match are_ours {
        true => messages.ours,
        false => messages.qemu,
    };
    let general = if are_ours { OUR_MESSAGES } else { QEMU_MESSAGES };
    format_messages().flat_map(of_format).chain(general).chain(FINDINGS)
}

fn format_messages() -> impl Iterator<Item = FormatMessages> {
    ImageFormat::ALL.into_iter().map(|format| drawer(format).messages())
}

/// Returns the named pairs (QEMU 10.0.2): those of all formats, then those of each one. If several fit, the first one
/// counts.
pub fn pairs() -> impl Iterator<Item = &'static NamedPair> {
    PAIRS.iter().chain(format_messages().flat_map(|messages| messages.pairs))
}

/// The result of comparing two reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Both messages have this class.
    Same(ReasonClass),
    /// The classes differ, and the difference has a name.
    Named(&'static NamedPair),
    /// The classes differ, or a message has none: a finding.
    Different {
        /// The class of our message.
        ours: Option<ReasonClass>,
        /// The class of QEMU's message.
        theirs: Option<ReasonClass>,
    },
}

/// Compares the reasons that we and QEMU printed to standard error. Both programs must have failed at `command`:
/// "map", "check", "info" or "convert".
pub fn compare(command: &str, ours: &str, theirs: &str) -> Comparison {
    let (our_class, their_class) = (class_of(ours), class_of(theirs));
    let (Some(one), Some(other)) = (our_class, their_class) else {
        return Comparison::Different { ours: our_class, theirs: their_class };
    };
    if one == other {
        return Comparison::Same(one);
    }
    let is_named = |pair: &&NamedPair| {
        pair.command.is_none_or(|name| name == command)
            && pair.classes.is_none_or(|classes| classes == (one, other))
            && ours.contains(pair.our_phrase)
            && theirs.contains(pair.their_phrase)
    };
    match pairs().find(is_named) {
        Some(pair) => Comparison::Named(pair),
        None => Comparison::Different { ours: our_class, theirs: their_class },
    }
}

/// The named pairs of all formats (QEMU 10.0.2).
const PAIRS: &[NamedPair] = &[
    NamedPair {
        command: Some("check"),
        classes: None,
        our_phrase: "",
        their_phrase: "Could not open backing file",
        reason: "qemu-img check opens the backing file, which we do not",
    },
    NamedPair {
        command: Some("map"),
        classes: None,
        our_phrase: "in the human format, expected",
        their_phrase: "Could not read file metadata",
        reason: "QEMU reads the next entry before it prints data, and only then misses the host offset",
    },
    NamedPair {
        command: Some("convert"),
        classes: Some((Payload, Read)),
        our_phrase: "",
        their_phrase: "error while reading at byte",
        reason: "QEMU reports a failed read; we name the compressed payload",
    },
    NamedPair {
        command: Some("check"),
        classes: Some((Bitmaps, Invalid)),
        our_phrase: ": a table entry ",
        their_phrase: "Check failed: Invalid argument",
        reason: "QEMU prints only an error number about an entry of a bitmap table",
    },
];

/// Our messages about all formats, and about qcow2 images. More specific phrases come first.
const OUR_MESSAGES: &[MessageFamily] = &[
    // The command line and the output.
    family("For more information, try '--help'", Usage, "clap"),
    family("is not supported, expected one of", Usage, "cli::images::named_format"),
    family("the image with --no-follow: it needs", Usage, "cli::images, cli::images::map"),
    family("is the input file, expected another file", Output, "cli::output::not_the_input"),
    family("the file exists, expected a new one", Output, "base::error::Error::Exists"),
    family("is no regular file, expected a new one", Output, "base::error::Error::Output"),
    family("cannot be written: permission denied", UnusableFile, "base::files::write_whole"),
    family("cannot be written: ", Output, "base::files::write_whole"),
    family("No space left on device", Output, "base::error::Error::File"),
    family("standard output: ", Output, "cli::output::CommandError::output"),
    family("has no checks", NoChecks, "cli::images::check"),
    family("in the human format, expected", NoHostOffset, "cli::images::map::without_offset"),
    // Chains.
    family("is a file above it in the chain", EndlessChain, "ChainError::Loop"),
    family("images in the chain", EndlessChain, "ChainError::TooDeep, MapError::TooLarge"),
    family("names a protocol, expected the name of a file", UnusableFile, "ChainError::Protocol"),
    family("named by the image, and not at hand", MissingFile, "MapError::Missing"),
    // Failed reads, and payloads.
    family("reading at host offset ", Read, "StorageError"),
    family(" refcounts cannot be read", Read, "cli::images::check"),
    family("compressed cluster at guest offset ", Payload, "MapError::Compressed"),
    // Entries that a walk met.
    family(" for guest offset ", Entry, "MapError::InvalidEntry, MapError::Unaligned"),
    family("block allocation table entry ", Entry, "MapError::BlockEntry"),
    family(": the refcount block at ", Entry, "MapError::RefcountBlock"),
    family("guest offset ", Usage, "MapError::PastEnd"),
    // Structures that are read on opening.
    family("log that has to be replayed", LogReplay, "MapError::Unsupported"),
    family("unsupported feature: ", Unsupported, "MapError::Unsupported"),
    family("header: version is ", Unsupported, "MapError::Header"),
    family("header: incompatible_features is ", Unsupported, "MapError::Header, qcow2"),
    family("header: crypt_method is ", Unsupported, "MapError::Header, qcow2"),
    family("header: ", Invalid, "MapError::Header"),
    family("header extension ", Invalid, "MapError::ExtensionLength, MapError::Extension"),
    family("snapshot table entry ", Invalid, "MapError::Snapshot"),
    family("bitmaps extension: ", Invalid, "MapError::BitmapsExtension"),
    family("bitmap directory: ", Bitmaps, "MapError::BitmapDirectory"),
    family(": bitmap ", Bitmaps, "MapError::Bitmap"),
    family("not a qcow2 image: ", NotThisFormat, "MapError::NotQcow2"),
    // The file is of the format, and a part of it is missing or wrong.
    family("too large to be checked: ", TooLarge, "MapError::TooLarge"),
    // The errors of the system.
    family("not a regular file", UnusableFile, "disk::storage::FileStorage::open"),
    family("Permission denied", UnusableFile, "base::error::Error::File"),
    family("No such file or directory", MissingFile, "base::error::Error::File"),
    family("Not a directory", MissingFile, "base::error::Error::File"),
    family("Too many levels of symbolic links", MissingFile, "base::error::Error::File"),
    family("File name too long", MissingFile, "base::error::Error::File"),
];

/// QEMU's messages about all formats, and about qcow2 images. More specific phrases come first.
const QEMU_MESSAGES: &[MessageFamily] = &[
    // The command line and the output.
    family("Expecting one image file name", Usage, "qemu-img.c"),
    family("Must specify image file name", Usage, "qemu-img.c, img_convert"),
    family("Invalid start offset specified", Usage, "qemu-img.c, img_map"),
    family("Invalid max length specified", Usage, "qemu-img.c, img_map"),
    family("--help' for more info", Usage, "qemu-img.c, error_exit"),
    family("backing file: Unknown driver '", Unsupported, "block.c, bdrv_fill_options"),
    family("Unknown driver '", Usage, "block.c, bdrv_fill_options"),
    family("Unknown file format '", Usage, "qemu-img.c, img_convert"),
    family("error while writing", Output, "qemu-img.c, convert_co_do_copy"),
    family("Cannot grow device files", Output, "block/file-posix.c"),
    family("No space left on device", Output, "the system"),
    family("This image format does not support checks", NoChecks, "qemu-img.c, img_check"),
    family("File contains external, encrypted or", NoHostOffset, "qemu-img.c, dump_map_entry"),
    // Files. A chain without an end is followed until no file descriptor is left.
    family("Too many open files", EndlessChain, "block.c, bdrv_open_backing_file"),
    family("' to be a regular file", UnusableFile, "block/file-posix.c, raw_open_common"),
    family("Unknown protocol '", UnusableFile, "block.c, bdrv_find_protocol"),
    family("Failed to connect to", UnusableFile, "util/qemu-sockets.c"),
    family("'data-file' is required for this image", MissingFile, "block/qcow2.c, qcow2_do_open"),
    // Entries that a walk met. QEMU then prints a second message about the failed read.
    family("Image is corrupt: ", Entry, "block/qcow2.c, qcow2_signal_corruption"),
    // Failed reads of the data or the table that an entry names.
    family("error while reading", Read, "qemu-img.c, convert_iteration_sectors"),
    family("Could not read file metadata", Read, "qemu-img.c, img_map"),
    family("Unable to get block status", Read, "block/qcow2.c, qcow2_measure"),
    // qcow2.
    family("Image is not in qcow2 format", NotThisFormat, "block/qcow2.c, qcow2_do_open"),
    family("Unsupported qcow2 version", Unsupported, "block/qcow2.c, qcow2_do_open"),
    family("Unsupported qcow2 feature(s)", Unsupported, "report_unsupported_feature"),
    family("Unsupported encryption method", Unsupported, "block/qcow2.c, qcow2_do_open"),
    family("Missing CRYPTO header for crypt", Unsupported, "block/qcow2.c, qcow2_do_open"),
    family("key-secret' is required for cipher", Unsupported, "crypto/block-luks.c, block-qcow.c"),
    family("Unsupported cluster size", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("Unsupported subcluster size", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("qcow2 header too short", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("qcow2 header exceeds cluster size", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("ompression type", Invalid, "block/qcow2.c, validate_compression_type"),
    family("Invalid backing file offset", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("Backing file name too long", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("Reference count entry width", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("reference count table", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("Reference count table", Invalid, "block/qcow2.c, qcow2_validate_table"),
    family("initialize refcount handling", Invalid, "block/qcow2-refcount.c, qcow2_refcount_init"),
    family("napshot table", Invalid, "block/qcow2-snapshot.c, qcow2_read_snapshots"),
    family("Active L1 table", Invalid, "block/qcow2.c, qcow2_validate_table"),
    family("L1 table is too small", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("Could not read L1 table", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("Image is too big", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("Header extension too large", Invalid, "block/qcow2.c, qcow2_read_extensions"),
    family("ext_backing_format: ", Invalid, "block/qcow2.c, qcow2_read_extensions"),
    family("CRYPTO header extension", Invalid, "block/qcow2.c, qcow2_read_extensions"),
    family("bitmaps_ext: ", Invalid, "block/qcow2.c, qcow2_read_extensions"),
    family("bitmaps extension", Invalid, "block/qcow2.c, qcow2_read_extensions"),
    family("data-file-raw requires a data file", Invalid, "block/qcow2.c, qcow2_do_open"),
    family("Broken bitmap directory", Bitmaps, "block/qcow2-bitmap.c, bitmap_list_load"),
    family("bitmap directory", Invalid, "block/qcow2-bitmap.c, bitmap_list_load"),
    family("doesn't satisfy the constraints", Bitmaps, "block/qcow2-bitmap.c, bitmap_list_load"),
    family("More bitmaps found than", Bitmaps, "block/qcow2-bitmap.c, bitmap_list_load"),
    family("Could not read bitmap", Bitmaps, "block/qcow2-bitmap.c, load_bitmap"),
    family("Bitmap already exists: ", Bitmaps, "block/dirty-bitmap.c, bdrv_create_dirty_bitmap"),
    // Sizes, and the texts of error numbers.
    family("Failed to get size for", Invalid, "qemu-img.c, img_map"),
    family(": File too large", Invalid, "EFBIG: block.c, bdrv_refresh_total_sectors"),
    family(": No such file or directory", MissingFile, "ENOENT"),
    family(": Not a directory", MissingFile, "ENOTDIR"),
    family(": Too many levels of symbolic links", MissingFile, "ELOOP"),
    family(": File name too long", MissingFile, "ENAMETOOLONG"),
    family(": Permission denied", UnusableFile, "EACCES"),
    family(": Cannot allocate memory", TooLarge, "ENOMEM"),
    family(": Operation not supported", Unsupported, "ENOTSUP"),
    family(": Invalid argument", Invalid, "EINVAL"),
    family(": Input/output error", Read, "EIO"),
];
