//! The bugs of each implementation as data: `engines/findings/NAME.toml`, and the rules in `engines/rules.toml`.

// The pages and engines/tests/findings.rs each use some of the fields; people read all of them.
#![allow(dead_code)]

use serde::Deserialize;

/// The bugs of an implementation. `--known` reads the file, too: each fingerprint in it is a known finding.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// The name of the file, and of the implementation in the tests.
    #[serde(skip)]
    pub name: String,
    /// The implementation.
    pub implementation: Implementation,
    /// The bugs that a program shows, and the damage that the implementation accepts.
    #[serde(rename = "finding")]
    pub findings: Vec<Finding>,
    /// The bugs that no program shows here.
    #[serde(default)]
    pub elsewhere: Vec<Elsewhere>,
    /// The known findings that are no bugs.
    #[serde(default)]
    pub set_aside: Vec<SetAside>,
}

/// An implementation of disk images.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Implementation {
    /// Its name for people.
    pub title: String,
    /// The version that was tested.
    pub version: String,
    /// The address of its page.
    pub link: String,
    /// The head of its column, a short name.
    pub column: String,
    /// The format of its images.
    pub format: String,
    /// `engines/other/engine` runs it behind the line protocol. Otherwise it has a command in `engines/src/bin/`.
    #[serde(default)]
    pub is_behind_protocol: bool,
    /// A limit of the test, if it needs a word.
    pub note: Option<String>,
}

/// A program, and the finding that it shows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// The name, which stays: `NAME/FINDING` names a finding everywhere.
    pub name: String,
    /// The fingerprint of the known finding, in which `*` stands for any text.
    pub fingerprint: String,
    /// The fingerprint that the program shows, if it is not `fingerprint` itself.
    pub shows: Option<String>,
    /// The worst effect.
    pub severity: Severity,
    /// The row of the matrix. If the implementation accepts damage, that is the rule that it does not enforce.
    pub feature: Option<String>,
    /// The finding is known in images with all of these features only.
    #[serde(default)]
    pub features: Vec<String>,
    /// The name of another finding, if both have one cause.
    pub same_cause_as: Option<String>,
    /// The cause and its effect. The first sentence is on the page. Without it, the reason of the rule counts.
    pub reason: Option<String>,
    /// QEMU makes images that show the bug, or made them in an earlier version.
    #[serde(default)]
    pub made_by_qemu: bool,
    /// The images that show the bug, or their writers. Without it, no writer is known to make such images.
    pub makers: Option<String>,
    /// The text of qemu-img 10.0 about the image. Without it, qemu-img reads the image, and its check finds no errors.
    pub qemu: Option<String>,
    /// The fuzz target. Without it: `hostile` if the implementation accepts damage, and `map_extents` otherwise.
    target: Option<String>,
    /// The address of the report to the project.
    pub link: Option<String>,
    /// The text of the program.
    pub program: String,
    /// A script of qemu-io for an empty image of 1 MiB, which shows a bug of QEMU without this project: the pattern of
    /// its last read is wrong, or `qemu-img check` finds an error behind it.
    pub script: Option<String>,
}

/// A bug that no program shows here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elsewhere {
    /// The name.
    pub name: String,
    /// The worst effect.
    pub severity: Severity,
    /// The row of the matrix.
    pub feature: String,
    /// The cause and its effect.
    pub reason: String,
    /// QEMU makes images that show the bug.
    #[serde(default)]
    pub made_by_qemu: bool,
    /// The images that show the bug, or their writers.
    pub makers: String,
    /// The text of qemu-img about the image.
    pub qemu: Option<String>,
    /// The fuzz target that finds it, if it is not `map_extents`.
    pub target: Option<String>,
    /// The way to see the bug.
    pub see: String,
    /// A program for a special build.
    pub program: Option<String>,
}

/// A known finding that is no bug.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAside {
    /// The fingerprint, in which `*` stands for any text.
    pub fingerprint: String,
    /// The reason why it is no bug.
    pub reason: String,
}

/// The rules that damaged images break.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The rules.
    #[serde(rename = "rule")]
    pub rules: Vec<Rule>,
}

/// A rule. A finding may have other texts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The name, as it is in fingerprints.
    pub name: String,
    /// The effect on a reader that does not enforce the rule.
    pub reason: String,
    /// The text of qemu-img about such an image.
    pub qemu: String,
    /// QEMU makes such images, which are no damaged ones: QEMU refuses them without their key.
    #[serde(default)]
    pub made_by_qemu: bool,
    /// Such images, or their writers.
    pub makers: Option<String>,
}

/// The worst effect of a bug, from the worst on.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Bytes of the guest, of a snapshot or of a backup are lost or changed.
    #[serde(rename = "data loss")]
    DataLoss,
    /// The image has errors afterwards, such as a leak or wrong refcounts.
    #[serde(rename = "image damage")]
    ImageDamage,
    /// A read returns bytes that the guest has not written.
    #[serde(rename = "wrong data")]
    WrongData,
    /// The process ends.
    #[serde(rename = "crash")]
    Crash,
    /// A call does not return.
    #[serde(rename = "hang")]
    Hang,
    /// A call needs far more memory or disk space than the image justifies.
    #[serde(rename = "memory")]
    Memory,
    /// A valid image, or a read of it, is refused.
    #[serde(rename = "refuses a valid image")]
    Refuses,
    /// The guest's bytes are right.
    #[serde(rename = "low")]
    Low,
}

impl Findings {
    /// Reads the text of a file.
    pub fn parse(name: &str, text: &str) -> Result<Self, toml::de::Error> {
        Ok(Self { name: name.to_string(), ..toml::from_str(text)? })
    }
}

impl Finding {
    /// Returns the fingerprint that the program shows.
    pub fn shown(&self) -> &str {
        self.shows.as_ref().unwrap_or(&self.fingerprint)
    }

    /// Returns the rule that the implementation does not enforce, if the finding is damage that it accepts.
    pub fn rule(&self) -> Option<&str> {
        self.fingerprint.strip_prefix("refusal: ")?.strip_suffix(", refused → an answer")
    }

    /// Returns the name of the fuzz target.
    pub fn target(&self) -> &str {
        match (&self.target, self.rule()) {
            (Some(target), _) => target,
            (None, Some(_)) => "hostile",
            (None, None) => "map_extents",
        }
    }
}
