use std::collections::BTreeSet;
use std::io::{Error as SystemError, ErrorKind};
use std::path::PathBuf;

use super::*;
use crate::base::error::Error;
use crate::disk::error::{FileError, StorageError};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::walkers::MapError;
use crate::walkers::chain::ChainError;

/// Returns the class of one of our messages.
fn class(message: impl std::fmt::Display) -> Option<ReasonClass> {
    class_of(&format!("qcowfuzz: disk.img: {message}\n"))
}

/// Returns the number of the variant. The compiler refuses this function if a variant is missing here.
fn variant(error: &MapError) -> usize {
    match error {
        MapError::NotQcow2 { .. } => 0,
        MapError::NotImage { .. } => 1,
        MapError::Header { .. } => 2,
        MapError::Unsupported(_) => 3,
        MapError::Below { .. } => 4,
        MapError::Missing(_) => 5,
        MapError::TooLarge(_) => 6,
        MapError::ExtensionLength { .. } => 7,
        MapError::Extension { .. } => 8,
        MapError::Unaligned { .. } => 9,
        MapError::InvalidEntry { .. } => 10,
        MapError::BlockEntry { .. } => 11,
        MapError::Compressed { .. } => 12,
        MapError::Grain { .. } => 13,
        MapError::Snapshot { .. } => 14,
        MapError::BitmapsExtension { .. } => 15,
        MapError::BitmapDirectory { .. } => 16,
        MapError::Bitmap { .. } => 17,
        MapError::RefcountBlock { .. } => 18,
        MapError::PastEnd { .. } => 19,
        MapError::Storage { .. } => 20,
    }
}

/// The number of variants of [`MapError`].
const VARIANTS: usize = 21;

fn map_errors() -> Vec<(MapError, ReasonClass)> {
    let (guest, host, what) = (GuestOffset::new(65536), HostOffset::new(512), "it is wrong");
    let header = |field| MapError::Header { field, found: 7, expected: "1" };
    let not_image = |format, what| MapError::NotImage { format, what };
    let failed = StorageError { offset: host, kind: ErrorKind::PermissionDenied };
    vec![
        (MapError::NotQcow2 { found: 7 }, NotThisFormat),
        (not_image("seSparse", "no constant header in the first sector"), NotThisFormat),
        (not_image("seSparse", "no volatile header at its sector"), Invalid),
        (header("l1_size"), Invalid),
        (header("log version"), Invalid),
        (header("version"), Unsupported),
        (header("incompatible_features"), Unsupported),
        (header("crypt_method"), Unsupported),
        (header("logical sector size"), Unsupported),
        (header("replay of the journal"), LogReplay),
        (MapError::Unsupported("encryption (AES)"), Unsupported),
        (MapError::Unsupported("log that has to be replayed"), LogReplay),
        (header("l1_size").below(), Invalid),
        (MapError::Missing("external data file"), MissingFile),
        (MapError::TooLarge("too many references to clusters"), TooLarge),
        (MapError::TooLarge("too many images in the chain"), EndlessChain),
        (MapError::ExtensionLength { kind: 1, at: 104, length: 999, area_end: 512 }, Invalid),
        (MapError::Extension { kind: 1, at: 104, what: "is longer than 15 bytes" }, Invalid),
        (MapError::Unaligned { structure: "L2 table", guest, host }, Entry),
        (MapError::InvalidEntry { guest, what }, Entry),
        (MapError::BlockEntry { index: 1, what }, Entry),
        (MapError::Compressed { guest, what }, Payload),
        (MapError::Grain { guest, what: "the grain directory has no entry for it" }, Entry),
        (MapError::Grain { guest, what: "the zlib stream is longer than the grain" }, Payload),
        (
            MapError::Grain {
                guest,
                what: "the length in its marker is 0, or more than that of two grains",
            },
            Payload,
        ),
        (MapError::Snapshot { index: 1, what }, Invalid),
        (MapError::BitmapsExtension { field: "length", found: 7, expected: "24" }, Invalid),
        (MapError::BitmapDirectory { what }, Bitmaps),
        (MapError::Bitmap { index: 1, what }, Bitmaps),
        (MapError::RefcountBlock { index: 1, host, what: "lies past 2^63" }, Entry),
        (MapError::PastEnd { guest, virtual_size: 512 }, Usage),
        (MapError::from(failed), Read),
        (MapError::from(failed).below(), Read),
    ]
}

