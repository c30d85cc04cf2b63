//! Damages VHDX images.

use qcowfuzz::formats::vhdx::constants::{BAT_REGION, METADATA_REGION, PAGE_83, PARENT_LOCATOR};
use qcowfuzz::internal::images::entropy::Entropy;

use crate::comparison::one_of;
use crate::vhdx_writer::{LOG_GUID, MIB, Part, PartKind, Written, log_entry};

/// Changes a field, an entry, a byte or the length. Corrects the checksum, mostly.
pub fn damage(written: &mut Written, entropy: &mut Entropy) {
    match entropy.below(10) {
        0 => header(written, entropy),
        1 => region_table(written, entropy),
        2 => metadata_table(written, entropy),
        3 => item(written, entropy),
        4..=6 => block_table(written, entropy),
        7 => log(written, entropy),
        8 => {
            let any = entropy.below(written.length + 1);
            let length = one_of(entropy, [written.length, any]);
            let near = one_of(entropy, [0, 1, 511, 512, MIB]);
            written.length = length.saturating_sub(near);
        }
        _ => any_byte(written, entropy),
    }
}

/// Returns a part of a kind.
fn part_of<'w>(written: &'w mut Written, entropy: &mut Entropy, kind: PartKind) -> &'w mut Part {
    let parts: Vec<&mut Part> = written.parts.iter_mut().filter(|part| part.kind == kind).collect();
    let chosen = entropy.below(parts.len() as u64) as usize;
    parts.into_iter().nth(chosen).unwrap()
}

/// Returns a number that fields do not expect.
fn value(entropy: &mut Entropy) -> u64 {
    let (any, bit) = (entropy.next_u64(), 1u64 << entropy.below(64));
    one_of(entropy, [0, 1, any, bit, u64::MAX, 7 * MIB, 64 * MIB])
}

fn seal_mostly(part: &mut Part, entropy: &mut Entropy) {
    if !entropy.one_in(6) {
        part.seal();
    }
}

fn header(written: &mut Written, entropy: &mut Entropy) {
    let fields = [(0, 4), (8, 8), (48, 16), (64, 2), (66, 2), (68, 4), (72, 8)];
    let (at, length) = one_of(entropy, fields);
    let value = [value(entropy).to_le_bytes(), value(entropy).to_le_bytes()];
    for _ in 0..=entropy.below(2) {
        let part = part_of(written, entropy, PartKind::Header);
        part.put(at, &value.as_flattened()[..length]);
        seal_mostly(part, entropy);
    }
}

fn region_table(written: &mut Written, entropy: &mut Entropy) {
    let value = value(entropy);
    let guid = one_of(entropy, [BAT_REGION, METADATA_REGION, [3; 16]]);
    let part = part_of(written, entropy, PartKind::RegionTable);
    let entry = 16 + 32 * entropy.below(4) as usize;
    match entropy.below(7) {
        0 => part.put(0, &value.to_le_bytes()[..4]),
        1 => {
            let count: u32 = one_of(entropy, [0, 1, 2, 3, 4, 2048, value as u32]);
            part.put(8, &count.to_le_bytes());
        }
        2 => part.put(entry, &guid),
        3 => part.put(entry + 16, &(entropy.below(20) * MIB).to_le_bytes()),
        4 => part.put(entry + 16, &value.to_le_bytes()),
        5 => {
            // QEMU reads all of a long table: 2 GiB would take a second.
            let short = entropy.below(64 * MIB) as u32;
            let length = one_of(entropy, [0, 8, 64, short, 20 << 20, 1 << 31, u32::MAX]);
            part.put(entry + 24, &length.to_le_bytes());
        }
        _ => {
            part.put(8, &[4]);
            part.put(112, &[9; 16]);
            part.put(128, &(900 * MIB).to_le_bytes());
            part.put(140, &[entropy.below(2) as u8]);
        }
    }
    seal_mostly(part, entropy);
}

fn metadata_table(written: &mut Written, entropy: &mut Entropy) {
    let value = value(entropy);
    let guid = one_of(entropy, [PAGE_83, PARENT_LOCATOR, [4; 16]]);
    let part = part_of(written, entropy, PartKind::Metadata);
    let entry = 32 + 32 * entropy.below(6) as usize;
    match entropy.below(6) {
        0 => part.put(0, &value.to_le_bytes()),
        1 => part.put(10, &u16::to_le_bytes(one_of(entropy, [0, 4, 5, 6, 7, 2047, 2048]))),
        2 => part.put(entry, &guid),
        3 => part.put(entry + 16, &value.to_le_bytes()[..4]),
        4 => part.put(entry + 24, &[entropy.below(8) as u8]),
        _ => {
            part.put(10, &[6]);
            part.put(192, &guid);
            part.put(216, &[one_of(entropy, [0, 4])]);
        }
    }
}

