//! The answers to `info` and `check`, as qemu-img prints them in JSON.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::harness::engine::info::{CheckCounts, ImageInfo};
use crate::harness::engine::{Answer, EngineError};
use crate::harness::files::chain::Chain;
use crate::processes::ProcessEnd;

use super::program::{ImageCommands, Ran, reported};

/// The keys of `info --output=json` that the harness reads. A missing key means that the image has none.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct InfoJson {
    pub(super) virtual_size: u64,
    backing_filename: Option<String>,
    #[serde(default)]
    snapshots: Vec<IgnoredAny>,
    format_specific: Option<FormatJson>,
}

#[derive(Debug, Deserialize)]
struct FormatJson {
    data: SpecificJson,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct SpecificJson {
    data_file: Option<String>,
    #[serde(default)]
    bitmaps: Vec<IgnoredAny>,
}

/// The keys of `check --output=json` that the harness reads. qemu-img leaves out the first two if they are zero.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct CheckJson {
    #[serde(default)]
    corruptions: u64,
    #[serde(default)]
    leaks: u64,
    check_errors: u64,
}

impl InfoJson {
    /// Asks about the image of one layer of `chain`.
    pub(super) fn ask(commands: &ImageCommands<'_>, chain: &Chain, depth: usize) -> Answer<Self> {
        let Some(layer) = chain.layers().get(depth) else { return Err(EngineError::NoAnswer) };
        let format = layer.format.name();
        let printed = commands.answer(&["info", "--output=json", "-f", format, layer.name()])?;
        parsed(&printed)
    }
}

/// Asks for the properties of the image at the top of `chain`, and for the names of the files below it.
///
/// # Errors
/// The program reports an error or prints something else, or its process has ended.
pub(in crate::harness) fn info(commands: &ImageCommands<'_>, chain: &Chain) -> Answer<ImageInfo> {
    let top = InfoJson::ask(commands, chain, 0)?;
    let (mut below, mut name) = (Vec::new(), top.backing_filename);
    while let Some(next) = name {
        below.push(next.into_bytes());
        name = match chain.layers().get(below.len()) {
            Some(_) => InfoJson::ask(commands, chain, below.len())?.backing_filename,
            None => None,
        };
    }
    let specific = top.format_specific.map(|it| it.data);
    Ok(ImageInfo {
        chain: Some(below),
        snapshots: Some(top.snapshots.len()),
        bitmaps: specific.as_ref().map(|it| it.bitmaps.len()),
        // An image without a data file names none.
        data_file: specific.map(|it| it.data_file.unwrap_or_default().into_bytes()),
    })
}

/// Has the program check the image at the top of `chain`. If its exit code and its numbers differ, the worse of both is
/// the answer.
///
/// # Errors
/// The check could not be completed, or its process has ended.
pub(in crate::harness) fn check(
    commands: &ImageCommands<'_>,
    chain: &Chain,
) -> Answer<CheckCounts> {
    let (format, name) = (chain.format().name(), chain.image().name());
    let Ran { end, output } = commands.run(&["check", "--output=json", "-f", format, name]);
    // Without numbers, the check is incomplete.
    let by_code = match end.process {
        ProcessEnd::Exit(0) => CheckCounts::default(),
        ProcessEnd::Exit(2) => CheckCounts { errors: 1, leaks: 0 },
        ProcessEnd::Exit(3) => CheckCounts { errors: 0, leaks: 1 },
        ProcessEnd::Exit(1) => return Err(reported(&end)),
        ProcessEnd::Exit(63) => return Err(EngineError::NoAnswer),
        _ => return Err(EngineError::Ended(Box::new(end))),
    };
    let CheckJson { corruptions, leaks, check_errors } = parsed(&output)?;
    // An image with as many errors is corrupt, too.
    let errors = corruptions.saturating_add(check_errors);
    Ok(CheckCounts { errors: errors.max(by_code.errors), leaks: leaks.max(by_code.leaks) })
}

/// Parses what a program prints.
fn parsed<'j, T: Deserialize<'j>>(printed: &'j str) -> Answer<T> {
    serde_json::from_str(printed)
        .map_err(|error| EngineError::untyped(format!("the output is not as expected: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_keys_mean_none() {
        let printed = r#"{"virtual-size": 512, "filename": "x", "format": "qcow2", "dirty-flag": false,
            "format-specific": {"type": "qcow2", "data": {"compat": "1.1"}}}"#;
        let InfoJson { virtual_size, backing_filename, snapshots, format_specific } =
            parsed(printed).unwrap();
        assert_eq!((virtual_size, backing_filename, snapshots.len()), (512, None, 0));
        assert_eq!(format_specific.map(|it| it.data.bitmaps.len()), Some(0));
        let CheckJson { corruptions, leaks, check_errors } =
            parsed(r#"{"check-errors": 0, "leaks": 2, "filename": "x"}"#).unwrap();
        assert_eq!((corruptions, leaks, check_errors), (0, 2, 0));
        assert!(parsed::<CheckJson>("{}").is_err() && parsed::<InfoJson>("").is_err());
    }
}
