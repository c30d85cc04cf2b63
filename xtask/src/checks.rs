//! Checks of the manifests and of the documentation.

use anyhow::Result;

use crate::process::{command, run};

/// Runs `cargo deny` for the library and for the fuzz targets, whose rules are in `deny.toml`.
pub fn dependencies() -> Result<()> {
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let deny = ["deny", "--locked", "--manifest-path", manifest, "--all-features"];
        run(command("cargo").args(deny).args(["check", "--config", "deny.toml"]))?;
    }
    Ok(())
}
