//! The catalogue of known divergences. Each entry has a recipe that shows it, and a test that it still occurs.

mod examples;

use std::fmt::Write;

use super::issue::block;
use crate::recipes::recipe::{Command, DiskOperation, Recipe, quoted, value_of};

/// The side to which a divergence is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A fault of QEMU.
    Qemu,
    /// Both behaviours are permitted.
    Choice,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Self::Qemu => "a fault of QEMU",
            Self::Choice => "a choice",
        }
    }
}

/// A known divergence.
#[derive(Clone, Copy, Debug)]
pub struct Quirk {
    /// A short name, which never changes.
    pub id: &'static str,
    /// One line about it.
    pub title: &'static str,
    /// The format of the disk.
    pub format: &'static str,
    /// The side to which it is due.
    pub cause: Cause,
    /// The version of QEMU with which it was seen.
    pub qemu_version: &'static str,
    /// The fingerprints. In each, `…` stands for any text. The example shows the first one.
    pub fingerprints: &'static [&'static str],
    /// Why the sides differ.
    pub reason: &'static str,
    /// Reports whether a recipe may show it. Elsewhere, the same fingerprint is another divergence.
    pub applies: fn(&Recipe) -> bool,
    /// Returns the recipe that shows it.
    pub example: fn() -> Recipe,
}

/// Reports whether a fingerprint of the catalogue stands for this one: `…` stands for any text.
pub fn stands_for(known: &str, fingerprint: &str) -> bool {
    let Some((start, rest)) = known.split_once('…') else { return known == fingerprint };
    let Some(behind) = fingerprint.strip_prefix(start) else { return false };
    let mut suffixes = behind.char_indices().map(|(at, _)| &behind[at..]).chain([""]);
    suffixes.any(|suffix| stands_for(rest, suffix))
}

/// Returns the quirk that explains a divergence of a recipe.
pub fn known<'q>(quirks: &'q [Quirk], fingerprint: &str, recipe: &Recipe) -> Option<&'q Quirk> {
    let explains = |quirk: &&Quirk| {
        let mut known = quirk.fingerprints.iter();
        known.any(|known| stands_for(known, fingerprint)) && (quirk.applies)(recipe)
    };
    quirks.iter().find(explains)
}

/// Returns the commands of a recipe, and its questions to QEMU.
pub(super) fn commands(recipe: &Recipe) -> Vec<String> {
    let mut lines = Vec::new();
    for step in &recipe.steps {
        lines.extend(step.commands.iter().map(|command| command.to_string()));
        lines.extend(step.questions.iter().map(|question| {
            format!("qemu-img {}", quoted(&question.arguments(&step.disk, "out.raw")))
        }));
    }
    lines
}

fn has(recipe: &Recipe, is_wanted: impl Fn(&Command) -> bool) -> bool {
    recipe.steps.iter().flat_map(|step| &step.commands).any(is_wanted)
}

fn is_damage(command: &Command) -> bool {
    matches!(command, Command::Damage { .. })
}

fn is_encryption(command: &Command) -> bool {
    matches!(command, Command::QemuImg(words)
        if value_of(words, "-o").is_some_and(|options| options.contains("encrypt.format=")))
}

fn is_compression(command: &Command) -> bool {
    let (Command::QemuImg(words) | Command::QemuIo { requests: words, .. }) = command else {
        return false;
    };
    words.iter().any(|word| word.split(' ').any(|part| part == "-c"))
}

fn is_program(command: &Command) -> bool {
    matches!(command, Command::Program { .. })
}

/// Reports whether a recipe may have a malformed image: QEMU writes none.
fn may_be_malformed(recipe: &Recipe) -> bool {
    has(recipe, |command| is_damage(command) || is_program(command))
}

