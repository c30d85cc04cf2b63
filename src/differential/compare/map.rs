//! Compares two maps in JSON: first the numbers of extents, then each field.

use crate::disk::extent::Extent;
use crate::findings::report::records::MapRecord;
use crate::harness::engines::image_answers::QemuMapRecord;

use super::replies::Replies;
use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::processes::Reply;

/// The extents that a side printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapList {
    /// The extents. If the side failed, the ones before its error.
    pub records: Vec<MapRecord>,
    /// Each record states whether data are compressed.
    pub has_compressed: bool,
}

/// Parses the output of `map --output=json`. After a failure, the list has no closing bracket.
///
/// # Errors
/// The output is no such list. The text describes the fault.
pub fn parse(answer: &Reply) -> Result<MapList, String> {
    let text = std::str::from_utf8(&answer.stdout).map_err(|error| error.to_string())?;
    let text = text.trim_end();
    let printed: Vec<QemuMapRecord> = match answer.is_success() {
        true => serde_json::from_str(text).map_err(|error| error.to_string())?,
        false => beginning(text)?,
    };
    let has_compressed = printed.iter().all(QemuMapRecord::has_compressed);
    let records = printed.into_iter().map(|record| MapRecord::from(&Extent::from(record)));
    Ok(MapList { records: records.collect(), has_compressed })
}

/// Parses a list that may have no end.
fn beginning(text: &str) -> Result<Vec<QemuMapRecord>, String> {
    let text = text.trim_end().trim_end_matches(',');
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let closed = if text.ends_with(']') { text.to_string() } else { format!("{text}]") };
    serde_json::from_str(&closed).map_err(|error| error.to_string())
}

/// The message of QEMU about a contradictory bitmap of subclusters. QEMU looks at the entries of a whole run before it
/// reports the run (`qcow2_get_host_offset`), so the entries before the contradiction fail with it. Other faults of
/// entries end a run, and the next run fails.
const WHOLE_RUN_FAILED: &str = "Invalid cluster entry found";

/// Compares two maps. If both sides failed, one list may lack the last extent of the other: the one that was growing
/// when the side met the error. qemu-img prints an extent when the next one begins, and all that it has printed reaches
/// the pipe at its end. QEMU's list may also lack the run that failed as a whole.
pub(super) fn compare(answers: Replies<'_>) -> Result<(), Divergence> {
    let parsed = |side: &str, answer: &Reply| {
        parse(answer)
            .map_err(|error| Divergence::new(DivergenceKind::JsonParseFailure, side, error))
    };
    let qemu = parsed("qemu", answers.qemu)?;
    if answers.qemu == answers.tested {
        return Ok(());
    }
    let tested = parsed("tested", answers.tested)?;
    let (mut ours, mut theirs) = (tested.records, qemu.records);
    let is_one_missing = ours.len().abs_diff(theirs.len()) == 1;
    let has_lost_run = has_lost_run(answers.qemu)
        && ours.get(theirs.len().saturating_add(1)..).is_some_and(is_one_run);
    if !answers.qemu.is_success() && (is_one_missing || has_lost_run) {
        let common = ours.len().min(theirs.len());
        ours.truncate(common);
        theirs.truncate(common);
    }
    if ours.len() != theirs.len() {
        return Err(counts(&theirs, &ours));
    }
    if answers.has_known_messages && qemu.has_compressed && !tested.has_compressed {
        let detail = "the program under test prints no 'compressed'";
        return Err(Divergence::new(
            DivergenceKind::FieldDivergence,
            "compressed: missing",
            detail,
        ));
    }
    // Other programs may not know this key, and neither do versions of QEMU before 8.2.
    let has_compressed = qemu.has_compressed && tested.has_compressed;
    for (index, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
        if let Some((field, one, other)) = field(theirs, ours, has_compressed) {
            let status = status(theirs);
            // Numbers are different in every image.
            let values = match field {
                "start" | "length" | "offset" => String::new(),
                _ => format!(", {one} → {other}"),
            };
            let detail = format!(
                "extent {index}, {field}: qemu {one}, tested {other}\nqemu   {theirs:?}\ntested {ours:?}"
            );
            let what = format!("{field} of {status}{values}");
            return Err(Divergence::new(DivergenceKind::FieldDivergence, what, detail));
        }
    }
    Ok(())
}

/// Compares the maps of two disks whose bytes may lie in other places of the files.
pub(super) fn compare_elsewhere(theirs: &Reply, ours: &Reply) -> Result<(), Divergence> {
    let somewhere = |answer: &Reply| {
        let list = parse(answer)
            .map_err(|error| Divergence::new(DivergenceKind::JsonParseFailure, "qemu", error))?;
        let without = |record: MapRecord| MapRecord { offset: None, ..record };
        let records: Vec<_> = list.records.into_iter().map(without).collect();
        Ok(merged(&records))
    };
    let (theirs, ours) = (somewhere(theirs)?, somewhere(ours)?);
    match theirs == ours {
        true => Ok(()),
        false => Err(counts(&theirs, &ours)),
    }
}

/// Reports whether QEMU's failure has taken the entries before the faulty one with it.
fn has_lost_run(qemu: &Reply) -> bool {
    qemu.message().contains(WHOLE_RUN_FAILED)
}

/// Reports whether extents may be one run of an image: a single one, or parts of lower images that show through a hole.
fn is_one_run(extents: &[MapRecord]) -> bool {
    extents.len() <= 1 || extents.iter().all(|extent| extent.depth > 0 || !extent.present)
}

