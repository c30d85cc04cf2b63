//! The mapping as QEMU prints it, compared with the engine's extents: by qemu-io, the runs of bytes that the image at
//! the top allocates or leaves to the layers below; by a whole `qemu-img map`, each field of each extent.
//!
//! Named differences of a whole map: the flag `zero` of data, which depends on the holes of a file; images of
//! formats of which QEMU reports no blocks; and files so long that QEMU counts their clusters for minutes.
//!
//! # Arithmetic
//! The end of a part that passes 2^64 lies past the end of every disk.

use std::borrow::Cow;

use crate::disk::extent::Extent;
use crate::disk::observer::SecondAnswer;
use crate::harness::against::second_opinion::{JudgedDisk, JudgedImage, WalkEnd};
use crate::harness::engines::image_answers::{parse_map, without_holes};
use crate::harness::oracles::extents::model;
use crate::harness::oracles::{OracleResult, violation};
use crate::processes::ProcessEnd;

use super::answers::{self, ORACLE, QEMU, RecordAnswer, ended, is_long};
use super::session::{DeviceFiles, run_qemu_img};

/// A run of guest bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocationRun {
    /// The end of the run. It begins at the end of the run before.
    pub(super) end: u64,
    /// The image at the top allocates the bytes.
    pub(super) is_allocated: bool,
}

/// The end of a list of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunsEnd {
    /// qemu-io came to the end of the disk.
    Complete,
    /// qemu-io met an error behind the runs.
    Failed,
}

/// The line that qemu-io prints at the end of a disk that is shorter than the file with the engine's data.
const END: &str = "Unexpected end of image";
/// The line that qemu-io prints if an image does not answer.
const ERROR: &str = "Failed to get allocation status";

/// The beginnings of messages. A message goes out at once, and may so stand in the middle of another line.
const MESSAGES: [&str; 2] = ["qemu-io: ", CORRUPT];
/// The beginning of a message about a table of a qcow2 image. An error follows.
const CORRUPT: &str = "qcow2: Image is corrupt";

/// Parses the output of `map` into `runs`.
pub(super) fn parse_runs(printed: &str, runs: &mut Vec<AllocationRun>) -> Result<RunsEnd, String> {
    runs.clear();
    let (printed, ending) = without_messages(printed)?;
    let mut from = 0;
    for line in printed.lines() {
        let mut numbers = line.split("(0x").skip(1).map(|rest| {
            let digits = rest.split(')').next()?;
            u64::from_str_radix(digits, 16).ok()
        });
        let (Some(Some(length)), Some(Some(start))) = (numbers.next(), numbers.next()) else {
            return Err(line.to_string());
        };
        let end = start.checked_add(length).filter(|_| start == from);
        from = end.ok_or_else(|| line.to_string())?;
        add(runs, AllocationRun { end: from, is_allocated: !line.contains("not allocated") });
    }
    Ok(ending)
}

/// Removes the messages from the output of `map`. Also returns the end of the list of runs, as the messages report it.
fn without_messages(printed: &str) -> Result<(Cow<'_, str>, RunsEnd), String> {
    let (mut rest, mut ending) = (Cow::Borrowed(printed), RunsEnd::Complete);
    while let Some(start) = MESSAGES.iter().filter_map(|begin| rest.find(begin)).min() {
        let end = rest[start..].find('\n').map_or(rest.len(), |length| start + length + 1);
        let message = rest[start..end].trim_end();
        if message.contains(ERROR) {
            ending = RunsEnd::Failed;
        } else if !message.contains(END) && !message.starts_with(CORRUPT) {
            return Err(message.to_string());
        }
        rest.to_mut().replace_range(start..end, "");
    }
    Ok((rest, ending))
}

/// Parses the output of `alloc`: the number of allocated bytes, and the number of bytes that lie on the disk.
pub(super) fn parse_sum(printed: &str) -> Option<(u64, u64)> {
    let (numbers, _) = printed.split_once(" bytes allocated")?;
    let (allocated, all) =
        numbers.rsplit_once('\n').map_or(numbers, |(_, last)| last).split_once('/')?;
    Some((allocated.parse().ok()?, all.parse().ok()?))
}

