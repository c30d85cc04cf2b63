//! Regressions: inputs that showed a bug once, as text files with their stories: programs, or files of the target
//! `raw_image`. `cargo test` runs all files in `tests/regressions/`.
//!
//! ```text
//! ; model: kind, zero-allocated → zero-plain
//! ; target: map_extents
//! ;
//! ; The walker forgot where ...
//! image version=3 ...
//! zero at=start+0 clusters=1 keep=yes
//! ```

use std::fmt;
use std::io::{self, Write};

use crate::base::error::Error;
use crate::disk::extent::Extent;
use crate::harness::cases::implementation::Expression;
use crate::harness::cases::target::Expectation;
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;
use crate::images::limits::Limits;
use crate::programs::Program;
use crate::programs::text::assemble;

use super::explain::explain;
use super::file_text::{self, FileText};
use super::panics::caught;

/// An input that showed a bug.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    /// The fingerprint of the violation.
    pub fingerprint: String,
    /// The fuzz target that found it.
    pub target: TargetKind,
    /// The story of the bug: the fault, how it was found, and its fix; lines of plain text.
    pub story: String,
    /// The input. A program is in its canonical form.
    pub input: Vec<u8>,
}

impl Regression {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The line that is wrong, and the text that was expected.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let error_at = |line, what: &str| Error::Text { line, what: what.to_string() };
        let mut head = text.lines().map_while(|line| line.strip_prefix(';')).map(str::trim);
        let fingerprint = head.next().filter(|line| !line.is_empty());
        let fingerprint = fingerprint.ok_or_else(|| {
            error_at(1, "no comment, expected '; ' and the fingerprint that was found")
        })?;
        let target = target(head.next()).map_err(|what| error_at(2, &what))?;
        let story: Vec<_> = head.skip_while(|line| line.is_empty()).collect();
        if story.is_empty() {
            return Err(error_at(3, "no story, expected comments that describe the bug"));
        }
        Ok(Self {
            fingerprint: fingerprint.to_string(),
            target,
            story: story.join("\n"),
            input: match target.runs_programs() {
                true => assemble(text)?.encode(),
                false => file_text::parse(text)?,
            },
        })
    }

    /// Returns a name for the regression, a Rust identifier. It consists of the letters and digits of the fingerprint,
    /// and of the checksum of the input, because several regressions may have the same fingerprint.
    pub fn name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' };
        let words: String = self.fingerprint.chars().map(plain).collect();
        let words = words.split_whitespace().collect::<Vec<_>>().join("_");
        format!("bug_{words}_{:08x}", crc32fast::hash(&self.input))
    }
}

/// Returns the target that the second comment of a file names, or what is wrong with that comment.
fn target(comment: Option<&str>) -> Result<TargetKind, String> {
    let names = || TargetKind::ALL.map(TargetKind::name).join(", ");
    let expected = || format!("expected '; target: ' and one of: {}", names());
    let Some(name) = comment.and_then(|line| line.strip_prefix("target: ")) else {
        let found = comment.map_or("no comment".to_string(), |comment| format!("'; {comment}'"));
        return Err(format!("found {found}, {}", expected()));
    };
    TargetKind::named(name).ok_or_else(|| format!("found the target '{name}', {}", expected()))
}

/// Writes the text of a file.
impl fmt::Display for Regression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fingerprint, target, story, input } = self;
        writeln!(f, "; {fingerprint}\n; target: {}\n;", target.name())?;
        story.lines().try_for_each(|line| writeln!(f, "; {line}"))?;
        match target.runs_programs() {
            true => write!(f, "{}", Program::decode(input)),
            false => write!(f, "{}", FileText(input)),
        }
    }
}

