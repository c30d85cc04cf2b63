//! A disk whose implementation reads and writes whole sectors only. The harness asks about any bytes, so this module
//! rounds: an adapter need not.
//!
//! # Arithmetic
//! If rounding up passes 2^64, the range keeps its end; no disk is as long.

use std::ops::Range;

use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::flights::Flights;
use crate::harness::engine::status::GuestRun;
use crate::harness::engine::{Answer, Facts, ImageReport, OpenDisk, Opened, ReportKind, Request};

/// The content of the buffer before a read: no byte that the implementation leaves alone is right by chance.
const FILLER: u8 = 0xA5;

/// A disk of which the implementation gets only reads and writes of whole sectors.
struct WholeSectors<'s> {
    disk: Box<dyn OpenDisk + 's>,
    sector_bytes: u64,
    buffer: Vec<u8>,
}

impl<'s> WholeSectors<'s> {
    /// Rounds the ranges for `disk` to sectors of this size, at least 1.
    fn new(disk: Box<dyn OpenDisk + 's>, sector_bytes: u32) -> Self {
        Self { disk, sector_bytes: u64::from(sector_bytes.max(1)), buffer: Vec::new() }
    }

    /// Returns the offset of the first sector of a range, the bytes of the range in its sectors, and the length of
    /// these; `None` if the range has only whole sectors. The last sector of a range on the
    /// disk ends with the disk at the latest.
    fn around(
        &mut self,
        guest: GuestOffset,
        length: usize,
    ) -> Option<(GuestOffset, Range<usize>, usize)> {
        let before = guest.get().checked_rem(self.sector_bytes)?;
        let end = before.saturating_add(length as u64);
        let rounded = end.checked_next_multiple_of(self.sector_bytes).unwrap_or(end);
        let left = self.disk.virtual_size_bytes().saturating_sub(guest.get() - before);
        let rounded = if end <= left { rounded.min(left) } else { rounded };
        if before == 0 && rounded == end {
            return None;
        }
        let first = usize::try_from(before).ok()?;
        let start = GuestOffset::new(guest.get() - before);
        Some((start, first..first.checked_add(length)?, usize::try_from(rounded).ok()?))
    }

    /// Reads the sectors of a range into the buffer.
    fn fill_buffer(&mut self, start: GuestOffset, length: usize) -> Answer {
        self.buffer.clear();
        self.buffer.resize(length, FILLER);
        self.disk.read(start, &mut self.buffer)
    }

    /// Writes bytes, with the bytes around them in their sectors.
    fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Answer {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some((start, inside, length)) = self.around(guest, bytes.len()) else {
            return self.disk.request(&Request::Write { guest, bytes });
        };
        self.fill_buffer(start, length)?;
        if let Some(place) = self.buffer.get_mut(inside) {
            place.copy_from_slice(bytes);
        }
        self.disk.request(&Request::Write { guest: start, bytes: &self.buffer })
    }

    /// Has the implementation zero the whole sectors of a range. The bytes around them are written afterwards: if the
    /// implementation has no answer to the request, nothing may change.
    fn write_zeroes(&mut self, guest: GuestOffset, length_bytes: u64) -> Answer {
        let (start, end) = (guest.get(), guest.get().saturating_add(length_bytes));
        let first = start.checked_next_multiple_of(self.sector_bytes).unwrap_or(end).min(end);
        let last = (end - end % self.sector_bytes).max(first);
        if last > first {
            let request =
                Request::WriteZeroes { guest: GuestOffset::new(first), length_bytes: last - first };
            self.disk.request(&request)?;
        }
        for part in [start..first, last..end] {
            // Each part lies in one sector.
            let length = usize::try_from(part.end - part.start).unwrap_or(0);
            if length > 0 {
                self.write(GuestOffset::new(part.start), &vec![0; length])?;
            }
        }
        Ok(())
    }
}

impl Facts {
    /// Returns the disk that an engine has opened, or one that rounds ranges for it.
    pub(crate) fn rounded<'s>(&self, opened: Opened<'s>) -> Opened<'s> {
        match self.sector_bytes {
            None => opened,
            Some(sector_bytes) => Ok(Box::new(WholeSectors::new(opened?, sector_bytes))),
        }
    }
}