fn item(written: &mut Written, entropy: &mut Entropy) {
    use PartKind::{OtherItem, Parameters, SectorSize, Size};
    let kind = one_of(entropy, [Parameters, Parameters, Size, Size, SectorSize, OtherItem]);
    let (value, size) = (value(entropy), entropy.below(40 * MIB));
    let part = part_of(written, entropy, kind);
    let value = match kind {
        Parameters if entropy.one_in(3) => {
            return part.put(4, &[one_of(entropy, [1, 2, 3, 4, 255])]);
        }
        Parameters => one_of(entropy, [MIB, 2 * MIB, 3 * MIB, 256 * MIB, 512 * MIB, value]),
        SectorSize => one_of(entropy, [512, 4096, 1024, value]),
        Size => one_of(entropy, [size, size, value]),
        _ => value,
    };
    let length = if kind == Size { 8 } else { 4 };
    part.put(0, &value.to_le_bytes()[..length]);
}

fn block_table(written: &mut Written, entropy: &mut Entropy) {
    let length = written.length;
    let other = u64::from(entropy.one_in(2)) * MIB;
    let part = part_of(written, entropy, PartKind::BlockTable);
    let Some(last) = (part.bytes.len() as u64 / 8).checked_sub(1) else { return };
    let (one, other_one) = (entropy.below(last + 1), entropy.below(last + 1));
    let at = 8 * one_of(entropy, [0, last, one, other_one]);
    let near = (length / MIB * MIB).saturating_sub(MIB * entropy.below(3)) + other;
    let (any, state) = (value(entropy), entropy.below(8));
    let low = MIB * entropy.below(24);
    let offset = one_of(entropy, [near, low, any & !(MIB - 1)]);
    let old = u64::from_le_bytes(part.bytes[at as usize..][..8].try_into().unwrap());
    let entry = match entropy.below(3) {
        0 => old & !7 | state,
        1 => offset | 6,
        _ => offset | state,
    };
    // QEMU reads the beginning of the file for every part of a block at offset 0.
    let entry = if entry & 7 == 6 && entry < MIB { entry | MIB } else { entry };
    part.put(at as usize, &entry.to_le_bytes());
}

/// Adds an entry to the log, mostly one that QEMU would replay.
fn log(written: &mut Written, entropy: &mut Entropy) {
    if written.log_length == 0 {
        return;
    }
    let mut log_offset = 0;
    for part in written.parts.iter_mut().filter(|part| part.kind == PartKind::Header) {
        part.put(48, &LOG_GUID);
        part.seal();
        log_offset = u64::from_le_bytes(part.bytes[72..80].try_into().unwrap());
    }
    let sectors = u64::from(written.log_length) / 4096;
    let any = entropy.below(sectors);
    let sector = one_of(entropy, [0, any, sectors - 1]);
    let mut part = log_entry(entropy, 0);
    let value = value(entropy).to_le_bytes();
    match entropy.below(6) {
        0 => part.put(32, &[8; 16]),
        1 => part.put(16, &value),
        2 => part.put(24, &[one_of(entropy, [0, 1, 127, 128])]),
        3 => part.put(64 + 8 * entropy.below(16) as usize, &value),
        _ => {}
    }
    seal_mostly(&mut part, entropy);
    // The log is a ring.
    for (delta, sector_bytes) in (sector..).zip(part.bytes.chunks(4096)) {
        let at = log_offset.wrapping_add(delta % sectors * 4096);
        if at < 1 << 40 {
            written.add(PartKind::Data, at, sector_bytes.to_vec());
        }
    }
}

fn any_byte(written: &mut Written, entropy: &mut Entropy) {
    let parts = written.parts.iter_mut().filter(|part| part.kind != PartKind::BlockTable);
    let parts: Vec<&mut Part> = parts.collect();
    let chosen = entropy.below(parts.len() as u64) as usize;
    let part = parts.into_iter().nth(chosen).unwrap();
    let at = entropy.below((part.bytes.len() as u64).min(256)) as usize;
    part.bytes[at] ^= 1 << entropy.below(8);
}
