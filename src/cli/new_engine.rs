//! `new-engine`: writes a crate that fuzzes an implementation.

mod seeds;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::base::files;
use crate::base::files::Existing;

use super::exit::{CommandError, Exit, ExitResult};
use super::print::say;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The name of the folder becomes the name of the crate. src/lib.rs has the engine: it compiles, and 'cargo \
run -- selftest' reports what to fill in. The folder also has the targets of 'cargo fuzz', seeds, and the \
files of ClusterFuzzLite.

Exit codes: 0 the crate was written; 2 DIR is not empty, its name is not that of a crate, or a file could \
not be written.

Example: qcowfuzz new-engine my-reader")]
pub struct Arguments {
    /// The folder of the crate: a new one, or an empty one
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

macro_rules! templates {
    ($($path:literal from $template:literal,)+) => {
        /// The files of a crate, and their templates.
        const TEMPLATES: &[(&str, &str)] =
            &[$(($path, include_str!(concat!("new_engine/template/", $template, ".template")))),+];
    };
}

templates! {
    "Cargo.toml" from "Cargo.toml",
    "README.md" from "README.md",
    ".gitignore" from "gitignore",
    "src/lib.rs" from "src/lib.rs",
    "src/main.rs" from "src/main.rs",
    "fuzz/Cargo.toml" from "fuzz/Cargo.toml",
    "fuzz/fuzz_targets/map_extents.rs" from "fuzz/fuzz_targets/map_extents.rs",
    "fuzz/fuzz_targets/hostile.rs" from "fuzz/fuzz_targets/hostile.rs",
    "fuzz/fuzz_targets/raw_image.rs" from "fuzz/fuzz_targets/raw_image.rs",
    "fuzz/options/programs.options" from "fuzz/options/programs.options",
    "fuzz/options/raw_image.options" from "fuzz/options/raw_image.options",
    ".clusterfuzzlite/Dockerfile" from "clusterfuzzlite/Dockerfile",
    ".clusterfuzzlite/project.yaml" from "clusterfuzzlite/project.yaml",
    ".clusterfuzzlite/build.sh" from "clusterfuzzlite/build.sh",
}

/// Writes the crate.
pub fn run(arguments: &Arguments) -> ExitResult {
    let dir = &arguments.dir;
    reject_used(dir)?;
    let name = crate_name(dir)?;
    let source = source()?;
    for (path, template) in TEMPLATES {
        let text = template.replace("@NAME@", &name).replace("@SOURCE@", &source);
        write(&dir.join(path), text.as_bytes())?;
    }
    for (target, seed, bytes) in seeds::all() {
        write(&dir.join("corpus").join(target).join(seed), &bytes)?;
    }
    write(&dir.join("artifacts/.gitkeep"), b"")?;
    // cargo-fuzz shares corpus and artifacts with the command.
    for shared in ["corpus", "artifacts"] {
        let link = dir.join("fuzz").join(shared);
        let linked = symlink(Path::new("..").join(shared), &link);
        linked.map_err(|error| CommandError::at(&link, error))?;
    }
    let script = dir.join(".clusterfuzzlite/build.sh");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .map_err(|error| CommandError::at(&script, error))?;
    say(format_args!(
        "{}: fill in each TODO in src/lib.rs; 'cargo run -- selftest' there reports what is wrong",
        dir.display()
    ))?;
    Ok(Exit::Nothing)
}

/// Rejects a path that is not a new or an empty folder.
fn reject_used(dir: &Path) -> Result<(), CommandError> {
    let expected = "expected a new or an empty folder";
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(CommandError::at(dir, format_args!("not empty, {expected}"))),
        },
        // A link that leads nowhere is not found either.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !dir.is_symlink() => Ok(()),
        Err(error) => Err(CommandError::at(dir, format_args!("{error}, {expected}"))),
    }
}

/// Returns the name of the folder, which is that of the crate.
fn crate_name(dir: &Path) -> Result<String, CommandError> {
    let absolute = std::path::absolute(dir).map_err(|error| CommandError::at(dir, error))?;
    // Cargo's rules for packages; and the crate depends on qcowfuzz and libfuzzer-sys.
    let is_package = |name: &&str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
            && !["qcowfuzz", "libfuzzer-sys"].contains(name)
    };
    let name = absolute.file_name().and_then(|name| name.to_str()).filter(is_package);
    name.map(String::from).ok_or_else(|| {
        let expected = "expected a folder whose name is that of a new crate, such as my-reader";
        CommandError::at(dir, expected)
    })
}

/// Returns the origin of qcowfuzz for Cargo.toml: the checkout that this command was built from, if it is still there,
/// and otherwise the released version.
fn source() -> Result<String, CommandError> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The package does not contain this file.
    match checkout.join("fuzz/Cargo.toml").is_file() {
        // A string of JSON is one of TOML.
        true => serde_json::to_string(checkout)
            .map(|path| format!("path = {path}"))
            .map_err(|error| CommandError::at(checkout, error)),
        false => Ok(format!("version = \"{}\"", env!("CARGO_PKG_VERSION"))),
    }
}

/// Writes a new file, and creates its folder.
fn write(path: &Path, bytes: &[u8]) -> Result<(), CommandError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| CommandError::at(folder, error))?;
    Ok(files::create(path, Existing::forced(false), |mut file| file.write_all(bytes))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_has_the_name_of_its_folder() {
        assert_eq!(crate_name(Path::new("a/my-reader_2")).unwrap(), "my-reader_2");
        for name in ["a/2b", "a/ä", "a/b c", "qcowfuzz", "/", "a/-b"] {
            assert!(crate_name(Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn no_placeholder_is_misspelled() {
        for (path, template) in TEMPLATES {
            // The last two are the shell's.
            let known = ["@NAME@", "@SOURCE@", "\"$@\"", "[@]"];
            let rest = known.iter().fold(template.to_string(), |rest, it| rest.replace(it, ""));
            assert!(!rest.contains('@'), "{path}");
        }
    }
}