/// All known divergences.
pub const QUIRKS: &[Quirk] = &[
    Quirk {
        id: "commit-crash",
        title: "qemu-img commit crashes if the write marks the backing image as corrupt",
        format: "qcow2",
        cause: Cause::Qemu,
        qemu_version: "10.0.2",
        fingerprints: &[
            "commit_signal: qcow2, qemu, signal 11, after: qcow: Marking image as corrupt: …",
        ],
        reason: "The backing image has the autoclear bit of bitmaps, but no bitmaps extension. The \
                 specification calls this an error; QEMU opens the image, and takes each write for one on the \
                 bitmap directory, whose offset and length are 0. It marks the image as corrupt, and \
                 `qemu-img commit` then ends with a segmentation fault instead of an error. The same happens if the \
                 write meets an L2 entry that is not aligned.",
        applies: may_be_malformed,
        example: examples::commit_crash,
    },
    Quirk {
        id: "commit-abort",
        title: "qemu-img commit ends with an assertion if it finds the image corrupt",
        format: "qcow2",
        cause: Cause::Qemu,
        qemu_version: "10.0.2",
        fingerprints: &["commit_signal: qcow2, qemu, signal 6, after: qemu-img: block.c:: \
                         bdrv_replace_child_noperm: Assertion `!child->frozen"],
        reason: "`qemu-img commit` meets an L2 entry that is not aligned, and marks the image as corrupt. If there \
                 are two or more images below, it then ends with a failed assertion in `bdrv_replace_child_noperm` \
                 instead of an error.",
        applies: may_be_malformed,
        example: examples::commit_abort,
    },
    Quirk {
        id: "compressed-overwrite",
        title: "A compressed write overwrites other data in a host cluster that was freed meanwhile",
        format: "qcow2",
        cause: Cause::Qemu,
        qemu_version: "10.0.2",
        fingerprints: &[
            "check_exit_code_divergence: qcow2, 0 → 2, a cluster with two structures",
            "check_exit_code_divergence: qcow2, 3 → 2, a cluster with two structures",
            "check_field_divergence: qcow2, corruptions: number → number, a cluster with two structures",
            "check_text_divergence: qcow2, errors, a cluster with two structures",
        ],
        reason: "QEMU packs compressed clusters into one host cluster. If it frees that host cluster and \
                 allocates it for other data, the next compressed write still appends to it: it destroys the data, \
                 and counts the cluster twice (`qcow2_alloc_bytes`). After a snapshot, no entry has the flag \
                 COPIED, and `qemu-img check` finds nothing. `qcowfuzz check` reports the cluster that holds two \
                 structures.",
        applies: |recipe| {
            has(recipe, |command| {
                is_program(command) || command.to_string().contains("write -q -c")
            })
        },
        example: examples::compressed_overwrite,
    },
    Quirk {
        id: "preallocated-old-data",
        title: "After a resize with preallocation=metadata, the guest reads old bytes of the file",
        format: "qcow2",
        cause: Cause::Qemu,
        qemu_version: "10.0.2",
        fingerprints: &["read_model_divergence: qcow2, zero → data"],
        reason: "The disk grows, and so does its L1 table, which moves. `--preallocation=metadata` then gives the \
                 clusters of the old table to the guest, and does not clear them: the new part of the disk reads as \
                 the old L1 entries. It must read as zeros.",
        applies: |recipe| {
            has(recipe, |command| command.to_string().contains("--preallocation=metadata"))
        },
        example: examples::preallocated_old_data,
    },
    Quirk {
        id: "vmdk-no-extents",
        title: "qemu-img info and convert end with an assertion on a VMDK disk without extents",
        format: "vmdk",
        cause: Cause::Qemu,
        qemu_version: "10.0.2",
        fingerprints: &[
            "info_signal: vmdk, qemu, signal 6",
            "read_signal: vmdk, qemu, signal 6",
            "convert_signal: …, qemu, signal 6, after: qemu-img: block/vmdk.c:: vmdk_co_get_info: …",
        ],
        reason: "An empty disk in extents of 2 GiB has a descriptor that names no extent. QEMU creates and opens such a \
                 disk, and then expects an extent (`vmdk_co_get_info`). `qcowfuzz info` prints an error.",
        applies: |recipe| {
            has(recipe, |command| command.to_string().contains("subformat=twoGbMaxExtent"))
        },
        example: examples::vmdk_no_extents,
    },
    Quirk {
        id: "vmdk-no-table",
        title: "A write to a VMDK grain without a grain table destroys the header",
        format: "vmdk",
        cause: Cause::Qemu,
        qemu_version: "10.0.2",
        fingerprints: &["check_exit_code_divergence: vmdk, 1 (below: not this format) → 0"],
        reason: "An entry of the grain directory may be 0: there is no grain table, and the grains read as zeros. If \
                 QEMU writes to such a grain, it does not allocate a table, and takes the host offset of the grain to \
                 be 0 (`vmdk_get_cluster_offset`): the data overwrite the header, and the image is lost. Here \
                 `qemu-img commit` destroys the lower image. The sides differ only because `qemu-img check` opens the \
                 lower image, too.",
        applies: |recipe| {
            has(recipe, |command| DiskOperation::Commit.is_done_by(command))
                && may_be_malformed(recipe)
        },
        example: examples::vmdk_no_table,
    },
    Quirk {
        id: "map-without-bitmaps",
        title: "qemu-img loads the bitmaps of each image that it opens",
        format: "qcow2",
        cause: Cause::Choice,
        qemu_version: "10.0.2",
        fingerprints: &[
            "map_exit_code_divergence: qcow2, 1 (invalid bitmap) → 0",
            "read_exit_code_divergence: qcow2, 1 (invalid bitmap) → 0",
            "map_reason_divergence: qcow2, invalid bitmap → …",
            "read_reason_divergence: qcow2, invalid bitmap → …",
        ],
        reason: "Guest data do not depend on bitmaps, so `qcowfuzz map` and `qcowfuzz convert` do not read them. QEMU \
                 refuses an image with a malformed bitmap. `qcowfuzz info` and `qcowfuzz check` refuse it, too.",
        applies: may_be_malformed,
        example: examples::map_without_bitmaps,
    },
    Quirk {
        id: "part-of-a-cluster",
        title: "QEMU reads a compressed cluster as a whole",
        format: "qcow2",
        cause: Cause::Choice,
        qemu_version: "10.0.2",
        fingerprints: &["read_exit_code_divergence: qcow2, 1 (failed read) → 0"],
        reason: "The disk ends inside its last cluster, which is compressed, and the payload is malformed behind the \
                 end of the disk. QEMU inflates the whole cluster and fails. `qcowfuzz convert` inflates only what the \
                 disk needs, and so finds the data intact.",
        applies: |recipe| {
            has(recipe, is_program) || has(recipe, is_damage) && has(recipe, is_compression)
        },
        example: examples::part_of_a_cluster,
    },
    Quirk {
        id: "data-file-folder",
        title: "QEMU looks for the data file of a backing image in the current folder",
        format: "qcow2",
        cause: Cause::Choice,
        qemu_version: "10.0.2",
        fingerprints: &["map_text_divergence: qcow2, folder of the file"],
        reason: "QEMU resolves a relative name of a data file from the current folder, but a relative name of a \
                 backing file from the folder of the image. The specification says nothing of it. For this command, \
                 both names start at the folder of the image, so that an image means the same wherever a program \
                 runs. If an overlay names this image by an absolute path, our map for people prints an absolute \
                 path for its data file, too.",
        applies: |recipe| {
            has(recipe, |command| is_program(command) || command.to_string().contains("data_file="))
        },
        example: examples::data_file_folder,
    },
    Quirk {
        id: "check-alone",
        title: "qemu-img check opens all files that an image names, and checks the image alone",
        format: "qcow2",
        cause: Cause::Choice,
        qemu_version: "10.0.2",
        fingerprints: &[
            "check_exit_code_divergence: qcow2, 1 (missing file) → …",
            "check_exit_code_divergence: qcow2, 1 (below: …",
            "check_exit_code_divergence: vmdk, 1 (below: …",
        ],
        reason: "`qcowfuzz check` opens the image alone. So it also checks an image whose data file or backing file \
                 is missing, damaged or encrypted.",
        applies: |recipe| may_be_malformed(recipe) || has(recipe, is_encryption),
        example: examples::check_alone,
    },
    Quirk {
        id: "info-encrypted",
        title: "qemu-img info describes encrypted images",
        format: "qcow2",
        cause: Cause::Choice,
        qemu_version: "10.0.2",
        fingerprints: &["info_exit_code_divergence: qcow2, 0 → 1 (unsupported)"],
        reason: "This project reads no encrypted image, with a key or without one, and none of its commands accepts \
                 such an image. `qemu-img info` needs no key, and prints the method.",
        applies: |recipe| has(recipe, is_encryption),
        example: examples::info_encrypted,
    },
    Quirk {
        id: "version-2-zero-flag",
        title: "qemu-img check does not report a zero flag in a version 2 image",
        format: "qcow2",
        cause: Cause::Choice,
        qemu_version: "10.0.2",
        fingerprints: &[
            "check_exit_code_divergence: qcow2, 0 → 2, a zero flag in version 2",
            "check_field_divergence: qcow2, corruptions: number → number, a zero flag in version 2",
            "check_exit_code_divergence: qcow2, 3 → 2, a zero flag in version 2",
            "check_text_divergence: qcow2, errors, a zero flag in version 2",
        ],
        reason: "In version 2, bit 0 of an L2 entry is reserved. `map` and other readers refuse such an entry, and \
                 so does QEMU, but `qemu-img check` passes over it. `qcowfuzz check` reports it as a corruption.",
        applies: |recipe| {
            let is_old = |command: &Command| command.to_string().contains("compat=0.10");
            has(recipe, is_program) || has(recipe, is_damage) && has(recipe, is_old)
        },
        example: examples::version_2_zero_flag,
    },
];

