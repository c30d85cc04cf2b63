//! Known findings: bugs of an implementation that its user has set aside, so that new ones stand out.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::base::error::Error;

/// A finding that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KnownFinding {
    /// The fingerprint. `*` stands for any text, for one cause that has several fingerprints.
    pub fingerprint: String,
    /// Why the finding is a bug, or why it is set aside.
    pub reason: String,
    /// The address of the report to the implementation, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// If there are any lists, the finding is known only in recipes: each text of one of the lists is a command of the
    /// recipe. `*` stands for any text.
    #[serde(skip)]
    pub recipes: Vec<Vec<String>>,
}

/// The most fingerprints that a [`MetFinding`] lists, and the most of a known finding in the summary of a campaign: an
/// error text can make very many.
pub(crate) const MAX_SEEN: usize = 32;

/// A known finding that a run met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetFinding {
    /// The fingerprint of the known finding, in which `*` stands for any text.
    pub known: String,
    /// The fingerprints that belong to it, each once, in the order in which the run met them: the first 32.
    pub seen: Vec<String>,
}

/// Findings that a user has set aside. The oracle that meets one records it, and the run goes on with the next oracle.
/// A known panic ends its run, and is not a new finding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownFindings(Arc<[KnownFinding]>);

/// The form of a file of known findings, for error messages.
const EXPECTED_TABLES: &str =
    "expected [[finding]] with fingerprint and reason, and optionally link and recipes";

/// A file of known findings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFile {
    #[serde(default)]
    finding: Vec<ListedFinding>,
}

/// A finding of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedFinding {
    fingerprint: Spanned<String>,
    reason: Spanned<String>,
    link: Option<String>,
    #[serde(default)]
    recipes: Vec<Vec<String>>,
}

impl KnownFindings {
    /// Creates a list of findings.
    pub fn new(findings: impl IntoIterator<Item = KnownFinding>) -> Self {
        Self(findings.into_iter().collect())
    }

    /// Reads the text of a file of known findings, in TOML:
    ///
    /// ```
    /// use qcowfuzz::harness::KnownFindings;
    ///
    /// let known = KnownFindings::parse(r#"
    ///     [[finding]]
    ///     fingerprint = "model: kind, zero-plain → unallocated"
    ///     reason = "The reader ignores the zero flag."
    ///     link = "https://example.org/issues/1"
    /// "#)?;
    /// assert!(known.contains("model: kind, zero-plain → unallocated"));
    /// # Ok::<(), qcowfuzz::base::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// The line that is wrong, and the text that was expected.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let error_at = |span: Range<usize>, what: String| {
            let line = 1 + text[..span.start].matches('\n').count();
            Error::Text { line, what }
        };
        let file: KnownFile = toml::from_str(text).map_err(|error| {
            let what = error.message().lines().collect::<Vec<_>>().join(", ");
            error_at(error.span().unwrap_or(0..0), format!("{what}; {EXPECTED_TABLES}"))
        })?;
        let mut findings: Vec<KnownFinding> = Vec::new();
        for ListedFinding { fingerprint, reason, link, recipes } in file.finding {
            let (spans, fingerprint) =
                ([fingerprint.span(), reason.span()], fingerprint.into_inner());
            let [at, reason_at] = spans;
            if fingerprint.lines().count() != 1 || !fingerprint.contains(": ") {
                let expected = "expected one line, such as 'model: kind, normal → zero-plain'";
                return Err(error_at(
                    at,
                    format!("found the fingerprint '{fingerprint}', {expected}"),
                ));
            }
            if findings.iter().any(|finding| finding.fingerprint == fingerprint) {
                let expected = "expected each fingerprint once";
                return Err(error_at(at, format!("found '{fingerprint}' again, {expected}")));
            }
            let reason = reason.into_inner();
            if reason.trim().is_empty() {
                let expected = "expected why the finding is a bug, or why it is set aside";
                return Err(error_at(reason_at, format!("found no reason, {expected}")));
            }
            findings.push(KnownFinding { fingerprint, reason, link, recipes });
        }
        Ok(Self::new(findings))
    }

    /// Returns these findings and those of `others` that are not among them.
    pub fn and(&self, others: &Self) -> Self {
        let mut all = self.0.to_vec();
        for other in others.iter().filter(|finding| !self.contains(&finding.fingerprint)) {
            match all.iter_mut().find(|finding| finding.fingerprint == other.fingerprint) {
                Some(same) if other.recipes.is_empty() => same.recipes.clear(),
                Some(same) => same.recipes.extend(other.recipes.iter().cloned()),
                None => all.push(other.clone()),
            }
        }
        Self::new(all)
    }

    /// Reports whether the finding with this fingerprint is known.
    pub fn contains(&self, fingerprint: &str) -> bool {
        self.find(fingerprint).is_some()
    }

    /// Returns the first known finding to which this fingerprint belongs if the input is no recipe.
    pub fn find(&self, fingerprint: &str) -> Option<&KnownFinding> {
        self.find_in(fingerprint, &[])
    }

    /// Returns the first known finding to which this fingerprint belongs in a recipe with these commands. An input that
    /// is no recipe has none.
    pub fn find_in(&self, fingerprint: &str, commands: &[String]) -> Option<&KnownFinding> {
        let has = |text: &String| commands.iter().any(|command| is_of(command, text));
        let is_in = |finding: &KnownFinding| {
            let mut recipes = finding.recipes.iter();
            finding.recipes.is_empty()
                || !commands.is_empty() && recipes.any(|texts| texts.iter().all(has))
        };
        self.iter().find(|finding| is_of(fingerprint, &finding.fingerprint) && is_in(finding))
    }

    /// Reports whether no finding is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the findings.
    pub fn iter(&self) -> impl Iterator<Item = &KnownFinding> {
        self.0.iter()
    }
}

