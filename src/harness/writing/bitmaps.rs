//! The persistent dirty bitmaps of an image that an engine writes, as the requests have left them.

use std::ops::Range;

use crate::base::ranges::RangeMap;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap;
use crate::formats::qcow2::bitmap::BitmapEntry;
use crate::formats::qcow2::constants::AUTOCLEAR_BITMAPS;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::header::Header;
use crate::harness::files::chain::{Chain, ChainFile};
use crate::harness::oracles::qcow2::bitmaps::{self, ExpectedBitmap, FoundBitmap, OtherBits};
use crate::harness::oracles::{OracleResult, SetAside};
use crate::programs::{BitmapChange, WriteRequest};

#[derive(Clone, Debug)]
struct TrackedBitmap {
    /// Its number in requests.
    number: u32,
    granularity_bits: u8,
    is_enabled: bool,
    /// The bitmap was not saved correctly: readers ignore its bits.
    in_use: bool,
    /// The entry of the image before all requests, if bits of it are left.
    built: Option<(u32, BitmapEntry)>,
    /// The smallest size of the disk since the image was built, or since the bitmap was added.
    kept_bytes: u64,
    /// The disk has changed its size since then.
    was_resized: bool,
    /// The ranges that have changed while the bitmap was enabled.
    changed: RangeMap<()>,
    /// The part of `changed` that was there at the last flush.
    flushed: RangeMap<()>,
}

/// The bitmaps of an image.
#[derive(Clone, Debug, Default)]
pub(super) struct TrackedBitmaps {
    /// The image before all requests, if it has bitmaps.
    built: Option<(Chain, Head)>,
    all: Vec<TrackedBitmap>,
    /// The engine has carried out a request about bitmaps: it supports them.
    are_supported: bool,
    /// A request about bitmaps has come since the last flush.
    are_unsettled: bool,
    /// The engine has dropped the bitmaps of the image, and may have left their clusters behind.
    are_dropped: bool,
}

impl TrackedBitmap {
    /// Creates a bitmap without bits for a disk of `size_bytes`.
    fn new(number: u32, granularity_bits: u8, is_enabled: bool, size_bytes: u64) -> Self {
        Self {
            number,
            granularity_bits,
            is_enabled,
            in_use: false,
            built: None,
            kept_bytes: size_bytes,
            was_resized: false,
            changed: RangeMap::default(),
            flushed: RangeMap::default(),
        }
    }

    fn apply(&mut self, change: BitmapChange) {
        match change {
            BitmapChange::Clear => {
                self.built = None;
                self.changed.clear();
                self.flushed.clear();
            }
            BitmapChange::Enable => self.is_enabled = true,
            BitmapChange::Disable => self.is_enabled = false,
            BitmapChange::Add { .. } | BitmapChange::Remove => {}
        }
    }
}

impl TrackedBitmaps {
    /// Begins with the bitmaps of `chain`, which may have traces of deleted ones.
    pub(super) fn begin(&mut self, chain: Option<Chain>) {
        *self = Self::default();
        let Some(chain) = chain else { return };
        // The oracle `refcounts` has read this image without an error.
        let Ok(head) = Head::read(chain.image()) else { return };
        let size_bytes = head.header.virtual_size_bytes();
        for (number, entry) in (0..).zip(entries(chain.image(), &head).unwrap_or_default()) {
            let bitmap =
                TrackedBitmap::new(number, entry.granularity_bits, entry.is_auto(), size_bytes);
            let (in_use, built) = (entry.in_use(), Some((number, entry)));
            self.all.push(TrackedBitmap { in_use, built, ..bitmap });
        }
        self.built = Some((chain, head));
    }

    /// Forgets the image before all requests.
    pub(super) fn forget(&mut self) {
        self.built = None;
    }

    /// Reports whether the image has bitmaps, or had traces of them. Writers change these as soon as they open the
    /// image.
    pub(super) fn were_there(&self) -> bool {
        self.built.is_some() || !self.all.is_empty()
    }

