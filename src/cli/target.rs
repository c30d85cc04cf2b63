//! Parses the option `--target`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::harness::cases::implementation::Implementation;
use crate::harness::cases::target::Inputs;
use crate::harness::engine::questions::QuestionKind;
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

/// Rejects the target `writes` for an implementation that declares that it does not write: it would find nothing.
pub fn reject_reader(
    kind: TargetKind,
    implementation: &Implementation,
) -> Result<(), CommandError> {
    let facts = implementation.facts();
    if kind != TargetKind::Writes || facts.answers.has(QuestionKind::Writing) {
        return Ok(());
    }
    let (target, name) = (kind.name(), facts.name);
    let what =
        "does not write images, expected an engine that writes, in the command of your own crate";
    Err(CommandError::Message(format!("--target {target}: '{name}' {what} (docs/engines.md)")))
}

/// Rejects a target whose inputs are no programs. The message names `option`, which needs programs.
pub fn reject_files(kind: TargetKind, option: &str) -> Result<(), CommandError> {
    if kind.runs_programs() {
        return Ok(());
    }
    let reads = match kind.definition().inputs {
        Inputs::Recipes => "carries out recipes",
        Inputs::Files | Inputs::Programs => "reads image files",
    };
    let name = kind.name();
    let what = format!("{reads}, expected a target whose inputs are programs");
    Err(CommandError::Message(format!("{option}: {name} {what}")))
}
