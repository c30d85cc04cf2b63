//! The shared means of measurements: CPU time, tables of Markdown, and pages of `docs/results`, which a measurement prints.

use std::process::Command;

use anyhow::{Context, Result, bail};
use wait4::Wait4;

use crate::process::{command, output, text_of};

/// Returns the CPU seconds of a command that must succeed, with the children for which it waited.
pub fn cpu_seconds(run: &mut Command) -> Result<f64> {
    let done = run.spawn().with_context(|| text_of(run))?.wait4()?;
    if !done.status.success() {
        bail!("{}: {}, expected success", text_of(run), done.status);
    }
    Ok((done.rusage.utime + done.rusage.stime).as_secs_f64())
}

/// Prints a page: a title, the command, the date, the commit, the machine and the compilers, and tables.
pub fn publish(title: &str, tables: &str) {
    let said = |program: &str, arguments: &[&str]| {
        let text = output(command(program).args(arguments));
        text.map_or("unknown".to_owned(), |text| text.trim().to_owned())
    };
    let words = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (date, commit) = (said("date", &["-I"]), said("git", &["describe", "--always", "--dirty"]));
    let [stable, nightly] = [&["-V"][..], &["+nightly", "-V"]].map(|it| said("rustc", it));
    let machine = format!("{}, {cores} cores; {stable}; {nightly}", std::env::consts::ARCH);
    println!("# {title}\n\n`cargo xtask {words}`, {date}. Commit {commit}; {machine}.\n");
    println!("{}", tables.trim());
}

/// Fails if there are faults, which it names below a heading.
pub fn verdict(heading: &str, faults: &[String]) -> Result<()> {
    let text = || format!("{heading}:\n{}", faults.join("\n"));
    if faults.is_empty() { Ok(()) } else { bail!(text()) }
}

/// Returns the median, of an even number the higher one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the row of a table.
pub fn row<T: AsRef<str>>(cells: &[T]) -> String {
    let cells: Vec<_> = cells.iter().map(AsRef::as_ref).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Returns the head of a table.
pub fn head(titles: &[&str]) -> String {
    row(titles) + &"|---".repeat(titles.len()) + "|\n"
}
