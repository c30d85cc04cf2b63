//! The headers: which of the two counts, and where the log lies. Their checksum, CRC-32C, is also that of the region
//! table and of log entries.

use std::ops::{ControlFlow, Range};

use crate::disk::crc32c_zeros::append_zeros;
use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, each_data, read_array};
use crate::formats::anatomy::crc32c_without;
use crate::formats::error::MapError;
use crate::formats::vhdx::constants::{
    CHECKSUM_AT, Guid, HEADER_SIGNATURE, MAX_LENGTH_BYTES, OFFSET_UNIT_BYTES, VHDX_HEADER_BYTES,
    VHDX_HEADER_FIELD_BYTES, VHDX_HEADER_OFFSETS, VHDX_VERSION, header,
};

/// A checksum of the bytes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u32);

impl Checksum {
    /// Returns the checksum of a structure, whose own checksum counts as zeros.
    pub fn of_structure(bytes: &[u8]) -> Self {
        Self(crc32c_without(bytes, CHECKSUM_AT))
    }

    /// Reports whether this is the checksum that a structure contains.
    pub fn is_in(self, structure: &[u8]) -> bool {
        let stored = structure.get(CHECKSUM_AT..).and_then(|rest| rest.first_chunk());
        stored.is_some_and(|stored| u32::from_le_bytes(*stored) == self.0)
    }

    /// Reports whether a structure contains its own checksum.
    pub fn is_valid(structure: &[u8]) -> bool {
        Self::of_structure(structure).is_in(structure)
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// Appends zeros, in time that grows with the logarithm of their number.
    pub fn append_zeros(&mut self, count: u64) {
        self.0 = append_zeros(self.0, count);
    }

    /// Appends the bytes of a file in `range`. Holes of the file are not read. `scratch` has room
    /// for a piece.
    ///
    /// # Errors
    /// A read fails.
    pub fn append_stored<S: Storage + ?Sized>(
        &mut self,
        file: &S,
        range: Range<HostOffset>,
        scratch: &mut [u8],
    ) -> Result<(), StorageError> {
        let mut position = range.start;
        let _ = each_data(file, range.clone(), scratch, |data| {
            self.append_zeros(data.offset.saturating_distance_from(position));
            self.append(data.bytes);
            position = data.offset + data.bytes.len() as u64;
            Ok::<_, StorageError>(ControlFlow::Continue(()))
        })?;
        self.append_zeros(range.end.saturating_distance_from(position));
        Ok(())
    }

    /// Returns the checksum.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// The fields of a header that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VhdxHeader {
    /// The header with the larger number counts.
    pub sequence: u64,
    /// The identity of the entries of the log; zeros if the log is empty.
    pub log_guid: Guid,
    /// The version of the log.
    pub log_version: u32,
    /// The length of the log in bytes.
    pub log_length_bytes: u32,
    /// The host offset of the log.
    pub log_offset: HostOffset,
}

/// The reason why a header counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderChoice {
    /// The second header counts.
    pub is_second: bool,
    /// The header that does not count.
    pub other: LesserHeader,
}

/// A header that does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LesserHeader {
    /// It is not valid.
    Invalid,
    /// Its sequence number is smaller.
    Older,
    /// It is the same as the header that counts.
    Equal,
}

/// The place of the log, and the identity of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLog {
    /// The host offset, a multiple of 1 MiB.
    pub offset: HostOffset,
    /// The length in bytes, a multiple of 1 MiB.
    pub length_bytes: u32,
    /// The identity of the entries. An entry with another one is left over from earlier times.
    pub guid: Guid,
}

impl VhdxHeader {
    /// Reads both headers, and returns the one that counts.
    ///
    /// # Errors
    /// A read fails, or as for [`VhdxHeader::current`].
    pub fn read<S: Storage + ?Sized>(file: &S) -> Result<Self, MapError> {
        Ok(Self::read_chosen(file)?.0)
    }

