//! The image header, versions 2 and 3 (specification, "Header" and "Header extensions").

use super::constants::{
    AUTOCLEAR_RAW_DATA_FILE, INCOMPATIBLE_COMPRESSION, INCOMPATIBLE_DATA_FILE,
    INCOMPATIBLE_EXTENDED_L2, INCOMPATIBLE_KNOWN, MAGIC, MAX_CLUSTER_BITS, MAX_FILE_BYTES,
    MAX_L1_ENTRIES, MAX_REFCOUNT_ORDER, MAX_REFCOUNT_TABLE_BYTES, MAX_SNAPSHOTS,
    MIN_EXTENDED_L2_CLUSTER_BITS, SNAPSHOT_FIXED_BYTES, V2_LENGTH_BYTES,
    V3_COMPRESSION_LENGTH_BYTES, V3_LENGTH_BYTES, header,
};
use super::entry::Layout;
use super::geometry::{Compression, Geometry, Version};
use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, read_array};
use crate::formats::anatomy::StructureField;
use crate::formats::error::MapError;

/// The fields of a header that a reader needs, checked as QEMU checks them at open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version, cluster size, refcount width and the features that change structures.
    pub geometry: Geometry,
    /// The size as stored. QEMU rounds it down to a multiple of 512 bytes.
    pub size_bytes: u64,
    /// The number of entries in the active L1 table.
    pub l1_entries: u32,
    /// The host offset of the active L1 table.
    pub l1_offset: HostOffset,
    /// The host offset of the refcount table.
    pub refcount_table_offset: HostOffset,
    /// The length of the refcount table in clusters.
    pub refcount_table_clusters: u32,
    /// The number of snapshots.
    pub snapshots: u32,
    /// The host offset of the snapshot table.
    pub snapshots_offset: HostOffset,
    /// The host offset of the backing file's name; 0 without a backing file.
    pub backing_file_offset: HostOffset,
    /// The length of the backing file's name.
    pub backing_file_bytes: u32,
    /// Incompatible feature bits.
    pub incompatible: u64,
    /// Compatible feature bits.
    pub compatible: u64,
    /// Autoclear feature bits.
    pub autoclear: u64,
    /// The length of the header. The extensions begin there.
    pub header_length_bytes: u32,
}

/// The number of bytes that [`Header::parse`] reads.
pub const PARSED_BYTES: usize = V3_COMPRESSION_LENGTH_BYTES as usize;

impl Header {
    /// Reads the fixed part of the header of the image in `storage`, as [`Header::parse`] does.
    ///
    /// # Errors
    /// As for [`Header::parse`]; or the read fails.
    pub fn read<S: Storage + ?Sized>(storage: &S) -> Result<Self, MapError> {
        Self::parse(&read_array(storage, HostOffset::ZERO)?)
    }

    /// Parses the fixed part of a header from the first bytes of a file; bytes past its end are zeros. Checks the
    /// fields in the same order as QEMU (`block/qcow2.c`, `qcow2_do_open`).
    ///
    /// # Errors
    /// QEMU refuses a field, or the image is encrypted, which is not supported.
    pub fn parse(first_bytes: &[u8; PARSED_BYTES]) -> Result<Self, MapError> {
        Self::parse_with(first_bytes, true)
    }

    /// Parses the header as [`Header::parse`] does, but accepts an image without a refcount table. `qemu-img check`
    /// opens such an image (`BDRV_O_CHECK`) and reports all its refcounts as wrong.
    ///
    /// # Errors
    /// QEMU refuses another field, or the image is encrypted, which is not supported.
    pub fn parse_for_check(first_bytes: &[u8; PARSED_BYTES]) -> Result<Self, MapError> {
        Self::parse_with(first_bytes, false)
    }

    fn parse_with(
        first_bytes: &[u8; PARSED_BYTES],
        needs_refcount_table: bool,
    ) -> Result<Self, MapError> {
        let raw = RawHeader::read(first_bytes);
        let geometry = raw.checked_geometry()?;
        raw.check_tables(&geometry, needs_refcount_table)?;
        raw.check_encryption()?;
        Ok(Self {
            geometry,
            size_bytes: raw.size,
            l1_entries: raw.l1_size,
            l1_offset: HostOffset::new(raw.l1_table_offset),
            refcount_table_offset: HostOffset::new(raw.refcount_table_offset),
            refcount_table_clusters: raw.refcount_table_clusters,
            snapshots: raw.nb_snapshots,
            snapshots_offset: HostOffset::new(raw.snapshots_offset),
            backing_file_offset: HostOffset::new(raw.backing_file_offset),
            backing_file_bytes: raw.backing_file_size,
            incompatible: raw.incompatible,
            compatible: raw.compatible,
            autoclear: raw.autoclear,
            header_length_bytes: raw.header_length,
        })
    }