impl Regression {
    /// Writes the regression as a Rust test of the implementation that `expression` creates.
    pub fn rust_test(&self, expression: &Expression, out: &mut impl Write) -> io::Result<()> {
        let Self { fingerprint, target, story, input } = self;
        let (text, assembled) = match target.runs_programs() {
            true => (
                Program::decode(input).to_string(),
                "qcowfuzz::programs::text::assemble(text).unwrap().encode()",
            ),
            false => {
                (FileText(input).to_string(), "qcowfuzz::findings::file_text::parse(text).unwrap()")
            }
        };
        // Only `Harness` gives access to the extents that the engine emitted.
        let has_extents = target.definition().expectation == Expectation::Extents;
        let constructor = match expression {
            Expression::Engine(engine) if has_extents => format!("Harness::new({engine})"),
            Expression::Engine(engine) => {
                format!("targets::TargetKind::{}.judging({engine})", target.variant())
            }
            Expression::Implementation(it) => {
                let observer = "qcowfuzz::harness::cases::implementation::no_observer()";
                let variant = target.variant();
                format!(
                    "targets::TargetKind::{variant}.create(&{it}, Default::default(), {observer})"
                )
            }
        };
        writeln!(out, "/// {fingerprint}\n///")?;
        story.lines().try_for_each(|line| writeln!(out, "/// {line}"))?;
        writeln!(out, "#[test]\nfn {}() {{", self.name())?;
        writeln!(out, "    use qcowfuzz::harness::Checks;")?;
        writeln!(out, "    let text = \"\\")?;
        text.lines().try_for_each(|line| writeln!(out, "        {line}\\n\\"))?;
        writeln!(out, "    \";")?;
        writeln!(out, "    let input = {assembled};")?;
        writeln!(out, "    let mut target = qcowfuzz::harness::{constructor};")?;
        writeln!(out, "    let found = target.run(&input, Checks::default()).err();")?;
        writeln!(out, "    let found = found.map(|failure| failure.violation.fingerprint());")?;
        writeln!(out, "    assert_eq!(found, None);")?;
        writeln!(out, "    // An engine may list the bug among its known findings.")?;
        writeln!(out, "    let bug = {fingerprint:?}.to_string();")?;
        writeln!(out, "    assert!(!target.met().iter().any(|met| met.seen.contains(&bug)));")?;
        if has_extents {
            expected(input, target.limits(), out)?;
        }
        writeln!(out, "}}")
    }
}

/// The maximum number of extents in a test.
const MAX_SPELLED_EXTENTS: usize = 32;

/// Writes the extents that the reference model expects.
fn expected(input: &[u8], limits: Limits, out: &mut impl Write) -> io::Result<()> {
    let names = FileNames::default();
    // If the build panics, the test expects no extents.
    let explained = caught(|| explain(input, limits, usize::MAX, &names));
    let Ok(explained) = explained else { return Ok(()) };
    if explained.expected.is_empty() || explained.expected.len() > MAX_SPELLED_EXTENTS {
        return Ok(());
    }
    writeln!(out, "    // Guest offset, length, status, host offset.")?;
    writeln!(out, "    let extents = [")?;
    for Extent { start, length_bytes, mapping } in &explained.expected {
        let offset = mapping.offset.map(|offset| offset.get());
        writeln!(
            out,
            "        ({}, {length_bytes}, {:?}, {offset:?}),",
            start.get(),
            mapping.kind()
        )?;
    }
    writeln!(out, "    ];")?;
    writeln!(out, "    let actual: Vec<_> = target.actual().iter().map(|it| {{")?;
    writeln!(out, "        let host = it.mapping.offset.map(|offset| offset.get());")?;
    writeln!(out, "        let kind = it.mapping.kind();")?;
    writeln!(out, "        (it.start.get(), it.length_bytes, kind, host)")?;
    writeln!(out, "    }}).collect();")?;
    writeln!(out, "    assert_eq!(actual, extents);")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_regressions_turn_into_each_other() {
        let story = "The fault.\n\nThe fix.";
        let regression = Regression {
            fingerprint: "model: kind, normal → zero-plain".to_string(),
            target: TargetKind::MapExtents,
            story: story.to_string(),
            input: Program::default().encode(),
        };
        let text = regression.to_string();
        assert_eq!(Regression::parse(&text).unwrap(), regression);
        assert!(regression.name().starts_with("bug_model_kind_normal_zero_plain_"));
        let lines: Vec<_> = text.lines().collect();
        let error_of =
            |lines: &[&str]| Regression::parse(&lines.join("\n")).unwrap_err().to_string();
        let expected = "expected '; target: ' and one of: map_extents, refcounts, hostile, raw_image, writes, \
                        hostile_writes, recipes";
        let found = format!("line 2: found '; The fault.', {expected}");
        assert_eq!(error_of(&[lines[0], lines[3], lines[6]]), found);
        let found = format!("line 2: found no comment, {expected}");
        assert_eq!(error_of(&[lines[0], lines[6]]), found);
        let found = format!("line 2: found the target 'map_extent', {expected}");
        assert_eq!(error_of(&[lines[0], "; target: map_extent", lines[3], lines[6]]), found);
        assert!(error_of(&lines[6..]).starts_with("line 1: no comment"));
        assert!(error_of(&[lines[0], lines[1], lines[6]]).starts_with("line 3: no story"));
        assert!(error_of(&lines[..6]).contains("no image line"));
        // A file is no program, and its text is another one.
        let file = error_of(&[lines[0], "; target: raw_image", lines[3], lines[6]]);
        assert!(file.starts_with("line 4: found 'image version"), "{file}");
        let mut input = vec![0; 600];
        input[..4].copy_from_slice(b"QFI\xFB");
        let regression = Regression { target: TargetKind::RawImage, input, ..regression };
        let text = regression.to_string();
        assert!(text.ends_with("\nfile bytes=600\n0x0 51 46 49 fb\n"), "{text}");
        assert_eq!(Regression::parse(&text).unwrap(), regression);
    }
}
