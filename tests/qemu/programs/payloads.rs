//! Payloads made by hand, judged by qemu: the installed qemu-img decodes each to the same content as our reader, or
//! both refuse it. The map of the disk does not depend on the payload.

use std::os::unix::fs::FileExt;
use test_support::prelude::*;

use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, compress_to_output, create_comp_flags_from_zip_params,
};
use qcowfuzz::formats::qcow2::geometry::Compression;
use qcowfuzz::internal::images::export;
use qcowfuzz::internal::programs::journal::JournalRecord;
use zstd_safe::{CCtx, CParameter};

/// The cluster size in bytes.
const CLUSTER: usize = 64 << 10;

/// A payload with a description, and whether it can be read, if that is known.
struct Case {
    name: String,
    compression: Compression,
    payload: Vec<u8>,
    readable: Option<bool>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.compression, self.name)
    }
}

/// Returns the content of a cluster that can be read.
fn content() -> Vec<u8> {
    (0..CLUSTER).map(|at| (at / 7 * at / 300) as u8).collect()
}

/// Returns `content` in deflate blocks that end at a byte boundary.
fn blocks(content: &[u8], flush: TDEFLFlush) -> Vec<u8> {
    let mut stream = CompressorOxide::new(create_comp_flags_from_zip_params(6, -15, 0));
    let mut out = Vec::new();
    compress_to_output(&mut stream, content, flush, |piece| {
        out.extend_from_slice(piece);
        true
    });
    out
}

fn deflate_cases() -> Vec<Case> {
    let content = content();
    let whole = |flush| blocks(&content, flush);
    let then = |behind: &[u8]| [whole(TDEFLFlush::Full).as_slice(), behind].concat();
    let cases: Vec<(&str, Vec<u8>, bool)> = vec![
        ("an exact stream", whole(TDEFLFlush::Finish), true),
        ("zeros where the last block should be", whole(TDEFLFlush::Full), false),
        (
            "a stream that goes on past the cluster",
            then(&blocks(&[b'!'; 99], TDEFLFlush::Finish)),
            true,
        ),
        ("garbage behind the end", [whole(TDEFLFlush::Finish), vec![0xA5; 500]].concat(), true),
        ("a block of no kind behind the cluster", then(&[0b111, 1, 2, 3]), false),
        ("a broken stored block behind the cluster", then(&[1, 1, 2, 3, 4]), false),
        (
            "a broken dynamic block behind the cluster",
            then(&[0b101, 0xFF, 0xFF, 0xFF, 0xFF]),
            false,
        ),
        ("a stream that is a byte short", blocks(&content[1..], TDEFLFlush::Finish), false),
        ("a zlib stream", [vec![0x78, 0x9C], whole(TDEFLFlush::Finish)].concat(), false),
        ("a block of no kind", [vec![0b111], whole(TDEFLFlush::Finish)].concat(), false),
        ("a stored block with a wrong complement", vec![1, 4, 0, 4, 0, 1, 2, 3, 4], false),
        // Fixed codes: a match of three bytes, four bytes back, before the start of the output.
        ("a match before the start", vec![0b0000_0011, 0b0110_0010, 0], false),
        ("nothing", vec![], false),
    ];
    let case = |(name, payload, readable): (&str, _, _)| Case {
        name: name.to_string(),
        compression: Compression::Deflate,
        payload,
        readable: Some(readable),
    };
    cases.into_iter().map(case).collect()
}

fn frame(content: &[u8], checksum: bool, size: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
    let mut context = CCtx::create();
    context.set_parameter(CParameter::ChecksumFlag(checksum)).unwrap();
    context.set_parameter(CParameter::ContentSizeFlag(size)).unwrap();
    context.compress2(&mut out, content).unwrap();
    out
}

/// Returns the content in a frame of raw blocks with this window, with or without the content size.
fn raw_frame(window_log: u8, sized: bool, content: &[u8]) -> Vec<u8> {
    let mut out = vec![0x28, 0xB5, 0x2F, 0xFD, if sized { 0b1000_0000 } else { 0 }];
    out.push((window_log - 10) << 3);
    if sized {
        out.extend((content.len() as u32).to_le_bytes());
    }
    let mut left = content.chunks(1 << window_log.min(15)).peekable();
    while let Some(block) = left.next() {
        let header = (block.len() as u32) << 3 | u32::from(left.peek().is_none());
        out.extend(&header.to_le_bytes()[..3]);
        out.extend(block);
    }
    out
}

