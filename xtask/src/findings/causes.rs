//! The causes of findings: a cause may have several programs.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::data::{Finding, Findings, Rule, Severity};

/// All findings, by their causes.
pub struct Causes<'a> {
    /// The findings as they are in the files.
    pub all: &'a [Findings],
    /// The rules that damaged images break.
    pub rules: &'a [Rule],
    /// The bugs, the worst first; of bugs of one severity, those on images that QEMU makes first.
    pub bugs: Vec<Bug<'a>>,
}

/// A cause that is no acceptance of damage.
pub struct Bug<'a> {
    pub of: &'a Findings,
    pub name: &'a str,
    pub severity: Severity,
    pub reason: &'a str,
    pub made_by_qemu: bool,
    pub makers: Option<&'a str>,
    /// The way to see it, if no program shows it.
    pub see: Option<&'a str>,
}

/// A cell of the matrix has one for each finding.
pub struct Cell<'a> {
    pub of: &'a Findings,
    pub row: &'a str,
    pub severity: Severity,
    pub made_by_qemu: bool,
    /// The implementation shows it while it writes.
    pub is_writing: bool,
}

/// Reports whether a fuzz target has requests to write.
fn is_writing(target: &str) -> bool {
    matches!(target, "writes" | "hostile_writes")
}

impl<'a> Causes<'a> {
    /// Groups findings by their causes.
    pub fn new(all: &'a [Findings], rules: &'a [Rule]) -> Self {
        let mut causes = Self { all, rules, bugs: Vec::new() };
        causes.bugs = all.iter().flat_map(|of| causes.bugs_of(of)).collect();
        causes.bugs.sort_by_key(|it| {
            (it.severity, Reverse(it.made_by_qemu), it.of.implementation.title.to_lowercase())
        });
        causes
    }

    fn bugs_of(&self, of: &'a Findings) -> Vec<Bug<'a>> {
        let firsts = of.findings.iter();
        let firsts = firsts.filter(|it| it.same_cause_as.is_none() && !self.is_acceptance(it));
        let elsewhere = of.elsewhere.iter().map(|it| Bug {
            of,
            name: &it.name,
            severity: it.severity,
            reason: &it.reason,
            made_by_qemu: it.made_by_qemu,
            makers: Some(&it.makers),
            see: Some(&it.see),
        });
        firsts.map(|it| self.bug(of, it)).chain(elsewhere).collect()
    }

    /// Returns the bug of a cause whose first finding is `first`.
    fn bug(&self, of: &'a Findings, first: &'a Finding) -> Bug<'a> {
        let rule = self.rule_of(first);
        let others = of.findings.iter().filter(|it| it.same_cause_as.as_ref() == Some(&first.name));
        let with = || [first].into_iter().chain(others.clone());
        let by_qemu = with().find(|it| it.made_by_qemu);
        let makers = by_qemu.unwrap_or(first).makers.as_deref();
        let reason = first.reason.as_deref().or(rule.map(|it| &*it.reason));
        Bug {
            of,
            name: &first.name,
            severity: first.severity,
            reason: reason.unwrap_or_default(),
            made_by_qemu: by_qemu.is_some() || rule.is_some_and(|it| it.made_by_qemu),
            makers: makers.or(rule.and_then(|it| it.makers.as_deref())),
            see: None,
        }
    }

    /// Returns the rule that a finding breaks.
    fn rule_of(&self, finding: &Finding) -> Option<&'a Rule> {
        let name = finding.rule()?;
        self.rules.iter().find(|it| it.name == name)
    }

    /// Reports whether a finding is the acceptance of a damaged image.
    pub fn is_acceptance(&self, finding: &Finding) -> bool {
        self.rule_of(finding).is_some_and(|it| !it.made_by_qemu)
    }

    /// Returns the cells of the matrix.
    pub fn cells(&self) -> impl Iterator<Item = Cell<'a>> {
        self.all.iter().flat_map(move |of| {
            let findings = of.findings.iter().map(move |it| Cell {
                of,
                row: it.rule().or(it.feature.as_deref()).unwrap_or_default(),
                severity: it.severity,
                made_by_qemu: it.made_by_qemu
                    || self.rule_of(it).is_some_and(|rule| rule.made_by_qemu),
                is_writing: is_writing(it.target()),
            });
            let elsewhere = of.elsewhere.iter().map(move |it| Cell {
                of,
                row: &it.feature,
                severity: it.severity,
                made_by_qemu: it.made_by_qemu,
                is_writing: it.target.as_deref().is_some_and(is_writing),
            });
            findings.chain(elsewhere)
        })
    }

    /// Returns a line with the numbers of findings, causes and fingerprints.
    pub fn figures(&self) -> String {
        let findings: usize = self.all.iter().map(|it| it.findings.len()).sum();
        let firsts =
            |of: &Findings| of.findings.iter().filter(|it| it.same_cause_as.is_none()).count();
        let causes: usize = self.all.iter().map(firsts).sum();
        let fingerprints = |of: &Findings| {
            of.findings.iter().map(|it| &it.fingerprint).collect::<BTreeSet<_>>().len()
        };
        let fingerprints: usize = self.all.iter().map(fingerprints).sum();
        let each = fingerprints as f64 / causes as f64;
        format!(
            "{findings} findings with {causes} causes and {fingerprints} fingerprints, {each:.2} for each cause"
        )
    }
}
