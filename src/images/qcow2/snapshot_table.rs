//! The bytes of the snapshot table.

use bytes::BufMut;

use super::encoding::snapshots::SnapshotFields;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::HostOffset;

use super::builder::Builder;
use super::serialise::Writer;
use super::state::{Given, Snapshot, SnapshotDetails};

/// The byte that fills unknown extra data.
const UNKNOWN_EXTRA: u8 = 0xE7;

impl Snapshot {
    /// Returns the entry, without its strings.
    pub(super) fn entry(&self, l1_offset: HostOffset) -> SnapshotFields {
        let number = self.number;
        let timed = self.details.timed;
        SnapshotFields {
            l1_offset,
            l1_entries: u32::try_from(self.l1.entries).unwrap_or(u32::MAX),
            id_bytes: self.details.id_bytes,
            name_bytes: self.details.name_bytes,
            date_seconds: if timed { 0xF000_0000 + number } else { 0 },
            date_nanoseconds: if timed { 1_000_000_000 - number } else { 0 },
            vm_clock_nanoseconds: if timed { u64::MAX - u64::from(number) } else { 0 },
            vm_state_bytes: self.vm_state_bytes,
            disk_bytes: self.size_bytes,
            // All ones mean that there is no count.
            instructions: if timed { u64::MAX - u64::from(number) } else { 0 },
            extra_bytes: self.details.extra_bytes,
        }
    }

    /// Reports whether the entry has room for the size of its disk.
    pub(super) fn says_size(&self) -> bool {
        self.details.extra_bytes >= 16
    }

    /// Returns the number of digits of the snapshot's number.
    pub(super) fn digits(&self) -> u16 {
        self.number.checked_ilog10().unwrap_or(0) as u16 + 1
    }

    /// Writes the whole entry.
    fn write(&self, l1_offset: HostOffset, given: &Given, out: &mut [u8]) {
        let entry = self.entry(l1_offset);
        let mut strings = entry.write(out, UNKNOWN_EXTRA);
        let SnapshotDetails { id, name, .. } = self.details;
        for (string, length_bytes) in [(id, entry.id_bytes), (name, entry.name_bytes)] {
            match string {
                Some(string) => strings.put_slice(given.string(string)),
                None => write_number(&mut strings, self.number, length_bytes),
            }
        }
    }
}

impl Builder {
    /// Writes the snapshot table, and the tables of snapshots that are not yet written.
    pub(super) fn write_snapshots(&self, to: &mut Writer, observer: &dyn Observer) {
        let mut at = self.snapshot_table();
        for snapshot in self.snapshots.live() {
            let l1_offset = self.l1_offset(&snapshot.l1);
            let length = snapshot.entry(l1_offset).length_bytes();
            snapshot.write(l1_offset, &self.given, to.files.image.place(at, length as usize));
            at += length;
            observer.event(State::Serialise, Event::Snapshot);
            self.write_l1(to, &snapshot.l1, false, observer);
        }
    }
}

/// Writes a number in decimal, with leading zeros, in `length_bytes`.
fn write_number(out: &mut &mut [u8], number: u32, length_bytes: u16) {
    let digits = length_bytes.min(MAX_DIGITS);
    out.put_bytes(b'0', usize::from(length_bytes - digits));
    for digit in (0..u32::from(digits)).rev() {
        out.put_u8(b'0' + (number / 10u32.pow(digit) % 10) as u8);
    }
}

/// The number of digits of the largest number.
const MAX_DIGITS: u16 = 10;
