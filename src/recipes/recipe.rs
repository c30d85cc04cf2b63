//! The recipe of an iteration: the commands that make a disk and change it, and the questions after each step. A recipe
//! is plain data. It names no folder and no program of this machine, so the same recipe runs anywhere.

use std::fmt;

use qcowfuzz_walker::closed;
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;

/// The text in a command that stands for the absolute path of the iteration's folder.
pub const FOLDER: &str = "{folder}";

/// The request that ends qemu-io by a signal, as a crash of QEMU would.
pub const ABORT: &str = "abort";

/// The beginning of a request that writes compressed data.
pub const COMPRESSED_WRITE: &str = "write -q -c";

/// The commands and questions of one iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// The steps, in their order. The first one creates the disk.
    pub steps: Vec<RecipeStep>,
}

impl Recipe {
    /// Returns all commands as a shell reads them.
    pub fn commands(&self) -> Vec<String> {
        let commands = self.steps.iter().flat_map(|step| &step.commands);
        commands.map(Command::to_string).collect()
    }

    /// Reports whether the same commands may make other files: QEMU commits several clusters at a time, and allocates
    /// each when it has been read.
    pub fn varies(&self) -> bool {
        self.steps.iter().any(|step| step.operation == DiskOperation::Commit)
    }

    /// Returns the commands of each step below a comment with the name of its operation.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for step in &self.steps {
            lines.push(format!("# {}", step.operation.name()));
            lines.extend(step.commands.iter().map(Command::to_string));
        }
        lines
    }
}

/// One operation of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeStep {
    /// The operation.
    pub operation: DiskOperation,
    /// The commands that perform it. QEMU may refuse each of them.
    pub commands: Vec<Command>,
    /// The disk that the questions are about.
    pub disk: AskedDisk,
    /// The questions, which are answered after the commands.
    pub questions: Vec<DiskQuestion>,
}

closed! {
    /// The operations on disks.
    #[derive(Serialize, Deserialize, clap::ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    DiskOperation {
        /// Makes the disk.
        Create = "create",
        /// Writes data, also compressed data.
        Write = "write",
        /// Writes zeros.
        Zero = "zero",
        /// Discards guest ranges.
        Discard = "discard",
        /// Makes the disk larger or smaller.
        Resize = "resize",
        /// Creates, applies or deletes an internal snapshot, or puts an overlay on top.
        Snapshot = "snapshot",
        /// Copies the disk to an image of another format or with other options.
        Convert = "convert",
        /// Changes the backing file.
        Rebase = "rebase",
        /// Moves the content of the top image down.
        Commit = "commit",
        /// Changes options of the format.
        Amend = "amend",
        /// Adds, merges, clears or removes bitmaps.
        Bitmap = "bitmap",
        /// Damages an image. No repair follows, so that the questions are about the damaged image.
        Damage = "damage",
        /// Repairs an image, which may have been damaged before.
        Repair = "repair",
    }
}

/// The disk that questions are about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedDisk {
    /// The name of the top image, in the iteration's folder.
    pub file: String,
    /// The format that the questions name. Without one, both sides probe.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub format: Option<String>,
}

/// A command that makes or changes files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Runs qemu-img.
    QemuImg(Vec<String>),
    /// Runs qemu-io, which performs all requests on an image.
    QemuIo {
        /// The options, which name the format.
        options: Vec<String>,
        /// The requests, one for each `-c`.
        requests: Vec<String>,
        /// The image.
        file: String,
    },
    /// Makes a folder, in which images may lie.
    Folder {
        /// The name.
        name: String,
    },
    /// Writes the files that a program builds.
    Program {
        /// The program, in hexadecimal digits.
        input: String,
        /// The top image. The names of the other files begin with this one.
        file: String,
    },
    /// Writes a file of guest data.
    Pattern {
        /// The content.
        content: Pattern,
        /// The file.
        file: String,
    },
    /// Changes bytes of a file.
    Damage {
        /// The file.
        file: String,
        /// The offset of the first byte.
        at: u64,
        /// The new bytes, in hexadecimal digits.
        bytes: String,
    },
}

/// A question that both sides answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DiskQuestion {
    /// `map`.
    Map {
        /// `--start-offset`, in guest bytes.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        start: Option<u64>,
        /// `--max-length`, in guest bytes.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        length: Option<u64>,
    },
    /// `check`.
    Check,
    /// `info`.
    Info,
    /// `measure`: the size of a qcow2 image with the same data.
    Measure,
    /// `convert -O raw`, and the bytes that it writes.
    Read,
}

