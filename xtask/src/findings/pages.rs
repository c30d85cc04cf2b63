//! The pages: BUGS.md, for people who decide whether to use qcowfuzz, and docs/findings.md, the matrix.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::{Result, ensure};

use crate::measured::{head, row};

use super::causes::{Bug, Causes, Cell};
use super::data::{Findings, Severity};

/// The severities: the heading, the meaning, and the cell of the matrix.
const SEVERITIES: [(Severity, &str, &str, &str); 8] = [
    (
        Severity::DataLoss,
        "Data loss",
        "Bytes of the guest, of a snapshot or of a backup are lost or changed.",
        "loss",
    ),
    (
        Severity::ImageDamage,
        "Damage to the image",
        "The image has errors afterwards, such as a leak or wrong refcounts, and needs a repair.",
        "damage",
    ),
    (
        Severity::WrongData,
        "Wrong data",
        "A read returns bytes that the guest has not written, or fewer bytes.",
        "wrong",
    ),
    (Severity::Crash, "Crashes", "The code panics, aborts or gets a signal.", "crash"),
    (Severity::Hang, "Hangs", "A call does not return.", "hang"),
    (
        Severity::Memory,
        "Memory",
        "A call needs far more memory or disk space than the image justifies.",
        "memory",
    ),
    (
        Severity::Refuses,
        "Valid images that are refused",
        "The code does not open the image, or a read fails. QEMU reads the image.",
        "refuses",
    ),
    (Severity::Low, "Low", "Anything else; the bytes of the disk are right.", "low"),
];

/// The first lines of both pages.
const GENERATED: &str =
    "<!-- `cargo xtask findings --write` writes this page from engines/findings/. -->";

const DAMAGED: &str = "
## Damaged images

