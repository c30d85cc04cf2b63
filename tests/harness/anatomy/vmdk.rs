//! The anatomy of VMDK images.

use qcowfuzz::formats::anatomy::{Anatomy, Part};
use qcowfuzz::formats::vmdk::headers::{CowdHeader, SparseHeader};
use test_support::prelude::*;

use super::{attacked, bytes_of, names};

/// The value that attacks write.
const VALUE: u16 = 0x123;

/// A disk of 100 grains with three of them, of one variety.
fn program(form: u16) -> Program {
    let text = format!(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=100<<16+0 rng_seed=0 \
         blocks=append table=append tolerance=0 base=vmdk form={form}
         write at=start+3 clusters=2
         write at=start+40 clusters=1"
    );
    assemble(&text).unwrap()
}

fn anatomy(program: &Program) -> Anatomy {
    let mut harness = Harness::new(Walker::default());
    let mut anatomy = Anatomy::default();
    anatomy.read(ImageFormat::Vmdk, harness.build(&program.encode())).unwrap();
    anatomy
}

fn number(image: &Image, at: u64) -> u64 {
    u64::from_le_bytes(bytes_of(image, at))
}

/// Returns the value of a field of a header by the name that the anatomy gives it.
fn sparse_field(header: &SparseHeader, name: &str) -> Option<u64> {
    Some(match name {
        "version" => header.version.into(),
        "flags" => header.flags.into(),
        "capacity" => header.capacity_sectors,
        "grain_size" => header.grain_sectors,
        "descriptor_offset" => header.descriptor_sector,
        "gtes_per_gt" => header.table_entries.into(),
        "rgd_offset" => header.redundant_directory_sector,
        "gd_offset" => header.directory_sector,
        "overhead" => header.overhead_sectors,
        "compress_algorithm" => header.compression.into(),
        _ => return None,
    })
}

/// Checks that an attack on each of the first `count` fields from `first` on changes that field alone.
fn assert_fields<T: PartialEq + std::fmt::Debug>(
    program: &Program,
    (first, count): (usize, usize),
    read: impl Fn(&Image) -> T,
    value_of: impl Fn(&T, &str) -> Option<u64>,
) {
    let anatomy = anatomy(program);
    let plain = read(&attacked(program, Part::Payload, 0, 0));
    let mut known = 0;
    for (index, name) in
        names(&anatomy, Part::Header).into_iter().enumerate().skip(first).take(count)
    {
        let image = attacked(program, Part::Header, 2 * index, VALUE);
        let width = u32::from(anatomy.of(Part::Header)[index].width_bytes);
        let mask = u64::MAX >> (64 - 8 * width);
        let expected = u64::from(VALUE) & mask;
        assert_eq!(number(&image, anatomy.of(Part::Header)[index].at.get()) & mask, expected);
        let header = read(&image);
        let Some(value) = value_of(&header, name) else { continue };
        known += 1;
        assert_eq!(value, expected, "{name}");
        assert_ne!(header, plain, "{name}");
    }
    assert!(known >= 4, "{known}");
}

#[test]
fn attacks_change_the_fields_of_a_header() {
    let first = |image: &Image| SparseHeader::read(&bytes_of(image, 0));
    assert_fields(&program(0), (0, 14), first, sparse_field);
    assert_fields(&program(4 << 3), (0, 14), first, sparse_field);
    // The header in the footer, between two markers of three fields.
    let last = |image: &Image| {
        use qcowfuzz::disk::storage::Storage;
        SparseHeader::read(&bytes_of(image, image.length_bytes() - 1024))
    };
    assert_fields(&program(4 << 3), (17, 14), last, sparse_field);
    let cowd = |image: &Image| CowdHeader::read(&bytes_of(image, 0));
    assert_fields(&program(3 << 3), (0, 8), cowd, |header, name| {
        Some(match name {
            "capacity" => header.capacity_sectors.into(),
            "grain_size" => header.grain_sectors.into(),
            "gd_offset" => header.directory_sector.into(),
            "gd_entries" => header.directory_entries.into(),
            _ => return None,
        })
    });
}

