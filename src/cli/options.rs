//! The values of options that several commands have: the name of a target, the limits of processes that run inputs, and
//! sizes as qemu-img reads them: decimal with a fraction and a suffix, or hexadecimal.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::harness::cases::implementation::Implementation;
use crate::harness::cases::target::Inputs;
use crate::harness::engine::questions::QuestionKind;
use crate::harness::targets::TargetKind;
use crate::processes::{CPU_OPTION, MEMORY_OPTION, ProcessLimits, RunCounter};

use super::output::CommandError;

/// The default target of the command line.
pub const DEFAULT_TARGET: &str = TargetKind::MapExtents.name();

/// Returns a parser for the name of a target.
pub fn target_parser() -> impl TypedValueParser<Value = TargetKind> {
    let value = |kind: TargetKind| PossibleValue::new(kind.name()).help(kind.definition().about);
    PossibleValuesParser::new(TargetKind::ALL.map(value))
        .try_map(|name| TargetKind::named(&name).ok_or(format!("unknown target '{name}'")))
}

/// Rejects a target with requests for an implementation that declares that it does not write: it would find nothing.
pub fn reject_reader(
    kind: TargetKind,
    implementation: &Implementation,
) -> Result<(), CommandError> {
    let facts = implementation.facts();
    if kind.limits().requests == 0 || facts.answers.has(QuestionKind::Writing) {
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

/// The address space of a process that runs inputs, in MiB, unless the user sets another.
pub const DEFAULT_MEMORY_MIB: u64 = 4096;

// The memory limit, as a user sets it. A documentation comment would become the description of the whole command.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct MemoryArgument {
    /// Report a run whose process needs more address space as a finding; 0 for no limit
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_MEMORY_MIB)]
    memory_limit: u64,
}

impl MemoryArgument {
    /// Returns the limits of processes whose runs may take `seconds` of CPU time.
    pub fn limits(self, seconds: u64) -> ProcessLimits {
        ProcessLimits { cpu_time: Duration::from_secs(seconds), memory_mib: self.memory_limit }
    }
}

// The limits of this process, as the process that supervises it sets them. The names are those of [`CPU_OPTION`] and
// [`MEMORY_OPTION`].
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LimitArguments {
    #[arg(long = &CPU_OPTION[2..], value_name = "N", hide = true)]
    cpu_milliseconds: Option<u64>,
    #[arg(long = &MEMORY_OPTION[2..], value_name = "N", hide = true, default_value_t = 0)]
    memory_mib: u64,
}

impl LimitArguments {
    /// Enforces the limits in this process, if there are any.
    pub fn enforce(self) -> Result<RunCounter, CommandError> {
        let Some(milliseconds) = self.cpu_milliseconds else { return Ok(RunCounter::default()) };
        let cpu_time = Duration::from_millis(milliseconds);
        let limits = ProcessLimits { cpu_time, memory_mib: self.memory_mib };
        limits.enforce().map_err(|error| {
            CommandError::Message(format!("cannot limit the memory of this process: {error}"))
        })
    }
}

/// The largest offset or length that qemu-img accepts.
const MAX_SIZE: u64 = i64::MAX as u64;

/// Parses `text`: `4096`, `64k`, `1.5M`, `0x10000`. Suffixes are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let expected = "expected a number of bytes, or a number with a suffix (k, M, G, T, P, E)";
    let unsigned = text.trim_start();
    if unsigned.starts_with('-') {
        return Err(out_of_range());
    }
    let unsigned = unsigned.strip_prefix('+').unwrap_or(unsigned);
    let hexadecimal = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X"));
    let size = match hexadecimal {
        Some(digits) => whole(digits, 16),
        None => decimal(unsigned),
    };
    match size {
        Some(size) if size <= u128::from(MAX_SIZE) => {
            u64::try_from(size).map_err(|_| out_of_range())
        }
        Some(_) => Err(out_of_range()),
        None => Err(expected.to_string()),
    }
}

fn out_of_range() -> String {
    format!("must be between 0 and {MAX_SIZE}")
}

/// Parses digits without a sign, which `from_str_radix` alone would accept.
fn whole(digits: &str, radix: u32) -> Option<u128> {
    let digits_only = digits.chars().all(|digit| digit.is_digit(radix));
    if !digits_only || digits.is_empty() {
        return None;
    }
    // A number of more than 128 bits is out of range, and so is the largest value.
    Some(u128::from_str_radix(digits, radix).unwrap_or(u128::MAX))
}

fn decimal(text: &str) -> Option<u128> {
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, suffix)) if suffix.is_ascii_alphabetic() => (&text[..at], unit(suffix)?),
        _ => (text, 1),
    };
    let (digits, fraction) = number.split_once('.').unwrap_or((number, ""));
    if digits.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = if digits.is_empty() { "0" } else { digits };
    let scaled = whole(digits, 10)?.saturating_mul(unit);
    if fraction.is_empty() {
        return Some(scaled);
    }
    whole(fraction, 10)?;
    let part: f64 = format!("0.{fraction}").parse().ok()?;
    if unit == 1 && part != 0.0 {
        // A fraction of a byte has no meaning.
        return None;
    }
    // Rounds to the nearest byte, as qemu-img does. The value is at most 2^60, so the cast loses nothing.
    Some(scaled.saturating_add((part * unit as f64 + 0.5) as u128))
}

fn unit(suffix: char) -> Option<u128> {
    let power = "bkmgtpe".find(suffix.to_ascii_lowercase())?;
    Some(1 << (10 * power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_qemu_img_reads_them() {
        // qemu-img 10.0.2 gives the same result for each.
        let accepted = "0=0 1b=1 1B=1 1.=1 1.0=1 1k=1024 1.k=1024 .5k=512 1.5K=1536 1.0001k=1024 1.0009k=1025 \
                        0.1M=104858 00010=10 0x10=16 0X1f=31 0x10B=267 +1=1 1G=1073741824 1T=1099511627776 \
                        1P=1125899906842624 1e=1152921504606846976 7.5E=8646911284551352320 \
                        9223372036854775807=9223372036854775807";
        for (text, size) in accepted.split(' ').filter_map(|pair| pair.split_once('=')) {
            assert_eq!(parse_size(text), Ok(size.parse().unwrap()), "{text}");
        }
        assert_eq!([" 1", "\t5"].map(parse_size), [Ok(1), Ok(5)]);
        let malformed = [
            "", "abc", "1kb", "1KiB", "1 ", "1e3", "1.5", "1.5b", "0x", "0x10k", ".", ".k", "+-1",
            "++1", "+ 1", "inf", "nan", "5e-1k", "0x1.8k", "1,5",
        ];
        for text in malformed {
            assert!(
                parse_size(text).is_err_and(|message| message.starts_with("expected")),
                "{text}"
            );
        }
        let out_of_range = ["-1", "-0", "8E", "16E", "9223372036854775808", "7.99999999999999999E"];
        for text in out_of_range {
            assert!(
                parse_size(text).is_err_and(|message| message.starts_with("must be")),
                "{text}"
            );
        }
    }
}