An implementation may answer with data from an image that QEMU refuses, or in which QEMU refuses the read. No writer makes such
images. The data are wrong in some of these cases. [The matrix](docs/findings.md#damage-that-is-accepted) has a cell for each.

";

/// Returns the text of BUGS.md.
pub fn bugs(causes: &Causes) -> Result<String> {
    let mut page = format!("# Bugs that qcowfuzz found\n\n{GENERATED}\n\n{}", totals(causes));
    for (severity, heading, meaning, _) in SEVERITIES {
        let bugs: Vec<_> = causes.bugs.iter().filter(|it| it.severity == severity).collect();
        if bugs.is_empty() {
            continue;
        }
        write!(page, "\n## {heading}\n\n{meaning}\n\n")?;
        page += &head(&["implementation", "what goes wrong", "on which images", "name"]);
        for bug in &bugs {
            page += &bug_row(bug)?;
        }
        let others = bugs.iter().filter_map(|it| Some(format!("- `{}`: {}\n", path(it), it.see?)));
        let others: String = others.collect();
        if !others.is_empty() {
            write!(page, "\n`cargo xtask findings` and CI do not show these bugs:\n\n{others}")?;
        }
    }
    page += DAMAGED;
    page += &implementations(causes);
    Ok(page)
}

/// Returns the paragraphs with the totals and with the command.
fn totals(causes: &Causes) -> String {
    let bugs = &causes.bugs;
    let implementations: BTreeSet<_> = bugs.iter().map(|it| &it.of.name).collect();
    let of = |severities: &[Severity]| {
        bugs.iter().filter(|it| severities.contains(&it.severity)).count()
    };
    let by_qemu = bugs.iter().filter(|it| it.made_by_qemu).count();
    let findings = || causes.all.iter().flat_map(|it| &it.findings);
    let accepted = findings().filter(|it| causes.is_acceptance(it)).count();
    let reported = findings().filter(|it| it.link.is_some()).count();
    let reported = match reported {
        0 => "None has been reported to its project yet.".to_string(),
        _ => format!("{reported} have been reported to their projects."),
    };
    format!(
        "qcowfuzz has found **{} bugs in {} implementations** of disk images. **{} of them lose data**, **{} return\n\
        wrong data**, and **{by_qemu} occur on images that QEMU makes**. {reported} In {accepted}\n\
        more cases, an implementation answers with data from a damaged image that QEMU refuses.\n\n\
        Each bug is one fault of the code, which several programs may show. Each section lists the bugs first that occur\n\
        on images which QEMU makes, or made in an earlier version. This command builds the implementation, runs the\n\
        program, and asks qemu-img about its image:\n\n    \
        $ cargo xtask findings fstool/zstd_frames\n\n\
        `engines/findings/` has the program, the cause and the text of qemu-img for each bug. CI runs these programs\n\
        (`engines/tests/findings.rs`).\n",
        bugs.len(),
        implementations.len(),
        of(&[Severity::DataLoss]),
        of(&[Severity::WrongData]),
    )
}

/// Returns the name and the version of an implementation.
fn title_of(of: &Findings) -> String {
    format!("{} {}", of.implementation.title, of.implementation.version)
}

/// Returns the name of a bug for the command.
fn path(bug: &Bug) -> String {
    format!("{}/{}", bug.of.name, bug.name)
}

fn bug_row(bug: &Bug) -> Result<String> {
    let makers = bug.makers.map(first_sentence);
    let images = match (bug.made_by_qemu, makers) {
        (true, Some(makers)) => format!("**QEMU**: {makers}"),
        (true, None) => "**QEMU**".to_string(),
        (false, Some(makers)) => makers.to_string(),
        (false, None) => "no known writer".to_string(),
    };
    let title = title_of(bug.of);
    let cells = [&title, first_sentence(bug.reason), &images, &format!("`{}`", path(bug))];
    ensure!(cells.iter().all(|it| !it.contains(['|', '\n'])), "{}: | in a cell", path(bug));
    Ok(row(&cells))
}

/// Returns the first sentence of a text, without its full stop.
fn first_sentence(text: &str) -> &str {
    let end = text.match_indices(". ").find(|(at, _)| {
        text[at + 2..].starts_with(|it: char| it.is_uppercase() || it == '`' || it == '7')
    });
    text[..end.map_or(text.len(), |(at, _)| at)].trim_end_matches('.')
}

/// Returns a table with the numbers of bugs, and of the kinds of damage that are accepted.
fn implementations(causes: &Causes) -> String {
    let titles = ["implementation", "bugs", "damage: wrong data", "damage: right data"];
    let mut table = head(&titles);
    for of in causes.all {
        let accepted = || of.findings.iter().filter(|it| causes.is_acceptance(it));
        let low = accepted().filter(|it| it.severity == Severity::Low).count();
        let bugs = causes.bugs.iter().filter(|it| it.of.name == of.name).count();
        let numbers = [bugs, accepted().count() - low, low].map(|it| it.to_string());
        let title = format!("[{}]({})", title_of(of), of.implementation.link);
        table += &row(&[title].into_iter().chain(numbers).collect::<Vec<_>>());
    }
    table
}

/// Returns the text of docs/findings.md.
pub fn matrix(causes: &Causes) -> Result<String> {
    let mut page =
        format!("# Bugs and accepted damage, by implementation\n\n{GENERATED}\n\n{LEGEND}\n");
    for (_, _, meaning, cell) in SEVERITIES {
        writeln!(page, "- *{cell}*: {meaning}")?;
    }
    let is_rule = |cell: &Cell| causes.rules.iter().any(|it| it.name == cell.row);
    let is_qcow2 = |cell: &Cell| cell.of.implementation.format == "qcow2";
    let cells: Vec<_> = causes.cells().collect();
    let of =
        |is_it: &dyn Fn(&Cell) -> bool| cells.iter().filter(|it| is_it(it)).collect::<Vec<_>>();
    page += "\n## Reading\n\n";
    page += &table(&of(&|it| is_qcow2(it) && !is_rule(it) && !it.is_writing));
    page += "\n## Writing\n\n";
    page += &table(&of(&|it| is_qcow2(it) && !is_rule(it) && it.is_writing));
    page += "\n## Damage that is accepted\n\nEach row is a rule that the image breaks. QEMU refuses the image, or the read.\n\n";
    page += &table(&of(&|it| is_qcow2(it) && is_rule(it)));
    page += "\n## VHD, VHDX and VMDK\n\n";
    page += &table(&of(&|it| !is_qcow2(it)));
    for of in causes.all {
        if let Some(note) = &of.implementation.note {
            write!(page, "\n{}: {note}\n", of.implementation.title)?;
        }
    }
    write!(page, "\n## The rules\n\n{LIMITS}\n\n")?;
    page += &head(&["rule", "an implementation that does not enforce it", "qemu-img map"]);
    for rule in causes.rules {
        ensure!(!rule.qemu.contains('|'), "{}: | in a cell", rule.name);
        page += &row(&[&rule.name, &rule.reason, &rule.qemu]);
    }
    Ok(page)
}

/// Returns a table: a row for each feature or rule, a column for each implementation.
fn table(cells: &[&Cell]) -> String {
    let columns: BTreeMap<_, _> =
        cells.iter().map(|it| (it.of.implementation.column.to_lowercase(), it.of)).collect();
    let rows: BTreeMap<_, _> = cells.iter().map(|it| (it.row.to_lowercase(), it.row)).collect();
    let names = columns.values().map(|it| &*it.implementation.column);
    let mut table = head(&[""].into_iter().chain(names).collect::<Vec<_>>());
    for name in rows.values() {
        let in_row = cells.iter().filter(|it| it.row == *name);
        let text = |of: &&Findings| {
            let here = in_row.clone().filter(|it| it.of.name == of.name);
            let worst = here.min_by_key(|it| (!it.made_by_qemu, it.severity));
            worst.map_or(String::new(), cell_text)
        };
        let texts = columns.values().map(text);
        table += &row(&[name.to_string()].into_iter().chain(texts).collect::<Vec<_>>());
    }
    table
}

fn cell_text(cell: &&Cell) -> String {
    let text = SEVERITIES.iter().find(|it| it.0 == cell.severity).map_or("", |it| it.3);
    if cell.made_by_qemu { format!("**{text}**") } else { text.to_string() }
}

const LEGEND: &str = "\
A cell is the worst effect of the bugs of an implementation. In **bold**, it is the worst effect on images that QEMU makes, or
made in an earlier version; otherwise, QEMU makes none of the images. In an empty cell, no bug is known; the implementation may also
lack the feature. [BUGS.md](../BUGS.md) lists the bugs with their versions, the worst first.

`engines/findings/` has all bugs as data: a file for each implementation, which `--known` reads, too
([known findings](campaigns.md#known-findings)). `cargo xtask findings NAME/FINDING` runs the program of a finding, and
`engines/tests/findings.rs` runs all of them. For implementations behind the [line protocol](engines.md#the-line-protocol),
`cargo xtask other-languages --rows` runs them.

The effects, from the worst on:
";

const LIMITS: &str = "\
QEMU has limits that are not in the formats, such as an L1 table of 32 MiB. An implementation may have larger ones, so
these limits are not rules here. AES and LUKS are not damage, but have rows here, too: QEMU refuses such an image
without its key.

An effect is *low* if the guest's bytes do not depend on the damage. Most of these disks are empty, so that the
implementation answers with zeros. *Wrong* states what happens if the disk has data in this place. A finding of an
implementation may have other texts than the table. The last column quotes `qemu-img map` of QEMU 10.0. If the damage is
in an L1 or L2 table, `info` opens the image, and `check` finds errors in it, unless the row says otherwise.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_before_the_next_one() {
        for (text, expected) in [
            ("One. Two.", "One"),
            ("One in version 5.1. Two", "One in version 5.1"),
            ("One (a. b).", "One (a. b)"),
            ("One. `two`.", "One"),
            ("One. 7-Zip reads it.", "One"),
        ] {
            assert_eq!(first_sentence(text), expected);
        }
    }
}