/// Puts the runs of the engine's extents into `runs`. If `is_all_allocated`, QEMU reports no other bytes.
pub(super) fn of_extents(
    extents: &[Extent],
    is_all_allocated: bool,
    runs: &mut Vec<AllocationRun>,
) {
    runs.clear();
    for extent in extents {
        let Some(end) = extent.end() else { return };
        let is_allocated = is_all_allocated || is_allocated(extent);
        add(runs, AllocationRun { end: end.get(), is_allocated });
    }
}

/// Reports whether the image at the top allocates an extent.
pub(super) fn is_allocated(extent: &Extent) -> bool {
    extent.mapping.depth == 0 && extent.mapping.present
}

/// Adds a run behind all others.
fn add(runs: &mut Vec<AllocationRun>, run: AllocationRun) {
    match runs.last_mut() {
        Some(last) if last.is_allocated == run.is_allocated => last.end = run.end,
        _ => runs.push(run),
    }
}

/// Returns the first byte below `end` for which two lists of runs differ.
pub(super) fn first_difference(
    one: &[AllocationRun],
    other: &[AllocationRun],
    end: u64,
) -> Option<u64> {
    let (mut ones, mut others) = (one.iter(), other.iter());
    let (mut first, mut second) = (ones.next(), others.next());
    let mut at = 0;
    while at < end
        && let (Some(mine), Some(yours)) = (first, second)
    {
        if mine.is_allocated != yours.is_allocated {
            return Some(at);
        }
        at = mine.end.min(yours.end);
        if mine.end == at {
            first = ones.next();
        }
        if yours.end == at {
            second = others.next();
        }
    }
    None
}

/// The number of tables of the part of a disk that is mapped: qemu-img visits each table, also a missing one.
const MAX_VISITED_TABLES: u64 = 4096;

