//! The files of a case, as C reads, writes and opens them.

use std::cell::{OnceCell, RefCell};
use std::ffi::{CString, c_char, c_int};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use harness::disk::error::StorageError;
use harness::prelude::{
    Chain, ChainFile, ChainFiles, ChainLayer, EngineError, HostOffset, LentFiles, Storage,
};

use crate::errors::c_text;

/// An image.
pub const QCOWFUZZ_IMAGE: c_int = 0;
/// The external data file of the image before it.
pub const QCOWFUZZ_DATA_FILE: c_int = 1;
/// A file of one extent of the VMDK image before it.
pub const QCOWFUZZ_EXTENT_FILE: c_int = 2;

/// The files of a case: the image to open, the images below it, and their other files. Functions that get them take an
/// index, counted from 0: the image to open, its data file or extents, then the same of each image below.
pub struct Files<'s> {
    source: Source<'s>,
    /// The C strings and bytes that a caller has got.
    pub(crate) given: Vec<Given>,
}

/// The place of the files.
enum Source<'s> {
    /// In the harness. If a path is asked for, they go to a folder.
    Harness(&'s Chain, RefCell<Folder<'s>>),
    /// In a file system.
    System(Vec<NamedFile>),
}

/// A file of another process, which owns it.
#[derive(Debug)]
pub(crate) struct NamedFile {
    pub(crate) layer: u32,
    pub(crate) kind: c_int,
    pub(crate) format: String,
    pub(crate) path: PathBuf,
    pub(crate) file: File,
}

/// The folder into which the files are written when a path is asked for.
struct Folder<'s> {
    files: &'s mut ChainFiles,
    /// The code may change the files there.
    is_writable: bool,
    lent: Option<LentFiles>,
    image: Option<PathBuf>,
    /// The reason why the files could not be written.
    refused: Option<EngineError>,
}

/// The texts and bytes of one file that a caller has got.
#[derive(Default)]
pub(crate) struct Given {
    pub(crate) name: OnceCell<CString>,
    pub(crate) format: OnceCell<CString>,
    path: OnceCell<CString>,
    pub(crate) bytes: OnceCell<Vec<u8>>,
}

/// One of the files.
#[derive(Clone, Copy)]
pub(crate) enum OneFile<'f> {
    Harness(&'f ChainFile),
    System(&'f NamedFile),
}

impl OneFile<'_> {
    pub(crate) fn length(self) -> u64 {
        match self {
            Self::Harness(file) => file.length_bytes(),
            // A file that has gone has no bytes.
            Self::System(it) => it.file.metadata().map_or(0, |metadata| metadata.len()),
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Harness(file) => file.name().to_string(),
            Self::System(it) => {
                it.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
        }
    }

    #[inline]
    pub(crate) fn read_at(self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        match self {
            Self::Harness(file) => file.read_at(HostOffset::new(offset), into).map_err(text),
            Self::System(it) => read_zeros_behind(&it.file, offset, into).map_err(text),
        }
    }

    /// Does something that changes a file of the harness.
    pub(crate) fn change(
        self,
        change: impl FnOnce(&ChainFile) -> Result<(), StorageError>,
    ) -> Result<(), String> {
        match self {
            Self::Harness(file) => change(file).map_err(text),
            Self::System(_) => Err("the file is open for reading only".to_string()),
        }
    }
}

#[cold]
fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Reads bytes of a file, and zeros behind its end.
fn read_zeros_behind(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let Some(at) = offset.checked_add(filled as u64) else { break };
        match file.read_at(rest, at)? {
            0 => break,
            count => filled += count,
        }
    }
    into.get_mut(filled..).into_iter().for_each(|rest| rest.fill(0));
    Ok(())
}

/// The properties of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileInfo {
    /// The layer: 0 for the image to open, 1 for the image below it.
    pub layer: u32,
    /// QCOWFUZZ_IMAGE, QCOWFUZZ_DATA_FILE or QCOWFUZZ_EXTENT_FILE.
    pub kind: c_int,
    /// The number of bytes.
    pub length: u64,
    /// The name by which another file names this one.
    pub name: *const c_char,
    /// The format of an image: "qcow2", "vhdx", "raw" and others, as QEMU calls them. A file that is no image: "raw".
    pub format: *const c_char,
}

impl<'s> Files<'s> {
    /// Creates the files of `chain`, which `files` puts into a folder if a path is asked for.
    pub(crate) fn new(chain: &'s Chain, files: &'s mut ChainFiles, is_writable: bool) -> Self {
        let given = all(chain).map(|_| Given::default()).collect();
        let (lent, image, refused) = Default::default();
        let folder = RefCell::new(Folder { files, is_writable, lent, image, refused });
        Self { source: Source::Harness(chain, folder), given }
    }