/// Returns the page of the catalogue.
pub fn page() -> String {
    let mut text = String::from(
        "# Known divergences\n\nThis page is generated from `src/differential/quirks.rs`: \
         `QCOWFUZZ_BLESS=1 cargo test --test differential`.\n\nA campaign counts these divergences \
         and goes on ([the differential campaign](differential.md)). A test carries out the commands of each, and \
         fails if the divergence no longer occurs.\n\n| id | format | cause | QEMU |\n|---|---|---|---|\n",
    );
    for Quirk { id, format, cause, qemu_version, .. } in QUIRKS {
        let _ = writeln!(text, "| [{id}](#{id}) | {format} | {} | {qemu_version} |", cause.name());
    }
    for quirk in QUIRKS {
        let Quirk { id, title, reason, fingerprints, .. } = quirk;
        let _ = write!(text, "\n## {id}\n\n**{title}.** {reason}\n\nFingerprints:\n\n");
        for fingerprint in *fingerprints {
            let _ = writeln!(text, "- `{fingerprint}`");
        }
        text.push('\n');
        text += &block("sh", commands(&(quirk.example)()).iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::stands_for;

    #[test]
    fn an_ellipsis_in_a_fingerprint_stands_for_any_text() {
        assert!(stands_for("check: vmdk, 1", "check: vmdk, 1"));
        assert!(!stands_for("check: vmdk, 1", "check: vmdk, 10"));
        assert!(stands_for("convert: …, signal 6…", "convert: vhdx, signal 6"));
        assert!(stands_for("convert: …, signal 6…", "convert: vpc, a, signal 6, after: a"));
        assert!(!stands_for("convert: …, signal 6…", "convert: vpc, signal 7"));
        assert!(!stands_for("convert: …, signal 6", "convert: é, signal 6, after: a"));
    }
}