pub(super) fn compare_whole(
    files: &DeviceFiles,
    image: &JudgedImage,
    disk: &JudgedDisk,
    answered: &mut RecordAnswer<'_>,
) -> OracleResult {
    let layers = image.chain.layers();
    let is_hidden = layers.iter().any(|layer| layer.format.facts().is_all_data_for_qemu);
    if is_long(image) || is_hidden || disk.extents.is_empty() {
        return Ok(());
    }
    let span_bits = match layers {
        [_] => image.table_span_bits,
        // A table of a qcow2 image has as many bytes as a cluster, or more than a subcluster.
        _ => (2 * image.cell_bytes.ilog2()).saturating_sub(3).min(image.table_span_bits),
    };
    let most = MAX_VISITED_TABLES.checked_shl(span_bits).unwrap_or(u64::MAX);
    let most = most.min(i64::MAX.unsigned_abs() & !0xFFFF);
    let device = files.device(image.chain);
    let arguments = format!("map --output=json --max-length={most} 'json:{device}'");
    let ran = run_qemu_img(&arguments, files.folder());
    let (theirs, is_complete) = parse_map(&ran.output);
    let is_clean = ran.end.process == ProcessEnd::Exit(0);
    if !is_clean && ran.end.process != ProcessEnd::Exit(1) {
        return Err(ended(Box::new(ran)).attributed_to("qemu-img"));
    }
    if !is_clean && answers::is_named(&ran.end.detail, image) {
        return Ok(());
    }
    let mut ours = Vec::new();
    model::clip(disk.extents, &(0..most), &mut ours);
    let is_whole = is_clean && is_complete;
    match (is_whole, disk.walk) {
        (false, WalkEnd::Complete) if !image.is_any_content => {
            return violation(ORACLE, "map", ("an error", "an answer"), || ran.end.detail.clone());
        }
        (true, WalkEnd::Failed(error)) if disk.size_bytes <= most && !image.is_any_content => {
            return violation(ORACLE, "map", ("an answer", "an error"), || error.to_string());
        }
        _ => {}
    }
    let [theirs, ours] = [&theirs, &ours].map(|extents| without_holes(extents, image.chain));
    let is_compared_whole = is_whole && matches!(disk.walk, WalkEnd::Complete);
    answered(match is_compared_whole {
        true => SecondAnswer::SameMap,
        false => SecondAnswer::SameFailedMap,
    });
    // An error may have cut the last extent of each list.
    let shorter = theirs.len().min(ours.len());
    let count = if is_compared_whole { shorter } else { shorter.saturating_sub(1) };
    let different = theirs.iter().zip(&ours).take(count).find(|(theirs, ours)| theirs != ours);
    if let Some((theirs, ours)) = different {
        return Err(QEMU.other_extent(theirs, ours));
    }
    if is_compared_whole && theirs.len() != ours.len() {
        return violation(ORACLE, "map", ("QEMU's extents", "another number"), || {
            format!("QEMU has {} extents, the implementation {}", theirs.len(), ours.len())
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_map_is_parsed() {
        let printed = "qemu-io: Unexpected end of image\n\
                       64 KiB (0x10000) bytes not allocated at offset 0 bytes (0x0)\n\
                       128 KiB (0x20000) bytes     allocated at offset 64 KiB (0x10000)\n";
        let mut runs = Vec::new();
        assert_eq!(parse_runs(printed, &mut runs), Ok(RunsEnd::Complete));
        let expected = [(0x10000, false), (0x30000, true)];
        assert_eq!(runs, expected.map(|(end, is_allocated)| AllocationRun { end, is_allocated }));
        let failed =
            format!("{printed}qemu-io: Failed to get allocation status: Input/output error");
        assert_eq!(parse_runs(&failed, &mut runs), Ok(RunsEnd::Failed));
        assert_eq!(parse_runs("", &mut runs), Ok(RunsEnd::Complete));
        assert!(runs.is_empty());
        let gap = "4 KiB (0x1000) bytes not allocated at offset 64 KiB (0x10000)";
        assert_eq!(parse_runs(gap, &mut runs), Err(gap.to_string()));
        assert_eq!(parse_runs("read failed", &mut runs), Err("read failed".to_string()));
        assert_eq!(parse_sum("512/1024 bytes allocated at offset 64 KiB\n"), Some((512, 1024)));
        assert_eq!(parse_sum("Failed to get allocation status"), None);
    }

    #[test]
    fn an_error_follows_a_message_about_a_table() {
        let printed = "qcow2: Image is corrupt: Cluster allocation offset 0x50800 unaligned (L2 offset: 0x20000)\n\
                       qemu-io: Failed to get allocation status: Input/output error\n\
                       512 bytes (0x200) bytes     allocated at offset 0 bytes (0x0)\n";
        let mut runs = Vec::new();
        assert_eq!(parse_runs(printed, &mut runs), Ok(RunsEnd::Failed));
        assert_eq!(runs, [AllocationRun { end: 0x200, is_allocated: true }]);
    }

    #[test]
    fn a_message_may_stand_in_the_middle_of_a_line() {
        let printed = "512 bytes (0x200) bytes not allocated at offset 0 bytes (0x0)\n\
                       512 bytes (0x2qemu-io: Unexpected end of image\n\
                       00) bytes     allocated at offset 512 bytes (0x200)\n\
                       512 bytes (0x200) bytes not allocated at offset 1 KiB (0x400)\n";
        let mut runs = Vec::new();
        assert_eq!(parse_runs(printed, &mut runs), Ok(RunsEnd::Complete));
        assert_eq!(runs.last().map(|run| (run.end, runs.len())), Some((0x600, 3)));
    }

    #[test]
    fn the_first_differing_byte_is_found() {
        let run = |end, is_allocated| AllocationRun { end, is_allocated };
        let one = [run(512, true), run(2048, false)];
        assert_eq!(first_difference(&one, &one, 2048), None);
        let other = [run(1024, true), run(2048, false)];
        assert_eq!(first_difference(&one, &other, 2048), Some(512));
        assert_eq!(first_difference(&one, &other, 512), None);
        assert_eq!(first_difference(&one, &[run(512, true)], 2048), None);
    }
}
