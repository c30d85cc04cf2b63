//! The texts of a report: the commands for readers who have QEMU and no copy of this project, a script that repeats
//! them, and an issue that is ready to be posted to the maintainers of QEMU or of the program under test.

use std::fmt::Write;
use std::path::Path;

use crate::base::limits::MAX_INPUT_BYTES;
use crate::differential::iteration::Met;
use crate::differential::minimize::MinimizedRecipe;
use crate::differential::sides::Sides;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::findings::explain::explain;
use crate::images::files::image::Image;
use crate::images::limits::Limits;
use crate::programs::export;
use crate::recipes::recipe::{Command, quoted};

/// The most lines of an output that an issue quotes.
const MAX_QUOTED_LINES: usize = 20;

/// Returns lines as a block of Markdown.
fn block<'l>(language: &str, lines: impl Iterator<Item = &'l str>) -> String {
    let mut text = format!("```{language}\n");
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text + "```\n"
}

/// Returns the commands of a minimized recipe, and those that ask the question.
pub(super) fn commands_of(sides: &Sides, minimized: &MinimizedRecipe) -> Vec<String> {
    let steps = &minimized.recipe.steps;
    let mut commands: Vec<String> =
        steps.iter().flat_map(|step| &step.commands).flat_map(lines).collect();
    let disk = steps.get(minimized.met.step).map(|step| &step.disk);
    if let (Some(question), Some(disk)) = (&minimized.met.question, disk) {
        let words = |output: &str| question.arguments(disk, output);
        commands.push(format!("qemu-img {}", quoted(&words("qemu.raw"))));
        commands.push(sides.tested.line(&words("tested.raw")));
    }
    commands
}

/// Returns the text of an issue about a divergence, in Markdown. `body` is the difference, or the reason.
pub(super) fn issue(met: &Met, body: &str, commands: &[String], sides: &Sides) -> String {
    let (title, version, body) = (&met.fingerprint, &sides.qemu.version, body.trim_end());
    let mut text = format!("# {title}\n\n{body}\n\nSeen with QEMU {version}.\n\n");
    text += &block("sh", commands.iter().map(String::as_str));
    let (qemu, tested) = met.answers.as_ref().map(|(qemu, tested)| (qemu, tested.as_ref())).unzip();
    let tested_name = sides.tested.name();
    let answers = [("QEMU", qemu), (&tested_name, tested.flatten())];
    for (name, reply) in answers.into_iter().filter_map(|(name, reply)| Some((name, reply?))) {
        let output = reply.text();
        let mut lines: Vec<&str> = output.lines().take(MAX_QUOTED_LINES).collect();
        if output.lines().count() > MAX_QUOTED_LINES {
            lines.push("…");
        }
        if lines.is_empty() {
            lines.push("(no output)");
        }
        let _ = writeln!(text, "\n{name}, {}:\n", reply.end.brief());
        text += &block("text", lines.into_iter());
    }
    text
}

/// Returns a script that repeats the commands in an empty folder.
pub(super) fn script(commands: &[String]) -> String {
    let mut text = String::from(
        "#!/bin/sh\n# Repeats the divergence in a new folder beside this file.\n\
         cd \"$(dirname \"$0\")\" && rm -rf again && mkdir again && cd again || exit 2\n",
    );
    for command in commands {
        text.push_str(command);
        text.push('\n');
    }
    text
}

/// The most commands for the files of a program.
const MAX_COMMANDS: usize = 64;
/// The most bytes that one command writes.
const MAX_PIECE_BYTES: usize = 256;
/// The number of zeros that end a piece.
const MIN_GAP_BYTES: usize = 16;

/// Returns the shell lines for a command. If the command builds a program whose files have little data, the lines do
/// without qcowfuzz.
fn lines(command: &Command) -> Vec<String> {
    let plain = match command {
        Command::Program { input, file } => files_of(input, file),
        _ => None,
    };
    plain.unwrap_or_else(|| vec![command.to_string()])
}

