//! imago 0.2.6: images, backing chains and data files, read, mapped and written.

use std::{fmt, io};

use imago::io_buffers::{IoVector, IoVectorMut};
use imago::storage::{self, Storage as ImagoStorage, drivers::CommonStorageHelper};
use imago::{
    FormatAccess, FormatCreateBuilder, Mapping, format::PreallocateMode, qcow2::Qcow2, raw::Raw,
};

use qcowfuzz::prelude::*;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct Imago;

/// A chain that the crate has opened.
struct ImagoDisk(FormatAccess<File>);

impl Engine for Imago {
    // The external data file is the only incompatible feature that the crate knows. Its cache is a map whose order is
    // random, and so is the order in which it writes the tables.
    describe!("imago", version: "0.2.6", no: [OddBackingSize], refuses: [ExtendedL2, Zstd, Dirty, Corrupt],
        size: Near, known: include_str!("../findings/imago.toml"), writes: Parts);

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        Ok(Box::new(ImagoDisk(open(&chain.layers()[0], &chain.layers()[1..], false)?)))
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        Ok(Box::new(ImagoDisk(open(&chain.layers()[0], &chain.layers()[1..], true)?)))
    }

    // The crate has no choice of the version and of features.
    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        if image.version != 3 || image.extended_l2 || image.is_zstd {
            return Err(EngineError::unsupported(
                "new images of version 2, with extended L2 or zstd",
            ));
        }
        let file = File(chain.image().clone(), CommonStorageHelper::default());
        let new = Qcow2::<File>::create_builder(file).size(image.size_bytes);
        let new = new.cluster_size(1 << image.cluster_bits);
        Ok(new.refcount_width(image.refcount_bits as usize).create()?)
    }
}

/// Opens `top` and, if it names a backing file, the layers below it.
fn open(top: &ChainLayer, below: &[ChainLayer], writable: bool) -> io::Result<FormatAccess<File>> {
    let file = |file: &ChainFile| File(file.clone(), CommonStorageHelper::default());
    if top.format == ImageFormat::Raw {
        return Ok(FormatAccess::new(Raw::open_image(file(&top.image), false)?));
    }
    let mut image = Qcow2::<File>::open_image(file(&top.image), writable)?;
    let data_file = top.data_file.as_ref().filter(|_| image.requires_external_data_file());
    image.set_data_file(data_file.map(file));
    let backing = below.split_first().filter(|_| image.implicit_backing_file().is_some());
    image.set_backing(backing.map(|(next, rest)| open(next, rest, false)).transpose()?);
    Ok(FormatAccess::new(image))
}

impl OpenDisk for ImagoDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        Ok(self.0.read(into, guest.get())?)
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let (mapping, length_bytes) = self.0.get_mapping(guest.get(), u64::MAX)?;
        let status = match mapping {
            Mapping::Raw { offset, .. } => GuestStatus::Data(Some(HostOffset::new(offset))),
            Mapping::Zero { .. } => GuestStatus::Zeros(None),
            Mapping::Special { .. } => GuestStatus::Compressed,
            _ => return Err(EngineError::past_end(guest, self.0.size())),
        };
        Ok(GuestRun { length_bytes, status })
    }

    fn request(&mut self, request: &Request) -> Answer {
        let Self(disk) = self;
        match *request {
            Request::Write { guest, bytes } => disk.write(bytes, guest.get())?,
            Request::WriteZeroes { guest, length_bytes } => {
                disk.write_zeroes(guest.get(), length_bytes)?
            }
            Request::Discard { guest, length_bytes } => {
                disk.discard_to_zero(guest.get(), length_bytes)?
            }
            Request::Resize { size_bytes } => disk.resize(size_bytes, PreallocateMode::Zero)?,
            Request::Flush => disk.flush().and_then(|()| disk.sync())?,
            _ => return Err(EngineError::NoAnswer),
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Answer {
        Ok(self.0.flush()?)
    }
}

/// A file as the crate's storage.
#[derive(Debug)]
struct File(ChainFile, CommonStorageHelper);

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a file of the chain")
    }
}

/// The trait declares some functions as unsafe. Nothing that they do is.
impl ImagoStorage for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.length_bytes())
    }

    unsafe fn pure_readv(&self, into: IoVectorMut<'_>, mut offset: u64) -> io::Result<()> {
        into.into_inner().iter_mut().try_for_each(|part| {
            offset += part.len() as u64;
            self.0.read_exact_at(offset - part.len() as u64, part)
        })
    }

    unsafe fn pure_writev(&self, from: IoVector<'_>, mut offset: u64) -> io::Result<()> {
        from.into_inner().iter().try_for_each(|part| {
            let at = HostOffset::new(offset);
            offset += part.len() as u64;
            Ok(self.0.write_at(at, part)?)
        })
    }

    fn resize(&self, size_bytes: u64, _: storage::PreallocateMode) -> io::Result<()> {
        Ok(self.0.set_length(size_bytes)?)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.0.flush()?)
    }

    unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.1
    }
}
