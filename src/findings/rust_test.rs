//! Prints a regression as a Rust test.

use std::io::{self, Write};

use crate::disk::extent::Extent;
use crate::harness::target::Expectation;
use crate::images::files::FileNames;
use crate::images::limits::Limits;
use crate::programs::Program;

use super::explain::explain;
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
}

fn test(regression: &Regression, constructor: &str, out: &mut impl Write) -> io::Result<()> {
    let Regression { fingerprint, target, story, program } = regression;
    writeln!(out, "/// {fingerprint}\n///")?;
    story.lines().try_for_each(|line| writeln!(out, "/// {line}"))?;
    writeln!(out, "#[test]\nfn {}() {{", regression.name())?;
    writeln!(out, "    use qcowfuzz::harness::Checks;")?;
    writeln!(out, "    let text = \"\\")?;
    for line in program.to_string().lines() {
        writeln!(out, "        {line}\\n\\")?;
    }
    writeln!(out, "    \";")?;
    writeln!(out, "    let input = qcowfuzz::programs::text::assemble(text).unwrap().encode();")?;
    writeln!(out, "    let mut target = qcowfuzz::harness::{constructor};")?;
    writeln!(out, "    let found = target.run(&input, Checks::default()).err();")?;
    writeln!(out, "    let found = found.map(|failure| failure.violation.fingerprint());")?;
    writeln!(out, "    assert_eq!(found, None);")?;
    writeln!(out, "    // An engine may list the bug among its known findings.")?;
    writeln!(out, "    let bug = {fingerprint:?}.to_string();")?;
    writeln!(out, "    assert!(!target.met().iter().any(|met| met.seen.contains(&bug)));")?;
    if target.definition().expectation == Expectation::Extents {
        expected(program, target.limits(), out)?;
    }
    writeln!(out, "}}")
}

/// The maximum number of extents in a test.
const MAX_SPELLED_EXTENTS: usize = 32;

/// Writes the extents that the reference model expects.
fn expected(program: &Program, limits: Limits, out: &mut impl Write) -> io::Result<()> {
    let names = FileNames::default();
    // If the build panics, the test expects no extents.
    let explained = caught(|| explain(&program.encode(), limits, usize::MAX, &names));
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
            program: assemble(text).unwrap(),
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
}
