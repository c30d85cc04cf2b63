//! The lines in which an implementation states facts about itself: a command in its first lines, and code behind the C
//! library in a text.

use super::Facts;
use super::claims::{Claims, SizePolicy};

/// The facts that lines have stated so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statement {
    pub(crate) version: String,
    pub(crate) claims: Claims,
    pub(crate) size: SizePolicy,
}

impl Statement {
    /// The words with which these lines begin, as a message names them.
    pub(crate) const KEYS: &str = "'version', 'yes', 'no', 'refuse', 'size'";

    /// Takes the line `KEY VALUE`. Returns false if no fact has this key.
    ///
    /// # Errors
    /// The value is none of this key: one line for the user.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let claims = self.claims;
        match key {
            "version" => self.version = value.to_string(),
            "yes" => self.claims = claims.yes(&[value.parse()?]),
            "no" => self.claims = claims.no(&[value.parse()?]),
            "refuse" => self.claims = claims.refuse_or_be_right(&[value.parse()?]),
            "size" => self.size = size(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Facts {
    /// Returns these facts with those that `lines` state: `version VERSION`, `yes FEATURE`, `no FEATURE`,
    /// `refuse FEATURE` and `size near`, as in the first lines of the line protocol (`docs/engines.md`). Each
    /// statement about features is one about those of [`Claims::QCOW2`]. Empty lines state nothing.
    ///
    /// # Errors
    /// A line states nothing: one line for the user, which names it.
    pub fn stated(self, lines: &str) -> Result<Self, String> {
        let mut statement = Statement::default();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            if !statement.take(key, value)? {
                let keys = Statement::KEYS;
                return Err(format!("expected a line with one of {keys}, found '{line}'"));
            }
        }
        let Statement { version, claims, size } = statement;
        let mut facts = Self { version: version.into(), claims, ..self };
        facts.policy.size = size;
        Ok(facts)
    }
}

fn size(value: &str) -> Result<SizePolicy, String> {
    match value {
        "sectors" => Ok(SizePolicy::WholeSectors),
        "near" => Ok(SizePolicy::Near),
        _ => Err(format!("expected 'size sectors' or 'size near', found 'size {value}'")),
    }
}

#[cfg(test)]
mod tests {
    use crate::base::features::Feature;

    use super::*;

    #[test]
    fn lines_state_facts() {
        let lines = "version 1.2\n\n  no extended L2 entries\nyes a backing file of another format\nsize near\n";
        let facts = Facts::new("mine").stated(lines).unwrap();
        assert_eq!(facts.title(), "mine 1.2");
        let claims = Claims::QCOW2.no(&[Feature::ExtendedL2]).yes(&[Feature::OtherBacking]);
        assert_eq!(facts.claims, claims);
        assert_eq!(facts.policy.size, SizePolicy::Near);
    }

    #[test]
    fn a_line_that_states_nothing_is_named() {
        let wrong = |lines| Facts::new("mine").stated(lines).unwrap_err();
        assert!(wrong("size big").contains("found 'size big'"));
        assert!(wrong("no wings").contains("found 'wings'"));
        assert!(wrong("maybe zstd").contains("found 'maybe zstd'"));
    }
}
