use crate::formats::qcow2::geometry::Version;
use crate::images::content::entropy::Entropy;

use super::*;

fn geometry(bits: u32, compression: Compression) -> Geometry {
    Geometry {
        version: Version::V3,
        cluster_size: ClusterSize::from_bits(bits).unwrap(),
        refcount_order: 4,
        extended_l2: false,
        compression,
        data_file: false,
    }
}

/// Returns everything that any inflater reads from a payload; for zstd, all frames.
fn inflated(payload: &'static Payload, geometry: &Geometry, coding: Coding) -> Vec<u8> {
    let (before, behind) = payload.stamped(&[7; STAMP_BYTES]);
    let mut bytes = [before.concat().as_slice(), behind].concat();
    let length = geometry.cluster_size.bytes_usize();
    if coding == Coding::Trailing {
        bytes.truncate(bytes.len() - TRAILING.len());
    }
    match geometry.compression {
        Compression::Deflate => miniz_oxide::inflate::decompress_to_vec(&bytes).unwrap(),
        Compression::Zstd => {
            let mut out = Vec::with_capacity(2 * length);
            zstd_safe::decompress(&mut out, &bytes).unwrap();
            out
        }
    }
}

#[test]
fn every_payload_inflates_to_its_cluster() {
    for bits in 9..=21 {
        for compression in [Compression::Deflate, Compression::Zstd] {
            let geometry = geometry(bits, compression);
            let length = geometry.cluster_size.bytes_usize();
            for (shape, coding) in
                Shape::ALL.iter().flat_map(|shape| Coding::ALL.map(|coding| (*shape, coding)))
            {
                // In large clusters, all shapes fill the same part, and inflating takes seconds: three shapes are
                // enough.
                if bits > 14 && !matches!(shape, Shape::Zeros | Shape::Noise | Shape::Far) {
                    continue;
                }
                let (kind, payload) = fitting(&geometry, PayloadKind { shape, coding });
                assert!(payload.fits());
                let case = format!("{bits} {compression:?} {shape:?} {coding:?} as {kind:?}");
                let mut inflated = inflated(payload, &geometry, kind.coding);
                let longer = kind.coding == Coding::Longer;
                assert_eq!(inflated.len(), length << u8::from(longer), "{case}");
                inflated.truncate(length);
                let mut expected = vec![0; length];
                expected[..STAMP_BYTES].fill(7);
                let filling = kind.shape.behind_stamp(geometry.cluster_size);
                expected[STAMP_BYTES..][..filling.len()].copy_from_slice(filling);
                assert!(inflated == expected, "{case}");
            }
        }
    }
}

#[test]
fn what_is_asked_for_is_mostly_what_there_is() {
    for compression in [Compression::Deflate, Compression::Zstd] {
        for (bits, shape, coding) in [
            (9, Shape::Noise, Coding::Usual),
            (10, Shape::Nearly, Coding::Largest),
            (9, Shape::Half, Coding::Largest),
            (16, Shape::Noise, Coding::Usual),
            (16, Shape::Noise, Coding::Stored),
            (16, Shape::Nearly, Coding::Dynamic),
            (16, Shape::Far, Coding::Window),
            (16, Shape::Mixed, Coding::Largest),
            (21, Shape::Noise, Coding::Trailing),
            (21, Shape::Zeros, Coding::Window),
            (21, Shape::Coins, Coding::Pieces),
        ] {
            let wanted = PayloadKind { shape, coding };
            let (kind, payload) = fitting(&geometry(bits, compression), wanted);
            let larger = payload.length_bytes() * 2 > 1 << bits;
            match (bits, shape) {
                // The payload is a few bytes longer than the descriptor of the smallest cluster can hold.
                (9, Shape::Noise) => assert_eq!(kind.shape, Shape::Most),
                _ => assert_eq!(kind, wanted),
            }
            assert!(larger || bits == 21 || !matches!(shape, Shape::Noise | Shape::Nearly));
        }
        // Stored, a cluster of 2 MiB exceeds `MAX_PAYLOAD_BYTES`.
        let wanted = PayloadKind { shape: Shape::Text, coding: Coding::Stored };
        let (kind, _) = fitting(&geometry(21, compression), wanted);
        assert_eq!(kind, PayloadKind { coding: Coding::Usual, ..wanted });
    }
}