/// Describes another number of extents. The same bytes that are split differently are distinguished from bytes with
/// another mapping.
fn counts(theirs: &[MapRecord], ours: &[MapRecord]) -> Divergence {
    let (one, other) = (merged(theirs), merged(ours));
    let first = theirs.iter().zip(ours).take_while(|(one, other)| one == other).count();
    let detail = format!(
        "qemu has {} extents, tested {}; the first difference is extent {first}\nqemu   {:?}\ntested {:?}",
        theirs.len(),
        ours.len(),
        theirs.get(first),
        ours.get(first)
    );
    let what = match one == other {
        true => "the same bytes, split differently".to_string(),
        false => {
            let at = theirs.get(first).map_or("end", status);
            let other = ours.get(first).map_or("end", status);
            format!("other bytes, {at} → {other}")
        }
    };
    Divergence::new(DivergenceKind::ExtentCountDivergence, what, detail)
}

/// Merges records that follow each other with the same mapping.
fn merged(records: &[MapRecord]) -> Vec<MapRecord> {
    let mut merged: Vec<MapRecord> = Vec::with_capacity(records.len());
    for record in records {
        if let Some(last) = merged.last_mut() {
            let continued = last.offset.map(|offset| offset.saturating_add(last.length));
            let is_next = last.start.saturating_add(last.length) == record.start
                && (last.depth, last.present, last.zero)
                    == (record.depth, record.present, record.zero)
                && (last.data, last.compressed) == (record.data, record.compressed)
                && continued == record.offset;
            if is_next {
                last.length = last.length.saturating_add(record.length);
                continue;
            }
        }
        merged.push(*record);
    }
    merged
}

/// Returns the first field that differs, and its values.
fn field(
    qemu: &MapRecord,
    tested: &MapRecord,
    has_compressed: bool,
) -> Option<(&'static str, String, String)> {
    let number = |value: u64| value.to_string();
    let flag = |value: bool| value.to_string();
    let offset = |value: Option<u64>| value.map_or("none".to_string(), number);
    let fields = [
        ("start", number(qemu.start), number(tested.start)),
        ("length", number(qemu.length), number(tested.length)),
        ("present", flag(qemu.present), flag(tested.present)),
        ("zero", flag(qemu.zero), flag(tested.zero)),
        ("data", flag(qemu.data), flag(tested.data)),
        ("depth", number(qemu.depth.into()), number(tested.depth.into())),
        ("compressed", flag(qemu.compressed), flag(tested.compressed)),
        ("offset", offset(qemu.offset), offset(tested.offset)),
    ];
    fields
        .into_iter()
        .filter(|(name, ..)| has_compressed || *name != "compressed")
        .find(|(_, one, other)| one != other)
}

/// Returns what a record maps, in a word.
fn status(record: &MapRecord) -> &'static str {
    match (record.present, record.data, record.zero, record.compressed) {
        (_, true, true, _) => "data in a hole",
        (_, true, false, true) => "compressed data",
        (_, true, false, false) => "data",
        (true, false, ..) if record.offset.is_some() => "allocated zeros",
        (true, false, ..) => "zeros",
        (false, false, ..) => "hole",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::ProcessEnd;

    fn found(code: i32, qemu: u64, tested: u64) -> Option<String> {
        found_after(code, "", qemu, tested)
    }

    /// Compares two maps with these numbers of extents, after which both sides print `message` and exit with `code`.
    fn found_after(code: i32, message: &str, qemu: u64, tested: u64) -> Option<String> {
        let reply = |extents: u64| {
            let record = |at: u64| {
                format!(
                    "{{\"start\": {}, \"length\": 512, \"depth\": {}, \"present\": true, \"zero\": true, \
                     \"data\": false, \"compressed\": false}}",
                    at * 512,
                    at % 2
                )
            };
            let records: Vec<String> = (0..extents).map(record).collect();
            let end = if code == 0 { "]" } else { "" };
            Reply {
                end: ProcessEnd::Exit(code),
                stdout: format!("[{}{end}", records.join(",\n")).into(),
                stderr: message.into(),
            }
        };
        let (qemu, tested) = (reply(qemu), reply(tested));
        let answers =
            Replies { qemu: &qemu, tested: &tested, version: (10, 0), has_known_messages: true };
        compare(answers).err().map(|divergence| divergence.what)
    }

    #[test]
    fn after_a_failure_only_the_last_extent_may_be_missing() {
        for (qemu, tested) in [(0, 0), (0, 1), (1, 0), (2, 3), (3, 2), (3, 3)] {
            assert_eq!(found(1, qemu, tested), None, "{qemu}, {tested}");
        }
        for (qemu, tested) in [(0, 2), (2, 0), (1, 3), (4, 2)] {
            let what = found(1, qemu, tested).unwrap_or_default();
            assert!(what.starts_with("other bytes"), "{qemu}, {tested}: {what}");
        }
        assert!(found(0, 2, 3).is_some() && found(0, 3, 3).is_none());
    }

    #[test]
    fn a_run_of_subclusters_fails_as_a_whole() {
        let message = format!("qcow2: Image is corrupt: {WHOLE_RUN_FAILED}  (L2 offset: 0x28000)");
        // Behind the growing extent, the run is one extent.
        assert_eq!(found_after(1, &message, 1, 3), None);
        assert!(found_after(1, &message, 3, 1).is_some());
        assert!(found_after(1, &message, 0, 4).is_some());
    }
}
