//! Headers that are accepted or refused, field by field: the test sets every field of sound images to values around its
//! bounds, and compares our decision with that of the installed qemu-img. It also tests headers with the names of
//! backing and data files.

#[path = "qemu_headers/fields.rs"]
mod fields;
#[allow(dead_code)]
#[path = "qemu/info.rs"]
mod info;
#[allow(dead_code)]
mod lines;
#[path = "qemu_headers/names.rs"]
mod names;
// This test uses only a part of the module.
#[allow(dead_code)]
mod qemu;

use std::fs;
use std::path::Path;

use fields::{Case, combinations, fields};
use info::{Compared, ENCRYPTED};
use qcowfuzz::disk::extent::Window;
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::GuestOffset;
use qcowfuzz::disk::storage::{FileStorage, Layer};
use qemu::{Checked, compare};

fn image_line(version: u32, bits: u32, features: &str) -> String {
    format!(
        "image version={version} cluster_bits={bits} refcount_order=4 features={features} \
         size=1<<20+0 rng_seed=3 blocks=append table=append tolerance=0"
    )
}

/// Asserts that both accept the image or both refuse it. There are no known differences.
fn judge(dir: &Path, case: &Case) -> Checked<u64> {
    let path = dir.join("image.qcow2");
    fs::write(&path, &case.bytes).map_err(|error| error.to_string())?;
    // Any share of the cases will do; this one depends on the case alone.
    if case.name.len().is_multiple_of(5) {
        info::compare_json(&path, ImageFormat::Qcow2)?;
    }
    let window = Window { start: GuestOffset::ZERO, length_bytes: 1 << 20 };
    let theirs = qemu::map(&path, window);
    let storage = FileStorage::open(&path).map_err(|error| error.to_string())?;
    let ours = compare::walk(&[Layer::alone(&storage)], window);
    match (&ours, &theirs) {
        (Ok(_), Ok(_)) => Ok(1),
        (Err(_), Err(_)) => Ok(0),
        _ => Err(format!("ours {:?}, theirs {:?}", ours.err(), theirs.err())),
    }
}

#[test]
fn we_refuse_a_field_exactly_if_qemu_refuses_it() {
    if !qemu::tools_are_there("we_refuse_a_field_exactly_if_qemu_refuses_it") {
        return;
    }
    let mut cases = fields();
    cases.extend(combinations());
    let accepted = qemu::judge_all(
        &cases,
        || tempfile::tempdir().unwrap(),
        |dir, case| judge(dir.path(), case),
    );
    let refused = cases.len() as u64 - accepted;
    assert!(accepted > 300 && refused > 300, "{accepted} are accepted, {refused} are refused");
}

#[test]
fn qemu_accepts_every_header_length() {
    if !qemu::tools_are_there("qemu_accepts_every_header_length") {
        return;
    }
    let lengths = (0..=408u32).map(|steps| {
        let header = format!("header length=104+{steps} order=0 unknown=0 bytes=0 flags=junk");
        let write = "write at=start+1 clusters=3";
        let bytes = lines::file(&format!("{}\n{write}\n{header}", image_line(3, 9, "none")));
        Case { name: header, bytes }
    });
    let cases: Vec<Case> = lengths.collect();
    let dir = || tempfile::tempdir().unwrap();
    assert_eq!(qemu::judge_all(&cases, dir, |dir, case| judge(dir.path(), case)), 409);
}

#[test]
fn info_differs_only_for_encrypted_images() {
    if !qemu::tools_are_there("info_differs_only_for_encrypted_images") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    let sound = lines::file(&image_line(3, 12, "none"));
    let compared = [0, 1, 3].map(|crypt_method| {
        let mut bytes = sound.clone();
        bytes[35] = crypt_method;
        fs::write(&path, bytes).unwrap();
        info::compare_json(&path, ImageFormat::Qcow2).unwrap()
    });
    assert_eq!(compared, [Compared::Same, Compared::Named(ENCRYPTED), Compared::Refused]);
}