    /// Reads both headers, and returns the one that counts, with the reason.
    ///
    /// # Errors
    /// As for [`VhdxHeader::read`].
    pub fn read_chosen<S: Storage + ?Sized>(file: &S) -> Result<(Self, HeaderChoice), MapError> {
        let [first, second] = VHDX_HEADER_OFFSETS.map(HostOffset::new);
        Self::chosen(&read_array(file, first)?, &read_array(file, second)?)
    }

    /// Returns the header that counts of `first` and `second`, as QEMU chooses it (`block/vhdx.c`,
    /// `vhdx_parse_header`).
    ///
    /// # Errors
    /// Neither is valid, or two different ones have the same sequence number.
    pub fn current(
        first: &[u8; VHDX_HEADER_BYTES],
        second: &[u8; VHDX_HEADER_BYTES],
    ) -> Result<Self, MapError> {
        Ok(Self::chosen(first, second)?.0)
    }

    fn chosen(
        first: &[u8; VHDX_HEADER_BYTES],
        second: &[u8; VHDX_HEADER_BYTES],
    ) -> Result<(Self, HeaderChoice), MapError> {
        use LesserHeader::{Equal, Invalid, Older};
        let first_with = |header, other| Ok((header, HeaderChoice { is_second: false, other }));
        let second_with = |header, other| Ok((header, HeaderChoice { is_second: true, other }));
        match (Self::parse(first), Self::parse(second)) {
            (None, None) => Err(not_vhdx("neither header is valid")),
            (Some(first), None) => first_with(first, Invalid),
            (None, Some(second)) => second_with(second, Invalid),
            (Some(one), Some(two)) if one.sequence > two.sequence => first_with(one, Older),
            (Some(one), Some(two)) if one.sequence < two.sequence => second_with(two, Older),
            (Some(header), Some(_)) => {
                // Some tools write the same header twice.
                let fields = |bytes: &[u8; VHDX_HEADER_BYTES]| {
                    bytes.first_chunk::<VHDX_HEADER_FIELD_BYTES>().copied()
                };
                match fields(first) == fields(second) {
                    true => first_with(header, Equal),
                    false => Err(not_vhdx("two different headers have the same sequence number")),
                }
            }
        }
    }

    /// Parses a header; `None` if it is not valid.
    fn parse(bytes: &[u8; VHDX_HEADER_BYTES]) -> Option<Self> {
        if !bytes.starts_with(&HEADER_SIGNATURE) || !Checksum::is_valid(bytes) {
            return None;
        }
        let header = Self {
            sequence: header::SEQUENCE_NUMBER.little(bytes),
            log_guid: *bytes.get(header::LOG_GUID.at..)?.first_chunk()?,
            log_version: header::LOG_VERSION.little_32(bytes),
            log_length_bytes: header::LOG_LENGTH.little_32(bytes),
            log_offset: HostOffset::new(header::LOG_OFFSET.little(bytes)),
        };
        (header::VERSION.little(bytes) == VHDX_VERSION.into()).then_some(header)
    }

    /// Returns the log, if there is one, after the checks that QEMU makes (`block/vhdx-log.c`, `vhdx_parse_log`).
    ///
    /// # Errors
    /// The log's offset, version or length is not allowed.
    pub fn log(&self) -> Result<Option<ReplayLog>, MapError> {
        let fault = |field, found, expected| Err(MapError::Header { field, found, expected });
        let (offset, length) = (self.log_offset.get(), u64::from(self.log_length_bytes));
        if offset < OFFSET_UNIT_BYTES || !offset.is_multiple_of(OFFSET_UNIT_BYTES) {
            return fault("log offset", offset, "a multiple of 1 MiB other than 0");
        }
        if self.log_version != 0 {
            return fault("log version", self.log_version.into(), "0");
        }
        if self.log_guid == [0; 16] || length == 0 {
            return Ok(None);
        }
        if !length.is_multiple_of(OFFSET_UNIT_BYTES) {
            return fault("log length", length, "a multiple of 1 MiB");
        }
        // QEMU reads every sector of the log.
        if offset.checked_add(length).is_none_or(|end| end > MAX_LENGTH_BYTES) {
            return fault("log offset", offset, "an offset that QEMU can read");
        }
        Ok(Some(ReplayLog {
            offset: self.log_offset,
            length_bytes: self.log_length_bytes,
            guid: self.log_guid,
        }))
    }
}

