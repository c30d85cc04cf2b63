//! Compares texts for people, byte for byte.

use super::replies::Replies;
use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::differential::process::Reply;

/// Compares two texts.
pub(super) fn compare(answers: Replies<'_>) -> Result<(), Divergence> {
    match answers.qemu.stdout == answers.tested.stdout {
        true => Ok(()),
        false => Err(difference(&answers.qemu.stdout, &answers.tested.stdout)),
    }
}

/// Compares two maps. If both sides failed, the lines of the shorter one must be the first lines of the longer one.
pub(super) fn compare_map(answers: Replies<'_>) -> Result<(), Divergence> {
    if answers.qemu.is_success() {
        return compare(answers);
    }
    let lines = |reply: &Reply| reply.stdout.split_inclusive(|byte| *byte == b'\n').count();
    let common = lines(answers.qemu).min(lines(answers.tested));
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

/// Returns the label of a line: the text before its value.
fn label(line: Option<&str>) -> &str {
    match line {
        None => "end",
        Some(line) => line.split_once(':').map_or("row", |(label, _)| label.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::process::ReplyEnd;

    fn found(code: i32, qemu: &str, tested: &str) -> Option<String> {
        let reply = |text: &str| Reply {
            end: ReplyEnd::Exit(code),
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
        ] {
            assert_eq!(found(0, row, other).as_deref(), Some(what));
        }
    }

    #[test]
    fn after_a_failure_the_first_lines_agree() {
        let row = "0x10 0x20 0x30 a.qcow2\n";
        assert_eq!(found(1, row, ""), None);
        assert_eq!(found(1, row, &format!("{row}0x30 0x1 0x1 a.qcow2\n")), None);
        assert_eq!(
            found(1, row, "0x10 0x20 0x30 /dir/a.qcow2\n").as_deref(),
            Some("folder of the file")
        );
    }
}