    /// Reports whether no request about bitmaps has come since the last flush.
    pub(super) fn are_settled(&self) -> bool {
        !self.are_unsettled
    }

    /// Returns the image before all requests, if it has bitmaps or traces of them.
    pub(super) fn built(&self) -> Option<&ChainFile> {
        self.built.as_ref().map(|(chain, _)| chain.image())
    }

    /// Notes whether the engine has dropped the bitmaps of a closed file. If so, their clusters are leaks. An engine
    /// that does not support bitmaps may do so.
    pub(super) fn note_dropped(&mut self, files: &Chain) -> bool {
        self.are_dropped |= !self.all.is_empty() && !has_bitmaps(files);
        if self.are_dropped && !self.are_supported {
            self.all.clear();
        }
        self.are_dropped
    }

    /// Returns the index of a bitmap in the directory. A new one comes last.
    pub(super) fn index_of(&self, number: u32, change: BitmapChange) -> Option<u32> {
        let index = match change {
            BitmapChange::Add { .. } => Some(self.all.len()),
            _ => self.all.iter().position(|bitmap| bitmap.number == number),
        };
        u32::try_from(index?).ok()
    }

    /// Notes a request that the engine has carried out, and the size of the disk before it.
    pub(super) fn note(&mut self, request: &WriteRequest, before_bytes: u64) {
        match *request {
            WriteRequest::ChangeBitmap { number, change } => {
                self.note_change(number, change, before_bytes);
            }
            WriteRequest::Resize { size_bytes } => self.note_resize(size_bytes),
            WriteRequest::Write { .. }
            | WriteRequest::WriteZeroes { .. }
            | WriteRequest::Discard { .. } => {
                request.changed().into_iter().for_each(|range| self.note_changed(&range));
            }
            _ => {}
        }
    }

    /// Notes that all changes must survive a cut.
    pub(super) fn settle(&mut self) {
        self.are_unsettled = false;
        for bitmap in &mut self.all {
            bitmap.flushed.clone_from(&bitmap.changed);
        }
    }

    fn note_change(&mut self, number: u32, change: BitmapChange, size_bytes: u64) {
        (self.are_supported, self.are_unsettled) = (true, true);
        match change {
            BitmapChange::Add { granularity_bits, is_enabled } => {
                let bitmap = TrackedBitmap::new(number, granularity_bits, is_enabled, size_bytes);
                self.all.push(bitmap);
            }
            BitmapChange::Remove => self.all.retain(|bitmap| bitmap.number != number),
            _ => {
                let bitmap = self.all.iter_mut().find(|bitmap| bitmap.number == number);
                bitmap.into_iter().for_each(|bitmap| bitmap.apply(change));
            }
        }
    }

    fn note_changed(&mut self, range: &Range<u64>) {
        for bitmap in self.all.iter_mut().filter(|bitmap| bitmap.is_enabled) {
            bitmap.changed.insert(range.clone(), ());
        }
    }

    /// The bits of a smaller disk end with it.
    fn note_resize(&mut self, size_bytes: u64) {
        for bitmap in &mut self.all {
            bitmap.was_resized = true;
            bitmap.kept_bytes = bitmap.kept_bytes.min(size_bytes);
            bitmap.changed.remove(size_bytes..u64::MAX);
            bitmap.flushed.remove(size_bytes..u64::MAX);
        }
    }

    /// Checks that an engine that supports bitmaps has not dropped them.
    pub(super) fn check_kept(&self) -> OracleResult {
        match self.are_dropped && self.are_supported {
            true => bitmaps::not_kept("dropped"),
            false => Ok(()),
        }
    }

