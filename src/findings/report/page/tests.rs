//! Pages of made-up findings. The seeds of the corpus show no findings.

use std::path::Path;

use crate::findings::report::examiner::Examiner;
use crate::findings::report::{Report, Verdict};
use crate::harness::cases::implementation::Implementation;
use crate::harness::oracles::Violation;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Failure};
use crate::images::files::FileNames;
use crate::programs::text::assemble;

use super::*;

const IMAGE: &str = "image version=3 cluster_bits=12 refcount_order=4 features=none size=33<<12+0 rng_seed=0 \
                     blocks=append table=append tolerance=0";

/// Returns the report of a program with these operations, and a made-up finding after `operations_run` of them.
fn reported(operations: &str, operations_run: usize) -> Report {
    let input = assemble(&format!("{IMAGE}\n{operations}")).unwrap().encode();
    let mut examiner = Examiner::new(
        &Implementation::our_walker(),
        TargetKind::MapExtents,
        Checks::default(),
        FileNames::default(),
    );
    let mut report = examiner.examine(Path::new("<script>alert(1)</script>"), &input);
    let violation = Violation {
        oracle: "model",
        drawn: false,
        field: "kind",
        expected: "a <b>",
        actual: "c & \"d\"",
        error: None,
        guest: None,
        detail: "<img src=x>".to_string(),
    };
    let failure = Failure { violation, operations_run };
    report.verdict = Verdict::Violation;
    report.fingerprint = Some(failure.violation.fingerprint());
    report.detail = Some(failure.violation.detail.clone());
    (report.effective, report.images) = (None, None);
    report.operations_run = Some(operations_run);
    report.evidence.mark(operations_run);
    report
}

fn silent() -> QemuResult {
    QemuResult { version: None, answer: Err("not run".to_string()) }
}

/// Returns the number of occurrences of a string on the page.
fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

const SMALL: &str = "write at=start+0 clusters=3\nzero at=start+1 clusters=1 keep=yes\nwrite at=start+9 clusters=1\n";

#[test]
fn what_was_found_comes_first_and_its_operation_is_marked_in_words() {
    let page = render(&reported(SMALL, 2), &silent());
    assert!(
        page.contains(
            "<h1 class=\"violation\">model: kind, a &lt;b&gt; → c &amp; &quot;d&quot;</h1>"
        )
    );
    assert!(page.contains("<p class=\"detail\">&lt;img src=x&gt;</p>"));
    assert!(page.contains("<dd>&lt;script&gt;alert(1)&lt;/script&gt;</dd>"));
    assert!(page.contains("found after 2 of 3 operations"));
    assert_eq!((count(&page, "<script"), count(&page, "<img")), (1, 0));
    let (before, after) = page.split_once("found after this</strong>").unwrap();
    assert!(before.contains("id=\"op-1\"") && !before.contains("id=\"op-2\""));
    assert!(after.contains("id=\"op-2\"") && !after.contains("found after this"));
    assert!(page.contains("<strong>qemu-img</strong>: not run."));
}

#[test]
fn the_first_difference_is_marked_in_the_picture_and_in_the_table() {
    let mut report = reported(SMALL, 3);
    assert!(
        render(&report, &silent()).contains("The reference model and the implementation agree.")
    );
    let extent = report.evidence.actual[1];
    assert_eq!(extent.mapping.kind(), "zero-allocated");
    report.evidence.actual[1].mapping.offset = None;
    report.evidence.first_difference = Some(1);
    let page = render(&report, &silent());
    assert!(page.contains("at guest offset <code>0x1000</code>, extent 1."));
    assert!(page.contains("▼ first difference"));
    let row = page.split("<tr class=\"difference\">").nth(1).unwrap();
    let row = row.split("</tr>").next().unwrap();
    for expected in [
        "<th scope=\"row\">0x1000</th>",
        "+0x1000 zero-allocated at 0x",
        "+0x1000 zero-plain<",
        "<strong>first difference</strong>",
    ] {
        assert!(row.contains(expected), "{expected}: {row}");
    }
    assert_eq!(count(&page, "<tr class=\"difference\">"), 1);
}

#[test]
fn counts_that_disagree_are_spelled_out() {
    let mut report = reported(SMALL, 3);
    report.evidence.files[0].runs[0].on_disk = 7;
    let page = render(&report, &silent());
    assert_eq!(count(&page, "does not match</strong>"), 1);
}

/// The program has the maximum length, and many extents and runs.
#[test]
fn a_large_input_gives_a_page_that_opens_and_says_what_is_left_out() {
    let operations: String =
        (0..3000).map(|at| format!("write at=start+{} clusters=1\n", at * 2 % 4000)).collect();
    let operations = operations.as_str();
    let image = IMAGE.replace("33<<12", "8000<<12");
    let input = assemble(&format!("{image}\n{operations}")).unwrap().encode();
    let mut examiner = Examiner::new(
        &Implementation::our_walker(),
        TargetKind::MapExtents,
        Checks::default(),
        FileNames::default(),
    );
    let mut report = examiner.examine(Path::new("large"), &input);
    assert!(report.evidence.expected.len() > 2000 && report.evidence.files[0].entries.len() > 2000);
    report.evidence.mark(2500);
    report.evidence.first_difference = Some(1500);
    let page = render(&report, &silent());
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
    assert!(page.contains("This page shows 600 of 3000 records"), "operations");
    assert!(page.contains("This page does not show all extents. Reference model: 2"), "extents");
    assert!(page.contains("This page shows 300 of "), "entries");
    // The page shows the elements around the finding.
    for id in ["op-0", "op-2499", "expected-0", "expected-1500", "actual-1500"] {
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
    }
    assert!(!page.contains("id=\"op-1000\"") && !page.contains("href=\"#op-1000\""));
}
