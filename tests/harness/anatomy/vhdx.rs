//! The anatomy of VHDX images.

use qcowfuzz::formats::anatomy::{Anatomy, Part};
use qcowfuzz::formats::vhdx::constants::{
    BAT_REGION, FILE_PARAMETERS, LOGICAL_SECTOR_SIZE, METADATA_REGION, PAGE_83,
    PHYSICAL_SECTOR_SIZE, REGION_TABLE_BYTES, VHDX_HEADER_BYTES, VHDX_HEADER_OFFSETS,
    VIRTUAL_DISK_SIZE,
};
use qcowfuzz::formats::vhdx::header::{Checksum, VhdxHeader};
use test_support::prelude::*;

use super::{attacked, bytes_of, names};

const MIB: u64 = 1 << 20;
/// The value that attacks write.
const VALUE: u16 = 0x1234;

/// A disk of 20 blocks of 256 MiB, with an old entry in its log and an older header with another log.
fn program() -> Program {
    let text =
        "image version=3 cluster_bits=17 refcount_order=4 features=none size=20<<28+0 rng_seed=0 \
                blocks=append table=append tolerance=0 base=vhdx form=2054
                write at=start+3 clusters=1
                write at=start+17 clusters=1
                zero at=start+5 clusters=1 keep=no";
    assemble(text).unwrap()
}

fn anatomy(program: &Program) -> Anatomy {
    let mut harness = Harness::new(Walker::default());
    let mut anatomy = Anatomy::default();
    anatomy.read(ImageFormat::Vhdx, harness.build(&program.encode())).unwrap();
    anatomy
}

fn number(image: &Image, at: u64, width: usize) -> u64 {
    let mut bytes = bytes_of::<8>(image, at);
    bytes[width..].fill(0);
    u64::from_le_bytes(bytes)
}

/// Returns the header that counts.
fn header(image: &Image) -> Option<VhdxHeader> {
    let [first, second] = VHDX_HEADER_OFFSETS.map(|at| bytes_of::<VHDX_HEADER_BYTES>(image, at));
    VhdxHeader::current(&first, &second).ok()
}

#[test]
fn every_structure_is_found() {
    let anatomy = anatomy(&program());
    // The identifier, two headers, the log; two region tables; the metadata table and five items; the block table.
    assert_eq!(anatomy.structures().len(), 4 + 2 + 6 + 2 + 2);
    let of_header = [
        "signature",
        "checksum",
        "sequence_number",
        "file_write_guid",
        "data_write_guid",
        "log_guid",
        "log_guid_end",
        "log_version",
        "version",
        "log_length",
        "log_offset",
    ];
    let header = names(&anatomy, Part::Header);
    assert_eq!(header[..2], ["signature", "creator"]);
    assert_eq!(header[2..13], of_header);
    assert_eq!(header[13..24], of_header);
    assert_eq!((header[24], header.len()), ("log_signature", 2 + 2 * 11 + 10));
    // Two tables of two regions.
    assert_eq!(names(&anatomy, Part::Directory).len(), 2 * (3 + 2 * 5));
    // Five items of five fields, and seven fields of their contents.
    assert_eq!(names(&anatomy, Part::Metadata).len(), 2 + 5 * 5 + 7);
    // The first page of entries, which has a sector bitmap behind 16 blocks, is stored.
    let table: Vec<_> =
        anatomy.of(Part::Table).iter().map(|it| (it.name, it.guest.clone())).collect();
    let block = |index: u64| ("", index << 28..(index + 1) << 28);
    assert_eq!(table, [block(3), block(5), ("sector_bitmap", 0..0), block(17)]);
    let beside = |index: u16| anatomy.element(Part::Table, 2 * index + 1).unwrap().guest;
    assert_eq!([1, 2].map(beside), [6 << 28..7 << 28, 16 << 28..17 << 28]);
}

