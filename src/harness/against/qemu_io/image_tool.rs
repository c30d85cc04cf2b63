//! qemu-img, for changes that qemu-io has no command for: new images, and snapshots.

use std::path::Path;

use crate::harness::engine::{Answer, EngineEnd, EngineError, NewImage};
use crate::harness::engines::image_program::NamedSnapshot;
use crate::processes::ProcessEnd;

use super::failure::fail;
use super::recorded::ImageOptions;
use super::session;

/// A change of the snapshots of an image.
#[derive(Clone, Debug)]
pub(super) enum SnapshotChange {
    /// Takes one with this name.
    Take(String),
    /// Applies that with this id or name.
    Apply(String),
    /// Deletes the first one with this name.
    Delete(String),
}

impl SnapshotChange {
    /// Returns the change that applies the snapshot at `index`.
    pub(super) fn apply(snapshots: &[NamedSnapshot], index: usize) -> Answer<Self> {
        Ok(Self::Apply(NamedSnapshot::string_of(snapshots, index)?.to_string()))
    }

    /// Returns the change that deletes the snapshot at `index`.
    pub(super) fn delete(snapshots: &[NamedSnapshot], index: usize) -> Answer<Self> {
        let snapshot = NamedSnapshot::nth(snapshots, index)?;
        match snapshots.iter().position(|other| other.name == snapshot.name) == Some(index) {
            true => Ok(Self::Delete(snapshot.name.clone())),
            false => Err(EngineError::unsupported("another snapshot has the same name")),
        }
    }

    /// Returns the change that takes a snapshot, whose name none of `snapshots` has.
    pub(super) fn take(snapshots: &[NamedSnapshot]) -> Self {
        Self::Take(new_name(snapshots.iter().map(|other| other.name.as_bytes())))
    }

    /// Changes the image that `options` name.
    pub(super) fn run(&self, options: &ImageOptions) -> ToolAnswer {
        let (flag, string) = match self {
            Self::Take(name) => ("-c", name),
            Self::Apply(string) => ("-a", string),
            Self::Delete(name) => ("-d", name),
        };
        let options = &options.with_layers_below;
        run(&format!("qemu-img snapshot -q {flag} '{string}' --image-opts '{options}'"))
    }
}

/// The answer of qemu-img: the end of its process, if it has not ended by itself.
pub(super) type ToolAnswer = Result<Answer, Box<EngineEnd>>;

/// Returns the answer of qemu-img, or the end of its process.
pub(super) fn answer_of(answer: ToolAnswer) -> Answer {
    answer.unwrap_or_else(|end| Err(EngineError::Ended(end)))
}

/// Creates an image at `path`.
pub(super) fn create(path: &Path, image: &NewImage) -> ToolAnswer {
    let compat = if image.version == 2 { "0.10" } else { "1.1" };
    let mut options = format!(
        "cluster_size={},compat={compat},refcount_bits={}",
        1u64 << image.cluster_bits,
        image.refcount_bits
    );
    if image.extended_l2 {
        options.push_str(",extended_l2=on");
    }
    if image.is_zstd {
        options.push_str(",compression_type=zstd");
    }
    let (path, size) = (path.display(), image.size_bytes);
    run(&format!("qemu-img create -q -f qcow2 -o {options} '{path}' {size}"))
}

/// Runs qemu-img to its end.
pub(super) fn run(command: &str) -> ToolAnswer {
    let ran = session::run(&format!("{command} 2>&1"), None)
        .unwrap_or_else(|what| fail(&format!("qemu-img: {what}")));
    match ran.end.process {
        ProcessEnd::Exit(0) => Ok(Ok(())),
        ProcessEnd::Exit(1) => Ok(Err(EngineError::untyped(ran.output.trim().to_string()))),
        _ => Err(Box::new(ran.end)),
    }
}

/// Returns a name that is not among `taken`.
pub(super) fn new_name<'n>(taken: impl Iterator<Item = &'n [u8]> + Clone) -> String {
    // There are fewer taken names than numbers.
    let mut names = (0u64..).map(|number| format!("new-{number}"));
    let is_free = |name: &String| taken.clone().all(|other| other != name.as_bytes());
    names.find(is_free).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(id: &str, name: &str) -> NamedSnapshot {
        NamedSnapshot { id: id.to_string(), name: name.to_string(), size_bytes: 0 }
    }

    fn string_of(change: Answer<SnapshotChange>) -> Option<String> {
        match change.ok()? {
            SnapshotChange::Take(it) | SnapshotChange::Apply(it) | SnapshotChange::Delete(it) => {
                Some(it)
            }
        }
    }

    #[test]
    fn a_change_names_the_snapshot_that_qemu_finds() {
        let all = [snapshot("1", ""), snapshot("", "3"), snapshot("2", ""), snapshot("3", "new-0")];
        let applied = [0, 1, 2, 3].map(|index| string_of(SnapshotChange::apply(&all, index)));
        let [one, two, three] = ["1", "2", "3"].map(|it| Some(it.to_string()));
        assert_eq!(applied, [one, None, two, three.clone()]);
        let deleted = [0, 1, 2, 3].map(|index| string_of(SnapshotChange::delete(&all, index)));
        let named = Some("new-0".to_string());
        assert_eq!(deleted, [Some(String::new()), three, None, named]);
        assert_eq!(string_of(Ok(SnapshotChange::take(&all))).as_deref(), Some("new-1"));
        assert_eq!(string_of(SnapshotChange::apply(&all, 4)), None);
    }
}