    /// Returns the end of the extension area: the backing file's name, or the end of cluster 0.
    pub fn extension_area_end(&self) -> u64 {
        match self.backing_file_offset.get() {
            0 => self.geometry.cluster_size.bytes(),
            name => name,
        }
    }

    /// Returns the size of the disk that a guest sees. As in QEMU, that is a whole number of 512-byte sectors.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.size_bytes & !511
    }
}

/// The fields as they are stored, before the checks.
struct RawHeader {
    magic: u32,
    version: u32,
    backing_file_offset: u64,
    backing_file_size: u32,
    cluster_bits: u32,
    size: u64,
    crypt_method: u32,
    l1_size: u32,
    l1_table_offset: u64,
    refcount_table_offset: u64,
    refcount_table_clusters: u32,
    nb_snapshots: u32,
    snapshots_offset: u64,
    incompatible: u64,
    compatible: u64,
    autoclear: u64,
    refcount_order: u32,
    header_length: u32,
    compression_type: u64,
}

impl RawHeader {
    fn read(first_bytes: &[u8; PARSED_BYTES]) -> Self {
        let word = |field: StructureField| field.big_32(first_bytes);
        let long = |field: StructureField| field.big(first_bytes);
        let mut raw = Self {
            magic: word(header::MAGIC),
            version: word(header::VERSION),
            backing_file_offset: long(header::BACKING_FILE_OFFSET),
            backing_file_size: word(header::BACKING_FILE_SIZE),
            cluster_bits: word(header::CLUSTER_BITS),
            size: long(header::SIZE),
            crypt_method: word(header::CRYPT_METHOD),
            l1_size: word(header::L1_SIZE),
            l1_table_offset: long(header::L1_TABLE_OFFSET),
            refcount_table_offset: long(header::REFCOUNT_TABLE_OFFSET),
            refcount_table_clusters: word(header::REFCOUNT_TABLE_CLUSTERS),
            nb_snapshots: word(header::NB_SNAPSHOTS),
            snapshots_offset: long(header::SNAPSHOTS_OFFSET),
            incompatible: 0,
            compatible: 0,
            autoclear: 0,
            refcount_order: 4,
            header_length: V2_LENGTH_BYTES,
            compression_type: 0,
        };
        if raw.version >= 3 {
            raw.incompatible = long(header::INCOMPATIBLE_FEATURES);
            raw.compatible = long(header::COMPATIBLE_FEATURES);
            raw.autoclear = long(header::AUTOCLEAR_FEATURES);
            raw.refcount_order = word(header::REFCOUNT_ORDER);
            raw.header_length = word(header::HEADER_LENGTH);
            if raw.header_length > V3_LENGTH_BYTES {
                raw.compression_type = long(header::COMPRESSION_TYPE);
            }
        }
        raw
    }

    fn checked_geometry(&self) -> Result<Geometry, MapError> {
        if self.magic != MAGIC {
            return Err(MapError::NotQcow2 { found: self.magic });
        }
        let version = match self.version {
            2 => Version::V2,
            3 => Version::V3,
            other => return Err(bad("version", u64::from(other), "2 or 3")),
        };
        let cluster_size = ClusterSize::from_bits(self.cluster_bits)
            .filter(|size| size.bits() <= MAX_CLUSTER_BITS)
            .ok_or(bad("cluster_bits", u64::from(self.cluster_bits), "9 to 21"))?;
        if version == Version::V3 {
            self.check_v3_lengths(cluster_size)?;
        }
        // If several fields are wrong, QEMU names the compression type before the others.
        let zstd_bit = self.incompatible & INCOMPATIBLE_COMPRESSION != 0;
        let compression = match (self.compression_type, zstd_bit) {
            (0, false) => Compression::Deflate,
            (1, true) => Compression::Zstd,
            (other, _) => {
                let expected = "0 without, 1 with the compression type feature bit";
                return Err(bad("compression_type", other, expected));
            }
        };
        self.check_backing_name(cluster_size)?;
        if self.incompatible & !INCOMPATIBLE_KNOWN != 0 {
            return Err(bad("incompatible_features", self.incompatible, "bits 0 to 4 only"));
        }
        let data_file = self.incompatible & INCOMPATIBLE_DATA_FILE != 0;
        if self.autoclear & AUTOCLEAR_RAW_DATA_FILE != 0 && !data_file {
            let expected = "no raw external data without the external data file feature bit";
            return Err(bad("autoclear_features", self.autoclear, expected));
        }
        let extended_l2 = self.incompatible & INCOMPATIBLE_EXTENDED_L2 != 0;
        if extended_l2 && cluster_size.bits() < MIN_EXTENDED_L2_CLUSTER_BITS {
            let expected = "14 to 21 with extended L2 entries";
            return Err(bad("cluster_bits", u64::from(self.cluster_bits), expected));
        }
        if self.refcount_order > MAX_REFCOUNT_ORDER {
            return Err(bad("refcount_order", u64::from(self.refcount_order), "0 to 6"));
        }
        let refcount_order = self.refcount_order;
        Ok(Geometry { version, cluster_size, refcount_order, extended_l2, compression, data_file })
    }

