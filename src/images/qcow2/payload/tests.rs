use super::*;
use crate::formats::qcow2::geometry::Version;

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
                // In large clusters, the shapes fill the same part. Inflating them takes seconds.
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
