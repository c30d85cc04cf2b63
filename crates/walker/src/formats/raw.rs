//! Raw files: every byte of guest data lies at its guest offset.

use std::ops::ControlFlow;

use crate::disk::extent::Mapping;
use crate::disk::observer::{Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage};
use crate::formats::anatomy::Part;
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{
    Cover, FormatLayer, Named, TablePieces, WalkStates, go_on, in_place, whole_sectors,
};

/// A raw file.
#[derive(Debug)]
pub(crate) struct Raw<'s, S: Storage + ?Sized> {
    image: &'s S,
}

impl<'s, S: Storage + ?Sized> FormatLayer<'s, S> for Raw<'s, S> {
    type Buffers = ();

    const STATES: WalkStates = WalkStates { outer: State::WalkL1, inner: State::WalkL2 };

    const PARTS: &'static [Part] = &[];

    fn open(layer: &Layer<'s, S>, _observer: &impl Observer) -> Result<(Self, Named), MapError> {
        Ok((Self { image: layer.image }, None))
    }

    /// Returns the size in bytes. QEMU counts whole sectors (`block.c`, `bdrv_getlength`) and fills the last one with
    /// zeros.
    fn size_bytes(&self) -> u64 {
        whole_sectors(self.image.length_bytes())
    }

    fn block_bytes(&self) -> Option<u64> {
        None
    }

    /// Walks the window: data, and holes of the file.
    fn walk(&self, _pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        while cover.position() < cover.end() {
            go_on!(cover.step());
            let position = cover.position();
            let from = in_place(position);
            let stored = self.image.stored(from, in_place(cover.end()))?;
            // The walk must end, so each step covers at least one byte, for any answer of the storage. The position
            // lies before the end of the window, so that one byte more fits into 64 bits.
            let end = GuestOffset::new(stored.end.get());
            let end = end.clamp(position + 1, cover.end());
            let mapping = mapping(from, stored.stored);
            cover.observer().event(State::WalkL1, mapping.event());
            go_on!(cover.put(end, mapping));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        let from = in_place(guest);
        Ok(mapping(from, self.image.stored(from, from + 1)?.stored))
    }

    fn piece_bytes(&self, _guest: GuestOffset) -> u64 {
        u64::MAX
    }

    fn read_piece(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
        (): &mut (),
    ) -> Result<bool, MapError> {
        self.image.read_at(in_place(guest), into)?;
        Ok(true)
    }
}

/// Returns the mapping of a byte: data, or a hole of the file.
fn mapping(host: HostOffset, stored: bool) -> Mapping {
    let there = Mapping { present: true, zero: !stored, data: stored, ..Mapping::HOLE };
    Mapping { offset: Some(host), ..there }
}