#[test]
fn every_map_error_has_a_class() {
    let mut seen = BTreeSet::new();
    for (error, expected) in map_errors() {
        assert_eq!(class(&error), Some(expected), "{error}");
        seen.insert(variant(&error));
    }
    assert_eq!(seen.len(), VARIANTS, "variants with an example: {seen:?}");
}

/// Returns the number of the variant. The compiler refuses this function if a variant is missing here.
fn chain_variant(error: &ChainError) -> usize {
    match error {
        ChainError::File(_) => 0,
        ChainError::Named { .. } => 1,
        ChainError::Image { .. } => 2,
        ChainError::Protocol { .. } => 3,
        ChainError::Loop { .. } => 4,
        ChainError::TooDeep { .. } => 5,
    }
}

#[test]
fn every_chain_error_has_a_class() {
    let path = || PathBuf::from("disk.img");
    let missing = || FileError::new(path(), SystemError::from_raw_os_error(2));
    let (what, name) = ("backing file", "nbd:x".to_string());
    let errors = [
        (ChainError::File(missing()), MissingFile),
        (ChainError::Named { path: path(), what, error: missing() }, MissingFile),
        (ChainError::Image { path: path(), error: MapError::NotQcow2 { found: 1 } }, NotThisFormat),
        (ChainError::Protocol { path: path(), what, name: name.clone() }, UnusableFile),
        (ChainError::Loop { path: path(), name }, EndlessChain),
        (ChainError::TooDeep { path: path() }, EndlessChain),
    ];
    for (at, (error, expected)) in errors.iter().enumerate() {
        assert_eq!(chain_variant(error), at);
        assert_eq!(class(error), Some(*expected), "{error}");
    }
}

#[test]
fn errors_of_the_system_and_of_the_command_line_have_a_class() {
    let path = || PathBuf::from("disk.img");
    let system = |number| Error::file(path(), SystemError::from_raw_os_error(number));
    let folder = Error::file(path(), SystemError::other("not a regular file"));
    // The numbers of Linux: ENOENT, EACCES, ENOTDIR, ENOSPC, ENAMETOOLONG, ELOOP.
    let errors = [
        (system(2), MissingFile),
        (system(13), UnusableFile),
        (system(20), MissingFile),
        (system(28), Output),
        (system(36), MissingFile),
        (system(40), MissingFile),
        (folder, UnusableFile),
    ];
    for (error, expected) in errors {
        assert_eq!(class(&error), Some(expected), "{error}");
    }
    let clap = "error: invalid value '-1' for '--start-offset <N>': must be between 0 and 9\n\n\
                For more information, try '--help'.\n";
    assert_eq!(class_of(clap), Some(Usage));
}

#[test]
fn no_phrase_hides_another() {
    for (are_ours, program) in [(true, "qcowfuzz: "), (false, "qemu-img: ")] {
        for family in families(are_ours) {
            let found = family_of(&format!("{program}{}", family.phrase));
            assert_eq!(found, Some(family), "{program}{}", family.phrase);
        }
    }
}

#[test]
fn every_class_has_a_name_and_a_message_of_each_program() {
    let names: BTreeSet<_> = ReasonClass::ALL.iter().map(|class| class.name()).collect();
    assert_eq!(names.len(), ReasonClass::ALL.len());
    for class in ReasonClass::ALL.iter().copied() {
        // QEMU has no message of its own about a payload: it reports a failed read.
        let has = |are_ours: bool| families(are_ours).any(|family| family.class == class);
        assert!(has(true), "{class:?}");
        assert_eq!(has(false), class != Payload, "{class:?}");
    }
}

