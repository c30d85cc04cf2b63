//! The files that OSS-Fuzz and ClusterFuzzLite get beside the targets are complete and up to date.
//! `QCOWFUZZ_BLESS=1 cargo test --test oss_fuzz` writes the dictionary again.

use test_support::prelude::*;

use qcowfuzz::disk::clusters::ClusterSize;
use qcowfuzz::formats::qcow2::bitmap::MAX_BITMAPS;
use qcowfuzz::formats::qcow2::constants::{
    BITMAP_AUTO, BITMAP_IN_USE, BITMAPS_EXTENSION_BYTES, COPIED, OFFSET_MASK,
    SNAPSHOT_KNOWN_EXTRA_BYTES, SNAPSHOT_V3_EXTRA_BYTES as V3_EXTRA_BYTES, *,
};

use qcowfuzz::formats::vdi::constants as vdi;
use qcowfuzz::formats::vhdx::constants as vhdx;
use qcowfuzz::formats::vmdk::constants as vmdk;
use qcowfuzz::formats::vpc::constants as vpc;

const DICTIONARY: &str = "fuzz/dictionaries/raw_image.dict";
/// The lowest number of seeds of a target.
const MIN_SEEDS: usize = 10;
/// The length of the longest dictionary entry that libFuzzer does not cut, in bytes.
const MAX_ENTRY_BYTES: usize = 64;

fn text_of(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names and the bytes of all dictionary entries. qcow2 is big-endian; zstd frames are
/// little-endian.
fn entries() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |name: &str, bytes: &[u8]| all.push((name.to_lowercase(), bytes.to_vec()));
    add("MAGIC", &MAGIC.to_be_bytes());
    for version in [2u32, 3] {
        let words = [MAGIC.to_be_bytes(), version.to_be_bytes()].concat();
        add(&format!("MAGIC_VERSION_{version}"), &words);
    }
    let cluster_bits =
        (ClusterSize::MIN_BITS..=MAX_CLUSTER_BITS).map(|bits| ("CLUSTER_BITS", bits));
    let refcount_orders = (0..=MAX_REFCOUNT_ORDER).map(|order| ("REFCOUNT_ORDER", order));
    for (name, value) in cluster_bits.chain(refcount_orders) {
        add(&format!("{name}_{value}"), &value.to_be_bytes());
    }
    for (name, value) in [
        ("V2_LENGTH_BYTES", V2_LENGTH_BYTES),
        ("V3_LENGTH_BYTES", V3_LENGTH_BYTES),
        ("V3_COMPRESSION_LENGTH_BYTES", V3_COMPRESSION_LENGTH_BYTES),
        ("MAX_L1_ENTRIES", MAX_L1_ENTRIES),
        ("MAX_SNAPSHOTS", MAX_SNAPSHOTS),
        ("MAX_BITMAPS", MAX_BITMAPS),
        ("EXTENSION_BACKING_FORMAT", EXTENSION_BACKING_FORMAT),
        ("EXTENSION_FEATURE_NAMES", EXTENSION_FEATURE_NAMES),
        ("EXTENSION_BITMAPS", EXTENSION_BITMAPS),
        ("EXTENSION_CRYPTO", EXTENSION_CRYPTO),
        ("EXTENSION_DATA_FILE", EXTENSION_DATA_FILE),
        ("BITMAP_FLAG_IN_USE", BITMAP_IN_USE),
        ("BITMAP_FLAG_AUTO", BITMAP_AUTO),
        ("SNAPSHOT_V3_EXTRA_BYTES", V3_EXTRA_BYTES),
        ("SNAPSHOT_KNOWN_EXTRA_BYTES", SNAPSHOT_KNOWN_EXTRA_BYTES as u32),
    ] {
        add(name, &value.to_be_bytes());
    }
    // Two extensions have a fixed length: the end of the extensions, which is empty, and the bitmaps extension.
    for (name, kind, length) in [
        ("EXTENSION_END", EXTENSION_END, 0),
        ("EXTENSION_BITMAPS_HEAD", EXTENSION_BITMAPS, BITMAPS_EXTENSION_BYTES as u32),
    ] {
        add(name, &[kind.to_be_bytes(), length.to_be_bytes()].concat());
    }
    for (name, value) in [
        ("INCOMPATIBLE_DIRTY", INCOMPATIBLE_DIRTY),
        ("INCOMPATIBLE_CORRUPT", INCOMPATIBLE_CORRUPT),
        ("INCOMPATIBLE_DATA_FILE", INCOMPATIBLE_DATA_FILE),
        ("INCOMPATIBLE_COMPRESSION", INCOMPATIBLE_COMPRESSION),
        ("INCOMPATIBLE_EXTENDED_L2", INCOMPATIBLE_EXTENDED_L2),
        ("COMPATIBLE_LAZY_REFCOUNTS", COMPATIBLE_LAZY_REFCOUNTS),
        ("AUTOCLEAR_BITMAPS", AUTOCLEAR_BITMAPS),
        ("AUTOCLEAR_RAW_DATA_FILE", AUTOCLEAR_RAW_DATA_FILE),
        ("ENTRY_COPIED", COPIED),
        ("ENTRY_OFFSET_MASK", OFFSET_MASK),
        ("ENTRY_COMPRESSED", L2_COMPRESSED),
        ("ENTRY_ZERO", L2_ZERO),
        ("SUBCLUSTERS_ALL_ALLOCATED", 0xFFFF_FFFF),
        ("SUBCLUSTERS_ALL_ZERO", 0xFFFF_FFFF << 32),
    ] {
        add(name, &value.to_be_bytes());
    }
    for format in [ImageFormat::Qcow2, ImageFormat::Raw] {
        add(&format!("BACKING_FORMAT_{}", format.name()), format.name().as_bytes());
    }
    add("ZSTD_FRAME", &zstd_safe::MAGICNUMBER.to_le_bytes());
    add("ZSTD_SKIPPABLE_FRAME", &zstd_safe::MAGIC_SKIPPABLE_START.to_le_bytes());
    all.extend(entries_of_other_formats());
    all
}

