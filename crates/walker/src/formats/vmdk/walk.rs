//! Walks the extents of an image: the pieces of the grain directory, and of each grain table.

use std::ops::ControlFlow;

use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::entries::{Entries, EntryRun, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{Cover, FormatLayer, HoldingFile, go_on};
use crate::formats::vmdk::constants::rare;
use crate::formats::vmdk::tables::{Grain, GrainKind, Tables};

use super::open::{ExtentData, NO_DIRECTORY_ENTRY, OpenExtent, Vmdk};

impl<S: Storage + ?Sized> Vmdk<'_, S> {
    /// Walks the window. `first` and `second` hold pieces of tables.
    pub(super) fn walk_extents(
        &self,
        first: &mut [u8],
        second: &mut [u8],
        cover: &mut impl Cover,
    ) -> Flow {
        cover.observer().begin(State::WalkDirectory);
        cover.observer().begin(State::WalkGrains);
        while cover.position() < cover.end() {
            let Some(extent) = self.extent_at(cover.position()) else { break };
            cover.set_file(HoldingFile::of(extent.file));
            cover.observer().event(State::WalkDirectory, Event::Extent);
            match &extent.data {
                ExtentData::Flat(_) | ExtentData::Indivisible(_) => {
                    go_on!(cover.step());
                    let mapping = self.lookup(cover.position())?;
                    let end = extent.end.min(cover.end());
                    cover.observer().event(State::WalkDirectory, mapping.event());
                    go_on!(cover.put(end, mapping));
                }
                ExtentData::Sparse(tables) => {
                    let mut walk = ExtentWalk { extent, tables, cover: &mut *cover };
                    go_on!(match tables.kind {
                        GrainKind::SeSparse(_) => walk.directory(first, second, u64::from_le_bytes),
                        GrainKind::Plain | GrainKind::Compressed { .. } => {
                            walk.directory(first, second, |it| u32::from_le_bytes(it).into())
                        }
                    }?);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The walk of a sparse extent.
struct ExtentWalk<'w, 's, S: Storage + ?Sized, C: Cover> {
    extent: &'w OpenExtent<'s, S>,
    tables: &'w Tables,
    cover: &'w mut C,
}

impl<S: Storage + ?Sized, C: Cover> ExtentWalk<'_, '_, S, C> {
    /// Covers the rest of the window in the extent. `number` returns the number in an entry of `N` bytes.
    fn directory<const N: usize>(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
        number: impl Fn([u8; N]) -> u64,
    ) -> Flow {
        let (start, span) = (self.extent.start, self.tables.span_bytes());
        // The last grain of the extent is whole.
        let length = self.extent.end.saturating_distance_from(start);
        let end = start + length.next_multiple_of(self.tables.grain_bytes());
        let end = end.min(self.cover.end());
        let from = self.cover.position().saturating_distance_from(start) / span;
        let until = end.saturating_distance_from(start).div_ceil(span);
        let entries = u64::from(self.tables.directory_entries);
        let indices = from..until.min(entries);
        let (file, directory) = (self.extent.file, self.tables.directory);
        let mut previous = None;
        go_on!(each_entries(file, directory, indices, first, |entries| -> Flow {
            go_on!(self.cover.step());
            self.cover.observer().event(State::WalkDirectory, Event::Piece);
            let Entries::Read(index, entries) = entries else {
                return Ok(ControlFlow::Continue(()));
            };
            for (index, entry) in (index..).zip(entries) {
                let at = start + index.saturating_mul(span);
                let table = go_on!(self.checked(at, |tables| tables.table_of(number(*entry)))?);
                if let Some(table) = table {
                    self.report_table(at, table, previous.replace(table));
                    // The entries before this one that name no table are holes.
                    go_on!(self.cover.hole_until(at)?);
                    let end = end.min(at + span);
                    go_on!(self.table(table, at, end, second, &number)?);
                }
            }
            Ok(ControlFlow::Continue(()))
        })?);
        if until > entries {
            let at = start + entries.saturating_mul(span);
            go_on!(self.checked::<()>(at, |_| Err(NO_DIRECTORY_ENTRY))?);
        }
        self.cover.hole_until(end)
    }

    /// Reports a table that maps the disk from `at`, and the hole before it. `previous` is the table before it.
    fn report_table(&self, at: GuestOffset, table: HostOffset, previous: Option<HostOffset>) {
        let observer = self.cover.observer();
        if at > self.cover.position() {
            observer.event(State::WalkDirectory, Event::Unallocated);
        }
        match previous == Some(table) {
            true => {
                observer.event(State::WalkDirectory, Event::SharedTable);
                observer.rare(rare::SHARED_TABLE);
            }
            false => observer.event(State::WalkDirectory, Event::Table),
        }
    }

    /// Covers the window up to `end` in the grain table at `table`, which maps the disk from `start`.
    fn table<const N: usize>(
        &mut self,
        table: HostOffset,
        start: GuestOffset,
        end: GuestOffset,
        scratch: &mut [u8],
        number: impl Fn([u8; N]) -> u64,
    ) -> Flow {
        let grain_bytes = self.tables.grain_bytes();
        let from = self.cover.position().saturating_distance_from(start) / grain_bytes;
        let until = end.saturating_distance_from(start).div_ceil(grain_bytes);
        self.cover.observer().begin(State::WalkGrains);
        each_entries(self.extent.file, table, from..until, scratch, |entries| -> Flow {
            go_on!(self.cover.step());
            self.cover.observer().event(State::WalkGrains, Event::Piece);
            for EntryRun { indices, entry } in entries.runs() {
                let at = start + indices.start.saturating_mul(grain_bytes);
                let grain = go_on!(self.checked(at, |tables| tables.grain_of(number(entry)))?);
                go_on!(self.grains(at, indices.end.saturating_sub(indices.start), grain)?);
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Covers `count` grains from the guest byte `at` on, whose entries are equal.
    fn grains(&mut self, at: GuestOffset, count: u64, grain: Grain) -> Flow {
        // `hole_until` covers holes once an entry follows them.
        if grain == Grain::Unallocated {
            return Ok(ControlFlow::Continue(()));
        }
        go_on!(self.cover.hole_until(at)?);
        self.report_grain(grain);
        let grain_bytes = self.tables.grain_bytes();
        let mapping = self.extent.mapping_of(grain);
        // The mapping of zeros continues over all grains. Stored grains with equal entries lie in one place.
        let (each, count) = match grain {
            Grain::Zero => (grain_bytes.saturating_mul(count), 1),
            _ => (grain_bytes, count),
        };
        for index in 0..count {
            let start = at + index.saturating_mul(each);
            go_on!(self.cover.cover(start, start + each, mapping)?);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reports the rare events of a grain.
    fn report_grain(&self, grain: Grain) {
        let observer = self.cover.observer();
        match grain {
            Grain::Zero => observer.rare(rare::ZERO_GRAIN),
            Grain::At(host)
                if observer.observes() && host.get() >= self.extent.file.length_bytes() =>
            {
                observer.event(State::WalkGrains, Event::PastFile);
                observer.rare(rare::PAST_FILE);
            }
            Grain::At(_) | Grain::Unallocated => {}
        }
    }

    /// Decodes the entry for the guest bytes from `at` on. If it is malformed, covers the hole before it. A receiver
    /// that ends the walk in the hole never hears of the entry.
    fn checked<T>(
        &mut self,
        at: GuestOffset,
        decode: impl FnOnce(&Tables) -> Result<T, &'static str>,
    ) -> Result<ControlFlow<(), T>, MapError> {
        match decode(self.tables) {
            Ok(decoded) => Ok(ControlFlow::Continue(decoded)),
            Err(what) => {
                go_on!(self.cover.hole_until(at)?);
                Err(MapError::Grain { guest: self.cover.position(), what })
            }
        }
    }
}
