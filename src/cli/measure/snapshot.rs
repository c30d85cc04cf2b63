//! Finds a snapshot by the value of `-l`.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::snapshot::{SnapshotEntry, each_entry};

/// Returns the index of the snapshot that `wanted` names: an id or else a name, or `snapshot.id=ID` and
/// `snapshot.name=NAME`, joined by a comma if both must fit (QEMU `block/snapshot.c`,
/// `bdrv_snapshot_load_tmp_by_id_or_name`). The first snapshot that fits counts.
///
/// # Errors
/// The snapshot table is malformed, or a read failed.
pub fn find<S: Storage + ?Sized>(image: &S, wanted: &str) -> Result<Option<u32>, MapError> {
    let head = Head::read(image)?;
    match wanted.starts_with("snapshot.") {
        true => match Keys::parse(wanted) {
            Some(keys) => first(image, &head, &keys),
            None => Ok(None),
        },
        false => {
            let wanted = Some(wanted.as_bytes());
            let by_id = first(image, &head, &Keys { id: wanted, name: None })?;
            match by_id {
                Some(index) => Ok(Some(index)),
                None => first(image, &head, &Keys { id: None, name: wanted }),
            }
        }
    }
}

/// The id and the name that a snapshot must have. `None` stands for any.
struct Keys<'a> {
    id: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
}

impl<'a> Keys<'a> {
    /// Parses options. Returns `None` if there is an unknown one.
    fn parse(text: &'a str) -> Option<Self> {
        let mut keys = Self { id: None, name: None };
        for option in text.split(',') {
            match option.split_once('=')? {
                ("snapshot.id", id) => keys.id = Some(id.as_bytes()),
                ("snapshot.name", name) => keys.name = Some(name.as_bytes()),
                _ => return None,
            }
        }
        Some(keys)
    }

    /// Reports whether a snapshot has this id and this name.
    fn fit(&self, id: &[u8], name: &[u8]) -> bool {
        self.id.is_none_or(|it| it == id) && self.name.is_none_or(|it| it == name)
    }
}

/// Returns the index of the first snapshot that fits.
fn first<S: Storage + ?Sized>(
    image: &S,
    head: &Head,
    keys: &Keys<'_>,
) -> Result<Option<u32>, MapError> {
    let mut found = None;
    each_entry(image, &head.header, |index, at, entry| {
        if found.is_none() {
            let [id, name] = id_and_name(image, at, entry)?;
            found = keys.fit(&id, &name).then_some(index);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Reads the id and the name of the entry at `at`. Each ends before its first zero byte.
fn id_and_name<S: Storage + ?Sized>(
    image: &S,
    at: HostOffset,
    entry: &SnapshotEntry,
) -> Result<[Vec<u8>; 2], MapError> {
    let [id_at, name_at] = entry.strings_at(at);
    let read = |at: HostOffset, length: u16| -> Result<Vec<u8>, MapError> {
        let mut bytes = vec![0; usize::from(length)];
        image.read_at(at, &mut bytes)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        bytes.truncate(end.unwrap_or(bytes.len()));
        Ok(bytes)
    };
    Ok([read(id_at, entry.id_bytes)?, read(name_at, entry.name_bytes)?])
}