/// An attack on a field of a header changes what readers find in it, if the checksum is corrected.
#[test]
fn attacks_change_the_fields_of_headers() {
    let program = program();
    let old = header(&attacked(&program, Part::Payload, 0, 0)).unwrap();
    let anatomy = anatomy(&program);
    for (index, name) in names(&anatomy, Part::Header).into_iter().enumerate().skip(2).take(11) {
        let image = attacked(&program, Part::Header, 2 * index + 1, VALUE);
        let new = header(&image);
        let value = u64::from(VALUE);
        let parsed = new.map(|new| match name {
            "sequence_number" => new.sequence,
            "log_guid" => number_of(&new.log_guid[..8]),
            "log_guid_end" => number_of(&new.log_guid[8..]),
            "log_version" => new.log_version.into(),
            "log_length" => new.log_length_bytes.into(),
            "log_offset" => new.log_offset.get(),
            _ => value,
        });
        match name {
            // The other header, which is older, counts then.
            "signature" | "checksum" | "version" | "sequence_number" => {
                assert_ne!(new, Some(old), "{name}");
            }
            _ => assert_eq!(parsed, Some(value), "{name}"),
        }
        assert_eq!(anatomy.of(Part::Header)[index].seal.is_some(), name != "checksum");
        let changed = number(&image, anatomy.of(Part::Header)[index].at.get(), 2);
        assert_eq!(changed, value, "{name}");
        // Without the checksum, the header does not count.
        let image = attacked(&program, Part::Header, 2 * index, VALUE);
        assert_ne!(header(&image), Some(old), "{name}");
    }
}

fn number_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// An attack on a field of both region tables keeps their checksums right if it is wanted, and their entries are those
/// of the regions.
#[test]
fn attacks_change_the_fields_of_region_tables() {
    let program = program();
    let anatomy = anatomy(&program);
    let fields = anatomy.of(Part::Directory);
    let plain = attacked(&program, Part::Payload, 0, 0);
    let guid = |index: usize| bytes_of::<16>(&plain, fields[index].at.get());
    assert_eq!([guid(3), guid(8)], [BAT_REGION, METADATA_REGION]);
    assert_eq!(number(&plain, fields[2].at.get(), 4), 2);
    // The fourth and the ninth field of both tables are GUIDs.
    assert_eq!([guid(3), guid(8)], [guid(16), guid(21)]);
    for (index, field) in fields.iter().enumerate() {
        let table = if index < 13 { 192 << 10 } else { 256 << 10 };
        for sealed in [false, true] {
            let image = attacked(&program, Part::Directory, 2 * index + usize::from(sealed), VALUE);
            assert_eq!(number(&image, field.at.get(), 2), u64::from(VALUE), "{}", field.name);
            let is_valid = Checksum::is_valid(&bytes_of::<REGION_TABLE_BYTES>(&image, table));
            assert_eq!(is_valid, sealed && field.name != "checksum", "{} {sealed}", field.name);
        }
    }
}

/// The fields of the metadata are those of the items.
#[test]
fn attacks_change_the_items_of_the_metadata() {
    let program = program();
    let anatomy = anatomy(&program);
    let plain = attacked(&program, Part::Payload, 0, 0);
    let fields = anatomy.of(Part::Metadata);
    let position = |name| fields.iter().position(|field| field.name == name).unwrap();
    assert_eq!(number(&plain, fields[position("entry_count")].at.get(), 2), 5);
    let known = [
        ("block_size", FILE_PARAMETERS, 256 * MIB),
        ("virtual_disk_size", VIRTUAL_DISK_SIZE, 20 * 256 * MIB),
        ("page_83_data", PAGE_83, 2054),
        ("logical_sector_size", LOGICAL_SECTOR_SIZE, 512),
        ("physical_sector_size", PHYSICAL_SECTOR_SIZE, 512),
    ];
    for (name, guid, value) in known {
        let index = position(name);
        let field = &fields[index];
        let width = usize::from(field.width_bytes);
        assert_eq!(number(&plain, field.at.get(), width), value, "{name}");
        // The entry of the item, whose identifier is the fifth field before.
        let entry = fields[..index].iter().rfind(|it| it.name == "item_id").unwrap();
        assert_eq!(bytes_of::<16>(&plain, entry.at.get()), guid, "{name}");
        let image = attacked(&program, Part::Metadata, 2 * index, VALUE);
        assert_eq!(number(&image, field.at.get(), width), u64::from(VALUE), "{name}");
    }
}

/// A checksum of the log's entry is kept right.
#[test]
fn attacks_change_the_log() {
    let program = program();
    let anatomy = anatomy(&program);
    let fields = anatomy.of(Part::Header);
    let log = fields.iter().position(|field| field.name == "log_signature").unwrap();
    for (index, field) in fields.iter().enumerate().skip(log) {
        let image = attacked(&program, Part::Header, 2 * index + 1, VALUE);
        assert_eq!(number(&image, field.at.get(), 2), u64::from(VALUE), "{}", field.name);
        let entry = bytes_of::<4096>(&image, fields[log].at.get());
        assert_eq!(Checksum::is_valid(&entry), field.name != "log_checksum", "{}", field.name);
    }
}
