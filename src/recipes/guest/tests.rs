use crate::processes::{ProcessEnd, Reply};
use crate::recipes::recipe::Command;

use std::ops::Range;

use super::GuestModel;
use super::data::GuestContent;

fn reply(code: i32) -> Reply {
    Reply { end: ProcessEnd::Exit(code), stdout: Vec::new(), stderr: Vec::new() }
}

pub(crate) fn img(model: &mut GuestModel, line: &str) {
    let words = line.split(' ').map(str::to_string).collect();
    model.ran(&Command::QemuImg(words), &reply(0));
}

pub(crate) fn io(model: &mut GuestModel, request: &str, file: &str, code: i32) {
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
