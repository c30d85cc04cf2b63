//! The text of an issue about a divergence, ready to be posted to the maintainers of QEMU or of the program under test.

use std::fmt::Write;

use crate::processes::Reply;

/// The most lines of an output that an issue quotes.
const MAX_QUOTED_LINES: usize = 20;

/// The things that an issue states.
pub(super) struct Issue<'i> {
    /// One line.
    pub(super) title: &'i str,
    /// The reason, or the difference.
    pub(super) body: &'i str,
    /// The version of QEMU.
    pub(super) qemu_version: &'i str,
    /// The shell commands that show it.
    pub(super) commands: &'i [String],
    /// The names and the texts of the outputs.
    pub(super) outputs: &'i [(String, String)],
}

impl Issue<'_> {
    /// Returns the text in Markdown.
    pub(super) fn text(&self) -> String {
        let Self { title, body, qemu_version, commands, outputs } = self;
        let mut text =
            format!("# {title}\n\n{}\n\nSeen with QEMU {qemu_version}.\n\n", body.trim_end());
        text += &block("sh", commands.iter().map(String::as_str));
        for (name, output) in *outputs {
            let mut lines: Vec<&str> = output.lines().take(MAX_QUOTED_LINES).collect();
            if output.lines().count() > MAX_QUOTED_LINES {
                lines.push("…");
            }
            if lines.is_empty() {
                lines.push("(no output)");
            }
            let _ = writeln!(text, "\n{name}:\n");
            text += &block("text", lines.into_iter());
        }
        text
    }
}

/// Returns what both sides printed, and how they ended.
pub(super) fn outputs(
    (qemu, tested): (&Reply, Option<&Reply>),
    tested_name: &str,
) -> Vec<(String, String)> {
    let named =
        |name: &str, reply: &Reply| (format!("{name}, {}", reply.end.brief()), reply.text());
    let tested = tested.map(|reply| named(tested_name, reply));
    std::iter::once(named("QEMU", qemu)).chain(tested).collect()
}

/// Returns lines as a block of Markdown.
pub(super) fn block<'l>(language: &str, lines: impl Iterator<Item = &'l str>) -> String {
    let mut text = format!("```{language}\n");
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text + "```\n"
}
