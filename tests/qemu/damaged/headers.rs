//! Headers that are accepted or refused, field by field: the test sets every field of sound images to values around its
//! bounds, and compares our decision with that of the installed qemu-img. It also tests headers with the names of
//! backing and data files.

use test_support::prelude::*;

use qcowfuzz::formats::qcow2::head::Field;
use qcowfuzz::internal::images::export;
use qcowfuzz::internal::images::files::LayerFiles;
use qcowfuzz::internal::images::qcow2::{
    BackingPlan, BuildScratch, Builder, DataFilePlan, HeaderFlags, HeaderLength, HeaderStyle,
    ImagePlan, Names, NamesFormat,
};

use crate::images::info::{self, Compared, ENCRYPTED, compare_json};

// This test uses only a part of the module.

fn image_line(version: u32, bits: u32, features: &str) -> String {
    format!(
        "image version={version} cluster_bits={bits} refcount_order=4 features={features} \
         size=1<<20+0 rng_seed=3 blocks=append table=append tolerance=0"
    )
}

/// Asserts that both accept the image or both refuse it. There are no known differences.
fn judge(dir: &Path, case: &Case) -> Checked<u64> {
    let path = dir.join("image.qcow2");
    fs::write(&path, &case.bytes).described()?;
    // Any share of the cases will do; this one depends on the case alone.
    if case.name.len().is_multiple_of(5) {
        info::compare_json(&path, ImageFormat::Qcow2)?;
    }
    let window = Window { start: GuestOffset::ZERO, length_bytes: 1 << 20 };
    let theirs = qemu::map(&path, window);
    let storage = FileStorage::open(&path).described()?;
    let ours = compare::walk(&[Layer::alone(&storage)], window);
    match (&ours, &theirs) {
        (Ok(_), Ok(_)) => Ok(1),
        (Err(_), Err(_)) => Ok(0),
        _ => Err(format!("ours {:?}, theirs {:?}", ours.err(), theirs.err())),
    }
}

#[test]
fn we_refuse_a_field_exactly_if_qemu_refuses_it() {
    let Some(()) = qemu::tools() else { return };
    let mut cases = fields();
    cases.extend(combinations());
    let accepted = qemu::judge_all(
        &cases,
        || tempfile::tempdir().unwrap(),
        |dir, case| judge(dir.path(), case),
    );
    let refused = cases.len() as u64 - accepted;
    assert!(accepted > 300 && refused > 300, "{accepted} are accepted, {refused} are refused");
}

#[test]
fn qemu_accepts_every_header_length() {
    let Some(()) = qemu::tools() else { return };
    let lengths = (0..=408u32).map(|steps| {
        let header = format!("header length=104+{steps} order=0 unknown=0 bytes=0 flags=junk");
        let write = "write at=start+1 clusters=3";
        let bytes = lines::file(&format!("{}\n{write}\n{header}", image_line(3, 9, "none")));
        Case { name: header, bytes }
    });
    let cases: Vec<Case> = lengths.collect();
    let dir = || tempfile::tempdir().unwrap();
    assert_eq!(qemu::judge_all(&cases, dir, |dir, case| judge(dir.path(), case)), 409);
}

#[test]
fn info_differs_only_for_encrypted_images() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    let sound = lines::file(&image_line(3, 12, "none"));
    let compared = [0, 1, 3].map(|crypt_method| {
        let mut bytes = sound.clone();
        bytes[35] = crypt_method;
        fs::write(&path, bytes).unwrap();
        info::compare_json(&path, ImageFormat::Qcow2).unwrap()
    });
    assert_eq!(compared, [Compared::Same, Compared::Named(ENCRYPTED), Compared::Refused]);
}

