//! The messages of `qcowfuzz map`, `check`, `info` and `convert`.

use super::class::ReasonClass::{
    Bitmaps, CheckFindings, EndlessChain, Entry, Invalid, LogReplay, MissingFile, NoChecks,
    NoHostOffset, NotThisFormat, Output, Payload, Read, TooLarge, Unsupported, UnusableFile, Usage,
};
use super::family::{MessageFamily, family};

/// The families. More specific phrases come first.
pub(super) const OUR_MESSAGES: &[MessageFamily] = &[
    // The command line and the output.
    family("For more information, try '--help'", Usage, "clap"),
    family("is not supported, expected one of", Usage, "cli::opening::named_format"),
    family("the image with --no-follow: it needs", Usage, "cli::map, cli::opening"),
    family("is the input file, expected another file", Output, "cli::save"),
    family("the file exists, expected a new one", Output, "base::error::Error::Exists"),
    family("is no regular file, expected a new one", Output, "base::error::Error::Output"),
    family("cannot be written: permission denied", UnusableFile, "base::files::write_whole"),
    family("cannot be written: ", Output, "base::files::write_whole"),
    family("No space left on device", Output, "base::error::Error::File"),
    family("standard output: ", Output, "cli::exit::CommandError::output"),
    family("has no checks", NoChecks, "cli::check"),
    family("in the human format, expected", NoHostOffset, "cli::map::without_offset"),
    // Chains.
    family("is a file above it in the chain", EndlessChain, "ChainError::Loop"),
    family("images in the chain", EndlessChain, "ChainError::TooDeep, MapError::TooLarge"),
    family("names a protocol, expected the name of a file", UnusableFile, "ChainError::Protocol"),
    family("named by the image, and not at hand", MissingFile, "MapError::Missing"),
    // Failed reads, and payloads.
    family("reading at host offset ", Read, "StorageError"),
    family(" refcounts cannot be read", Read, "cli::check"),
    family("compressed cluster at guest offset ", Payload, "MapError::Compressed"),
    family(": the zlib stream ", Payload, "MapError::Grain, formats::vmdk::inflate"),
    family(": the length in its marker is ", Payload, "MapError::Grain, formats::vmdk::inflate"),
    family(": block index ", CheckFindings, "formats::vdi::check"),
    family("allocated blocks mismatch", CheckFindings, "formats::vdi::check"),
    // Entries that a walk met.
    family("grain at guest offset ", Entry, "MapError::Grain"),
    family(" for guest offset ", Entry, "MapError::InvalidEntry, MapError::Unaligned"),
    family("block allocation table entry ", Entry, "MapError::BlockEntry"),
    family(": the refcount block at ", Entry, "MapError::RefcountBlock"),
    family("guest offset ", Usage, "MapError::PastEnd"),
    // Structures that are read on opening.
    family("log that has to be replayed", LogReplay, "MapError::Unsupported"),
    family("header: replay of the journal is ", LogReplay, "MapError::Header, seSparse"),
    family("unsupported feature: ", Unsupported, "MapError::Unsupported"),
    family("header: version is ", Unsupported, "MapError::Header, qcow2 and VMDK"),
    family("header: incompatible_features is ", Unsupported, "MapError::Header, qcow2"),
    family("header: crypt_method is ", Unsupported, "MapError::Header, qcow2"),
    family("header: logical sector size is ", Unsupported, "MapError::Header, VHDX"),
    family("header: ", Invalid, "MapError::Header"),
    family("header extension ", Invalid, "MapError::ExtensionLength, MapError::Extension"),
    family("snapshot table entry ", Invalid, "MapError::Snapshot"),
    family("bitmaps extension: ", Invalid, "MapError::BitmapsExtension"),
    family("bitmap directory: ", Bitmaps, "MapError::BitmapDirectory"),
    family(": bitmap ", Bitmaps, "MapError::Bitmap"),
    family("not a qcow2 image: ", NotThisFormat, "MapError::NotQcow2"),
    family("the file does not begin with 'vhdxfile'", NotThisFormat, "MapError::NotImage, VHDX"),
    family("no footer in the first sector", NotThisFormat, "MapError::NotImage, vpc"),
    family("the signature is not 0xbeda107f", NotThisFormat, "MapError::NotImage, VDI"),
    family("image: the file is empty", NotThisFormat, "MapError::NotImage, VMDK"),
    family("no type of disk in the descriptor", NotThisFormat, "MapError::NotImage, VMDK"),
    family("no header of a sparse extent", NotThisFormat, "MapError::NotImage, VMDK"),
    family("no constant header in the first sector", NotThisFormat, "MapError::NotImage, seSparse"),
    // The file is of the format, and a part of it is missing or wrong.
    family("not a vhdx image: ", Invalid, "MapError::NotImage"),
    family("not a vpc image: ", Invalid, "MapError::NotImage"),
    family("not a vmdk image: ", Invalid, "MapError::NotImage"),
    family("not a seSparse image: ", Invalid, "MapError::NotImage"),
    family("too large to be checked: ", TooLarge, "MapError::TooLarge"),
    // The errors of the system.
    family("not a regular file", UnusableFile, "disk::storage::FileStorage::open"),
    family("Permission denied", UnusableFile, "base::error::Error::File"),
    family("No such file or directory", MissingFile, "base::error::Error::File"),
    family("Not a directory", MissingFile, "base::error::Error::File"),
    family("Too many levels of symbolic links", MissingFile, "base::error::Error::File"),
    family("File name too long", MissingFile, "base::error::Error::File"),
];
