//! The guest disk according to the reference model, the walker and qemu-img: three rows to one scale, and a table of
//! the same extents.

use std::iter;
use std::ops::Range;

use maud::{Markup, html};

use crate::findings::explain::Explanation;
use crate::findings::report::Report;
use crate::findings::report::qemu::QemuResult;
use crate::findings::report::records::MapRecord;
use crate::harness::cases::target::Expectation;
use crate::images::files::export::Holes;

use super::layout::{Links, MAX_SHOWN_EXTENTS, shown, spoken};
use super::picture::{ReaderExtents, picture};

/// Returns the section.
pub fn section(report: &Report, result: &QemuResult, links: &Links) -> Markup {
    let evidence = &report.evidence;
    let mut answers = [expected(report), actual(report), qemu(result)];
    let left = choose(&mut answers, evidence.first_difference);
    let first = evidence.first_difference.and_then(|at| {
        let lists = [&evidence.expected, &evidence.actual];
        lists.iter().filter_map(|list| list.get(at)).map(|record| record.start).min()
    });
    let explanation = evidence.explanation();
    html! {
        section #disk aria-labelledby="disk-h" {
            h2 #disk-h { "The guest disk" }
            @match (first, evidence.first_difference) {
                (Some(first), Some(at)) => p {
                    strong { "First difference" } " between the reference model and the walker: at guest offset "
                    code { (format!("{first:#x}")) } ", extent " (at) "."
                },
                _ if !evidence.expected.is_empty() && !evidence.actual.is_empty() => p {
                    "The reference model and the walker agree."
                },
                _ => {}
            }
            ul.answers {
                @for answer in &answers {
                    @if let Some(said) = &answer.said { li { strong { (answer.who) } ": " (said) } }
                }
            }
            @if answers.iter().any(|answer| !answer.chosen.is_empty()) {
                (picture(&answers, first))
                @if let Some(left) = left { p.left-out { (left) } }
                (table(&answers, first, explanation, links))
            }
        }
    }
}

fn expected(report: &Report) -> ReaderExtents<'_> {
    let records = &report.evidence.expected;
    let damaged = report.evidence.files.iter().flat_map(|file| &file.entries);
    let cut = report.evidence.files.iter().any(|file| file.cut_to_bytes.is_some());
    let said = match (report.target.definition().expectation, records.is_empty()) {
        (Expectation::Unknown, _) => {
            Some("no program built the file, so it has no expected extents.".to_string())
        }
        (Expectation::Bytes, _) => {
            Some("QEMU made the disk, so it has no expected extents.".to_string())
        }
        (_, true) => Some("no extents.".to_string()),
        (Expectation::UntouchedExtents, false)
            if cut || damaged.into_iter().any(|entry| entry.damaged.is_some()) =>
        {
            Some("the disk before the damage.".to_string())
        }
        (Expectation::Written, false) => Some("the disk before the requests.".to_string()),
        _ => None,
    };
    ReaderExtents {
        key: "expected",
        who: "Reference model".into(),
        records,
        said,
        chosen: Vec::new(),
    }
}

fn actual(report: &Report) -> ReaderExtents<'_> {
    let records = &report.evidence.actual;
    let said = match (&report.evidence.walk_ended, report.target.definition().expectation) {
        (Some(ended), _) => Some(format!("the walk ended early: {ended}.")),
        (None, Expectation::NotWalked) => Some("the target walks no disk.".to_string()),
        _ if records.is_empty() => Some("no extents.".to_string()),
        _ => None,
    };
    ReaderExtents { key: "actual", who: "Walker".into(), records, said, chosen: Vec::new() }
}

fn qemu(result: &QemuResult) -> ReaderExtents<'_> {
    let who = match &result.version {
        Some(version) => format!("qemu-img {version}"),
        None => "qemu-img".to_string(),
    };
    let (records, said) = match &result.answer {
        Ok(map) if map.records.is_empty() => (&[][..], Some("no extents.".to_string())),
        Ok(map) if map.holes == Holes::Keep => {
            let said = "the files are too long to write without holes, so qemu-img may report clusters without data as \
                        zeros.";
            (map.records.as_slice(), Some(said.to_string()))
        }
        Ok(map) => (map.records.as_slice(), None),
        Err(why) => (&[][..], Some(format!("{}.", why.to_string().trim_end_matches('.')))),
    };
    ReaderExtents { key: "qemu", who, records, said, chosen: Vec::new() }
}

