//! Compares texts for people, byte for byte.

use super::map::has_lost_run;
use super::replies::Replies;
use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::processes::Reply;

/// Compares two texts.
pub(super) fn compare(answers: Replies<'_>) -> Result<(), Divergence> {
    match answers.qemu.stdout == answers.tested.stdout {
        true => Ok(()),
        false => Err(difference(&answers.qemu.stdout, &answers.tested.stdout)),
    }
}

/// Compares two maps. If both sides failed, one may lack the last line of the other, as in JSON.
pub(super) fn compare_map(answers: Replies<'_>) -> Result<(), Divergence> {
    if answers.qemu.is_success() {
        return compare(answers);
    }
    let lines = |reply: &Reply| reply.stdout.split_inclusive(|byte| *byte == b'\n').count();
    let (one, other) = (lines(answers.qemu), lines(answers.tested));
    // JSON shows which extents these may be.
    let has_lost_run = one < other && has_lost_run(answers.qemu);
    if one.abs_diff(other) > 1 && !has_lost_run {
        return compare(answers);
    }
    let common = one.min(other);
    let [qemu, tested] = [answers.qemu, answers.tested].map(|reply| first_lines(reply, common));
    match qemu == tested {
        true => Ok(()),
        false => Err(difference(&qemu, &tested)),
    }
}

fn first_lines(reply: &Reply, count: usize) -> Vec<u8> {
    reply.stdout.split_inclusive(|byte| *byte == b'\n').take(count).flatten().copied().collect()
}

fn difference(qemu: &[u8], tested: &[u8]) -> Divergence {
    let [one, other] = [qemu, tested].map(String::from_utf8_lossy);
    let (mut one, mut other) = (one.lines(), other.lines());
    let (mut number, mut pair) = (1, (one.next(), other.next()));
    while pair.0 == pair.1 && pair.0.is_some() {
        number += 1;
        pair = (one.next(), other.next());
    }
    let what = match pair {
        (Some(one), Some(other)) if is_row(one) && is_row(other) => column(one, other).to_string(),
        (Some(one), Some(other)) if is_sentence(one) && is_sentence(other) => name_of(one, other),
        _ => format!("{} → {}", label(pair.0), label(pair.1)),
    };
    let [one, other] = [pair.0, pair.1].map(|line| line.unwrap_or("(the end)"));
    let detail = format!("line {number}\nqemu:   {one}\ntested: {other}");
    Divergence::new(DivergenceKind::TextDivergence, what, detail)
}

/// The columns of a map for people.
const COLUMNS: [&str; 3] = ["start", "length", "offset"];

/// Reports whether a line is a row of a map: it begins with numbers, and those but 0 are hexadecimal.
fn is_row(line: &str) -> bool {
    line.starts_with(|letter: char| letter.is_ascii_digit()) && line.contains(" 0x")
}

/// Returns the first column that differs between two rows of a map.
fn column(qemu: &str, tested: &str) -> &'static str {
    let (mut one, mut other) = (qemu, tested);
    for column in COLUMNS {
        let [(value, rest), (other_value, other_rest)] =
            [one, other].map(|row| row.split_once(' ').unwrap_or((row, "")));
        if value != other_value {
            return column;
        }
        (one, other) = (rest.trim_start(), other_rest.trim_start());
    }
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_string();
    if name(one) == name(other) { "folder of the file" } else { "file" }
}

/// Reports whether a line has words and no label, such as a line of `check` with its sums.
fn is_sentence(line: &str) -> bool {
    !line.is_empty() && !line.contains(':')
}

/// Returns the name of the first value that differs between two lines: the word behind it.
fn name_of(qemu: &str, tested: &str) -> String {
    let words = qemu.split_whitespace().zip(tested.split_whitespace());
    let same = words.take_while(|(one, other)| one == other).count();
    let mut behind = qemu.split_whitespace().skip(same);
    let name = behind.find(|word| word.starts_with(|letter: char| letter.is_ascii_alphabetic()));
    name.unwrap_or("row").trim_end_matches(',').to_string()
}

/// Returns the label of a line: the text before its value.
fn label(line: Option<&str>) -> &str {
    match line {
        None => "end",
        Some("") => "empty line",
        Some(line) => line.split_once(':').map_or("row", |(label, _)| label.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::ProcessEnd;

    fn found(code: i32, qemu: &str, tested: &str) -> Option<String> {
        let reply = |text: &str| Reply {
            end: ProcessEnd::Exit(code),
            stdout: text.into(),
            stderr: Vec::new(),
        };
        let (qemu, tested) = (reply(qemu), reply(tested));
        let answers =
            Replies { qemu: &qemu, tested: &tested, version: (10, 0), has_known_messages: true };
        compare_map(answers).err().map(|divergence| divergence.what)
    }

    #[test]
    fn differences_name_their_column() {
        let row = "0x10 0x20 0x30 a.qcow2\n";
        assert_eq!(found(0, row, row), None);
        for (other, what) in [
            ("0x11 0x20 0x30 a.qcow2\n", "start"),
            ("0x10 0x21 0x30 a.qcow2\n", "length"),
            ("0x10 0x20 0x31 a.qcow2\n", "offset"),
            ("0x10 0x20 0x30 b.qcow2\n", "file"),
            ("0x10 0x20 0x30 /dir/a.qcow2\n", "folder of the file"),
            ("", "row → end"),
            ("\n", "row → empty line"),
        ] {
            assert_eq!(found(0, row, other).as_deref(), Some(what));
        }
    }

    #[test]
    fn sums_of_a_check_have_names() {
        let line = "2/1 = 200.00% allocated, 50.00% fragmented, 50.00% compressed clusters\n";
        for (other, what) in [
            (line.replace("2/1", "3/1"), "allocated"),
            (line.replace("50.00% frag", "51.00% frag"), "fragmented"),
            (line.replace("50.00% comp", "51.00% comp"), "compressed"),
        ] {
            assert_eq!(found(0, line, &other).as_deref(), Some(what));
        }
        assert_eq!(
            found(0, "2 errors were found\n", "3 errors were found\n").as_deref(),
            Some("errors")
        );
    }

    #[test]
    fn after_a_failure_the_first_lines_agree() {
        let row = "0x10 0x20 0x30 a.qcow2\n";
        let more = format!("{row}0x30 0x1 0x1 a.qcow2\n");
        // Only the line of the extent that was growing may be missing.
        assert_eq!(found(1, row, ""), None);
        assert_eq!(found(1, row, &more), None);
        assert_eq!(found(1, &more, row), None);
        assert_eq!(found(1, &more, "").as_deref(), Some("row → end"));
        assert_eq!(found(1, "", &more).as_deref(), Some("end → row"));
        assert_eq!(
            found(1, row, "0x10 0x20 0x30 /dir/a.qcow2\n").as_deref(),
            Some("folder of the file")
        );
    }
}
