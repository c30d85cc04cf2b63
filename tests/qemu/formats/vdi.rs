//! VDI images.

use std::os::unix::fs::FileExt;
use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Part;

use super::commands::WITH_RULE;
use super::comparison;
use crate::formats::comparison::{Kind, TestedFormat, one_of};

const BLOCK: u64 = 1 << 20;

pub struct Vdi;

impl TestedFormat for Vdi {
    const FORMAT: ImageFormat = ImageFormat::Vdi;
    const VALID: u64 = 320;
    const DAMAGED: u64 = 320;
    const MADE_BY_QEMU: u64 = 120;
    const LARGE: u64 = 8;
    const LARGE_PROGRAMS: u64 = 40;
    const PROGRAMS: (u64, Base) = (500, Base::of(ImageFormat::Vdi));
    const PAIRS: usize = 900;
    const ATTACKED: (u64, &[Part]) = (160, &[Part::Header, Part::Table]);
    const BOUNDS: &[(&str, u64)] = &[
        ("valid images", 320),
        (WITH_RULE, 120),
        ("damaged images that open", 100),
        ("damaged images that are refused", 80),
        ("images that qemu makes", 120),
        ("images of programs", 500),
        ("images of large disks", 8),
        ("maps of the command", 30),
        ("parts of disks", 200),
        ("attacked images that open", 60),
        ("attacked images that are refused", 20),
        ("attacks on header: open", 25),
        ("attacks on header: refused", 20),
        ("attacks on block table: open", 60),
        ("attacks on block table: refused", 20),
        ("block maps past the end of the file, which only qemu-img opens", 1),
        ("records of info", 700),
        ("images that info refuses", 80),
        ("checks that exit with 0", 400),
        ("checks that exit with 2", 100),
        ("checks that exit with 1", 80),
        ("extents", 3000),
        ("windows", 700),
        ("whole disks", 300),
    ];

    fn write(path: &Path, kind: Kind, entropy: &mut Entropy) -> Checked<()> {
        match kind {
            Kind::MadeByQemu => {
                let bits = 1 + entropy.below(15);
                make(path, 512 * (1 + entropy.below(1 << bits)), entropy)
            }
            Kind::Large => {
                // The block map of the largest disk has 2 GiB.
                let gib = one_of(entropy, [5, 127, 2040, 9000]);
                make(path, (gib << 30) - 512 * entropy.below(3), entropy)
            }
            _ => write(path, kind == Kind::Damaged, entropy).described(),
        }
    }
}

/// Makes an image with qemu-img, and changes it with qemu-io.
fn make(path: &Path, size: u64, entropy: &mut Entropy) -> Checked<()> {
    let is_static = size < 1 << 30 && entropy.one_in(3);
    let options = if is_static { "static=on" } else { "static=off" };
    comparison::create(path, ImageFormat::Vdi, options, size, &[])?;
    comparison::change(path, ImageFormat::Vdi, size, entropy)
}

/// Writes an image whose blocks lie in any order, with places that no writer chooses.
fn write(path: &Path, is_damaged: bool, entropy: &mut Entropy) -> std::io::Result<()> {
    let blocks = 1 + entropy.below(9);
    let (spare, cut) = (entropy.below(3), 512 * entropy.below(2048) * entropy.below(2));
    let size = blocks * BLOCK - cut - entropy.below(512) * u64::from(entropy.one_in(4));
    let map = 512 * (1 + entropy.below(4));
    let data = map + 512 * (1 + entropy.below(4));
    let mut entries = vec![u32::MAX; (blocks + spare) as usize];
    let mut free: Vec<u32> = (0..entries.len() as u32).collect();
    let mut stored = Vec::new();
    for entry in entries.iter_mut().take(blocks as usize) {
        match entropy.below(3) {
            0 => *entry = [u32::MAX, u32::MAX - 1][entropy.below(2) as usize],
            _ => {
                *entry = free.swap_remove(entropy.below(free.len() as u64) as usize);
                stored.push(*entry);
            }
        }
    }
    let mut header = vec![0; 512];
    let text = one_of(entropy, ["<<< QEMU VM Virtual Disk Image >>>\n", "", "<<< x >>>\n"]);
    header[..text.len()].copy_from_slice(text.as_bytes());
    let words = [
        (64, 0xbeda_107f),
        (68, 0x1_0001),
        (72, one_of(entropy, [0x180, 0x190, 0])),
        (76, one_of(entropy, [1, 2, 3])),
        (80, entropy.below(4) as u32),
        (340, map as u32),
        (344, data as u32),
        (360, 512),
        (376, BLOCK as u32),
        (384, entries.len() as u32),
        (388, stored.len() as u32 + u32::from(entropy.one_in(8))),
        (392, entropy.next_u64() as u32),
        (408, entropy.next_u64() as u32),
    ];
    for (at, word) in words {
        header[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    header[368..376].copy_from_slice(&size.to_le_bytes());
    if is_damaged {
        (0..=entropy.below(2)).for_each(|_| damage(&mut header, &mut entries, entropy));
    }
    let file = File::create(path)?;
    let end = data + (blocks + spare) * BLOCK;
    file.set_len(if entropy.one_in(8) { end - entropy.below(BLOCK) } else { end })?;
    file.write_all_at(&header, 0)?;
    let map_bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    file.write_all_at(&map_bytes, map)?;
    for block in &stored {
        if entropy.one_in(4) {
            continue;
        }
        let bytes = vec![*block as u8 + 1; 1 + entropy.below(70_000) as usize];
        file.write_all_at(&bytes, data + u64::from(*block) * BLOCK + entropy.below(900) * 1024)?;
    }
    Ok(())
}

/// Changes a field of the header, or an entry. The block map stays in the file: QEMU reads zeros behind its end.
fn damage(header: &mut [u8], entries: &mut [u32], entropy: &mut Entropy) {
    if entropy.one_in(2) {
        let at = entropy.below(entries.len() as u64) as usize;
        let near = entropy.below(12) as u32;
        entries[at] = one_of(entropy, [0, near, 1 << 20, u32::MAX - 2, u32::MAX - 1]);
        return;
    }
    let at = one_of(entropy, [64, 68, 72, 76, 80, 344, 360, 376, 380, 388, 424, 432, 440, 452]);
    let at = one_of(entropy, [at, at, at, 368, 340, 384]);
    let old = u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let value = match (at, entropy.below(3)) {
        // A map that moves by a part of a sector is refused, and one that is shorter may be.
        (340, _) => old + 1 + entropy.below(511) as u32,
        (384, _) => old.saturating_sub(1 + entropy.below(3) as u32),
        (_, 0) => old ^ 1 << entropy.below(32),
        (_, 1) => one_of(entropy, [0, 1, 512, u32::MAX]),
        _ => old.wrapping_add(entropy.below(1024) as u32),
    };
    header[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
