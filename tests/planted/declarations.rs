//! The oracle `declarations` finds wrong bytes in the declarations of an image. The test plants each fault in every
//! image of the seeds that has the field.

use test_support::prelude::*;

use crate::altered::Altered;
use qcowfuzz::formats::qcow2::bitmap::{BitmapCluster, BitmapTableEntry, bits_for};
use qcowfuzz::formats::qcow2::constants::{BITMAP_FIXED_BYTES, SNAPSHOT_FIXED_BYTES};
use qcowfuzz::formats::qcow2::geometry::Version;
use qcowfuzz::formats::qcow2::head::{HeaderExtension, each_extension};
use qcowfuzz::formats::qcow2::{bitmap, snapshot};
use qcowfuzz::internal::harness::oracles::qcow2::declarations::DeclarationReader;
use qcowfuzz::internal::images::declarations::Declarations;

/// A fault, and the fingerprint that it must get. `plant` returns `None` if the image does not have the field.
struct Fault {
    name: &'static str,
    plant: fn(&mut Altered, &Head, &Image) -> Option<()>,
    fingerprint: &'static str,
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "another backing file",
        plant: |it, head, _| flip(it, head.backing_name?.offset.get(), 1),
        fingerprint: "declarations: backing file's name, as meant → different",
    },
    Fault {
        name: "a shorter name of the backing file",
        plant: |it, head, _| {
            head.backing_name?;
            flip(
                it,
                19,
                head.header.backing_file_bytes as u8 ^ (head.header.backing_file_bytes as u8 - 1),
            )
        },
        fingerprint: "declarations: backing file's name, as meant → different",
    },
    Fault {
        name: "a qcow2 backing file that is called raw",
        plant: |it, head, _| {
            let field = head.backing_format.filter(|field| field.length_bytes == 5)?;
            it.write(field.offset.get(), b"raw\0\0")
        },
        fingerprint: "declarations: backing file's format, as meant → different",
    },
    Fault {
        name: "another data file",
        plant: |it, head, _| flip(it, head.data_file?.offset.get(), 1),
        fingerprint: "declarations: data file's name, as meant → different",
    },
    Fault {
        name: "the bit for lazy refcounts",
        plant: |it, head, _| {
            (head.header.geometry.version == Version::V3).then_some(())?;
            flip(it, 87, 1)
        },
        fingerprint: "declarations: feature bits, as meant → different",
    },
    Fault {
        name: "the bit for a raw data file",
        plant: |it, head, _| {
            head.data_file?;
            flip(it, 95, 2)
        },
        fingerprint: "declarations: feature bits, as meant → different",
    },
    Fault {
        name: "a longer VM state",
        plant: |it, head, image| {
            let (at, _, _) = *snapshot_ids(head, image).iter().find(|(_, _, extra)| *extra >= 8)?;
            flip(it, at + SNAPSHOT_FIXED_BYTES as u64 + 7, 1)
        },
        fingerprint: "declarations: VM state, as meant → different",
    },
    Fault {
        name: "two snapshots with one id",
        plant: |it, head, image| {
            let all = snapshot_ids(head, image);
            let [(one, length, extra), (other, other_length, other_extra), ..] = *all else {
                return None;
            };
            (length == other_length && length > 0).then_some(())?;
            let id = |at: u64, extra: u32| at + SNAPSHOT_FIXED_BYTES as u64 + u64::from(extra);
            copy(it, id(one, extra), id(other, other_extra), u64::from(length))
        },
        fingerprint: "declarations: snapshot's id, unique → duplicate",
    },
    Fault {
        name: "a bitmap that is in use",
        plant: |it, head, _| flip(it, head.bitmaps?.directory_offset.get() + 15, 1),
        fingerprint: "declarations: bitmap, as meant → different",
    },
    Fault {
        name: "a bitmap of another granularity",
        plant: |it, head, _| flip(it, head.bitmaps?.directory_offset.get() + 17, 1),
        fingerprint: "declarations: bitmap, as meant → different",
    },
    Fault {
        name: "two bitmaps with one name",
        plant: |it, head, image| {
            let all = bitmap_names(head, image);
            let [(one, length), (other, other_length), ..] = *all else { return None };
            (length == other_length && length > 0).then_some(())?;
            copy(it, one, other, u64::from(length))
        },
        fingerprint: "declarations: bitmap's name, unique → duplicate",
    },
    Fault {
        name: "another name of a bitmap",
        plant: |it, head, image| {
            let is_given = |at: u64| !b"b0123456789".contains(&byte_of(image, at));
            let all = bitmap_names(head, image);
            let (at, length) = all.into_iter().find(|(at, length)| *length > 0 && is_given(*at))?;
            flip(it, at + u64::from(length) - 1, 1)
        },
        fingerprint: "declarations: given string, as meant → different",
    },
    Fault {
        name: "another id of a snapshot",
        plant: |it, head, image| flip(it, given_id(head, image)?.0, 1),
        fingerprint: "declarations: given string, as meant → different",
    },
    Fault {
        name: "another name of a snapshot",
        plant: |it, head, image| {
            let (id, length) = given_id(head, image)?;
            flip(it, id + u64::from(length), 1)
        },
        fingerprint: "declarations: given string, as meant → different",
    },
    Fault {
        name: "another body of an extension",
        plant: |it, head, image| {
            let mut body = None;
            let each = each_extension(image, &head.header, |extension| {
                let at = extension.at + HeaderExtension::FRONT_BYTES;
                body = body.or((extension.length_bytes == 40).then_some(at));
                Ok(())
            });
            each.unwrap();
            flip(it, body? + 39, 1)
        },
        fingerprint: "declarations: given string, as meant → different",
    },
    Fault {
        name: "a bit past the end of the disk",
        plant: |it, head, image| flip(it, last_bits_of_one_bit(head, image)?.get(), 2),
        fingerprint: "declarations: bitmap, zeros past the disk → bits",
    },
];

