//! Recipes: commands of QEMU that make a disk image and change it, one after the other. A recipe is a source of images,
//! as a program is: the files are QEMU's, and the bytes that the commands write are what a guest must read.

pub mod claims;
pub mod draw;
pub mod guest;
pub(crate) mod guest_data;
pub mod pattern;
pub mod perform;
pub mod recipe;
pub mod workshop;

use std::io;
use std::path::{Path, PathBuf};

use crate::base::error::Error;

/// The reason why a recipe could not be carried out: no verdict about an implementation.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// A process could not be started or read.
    #[error("cannot run a program: {0}")]
    Process(io::Error),
    /// A file could not be written or read.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The folder of the disk could not be emptied.
    #[error(transparent)]
    Folder(Error),
    /// The image of a program could not be written.
    #[error("cannot write the image of a program: {0}")]
    Export(Error),
    /// A command of the recipe has no meaning.
    #[error("the recipe is malformed: {0}")]
    Recipe(String),
}

impl RecipeError {
    /// Returns the error of the system about a file.
    pub(crate) fn file(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.to_path_buf(), error }
    }

    /// Describes the error without the folder of the disk: the same fault has the same text in every run.
    pub(crate) fn without_folder(&self) -> String {
        match self {
            Self::File { path, error } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                without_numbers(&format!("{name}: {error}"))
            }
            Self::Process(error) => without_numbers(&format!("cannot run a program: {error}")),
            Self::Folder(_) => "cannot empty the folder".to_string(),
            Self::Export(_) => "cannot write the image of a program".to_string(),
            Self::Recipe(_) => "the recipe is malformed".to_string(),
        }
    }
}

/// The letters of a message that a fingerprint quotes.
const MAX_QUOTED: usize = 72;

/// Returns the beginning of a message without digits, so that it is the same in every image.
pub fn without_numbers(line: &str) -> String {
    line.chars().filter(|letter| !letter.is_ascii_digit()).take(MAX_QUOTED).collect()
}
