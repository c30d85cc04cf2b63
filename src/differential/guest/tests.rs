use crate::differential::recipe::Command;
use crate::processes::{ProcessEnd, Reply};

use std::ops::Range;

use super::data::GuestContent;
use super::{GuestModel, compare, compare_zeros};

fn reply(code: i32) -> Reply {
    Reply { end: ProcessEnd::Exit(code), stdout: Vec::new(), stderr: Vec::new() }
}

fn img(model: &mut GuestModel, line: &str) {
    let words = line.split(' ').map(str::to_string).collect();
    model.ran(&Command::QemuImg(words), &reply(0));
}

fn io(model: &mut GuestModel, request: &str, file: &str, code: i32) {
    let requests = vec![request.to_string()];
    let command = Command::QemuIo { options: Vec::new(), requests, file: file.to_string() };
    model.ran(&command, &reply(code));
}

/// Returns the pieces of a disk as text.
fn pieces(model: &GuestModel, file: &str) -> String {
    let Some(data) = model.disk(file) else { return "unknown".to_string() };
    let piece = |(Range { start, end }, content): (Range<u64>, &GuestContent)| match content {
        GuestContent::Byte(byte) => format!("{start}-{end}={byte}"),
        GuestContent::File { name, origin } => format!("{start}-{end}={name}@{origin}"),
        GuestContent::Unknown => format!("{start}-{end}=?"),
    };
    data.pieces.iter().map(piece).collect::<Vec<_>>().join(" ")
}

#[test]
fn later_writes_replace_parts_of_earlier_ones() {
    let mut model = GuestModel::default();
    img(&mut model, "create -q -f qcow2 -o compat=1.1 a.qcow2 4096");
    io(&mut model, "write -q -P 7 0 2048", "a.qcow2", 0);
    io(&mut model, "write -q -s noise 512 512", "a.qcow2", 0);
    io(&mut model, "write -q -z -u 1024 256", "a.qcow2", 0);
    assert_eq!(pieces(&model, "a.qcow2"), "0-512=7 512-1024=noise@512 1280-2048=7");
    io(&mut model, "discard -q 256 512", "a.qcow2", 0);
    assert_eq!(pieces(&model, "a.qcow2"), "0-256=7 256-768=? 768-1024=noise@512 1280-2048=7");
    io(&mut model, "write -q -P 9 0 4096", "a.qcow2", 1);
    assert_eq!(pieces(&model, "a.qcow2"), "0-4096=?");
}

#[test]
fn operations_keep_and_move_data() {
    let mut model = GuestModel::default();
    img(&mut model, "create -q -f qcow2 a.qcow2 4096");
    io(&mut model, "write -q -P 7 0 2048", "a.qcow2", 0);
    img(&mut model, "snapshot -q -c one a.qcow2");
    img(&mut model, "create -q -f qcow2 -b {folder}/a.qcow2 -F qcow2 b.qcow2 8192");
    io(&mut model, "write -q -P 8 4096 512", "b.qcow2", 0);
    img(&mut model, "convert -q -O raw b.qcow2 c.raw");
    assert_eq!(pieces(&model, "c.raw"), "0-2048=7 4096-4608=8");
    img(&mut model, "commit -q -f qcow2 b.qcow2");
    assert_eq!(pieces(&model, "a.qcow2"), "0-2048=7 4096-4608=8");
    assert_eq!(pieces(&model, "b.qcow2"), "0-2048=7 4096-4608=8");
    img(&mut model, "resize -q --shrink a.qcow2 1000");
    assert_eq!(pieces(&model, "a.qcow2"), "0-1000=7 1000-1024=?");
    assert_eq!(pieces(&model, "b.qcow2"), "unknown");
    img(&mut model, "snapshot -q -a one a.qcow2");
    assert_eq!(pieces(&model, "a.qcow2"), "0-2048=7");
    img(&mut model, "rebase -q -u -b  c.raw");
    assert_eq!(pieces(&model, "c.raw"), "unknown");
}

#[test]
fn a_lost_write_is_a_divergence() {
    let dir = tempfile::tempdir().unwrap();
    let read = dir.path().join("read.raw");
    std::fs::write(dir.path().join("noise"), [1, 2, 3]).unwrap();
    let mut model = GuestModel::default();
    img(&mut model, "create -q -f raw a.raw 4096");
    io(&mut model, "write -q -s noise 512 7", "a.raw", 0);
    io(&mut model, "discard -q 1024 512", "a.raw", 0);
    let mut bytes = vec![0; 4096];
    bytes[512..519].copy_from_slice(&[1, 2, 3, 1, 2, 3, 1]);
    bytes[1100] = 5;
    for (at, expected) in [
        (None, None),
        (Some(515), Some("data → other data")),
        (Some(600), Some("zero → data")),
        (Some(2000), Some("zero → data")),
    ] {
        let mut bytes = bytes.clone();
        if let Some(at) = at {
            bytes[at] ^= 0x80;
        }
        std::fs::write(&read, &bytes).unwrap();
        let found = compare(model.disk("a.raw").unwrap(), &read, dir.path()).unwrap().err();
        assert_eq!(found.map(|it| it.what).as_deref(), expected, "{at:?}");
    }
}

#[test]
fn data_that_a_map_calls_zeros_are_a_divergence() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("noise"), [0, 0, 3]).unwrap();
    let mut model = GuestModel::default();
    img(&mut model, "create -q -f raw a.raw 4096");
    io(&mut model, "write -q -s noise 512 512", "a.raw", 0);
    io(&mut model, "write -q -P 7 1024 512", "a.raw", 0);
    io(&mut model, "discard -q 1280 512", "a.raw", 0);
    for (zeros, expected) in [
        // The file begins with zeros.
        (0..514, None),
        (0..515, Some(514)),
        (1000..1024, Some(1000)),
        (1024..1025, Some(1024)),
        (1280..4096, None),
    ] {
        let data = model.disk("a.raw").unwrap();
        let zeros_only = std::iter::once(zeros.clone());
        let found = compare_zeros(data, zeros_only, dir.path()).unwrap().err();
        let expected = expected.map(|at| format!("guest offset {at}: "));
        let detail = found.map(|it| it.detail);
        let (start, wanted) = (detail.as_deref().unwrap_or(""), expected.as_deref().unwrap_or(""));
        assert!(
            start.starts_with(wanted) && start.is_empty() == wanted.is_empty(),
            "{zeros:?}: {start}"
        );
    }
}
