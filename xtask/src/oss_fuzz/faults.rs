//! Proves that the check can fail: plants faults in a folder of targets, and expects the reason that belongs to each
//! fault. The targets are tiny; a sound one must pass.

use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow, bail};

use super::{builder, runner};
use crate::process::{command, quiet, root};

/// Inflates, so that there is code for ASan. No mutation of ten letters finds the one word that crashes.
const SOURCE: &str = r#"#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let hash = |it: &[u8]| it.iter().fold(7u32, |hash, byte| hash.wrapping_mul(16_777_619) ^ u32::from(*byte));
    let is_crash = hash(input) == hash(b"crash");
    LINE
    drop(miniz_oxide::inflate::decompress_to_vec_with_limit(input, 4096));
});
"#;
/// The targets, and the line that each has.
const TARGETS: [(&str, &str); 3] = [
    ("sound", "assert!(!is_crash);"),
    ("writes", "let _ = (is_crash, std::fs::write(\"last_input\", input));"),
    (
        "needs",
        "let _ = (is_crash, std::fs::write(\"input\", input).unwrap(), std::fs::remove_file(\"input\").unwrap());",
    ),
];
const MANIFEST: &str = r#"[package]
name = "oss-fuzz-faults"
version = "0.0.0"
edition = "2024"
[package.metadata]
cargo-fuzz = true
[workspace]
[dependencies]
libfuzzer-sys = "0.4"
miniz_oxide = "0.9"
"#;

/// The faults, and first of all none: the sanitizer, the target, its option, its seeds, and a part of the reason.
const FAULTS: &str = "\
none                         | address | sound  | max_len | a b c d e f g h i j     |
no seeds                     | address | sound  | max_len |                         | sound: 0 seeds in its seed corpus
few seeds                    | address | sound  | max_len | a b c d e f g h i       | sound: 9 seeds in its seed corpus
a seed that crashes          | address | sound  | max_len | a b c d e f g h i crash | corpus fails: exit code 1
a misspelt option            | address | sound  | max_lne | a b c d e f g h i j     | knows no option -max_lne=64
no ASan                      | none    | sound  | max_len | a b c d e f g h i j     | calls of ASan, expected at least
writes its working directory | address | writes | max_len | a b c d e f g h i j     | working directory: last_input
needs its working directory  | address | needs  | max_len | a b c d e f g h i j     | only /tmp is writable: exit";

/// Plants each fault in an empty folder.
pub fn find_each(work: &Path, llvm: &Path) -> Result<()> {
    let sources = work.join("fuzz/fuzz_targets");
    fs::create_dir_all(&sources)?;
    let mut manifest = MANIFEST.to_owned();
    for (name, line) in TARGETS {
        manifest += &format!("[[bin]]\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n");
        fs::write(sources.join(name).with_extension("rs"), SOURCE.replace("LINE", line))?;
    }
    fs::write(work.join("fuzz/Cargo.toml"), manifest)?;
    // The versions that the project builds with.
    fs::copy(root().join("fuzz/Cargo.lock"), work.join("fuzz/Cargo.lock"))?;
    let out = work.join("out");
    fs::create_dir(&out)?;
    expect("no target", "out: no fuzz target", runner::check(&out, llvm))?;
    for line in FAULTS.lines() {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let [name, sanitizer, target, option, seeds, reason] = columns[..] else {
            bail!("'{line}', expected six columns");
        };
        fs::remove_dir_all(&out)?;
        fs::create_dir(&out)?;
        fs::write(out.join(format!("{target}.options")), format!("[libfuzzer]\n{option} = 64\n"))?;
        fill(work, &out, sanitizer, target, seeds)?;
        expect(name, reason, runner::check(&out, llvm))?;
    }
    Ok(())
}

/// Fills a folder with a target and its seeds.
fn fill(work: &Path, out: &Path, sanitizer: &str, target: &str, seeds: &str) -> Result<()> {
    let built = root().join("target/oss-fuzz-faults");
    let mut build = command("cargo");
    build.args(["+nightly", "fuzz", "build", "-s", sanitizer, target, "--target-dir"]);
    build.arg(&built).arg("--fuzz-dir").arg(work.join("fuzz"));
    quiet(build.env("CUSTOM_LIBFUZZER_PATH", builder::libfuzzer()?))?;
    fs::copy(built.join("x86_64-unknown-linux-gnu/release").join(target), out.join(target))?;
    let (words, seeds): (Vec<_>, _) = (seeds.split_whitespace().collect(), work.join("seeds"));
    if !words.is_empty() {
        fs::create_dir_all(&seeds)?;
        words.iter().try_for_each(|word| fs::write(seeds.join(word), word))?;
        let archive = out.join(format!("{target}_seed_corpus.zip"));
        let mut zip = command("python3");
        quiet(zip.args(["-m", "zipfile", "-c"]).arg(archive).args(&words).current_dir(&seeds))?;
    }
    Ok(())
}

/// Expects a check to fail with a reason, or to pass if there is none.
fn expect(fault: &str, reason: &str, checked: Result<()>) -> Result<()> {
    let found = match checked {
        Ok(()) => String::new(),
        Err(error) => format!("{error:#}"),
    };
    println!("oss-fuzz: {fault}: {}", if found.is_empty() { "passed" } else { &found });
    match found.contains(reason) && found.is_empty() == reason.is_empty() {
        true => Ok(()),
        false => Err(anyhow!("{fault}: found '{found}', expected '{reason}'")),
    }
}