/// Returns the commands that write the files of a program, or `None` if they are too many.
fn files_of(input: &str, file: &str) -> Option<Vec<String>> {
    let input = hex::decode(input).ok().filter(|input| input.len() as u64 <= MAX_INPUT_BYTES)?;
    let names = export::names(Path::new(file));
    let explained = explain(&input, Limits::HOSTILE, usize::MAX, &names);
    let (_, images) = explained.built.files();
    let mut commands = Vec::new();
    for (name, image) in images.files(&names) {
        let (name, length) = (name.unwrap_or(file), image.length_bytes());
        commands.push(match length <= export::MAX_READILY_FILLED_BYTES {
            true => format!("head -c {length} /dev/zero > {name}"),
            false => format!("truncate -s {length} {name}"),
        });
        for (at, bytes) in pieces(image)? {
            let bytes = hex::encode(bytes);
            commands.push(format!(
                "printf {bytes} | xxd -r -p | dd of={name} bs=1 seek={at} conv=notrunc status=none"
            ));
        }
    }
    (commands.len() <= MAX_COMMANDS).then_some(commands)
}

/// Returns the pieces of an image that are not zeros, and their offsets. Returns `None` if they are too many, or if the
/// file must have holes in certain places.
fn pieces(image: &Image) -> Option<Vec<(u64, Vec<u8>)>> {
    let end = HostOffset::new(image.length_bytes());
    let first_part = image.stored(HostOffset::ZERO, end).ok()?;
    if first_part.end < end || !first_part.stored {
        return None;
    }
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    for data in image.written() {
        let bytes = (data.offset.get()..end.get()).zip(data.bytes);
        for (at, byte) in bytes.filter(|(_, byte)| **byte != 0) {
            match pieces.last_mut() {
                Some((first, piece)) if fits(at.abs_diff(*first), piece.len()) => {
                    piece.resize(at.abs_diff(*first) as usize, 0);
                    piece.push(*byte);
                }
                _ => pieces.push((at, vec![*byte])),
            }
            if pieces.len() > MAX_COMMANDS {
                return None;
            }
        }
    }
    Some(pieces)
}

/// Reports whether a byte belongs to a piece of this length. `distance` is the distance from the first byte of the
/// piece.
fn fits(distance: u64, length: usize) -> bool {
    let reach = length.saturating_add(MIN_GAP_BYTES).min(MAX_PIECE_BYTES);
    distance < reach as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::files::{Existing, list};
    use crate::programs::text::assemble;

    #[test]
    fn the_commands_write_the_same_files() {
        let program = "image version=3 cluster_bits=9 refcount_order=4 features=none size=100<<9+0 rng_seed=0 \
                       blocks=append table=append tolerance=0
                       overlay version=3 cluster_bits=9 refcount_order=4 features=none data_in=image size=+0<<0
                       zero at=start+3 clusters=2 keep=no";
        let input = assemble(program).unwrap().encode();
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [ours, theirs] = dirs.each_ref().map(|dir| dir.path().join("disk1.qcow2"));
        let names = export::names(&ours);
        let explained = explain(&input, Limits::HOSTILE, usize::MAX, &names);
        export::write_small_filled(&ours, Existing::Keep, explained.built.files()).unwrap();
        let program = Command::Program { input: hex::encode(&input), file: "disk1.qcow2".into() };
        let lines = lines(&program);
        assert!(lines.len() > 2 && lines.len() <= MAX_COMMANDS, "{lines:#?}");
        let shell = std::process::Command::new("sh")
            .args(["-ec", &lines.join("\n")])
            .current_dir(dirs[1].path())
            .status();
        assert!(shell.unwrap().success() && theirs.exists());
        let [ours, theirs] = dirs.each_ref().map(|dir| {
            let read = |path: &std::path::PathBuf| std::fs::read(path).unwrap();
            list(dir.path()).unwrap().iter().map(read).collect::<Vec<_>>()
        });
        assert!(ours.len() == 2 && ours == theirs);
    }

    #[test]
    fn a_program_that_writes_much_needs_the_command_of_this_project() {
        let mut program = "image version=3 cluster_bits=16 refcount_order=4 features=none size=100<<16+0 rng_seed=0 \
                           blocks=append table=append tolerance=0"
            .to_string();
        (0..6).for_each(|nth| program += &format!("\nwrite at=start+{} clusters=16", nth * 16));
        let input = hex::encode(assemble(&program).unwrap().encode());
        let program = Command::Program { input, file: "disk1.qcow2".into() };
        assert_eq!(lines(&program), [program.to_string()]);
    }
}
