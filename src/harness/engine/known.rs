//! Known findings: bugs of an implementation that its user has set aside, so that new ones stand out.

use std::ops::Range;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::base::error::Error;
use crate::base::features::FeatureSet;

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
    /// The finding is known only for images with all of these features.
    #[serde(skip)]
    pub features: FeatureSet,
    /// If there are any lists, the finding is known only in recipes: each text of one of the lists is a command of the
    /// recipe. `*` stands for any text.
    #[serde(skip)]
    pub recipes: Vec<Vec<String>>,
}

impl KnownFinding {
    /// Reports whether two findings are about the same fingerprints of the same images.
    fn is_same(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.features == other.features
    }
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
    "expected [[finding]] with fingerprint and reason, and optionally link, features and recipes";

/// A file of known findings. A file that describes the bugs of an implementation, such as those in
/// `engines/findings/`, is one, too. It has more tables and fields, on which no known finding depends.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the pages about bugs show the other tables")]
struct KnownFile {
    #[serde(default)]
    finding: Vec<ListedFinding>,
    /// Findings that are no bugs.
    #[serde(default)]
    set_aside: Vec<ListedFinding>,
    implementation: Option<IgnoredAny>,
    elsewhere: Option<IgnoredAny>,
}

/// A finding of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the pages about bugs show the fields behind the name")]
struct ListedFinding {
    fingerprint: Spanned<String>,
    reason: Option<Spanned<String>>,
    link: Option<String>,
    #[serde(default)]
    features: Vec<Spanned<String>>,
    #[serde(default)]
    recipes: Vec<Vec<String>>,
    /// The name of the finding. A finding with a name needs no reason, and several of them may have one fingerprint.
    name: Option<String>,
    shows: Option<IgnoredAny>,
    severity: Option<IgnoredAny>,
    feature: Option<IgnoredAny>,
    same_cause_as: Option<IgnoredAny>,
    made_by_qemu: Option<IgnoredAny>,
    makers: Option<IgnoredAny>,
    qemu: Option<IgnoredAny>,
    target: Option<IgnoredAny>,
    program: Option<IgnoredAny>,
    script: Option<IgnoredAny>,
}

impl ListedFinding {
    /// Returns the known finding, or the place of a fault and its text.
    fn into_known(self) -> Result<KnownFinding, (Range<usize>, String)> {
        let (at, fingerprint) = (self.fingerprint.span(), self.fingerprint.into_inner());
        if fingerprint.lines().count() != 1 || !fingerprint.contains(": ") {
            let expected = "expected one line, such as 'model: kind, normal → zero-plain'";
            return Err((at, format!("found the fingerprint '{fingerprint}', {expected}")));
        }
        let mut features = Vec::new();
        for feature in self.features {
            let at = feature.span();
            features.push(feature.get_ref().parse().map_err(|what| (at, what))?);
        }
        let features = FeatureSet::of(&features);
        let expected = "expected why the finding is a bug, or why it is set aside";
        let reason = match (self.name, self.reason) {
            (_, Some(reason)) if reason.get_ref().trim().is_empty() => {
                return Err((reason.span(), format!("found no reason, {expected}")));
            }
            (None, None) => return Err((at, format!("missing field `reason`, {expected}"))),
            (None, Some(reason)) => reason.into_inner(),
            (Some(name), None) => name,
            (Some(name), Some(reason)) => format!("{name}: {}", reason.get_ref()),
        };
        Ok(KnownFinding { fingerprint, reason, link: self.link, features, recipes: self.recipes })
    }
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
        for listed in file.finding.into_iter().chain(file.set_aside) {
            let fingerprint_at = listed.fingerprint.span();
            let is_named = listed.name.is_some();
            let finding = listed.into_known().map_err(|(at, what)| error_at(at, what))?;
            let same = findings.iter_mut().find(|it| it.is_same(&finding));
            match same {
                Some(same) if is_named => {
                    same.reason = format!("{}; {}", same.reason, finding.reason)
                }
                Some(_) => {
                    let found = format!("found '{}' again", finding.fingerprint);
                    return Err(error_at(
                        fingerprint_at,
                        format!("{found}, expected each fingerprint once"),
                    ));
                }
                None => findings.push(finding),
            }
        }
        Ok(Self::new(findings))
    }