    fn check_v3_lengths(&self, cluster_size: ClusterSize) -> Result<(), MapError> {
        let length = u64::from(self.header_length);
        if self.header_length < V3_LENGTH_BYTES || length > cluster_size.bytes() {
            return Err(bad("header_length", length, "104 to the cluster size"));
        }
        Ok(())
    }

    fn check_backing_name(&self, cluster_size: ClusterSize) -> Result<(), MapError> {
        if self.backing_file_offset == 0 {
            return Ok(());
        }
        let room = cluster_size.bytes().checked_sub(self.backing_file_offset).ok_or(bad(
            "backing_file_offset",
            self.backing_file_offset,
            "within the first cluster",
        ))?;
        let length = u64::from(self.backing_file_size);
        if length > room.min(1023) {
            let expected = "at most 1023, within the first cluster";
            return Err(bad("backing_file_size", length, expected));
        }
        Ok(())
    }

    /// Refuses encrypted images. QEMU reads the tables before it sets up the encryption.
    fn check_encryption(&self) -> Result<(), MapError> {
        match self.crypt_method {
            0 => Ok(()),
            1 => Err(MapError::Unsupported("encryption (AES)")),
            2 => Err(MapError::Unsupported("encryption (LUKS)")),
            other => Err(bad("crypt_method", u64::from(other), "0")),
        }
    }

    fn check_tables(
        &self,
        geometry: &Geometry,
        needs_refcount_table: bool,
    ) -> Result<(), MapError> {
        let cluster_size = geometry.cluster_size;
        if self.size >= 1 << 63 {
            return Err(bad("size", self.size, "less than 2^63"));
        }
        if self.refcount_table_clusters == 0 && needs_refcount_table {
            return Err(bad("refcount_table_clusters", 0, "at least 1"));
        }
        // A length that saturates is longer than the bound.
        let table_bytes = cluster_size.saturating_bytes(u64::from(self.refcount_table_clusters));
        if table_bytes > MAX_REFCOUNT_TABLE_BYTES {
            let found = u64::from(self.refcount_table_clusters);
            return Err(bad("refcount_table_clusters", found, "at most 8 MiB"));
        }
        check_offset(
            "refcount_table_offset",
            self.refcount_table_offset,
            table_bytes,
            cluster_size,
        )?;
        if self.nb_snapshots > MAX_SNAPSHOTS {
            return Err(bad("nb_snapshots", u64::from(self.nb_snapshots), "at most 65536"));
        }
        let snapshot_bytes = u64::from(self.nb_snapshots) * SNAPSHOT_FIXED_BYTES as u64;
        check_offset("snapshots_offset", self.snapshots_offset, snapshot_bytes, cluster_size)?;
        let l1_size = u64::from(self.l1_size);
        if self.l1_size > MAX_L1_ENTRIES {
            return Err(bad("l1_size", l1_size, "at most 4194304 entries"));
        }
        check_offset("l1_table_offset", self.l1_table_offset, l1_size * 8, cluster_size)?;
        if l1_size < geometry.l1_entries_for(self.size) {
            return Err(bad("l1_size", l1_size, "enough entries for the size"));
        }
        Ok(())
    }
}

fn bad(field: &'static str, found: u64, expected: &'static str) -> MapError {
    MapError::Header { field, found, expected }
}

/// Checks the offset of a table. The table must begin on a cluster boundary, and its end must fit into a signed file
/// offset. QEMU reads a table with entries at open, so the table must lie within the longest file that QEMU reads
/// (`BDRV_MAX_LENGTH`).
fn check_offset(
    field: &'static str,
    found: u64,
    length_bytes: u64,
    cluster_size: ClusterSize,
) -> Result<(), MapError> {
    if found & cluster_size.mask() != 0 {
        return Err(bad(field, found, "a multiple of the cluster size"));
    }
    let end = if length_bytes > 0 { MAX_FILE_BYTES } else { i64::MAX as u64 };
    // No table that comes here is longer than 32 MiB.
    if found > end - length_bytes {
        return Err(bad(field, found, "a table that ends before 2^63"));
    }
    Ok(())
}