    /// Creates the files of another process. There is at least one.
    pub(crate) fn named(files: Vec<NamedFile>) -> Self {
        let given = files.iter().map(|_| Given::default()).collect();
        Self { source: Source::System(files), given }
    }

    /// Returns the reason why a path that was asked for could not be given, if there is one.
    pub(crate) fn take_refusal(&self) -> Option<EngineError> {
        match &self.source {
            Source::Harness(_, folder) => folder.borrow_mut().refused.take(),
            Source::System(_) => None,
        }
    }

    #[inline]
    pub(crate) fn file(&self, index: usize) -> Option<OneFile<'_>> {
        match &self.source {
            // Most questions are about the image to open.
            Source::Harness(chain, _) if index == 0 => Some(OneFile::Harness(chain.image())),
            Source::Harness(chain, _) => all(chain).nth(index).map(|it| OneFile::Harness(it.3)),
            Source::System(files) => files.get(index).map(OneFile::System),
        }
    }

    /// Returns the layer, the kind and the format of a file.
    pub(crate) fn place(&self, index: usize) -> Option<(u32, c_int, &str)> {
        let (layer, kind, format) = match &self.source {
            Source::Harness(chain, _) => {
                let (depth, kind, layer, _) = all(chain).nth(index)?;
                (depth, kind, layer.format.name())
            }
            Source::System(files) => {
                let NamedFile { layer, kind, format, .. } = files.get(index)?;
                (*layer, *kind, format.as_str())
            }
        };
        Some((layer, kind, if kind == QCOWFUZZ_IMAGE { format } else { "raw" }))
    }

    /// Passes lent files back to the chain, if a path of files that may change was given.
    pub(crate) fn pass_back(&self, is_flushed: bool) -> Result<(), EngineError> {
        let Source::Harness(_, folder) = &self.source else { return Ok(()) };
        match (&folder.borrow().lent, is_flushed) {
            (Some(lent), true) => lent.flush(),
            (Some(lent), false) => lent.pass_back(),
            (None, _) => Ok(()),
        }
    }

    pub(crate) fn path(&self, index: usize) -> Result<*const c_char, String> {
        let (Some(file), Some(given)) = (self.file(index), self.given.get(index)) else {
            return Err(format!("expected the index of a file, found {index}"));
        };
        let path = match (&self.source, file) {
            (Source::Harness(chain, folder), _) => {
                let image = folder.borrow_mut().image_path(chain)?;
                image.parent().unwrap_or(Path::new("")).join(file.name())
            }
            (Source::System(_), OneFile::System(it)) => it.path.clone(),
            (Source::System(_), OneFile::Harness(_)) => PathBuf::new(),
        };
        Ok(given.path.get_or_init(|| c_text(&path.to_string_lossy())).as_ptr())
    }

    pub(crate) fn is_writable(&self) -> bool {
        match &self.source {
            Source::Harness(_, folder) => folder.borrow().is_writable,
            Source::System(_) => false,
        }
    }
}

impl Folder<'_> {
    /// Returns the path of the image to open, after all files were written.
    fn image_path(&mut self, chain: &Chain) -> Result<PathBuf, String> {
        if let Some(path) = &self.image {
            return Ok(path.clone());
        }
        let written = match self.is_writable {
            true => self.files.lend(chain).map(|lent| {
                let path = lent.path().to_path_buf();
                self.lent = Some(lent);
                path
            }),
            false => self.files.write(chain),
        };
        let path = written.map_err(|error| {
            let text = error.to_string();
            self.refused = Some(error);
            text
        })?;
        self.image = Some(path.clone());
        Ok(path)
    }
}

/// Returns all files of a chain, each with its layer and kind.
fn all(chain: &Chain) -> impl Iterator<Item = (u32, c_int, &ChainLayer, &ChainFile)> {
    chain.layers().iter().zip(0..).flat_map(|(layer, depth)| {
        let image = [(depth, QCOWFUZZ_IMAGE, layer, &layer.image)].into_iter();
        let data = layer.data_file.iter().map(move |it| (depth, QCOWFUZZ_DATA_FILE, layer, it));
        let extents =
            layer.extents.iter().map(move |it| (depth, QCOWFUZZ_EXTENT_FILE, layer, it.as_ref()));
        image.chain(data).chain(extents)
    })
}