/// An image with one change.
pub struct Case {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Returns images with different versions, cluster sizes and header lengths, each with its name.
fn bases() -> Vec<(&'static str, Vec<u8>)> {
    let small = "size=300<<9+0 rng_seed=0 blocks=append table=append tolerance=0\n\
                 write at=start+1 clusters=3\nsnapshot\nwrite at=start+2 clusters=2";
    let image = |version, bits, features| {
        lines::file(&format!(
            "image version={version} cluster_bits={bits} refcount_order=4 features={features} {small}"
        ))
    };
    vec![
        ("version 3, 512 bytes", image(3, 9, "none")),
        ("version 3, 64 KiB", image(3, 16, "compression_field")),
        ("version 3, 16 KiB, extended", image(3, 14, "extended_l2,zstd")),
        ("version 2, 64 KiB", image(2, 16, "none")),
    ]
}

/// The fields: offset and length in bytes, and values in addition to those that every field gets.
const FIELDS: &[(&str, usize, usize, &[u64])] = &[
    ("magic", 0, 4, &[0x5146_4900, 0x5146_49FA, 0x5146_49FC]),
    ("version", 4, 4, &[2, 3, 4]),
    ("backing_file_offset", 8, 8, &[7, 71, 72, 73, 80, 103, 104, 105, 111, 112, 113, 119, 120]),
    ("backing_file_size", 16, 4, &[1023, 1024]),
    ("cluster_bits", 20, 4, &[8, 9, 10, 13, 14, 15, 16, 17, 21, 22, 31, 32, 64]),
    ("size", 24, 8, &[511, 512, 513, 32 << 10, (32 << 10) + 1, (1 << 63) - 512, (1 << 63) - 1]),
    ("crypt_method", 32, 4, &[3]),
    ("l1_size", 36, 4, &[2, 3, 4, 5, 4 << 20, (4 << 20) + 1]),
    ("l1_table_offset", 40, 8, &[256, 1024, 1 << 20, 1 << 56, 1 << 62, (1 << 63) - (1 << 21)]),
    ("refcount_table_offset", 48, 8, &[256, 1024, 1 << 20, 1 << 62, (1 << 63) - (1 << 21)]),
    ("refcount_table_clusters", 56, 4, &[128, 129, 512, 513, 16384, 16385]),
    ("nb_snapshots", 60, 4, &[65537]),
    ("snapshots_offset", 64, 8, &[256, 1 << 62]),
    ("incompatible_features", 72, 8, &[]),
    ("compatible_features", 80, 8, &[]),
    ("autoclear_features", 88, 8, &[]),
    ("refcount_order", 96, 4, &[3, 4, 5, 6, 7, 8, 31, 32, 63, 64]),
    ("header_length", 100, 4, &[72, 103, 104, 105, 106, 111, 112, 113, 120, 128, 496, 500, 504]),
    ("compression_type", 104, 1, &[]),
];

/// The fields in which the test sets each bit by itself.
const BIT_FIELDS: [usize; 3] = [72, 80, 88];

/// Returns images with one changed field each, with values around the field's bounds.
pub fn fields() -> Vec<Case> {
    let mut cases = Vec::new();
    for (base, bytes) in bases() {
        let cluster = 1u64 << bytes[23];
        for (field, at, length, special) in FIELDS {
            let mut values = vec![0, 1, 2, cluster - 8, cluster - 1, cluster, cluster + 1];
            values.extend([u64::MAX, 1 << 63, 1 << 31]);
            values.extend(*special);
            if BIT_FIELDS.contains(at) {
                values.extend((0..64).map(|bit| 1 << bit));
            }
            let old = number(&bytes, *at, *length);
            values.extend([old.wrapping_sub(1), old.wrapping_add(1), old]);
            values.sort_unstable();
            values.dedup();
            for value in values {
                // There are no snapshots. The content of their table is not part of the header.
                let other_count = *at == 60 && (1..=65536).contains(&value);
                let other_table = *at == 64 && value % cluster == 0 && value < 1 << 63;
                if value != old && (other_count || other_table) {
                    continue;
                }
                let mut bytes = bytes.clone();
                bytes[*at..at + length].copy_from_slice(&value.to_be_bytes()[8 - length..]);
                cases.push(Case { name: format!("{base}: {field} {value:#x}"), bytes });
            }
        }
    }
    cases
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Bytes and the offset at which they are written into an image.
type Patch = (usize, Vec<u8>);
/// A change: its description and the bytes.
type Change = (String, Vec<Patch>);

/// Returns images with several changed fields, of which one has no meaning without the other, and with header
/// extensions.
pub fn combinations() -> Vec<Case> {
    let mut cases = Vec::new();
    for (base, bytes) in bases() {
        let cluster = 1u32 << bytes[23];
        let header = match number(&bytes, 4, 4) {
            2 => 72,
            _ => number(&bytes, 100, 4) as usize,
        };
        let changed = |(name, patches): Change| {
            let mut bytes = bytes.clone();
            for (at, patch) in patches {
                bytes[at..at + patch.len()].copy_from_slice(&patch);
            }
            Case { name: format!("{base}: {name}"), bytes }
        };
        let room = cluster - header as u32 - 8;
        let changes = [compressions(), backing_names(cluster), extensions(header, room)];
        cases.extend(changes.into_iter().flatten().map(changed));
    }
    cases
}

fn word(value: u32) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn long(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

/// Returns changes of the compression type, with and without its feature bit and its field.
fn compressions() -> Vec<Change> {
    let change = |(length, bit, kind)| {
        let patches = vec![(100, word(length)), (79, vec![bit]), (104, vec![kind])];
        (format!("length {length}, bits {bit}, compression {kind}"), patches)
    };
    let all = [
        (104, 8, 1),
        (105, 8, 1),
        (105, 0, 1),
        (105, 8, 0),
        (112, 8, 2),
        (112, 0, 255),
        (105, 0, 0),
    ];
    all.into_iter().map(change).collect()
}

fn backing_names(cluster: u32) -> Vec<Change> {
    let change = |(offset, size): (u32, u32)| {
        // Not zeros: qemu, which is written in C, would treat the name as empty.
        let (at, there) = (offset as usize, (size as usize).min(300));
        let name = vec![b'x'; if at + there > cluster as usize { 0 } else { there }];
        let patches = vec![(8, long(u64::from(offset))), (16, word(size)), (at, name)];
        (format!("a backing name at {offset} of {size}"), patches)
    };
    let at_the_end = [(cluster - 1, 1), (cluster - 1, 2), (cluster, 0), (cluster, 1)];
    let long = [1023, 1024].map(|size| (cluster.saturating_sub(size), size));
    let inside = [(200, 0), (200, 1), (200, 1023)];
    let all = at_the_end.into_iter().chain(long).chain(inside);
    all.map(change).collect()
}

/// Returns extensions behind a header of `header` bytes, with `room` bytes for the content of one.
fn extensions(header: usize, room: u32) -> Vec<Change> {
    let extension = |at: usize, kind: u32, length: u32| -> Patch {
        (at, [kind.to_be_bytes(), length.to_be_bytes()].concat())
    };
    let mut changes = Vec::new();
    for (kind, lengths) in [
        (0u32, [0, 8, room, room + 1]),
        (0xE279_2ACA, [0, 3, 15, 16]),
        (0x6803_F857, [0, 47, 48, 200]),
        (0x0537_BE77, [0, 8, 16, 24]),
        (0x4441_5441, [0, 1, 13, room]),
        (0x7143_0001, [0, room - 8, room, room + 1]),
        (0xFFFF_FFFF, [1, room - 7, room - 1, u32::MAX]),
        (1, [2, room - 9, room - 16, 1 << 31]),
    ] {
        for length in lengths {
            let name = format!("extension {kind:#x} of {length}");
            let patch = extension(header, kind, length);
            changes.push((name.clone(), vec![patch.clone()]));
            let other = extension(header, 0x1234_5678, 5);
            let behind = extension(header + 16, kind, length);
            changes.push((format!("{name} behind another"), vec![other, behind]));
            changes.push((format!("{name} cut off at 144"), vec![patch, (8, long(144))]));
        }
    }
    changes
}

/// Returns a builder with a disk of 1 MiB, its other files, and a header of `style`.
fn builder(line: &str, backing: Option<BackingPlan>, data_file: Option<DataFilePlan>) -> Builder {
    let plan = assemble(line).unwrap().prologue.plan();
    let mut builder = Builder::new();
    builder.begin(ImagePlan { backing, data_file, ..plan }, Limits::WALKED);
    builder
}

/// Returns a name of `length` bytes that leads to `file`.
fn stretched(file: &str, length: usize) -> String {
    let missing = length - file.len();
    let odd = if missing % 2 == 1 { "/" } else { "" };
    // "./" and further slashes do not change the directory.
    let steps = "./".repeat(missing / 2);
    if steps.is_empty() { format!("{odd}{file}") } else { format!("{steps}{odd}{file}") }
}

/// Returns the length of the longest name of a backing file for which there is room.
fn longest(builder: &Builder) -> usize {
    let fits = |length: &usize| {
        let name = vec![b'x'; *length];
        builder.check_names(&Names { backing: &name, ..Names::default() }).is_ok()
    };
    let longest = (1..2000).take_while(fits).last().unwrap();
    let message = |length| {
        let name = vec![b'x'; length];
        let refused = builder.check_names(&Names { backing: &name, ..Names::default() });
        refused.unwrap_err().to_string()
    };
    assert!(message(longest + 1).starts_with("the name"), "{}", message(longest + 1));
    assert!(!message(2000).contains('\n'));
    longest
}

fn styles() -> Vec<HeaderStyle> {
    let flags = [
        HeaderFlags::default(),
        HeaderFlags::NO_END,
        HeaderFlags::NAME_AT_END,
        HeaderFlags::NAME_AT_END.with(HeaderFlags::NO_END),
        HeaderFlags::UNKNOWN_NAMES.with(HeaderFlags::JUNK).with(HeaderFlags::EMPTY_NAME),
    ];
    let lengths = [HeaderLength::Shortest, HeaderLength::Above(1), HeaderLength::Below(0)];
    let mut styles = Vec::new();
    for (flags, order) in flags.into_iter().zip([0, 1, 4, 7, 255]) {
        for (length, unknown) in lengths.into_iter().zip([0, 3, 7]) {
            styles.push(HeaderStyle { length, order, unknown, unknown_bytes: 5, flags });
        }
    }
    styles
}

fn save(builder: &Builder, names: &Names, path: &Path) {
    let mut files = LayerFiles::default();
    builder.build(names, &mut BuildScratch::default(), &mut files, &());
    export::write(&files.image, &File::create(path).unwrap(), Holes::Keep).unwrap();
}

fn text_at(storage: &FileStorage, field: Option<Field>) -> Option<String> {
    let field = field?;
    let mut bytes = vec![0; field.length_bytes as usize];
    storage.read_at(field.offset, &mut bytes).unwrap();
    Some(String::from_utf8(bytes).unwrap())
}

#[test]
fn qemu_reads_the_names_of_backing_files() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    fs::write(dir.path().join("base.raw"), [7; 4096]).unwrap();
    save(
        &builder(&image_line(3, 12, "none"), None, None),
        &Names::default(),
        &dir.path().join("base.qcow2"),
    );
    for (version, bits, features) in [
        (2, 9, "none"),
        (3, 9, "feature_names,unknown_extension"),
        (3, 14, "zstd"),
        (2, 21, "none"),
    ] {
        for (format, file) in [(ImageFormat::Qcow2, "base.qcow2"), (ImageFormat::Raw, "base.raw")] {
            for (style, names_format) in styles().into_iter().zip([true, false].into_iter().cycle())
            {
                let is_named = if names_format { NamesFormat::Usually } else { NamesFormat::Never };
                let backing = Some(BackingPlan { format, names_format: is_named });
                let mut builder = builder(&image_line(version, bits, features), backing, None);
                builder.set_header(style);
                let longest = longest(&builder);
                assert!(longest == 1023 || bits == 9 && longest > 300, "{longest}");
                for length in [file.len(), 101, longest] {
                    let name = stretched(file, length);
                    let names = Names { backing: name.as_bytes(), ..Names::default() };
                    save(&builder, &names, &path);
                    let case = format!("version {version}, {bits} bits, {style:?}, {name}");
                    let said = qemu::info(&path).unwrap();
                    assert_eq!(said["backing-filename"], name, "{case}");
                    let word = if format == ImageFormat::Raw { "raw" } else { "qcow2" };
                    let word = names_format.then_some(word);
                    assert_eq!(said["backing-filename-format"].as_str(), word, "{case}");
                    assert_eq!(
                        compare_json(&path, ImageFormat::Qcow2),
                        Ok(Compared::Same),
                        "{case}"
                    );
                    if length == 101 {
                        let mapped = qemu::map(&path, Window::ALL);
                        mapped.unwrap_or_else(|error| panic!("{case}: {error}"));
                    }
                    let storage = FileStorage::open(&path).unwrap();
                    let head = Head::read(&storage).unwrap();
                    assert_eq!(text_at(&storage, head.backing_name), Some(name), "{case}");
                    let format = text_at(&storage, head.backing_format);
                    assert_eq!(format.as_deref(), word, "{case}");
                }
            }
        }
    }
}

#[test]
fn qemu_reads_the_names_of_data_files() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    let data = dir.path().join("data.raw");
    fs::write(&data, vec![0; 1 << 20]).unwrap();
    // qemu looks for the file in the current directory, not in the directory of the image.
    let data = data.to_str().unwrap();
    for (bits, features) in [(9, "feature_names,unknown_extension"), (14, "extended_l2")] {
        for (style, raw) in styles().into_iter().zip([true, false].into_iter().cycle()) {
            let data_file = Some(DataFilePlan { raw });
            let mut builder = builder(&image_line(3, bits, features), None, data_file);
            builder.set_header(style);
            for length in [data.len(), 100, 101, 376] {
                let name = format!("/{}", stretched(&data[1..], length - 1));
                let names = Names { data_file: name.as_bytes(), ..Names::default() };
                builder.check_names(&names).unwrap();
                save(&builder, &names, &path);
                let case = format!("{bits} bits, {style:?}, {name}");
                let said = &qemu::info(&path).unwrap()["format-specific"]["data"];
                assert_eq!(said["data-file"], name, "{case}");
                assert_eq!(said["data-file-raw"].as_bool(), Some(raw), "{case}");
                assert_eq!(compare_json(&path, ImageFormat::Qcow2), Ok(Compared::Same), "{case}");
                qemu::map(&path, Window::ALL).unwrap_or_else(|error| panic!("{case}: {error}"));
                let storage = FileStorage::open(&path).unwrap();
                let head = Head::read(&storage).unwrap();
                assert_eq!(text_at(&storage, head.data_file), Some(name), "{case}");
            }
            let long = [b'x'; 500];
            let names = Names { data_file: &long, ..Names::default() };
            assert_eq!(builder.check_names(&names).is_err(), bits == 9);
        }
    }
}
