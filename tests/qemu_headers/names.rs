//! Names of backing files and data files, of any length, in headers of any style.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;

use qcowfuzz::disk::extent::Window;
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::storage::{FileStorage, Storage};
use qcowfuzz::formats::qcow2::head::{Field, Head};
use qcowfuzz::images::Limits;
use qcowfuzz::internal::images::export;
use qcowfuzz::internal::images::export::Holes;
use qcowfuzz::internal::images::files::LayerFiles;
use qcowfuzz::internal::images::qcow2::{
    BackingPlan, BuildScratch, Builder, DataFilePlan, HeaderFlags, HeaderLength, HeaderStyle,
    ImagePlan, Names, NamesFormat,
};
use qcowfuzz::programs::text::assemble;

use crate::info::{Compared, compare_json};
use crate::{image_line, qemu};

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

/// Returns the output of `qemu-img info` for an image.
fn info(path: &Path) -> serde_json::Value {
    let arguments = ["info", "--output=json", "-f", "qcow2"].map(OsStr::new);
    let printed = qemu::img(&[&arguments[..], &[path.as_os_str()]].concat()).unwrap();
    serde_json::from_slice(&printed).unwrap()
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
    if !qemu::tools_are_there("qemu_reads_the_names_of_backing_files") {
        return;
    }
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
                    let said = info(&path);
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
    if !qemu::tools_are_there("qemu_reads_the_names_of_data_files") {
        return;
    }
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
                let said = &info(&path)["format-specific"]["data"];
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