    /// Returns these findings and those of `others` that are not among them.
    pub fn and(&self, others: &Self) -> Self {
        let mut all = self.0.to_vec();
        for other in others.iter().filter(|finding| !self.contains(&finding.fingerprint)) {
            match all.iter_mut().find(|finding| finding.is_same(other)) {
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
        self.find_with(fingerprint, commands, FeatureSet::EMPTY)
    }

    /// Returns the first known finding to which this fingerprint belongs in a recipe with these commands, for an image
    /// with these features.
    pub fn find_with(
        &self,
        fingerprint: &str,
        commands: &[String],
        features: FeatureSet,
    ) -> Option<&KnownFinding> {
        let has = |text: &String| commands.iter().any(|command| is_of(command, text));
        let is_in = |finding: &KnownFinding| {
            let mut recipes = finding.recipes.iter();
            let is_in_recipe = finding.recipes.is_empty()
                || !commands.is_empty() && recipes.any(|texts| texts.iter().all(has));
            is_in_recipe && features.has_all(finding.features)
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
    use crate::base::features::Feature;

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
            (ONE.replace("\"A bug.\"", "A bug."), 4, "string values must be quoted"),
            (ONE.replace("[[finding]]", "[finding]"), 2, "invalid type: map, expected a sequence"),
        ] {
            let error = error_of(&text);
            let start = format!("line {line}: ");
            assert!(error.starts_with(&start) && error.contains(what), "{error}");
            assert!(error.ends_with(EXPECTED_TABLES) && error.lines().count() == 1, "{error}");
        }
        let no_reason = error_of(&ONE.replace("reason = \"A bug.\"", ""));
        assert!(
            no_reason.starts_with("line 3: missing field `reason`, expected why"),
            "{no_reason}"
        );
        let twice = format!("{ONE}{ONE}");
        let found = "line 7: found 'data: range, a → b' again, expected each fingerprint once";
        assert_eq!(error_of(&twice), found);
        assert!(error_of(&ONE.replace("A bug.", " ")).starts_with("line 4: found no reason"));
        let no_fingerprint = ONE.replace("data: range, a → b", "data");
        assert!(error_of(&no_fingerprint).starts_with("line 3: found the fingerprint 'data'"));
    }

    #[test]
    fn a_file_of_bugs_is_a_list() {
        let named =
            format!("{ONE}name = \"lost\"\nseverity = \"wrong data\"\nprogram = \"image\"\n");
        let again = named.replace("lost", "lost_again").replace("reason = \"A bug.\"\n", "");
        let aside = ONE.replace("finding", "set_aside").replace("a → b", "*");
        let text = format!("[implementation]\ntitle = \"a\"\n{named}{again}{aside}");
        let known = KnownFindings::parse(&text).unwrap();
        let listed: Vec<_> = known.iter().map(|it| (&*it.fingerprint, &*it.reason)).collect();
        let [bug, aside] =
            [("data: range, a → b", "lost: A bug.; lost_again"), ("data: range, *", "A bug.")];
        assert_eq!(listed, [bug, aside]);
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
    fn a_finding_of_a_feature_is_known_for_images_with_it_only() {
        let text = format!("{ONE}features = [\"snapshots\", \"version 3\"]\n");
        let known = KnownFindings::parse(&text).unwrap();
        let is_known = |features: &[Feature]| {
            known.find_with("data: range, a → b", &[], FeatureSet::of(features)).is_some()
        };
        assert!(is_known(&[Feature::Snapshots, Feature::Version3, Feature::DataFile]));
        assert!(!is_known(&[Feature::Snapshots]) && !is_known(&[]));
        assert!(!known.contains("data: range, a → b"));
        // The same fingerprint with other features is another finding.
        assert_eq!(KnownFindings::parse(&format!("{text}{ONE}")).unwrap().iter().count(), 2);
        let wrong =
            KnownFindings::parse(&text.replace("snapshots", "shots")).unwrap_err().to_string();
        assert!(wrong.starts_with("line 5: expected a feature, found 'shots'"), "{wrong}");
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
