//! Tests of images in memory.

use crate::images::content::entropy::Entropy;

use super::*;

fn image(segments: &[(u64, &[u8])]) -> Image {
    let mut image = Image::default();
    for (offset, bytes) in segments {
        image.write(HostOffset::new(*offset), bytes);
    }
    image.seal(0);
    image
}

#[test]
fn what_is_overwritten_is_as_in_a_flat_file() {
    let mut entropy = Entropy::new(9);
    for _ in 0..200 {
        let mut flat = vec![0u8; 512];
        let mut image = Image::default();
        for slot in 0..8 {
            let (offset, length) = (slot * 64 + entropy.below(8), entropy.below(40) as usize + 1);
            flat[offset as usize..offset as usize + length].fill(slot as u8 + 1);
            image.write(HostOffset::new(offset), &vec![slot as u8 + 1; length]);
        }
        image.seal(512);
        for round in 0..20 {
            let start = entropy.below(530);
            let bytes = vec![100 + round; entropy.below(100) as usize];
            image.overwrite(HostOffset::new(start), &bytes);
            for (to, from) in flat.iter_mut().skip(start as usize).zip(&bytes) {
                *to = *from;
            }
        }
        let length = entropy.below(512);
        image.cut(length);
        flat[length as usize..].fill(0);
        let mut into = vec![9; 512];
        image.read_at(HostOffset::ZERO, &mut into).unwrap();
        assert_eq!(into, flat);
        assert_eq!(image.length_bytes(), length);
    }
}

#[test]
fn what_is_referred_to_reads_as_what_is_copied() {
    static REST: [u8; 2 * MIN_REFERRED_BYTES] = [7; 2 * MIN_REFERRED_BYTES];
    for length in [0, 1, MIN_REFERRED_BYTES - 1, MIN_REFERRED_BYTES, REST.len()] {
        let (mut copied, mut referred) = (Image::default(), Image::default());
        // Twice, like a payload that a snapshot shares.
        for _ in 0..2 {
            copied.write(HostOffset::new(40), &[&[1, 2, 3], &REST[..length]].concat());
            referred.write_parts(HostOffset::new(40), &[&[1], &[2, 3]], &REST[..length]);
        }
        let both = &mut [copied, referred];
        let same = |both: &mut [Image; 2], moment| {
            let [copied, referred] = both.each_ref().map(|image| {
                let mut into = vec![9; 700];
                image.read_at(HostOffset::new(30), &mut into).unwrap();
                (into, image.length_bytes())
            });
            assert_eq!(copied, referred, "{length} bytes, {moment}");
        };
        both.iter_mut().for_each(|image| image.seal(0));
        same(both, "sealed");
        both.iter_mut().for_each(|image| image.overwrite(HostOffset::new(50), &[8; 20]));
        same(both, "overwritten");
        both.iter_mut().for_each(|image| image.cut(60));
        same(both, "cut");
    }
    assert_eq!(REST, [7; 2 * MIN_REFERRED_BYTES]);
}

#[test]
fn unwritten_bytes_are_zeros() {
    let image = image(&[(1 << 50, &[1; 16]), (8, &[2; 4])]);
    assert_eq!(image.length_bytes(), (1 << 50) + 16);
    let mut into = [9u8; 8];
    image.read_at(HostOffset::new(6), &mut into).unwrap();
    assert_eq!(into, [0, 0, 2, 2, 2, 2, 0, 0]);
    image.read_at(HostOffset::new((1 << 50) + 12), &mut into).unwrap();
    assert_eq!(into, [1, 1, 1, 1, 0, 0, 0, 0]);
}

#[test]
fn reads_agree_with_a_flat_copy_in_any_order() {
    let mut entropy = Entropy::new(7);
    for _ in 0..200 {
        let mut flat = vec![0u8; 2048];
        let mut image = Image::default();
        let mut offsets: Vec<u64> = (0..32).filter(|_| entropy.one_in(2)).collect();
        offsets.sort_by_key(|offset| offset.wrapping_mul(0x9E37_79B9) & 31);
        for slot in offsets {
            let offset = slot * 64 + entropy.below(8) * 4;
            let bytes = vec![slot as u8 + 1; 1 + entropy.below(32) as usize];
            flat[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
            image.write(HostOffset::new(offset), &bytes);
        }
        image.seal(2048);
        for _ in 0..50 {
            let start = entropy.below(2048);
            let length = entropy.below(2048 - start) as usize;
            let mut into = vec![0xAA; length];
            image.read_at(HostOffset::new(start), &mut into).unwrap();
            assert_eq!(into, flat[start as usize..start as usize + length]);
        }
        let mut seen = vec![0u8; 2048];
        let mut from = HostOffset::new(entropy.below(4) * 16);
        seen[..from.get() as usize].copy_from_slice(&flat[..from.get() as usize]);
        let mut scratch = [0u8; 48];
        while let Some(data) = image.next_data(from, HostOffset::new(2048), &mut scratch).unwrap() {
            assert_eq!(data.bytes.len() % 16, 0);
            let at = data.offset.get() as usize;
            seen[at..at + data.bytes.len()].copy_from_slice(data.bytes);
            from = data.offset.checked_add(data.bytes.len() as u64).unwrap();
        }
        assert_eq!(seen, flat);
    }
}
