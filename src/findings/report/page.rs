//! The page of a report: the program, the files, the disk and the entries, as HTML with its style and its script
//! inside.

mod disk;
mod files;
mod layout;
mod tables;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use crate::findings::report::qemu::QemuResult;
use crate::findings::report::{Report, Verdict, fault};

use layout::{Links, failing, table};

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Returns the page of a report, with the answer of qemu-img.
pub fn render(report: &Report, result: &QemuResult) -> String {
    let evidence = &report.evidence;
    let links = Links::new(&evidence.steps);
    let failing = failing(&evidence.steps).and_then(|at| evidence.steps.get(at)?.number);
    let body = html! {
        (patterns())
        (heading(report))
        main {
            p.hint {
                "Point at an operation, a part of a picture or a row, or move to it with Tab and the arrow "
                "keys: the page marks the related items. Click, or press Enter or Space, to hold the mark. "
                "Press Escape to release it."
            }
            (tables::program(report))
            (tables::lanes(report))
            (files::section(&evidence.files, &links, failing))
            (disk::section(report, result, &links))
            (tables::entries(&evidence.files, &links, failing))
            (vitals(report))
        }
        (dock())
        script { (PreEscaped(SCRIPT)) }
    };
    document(report.judgement(), &body)
}

/// Returns a page with the style of reports, which loads nothing.
pub(crate) fn document(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (title) " · qcowfuzz" }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    page.into_string()
}

/// Returns the content security policy: the page loads nothing, and runs only its own style and script.
fn policy() -> String {
    let digest = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    let (style, script) = (digest(STYLE), digest(SCRIPT));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; \
         base-uri 'none'; form-action 'none'"
    )
}

fn heading(report: &Report) -> Markup {
    let Report { input, target, verdict, detail, .. } = report;
    let style = if *verdict == Verdict::Violation { "violation" } else { "fine" };
    html! {
        header {
            h1 .(style) { (report.judgement()) }
            @if let Some(fingerprint) = &report.fingerprint { p { "Fault: " (fault::kind(fingerprint)) "." } }
            @if let Some(writers) = &report.writers { p { "Such images: " (writers) "." } }
            @if let Some(detail) = detail { p.detail { (detail) } }
            dl {
                dt { "Input" } dd { (input) }
                dt { "Run" } dd { (report.course()) }
                dt { "Target" } dd { (target.name()) }
                dt { "Implementation" } dd { (report.implementation) }
                dt { "Made by" } dd { "qcowfuzz " (env!("CARGO_PKG_VERSION")) }
            }
            nav aria-label="Sections" {
                a href="#program" { "Program" } " "
                a href="#files" { "Host files" } " "
                a href="#disk" { "Guest disk" } " "
                a href="#entries" { "Entries" } " "
                a href="#vitals" { "Vitals" }
            }
        }
    }
}

fn vitals(report: &Report) -> Markup {
    let vitals = &report.evidence.vitals;
    let rows = html! {
        @for (name, value) in vitals { tr { th scope="row" { (name) } td.number { (value) } } }
    };
    html! {
        section #vitals aria-labelledby="vitals-h" {
            h2 #vitals-h { "Vitals" }
            @if vitals.is_empty() { p { "The run recorded none." } }
            @else { (table("", "Measures of the last image", &["Vital", "Value"], &rows)) }
        }
    }
}

/// Returns the element in which the script describes the marked item. Without the script, it stays empty.
fn dock() -> Markup {
    html! {
        aside #dock aria-label="Marked item" {
            p #status role="status" aria-live="polite" {}
            button #release type="button" hidden { "Release (Esc)" }
            ul #jumps aria-label="Related items" {}
        }
    }
}

/// Returns the patterns of the pictures. Each colour has a pattern too, for readers who cannot distinguish colours.
fn patterns() -> Markup {
    html! {
        svg.definitions width="0" height="0" aria-hidden="true" focusable="false" {
            defs {
                pattern #hatch width="6" height="6" patternUnits="userSpaceOnUse" {
                    path d="M-1,7 L7,-1 M-1,1 L1,-1 M5,7 L7,5" {}
                }
                pattern #cross width="6" height="6" patternUnits="userSpaceOnUse" {
                    path d="M0,0 L6,6 M6,0 L0,6" {}
                }
                pattern #dots width="6" height="6" patternUnits="userSpaceOnUse" {
                    circle cx="2" cy="2" r="0.9" {}
                }
                pattern #bars width="5" height="5" patternUnits="userSpaceOnUse" {
                    path d="M0,2.5 L5,2.5" {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
