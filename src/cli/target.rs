//! Parses the option `--target`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::harness::targets::TargetKind;

use super::exit::CommandError;

/// The default target of the command line.
pub const DEFAULT: &str = TargetKind::MapExtents.name();

/// Returns a parser for the name of a target.
pub fn parser() -> impl TypedValueParser<Value = TargetKind> {
    let value = |kind: TargetKind| PossibleValue::new(kind.name()).help(kind.definition().about);
    PossibleValuesParser::new(TargetKind::ALL.map(value))
        .try_map(|name| TargetKind::named(&name).ok_or(format!("unknown target '{name}'")))
}

/// Rejects a target whose inputs are files. The message names `option`, which needs programs.
pub fn reject_files(kind: TargetKind, option: &str) -> Result<(), CommandError> {
    if kind.runs_programs() {
        return Ok(());
    }
    let (name, what) =
        (kind.name(), "reads image files, expected a target whose inputs are programs");
    Err(CommandError::Message(format!("{option}: {name} {what}")))
}
