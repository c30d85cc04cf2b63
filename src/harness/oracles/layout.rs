//! The structures of images whose format is not qcow2. A built image keeps the rules of its format: those by which QEMU
//! refuses an image, and those that only the specification demands. So its checksums are right. No two structures or
//! blocks lie in one place, and none lies past the end of its file. Does not check the mapping: the model does.

use std::ops::Range;

use crate::disk::storage::Storage;
use crate::formats::anatomy::Structure;
use crate::harness::oracles::{OracleResult, Violation, disagreement, violation};
use crate::images::damage::BrokenRule;
use crate::images::files::LayerFiles;
use crate::images::format::layer_anatomy::LayerAnatomy;
use crate::images::format::list::drawer;

const ORACLE: &str = "layout";

/// Judges the files of a layer. The buffers are reused from layer to layer.
#[derive(Debug)]
pub struct LayoutJudge {
    anatomy: LayerAnatomy,
    /// The places of the structures and blocks of one file.
    places: Vec<Range<u64>>,
}

impl Default for LayoutJudge {
    fn default() -> Self {
        Self { anatomy: LayerAnatomy::of_structures(), places: Vec::new() }
    }
}

impl LayoutJudge {
    /// Judges the files of a layer that lies on `below`, and returns the bytes of the tables that a walk reads.
    pub fn check(
        &mut self,
        files: &LayerFiles,
        below: Option<&LayerFiles>,
    ) -> Result<u64, Box<Violation>> {
        let (drawer, beside) = (drawer(files.format), files.extents.all());
        let broken = drawer
            .broken_at_open(&files.image)
            .or_else(|| beside.iter().find_map(|file| drawer.broken_extent(file)))
            .or_else(|| drawer.broken_by_specification(files, below));
        kept(broken)?;
        let taken_apart = self.anatomy.read(files);
        taken_apart.map_err(|error| {
            disagreement(ORACLE, "structures", ("valid", "refused"), error.to_string())
        })?;
        let mut table_bytes = 0;
        for (file, anatomy) in self.anatomy.files().take(1 + beside.len()) {
            let length = |structure: &Structure| structure.bytes.end - structure.bytes.start;
            let walked = anatomy.structures().iter().filter(|structure| structure.is_walked);
            table_bytes += walked.map(length).sum::<u64>();
            self.places.clear();
            self.places.extend(anatomy.structures().iter().map(|it| it.bytes.clone()));
            check_places(&mut self.places, files.file(file).length_bytes())?;
        }
        Ok(table_bytes)
    }
}

/// Returns the violation for a broken rule.
fn kept(broken: Option<BrokenRule>) -> OracleResult {
    match broken {
        Some(rule) => violation(ORACLE, rule, ("kept", "broken"), String::new),
        None => Ok(()),
    }
}

/// Checks that places do not overlap, and lie inside the file.
fn check_places(places: &mut Vec<Range<u64>>, file_bytes: u64) -> OracleResult {
    // A table without entries may have the place of the structure behind it.
    places.retain(|place| !place.is_empty());
    places.sort_unstable_by_key(|place| place.start);
    for pair in places.windows(2) {
        if let [here, next] = pair
            && next.start < here.end
        {
            return violation(ORACLE, "two structures", ("apart", "in one place"), || {
                format!("{here:?} and {next:?}")
            });
        }
    }
    match places.last() {
        Some(last) if last.end > file_bytes => {
            violation(ORACLE, "structure", ("in the file", "past its end"), || {
                format!("{last:?}, and the file has {file_bytes} bytes")
            })
        }
        _ => Ok(()),
    }
}