#[test]
fn messages_of_qemu_have_a_class() {
    let messages = [
        ("qemu-img: Could not open 'a': Image is not in qcow2 format", NotThisFormat),
        (
            "qemu-img: Could not open 'a': Could not open backing file: Could not open 'b': \
             Permission denied",
            UnusableFile,
        ),
        // An entry, and then the failed read.
        (
            "qcow2: Image is corrupt: L2 table offset 0x1 unaligned (L1 index: 0); further non-fatal \
             corruption events will be suppressed\nqemu-img: Could not read file metadata: \
             Input/output error",
            Entry,
        ),
        // A finding, and then the error that ended the check.
        (
            "ERROR refcount block 0 is outside image\nqemu-img: Check failed: Input/output error",
            Read,
        ),
        ("ERROR cluster 3 refcount=1 reference=0", CheckFindings),
        ("Leaked cluster 3 refcount=1 reference=0", CheckFindings),
    ];
    for (message, expected) in messages {
        assert_eq!(class_of(message), Some(expected), "{message}");
    }
}

#[test]
fn our_findings_are_no_errors() {
    let findings = [
        "ERROR L2 entry 0x5 at host offset 8: the cluster is not on a cluster boundary",
        "ERROR refcount table entry 0 (0x5): reserved bits are set",
        "ERROR snapshot 0: less than 16 bytes of extra data",
        "ERROR data of 512 bytes at host offset 8 lies past the end of the file",
        "ERROR OFLAG_COPIED L2 cluster 5: set, refcount=2",
    ];
    for finding in findings {
        assert_eq!(class_of(finding), Some(CheckFindings), "{finding}");
    }
    // An error that ends the check follows the findings.
    let ended = "ERROR L2 entry 0x5 at host offset 8: reserved bits are set\n\
                 qcowfuzz: a: reading at host offset 8: permission denied";
    assert_eq!(class_of(ended), Some(Read));
    let incomplete = "ERROR the refcounts of clusters 0 to 2 are unreadable\n\
                      qcowfuzz: a: the check is incomplete: 2 refcounts cannot be read";
    assert_eq!(class_of(incomplete), Some(Read));
}

#[test]
fn unknown_messages_have_no_class() {
    for message in ["", "Segmentation fault", "qemu-img: frob", "qcowfuzz: a: frob"] {
        assert_eq!(class_of(message), None, "{message}");
    }
    let unknown = Comparison::Different { ours: None, theirs: None };
    assert_eq!(compare("map", "qcowfuzz: a: frob", "qemu-img: frob"), unknown);
}

#[test]
fn a_named_difference_needs_its_phrases() {
    let theirs = "qemu-img: Could not open 'a': Could not open 'a': Invalid argument";
    let magic = "qcowfuzz: a: not a qcow2 image: the file is empty";
    let different = Comparison::Different { ours: Some(NotThisFormat), theirs: Some(Invalid) };
    assert_eq!(compare("map", magic, theirs), different);
    let header = "qcowfuzz: a: header: log version is 1, expected 0";
    assert_eq!(compare("map", header, theirs), Comparison::Same(Invalid));
}

#[test]
fn a_named_difference_needs_its_command_and_two_classes() {
    let ours = "qcowfuzz: a: header: refcount_order is 7, expected 0 to 6";
    let theirs =
        "qemu-img: Could not open 'a': Could not open backing file: Image is not in qcow2 format";
    assert!(matches!(compare("check", ours, theirs), Comparison::Named(_)));
    let different = Comparison::Different { ours: Some(Invalid), theirs: Some(NotThisFormat) };
    assert_eq!(compare("map", ours, theirs), different);
    let no_offset = "qcowfuzz: a: cannot print the compressed data at guest offset 0x0 in the human format, \
                     expected --output json";
    let entry = "qcow2: Image is corrupt: Cluster allocation offset 0x60200 unaligned\n\
                 qemu-img: Could not read file metadata: Input/output error";
    assert!(matches!(compare("map", no_offset, entry), Comparison::Named(_)));
    let invalid = "qemu-img: Could not open 'a': Image is too big";
    let different = Comparison::Different { ours: Some(NoHostOffset), theirs: Some(Invalid) };
    assert_eq!(compare("map", no_offset, invalid), different);
    let unknown = Comparison::Different { ours: None, theirs: Some(NotThisFormat) };
    assert_eq!(compare("check", "qcowfuzz: a: frob", theirs), unknown);
    let reasons: BTreeSet<_> = pairs().map(|pair| pair.reason).collect();
    assert_eq!(reasons.len(), pairs().count());
}