/// Returns the entries of VHD, which is big-endian, and of VHDX and VMDK, which are little-endian.
fn entries_of_other_formats() -> Vec<(String, Vec<u8>)> {
    let [vpc_creator, qemu_creator] = vpc::CHS_CREATORS;
    let signatures: &[(&str, &[u8])] = &[
        ("VPC_COOKIE", &vpc::COOKIE),
        ("VPC_DYNAMIC_COOKIE", &vpc::DYNAMIC_COOKIE),
        ("VPC_CREATOR_VPC", &vpc_creator),
        ("VPC_CREATOR_QEMU", &qemu_creator),
        ("VHDX_FILE_SIGNATURE", &vhdx::FILE_SIGNATURE),
        ("VHDX_HEADER_SIGNATURE", &vhdx::HEADER_SIGNATURE),
        ("VHDX_REGION_TABLE_SIGNATURE", &vhdx::REGION_TABLE_SIGNATURE),
        ("VHDX_BAT_REGION", &vhdx::BAT_REGION),
        ("VHDX_METADATA_REGION", &vhdx::METADATA_REGION),
        ("VHDX_METADATA_SIGNATURE", &vhdx::METADATA_SIGNATURE),
        ("VHDX_FILE_PARAMETERS", &vhdx::FILE_PARAMETERS),
        ("VHDX_VIRTUAL_DISK_SIZE", &vhdx::VIRTUAL_DISK_SIZE),
        ("VHDX_PAGE_83", &vhdx::PAGE_83),
        ("VHDX_LOGICAL_SECTOR_SIZE", &vhdx::LOGICAL_SECTOR_SIZE),
        ("VHDX_PHYSICAL_SECTOR_SIZE", &vhdx::PHYSICAL_SECTOR_SIZE),
        ("VHDX_PARENT_LOCATOR", &vhdx::PARENT_LOCATOR),
        ("VHDX_LOG_ENTRY_SIGNATURE", &vhdx::LOG_ENTRY_SIGNATURE),
        ("VHDX_DATA_DESCRIPTOR", &vhdx::DATA_DESCRIPTOR),
        ("VHDX_ZERO_DESCRIPTOR", &vhdx::ZERO_DESCRIPTOR),
        ("VMDK_SPARSE_MAGIC", &vmdk::SPARSE_MAGIC),
        ("VMDK_COWD_MAGIC", &vmdk::COWD_MAGIC),
    ];
    let numbers = [
        ("VDI_SIGNATURE", vdi::VDI_SIGNATURE),
        ("VDI_VERSION", vdi::VDI_VERSION),
        ("VDI_DISCARDED", vdi::VDI_DISCARDED),
        ("VMDK_FLAG_REDUNDANT_DIRECTORY", vmdk::FLAG_REDUNDANT_DIRECTORY),
        ("VMDK_FLAG_ZERO_GRAINS", vmdk::FLAG_ZERO_GRAINS),
        ("VMDK_FLAG_MARKERS", vmdk::FLAG_MARKERS),
        ("VMDK_MARKER_FOOTER", vmdk::MARKER_FOOTER),
    ];
    let numbers = numbers.map(|(name, value)| (name.to_lowercase(), value.to_le_bytes().to_vec()));
    let disk_type = ("vpc_type_fixed".to_string(), vpc::TYPE_FIXED.to_be_bytes().to_vec());
    let signatures = signatures.iter().map(|(name, bytes)| (name.to_lowercase(), bytes.to_vec()));
    signatures.chain(numbers).chain([disk_type]).collect()
}