/// Returns the error of an image that breaks the format.
pub(super) fn not_vhdx(what: &'static str) -> MapError {
    MapError::NotImage { format: "vhdx", what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_checksum_counts_as_zeros() {
        let mut bytes = *b"head\0\0\0\0rest";
        let checksum = Checksum::of_structure(&bytes);
        assert_eq!(checksum.get(), crc32c::crc32c(&bytes));
        bytes[4..8].copy_from_slice(&checksum.get().to_le_bytes());
        assert!(Checksum::is_valid(&bytes));
        bytes[11] ^= 1;
        assert!(!Checksum::is_valid(&bytes) && !Checksum::is_valid(b"short"));
    }

    fn header(sequence: u64, file_guid: u8) -> [u8; VHDX_HEADER_BYTES] {
        let mut bytes = [0; VHDX_HEADER_BYTES];
        bytes[..4].copy_from_slice(&HEADER_SIGNATURE);
        bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        bytes[16] = file_guid;
        bytes[66] = 1;
        bytes[68..72].copy_from_slice(&(1u32 << 20).to_le_bytes());
        bytes[72..80].copy_from_slice(&(1u64 << 20).to_le_bytes());
        let checksum = Checksum::of_structure(&bytes).get();
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn the_valid_header_with_the_larger_number_counts() {
        let sequence = |first: &[u8; VHDX_HEADER_BYTES], second: &[u8; VHDX_HEADER_BYTES]| {
            VhdxHeader::current(first, second).ok().map(|header| header.sequence)
        };
        let mut spoiled = header(9, 0);
        spoiled[4095] ^= 1;
        assert_eq!(sequence(&header(1, 0), &header(2, 0)), Some(2));
        assert_eq!(sequence(&header(3, 0), &header(2, 0)), Some(3));
        assert_eq!(sequence(&header(3, 0), &spoiled), Some(3));
        assert_eq!(sequence(&spoiled, &header(2, 0)), Some(2));
        assert_eq!(sequence(&spoiled, &spoiled), None);
        assert_eq!(sequence(&header(2, 5), &header(2, 5)), Some(2));
        assert_eq!(sequence(&header(2, 5), &header(2, 6)), None);
        let choice = |first: &[u8; VHDX_HEADER_BYTES], second: &[u8; VHDX_HEADER_BYTES]| {
            let (_, HeaderChoice { is_second, other }) = VhdxHeader::chosen(first, second).unwrap();
            (is_second, other)
        };
        assert_eq!(choice(&header(1, 0), &header(2, 0)), (true, LesserHeader::Older));
        assert_eq!(choice(&header(3, 0), &spoiled), (false, LesserHeader::Invalid));
        assert_eq!(choice(&header(2, 5), &header(2, 5)), (false, LesserHeader::Equal));
    }

    #[test]
    fn a_log_without_identity_is_empty() {
        let bytes = header(1, 0);
        let mut header = VhdxHeader::current(&bytes, &bytes).unwrap();
        assert_eq!(header.log(), Ok(None));
        header.log_guid[3] = 1;
        assert!(header.log().unwrap().is_some());
        header.log_length_bytes += 1;
        assert!(header.log().is_err());
        header.log_length_bytes = 0;
        assert_eq!(header.log(), Ok(None));
        header.log_offset = HostOffset::new(4096);
        assert!(header.log().is_err());
    }
}