#[test]
fn payloads_are_of_every_size() {
    for compression in [Compression::Deflate, Compression::Zstd] {
        for bits in [12, 14, 16] {
            let cluster = 1usize << bits;
            let length = |shape| {
                let wanted = PayloadKind { shape, coding: Coding::Usual };
                fitting(&geometry(bits, compression), wanted).1.length_bytes()
            };
            assert!(length(Shape::Zeros) < 100 + cluster / 64);
            assert!((cluster / 8 * 7..cluster).contains(&length(Shape::Nearly)));
            assert!((cluster..cluster + 64).contains(&length(Shape::Noise)));
        }
    }
}

/// Checks the kinds of the blocks after the stamp: for deflate the BTYPE of the first, for zstd all in the frame.
#[test]
fn codings_are_what_they_are_called() {
    let bytes = |compression, shape, coding| {
        let (kind, payload) = fitting(&geometry(16, compression), PayloadKind { shape, coding });
        assert_eq!(kind, PayloadKind { shape, coding });
        payload.bytes[payload.stamp_at + STAMP_BYTES..].to_vec()
    };
    let first = |shape, coding| bytes(Compression::Deflate, shape, coding)[0] >> 1 & 3;
    assert_eq!(first(Shape::Text, Coding::Stored), 0);
    assert_eq!(first(Shape::Text, Coding::Fixed), 1);
    assert_eq!(first(Shape::Coins, Coding::Fixed), 1);
    assert_eq!(first(Shape::Coins, Coding::Dynamic), 2);
    assert_eq!(first(Shape::Far, Coding::Window), 1);
    // Most of the cluster is matches of the largest distance: code 29 with all extra bits.
    let window = bytes(Compression::Deflate, Shape::Far, Coding::Window);
    let short = miniz_oxide::inflate::decompress_to_vec(&window);
    assert!(short.is_ok_and(|content| content.len() == (64 << 10) - STAMP_BYTES));
    let raw = bytes(Compression::Zstd, Shape::Noise, Coding::Stored);
    assert_eq!((raw[0] & 7, raw.len()), (0b001, (64 << 10) - STAMP_BYTES + 3));
    let runs = bytes(Compression::Zstd, Shape::Zeros, Coding::Fixed);
    assert_eq!((runs[0] & 7, runs.len()), (0b011, 4));
}

/// Returns the cluster that a payload of given bytes contains, with sevens in place of its stamp.
fn inflated_given(payload: &GivenPayload, geometry: &Geometry) -> Vec<u8> {
    let mut bytes = payload.bytes.clone();
    let stamp_at = payload.stamp_at.unwrap();
    bytes[stamp_at..][..STAMP_BYTES].fill(7);
    match geometry.compression {
        Compression::Deflate => miniz_oxide::inflate::decompress_to_vec(&bytes).unwrap(),
        Compression::Zstd => {
            let mut out = Vec::with_capacity(geometry.cluster_size.bytes_usize());
            zstd_safe::decompress(&mut out, &bytes).unwrap();
            out
        }
    }
}

fn assert_holds(payload: &GivenPayload, geometry: &Geometry, case: &str) {
    let mut expected = vec![0; geometry.cluster_size.bytes_usize()];
    expected[..STAMP_BYTES].fill(7);
    expected[STAMP_BYTES..][..payload.content.len()].copy_from_slice(&payload.content);
    assert!(inflated_given(payload, geometry) == expected, "{case}");
}

/// Returns streams of real compressors, and what they contain: for zstd, the blocks of a frame.
fn real_streams(geometry: &Geometry, entropy: &mut Entropy) -> Vec<(Vec<u8>, Vec<u8>)> {
    let room = geometry.cluster_size.bytes_usize() - STAMP_BYTES;
    let mut content = vec![0; (room / 2).min(3000)];
    content.fill_with(|| b'a' + entropy.below(5) as u8 * entropy.below(2) as u8);
    let levels = 0..=10;
    levels
        .map(|level| {
            let stream = match geometry.compression {
                Compression::Deflate => miniz_oxide::deflate::compress_to_vec(&content, level),
                Compression::Zstd => zstd::blocks_of_level(&content, i32::from(level)),
            };
            (stream, content.clone())
        })
        .collect()
}

