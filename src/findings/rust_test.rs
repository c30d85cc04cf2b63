//! Prints a regression as a Rust test.

use std::io::{self, Write};

use crate::disk::extent::Extent;
use crate::harness::cases::target::Expectation;
use crate::images::files::FileNames;
use crate::images::limits::Limits;
use crate::programs::Program;

use super::explain::explain;
use super::file_text::FileText;
use super::panics::caught;
use super::regression::Regression;

impl Regression {
    /// Writes the regression as a Rust test. `engine` is the expression that creates the engine under test.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn rust_test(&self, engine: &str, out: &mut impl Write) -> io::Result<()> {
        // Only `Harness` gives access to the extents that the engine emitted.
        let constructor = match self.target.definition().expectation {
            Expectation::Extents => format!("Harness::new({engine})"),
            _ => format!("targets::TargetKind::{}.judging({engine})", self.target.variant()),
        };
        test(self, &constructor, out)
    }

    /// Returns the input as text, and the expression that makes its bytes of the text.
    fn text(&self) -> (String, &'static str) {
        match self.target.runs_programs() {
            true => (
                Program::decode(&self.input).to_string(),
                "qcowfuzz::programs::text::assemble(text).unwrap().encode()",
            ),
            false => (
                FileText(&self.input).to_string(),
                "qcowfuzz::findings::file_text::parse(text).unwrap()",
            ),
        }
    }
}

fn test(regression: &Regression, constructor: &str, out: &mut impl Write) -> io::Result<()> {
    let Regression { fingerprint, target, story, input } = regression;
    let (text, expression) = regression.text();
    writeln!(out, "/// {fingerprint}\n///")?;
    story.lines().try_for_each(|line| writeln!(out, "/// {line}"))?;
    writeln!(out, "#[test]\nfn {}() {{", regression.name())?;
    writeln!(out, "    use qcowfuzz::harness::Checks;")?;
    writeln!(out, "    let text = \"\\")?;
    for line in text.lines() {
        writeln!(out, "        {line}\\n\\")?;
    }
    writeln!(out, "    \";")?;
    writeln!(out, "    let input = {expression};")?;
    writeln!(out, "    let mut target = qcowfuzz::harness::{constructor};")?;
    writeln!(out, "    let found = target.run(&input, Checks::default()).err();")?;
    writeln!(out, "    let found = found.map(|failure| failure.violation.fingerprint());")?;
    writeln!(out, "    assert_eq!(found, None);")?;
    writeln!(out, "    // An engine may list the bug among its known findings.")?;
    writeln!(out, "    let bug = {fingerprint:?}.to_string();")?;
    writeln!(out, "    assert!(!target.met().iter().any(|met| met.seen.contains(&bug)));")?;
    if target.definition().expectation == Expectation::Extents {
        expected(input, target.limits(), out)?;
    }
    writeln!(out, "}}")
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
        writeln!(out, "        ({start}, {length_bytes}, {:?}, {offset:?}),", mapping.kind())?;
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
    use crate::harness::targets::TargetKind;
    use crate::programs::text::assemble;

    fn printed(target: TargetKind) -> String {
        let text = "image version=3 cluster_bits=16 refcount_order=4 features=none size=2<<16+0 rng_seed=0 \
                    blocks=append table=append tolerance=0\nwrite at=start+0 clusters=1";
        let regression = Regression {
            fingerprint: "model: kind, normal → zero-plain".to_string(),
            target,
            story: "A story.".to_string(),
            input: assemble(text).unwrap().encode(),
        };
        let mut out = Vec::new();
        regression.rust_test("mine::Engine::new()", &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_test_of_extents_expects_those_of_the_model() {
        let test = printed(TargetKind::MapExtents);
        assert!(test.starts_with(
            "/// model: kind, normal → zero-plain\n///\n/// A story.\n#[test]\nfn bug_"
        ));
        assert!(test.contains("mine::Engine::new()") && !test.contains("{engine}"), "{test}");
        assert!(test.contains("        (0, 65536, \"normal\", Some("), "{test}");
        assert!(test.contains("        (65536, 65536, \"unallocated\", None),"), "{test}");
    }

    #[test]
    fn a_test_of_refcounts_expects_no_extents() {
        assert!(!printed(TargetKind::Refcounts).contains("let extents"));
    }

    #[test]
    fn a_test_of_a_file_has_its_bytes() {
        let test = printed(TargetKind::RawImage);
        assert!(test.contains("        file bytes=") && !test.contains("let extents"), "{test}");
        assert!(test.contains("qcowfuzz::findings::file_text::parse(text)"), "{test}");
        assert!(test.contains("targets::TargetKind::RawImage.judging(mine::Engine::new())"));
    }
}
