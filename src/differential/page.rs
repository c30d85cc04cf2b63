//! The page of a campaign: its divergences, and what its iterations were like.

use maud::{Markup, html};

use super::reports::Reports;
use super::summary::{FoundDivergence, Summary};
use crate::base::error::Error;
use crate::findings::page::document;

/// Writes the summary of a campaign to the folder of its reports, for programs and for people.
///
/// # Errors
/// A file cannot be written.
pub fn save(summary: &Summary, reports: &Reports) -> Result<(), Error> {
    let json = serde_json::to_vec_pretty(summary)
        .map_err(|error| Error::file(reports.dir(), error.into()))?;
    reports.replace("summary.json", &json)?;
    reports.replace("index.html", render(summary).as_bytes())
}

/// Returns the page.
fn render(summary: &Summary) -> String {
    let title = match summary.found.len() {
        0 => "No divergence".to_string(),
        1 => "1 divergence".to_string(),
        count => format!("{count} divergences"),
    };
    let style = if summary.found.is_empty() { "fine" } else { "violation" };
    let body = html! {
        header {
            h1 .(style) { (title) }
            (facts(summary))
            nav aria-label="Sections" {
                a href="#divergences" { "Divergences" } " "
                a href="#known" { "Known divergences" } " "
                a href="#distribution" { "Distribution" }
            }
        }
        main {
            section #divergences aria-labelledby="divergences-h" {
                h2 #divergences-h { "Divergences" }
                @if summary.found.is_empty() { p { "None." } }
                @for (fingerprint, found) in &summary.found { (divergence(fingerprint, found)) }
            }
            section #known aria-labelledby="known-h" {
                h2 #known-h { "Known divergences" }
                @if summary.known.is_empty() { p { "None occurred." } } @else {
                    @let known = summary.known.iter().map(|(name, known)| (name, &known.times));
                    (counts("docs/quirks.md describes those of QEMU", known, summary))
                }
            }
            section #distribution aria-labelledby="distribution-h" {
                h2 #distribution-h { "Distribution" }
                @for (heading, group) in summary.distribution.groups() {
                    (counts(heading, group.iter(), summary))
                }
            }
        }
    };
    document(&title, &body)
}

fn facts(summary: &Summary) -> Markup {
    let Summary { rng_seed, qemu_version, tested, seconds, rate, is_complete, .. } = summary;
    let iterations = summary.distribution.iterations;
    html! {
        dl {
            dt { "Seed" } dd { (rng_seed) }
            dt { "Iterations" } dd {
                (iterations) " in " (format!("{seconds:.0} s, {rate:.1} a second"))
                @if !is_complete { ", not complete" }
            }
            dt { "CPU time" } dd {
                @for (index, (name, share)) in summary.cpu_seconds.shares().iter().enumerate() {
                    @if index > 0 { ", " }
                    (name) " " (format!("{:.0}%", share * 100.0))
                }
            }
            dt { "QEMU" } dd { (qemu_version) }
            dt { "Tested" } dd { (tested) }
        }
    }
}

fn divergence(fingerprint: &str, found: &FoundDivergence) -> Markup {
    let FoundDivergence { times, iteration, detail, commands, folder } = found;
    html! {
        article {
            h3 { (fingerprint) }
            p {
                "Met by " (times) @if *times == 1 { " iteration" } @else { " iterations" }
                ", first by iteration " (iteration) "."
            }
            @if !folder.is_empty() {
                p { "Files: " a href=(folder) { (folder) } }
            }
            p.detail { (detail) }
            pre { @for command in commands { (command) "\n" } }
        }
    }
}

/// Returns a table of counts, with their shares of all iterations.
fn counts<'c>(
    caption: &str,
    counts: impl Iterator<Item = (&'c String, &'c u64)>,
    summary: &Summary,
) -> Markup {
    let all = summary.distribution.iterations.max(1) as f64;
    html! {
        div.scroll { table {
            caption { (caption) }
            thead { tr { th scope="col" { "Name" } th scope="col" { "Iterations" } th scope="col" { "Share" } } }
            tbody {
                @for (name, count) in counts {
                    tr {
                        th scope="row" { (name) }
                        td.number { (count) }
                        td.number { (format!("{:.1}%", *count as f64 / all * 100.0)) }
                    }
                }
            }
        } }
    }
}
