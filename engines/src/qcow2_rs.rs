//! qcow2-rs 0.1.6: images and chains of images, read, mapped and written. It is async: the storage waits only while
//! requests are in flight.

use std::io;

use futures::executor::block_on;
use qcow2_rs::dev::{Qcow2Dev, Qcow2DevParams};
use qcow2_rs::error::Qcow2Result as Result;
use qcow2_rs::helpers::Qcow2IoBuf;
use qcow2_rs::meta::{MappingSource, Qcow2Header};
use qcow2_rs::{ops::Qcow2IoOps, utils::qcow2_alloc_dev};

use qcowfuzz::prelude::*;

/// The unit of the crate's reads and writes.
const SECTOR_BYTES: usize = 512;

/// The crate.
#[derive(Clone, Debug, Default)]
pub struct Qcow2Rs;

/// A chain that the crate has opened.
struct Qcow2RsDisk(Qcow2Dev<File>);

impl Engine for Qcow2Rs {
    // With its default parameters, the crate computes slices of 0 entries for clusters below 4 KiB, and hangs in reads
    // across clusters. It refuses every bit of the incompatible features, and opens every backing file as qcow2. Its
    // caches are maps whose order is random, and so is the order in which it writes the tables. It changes tables and
    // clusters that a snapshot shares, aborts where it should copy them, and mixes up neighbours of refcounts of 2 and
    // 4 bits. See BUGS.md.
    describe!(
        "qcow2_rs",
        version: "0.1.6",
        no: [Clusters512, Clusters1K, Clusters2K, OddBackingSize],
        refuses: [ExtendedL2, Zstd, DataFile, Dirty, Corrupt, RawBacking],
        size: Near, sectors: 512, known: include_str!("../findings/qcow2_rs.toml"), writes: Parts,
        no_writes: [Snapshots, Refcounts2, Refcounts4]);

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        prepared(chain, true)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        prepared(chain, false)
    }

    // The crate has no choice of the version and of features.
    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        if image.version != 3 || image.extended_l2 || image.is_zstd {
            return Err(EngineError::unsupported(
                "new images of version 2, with extended L2 or zstd",
            ));
        }
        let bytes = formatted(image).map_err(EngineError::untyped)?;
        Ok(chain.image().write_at(HostOffset::ZERO, &bytes)?)
    }
}

/// Returns the bytes of a new image, as the crate's own command writes them: up to the first sector of the L1 table.
fn formatted(image: &NewImage) -> Result<Vec<u8>> {
    let (bits, order) = (image.cluster_bits as usize, image.refcount_bits.trailing_zeros() as u8);
    let (table, block, _) =
        Qcow2Header::calculate_meta_params(image.size_bytes, bits, order, SECTOR_BYTES);
    let clusters = (1 + table.1 + block.1) as usize;
    let mut bytes = vec![0; (clusters << bits) + SECTOR_BYTES];
    Qcow2Header::format_qcow2(&mut bytes, image.size_bytes, bits, order, SECTOR_BYTES)?;
    Ok(bytes)
}

/// Opens a chain, and prepares it for reads and writes.
fn prepared(chain: &Chain, read_only: bool) -> Opened<'static> {
    let disk = block_on(open(chain.layers(), false, read_only)).map_err(EngineError::untyped)?;
    block_on(disk.qcow2_prep_io()).map_err(EngineError::untyped)?;
    Ok(Box::new(Qcow2RsDisk(disk)))
}

/// Opens the first layer and, if it names a backing file, the layers below it.
async fn open(layers: &[ChainLayer], is_backing: bool, read_only: bool) -> Result<Qcow2Dev<File>> {
    let (top, below) = layers.split_first().ok_or("a backing file that the chain does not have")?;
    let params = Qcow2DevParams::new(9, None, None, read_only, false);
    if is_backing {
        // This makes the device read-only, too.
        params.mark_backing_dev(Some(true));
    }
    let file = File(top.image.clone());
    let (mut disk, backing) = qcow2_alloc_dev("image".as_ref(), file, &params).await?;
    if backing.is_some() {
        disk.set_backing_dev(Box::new(Box::pin(open(below, true, true)).await?));
    }
    Ok(disk)
}

impl OpenDisk for Qcow2RsDisk {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.0.info.virtual_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        block_on(carry_out(&self.0, FlightRequest::Read { guest, into }))
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let (info, size) = (&self.0.info, self.0.info.virtual_size());
        let left = size.checked_sub(guest.get()).filter(|left| *left > 0);
        let left = left.ok_or(EngineError::past_end(guest, size))?;
        let inside = info.in_cluster_offset(guest.get());
        let mapping = block_on(self.0.get_mapping(guest.get())).map_err(EngineError::untyped)?;
        let host = mapping.cluster_offset.map(|host| HostOffset::new(host + inside as u64));
        let status = match mapping.source {
            MappingSource::DataFile => GuestStatus::Data(host),
            MappingSource::Zero => GuestStatus::Zeros(host),
            MappingSource::Compressed => GuestStatus::Compressed,
            MappingSource::Backing | MappingSource::Unallocated => GuestStatus::Below,
        };
        Ok(GuestRun { length_bytes: left.min((info.cluster_size() - inside) as u64), status })
    }

    fn request(&mut self, request: &Request) -> Answer {
        block_on(carry_out(&self.0, FlightRequest::Change(*request)))
    }

    fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        flights.run(|request| carry_out(&self.0, request))
    }

    fn close(self: Box<Self>) -> Answer {
        match self.0.need_flush_meta() {
            true => block_on(self.0.flush_meta()).map_err(EngineError::untyped),
            false => Ok(()),
        }
    }
}

/// Carries out a request that others may accompany.
async fn carry_out(disk: &Qcow2Dev<File>, request: FlightRequest<'_>) -> Answer {
    let done = match request {
        FlightRequest::Read { guest, into } => {
            // The crate wants a buffer at the address of a page.
            let mut sectors = Qcow2IoBuf::<u8>::new(into.len());
            sectors.copy_from_slice(into);
            let read = disk.read_at(&mut sectors, guest.get()).await;
            into.copy_from_slice(&sectors);
            return match read.map_err(EngineError::untyped)? == into.len() {
                true => Ok(()),
                false => Err(EngineError::untyped("a read of another length")),
            };
        }
        FlightRequest::Change(Request::Write { guest, bytes }) => {
            let mut sectors = Qcow2IoBuf::<u8>::new(bytes.len());
            sectors.copy_from_slice(bytes);
            disk.write_at(&sectors, guest.get()).await
        }
        FlightRequest::Change(Request::Flush) => match disk.flush_meta().await {
            Ok(()) => disk.fsync_range(0, usize::MAX).await,
            failed => failed,
        },
        FlightRequest::Change(_) => return Err(EngineError::NoAnswer),
    };
    done.map_err(EngineError::untyped)
}

/// A file as the crate's input and output.
struct File(ChainFile);

impl Qcow2IoOps for File {
    async fn read_to(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.0.turn().await;
        self.0.read_exact_at(offset, into)?;
        Ok(into.len())
    }

    async fn write_from(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.turn().await;
        Ok(self.0.write_at(HostOffset::new(offset), bytes).map_err(io::Error::from)?)
    }

    // With any flag, the range must read as zeros afterwards.
    async fn fallocate(&self, offset: u64, length: usize, _: u32) -> Result<()> {
        self.write_from(offset, &vec![0; length]).await
    }

    async fn fsync(&self, _: u64, _: usize, _: u32) -> Result<()> {
        self.0.turn().await;
        Ok(self.0.flush().map_err(io::Error::from)?)
    }
}
