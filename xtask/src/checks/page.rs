//! Pages that lead a user from an empty folder to a first bug: their commands are run, and their code is written, as
//! the user would.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::process::captured;

/// A page.
pub struct Page<'p> {
    name: &'static str,
    pub steps: Vec<Step<'p>>,
}

/// A step of a page.
#[derive(Debug, PartialEq)]
pub enum Step<'p> {
    /// A command, and the lines that the page shows below it.
    Command(&'p str, Vec<&'p str>),
    /// The name of a file, and its code.
    Code(&'p str, &'p str),
}

impl<'p> Page<'p> {
    /// Returns the steps of a page: the indented blocks with commands, and the blocks of code that name a file or are
    /// in Rust.
    pub fn parse(name: &'static str, text: &'p str) -> Self {
        let mut steps = Vec::new();
        for (number, block) in text.split("```").enumerate() {
            if number % 2 == 1 {
                steps.extend(block.split_once('\n').and_then(|(about, code)| {
                    let file = match about.split_once(' ') {
                        Some((_, file)) => file,
                        None if about == "rust" => "src/lib.rs",
                        None => return None,
                    };
                    Some(Step::Code(file, code))
                }));
                continue;
            }
            for line in block.lines().filter_map(|line| line.strip_prefix("    ")) {
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(command), _) => steps.push(Step::Command(command, Vec::new())),
                    (None, Some(Step::Command(_, lines))) => lines.push(line),
                    (None, _) => {}
                }
            }
        }
        Self { name, steps }
    }

    /// Returns the number of commands.
    pub fn commands(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, Step::Command(..))).count()
    }

    /// Fails unless the output has the expected lines in their order. `...` stands for any lines.
    pub fn compare(&self, output: &str, expected: &[&str]) -> Result<()> {
        let name = self.name;
        let mut rest = output.lines().peekable();
        let mut skips = expected.is_empty();
        for line in expected {
            if *line == "..." {
                skips = true;
                continue;
            }
            let found = if skips { rest.find(|it| it == line) } else { rest.next_if_eq(line) };
            ensure!(
                found.is_some(),
                "{output}\nthe output lacks '{line}', which {name} shows there"
            );
            skips = false;
        }
        let more = rest.next().filter(|_| !skips);
        ensure!(more.is_none(), "the output contains {more:?}, which {name} does not show");
        Ok(())
    }
}

/// Runs a command of the shell in a folder, and returns its output. It must end with one of the exit codes, and without
/// a warning.
pub fn shell(
    line: &str,
    folder: &Path,
    variables: &[(&str, String)],
    codes: &[i32],
) -> Result<String> {
    let start = Instant::now();
    let mut shell = Command::new("bash");
    shell.args(["-c", line]).current_dir(folder).envs(variables.iter().cloned());
    let (status, output) = captured(&mut shell)?;
    println!("{line}: {:.1} s", start.elapsed().as_secs_f32());
    let warns = output.lines().any(|line| line.starts_with("warning: "));
    let ends = status.code().is_some_and(|code| codes.contains(&code));
    ensure!(ends && !warns, "{output}\n{line}: {status}, expected {codes:?} and no warning");
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_steps() {
        let page = "a\n\n    $ b\n    c\n    ...\n\n```rust\nd\n```\n\n    e\n\n```text\n    $ f\n```\n\
                    ```c fuzz.c\ng\n```\n";
        let steps = Page::parse("page", page).steps;
        let [command, rust, c] = &*steps else { panic!("{steps:?}") };
        assert_eq!(*command, Step::Command("b", vec!["c", "..."]));
        assert_eq!(*rust, Step::Code("src/lib.rs", "d\n"));
        assert_eq!(*c, Step::Code("fuzz.c", "g\n"));
    }

    #[test]
    fn other_lines_are_found() {
        let page = Page::parse("page", "");
        let matches = |output: &str, expected: &[&str]| page.compare(output, expected).is_ok();
        assert!(matches("a\nb\nc\n", &["a", "...", "c"]) && matches("a\nb\n", &["a", "..."]));
        assert!(matches("a\n", &[]) && matches("a\n", &["...", "a"]));
        assert!(
            !matches("a\nb\n", &["a"])
                && !matches("a\nb\n", &["b"])
                && !matches("a\n", &["a", "b"])
        );
        assert!(!matches("a\nb\nc\n", &["a", "...", "d"]));
    }
}
