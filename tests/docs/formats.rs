//! Compares docs/formats.md with the form bits of docs/bytecode.md and with the numbers in `tests/qemu/formats/`.

use test_support::prelude::*;

use crate::{OTHER_FORMATS, between, features_of, quoted, rows, text_of};

/// The formats that have form bits: their headings in the documents, and their names in programs.
const FORMATS: [(&str, &str); 4] =
    [("VHD", "vpc"), ("VHDX", "vhdx"), ("VMDK", "vmdk"), ("VDI", "vdi")];

/// The kinds of images, with the constant of `TestedFormat` that holds their number.
const KINDS: [(&str, &str); 7] = [
    ("programs", "PROGRAMS: (u64, Base) = ("),
    ("large programs", "LARGE_PROGRAMS: u64 = "),
    ("valid", "VALID: u64 = "),
    ("qemu-img", "MADE_BY_QEMU: u64 = "),
    ("large", "LARGE: u64 = "),
    ("damaged", "DAMAGED: u64 = "),
    ("attacks", "ATTACKED: (u64, &[Part]) = ("),
];

/// Returns the bits after `bit` or `bits` in a text.
fn bits_in(text: &str) -> BTreeSet<String> {
    let digits =
        |rest: &str| rest.chars().take_while(|c| c.is_ascii_digit() || *c == '–').collect();
    ["bit ", "bits "].iter().flat_map(|word| text.split(word).skip(1).map(digits)).collect()
}

#[test]
fn the_numbers_of_images_are_those_of_the_tests() {
    let document = text_of("docs/formats.md");
    let table = rows(&document, "## Other formats");
    let documented: Vec<_> = table.iter().map(|row| between(&row[0], '"')[0]).collect();
    assert_eq!(documented, KINDS.map(|(kind, _)| kind));
    for (column, (_, file)) in (2..).zip(FORMATS) {
        let source = text_of(format!("tests/qemu/formats/{file}.rs"));
        let source: String = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for (row, (kind, constant)) in table.iter().zip(KINDS) {
            let number = source.split(constant).nth(1).expect(constant).trim_start();
            let number: String = number.chars().take_while(char::is_ascii_digit).collect();
            assert_eq!(row[column], number, "{file}: {kind}");
        }
    }
}

/// Each row is confirmed by a kind of images or by a file, or has a –.
#[test]
fn every_row_states_how_it_is_confirmed() {
    for row in features_of(&OTHER_FORMATS) {
        let (kinds, files) = (between(&row[4], '"'), quoted(&row[4]));
        let is_kind = |kind: &&str| KINDS.iter().any(|(known, _)| known == kind);
        assert!(kinds.iter().all(is_kind), "{row:?}");
        let is_ours = |it: &str| ["tests/", "crates/"].iter().any(|room| it.starts_with(room));
        assert!(files.iter().all(|it| is_ours(it)), "{row:?}");
        assert_eq!(row[4] == "–", kinds.is_empty() && files.is_empty(), "{row:?}");
        // Programs, and only they, confirm the varieties that programs build.
        assert!(row[1] != "–" || !kinds.contains(&"programs"), "{row:?}");
    }
}

#[test]
fn every_format_has_its_tests_and_its_tables() {
    let names = FORMATS.map(|(_, name)| name);
    for format in ImageFormat::ALL.into_iter().skip(2) {
        let name = format.name();
        assert!(names.contains(&name), "{name}: no heading in FORMATS of tests/docs/formats.rs");
        let judged = format!("qemu_agrees_about_{name}_images");
        assert!(text_of("tests/qemu/formats/mod.rs").contains(&judged), "{judged}: no such test");
        let planted = text_of("tests/planted/layout/mod.rs");
        let places = [format!("ImageFormat::{format:?}"), format!("mod {name};")];
        assert!(places.iter().any(|it| planted.contains(it)), "{name}: no planted fault");
    }
}

#[test]
fn every_form_bit_has_a_row() {
    let (formats, bytecode) = (text_of("docs/formats.md"), text_of("docs/bytecode.md"));
    for (heading, name) in FORMATS {
        let form = rows(&bytecode, &format!("### The form of {heading} images"));
        let form: BTreeSet<String> = form.into_iter().map(|mut row| row.swap_remove(0)).collect();
        let section = formats.split("\n## ").find(|it| it.starts_with(&format!("{heading}\n")));
        let lines = section.expect(heading).lines().filter(|line| line.starts_with('|'));
        let programs = lines.filter_map(|line| line.split('|').nth(2));
        let with_form = programs.filter(|cell| cell.contains(&format!("base={name} form`, bit")));
        let documented: BTreeSet<String> = with_form.flat_map(bits_in).collect();
        assert_eq!(documented, form, "{heading}");
    }
}
