//! The page around the sections, with its style and its script inside.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use crate::cli::account::{Account, Verdict};

use super::links::{Links, failing};
use super::qemu_result::QemuResult;
use super::{disk, entries, program, strip};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The whole page.
pub fn page(account: &Account, result: &QemuResult) -> String {
    let evidence = &account.evidence;
    let links = Links::new(&evidence.steps);
    let failing = failing(&evidence.steps).and_then(|at| evidence.steps.get(at)?.number);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (account.judgement()) " · qcowfuzz" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (patterns())
                (heading(account))
                main {
                    p.hint {
                        "Point at an operation, a part of a picture or a row, or go there with Tab and the arrow "
                        "keys: what belongs to it is marked. Click, Enter or Space hold the mark, Escape lets go."
                    }
                    (program::section(account))
                    (strip::section(&evidence.files, &links, failing))
                    (disk::section(account, result, &links))
                    (entries::section(&evidence.files, &links, failing))
                    (vitals(account))
                }
                (dock())
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// Nothing is loaded, and nothing runs but what the page came with.
fn policy() -> String {
    let digest = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    let (style, script) = (digest(STYLE), digest(SCRIPT));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; \
         base-uri 'none'; form-action 'none'"
    )
}

fn heading(account: &Account) -> Markup {
    let Account { input, target, verdict, detail, .. } = account;
    let style = if *verdict == Verdict::Violation { "violation" } else { "fine" };
    html! {
        header {
            h1 .(style) { (account.judgement()) }
            @if let Some(detail) = detail { p.detail { (detail) } }
            dl {
                dt { "Input" } dd { (input) }
                dt { "Run" } dd { (account.course()) }
                dt { "Target" } dd { (target.name()) }
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

fn vitals(account: &Account) -> Markup {
    let vitals = &account.evidence.vitals;
    html! {
        section #vitals aria-labelledby="vitals-h" {
            h2 #vitals-h { "Vitals" }
            @if vitals.is_empty() { p { "None were taken." } } @else {
                div.scroll { table.vitals {
                    caption { "Measures of the last image" }
                    thead { tr { th scope="col" { "Vital" } th scope="col" { "Value" } } }
                    tbody {
                        @for (name, value) in vitals {
                            tr { th scope="row" { (name) } td.number { (value) } }
                        }
                    }
                } }
            }
        }
    }
}

/// Where the script says what is marked. Without it there is nothing to see here.
fn dock() -> Markup {
    html! {
        aside #dock aria-label="What is marked" {
            p #status role="status" aria-live="polite" {}
            button #release type="button" hidden { "Let go (Esc)" }
            ul #jumps aria-label="Go there" {}
        }
    }
}

/// The patterns of the pictures: colour is never the only sign.
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
