//! The self-test distinguishes the mistakes of an adapter from the bugs of a crate: no adapter here has a known
//! mistake, and the wrong answers are bugs of the crates.

use qcowfuzz::harness::engine::Engine;
use qcowfuzz::harness::selftest::{SelfTestAnswer, self_test};
use qcowfuzz_engines::fstool::Fstool;
use qcowfuzz_engines::imago::Imago;
use qcowfuzz_engines::qcow2_core::Qcow2Core;
use qcowfuzz_engines::qcow2_rs::Qcow2Rs;
use qcowfuzz_engines::rust_img_qcow2::RustImgQcow2;
use qcowfuzz_engines::rust_img_vhd::RustImgVhd;
use qcowfuzz_engines::rust_img_vhdx::RustImgVhdx;
use qcowfuzz_engines::rust_img_vmdk::RustImgVmdk;
use qcowfuzz_engines::vhd_core::VhdCore;
use qcowfuzz_engines::vhdx_core::VhdxCore;
use qcowfuzz_engines::vmdk_core::VmdkCore;

/// Runs the self-test. Its wrong answers must be `wrong`, and the images that it skips `skipped`.
fn judge<E: Engine + Default + 'static>(wrong: &[&str], skipped: &[&str]) {
    let test = self_test(&|| Box::new(E::default()));
    assert!(test.has_answers());
    let (mut found_wrong, mut found_skipped) = (Vec::new(), Vec::new());
    for row in &test.rows {
        match &row.answer {
            SelfTestAnswer::Wrong { violation, .. } => {
                found_wrong.push(format!("{}, {}: {violation}", row.image, row.question));
            }
            SelfTestAnswer::Skipped(_) => found_skipped.push(row.image),
            _ => {}
        }
    }
    let is_expected = |(found, expected): (&String, &&str)| found.starts_with(*expected);
    let all = found_wrong.iter().zip(wrong).all(is_expected) && found_wrong.len() == wrong.len();
    assert!(all, "{wrong:#?}, found {found_wrong:#?}");
    assert_eq!(found_skipped, skipped);
}

#[test]
fn fstool_answers() {
    // The crate reads whole clusters of the file.
    judge::<Fstool>(&["file ends in a cluster, data: "], &["data file", "extended L2 entries"]);
}

#[test]
fn imago_answers() {
    judge::<Imago>(&[], &["zstd", "extended L2 entries"]);
}

#[test]
fn qcow2_core_answers() {
    let skipped = [
        "zstd",
        "qcow2 backing file",
        "shorter backing file",
        "raw backing file",
        "data file",
        "clusters of 2 MiB",
        "extended L2 entries",
    ];
    // The crate reads whole clusters of the file, and takes a name of 0 bytes for a backing file.
    let wrong = ["file ends in a cluster, data: ", "empty backing name, size: "];
    judge::<Qcow2Core>(&wrong, &skipped);
}

#[test]
fn qcow2_rs_answers() {
    // The crate does not fill the bytes past the end of a smaller backing file, panics at a disk of 0 bytes, and takes
    // a name of 0 bytes for a backing file.
    let wrong = [
        "shorter backing file, data: ",
        "disk of 0 bytes, size: ",
        "disk of 0 bytes, data: ",
        "disk of 0 bytes, end: ",
        "disk of 0 bytes, status: ",
        "disk of 0 bytes, map: ",
        "empty backing name, size: ",
    ];
    let skipped =
        ["zstd", "raw backing file", "data file", "clusters of 512 bytes", "extended L2 entries"];
    judge::<Qcow2Rs>(&wrong, &skipped);
}

#[test]
fn rust_img_qcow2_answers() {
    // The crate takes a cluster that ends past the end of the file for a damaged entry.
    let wrong = ["file ends in a cluster, data: ", "file ends in a cluster, status: "];
    judge::<RustImgQcow2>(&wrong, &["raw backing file", "data file", "extended L2 entries"]);
}

#[test]
fn rust_img_vhd_answers() {
    judge::<RustImgVhd>(&[], &[]);
}

#[test]
fn rust_img_vhdx_answers() {
    judge::<RustImgVhdx>(&[], &[]);
}

#[test]
fn rust_img_vmdk_answers() {
    let skipped = [
        "VMDK disk of ESX",
        "sparse VMDK extents",
        "flat VMDK extents",
        "VMDK extents of ESX",
        "seSparse VMDK extents",
        "VMDK disk with a parent",
    ];
    judge::<RustImgVmdk>(&[], &skipped);
}

#[test]
fn vhd_core_answers() {
    judge::<VhdCore>(&[], &[]);
}

#[test]
fn vhdx_core_answers() {
    judge::<VhdxCore>(&[], &[]);
}

#[test]
fn vmdk_core_answers() {
    // The crate reads the directory of a COWD extent from sector 4, and the header names another sector.
    let skipped = [
        "sparse VMDK extents",
        "flat VMDK extents",
        "VMDK extents of ESX",
        "seSparse VMDK extents",
        "VMDK disk with a parent",
    ];
    judge::<VmdkCore>(&["VMDK disk of ESX, data: "], &skipped);
}
