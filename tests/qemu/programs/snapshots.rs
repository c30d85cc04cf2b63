//! Snapshots in qemu-img: their records in an image, their contents, and applying them.

use test_support::prelude::*;

use qcowfuzz::formats::qcow2::constants::SNAPSHOT_FIXED_BYTES;
use qcowfuzz::formats::qcow2::geometry::Version;
use qcowfuzz::formats::qcow2::snapshot::{SnapshotEntry, SnapshotExtra, each_entry, extra_of};
use serde_json::{Value, json};

use test_support::qemu::{convert_with, failure, run};

/// A snapshot, as the image describes it.
#[derive(Debug)]
pub struct Listed {
    pub entry: SnapshotEntry,
    pub extra: SnapshotExtra,
    pub id: String,
    pub name: String,
}

impl Listed {
    /// Returns its record in `qemu-img info`, which has room for 127 bytes of the id and 255 of the name.
    fn as_qemu_prints_it(&self) -> Value {
        let Self { entry, extra, id, name } = self;
        let vm_state = extra.vm_state_bytes.unwrap_or(u64::from(entry.vm_state_bytes));
        let mut printed = json!({
            "id": id[..id.len().min(127)],
            "name": name[..name.len().min(255)],
            "vm-state-size": vm_state,
            "date-sec": entry.date_seconds,
            "date-nsec": entry.date_nanoseconds,
            "vm-clock-sec": entry.vm_clock_nanoseconds / 1_000_000_000,
            "vm-clock-nsec": entry.vm_clock_nanoseconds % 1_000_000_000,
        });
        if let Some(instructions) = extra.instructions {
            printed["icount"] = instructions.cast_signed().into();
        }
        printed
    }

    /// Returns the key by which qemu-img finds it: its id, or its name if it has no id.
    fn by(&self) -> Option<(&'static str, &str)> {
        [("id", self.id.as_str()), ("name", self.name.as_str())]
            .into_iter()
            .find(|(_, value)| !value.is_empty())
    }
}

/// Returns the snapshot table of the image in `storage`.
pub fn list(storage: &dyn Storage) -> Checked<Vec<Listed>> {
    let described = |error| format!("our reading of the snapshot table: {error}");
    let header = Head::read(storage).map_err(described)?.header;
    let mut all = Vec::new();
    let text = |at: HostOffset, length: u16| {
        let mut bytes = vec![0; usize::from(length)];
        storage.read_at(at, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    each_entry(storage, &header, |_, at, entry| {
        let extra = extra_of(storage, at, entry)?;
        let at = at + SNAPSHOT_FIXED_BYTES as u64 + u64::from(entry.extra_bytes);
        let id = text(at, entry.id_bytes);
        let name = text(at + u64::from(entry.id_bytes), entry.name_bytes);
        all.push(Listed { entry: *entry, extra, id, name });
        Ok(())
    })
    .map_err(described)?;
    Ok(all)
}

/// Compares every field of the snapshot table with the output of `qemu-img info`.
pub fn compare_lists(path: &Path, snapshots: &[Listed]) -> Checked<()> {
    if snapshots.is_empty() {
        return Ok(());
    }
    let printed = qemu::info(path)?;
    let ours: Vec<Value> = snapshots.iter().map(Listed::as_qemu_prints_it).collect();
    match printed["snapshots"] == Value::Array(ours.clone()) {
        true => Ok(()),
        false => Err(format!("ours {ours:?}\ntheirs {}", printed["snapshots"])),
    }
}

/// Returns the content of a snapshot by `qemu-img convert -l`, which gives it the size of the active disk. Returns
/// `None` if qemu-img cannot distinguish the snapshot from others.
pub fn convert(path: &Path, raw: &Path, snapshot: &Listed) -> Checked<Option<Vec<u8>>> {
    let Some((by, value)) = snapshot.by() else { return Ok(None) };
    // A comma ends the value of an option, unless it is doubled.
    let selected = format!("snapshot.{by}={}", value.replace(',', ",,"));
    convert_with(&["-f", "qcow2", "-l", &selected], path, raw).map(Some)
}

/// Applies the snapshot with `qemu-img snapshot -a`. Returns false if QEMU cannot do so.
pub fn apply(path: &Path, snapshot: &Listed, version: Version, active_bytes: u64) -> Checked<bool> {
    let Some((_, value)) = snapshot.by() else { return Ok(false) };
    let arguments = ["snapshot", "-q", "-a", value].map(OsStr::new);
    let arguments = [arguments.as_slice(), &[path.as_os_str()]].concat();
    let output = run("qemu-img", &arguments)?;
    if output.status.success() {
        return Ok(true);
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let resized = snapshot.extra.disk_bytes.is_some_and(|size| size != active_bytes);
    let odd = snapshot.extra.disk_bytes.is_some_and(|size| size % 512 != 0);
    let known = [
        (resized && odd, "must be a multiple of 512"),
        (resized && version == Version::V2, "v2 image which has snapshots"),
        // For a moment, the old and the new tables are both referenced.
        (true, "Invalid argument"),
        // QEMU adds its table of feature names to the header.
        (true, "Could not update qcow2 header: No space left on device"),
    ];
    match known.iter().any(|(possible, line)| *possible && said.contains(line)) {
        true => Ok(false),
        false => Err(failure("qemu-img", &arguments, &output)),
    }
}