#[test]
fn every_structure_is_found() {
    // Tables of 16 entries: two tables have a grain, in each of two copies.
    let it = anatomy(&program(4));
    assert_eq!(names(&it, Part::Header).len(), 14);
    let guests = |part| it.of(part).iter().map(|it| it.guest.clone()).collect::<Vec<_>>();
    assert_eq!(guests(Part::Directory), [0..16 << 16, 32 << 16..48 << 16, 0..0, 0..0]);
    let grain = |index: u64| index << 16..(index + 1) << 16;
    assert_eq!(guests(Part::Table), [grain(3), grain(4), grain(40), 0..0, 0..0, 0..0]);
    assert_eq!(it.of(Part::BlockFront).len(), 0);
    // The header, the descriptor, two directories with two tables each, and three grains.
    assert_eq!(it.structures().len(), 2 + 2 * 3 + 3);
    // Compressed grains with markers, a footer, and markers before tables, which lie at the end.
    let it = anatomy(&program(4 | 4 << 3 | 1 << 6 | 1 << 7));
    let header = names(&it, Part::Header);
    // The header, the footer, and the markers of the directory and of two tables.
    assert_eq!(header.len(), 14 + (3 + 14 + 3) + 3 * 3);
    let front = ["lba", "size", "zlib_header", "deflate"];
    assert_eq!(names(&it, Part::BlockFront), [front, front, front].concat());
    // Compressed grains alone.
    let it = anatomy(&program(7 << 3));
    assert_eq!(names(&it, Part::BlockFront), [["zlib_header", "deflate"]; 3].concat());
}

/// The lines of the descriptor are found: an attack on the first letter of a line removes the field.
#[test]
fn attacks_change_the_descriptor() {
    let program = program(0);
    let anatomy = anatomy(&program);
    let plain = attacked(&program, Part::Payload, 0, 0);
    let fields = anatomy.of(Part::Metadata);
    let text_at = |image: &Image, at: u64| bytes_of::<8>(image, at);
    let line = |letters: &[u8]| {
        let is_it = |at| text_at(&plain, at).starts_with(letters);
        fields.iter().position(|it| it.name == "line" && is_it(it.at.get())).unwrap()
    };
    let content = line(b"CID=");
    assert_eq!(&text_at(&plain, fields[content + 1].at.get()), b"fffffffe");
    let create_type = line(b"createTy");
    assert_eq!(&text_at(&plain, fields[create_type + 1].at.get()), b"\"monolit");
    let image = attacked(&program, Part::Metadata, 2 * content, b'X'.into());
    assert_eq!(&text_at(&image, fields[content].at.get())[..4], b"XID=");
}

/// Pointers of attacks count in sectors.
#[test]
fn attacks_point_at_sectors() {
    use qcowfuzz::disk::image_format::ImageFormat;
    use qcowfuzz::harness::targets::TargetKind;
    use qcowfuzz::harness::{Checks, Walker};
    let text = format!(
        "{}\npatch part=directory depth=0 nth=0 transform=own value=0
         patch part=table depth=0 nth=2 transform=past_end value=3
         patch part=table depth=0 nth=4 transform=misalign value=2",
        program(64)
    );
    let program = assemble(&text).unwrap();
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    hostile.run(&program.encode(), Checks::AtCheckpoints).unwrap();
    let damaged = hostile.pipeline().images().top().image.clone();
    let mut harness = Harness::new(Walker::default());
    let plain = harness.build(&program.encode());
    let mut anatomy = Anatomy::default();
    anatomy.read(ImageFormat::Vmdk, plain).unwrap();
    let entry = |image: &Image, part, index: usize| {
        let at = anatomy.of(part)[index].at.get();
        u64::from(u32::from_le_bytes(bytes_of(image, at)))
    };
    let directory = anatomy.of(Part::Directory)[0].at.get();
    assert_eq!(entry(&damaged, Part::Directory, 0), directory / 512);
    use qcowfuzz::disk::storage::Storage;
    let grains = plain.length_bytes().div_ceil(1 << 16) + 3;
    assert_eq!(entry(&damaged, Part::Table, 1), grains << 16 >> 9);
    assert_eq!(entry(&damaged, Part::Table, 2), entry(plain, Part::Table, 2) + 3);
}