impl OpenDisk for WholeSectors<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        if into.is_empty() {
            return Ok(());
        }
        let Some((start, inside, length)) = self.around(guest, into.len()) else {
            return self.disk.read(guest, into);
        };
        self.fill_buffer(start, length)?;
        if let Some(read) = self.buffer.get(inside) {
            into.copy_from_slice(read);
        }
        Ok(())
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        self.disk.status(guest)
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        self.disk.map(window, visitor)
    }

    fn report(&mut self, about: ReportKind) -> Answer<ImageReport> {
        self.disk.report(about)
    }

    fn request(&mut self, request: &Request) -> Answer {
        match *request {
            Request::Write { guest, bytes } => self.write(guest, bytes),
            Request::WriteZeroes { guest, length_bytes } => self.write_zeroes(guest, length_bytes),
            _ => self.disk.request(request),
        }
    }

    /// The harness has rounded the ranges: a round-up would be a further request in flight.
    fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        self.disk.in_flight(flights)
    }

    fn close(self: Box<Self>) -> Answer {
        self.disk.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::engine::EngineError;

    /// A disk of 4 KiB that refuses ranges inside sectors.
    struct Disk(Vec<u8>);

    impl Disk {
        fn range(&self, guest: GuestOffset, length: usize) -> Answer<Range<usize>> {
            let start = guest.get() as usize;
            match start.is_multiple_of(512) && length.is_multiple_of(512) {
                true => Ok(start..start + length),
                false => Err(EngineError::untyped("inside a sector")),
            }
        }
    }

    impl OpenDisk for Disk {
        fn virtual_size_bytes(&mut self) -> u64 {
            self.0.len() as u64
        }

        fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
            into.copy_from_slice(&self.0[self.range(guest, into.len())?]);
            Ok(())
        }

        fn request(&mut self, request: &Request) -> Answer {
            match *request {
                Request::Write { guest, bytes } => {
                    let range = self.range(guest, bytes.len())?;
                    self.0[range].copy_from_slice(bytes);
                }
                Request::WriteZeroes { guest, length_bytes } => {
                    let range = self.range(guest, length_bytes as usize)?;
                    self.0[range].fill(0);
                }
                _ => return Err(EngineError::NoAnswer),
            }
            Ok(())
        }
    }

    /// A disk of 600 bytes that fails behind its end.
    struct Short;

    impl OpenDisk for Short {
        fn virtual_size_bytes(&mut self) -> u64 {
            600
        }

        fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
            match guest.get() + into.len() as u64 <= 600 {
                true => Ok(()),
                false => Err(EngineError::past_end(guest, 600)),
            }
        }
    }

    #[test]
    fn the_last_sector_ends_with_the_disk() {
        let mut disk = WholeSectors::new(Box::new(Short), 512);
        let mut read = |start, length| disk.read(GuestOffset::new(start), &mut vec![0; length]);
        read(520, 10).unwrap();
        read(1, 599).unwrap();
        // This range passes the end by itself.
        read(520, 100).unwrap_err();
    }

    /// A disk that writes, and has no answer to the request for zeroes.
    struct WithoutZeroes(Disk);

    impl OpenDisk for WithoutZeroes {
        fn virtual_size_bytes(&mut self) -> u64 {
            self.0.virtual_size_bytes()
        }

        fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
            self.0.read(guest, into)
        }

        fn request(&mut self, request: &Request) -> Answer {
            match request {
                Request::WriteZeroes { .. } => Err(EngineError::NoAnswer),
                request => self.0.request(request),
            }
        }
    }

    #[test]
    fn a_request_without_an_answer_changes_nothing() {
        let mut disk = WholeSectors::new(Box::new(WithoutZeroes(Disk(vec![7; 4096]))), 512);
        let zeroes = Request::WriteZeroes { guest: GuestOffset::new(100), length_bytes: 2000 };
        assert!(matches!(disk.request(&zeroes), Err(EngineError::NoAnswer)));
        let mut read = vec![0; 4096];
        disk.read(GuestOffset::ZERO, &mut read).unwrap();
        assert_eq!(read, [7; 4096]);
    }

    #[test]
    fn ranges_inside_sectors_are_rounded() {
        let mut expected: Vec<u8> = (0..4096).map(|at| (at / 7) as u8).collect();
        let mut disk = WholeSectors::new(Box::new(Disk(expected.clone())), 512);
        let ranges = [(0, 512), (1, 3), (510, 4), (511, 1024), (1024, 1024), (100, 3996), (7, 0)];
        for (start, length) in ranges {
            let guest = GuestOffset::new(start as u64);
            let mut read = vec![1; length];
            disk.read(guest, &mut read).unwrap();
            assert_eq!(read, expected[start..start + length], "{start} {length}");
            let bytes = vec![start as u8; length];
            disk.request(&Request::Write { guest, bytes: &bytes }).unwrap();
            expected[start..start + length].copy_from_slice(&bytes);
            let length_bytes = length as u64 / 2;
            disk.request(&Request::WriteZeroes { guest, length_bytes }).unwrap();
            expected[start..start + length / 2].fill(0);
            let mut all = vec![0; 4096];
            disk.read(GuestOffset::ZERO, &mut all).unwrap();
            assert_eq!(all, expected, "{start} {length}");
        }
    }
}
