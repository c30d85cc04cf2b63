//! The known findings of each engine, in `known/ENGINE.toml`.

use std::path::Path;

use serde::Deserialize;

/// A finding that is known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFinding {
    /// The fingerprint.
    pub fingerprint: String,
    /// Why the finding is a bug, or why it is set aside.
    pub reason: String,
    /// The address of the report to the crate, if there is one.
    #[serde(default)]
    pub link: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFile {
    finding: Vec<KnownFinding>,
}

/// Reads the known findings of an engine.
///
/// # Errors
/// The file cannot be read, or is not a list of findings.
pub fn known_findings(engine: &str) -> Result<Vec<KnownFinding>, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("known").join(format!("{engine}.toml"));
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| at(&error))?;
    let file: KnownFile = toml::from_str(&text).map_err(|error| at(&error))?;
    Ok(file.finding)
}
