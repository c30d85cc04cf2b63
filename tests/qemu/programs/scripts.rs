//! Findings in QEMU become scripts that show them with qemu-io and qemu-img alone.

use std::process::Command;

use test_support::command::{Folder, Ran};
use test_support::prelude::*;

use qcowfuzz::findings::report::examiner::Examiner;
use qcowfuzz::findings::report::script::{self, ScriptFile};
use qcowfuzz::harness::against::qemu_io::QemuEngine;

const IMAGE: &str = "image version=3 cluster_bits=16 refcount_order=4 features=none size=2<<16+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\n";

/// Programs, and what their scripts print at the end. qemu-io suspends requests in all but the last.
const SHOWN: [(&str, &str); 4] = [
    (
        "write at=start+0 clusters=1\n\
         zero at=start+0 clusters=1 keep=yes\n\
         in_flight requests=2 at_once=2 order=0\n\
         write at=start+0 clusters=1\n\
         discard at=start+0 clusters=1\n\
         write at=start+1 clusters=1\n",
        " refcount=1 reference=2",
    ),
    (
        "write at=start+0 clusters=1\n\
         in_flight requests=3 at_once=2 order=0\n\
         zero at=start+0 clusters=1 keep=no\n\
         write_at at=start+0 inside=0 length=1<<0\n\
         discard at=start+0 clusters=1\n",
        " refcount=0 reference=1",
    ),
    (
        "compress at=start+0 clusters=1 shape=zeros skew=packed\n\
         in_flight requests=2 at_once=2 order=11\n\
         discard at=start+0 clusters=1\n\
         write_at at=start+0 inside=0 length=1<<0\n",
        "No errors were found on the image.",
    ),
    // A snapshot, so that qemu-img changes the closed image between the requests.
    (
        "write_at at=start+0 inside=0 length=1<<0\n\
         snapshot\n\
         write at=start+0 clusters=1\n\
         in_flight requests=3 at_once=2 order=0\n\
         zero at=start+0 clusters=1 keep=no\n\
         write_at at=start+0 inside=0 length=1<<0\n\
         discard at=start+0 clusters=1\n",
        " refcount=0 reference=1",
    ),
];

/// Returns the fingerprint of the finding that QEMU shows in a program, and the files of its script.
fn files_of(program: &str) -> (String, Vec<ScriptFile>) {
    let input = assemble(program).unwrap().encode();
    let (qemu, names) = (Implementation::from(QemuEngine::default()), FileNames::default());
    let mut examiner = Examiner::new(&qemu, TargetKind::Writes, Checks::default(), names);
    let report = examiner.examine(Path::new("input"), &input);
    let fingerprint = report.fingerprint.clone();
    let fingerprint = fingerprint.unwrap_or_else(|| panic!("found nothing:\n{program}"));
    (fingerprint, script::files(&qemu, &report, &input).unwrap())
}

#[test]
fn scripts_show_findings_in_qemu() {
    let Some(()) = qemu::tools() else { return };
    for (program, shown) in SHOWN {
        let (fingerprint, files) = files_of(&format!("{IMAGE}{program}"));
        let folder = Folder::new();
        for ScriptFile { name, bytes } in &files {
            folder.write(name, bytes);
        }
        let script = fs::read_to_string(folder.join("show.sh"))
            .unwrap_or_else(|_| panic!("{program}{}", String::from_utf8_lossy(&files[0].bytes)));
        assert!(script.contains(&format!("# {fingerprint}\n")), "{script}");
        assert!(!script.contains("qcowfuzz-"), "a path of the harness: {script}");
        let ran = Ran::of(Command::new("sh").arg(folder.join("show.sh")).arg(folder.join("left")));
        assert!(ran.out.contains(shown), "{script}\n{}", ran.out);
        assert!(folder.join("left/layer.0.qcow2").is_file());
    }
}

/// No command of qemu-io leaves the file of a power cut.
#[test]
fn findings_of_power_cuts_have_no_script() {
    let Some(()) = qemu::tools() else { return };
    let rows = include_str!("../../../engines/findings/qemu.toml");
    let (_, row) = rows.split_once("name = \"power_cut_in_apply\"").unwrap();
    let (fingerprint, files) = files_of(row.split("'''\n").nth(1).unwrap());
    assert!(fingerprint.starts_with("power_cut: "), "{fingerprint}");
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].name, "left-out.txt");
}
