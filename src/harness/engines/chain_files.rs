//! The files of a chain in a temporary folder, for an engine that opens paths and may change the files.

use std::path::{Path, PathBuf};

use crate::disk::storage::FileStorage;
use crate::harness::engine::{Answer, EngineError, failure};
use crate::harness::files::chain::{Chain, ChainFile, ChainFolder};
use crate::processes::TemporaryFolder;

/// The largest number of stored bytes of a chain, all files together.
const MAX_STORED_BYTES: u64 = 256 << 20;

/// The files of one chain at a time, in a temporary folder that is deleted with this value, and at the end of the
/// process, however it ends. A clone has a folder of its own.
///
/// The folder lies in `TMPDIR` if the user names one, else in memory where the system has a place for that: a busy disk
/// costs more than all else, and not every file system has room for a long disk. All files of a chain together store at
/// most 256 MiB.
#[derive(Debug, Default)]
pub struct ChainFiles(Option<(ChainFolder, TemporaryFolder)>);

impl Clone for ChainFiles {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl ChainFiles {
    /// Writes the files of `chain` over those of the chain before. Returns the path of the image to open.
    ///
    /// # Errors
    /// A read of the chain fails, as the oracle `io` wants it to, or a file cannot be written.
    pub fn write(&mut self, chain: &Chain) -> Answer<PathBuf> {
        let (folder, _) = match &mut self.0 {
            Some(files) => files,
            none => {
                // No image is to blame.
                let dir = TemporaryFolder::in_memory()
                    .unwrap_or_else(|error| failure::fail(format!("a temporary folder: {error}")));
                none.insert((ChainFolder::new(dir.path(), MAX_STORED_BYTES), dir))
            }
        };
        Ok(chain.write_to(folder)?)
    }

    /// Writes the files of `chain` as [`Self::write`] does, for an engine that changes them. The files of the chain
    /// change when the engine passes the lent ones back.
    ///
    /// ```no_run
    /// # mod their_crate {
    /// #     use std::{io, path::Path};
    /// #     pub struct Image;
    /// #     impl Image {
    /// #         pub fn open(_: &Path) -> io::Result<Self> {
    /// #             Ok(Self)
    /// #         }
    /// #         pub fn size(&self) -> u64 {
    /// #             0
    /// #         }
    /// #         pub fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
    /// #             Ok(())
    /// #         }
    /// #         pub fn flush(&mut self) -> io::Result<()> {
    /// #             Ok(())
    /// #         }
    /// #     }
    /// # }
    /// use qcowfuzz::prelude::*;
    /// use their_crate::Image;
    ///
    /// #[derive(Clone, Debug, Default)]
    /// struct MyEngine(ChainFiles);
    ///
    /// struct MyDisk(Image, LentFiles);
    ///
    /// impl Engine for MyEngine {
    ///     describe!("mine", no: [Cuts, FileErrors]);
    ///
    ///     fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
    ///         self.open_to_write(chain)
    ///     }
    ///
    ///     fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
    ///         let files = self.0.lend(chain)?;
    ///         Ok(Box::new(MyDisk(Image::open(files.path())?, files)))
    ///     }
    /// }
    ///
    /// impl OpenDisk for MyDisk {
    ///     fn virtual_size_bytes(&mut self) -> u64 {
    ///         self.0.size()
    ///     }
    ///
    ///     fn request(&mut self, request: &Request) -> Answer {
    ///         match *request {
    ///             Request::Write { guest, bytes } => Ok(self.0.write(guest.get(), bytes)?),
    ///             Request::Flush => {
    ///                 self.0.flush()?;
    ///                 self.1.flush()
    ///             }
    ///             _ => Err(EngineError::NoAnswer),
    ///         }
    ///     }
    ///
    ///     fn close(self: Box<Self>) -> Answer {
    ///         let Self(image, files) = *self;
    ///         drop(image);
    ///         files.pass_back()
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn lend(&mut self, chain: &Chain) -> Answer<LentFiles> {
        let path = self.write(chain)?;
        // The engine changes the files, and the next chain must not take them for its own.
        self.forget();
        let folder = path.parent().unwrap_or(Path::new(""));
        let top = [Some(chain.image()), chain.data_file()];
        let files = top.into_iter().flatten();
        let files = files.map(|file| (folder.join(file.name()), file.clone())).collect();
        Ok(LentFiles { path, files })
    }

    /// Notes that another process may have changed the files: all of them are written again.
    pub(crate) fn forget(&mut self) {
        if let Some((folder, _)) = &mut self.0 {
            folder.forget();
        }
    }

    /// Returns the folder, if a chain was written.
    pub(crate) fn folder(&self) -> Option<&ChainFolder> {
        self.0.as_ref().map(|(folder, _)| folder)
    }
}

/// Copies of the top image and its data file, which the engine may change. The chain does not see a write before the
/// engine passes the files back. So a power cut can only come at a flush, and an engine with lent files claims nothing
/// about cuts, nor about operations that fail (`no: [Cuts, FileErrors]`).
#[derive(Debug)]
pub struct LentFiles {
    path: PathBuf,
    files: Vec<(PathBuf, ChainFile)>,
}

impl LentFiles {
    /// Returns the path of the image to open.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the files of the chain the bytes and the lengths that the lent files have now. Call it when the
    /// implementation has closed the image.
    ///
    /// # Errors
    /// A file cannot be read, or the files of the chain cannot be written: the chain was opened for reading only, and
    /// the engine has changed a file.
    pub fn pass_back(&self) -> Answer {
        for (path, file) in &self.files {
            let lent = FileStorage::open(path).map_err(|error| EngineError::Io(error.into()))?;
            file.become_like(&lent)?;
        }
        Ok(())
    }

    /// Passes the files back, and flushes the files of the chain. Call it when the implementation has flushed the
    /// image.
    ///
    /// # Errors
    /// As for [`Self::pass_back`].
    pub fn flush(&self) -> Answer {
        self.pass_back()?;
        Ok(self.files.iter().try_for_each(|(_, file)| file.flush())?)
    }
}
