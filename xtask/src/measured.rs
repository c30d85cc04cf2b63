//! The shared means of measurements: medians, tables of Markdown, and pages of `docs/results`, which a measurement
//! prints.

use anyhow::{Result, bail};

use crate::process::{command, output};

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