impl DiskQuestion {
    /// The map of the whole disk.
    pub const MAP: Self = Self::Map { start: None, length: None };

    /// Returns the verb that answers the question.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Map { .. } => "map",
            Self::Check => "check",
            Self::Info => "info",
            Self::Measure => "measure",
            Self::Read => "convert",
        }
    }

    /// Returns the name in reports: the verb, `read` for data.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read => "read",
            _ => self.verb(),
        }
    }

    /// Returns the command line without the program, which a program with the command line of qemu-img has, too.
    /// `output` is the file to which [`DiskQuestion::Read`] writes.
    pub fn arguments(&self, disk: &AskedDisk, output: &str) -> Vec<String> {
        let mut arguments = vec![self.verb().to_string()];
        if *self != Self::Read {
            arguments.push("--output=json".to_string());
        }
        if let Some(format) = &disk.format {
            arguments.extend(["-f".to_string(), format.clone()]);
        }
        match self {
            Self::Map { start, length } => {
                arguments.extend(start.map(|start| format!("--start-offset={start}")));
                arguments.extend(length.map(|length| format!("--max-length={length}")));
            }
            Self::Read => arguments.extend(["-O", "raw"].map(str::to_string)),
            Self::Measure => arguments.extend(["-O", "qcow2"].map(str::to_string)),
            Self::Check | Self::Info => {}
        }
        arguments.push(disk.file.clone());
        if *self == Self::Read {
            arguments.push(output.to_string());
        }
        arguments
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QemuImg(arguments) => write!(f, "qemu-img {}", quoted(arguments)),
            Self::QemuIo { options, requests, file } => {
                write!(f, "qemu-io {}", quoted(options))?;
                for request in requests {
                    write!(f, " -c '{request}'")?;
                }
                write!(f, " {file}")
            }
            Self::Program { input, file } => {
                write!(
                    f,
                    "printf {input} | xxd -r -p | qcowfuzz export --target hostile - -o {file}"
                )
            }
            Self::Folder { name } => write!(f, "mkdir -p {name}"),
            Self::Pattern { content, file } => f.write_str(&content.command(file)),
            Self::Damage { file, at, bytes } => {
                write!(
                    f,
                    "printf {bytes} | xxd -r -p | dd of={file} bs=1 seek={at} conv=notrunc status=none"
                )
            }
        }
    }
}

/// Returns `arguments` as text, quoted for a shell.
pub fn quoted(arguments: &[String]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=,.:/+@%".contains(&byte);
    let word = |argument: &String| match !argument.is_empty() && argument.bytes().all(plain) {
        true => argument.clone(),
        // The commands run in the folder.
        false if argument.contains(FOLDER) => format!("\"{}\"", argument.replace(FOLDER, "$PWD")),
        false => format!("'{}'", argument.replace('\'', "'\\''")),
    };
    arguments.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the verb of a command line of qemu-img: the first word.
pub fn verb_of(words: &[String]) -> &str {
    words.first().map_or("", String::as_str)
}

/// Returns the word behind an option.
pub fn value_of<'w, W: AsRef<str>>(words: &'w [W], option: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| word.as_ref() == option)?;
    words.get(at.checked_add(1)?).map(AsRef::as_ref)
}

/// Returns the file that the image `image` names as `name`: absolute, or relative to the folder of that image.
pub(crate) fn named_by(image: &str, name: &str) -> String {
    if let Some(absolute) = name.strip_prefix(FOLDER) {
        return absolute.trim_start_matches('/').to_string();
    }
    let mut parts: Vec<&str> = image.split('/').collect();
    parts.pop();
    for part in name.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the name of `file` relative to the folder of the image `image`.
pub(crate) fn relative_to(image: &str, file: &str) -> String {
    let folder = image.rsplit_once('/').map_or("", |(folder, _)| folder);
    if folder.is_empty() {
        return file.to_string();
    }
    match file.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) {
        Some(rest) => rest.to_string(),
        None => "../".repeat(folder.split('/').count()) + file,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_from_each_folder_to_each_file() {
        for (image, file, name) in [
            ("b.qcow2", "a.raw", "a.raw"),
            ("b.qcow2", "lower/a.raw", "lower/a.raw"),
            ("lower/b.qcow2", "a.raw", "../a.raw"),
            ("lower/b.qcow2", "lower/a.raw", "a.raw"),
        ] {
            assert_eq!(relative_to(image, file), name, "{image}, {file}");
            assert_eq!(named_by(image, name), file, "{image}, {name}");
            assert_eq!(named_by(image, &format!("{FOLDER}/{file}")), file);
        }
    }
}
