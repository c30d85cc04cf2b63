//! The pages in `docs/results`: one for each measurement, the current one. Git has the pages before it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{command, output, root};

/// Writes a file beside its place and renames it, so that no file is ever incomplete.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// Returns one line about the circumstances of a measurement: date, commit, machine and compilers.
fn circumstances() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let text = output(command(program).args(arguments));
        text.map_or("unknown".to_owned(), |text| text.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}. Commit {}; {}, {cores} cores; {}; {}.",
        said("date", &["-I"]),
        said("git", &["describe", "--always", "--dirty"]),
        said("uname", &["-m"]),
        said("rustc", &["-V"]),
        said("rustc", &["+nightly", "-V"]),
    )
}

/// Prints a table and writes its page, `docs/results/NAME.md`: a title, the command, the circumstances, the table.
pub fn report(name: &str, title: &str, command: &str, table: &str) -> Result<()> {
    let table = table.trim();
    println!("{table}");
    let path: PathBuf = root().join("docs/results").join(format!("{name}.md"));
    replace(&path, &format!("# {title}\n\n`{command}`, {}\n\n{table}\n", circumstances()))?;
    eprintln!("written to {}", path.display());
    Ok(())
}
