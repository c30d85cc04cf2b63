//! Bugs in bitmaps.

use qcowfuzz::formats::qcow2::constants::AUTOCLEAR_BITMAPS;
use test_support::prelude::*;

use super::counts::uncount;
use super::{Altered, Case, case};

/// Operations that store two bitmaps, where the first entry of the first table has bits, or only the remains of
/// bitmaps.
pub fn add_to(program: &mut Program, left: bool) {
    let bitmaps = "bitmap granularity=31 flags=auto name=4\nbitmap granularity=30 flags=none name=9\n\
                 fill_bitmap index=0 entry=0 entries=1 fill=bits\n";
    let delete = if left { "delete_bitmap index=0 leaving=extension\n" } else { "" };
    program.operations.splice(0..0, lines::operations(&format!("{bitmaps}{delete}")));
}

pub const CASES: &[Case] = &[
    case(
        "the bitmap directory is not counted",
        |it| uncount(it, it.bitmaps?.directory_offset),
        &["refcounts: bitmap directory, the references → fewer"],
        &[],
    ),
    case(
        "a bitmap table is not counted",
        |it| uncount(it, HostOffset::new(table(it)?)),
        &["refcounts: bitmap table, the references → fewer"],
        &[],
    ),
    case(
        "a cluster of bits is not counted",
        |it| uncount(it, HostOffset::new(bits(it)?)),
        &["refcounts: bitmap data, the references → fewer"],
        &[],
    ),
    case(
        "a cluster of bits is lost",
        |it| {
            bits(it)?;
            it.write_word(table(it)?, 0)
        },
        &["refcounts: unreferenced cluster, free → counted"],
        &[],
    ),
    case(
        "bits lie in the bitmap directory",
        |it| {
            bits(it)?;
            it.write_word(table(it)?, it.bitmaps?.directory_offset.get())
        },
        &["refcounts: bitmap data, a cluster of its own → an overlap"],
        &["refcounts: bitmap directory, a cluster of its own → an overlap"],
    ),
    case(
        "a bitmap table lies a cluster further on",
        |it| {
            let moved = table(it)? + it.geometry().cluster_size.bytes();
            it.write_word(it.bitmaps?.directory_offset.get(), moved)
        },
        &["refcounts: "],
        &[],
    ),
    case(
        "the bitmaps bit is lost",
        |it| {
            it.bitmaps?;
            it.write_word(88, it.header.autoclear & !AUTOCLEAR_BITMAPS)
        },
        &["refcounts: unreferenced cluster, free → counted"],
        &[],
    ),
    case(
        "the bitmaps bit is set where the extension was left",
        |it| {
            extension(it)?;
            it.write_word(88, it.header.autoclear | AUTOCLEAR_BITMAPS);
            it.bitmaps.is_none().then_some(())
        },
        &["refcounts: image, readable → an error"],
        &[],
    ),
    case(
        "the extension counts a bitmap too many",
        |it| {
            let more = it.bitmaps?.bitmaps + 1;
            it.write(extension(it)? + 8, &more.to_be_bytes())
        },
        &["refcounts: image, readable → an error"],
        &[],
    ),
    case(
        "a bitmap table is longer than the disk",
        |it| {
            table(it)?;
            let at = it.bitmaps?.directory_offset.get() + 8;
            let entries = it.word(at) >> 32;
            it.write(at, &(entries as u32 + 1).to_be_bytes())
        },
        &["refcounts: image, readable → an error"],
        &[],
    ),
];

/// Returns the offset of the bitmaps extension's type and length.
fn extension(it: &Altered) -> Option<u64> {
    let area = u64::from(it.header.header_length_bytes)..it.header.extension_area_end();
    area.step_by(8).find(|at| it.word(*at) == 0x2385_2875_0000_0018)
}

/// Returns the offset of the first bitmap's table.
fn table(it: &Altered) -> Option<u64> {
    Some(it.word(it.bitmaps?.directory_offset.get()))
}

/// Returns the offset of its first bits.
fn bits(it: &Altered) -> Option<u64> {
    Some(it.word(table(it)?)).filter(|word| *word > 1)
}
