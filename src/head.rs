//! The head of an image: its header, and what the header extensions behind it say. The walker opens
//! an image with it, the recount begins with it.

use crate::qcow2::bitmap::{BitmapsExtension, EXTENSION_BYTES};
use crate::qcow2::error::MapError;
use crate::qcow2::header::{
    AUTOCLEAR_BITMAPS, EXTENSION_BACKING_FORMAT, EXTENSION_BITMAPS, EXTENSION_DATA_FILE,
    EXTENSION_END, Header, PARSED_BYTES,
};
use crate::qcow2::units::HostOffset;
use crate::storage::Storage;

/// Where something lies in the first cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its first byte.
    pub offset: HostOffset,
    /// How many bytes.
    pub length_bytes: u32,
}

/// What a reader needs of an image before it looks at any table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The header's fixed part, checked.
    pub header: Header,
    /// The format of the backing file, in words.
    pub backing_format: Option<Field>,
    /// The name of the external data file.
    pub data_file: Option<Field>,
    /// The bitmaps extension, checked. `None` also where the autoclear bit says that somebody who knows
    /// nothing of bitmaps has written to the image since: then it means nothing.
    pub bitmaps: Option<BitmapsExtension>,
}

impl Head {
    /// Reads the head of the image in `storage`, with the checks that QEMU makes at open
    /// (`block/qcow2.c`, `qcow2_do_open` and `qcow2_read_extensions`).
    ///
    /// # Errors
    /// What is not a qcow2 image, is malformed in its header or its extensions, or cannot be read.
    pub fn read<S: Storage + ?Sized>(storage: &S) -> Result<Self, MapError> {
        let mut first_bytes = [0; PARSED_BYTES];
        storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
        let header = Header::parse(&first_bytes)?;
        let mut head = Self { header, backing_format: None, data_file: None, bitmaps: None };
        head.read_extensions(storage)?;
        Ok(head)
    }

    /// Where the name of the backing file lies, where there is one.
    pub fn backing_name(&self) -> Option<Field> {
        let Header { backing_file_offset: offset, backing_file_bytes, .. } = self.header;
        (offset != HostOffset::ZERO && backing_file_bytes > 0)
            .then_some(Field { offset, length_bytes: backing_file_bytes })
    }

    /// Extensions must end where their area ends.
    fn read_extensions<S: Storage + ?Sized>(&mut self, storage: &S) -> Result<(), MapError> {
        let area_end = self.header.extension_area_end();
        let mut at = u64::from(self.header.header_length_bytes);
        // Bounded by the first cluster: each extension takes at least eight bytes of it.
        while at < area_end {
            let mut front = [0; 8];
            storage.read_at(HostOffset::new(at), &mut front)?;
            let [a, b, c, d, rest @ ..] = front;
            let (kind, length) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(rest));
            at += 8;
            if at > area_end || u64::from(length) > area_end - at {
                return Err(MapError::ExtensionLength { kind, at: at - 8, length, area_end });
            }
            let field = Some(Field { offset: HostOffset::new(at), length_bytes: length });
            match kind {
                EXTENSION_END => break,
                EXTENSION_BACKING_FORMAT => self.backing_format = field,
                EXTENSION_DATA_FILE => self.data_file = field,
                EXTENSION_BITMAPS => self.read_bitmaps(storage, at, length)?,
                _ => {}
            }
            at += u64::from(length).next_multiple_of(8);
        }
        Ok(())
    }

    /// The length must be right even where the rest is not looked at.
    fn read_bitmaps<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        at: u64,
        length_bytes: u32,
    ) -> Result<(), MapError> {
        if usize::try_from(length_bytes) != Ok(EXTENSION_BYTES) {
            return Err(BitmapsExtension::bad_length(length_bytes));
        }
        if self.header.autoclear & AUTOCLEAR_BITMAPS == 0 {
            return Ok(());
        }
        let mut content = [0; EXTENSION_BYTES];
        storage.read_at(HostOffset::new(at), &mut content)?;
        let cluster_size = self.header.geometry.cluster_size;
        self.bitmaps = Some(BitmapsExtension::parse(&content, cluster_size)?);
        Ok(())
    }
}
