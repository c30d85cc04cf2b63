//! qcow2-rs 0.1.6: images and chains of images, read and mapped. It is async: the storage never waits.

use std::path::Path;

use futures::executor::block_on;
use qcow2_rs::dev::{Qcow2Dev, Qcow2DevParams};
use qcow2_rs::error::Qcow2Result;
use qcow2_rs::helpers::Qcow2IoBuf;
use qcow2_rs::{meta::MappingSource, ops::Qcow2IoOps, utils::qcow2_alloc_dev};

use crate::prelude::*;
use crate::{Answer, STORED_SIZE, read_at};

/// The crate.
#[derive(Debug, Default)]
pub struct Qcow2Rs;

/// A chain that the crate has opened.
pub struct Qcow2RsDisk(Qcow2Dev<File>);

impl Engine for Qcow2Rs {
    type Disk<'s> = Qcow2RsDisk;

    fn name(&self) -> &str {
        "qcow2_rs"
    }

    fn claims(&self) -> Claims {
        // With its default parameters, the crate computes slices of 0 entries for clusters below 4 KiB, and hangs. It
        // refuses every bit of the incompatible features, and opens every backing file as qcow2.
        let hang = [Feature::Clusters512, Feature::Clusters1K, Feature::Clusters2K];
        Claims::ALL.no(&hang).refuse_or_be_right(&[
            Feature::ExtendedL2,
            Feature::Zstd,
            Feature::RawBacking,
            Feature::DataFile,
            Feature::Dirty,
            Feature::Corrupt,
        ])
    }

    fn policy(&self) -> EnginePolicy {
        STORED_SIZE
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Answer<Qcow2RsDisk> {
        let params = Qcow2DevParams::new(9, None, None, true, false);
        let disk = block_on(async {
            let disk = open(chain.layers(), &params).await?;
            disk.qcow2_prep_io().await.map(|()| disk)
        });
        disk.map(Qcow2RsDisk).map_err(EngineError::untyped)
    }
}

/// Opens the first layer and, if it names a backing file, the layers below it.
async fn open(layers: &[ChainLayer], params: &Qcow2DevParams) -> Qcow2Result<Qcow2Dev<File>> {
    let top = layers.first().ok_or("a backing file that the chain does not have")?;
    let file = File(top.image.clone());
    let (mut disk, backing) = qcow2_alloc_dev(Path::new("image"), file, params).await?;
    if backing.is_some() {
        let params = params.clone();
        params.mark_backing_dev(Some(true));
        disk.set_backing_dev(Box::new(Box::pin(open(&layers[1..], &params)).await?));
    }
    Ok(disk)
}

impl OpenDisk for Qcow2RsDisk {
    fn virtual_size_bytes(&self) -> u64 {
        self.0.info.virtual_size()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        let skipped = (guest.get() % 512) as usize;
        let mut sectors = Qcow2IoBuf::<u8>::new((skipped + into.len()).next_multiple_of(512));
        // No byte that the crate leaves alone is right by chance.
        sectors.fill(0xA5);
        let read = block_on(self.0.read_at(&mut sectors, guest.get() - skipped as u64));
        match read.map_err(EngineError::untyped)? {
            length if length == sectors.len() => {
                into.copy_from_slice(&sectors[skipped..][..into.len()]);
                Ok(())
            }
            _ => Err(EngineError::untyped("a short read")),
        }
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let info = &self.0.info;
        let inside = info.in_cluster_offset(guest.get()) as u64;
        let left = info.virtual_size().checked_sub(guest.get()).filter(|left| *left > 0);
        let left = left.ok_or_else(|| EngineError::untyped("past the end of the disk"))?;
        let mapping = block_on(self.0.get_mapping(guest.get())).map_err(EngineError::untyped)?;
        let host = mapping.cluster_offset.map(|host| HostOffset::new(host + inside));
        let status = match mapping.source {
            MappingSource::DataFile => GuestStatus::Data(host),
            MappingSource::Zero => GuestStatus::Zeros(host),
            MappingSource::Compressed => GuestStatus::Compressed,
            MappingSource::Backing | MappingSource::Unallocated => GuestStatus::Below,
        };
        Ok(GuestRun { length_bytes: left.min(info.cluster_size() as u64 - inside), status })
    }
}

/// A file as the crate's input and output.
struct File(ChainFile);

impl Qcow2IoOps for File {
    async fn read_to(&self, offset: u64, into: &mut [u8]) -> Qcow2Result<usize> {
        read_at(&self.0, offset, into)?;
        Ok(into.len())
    }

    async fn write_from(&self, _: u64, _: &[u8]) -> Qcow2Result<()> {
        Err("a write".into())
    }

    async fn fallocate(&self, _: u64, _: usize, _: u32) -> Qcow2Result<()> {
        Err("a write".into())
    }

    async fn fsync(&self, _: u64, _: usize, _: u32) -> Qcow2Result<()> {
        Ok(())
    }
}