/// Returns the dictionary in libFuzzer's syntax.
fn dictionary() -> String {
    let mut lines = String::from(
        "# Values that readers of image files compare with; for -dict=. Generated from the constants of crates/walker/src/formats:\n\
         # QCOWFUZZ_BLESS=1 cargo test --test oss_fuzz\n",
    );
    for (name, bytes) in entries() {
        assert!(bytes.len() <= MAX_ENTRY_BYTES, "{name} is long");
        let escaped = |byte: &u8| match byte {
            b'"' | b'\\' => format!("\\{}", char::from(*byte)),
            b' '..=b'~' => char::from(*byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        };
        lines += &format!("{name}=\"{}\"\n", bytes.iter().map(escaped).collect::<String>());
    }
    lines
}

#[test]
fn the_dictionary_is_generated() {
    if std::env::var_os("QCOWFUZZ_BLESS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DICTIONARY);
        fs::write(path, dictionary()).unwrap();
    }
    let stale = "is stale: QCOWFUZZ_BLESS=1 cargo test --test oss_fuzz writes it";
    assert!(text_of(DICTIONARY) == dictionary(), "{DICTIONARY} {stale}");
    let names: BTreeSet<_> = entries().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), entries().len(), "two entries have one name");
}

#[test]
fn the_dictionary_has_every_feature_and_extension() {
    let names: BTreeSet<_> = entries().into_iter().map(|(name, _)| name).collect();
    let prefixes = ["MAGIC", "INCOMPATIBLE_", "COMPATIBLE_", "AUTOCLEAR_", "EXTENSION_"];
    let header = text_of("crates/walker/src/formats/qcow2/constants.rs");
    let constants = header.lines().filter_map(|line| line.strip_prefix("pub const "));
    let constants = constants.filter_map(|line| line.split(':').next());
    let wanted: Vec<_> =
        constants.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))).collect();
    assert!(wanted.len() > 12, "{wanted:?}");
    for name in wanted {
        assert!(
            names.contains(&name.to_lowercase()),
            "{name} of crates/walker/src/formats/qcow2/constants.rs is no entry"
        );
    }
}