#[test]
fn any_bytes_become_a_payload_of_a_whole_cluster() {
    let mut entropy = Entropy::new(1);
    let (mut lengths, mut with_content) = (0, 0);
    for compression in [Compression::Deflate, Compression::Zstd] {
        for turn in 0..2000u32 {
            let geometry = geometry(9 + turn % 6, compression);
            let mut bytes = vec![0; entropy.below(1 << (1 + turn % 11)) as usize];
            bytes.fill_with(|| entropy.next_u64() as u8);
            if turn % 3 == 0 {
                // A real stream with a few changes.
                let mut real = real_streams(&geometry, &mut entropy);
                bytes = real.swap_remove(entropy.below(real.len() as u64) as usize).0;
                for _ in 0..entropy.below(4) {
                    let at = entropy.below(bytes.len() as u64) as usize;
                    bytes[at] = entropy.next_u64() as u8;
                }
            }
            let Some(payload) = GivenPayload::valid(&geometry, &bytes) else {
                assert!(bytes.len() > 400, "{bytes:?}");
                continue;
            };
            assert_holds(&payload, &geometry, &format!("{turn} {compression:?} {bytes:02x?}"));
            lengths += payload.bytes.len();
            with_content += usize::from(payload.content.len() > bytes.len() / 2);
            assert_eq!(GivenPayload::valid(&geometry, &bytes), Some(payload));
        }
    }
    assert!(lengths > (1 << 20) / 3 && with_content > 4000 / 3, "{lengths} {with_content}");
    for bits in 15..=21 {
        for compression in [Compression::Deflate, Compression::Zstd] {
            let geometry = geometry(bits, compression);
            let payload = GivenPayload::valid(&geometry, &[0x4b, 1, 2, 3, 4, 5, 6]).unwrap();
            assert_holds(&payload, &geometry, &format!("{bits} {compression:?}"));
        }
    }
}

#[test]
fn real_streams_stay_as_they_are() {
    let mut entropy = Entropy::new(2);
    for bits in [9, 12, 16] {
        let deflate = geometry(bits, Compression::Deflate);
        for (stream, content) in real_streams(&deflate, &mut entropy) {
            let payload = GivenPayload::valid(&deflate, &stream).unwrap();
            assert_eq!(payload.content, content);
            let start = payload.stamp_at.unwrap() + STAMP_BYTES;
            // No block is the last: the flag in its first bit is cleared. Other blocks follow in its last byte.
            let same = 1..stream.len().saturating_sub(1);
            assert_eq!(payload.bytes[start..][same.clone()], stream[same]);
        }
        let zstd = geometry(bits, Compression::Zstd);
        for (stream, content) in real_streams(&zstd, &mut entropy) {
            let payload = GivenPayload::valid(&zstd, &stream).unwrap();
            assert_eq!(payload.content, content);
            let start = payload.stamp_at.unwrap() + STAMP_BYTES;
            assert_eq!(payload.bytes[start + 1..][..stream.len() - 1], stream[1..]);
        }
    }
}

#[test]
fn faults_in_given_bytes_are_corrected() {
    let geometry = geometry(12, Compression::Deflate);
    let content = |bytes: &[u8]| GivenPayload::valid(&geometry, bytes).unwrap().content;
    // A stored block whose inverted length is wrong, and one whose length is also too large.
    assert_eq!(content(&[0, 3, 0, 0, 0, b'a', b'b', b'c']), b"abc");
    assert_eq!(content(&[0, 9, 9, 9, 9, b'a', b'b', b'c']), b"abc");
    assert_eq!(content(&[]), b"");
    // A match before any content: the distance reaches the stamp.
    let mut out = Vec::new();
    let mut bits = deflate_from_bytes::BitWriter::new(&mut out);
    bits.put(0b010, 3);
    bits.literal(u32::from(b'x'));
    bits.match_of(5, 1);
    bits.match_of(5, 8);
    bits.literal(u32::from(b'y'));
    bits.align();
    assert_eq!(content(&out)[..6], *b"xxxxxx");
    // In zstd, a compressed block that is none, and a block of the reserved type, become raw blocks.
    let geometry = self::geometry(12, Compression::Zstd);
    let content = |bytes: &[u8]| GivenPayload::valid(&geometry, bytes).unwrap().content;
    assert_eq!(content(&[3 << 3 | 2 << 1, 0, 0, b'a', b'b', b'c']), b"abc");
    assert_eq!(content(&[2 << 3 | 3 << 1, 0, 0, b'a', b'b', b'c']), b"ab");
    assert_eq!(content(&[2 << 3 | 1 << 1 | 1, 0, 0, b'a', 0xff, 0xff, 0xff, b'x']), b"aax");
}

#[test]
fn hostile_payloads_are_the_bytes() {
    let geometry = geometry(9, Compression::Deflate);
    let unchanged = |bytes: &[u8]| GivenPayload::unchanged(&geometry, bytes).bytes;
    assert_eq!(unchanged(&[1, 2, 3]), [1, 2, 3]);
    assert_eq!(unchanged(&[]), [0]);
    assert_eq!(unchanged(&[5; 2000]), [5; 513]);
}