    /// Judges the bitmaps of a closed file, except those that are dropped. After an operation on the file has failed, a
    /// writer may leave them marked as in use, which says that their bits are not reliable.
    pub(super) fn check(
        &mut self,
        files: &Chain,
        has_failed: bool,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        if self.are_dropped || self.all.is_empty() && !self.are_supported {
            return Ok(());
        }
        let (head, entries) = self.entries(files)?;
        for ((index, entry), bitmap) in (0..).zip(entries).zip(&mut self.all) {
            if bitmap.in_use {
                continue;
            }
            if entry.in_use() {
                bitmap.in_use = true;
                if self.are_supported && !has_failed {
                    bitmaps::not_kept("in use").or_else(&mut *set_aside)?;
                }
                continue;
            }
            let found = FoundBitmap { file: files.image(), header: &head.header, index, entry };
            let expected = expected(&self.built, bitmap, &bitmap.changed);
            bitmaps::check(&found, &expected, OtherBits::Zeros).or_else(&mut *set_aside)?;
        }
        Ok(())
    }

    /// Returns the head of a file, and the entries of its directory: as many as there are bitmaps.
    fn entries(&self, files: &Chain) -> OracleResult<(Head, Vec<BitmapEntry>)> {
        let head = Head::read(files.image()).map_err(bitmaps::unreadable)?;
        let entries = entries(files.image(), &head).map_err(bitmaps::unreadable)?;
        match entries.len() == self.all.len() {
            true => Ok((head, entries)),
            false => Err(bitmaps::wrong_count(self.all.len(), entries.len())),
        }
    }

    /// Judges the bitmaps of a file after a cut. Readers ignore the bits of those that are dropped or in use.
    /// `has_survived` reports whether the file has an unflushed change of a guest range. The bits of such a change must
    /// be set, like those of all flushed changes.
    pub(super) fn check_after_cut(
        &self,
        files: &Chain,
        unsettled: &RangeMap<()>,
        mut has_survived: impl FnMut(&Range<u64>) -> bool,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        if self.all.is_empty() || self.are_unsettled || !has_bitmaps(files) {
            return Ok(());
        }
        let (head, entries) = self.entries(files)?;
        let lost = unsettled.iter().map(|(range, ())| range);
        let lost: Vec<_> = lost.filter(|range| !has_survived(range)).collect();
        for ((index, entry), bitmap) in (0..).zip(entries).zip(&self.all) {
            if bitmap.in_use || entry.in_use() {
                continue;
            }
            let mut changed = bitmap.changed.clone();
            lost.iter().for_each(|range| changed.remove(range.clone()));
            // A flushed change of the same range has set the bits before.
            bitmap.flushed.iter().for_each(|(range, ())| changed.insert(range, ()));
            let found = FoundBitmap { file: files.image(), header: &head.header, index, entry };
            let expected = expected(&self.built, bitmap, &changed);
            bitmaps::check(&found, &expected, OtherBits::Any).or_else(&mut *set_aside)?;
        }
        Ok(())
    }
}

/// Returns the bitmap that a file must have.
fn expected<'e>(
    built: &'e Option<(Chain, Head)>,
    bitmap: &TrackedBitmap,
    changed: &'e RangeMap<()>,
) -> ExpectedBitmap<'e> {
    let before = built.as_ref().zip(bitmap.built);
    let before = before.map(|((chain, head), (index, entry))| FoundBitmap {
        file: chain.image(),
        header: &head.header,
        index,
        entry,
    });
    ExpectedBitmap {
        granularity_bits: bitmap.granularity_bits,
        is_enabled: bitmap.is_enabled,
        before,
        kept_bytes: bitmap.kept_bytes,
        was_resized: bitmap.was_resized,
        changed,
    }
}

/// Reports whether the bitmaps of a file count. An image that cannot be read has other findings.
fn has_bitmaps(files: &Chain) -> bool {
    Header::read(files.image()).is_ok_and(|header| header.autoclear & AUTOCLEAR_BITMAPS != 0)
}

/// Returns the entries of the bitmap directory.
fn entries(file: &ChainFile, head: &Head) -> Result<Vec<BitmapEntry>, MapError> {
    let mut entries = Vec::new();
    if let Some(extension) = &head.bitmaps {
        bitmap::each_entry(file, extension, |_, _, entry| {
            entries.push(*entry);
            Ok(())
        })?;
    }
    Ok(entries)
}
