//! Reads an image file with a crate, and compares the disk with its bytes. `scripts/campaign` asks about the images of
//! qemu-img, which no program built.
//!
//! ```text
//! read_image CRATE claims                    prints a line for each feature that the crate does not claim
//! read_image CRATE RAW IMAGE [BACKING...]    compares: RAW has the bytes, BACKING the files below, the nearest first
//! ```
//!
//! The last line on standard error is the fingerprint of a difference or of a panic. Exit codes: 0 the bytes are those
//! of RAW, 1 they are not, 2 wrong arguments, 3 the crate refused the image.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, panic};

use qcowfuzz::base::features::{Feature, FeatureSet};
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::harness::engine::ErrorKind;
use qcowfuzz::harness::engine::claims::Claim;
use qcowfuzz::internal::findings::panics::PanicNote;
use qcowfuzz::internal::images::files::Images;
use qcowfuzz::prelude::*;
use qcowfuzz_engines::{
    fstool, imago, qcow2_core, qcow2_rs, rust_img_qcow2, vhd_core, vhdx_core, vmdk_core,
};

/// The number of bytes of a read.
const READ_BYTES: usize = 64 << 10;

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| eprintln!("{}", PanicNote::of(info).fingerprint())));
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.split_first() {
        Some((&"fstool", words)) => run(fstool::Fstool::default(), words),
        Some((&"imago", words)) => run(imago::Imago, words),
        Some((&"qcow2_core", words)) => run(qcow2_core::Qcow2Core, words),
        Some((&"qcow2_rs", words)) => run(qcow2_rs::Qcow2Rs, words),
        Some((&"rust_img_qcow2", words)) => run(rust_img_qcow2::RustImgQcow2::default(), words),
        Some((&"vhd_core", words)) => run(vhd_core::VhdCore, words),
        Some((&"vhdx_core", words)) => run(vhdx_core::VhdxCore, words),
        Some((&"vmdk_core", words)) => run(vmdk_core::VmdkCore, words),
        _ => fail("expected a crate of engines/"),
    }
}

fn run(mut engine: impl Engine, words: &[&str]) -> ExitCode {
    match words {
        ["claims"] => print_claims(&engine.facts().claims),
        [raw, files @ ..] if !files.is_empty() => {
            match chain(files).and_then(|chain| Ok((chain, read(raw)?))) {
                Ok((chain, expected)) => return compare(&mut engine, &chain, &expected),
                Err(what) => return fail(&what),
            }
        }
        _ => return fail("expected 'claims', or RAW IMAGE [BACKING...]"),
    }
    ExitCode::SUCCESS
}

fn fail(what: &str) -> ExitCode {
    eprintln!("read_image: {what}");
    ExitCode::from(2)
}

/// Prints what an engine says about each feature that it does not claim.
fn print_claims(claims: &Claims) {
    for feature in Feature::ALL {
        match claims.about(FeatureSet::of(&[feature])) {
            Claim::Yes => {}
            Claim::RefuseOrBeRight => println!("refuse {}", feature.name()),
            Claim::No => println!("no {}", feature.name()),
        }
    }
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{path}: {error}, expected an image file"))
}

/// Returns the chain of the files, the image to open first. A name that ends in `.raw` is that of a raw file.
fn chain(files: &[&str]) -> Result<Chain, String> {
    let mut images = Images::default();
    images.resize(files.len());
    for (height, path) in files.iter().rev().enumerate() {
        let bytes = read(path)?;
        let layer = images.layer_mut(height);
        let name = Path::new(path).file_name().unwrap_or_default();
        layer.name = name.to_string_lossy().into_owned();
        if path.ends_with(".raw") {
            layer.format = ImageFormat::Raw;
        }
        layer.image.write(HostOffset::ZERO, &bytes);
        layer.image.seal(bytes.len() as u64);
    }
    Ok(Chain::new(&images))
}

/// Returns an error as a fingerprint has it.
fn blame(error: &EngineError) -> String {
    match error.kind() {
        ErrorKind::Unsupported => format!("a feature is unsupported ({error})"),
        _ => format!("an error ({error})"),
    }
}

/// Compares a disk with its bytes.
fn compare(engine: &mut impl Engine, chain: &Chain, expected: &[u8]) -> ExitCode {
    let mut disk = match engine.open(chain) {
        Ok(disk) => disk,
        Err(error) => {
            eprintln!("open: image, an answer → {}", blame(&error));
            return ExitCode::from(3);
        }
    };
    // qemu-img writes whole sectors.
    if disk.virtual_size_bytes().next_multiple_of(512) != expected.len() as u64 {
        eprintln!("size: image of qemu-img, its size → another");
        return ExitCode::FAILURE;
    }
    let expected = &expected[..disk.virtual_size_bytes() as usize];
    let mut buffer = [0xA5; READ_BYTES];
    for (piece, start) in expected.chunks(READ_BYTES).zip((0..).step_by(READ_BYTES)) {
        let into = &mut buffer[..piece.len()];
        let wrong = match disk.read(GuestOffset::new(start), into) {
            Err(error) => format!("an answer → {}", blame(&error)),
            Ok(()) if into == piece => continue,
            Ok(()) if into.iter().all(|byte| *byte == 0) => "what was written → zeros".to_string(),
            Ok(()) => "what was written → other bytes".to_string(),
        };
        eprintln!("data: image, {wrong}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