impl MetFinding {
    /// Adds a fingerprint that belongs to the known finding `known` to those that were met. Reports whether the list
    /// did not have it before.
    pub(crate) fn add(met: &mut Vec<Self>, known: &KnownFinding, fingerprint: &str) -> bool {
        let known = &known.fingerprint;
        let at = met.iter().position(|it| it.known == *known).unwrap_or_else(|| {
            met.push(Self { known: known.clone(), seen: Vec::new() });
            met.len() - 1
        });
        let seen = &mut met[at].seen;
        let is_new = seen.len() < MAX_SEEN && !seen.iter().any(|it| it == fingerprint);
        if is_new {
            seen.push(fingerprint.to_string());
        }
        is_new
    }
}

/// Reports whether a fingerprint belongs to a known one, in which `*` stands for any text.
pub(crate) fn is_of(fingerprint: &str, known: &str) -> bool {
    let mut parts = known.split('*');
    let Some(mut rest) = parts.next().and_then(|first| fingerprint.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        "# A comment.\n[[finding]]\nfingerprint = \"data: range, a → b\"\nreason = \"A bug.\"\n";

    #[test]
    fn files_are_read_and_wrong_ones_are_named_by_a_line() {
        let known = KnownFindings::parse(ONE).unwrap();
        assert!(known.contains("data: range, a → b") && !known.contains("data: range, a"));
        assert!(KnownFindings::parse("# Nothing yet.\n").unwrap().is_empty());
        let linked = format!("{ONE}link = \"https://example.org\"\n");
        let known = KnownFindings::parse(&linked).unwrap();
        assert_eq!(known.iter().next().unwrap().link.as_deref(), Some("https://example.org"));
        let error_of = |text: &str| KnownFindings::parse(text).unwrap_err().to_string();
        for (text, line, what) in [
            ("[[findings]]\n".to_string(), 1, "unknown field `findings`"),
            (ONE.replace("reason", "reasons"), 4, "unknown field `reasons`"),
            (ONE.replace("reason = \"A bug.\"", ""), 2, "missing field `reason`"),
            (ONE.replace("\"A bug.\"", "A bug."), 4, "string values must be quoted"),
            (ONE.replace("[[finding]]", "[finding]"), 2, "invalid type: map, expected a sequence"),
        ] {
            let error = error_of(&text);
            let start = format!("line {line}: ");
            assert!(error.starts_with(&start) && error.contains(what), "{error}");
            assert!(error.ends_with(EXPECTED_TABLES) && error.lines().count() == 1, "{error}");
        }
        let twice = format!("{ONE}{ONE}");
        let found = "line 7: found 'data: range, a → b' again, expected each fingerprint once";
        assert_eq!(error_of(&twice), found);
        assert!(error_of(&ONE.replace("A bug.", " ")).starts_with("line 4: found no reason"));
        let no_fingerprint = ONE.replace("data: range, a → b", "data");
        assert!(error_of(&no_fingerprint).starts_with("line 3: found the fingerprint 'data'"));
    }

    #[test]
    fn a_star_is_any_text() {
        for (known, is_known) in [
            ("data: range, a → b (c)", true),
            ("data: *, a → b (c)", true),
            ("*: range, *(c)", true),
            ("*", true),
            ("data: *", true),
            ("data: *, a → b", false),
            ("*: lookup, *", false),
            ("data: range, a → b (c)*d", false),
            ("data: range, a → b (c) *", false),
        ] {
            assert_eq!(is_of("data: range, a → b (c)", known), is_known, "{known}");
        }
    }

    #[test]
    fn a_finding_of_a_recipe_is_known_in_such_recipes_only() {
        let known = format!("{ONE}recipes = [[\"resize *\", \"create*\"], [\"create -b *\"]]\n");
        let known = KnownFindings::parse(&known).unwrap();
        let is_known = |commands: &[&str]| {
            let commands: Vec<_> = commands.iter().map(|command| command.to_string()).collect();
            known.find_in("data: range, a → b", &commands).is_some()
        };
        assert!(is_known(&["create", "resize 1M"]) && is_known(&["create -b a"]));
        assert!(!is_known(&["create"]) && !is_known(&["resize 1M"]) && !is_known(&[]));
        let all = KnownFindings::parse(&format!("{ONE}recipes = [[]]\n")).unwrap();
        let commands = ["create".to_string()];
        assert!(all.find_in("data: range, a → b", &commands).is_some());
        assert!(!all.contains("data: range, a → b"));
    }

    #[test]
    fn a_met_finding_lists_each_fingerprint_once_and_not_too_many() {
        let known = KnownFindings::parse(&ONE.replace("a → b", "*")).unwrap();
        let (known, mut met) = (known.iter().next().unwrap(), Vec::new());
        assert!(MetFinding::add(&mut met, known, "data: range, a → b"));
        assert!(!MetFinding::add(&mut met, known, "data: range, a → b"));
        let more = (0..MAX_SEEN).map(|it| format!("data: range, {it}"));
        let added = more.filter(|it| MetFinding::add(&mut met, known, it)).count();
        assert_eq!((added, met.len(), met[0].seen.len()), (MAX_SEEN - 1, 1, MAX_SEEN));
        assert_eq!((&*met[0].known, &*met[0].seen[0]), ("data: range, *", "data: range, a → b"));
    }

    #[test]
    fn lists_are_joined() {
        let one = KnownFindings::parse(ONE).unwrap();
        let other = KnownFindings::parse(&ONE.replace("a → b", "c → d")).unwrap();
        let both = one.and(&other).and(&one);
        let fingerprints: Vec<_> = both.iter().map(|it| &*it.fingerprint).collect();
        assert_eq!(fingerprints, ["data: range, a → b", "data: range, c → d"]);
        // The recipes of one finding are joined, too.
        let [first, second] = ["a", "b"]
            .map(|name| KnownFindings::parse(&format!("{ONE}recipes = [[\"{name}\"]]\n")).unwrap());
        let both = first.and(&second);
        let recipes: Vec<_> = both.iter().map(|it| it.recipes.concat()).collect();
        assert_eq!(recipes, [["a", "b"]]);
        assert!(first.and(&one).contains("data: range, a → b"));
    }
}