fn zstd_cases() -> Vec<Case> {
    let content = content();
    let exact = frame(&content, false, true);
    let wrong = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] ^= 0xFF;
        bytes
    };
    let summed = frame(&content, true, true);
    let last = summed.len() - 1;
    let halves = |middle: &[u8]| {
        let (one, other) = content.split_at(1000);
        [frame(one, true, true).as_slice(), middle, &frame(other, false, false)].concat()
    };
    let skipped = [0x5F, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let longer = [content.as_slice(), b"!"].concat();
    let mut named = exact.clone();
    // A dictionary with an id of one byte.
    named[4] |= 1;
    let at = 5 + usize::from(named[4] & 0b10_0000 == 0);
    named.insert(at, 7);
    let cases: Vec<(&str, Vec<u8>, bool)> = vec![
        ("an exact frame", exact.clone(), true),
        ("no content size", frame(&content, false, false), true),
        ("a checksum", summed.clone(), true),
        ("two frames", halves(&[]), true),
        ("a frame that is skipped", halves(&skipped), true),
        ("an empty frame", halves(&frame(&[], true, true)), true),
        ("garbage behind the end", [exact.clone(), vec![0xA5; 500]].concat(), true),
        (
            "a broken frame behind the cluster",
            [exact.clone(), wrong(exact.clone(), 9)].concat(),
            true,
        ),
        ("a window of 1 KiB", raw_frame(10, false, &content), true),
        ("a window of 8 MiB", raw_frame(23, false, &content), true),
        ("a window of 128 MiB", raw_frame(27, false, &content), true),
        ("a window of 256 MiB", raw_frame(28, false, &content), false),
        ("a window of 256 MiB and the size", raw_frame(28, true, &content), true),
        ("a window of 2 GiB and the size", raw_frame(31, true, &content), true),
        ("a window of 4 GiB and the size", raw_frame(32, true, &content), false),
        ("a byte too long", frame(&longer, false, true), false),
        ("a byte too long, no content size", frame(&longer, false, false), false),
        ("a byte too long, raw", raw_frame(20, false, &longer), false),
        (
            "a second frame too long",
            { [frame(&longer[..500], false, true), frame(&longer[500..], false, true)].concat() },
            false,
        ),
        ("a byte short", frame(&content[1..], false, true), false),
        ("a wrong checksum", wrong(summed, last), false),
        ("a wrong magic number", wrong(exact.clone(), 0), false),
        ("a dictionary that no reader has", named, false),
        ("a frame that is cut", raw_frame(20, false, &content)[..CLUSTER / 2].to_vec(), false),
        ("deflate", blocks(&content, TDEFLFlush::Finish), false),
        ("nothing", vec![], false),
    ];
    let case = |(name, payload, readable): (&str, _, _)| Case {
        name: name.to_string(),
        compression: Compression::Zstd,
        payload,
        readable: Some(readable),
    };
    cases.into_iter().map(case).collect()
}

/// Returns payloads with some bits flipped, mostly near the start or the end.
fn damaged() -> Vec<Case> {
    let mut entropy = Entropy::new(4);
    let content = content();
    let exact = [blocks(&content, TDEFLFlush::Finish), frame(&content, true, true)];
    let case = |index: usize| {
        let compression = [Compression::Deflate, Compression::Zstd][index % 2];
        let mut payload = exact[index % 2].clone();
        for _ in 0..1 + entropy.below(2) {
            let reach = [12, 100, payload.len() as u64][entropy.below(3) as usize];
            let at = entropy.below(reach.min(payload.len() as u64)) as usize;
            // Bits near the end are as likely as bits near the start.
            let at = if entropy.one_in(2) { at } else { payload.len() - 1 - at };
            payload[at] ^= 1 << entropy.below(8);
        }
        Case { name: format!("damaged {index}"), compression, payload, readable: None }
    };
    (0..DAMAGED).map(case).collect()
}

/// The number of damaged payloads.
const DAMAGED: usize = 160;

#[test]
fn qemu_reads_the_same_payloads() {
    let Some(()) = qemu::tools() else { return };
    let mut cases = deflate_cases();
    cases.extend(zstd_cases());
    cases.extend(damaged());
    let dir = || tempfile::tempdir().unwrap();
    let judged: usize =
        qemu::judge_all(&cases, dir, |dir, case| judge(dir.path(), case).map(|()| 1));
    assert_eq!(judged, cases.len());
}

fn judge(dir: &std::path::Path, case: &Case) -> Checked<()> {
    let described = |error: std::io::Error| error.to_string();
    let features = if case.compression == Compression::Zstd { "zstd" } else { "none" };
    let program = assemble(&format!(
        "image version=3 cluster_bits=16 refcount_order=4 features={features} size=1<<16+0 \
         rng_seed=0 blocks=append table=append tolerance=0\n\
         compress_as at=start+0 shape=zeros coding=largest skew=fresh+300\n"
    ));
    let mut harness = Harness::new(Walker::default());
    let image = harness.build(&program.unwrap().encode());
    let path = dir.join("image.qcow2");
    let file = File::create(&path).map_err(described)?;
    export::write(image, &file, Holes::Fill).map_err(described)?;
    let JournalRecord::Compressed { host, length_bytes, .. } = harness.vm().journal().records[0]
    else {
        return Err("nothing was compressed".to_string());
    };
    let mut payload = vec![0; length_bytes as usize];
    payload[..case.payload.len()].copy_from_slice(&case.payload);
    file.write_all_at(&payload, host.get()).map_err(described)?;
    let file = FileStorage::open(&path).described()?;
    compare::maps(&path, &[Layer::alone(&file)], Window::ALL)?;
    let whole = Window { start: GuestOffset::ZERO, length_bytes: CLUSTER as u64 };
    let theirs = qemu::convert(&path, &dir.join("raw"));
    let ours = compare::read(&[Layer::alone(&file)], whole);
    let _ = fs::remove_file(dir.join("raw"));
    match (case.readable, &ours, &theirs) {
        (Some(true), Ok(ours), Ok(theirs)) => {
            compare::same_bytes("our read", 0, ours, theirs)?;
            compare::same_bytes("the content", 0, &content(), theirs)
        }
        (None, Ok(ours), Ok(theirs)) => compare::same_bytes("our read", 0, ours, theirs),
        (Some(false) | None, Err(_), Err(_)) => Ok(()),
        _ => Err(format!(
            "readable: {:?}, ours: {:?}, theirs: {:?}",
            case.readable,
            ours.as_ref().map(|_| ()),
            theirs.as_ref().map(|_| ())
        )),
    }
}
