//! imago 0.2.6: images, backing chains and data files, read, mapped and written. It is async: the storage waits only
//! while requests are in flight.

use std::{fmt, io};

use futures::executor::block_on;
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
        opened(chain, false)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        opened(chain, true)
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
        Ok(block_on(new.refcount_width(image.refcount_bits as usize).create())?)
    }
}

fn opened(chain: &Chain, writable: bool) -> Opened<'static> {
    let opened = block_on(open(&chain.layers()[0], &chain.layers()[1..], writable));
    Ok(Box::new(ImagoDisk(opened?)))
}

/// Opens `top` and, if it names a backing file, the layers below it.
async fn open(
    top: &ChainLayer,
    below: &[ChainLayer],
    writable: bool,
) -> io::Result<FormatAccess<File>> {
    let file = |file: &ChainFile| File(file.clone(), CommonStorageHelper::default());
    if top.format == ImageFormat::Raw {
        return Ok(FormatAccess::new(Raw::open_image(file(&top.image), false).await?));
    }
    let mut image = Qcow2::<File>::open_image(file(&top.image), writable).await?;
    let data_file = top.data_file.as_ref().filter(|_| image.requires_external_data_file());
    image.set_data_file(data_file.map(file));
    let backing = below.split_first().filter(|_| image.implicit_backing_file().is_some());
    image.set_backing(match backing {
        Some((next, rest)) => Some(Box::pin(open(next, rest, false)).await?),
        None => None,
    });
    Ok(FormatAccess::new(image))
}

impl OpenDisk for ImagoDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        Ok(block_on(self.0.read(into, guest.get()))?)
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let (mapping, length_bytes) = block_on(self.0.get_mapping(guest.get(), u64::MAX))?;
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
            Request::Discard { guest, length_bytes } => {
                Ok(block_on(disk.discard_to_zero(guest.get(), length_bytes))?)
            }
            Request::Resize { size_bytes } => {
                Ok(block_on(disk.resize(size_bytes, PreallocateMode::Zero))?)
            }
            request => block_on(carry_out(disk, FlightRequest::Change(request))),
        }
    }

    fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        flights.run(|request| carry_out(&self.0, request))
    }

    fn close(self: Box<Self>) -> Answer {
        Ok(block_on(self.0.flush())?)
    }
}

/// Carries out a request that others may accompany. The crate lets no other request accompany a discard or a resize.
async fn carry_out(disk: &FormatAccess<File>, request: FlightRequest<'_>) -> Answer {
    match request {
        FlightRequest::Read { guest, into } => disk.read(into, guest.get()).await?,
        FlightRequest::Change(Request::Write { guest, bytes }) => {
            disk.write(bytes, guest.get()).await?;
        }
        FlightRequest::Change(Request::WriteZeroes { guest, length_bytes }) => {
            disk.write_zeroes(guest.get(), length_bytes).await?;
        }
        FlightRequest::Change(Request::Flush) => {
            disk.flush().await?;
            disk.sync().await?;
        }
        FlightRequest::Change(_) => return Err(EngineError::NoAnswer),
    }
    Ok(())
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

    async unsafe fn pure_readv(&self, into: IoVectorMut<'_>, mut offset: u64) -> io::Result<()> {
        self.0.turn().await;
        into.into_inner().iter_mut().try_for_each(|part| {
            offset += part.len() as u64;
            self.0.read_exact_at(offset - part.len() as u64, part)
        })
    }

    async unsafe fn pure_writev(&self, from: IoVector<'_>, mut offset: u64) -> io::Result<()> {
        self.0.turn().await;
        from.into_inner().iter().try_for_each(|part| {
            let at = HostOffset::new(offset);
            offset += part.len() as u64;
            Ok(self.0.write_at(at, part)?)
        })
    }

    async fn resize(&self, size_bytes: u64, _: storage::PreallocateMode) -> io::Result<()> {
        self.0.turn().await;
        Ok(self.0.set_length(size_bytes)?)
    }

    async fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        self.0.turn().await;
        Ok(self.0.flush()?)
    }

    async unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.1
    }
}
