//! `new-engine`: writes a crate that fuzzes an implementation.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};

use crate::base::files::{self, Existing};
use crate::cli::output::{CommandError, Exit, ExitResult, say};
use crate::fuzzing::embedded::generator::built_file;
use crate::harness::selftest::plain_images;
use crate::harness::targets::TargetKind;
use crate::harness::{Harness, Walker};
use crate::programs::text::assemble;

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
            &[$(($path, include_str!(concat!("template/", $template, ".template")))),+];
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
    for (target, seed, bytes) in seeds() {
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
        // A symbolic link whose target is missing gives `NotFound`, too, but it is not a free path.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !dir.is_symlink() => Ok(()),
        Err(error) => Err(CommandError::at(dir, format_args!("{error}, {expected}"))),
    }
}

/// Returns the name of the folder, which is also the name of the crate.
fn crate_name(dir: &Path) -> Result<String, CommandError> {
    let absolute = std::path::absolute(dir).map_err(|error| CommandError::at(dir, error))?;
    // Cargo's rules for package names. The crate depends on qcowfuzz and libfuzzer-sys, so it cannot have their names.
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
    // The released package does not contain this file.
    match checkout.join("fuzz/Cargo.toml").is_file() {
        // A JSON string is also a TOML string.
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

/// Damage for each image: its first L2 entry, read from the file, leads elsewhere.
const DAMAGE: &str = "patch part=l2 depth=0 nth=0 transform=misalign value=1\n";

/// The maximum length of a seed that is a file.
const MAX_SEED_BYTES: u64 = 128 << 10;

/// The seeds of this project, as texts: a folder for each target.
static TEXTS: Dir = include_dir!("$CARGO_MANIFEST_DIR/corpus/text");
/// The targets whose seeds a crate gets.
const SEEDED: [TargetKind; 3] = [TargetKind::MapExtents, TargetKind::Hostile, TargetKind::Writes];

/// Returns all seeds: the target, the name of the file, and the bytes. They are those of this project, the plain images
/// of the self-test, and files of these images.
fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all: Vec<_> = SEEDED.into_iter().flat_map(project_seeds).collect();
    for image in plain_images().filter(|image| image.is_qcow2()) {
        // A seed of this project may have the same name.
        let (name, text) = (format!("plain_{}", image.name.replace(' ', "_")), image.text());
        let damaged = format!("{text}{DAMAGE}");
        let programs = [(TargetKind::MapExtents, text.clone()), (TargetKind::Hostile, damaged)];
        for (target, text) in programs {
            let program = assemble(&text).map(|program| program.encode());
            all.extend(program.ok().map(|bytes| (target.name(), name.clone(), bytes)));
        }
        all.extend(file(&text).map(|bytes| (TargetKind::RawImage.name(), name, bytes)));
    }
    all
}

/// Returns the seeds of this project for a target.
fn project_seeds(target: TargetKind) -> impl Iterator<Item = (&'static str, String, Vec<u8>)> {
    let texts = TEXTS.get_dir(target.name()).into_iter().flat_map(Dir::files);
    texts.filter_map(move |file| {
        let name = file.path().file_stem()?.to_str()?.to_string();
        let program = assemble(file.contents_utf8()?).ok()?;
        Some((target.name(), name, program.encode()))
    })
}

/// Returns the image of a program, with smaller clusters; `None` if it is a chain or a long file.
fn file(text: &str) -> Option<Vec<u8>> {
    // Extended L2 entries need clusters of 16 KiB.
    let bits = if text.contains("extended_l2") { "14" } else { "12" };
    let text = text.replace("cluster_bits=16", &format!("cluster_bits={bits}"));
    let text = text.replace("<<16", &format!("<<{bits}"));
    let program = assemble(&text).ok()?.encode();
    built_file(&mut Harness::new(Walker::default()), &program, MAX_SEED_BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    #[test]
    fn each_target_has_enough_seeds() {
        let all = seeds();
        let count = |target: TargetKind| all.iter().filter(|it| it.0 == target.name()).count();
        let images = plain_images().filter(|image| image.is_qcow2()).count();
        for (target, more) in SEEDED.into_iter().zip([images, images, 0]) {
            let texts =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/text").join(target.name());
            assert_eq!(count(target), fs::read_dir(texts).unwrap().count() + more);
        }
        // OSS-Fuzz's check wants ten.
        assert_eq!(count(TargetKind::RawImage), 16);
        let names: BTreeSet<_> = all.iter().map(|it| (it.0, &it.1)).collect();
        assert_eq!(names.len(), all.len());
    }
}
