//! The first lines of a command: its name, its claims, its policy, and the questions that it answers.

use crate::harness::engine::claims::{Claims, CostPolicy, EnginePolicy, MemoryPolicy, SizePolicy};
use crate::harness::engine::questions::{QuestionKind, QuestionKinds};

/// The version of the protocol, and the first line of a command.
const FIRST_LINE: &str = "qcowfuzz-engine 1";

/// The statement of a command about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) name: String,
    pub(super) claims: Claims,
    pub(super) policy: EnginePolicy,
    /// The questions that the command answers.
    pub(super) answers: QuestionKinds,
}

/// The lines that have been read.
#[derive(Debug, Default)]
pub(super) struct HelloParser {
    is_begun: bool,
    name: Option<String>,
    claims: Claims,
    size: SizePolicy,
    answers: Option<QuestionKinds>,
}

impl HelloParser {
    /// Takes the next line. Returns the statement after the last line.
    ///
    /// # Errors
    /// The line is not what was expected.
    pub(super) fn line(&mut self, line: &str) -> Result<Option<Hello>, String> {
        if !self.is_begun {
            self.is_begun = true;
            return match line == FIRST_LINE {
                true => Ok(None),
                false => Err(format!("expected the first line '{FIRST_LINE}', found '{line}'")),
            };
        }
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        match key {
            "name" if !value.is_empty() => self.name = Some(value.to_string()),
            "yes" => self.claims = self.claims.yes(&[value.parse()?]),
            "no" => self.claims = self.claims.no(&[value.parse()?]),
            "refuse" => self.claims = self.claims.refuse_or_be_right(&[value.parse()?]),
            "size" => self.size = size(value)?,
            "answers" => self.answers = Some(answers(value)?),
            "ready" if value.is_empty() => return self.ready().map(Some),
            _ => {
                let keys = "'name', 'yes', 'no', 'refuse', 'size', 'answers' or 'ready'";
                return Err(format!("expected a line with {keys}, found '{line}'"));
            }
        }
        Ok(None)
    }

    fn ready(&mut self) -> Result<Hello, String> {
        let missing = |key: &str| format!("expected a line with '{key}' before 'ready'");
        // The harness does not see what another process reads and allocates. The system limits its memory.
        let (size, cost, memory) = (self.size, CostPolicy::NotJudged, MemoryPolicy::NotJudged);
        let policy = EnginePolicy { size, cost, memory };
        let name = self.name.take().ok_or_else(|| missing("name"))?;
        let answers = self.answers.ok_or_else(|| missing("answers"))?;
        Ok(Hello { name, claims: self.claims, policy, answers })
    }
}

fn size(value: &str) -> Result<SizePolicy, String> {
    match value {
        "sectors" => Ok(SizePolicy::WholeSectors),
        "near" => Ok(SizePolicy::Near),
        _ => Err(format!("expected 'size sectors' or 'size near', found 'size {value}'")),
    }
}

fn answers(value: &str) -> Result<QuestionKinds, String> {
    let mut kinds = QuestionKinds::of(&[QuestionKind::Open]);
    for word in value.split_whitespace() {
        kinds = kinds.with(match word {
            "map" => QuestionKind::Map,
            "status" => QuestionKind::Status,
            "read" => QuestionKind::Read,
            "snapshot" => QuestionKind::Snapshots,
            _ => return Err(format!("expected map, status, read or snapshot, found '{word}'")),
        });
    }
    match [QuestionKind::Map, QuestionKind::Status, QuestionKind::Read]
        .iter()
        .any(|it| kinds.has(*it))
    {
        true => Ok(kinds),
        false => Err("expected 'answers' with map, status or read".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::features::Feature;
    use crate::base::features::FeatureSet;
    use crate::harness::engine::claims::Claim;

    fn parsed(text: &str) -> Result<Option<Hello>, String> {
        let mut parser = HelloParser::default();
        text.lines().try_fold(None, |_, line| parser.line(line))
    }

    #[test]
    fn a_statement_is_read() {
        let text = "qcowfuzz-engine 1\nname my reader\nno extended L2 entries\nrefuse snapshots\n\
                    size near\nanswers read map\nready";
        let hello = parsed(text).unwrap().unwrap();
        assert_eq!(hello.name, "my reader");
        let about = |feature| hello.claims.about(FeatureSet::of(&[feature]));
        assert_eq!(about(Feature::ExtendedL2), Claim::No);
        assert_eq!(about(Feature::Snapshots), Claim::RefuseOrBeRight);
        assert_eq!(about(Feature::Zstd), Claim::Yes);
        assert_eq!(hello.policy.size, SizePolicy::Near);
        let kinds = [QuestionKind::Open, QuestionKind::Map, QuestionKind::Read];
        assert_eq!(hello.answers, QuestionKinds::of(&kinds));
    }

    #[test]
    fn mistakes_are_named() {
        let first = "qcowfuzz-engine 1\n";
        for (text, expected) in [
            ("hello", "expected the first line 'qcowfuzz-engine 1', found 'hello'"),
            ("qcowfuzz-engine 2", "found 'qcowfuzz-engine 2'"),
            (&format!("{first}no L2"), "expected a feature, found 'L2'"),
            (&format!("{first}size big"), "found 'size big'"),
            (&format!("{first}answers fly"), "found 'fly'"),
            (&format!("{first}answers snapshot"), "with map, status or read"),
            (&format!("{first}answers read\nready"), "'name' before 'ready'"),
            (&format!("{first}name a\nready"), "'answers' before 'ready'"),
            (&format!("{first}claims all"), "found 'claims all'"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
