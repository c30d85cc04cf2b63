//! The classes of reasons.

use qcowfuzz_walker::closed;

use ReasonClass::{
    Bitmaps, CheckFindings, EndlessChain, Entry, Invalid, LogReplay, MissingFile, NoChecks,
    NoHostOffset, NotThisFormat, Output, Payload, Read, TooLarge, Unsupported, UnusableFile, Usage,
};

closed! {
    /// The reason why `map`, `check`, `info` or `convert` failed.
    ReasonClass {
        /// The name of a file leads nowhere.
        MissingFile = "missing file",
        /// A file exists, but its type or its permissions do not allow the program to open it, or its name is refused.
        UnusableFile = "unusable file",
        /// The file is not an image of the format: the magic is wrong, or the file is too short.
        NotThisFormat = "not this format",
        /// The image is of a version, or uses a feature, that the program does not support. Encryption is one.
        Unsupported = "unsupported",
        /// A structure that is read on opening is malformed: the header, its extensions, the tables that it locates.
        Invalid = "invalid structure",
        /// The bitmaps are malformed. QEMU loads them whenever it opens an image.
        Bitmaps = "invalid bitmap",
        /// A table entry that the walk met is malformed.
        Entry = "invalid entry",
        /// A compressed cluster or grain is malformed.
        Payload = "invalid payload",
        /// A read failed.
        Read = "failed read",
        /// The image has a log or a journal that has to be replayed first.
        LogReplay = "log to replay",
        /// The chain of backing files contains itself, or has too many images.
        EndlessChain = "endless chain",
        /// The image needs more memory than the program allows.
        TooLarge = "too large",
        /// The command line is wrong.
        Usage = "usage",
        /// The output cannot be written.
        Output = "output",
        /// The format has no checks.
        NoChecks = "no checks",
        /// The human form of `map` cannot show data without a host offset.
        NoHostOffset = "no host offset",
        /// The check was completed and found something.
        CheckFindings = "check findings",
    }
}

/// Messages with the same reason.
#[derive(Debug, PartialEq, Eq)]
pub struct MessageFamily {
    /// A phrase that the messages contain.
    pub phrase: &'static str,
    /// The class of the reason.
    pub class: ReasonClass,
    /// The function of QEMU, or our type, from which the messages come.
    pub source: &'static str,
}

/// Returns a family.
pub(super) const fn family(
    phrase: &'static str,
    class: ReasonClass,
    source: &'static str,
) -> MessageFamily {
    MessageFamily { phrase, class, source }
}

/// The families. More specific phrases come first.
pub(super) const OUR_MESSAGES: &[MessageFamily] = &[
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

/// The families. More specific phrases come first.
pub(super) const QEMU_MESSAGES: &[MessageFamily] = &[
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
    family("VHDX BAT entry ", Entry, "block/vhdx.c, vhdx_check_bat_entries"),
    family("points after EOF", Entry, "block/vmdk.c, vmdk_check"),
    family("could not get cluster_offset for sector", Entry, "block/vmdk.c, vmdk_check"),
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
    // vpc.
    family("invalid VPC image", NotThisFormat, "block/vpc.c, vpc_open"),
    family("File too small for a VHD header", NotThisFormat, "block/vpc.c, vpc_open"),
    family("Incorrect header checksum", Invalid, "block/vpc.c, vpc_open"),
    family("Invalid header magic", Invalid, "block/vpc.c, vpc_open"),
    family("Error reading dynamic VHD header", Invalid, "block/vpc.c, vpc_open"),
    family("Invalid block size", Invalid, "block/vpc.c, vpc_open"),
    family("Page table too small", Invalid, "block/vpc.c, vpc_open"),
    family("Max Table Entries too large", Invalid, "block/vpc.c, vpc_open"),
    family("Error reading pagetable", Invalid, "block/vpc.c, vpc_open"),
    family("free_data_block_offset points after", Invalid, "block/vpc.c, vpc_open"),
    // VHDX.
    family("contains a log that needs to be replayed", LogReplay, "block/vhdx-log.c"),
    family("No valid VHDX header found", Invalid, "block/vhdx.c, vhdx_parse_header"),
    family("overlaps with region", Invalid, "block/vhdx.c, vhdx_region_check"),
    // VDI.
    family("Image not in VDI format", NotThisFormat, "block/vdi.c, vdi_open"),
    family("Unsupported VDI image size", Invalid, "block/vdi.c, vdi_open"),
    family("unsupported VDI image (version", Unsupported, "block/vdi.c, vdi_open"),
    family("unsupported VDI image (non-NULL", Unsupported, "block/vdi.c, vdi_open"),
    family("unsupported VDI image (", Invalid, "block/vdi.c, vdi_open"),
    // VMDK.
    family("invalid VMDK image descriptor", NotThisFormat, "block/vmdk.c, vmdk_open_desc_file"),
    family("Image not in VMDK format", NotThisFormat, "block/vmdk.c, vmdk_open_sparse"),
    family("File is too small, not a valid image", NotThisFormat, "block/vmdk.c, vmdk_read_desc"),
    family("Bad const header magic", NotThisFormat, "check_se_sparse_const_header"),
    family("Bad volatile header magic", Invalid, "check_se_sparse_volatile_header"),
    family("Replaying journal not supported", LogReplay, "check_se_sparse_volatile_header"),
    family("Unsupported VMDK version", Unsupported, "block/vmdk.c, vmdk_open_vmdk4"),
    family("Unsupported version: ", Unsupported, "check_se_sparse_const_header"),
    family("Unsupported image type '", Unsupported, "block/vmdk.c, vmdk_open_desc_file"),
    family("Unsupported grain size", Invalid, "check_se_sparse_const_header"),
    family("Unsupported grain table size", Invalid, "check_se_sparse_const_header"),
    family("Unsupported flags: ", Invalid, "check_se_sparse_const_header"),
    family("Unsupported reserved bits", Invalid, "check_se_sparse_const_header"),
    family("Unsupported non-zero", Invalid, "check_se_sparse_const_header"),
    family("Invalid footer", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
    family("Failed to read footer", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
    family("File truncated, expecting at least", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
    family("L1 entry size is invalid", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
    family("L2 table size too big", Invalid, "block/vmdk.c, vmdk_open_vmdk4"),
    family("Invalid granularity", Invalid, "block/vmdk.c, vmdk_add_extent"),
    family("L1 size too big", Invalid, "block/vmdk.c, vmdk_add_extent"),
    family("Could not read l1 ", Invalid, "block/vmdk.c, vmdk_init_tables"),
    family("Invalid extent line", Invalid, "block/vmdk.c, vmdk_parse_extents"),
    // Sizes, and the texts of error numbers.
    family("Failed to get size for", Invalid, "qemu-img.c, img_map"),
    family(": File too large", Invalid, "EFBIG: block.c, bdrv_refresh_total_sectors; block/vpc.c"),
    family(": No such file or directory", MissingFile, "ENOENT"),
    family(": Not a directory", MissingFile, "ENOTDIR"),
    family(": Too many levels of symbolic links", MissingFile, "ELOOP"),
    family(": File name too long", MissingFile, "ENAMETOOLONG"),
    family(": Permission denied", UnusableFile, "EACCES"),
    family(": Cannot allocate memory", TooLarge, "ENOMEM"),
    family(": Operation not supported", Unsupported, "ENOTSUP: block/vhdx.c"),
    family(": Invalid argument", Invalid, "EINVAL: block/vhdx.c, block/vmdk.c"),
    family(": Input/output error", Read, "EIO"),
];