fn flip(it: &mut Altered, at: u64, bits: u8) -> Option<()> {
    let byte = it.byte(at);
    it.write(at, &[byte ^ bits])
}

fn copy(it: &mut Altered, from: u64, to: u64, length: u64) -> Option<()> {
    let bytes: Vec<u8> = (from..from + length).map(|at| it.byte(at)).collect();
    it.write(to, &bytes)
}

/// Returns the offset of each entry of the snapshot table, the length of its id, and that of its extra data.
fn snapshot_ids(head: &Head, image: &Image) -> Vec<(u64, u16, u32)> {
    let mut all = Vec::new();
    let each = snapshot::each_entry(image, &head.header, |_, at, entry| {
        all.push((at.get(), entry.id_bytes, entry.extra_bytes));
        Ok(())
    });
    each.unwrap();
    all
}

fn byte_of(image: &Image, at: u64) -> u8 {
    let mut byte = [0];
    image.read_at(HostOffset::new(at), &mut byte).unwrap();
    byte[0]
}

/// Returns the offset and the length of the last id that the program gives, and that no number is: its snapshot has a
/// given name, too.
fn given_id(head: &Head, image: &Image) -> Option<(u64, u16)> {
    let all = snapshot_ids(head, image).into_iter();
    let ids = all
        .map(|(at, length, extra)| (at + SNAPSHOT_FIXED_BYTES as u64 + u64::from(extra), length));
    ids.filter(|(at, length)| *length > 0 && !byte_of(image, *at).is_ascii_digit()).last()
}

/// Returns the offset and the length of each bitmap's name.
fn bitmap_names(head: &Head, image: &Image) -> Vec<(u64, u16)> {
    let Some(extension) = head.bitmaps else { return Vec::new() };
    let mut all = Vec::new();
    let each = bitmap::each_entry(image, &extension, |_, at, entry| {
        all.push((at.get() + BITMAP_FIXED_BYTES as u64, entry.name_bytes));
        Ok(())
    });
    each.unwrap();
    all
}

/// Returns the offset of the last cluster of bits, of a first bitmap that has one bit in it.
fn last_bits_of_one_bit(head: &Head, image: &Image) -> Option<HostOffset> {
    let mut first = None;
    let each = bitmap::each_entry(image, &head.bitmaps?, |_, _, entry| {
        first.get_or_insert(*entry);
        Ok(())
    });
    each.unwrap();
    let entry = first?;
    let cluster_size = head.header.geometry.cluster_size;
    let before = u64::from(entry.table_entries) - 1;
    let bits = bits_for(head.header.virtual_size_bytes(), entry.granularity_bits);
    let mut word = [0; 8];
    image.read_at(entry.table_offset + before * 8, &mut word).unwrap();
    match BitmapTableEntry(u64::from_be_bytes(word)).cluster(cluster_size) {
        Ok(BitmapCluster::Data(host)) if bits - before * cluster_size.bytes() * 8 == 1 => {
            Some(host)
        }
        _ => None,
    }
}

/// Returns the images of all seeds of `map_extents`, and the declarations that they were meant to have.
fn images() -> Vec<(Image, Declarations)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/text/map_extents");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    let mut harness = Harness::new(Walker::default());
    let mut images = Vec::new();
    for path in paths {
        let program = assemble(&fs::read_to_string(&path).unwrap()).unwrap();
        harness.run(&program.encode(), Checks::AtCheckpoints).unwrap();
        for files in harness.images().layers().filter(|files| files.format == ImageFormat::Qcow2) {
            images.push((Altered::new(&files.image).image(), files.declarations.clone()));
        }
    }
    images
}

#[test]
fn every_fault_in_a_declaration_is_found() {
    let images = images();
    let mut reader = DeclarationReader::default();
    for (image, meant) in &images {
        reader.check(&Head::read(image).unwrap(), image, meant).unwrap();
    }
    for fault in FAULTS {
        let mut planted = 0;
        for (image, meant) in &images {
            let mut altered = Altered::new(image);
            let head = Head::read(image).unwrap();
            if (fault.plant)(&mut altered, &head, image).is_some() {
                let image = altered.image();
                let head = Head::read(&image).unwrap();
                let found = reader.check(&head, &image, meant).unwrap_err();
                assert_eq!(found.fingerprint(), fault.fingerprint, "{}", fault.name);
                planted += 1;
            }
        }
        assert!(planted > 0, "{}: no seed has the field", fault.name);
    }
}