/// Chooses the extents of each reader that the page shows. If a list is long, these are the first extents and those
/// around `focus`, an extent of the model or the walker. Returns a sentence about the extents that are left out.
fn choose(answers: &mut [ReaderExtents; 3], focus: Option<usize>) -> Option<String> {
    let counts = answers.each_ref().map(|answer| answer.records.len());
    let longest = answers.iter().take(2).max_by_key(|answer| answer.records.len());
    let longest = match longest.filter(|answer| !answer.records.is_empty()) {
        Some(answer) => answer.records,
        None => answers[2].records,
    };
    let windows: Vec<Range<u64>> = match longest.len() <= MAX_SHOWN_EXTENTS {
        true => iter::once(0..u64::MAX).collect(),
        false => {
            let ranges = shown(longest.len(), MAX_SHOWN_EXTENTS, focus);
            let window = |range: Range<usize>| {
                let (first, last) =
                    (longest.get(range.start)?, longest.get(range.end.checked_sub(1)?)?);
                Some(first.start..last.guest().end)
            };
            ranges.into_iter().filter_map(window).collect()
        }
    };
    for answer in answers.iter_mut() {
        let inside = |record: &&MapRecord| {
            windows
                .iter()
                .any(|window| record.start < window.end && window.start < record.guest().end)
        };
        let records = answer.records.iter().enumerate();
        answer.chosen = records.filter(|(_, it)| inside(it)).take(2 * MAX_SHOWN_EXTENTS).collect();
    }
    let shortened =
        answers.iter().zip(counts).filter(|(answer, count)| answer.chosen.len() < *count);
    let shortened: Vec<_> = shortened
        .map(|(answer, count)| format!("{}: {} of {count}", answer.who, answer.chosen.len()))
        .collect();
    (!shortened.is_empty()).then(|| {
        let shortened = shortened.join("; ");
        format!(
            "This page does not show all extents. {shortened}. 'qcowfuzz replay --json' prints those of the model and \
             the walker."
        )
    })
}

fn table(
    answers: &[ReaderExtents; 3],
    first: Option<u64>,
    explanation: Option<&Explanation>,
    links: &Links,
) -> Markup {
    let mut starts: Vec<u64> =
        answers.iter().flat_map(|it| &it.chosen).map(|(_, record)| record.start).collect();
    starts.sort_unstable();
    starts.dedup();
    html! {
        div.scroll {
            table.group.extents {
                caption { "As a table: the guest bytes, their kind, and their host offset" }
                thead { tr {
                    th scope="col" { "Guest" }
                    @for answer in answers { th scope="col" { (answer.who) } }
                    th scope="col" { "Compared" }
                } }
                tbody {
                    @for start in starts {
                        @let compared = compared(answers, start, first);
                        tr .difference[!compared.is_empty()] {
                            th scope="row" { (format!("{start:#x}")) }
                            @for answer in answers { (cell(answer, start, explanation, links)) }
                            td { @if compared.is_empty() { span.quiet { "same" } }
                                @else { strong { (compared) } } }
                        }
                    }
                }
            }
        }
    }
}

/// Describes the difference between the readers at `start`.
fn compared(answers: &[ReaderExtents; 3], start: u64, first: Option<u64>) -> String {
    let [expected, actual, qemu] = answers.each_ref().map(|answer| {
        let at = answer.chosen.iter().filter(|(_, record)| record.start == start);
        at.map(|(_, record)| **record).collect::<Vec<_>>()
    });
    let [has_expected, has_actual, has_qemu] = answers.each_ref().map(|it| !it.records.is_empty());
    let mut notes = Vec::new();
    if first == Some(start) {
        notes.push("first difference");
    } else if expected != actual && has_expected && (has_actual || first.is_some()) {
        notes.push("differs");
    }
    if has_qemu && has_actual && qemu != actual {
        notes.push("qemu-img and the walker differ");
    }
    notes.join("; ")
}

fn cell(
    answer: &ReaderExtents,
    start: u64,
    explanation: Option<&Explanation>,
    links: &Links,
) -> Markup {
    let here: Vec<_> = answer.chosen.iter().filter(|(_, record)| record.start == start).collect();
    let goes_on = || answer.chosen.iter().any(|(_, record)| record.guest().contains(&start));
    html! {
        td {
            @if here.is_empty() {
                span.quiet {
                    @if answer.chosen.is_empty() { "no extents" } @else if goes_on() { "continues" } @else { "nothing" }
                }
            }
            @for (at, record) in here { (extent(answer, *at, record, explanation, links)) }
        }
    }
}

fn extent(
    answer: &ReaderExtents,
    at: usize,
    record: &MapRecord,
    explanation: Option<&Explanation>,
    links: &Links,
) -> Markup {
    let depth = record.present.then_some(record.depth).and_then(|it| usize::try_from(it).ok());
    let touching = |it: &Explanation| it.touching(&record.guest(), depth);
    let operations = explanation.map(touching).unwrap_or_default();
    let key = format!("{}-{at}", answer.key);
    let extent = record.extent();
    html! {
        div id=(key) data-item=(key) data-kind="extent" data-ops=(links.list(&operations))
            data-says=(format!("{}: guest {extent}", answer.who)) data-by=(spoken(&operations))
        { span.handle { (format!("+{:#x} {}", record.length, extent.mapping)) } }
    }
}