#[test]
fn the_dictionary_has_every_signature_of_the_other_formats() {
    let names: BTreeSet<_> = entries().into_iter().map(|(name, _)| name).collect();
    let mut found = 0;
    for format in ImageFormat::ALL.map(ImageFormat::name).into_iter().skip(2) {
        let constants = text_of(&format!("crates/walker/src/formats/{format}/constants.rs"));
        for line in constants.lines().filter_map(|line| line.strip_prefix("pub const ")) {
            let Some((name, rest)) = line.split_once(": ") else { continue };
            if rest.starts_with("[u8;") || rest.starts_with("Guid") {
                found += 1;
                let name = format!("{format}_{}", name.to_lowercase());
                assert!(names.contains(&name), "{name} is no entry");
            }
        }
    }
    assert!(found > 15, "{found}");
}

/// Returns the fuzz targets that the fuzz crate lists.
fn targets() -> Vec<String> {
    let manifest = text_of("fuzz/Cargo.toml");
    let bins = manifest.split("[[bin]]").skip(1);
    bins.map(|bin| bin.split("name = \"").nth(1).unwrap().split('"').next().unwrap().into())
        .collect()
}

#[test]
fn every_target_is_a_fuzz_target() {
    let of_libfuzzer: Vec<_> = TargetKind::of_libfuzzer().map(TargetKind::name).collect();
    assert_eq!(targets(), of_libfuzzer);
    for kind in TargetKind::of_libfuzzer() {
        let source = text_of(&format!("fuzz/fuzz_targets/{}.rs", kind.name()));
        assert!(source.contains(&format!("qcowfuzz::fuzz_target!({kind:?}, ")), "{kind:?}");
    }
}

#[test]
fn every_target_has_seeds_and_options() {
    for target in targets() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let mut longest = 0;
        let mut seeds = 0;
        for text in fs::read_dir(folder.join("text").join(&target)).unwrap() {
            let name = text.unwrap().path().file_stem().unwrap().to_os_string();
            longest = longest.max(fs::metadata(folder.join(&target).join(name)).unwrap().len());
            seeds += 1;
        }
        assert!(seeds >= MIN_SEEDS, "{target}: {seeds} seeds, expected at least {MIN_SEEDS}");
        let own = format!("fuzz/options/{target}.options");
        let has_own = Path::new(env!("CARGO_MANIFEST_DIR")).join(&own).exists();
        let options = text_of(if has_own { &own } else { "fuzz/options/programs.options" });
        let max_len = options.lines().find_map(|line| line.strip_prefix("max_len = "));
        let max_len: u64 = max_len.expect(&target).parse().unwrap();
        // libFuzzer truncates a longer seed.
        assert!(max_len >= longest, "{target}: max_len {max_len}, but a seed has {longest} bytes");
    }
}

#[test]
fn both_integrations_use_the_same_files() {
    let script = text_of("oss-fuzz/build.sh");
    assert!(script.contains("\ncargo fuzz build \"${flags[@]}\" \"$@\"\n"), "{script}");
    assert!(text_of("oss-fuzz/Dockerfile").ends_with("\nRUN cp oss-fuzz/build.sh $SRC/\n"));
    let script = text_of(".clusterfuzzlite/build.sh");
    assert!(script.ends_with("\nexec \"$SRC/qcowfuzz/oss-fuzz/build.sh\" \"$@\"\n"), "{script}");
    let field = |yaml: &str, name: &str| -> String {
        let line = yaml.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name}")).to_string()
    };
    let (one, other) = (text_of("oss-fuzz/project.yaml"), text_of(".clusterfuzzlite/project.yaml"));
    for name in ["language", "fuzzing_engines", "sanitizers", "coverage_extra_args"] {
        assert_eq!(field(&one, name), field(&other, name), "{name}");
    }
    // The placeholder for the address is the same in all files.
    let repository = field(&one, "main_repo");
    assert_eq!(field(&one, "homepage"), repository);
    let clone = format!("\nRUN git clone --depth 1 {repository} qcowfuzz\n");
    assert!(text_of("oss-fuzz/Dockerfile").contains(&clone), "{clone}");
}
