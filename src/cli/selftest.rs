//! `selftest`: asks the implementation about plain images.

use std::io::{self, Write};

use crate::base::features::{Feature, FeatureSet};
use crate::findings::PanicNotes;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::selftest::{SelfTest, SelfTestAnswer, SelfTestRow, self_test};

use super::output::{Exit, ExitResult, counted, print};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command prints a table: the image, the question, and 'ok' or the mistake. If the answer is wrong and \
no known mistake of an adapter causes it, the implementation probably has a bug.

The questions: 'size' opens the image; 'data' reads at the edges of each part of the disk; 'end' reads the \
last 4 KiB; 'status' asks for single bytes; 'map' asks for all extents; 'snapshot' opens a snapshot.

The last lines say whether the accesses to the files are the same in every run, so that they can be feedback.

Exit codes: 0 all answers are right; 1 an answer or the declaration about accesses is wrong, or the \
implementation answers neither 'read' nor 'status' nor 'map'.

Example: cargo run -- selftest")]
pub struct Arguments {
    /// Also print the program of each image
    #[arg(long)]
    programs: bool,
}

/// Runs the self-test. If `is_command` is true, prints claims as first lines of the line protocol.
pub fn run(implementation: &Implementation, is_command: bool, arguments: &Arguments) -> ExitResult {
    let _silence = PanicNotes::take_over();
    let test = self_test(&|| implementation.engine(&no_observer()));
    print(&(), false, |(), out| lines(&test, arguments.programs, is_command, out))?;
    Ok(if test.passed() { Exit::Nothing } else { Exit::Violation })
}

fn lines(
    test: &SelfTest,
    programs: bool,
    is_command: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut names: Vec<_> = test.rows.iter().map(|row| row.image).collect();
    names.dedup();
    for name in names {
        let rows: Vec<_> = test.rows.iter().filter(|row| row.image == name).collect();
        of_image(name, (test, &rows), out)?;
        if programs {
            let text = rows[0].program_text();
            text.lines().try_for_each(|line| writeln!(out, "    {line}"))?;
        }
    }
    summary(test, out)?;
    claims(test.refused(), is_command, out)
}

/// Prints the answers about an image: a line for all right ones, and lines for each wrong one.
fn of_image(
    name: &str,
    (test, rows): (&SelfTest, &[&SelfTestRow]),
    out: &mut impl Write,
) -> io::Result<()> {
    let questions = |answer: &SelfTestAnswer| -> Vec<&str> {
        let given = rows.iter().filter(|row| row.answer == *answer);
        given.map(|row| row.question.name()).collect()
    };
    let mut column = name;
    let mut line = |out: &mut dyn Write, question: &str, answer: &str| {
        let image = std::mem::take(&mut column);
        writeln!(out, "{image:26}{question:36}{answer}")
    };
    for (answer, text) in [(SelfTestAnswer::Right, "ok"), (SelfTestAnswer::NoAnswer, "no answer")] {
        let given = questions(&answer);
        if !given.is_empty() {
            line(out, &given.join(" "), text)?;
        }
    }
    for row in rows {
        match &row.answer {
            SelfTestAnswer::Right | SelfTestAnswer::NoAnswer => {}
            SelfTestAnswer::Skipped(reason) => {
                line(out, row.question.name(), &format!("skipped: {reason}"))?;
            }
            SelfTestAnswer::Wrong { mistake, violation, .. } => {
                let refused = test.refused_in(row);
                let cause = match mistake {
                    Some(mistake) => mistake.to_string(),
                    None if refused != FeatureSet::EMPTY => {
                        format!("an error: no support for {refused}, or a bug")
                    }
                    None => "no known mistake of an adapter: probably a bug of the implementation"
                        .into(),
                };
                line(out, row.question.name(), &format!("WRONG: {cause}"))?;
                violation.lines().try_for_each(|detail| writeln!(out, "{:62}{detail}", ""))?;
            }
        }
    }
    Ok(())
}

fn summary(test: &SelfTest, out: &mut impl Write) -> io::Result<()> {
    let count =
        |is: fn(&SelfTestAnswer) -> bool| test.rows.iter().filter(|row| is(&row.answer)).count();
    let right = count(|answer| *answer == SelfTestAnswer::Right);
    let skipped = count(|answer| matches!(answer, SelfTestAnswer::Skipped(_)));
    let (wrong, skipped) = (test.wrong().count(), counted(skipped, "image"));
    writeln!(out, "\n{right} answers ok, {wrong} wrong, {skipped} skipped")?;
    test.accesses.iter().try_for_each(|check| writeln!(out, "{check}"))?;
    if test.rows.is_empty() {
        writeln!(out, "no image: the implementation claims no format, expected one after `yes`")?;
    } else if !test.has_answers() {
        writeln!(
            out,
            "expected an answer to 'read', 'status' or 'map': nothing but sizes was judged"
        )?;
    }
    Ok(())
}

/// Prints the claims that fit the features that the implementation refuses.
fn claims(refused: FeatureSet, is_command: bool, out: &mut impl Write) -> io::Result<()> {
    if refused == FeatureSet::EMPTY {
        return Ok(());
    }
    writeln!(out, "if the implementation does not support these features, claim it:")?;
    if refused.has(Feature::Qcow2) {
        // All its images are refused: none of their other features is known.
        let claim = if is_command { "no qcow2 images" } else { "no: [Qcow2]," };
        return writeln!(out, "    {claim}");
    }
    if is_command {
        return refused.iter().try_for_each(|it| writeln!(out, "    refuse {}", it.name()));
    }
    let words: Vec<_> = refused.iter().map(|feature| feature.word()).collect();
    writeln!(out, "    refuses: [{}],", words.join(", "))
}
