//! The extents of any window are the clipped extents of the whole walk. A walk that stops and resumes at the end of an
//! extent emits the same extents, and so does a second walk. If the whole walk ended early, with an error or at a bound
//! of the harness, the same holds as far as it came. Does not check that the whole walk is right.

use std::ops::Range;

use crate::disk::extent::{Extent, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::ErrorKind;
use crate::harness::engine::tested::TestedDisk;
use crate::harness::oracles::bounds::Collector;
use crate::harness::oracles::{
    Oracle, OracleResult, Violation, differing_field, extents, unexpected_error, violation,
};

const ORACLE: Oracle = Oracle::drawn("window");

/// The extents of a whole walk, with which other walks of the disk are compared.
#[derive(Clone, Copy, Debug)]
pub struct WholeWalk<'e> {
    /// The extents: they tile the disk or its beginning.
    pub extents: &'e [Extent],
    /// The walk came to the end of the disk. If not, other walks may fail, and stop where it stopped.
    pub is_complete: bool,
}

impl<'e> WholeWalk<'e> {
    /// Returns the walk of a whole disk that came to its end.
    pub fn complete(extents: &'e [Extent]) -> Self {
        Self { extents, is_complete: true }
    }

    /// Walks `window` as far as the whole walk came, and compares the extents.
    pub fn check(
        self,
        disk: &mut TestedDisk,
        window: Window,
        fuel: u64,
        buffer: &mut Vec<Extent>,
    ) -> OracleResult {
        let (window, range) = self.reached(window, disk.virtual_size_bytes());
        let failed = self.walk(disk, window, Collector::new(buffer, fuel))?;
        check_tiling(buffer, &range, failed)?;
        let is_before = |extent: &Extent| extent.end().is_some_and(|end| end.get() <= range.start);
        let first = self.extents.partition_point(is_before);
        compare(&self.extents[first..], buffer, "clip")
    }

    /// Walks again, stops after `stop_after` extents (at least 1), and resumes at the end of the last one. Both walks
    /// together must equal the whole walk.
    pub fn check_resumed(
        self,
        disk: &mut TestedDisk,
        stop_after: usize,
        fuel: u64,
        buffer: &mut Vec<Extent>,
    ) -> OracleResult {
        let (whole, size) = (self.extents, disk.virtual_size_bytes());
        let collector = Collector::new(buffer, fuel).stopping_after(stop_after);
        let failed = self.walk(disk, Window::ALL, collector)?;
        let expected = stop_after.min(whole.len());
        if buffer.len() != expected && !failed {
            return violation(ORACLE, "stopped", ("as many as asked", "another number"), || {
                format!("{} extents, expected {expected}", buffer.len())
            });
        }
        compare(whole, buffer, "repeated")?;
        let stopped = check_tiling(buffer, &(0..size), true);
        let Some(start) = buffer.last().and_then(Extent::end) else { return stopped };
        let (_, left) = whole.split_at(buffer.len().min(whole.len()));
        let (rest, range) = self.reached(Window { start, length_bytes: u64::MAX }, size);
        let failed = self.walk(disk, rest, Collector::new(buffer, fuel))?;
        if buffer.len() != left.len() && !failed {
            return violation(ORACLE, "resumed", ("as many as are left", "another number"), || {
                format!("{} extents from {start} on, expected {}", buffer.len(), left.len())
            });
        }
        compare(left, buffer, "resumed")?;
        stopped?;
        check_tiling(buffer, &range, failed)
    }

    /// Returns the part of a window that the whole walk reached, as a window and as a range of the disk.
    fn reached(self, window: Window, size_bytes: u64) -> (Window, Range<u64>) {
        if self.is_complete {
            let Range { start, end } = window.clipped(size_bytes);
            // The engine clips the window.
            return (window, start.get()..end.get());
        }
        let end = self.extents.last().and_then(Extent::end).map_or(0, GuestOffset::get);
        let Range { start, end } = window.clipped(end.min(size_bytes));
        let range = start.get()..end.get();
        (Window { start, length_bytes: range.end - range.start }, range)
    }

    /// Walks a window. Returns true if the walk failed, as it may if the whole walk did not come to its end.
    fn walk(
        self,
        disk: &mut TestedDisk,
        window: Window,
        mut collector: Collector,
    ) -> OracleResult<bool> {
        match disk.map(window, &mut collector) {
            Ok(()) => Ok(false),
            Err(error) if self.is_complete || error.kind() == ErrorKind::NoAnswer => {
                Err(unexpected_error(ORACLE, "walk", &error))
            }
            Err(_) => Ok(true),
        }
    }
}

/// Checks that the extents tile `range`, or its beginning if the walk ended early.
fn check_tiling(extents: &[Extent], range: &Range<u64>, ended_early: bool) -> OracleResult {
    let tiled = match ended_early {
        true => extents::check_prefix(extents, range).map(|_| ()),
        false => extents::check_partition(extents, range),
    };
    tiled.map_err(Violation::into_drawn)
}

/// Returns the rest of the disk behind the first `stop_after` extents of a walk.
pub fn rest_behind(extents: &[Extent], stop_after: usize) -> Option<Window> {
    let last = extents.iter().take(stop_after).next_back()?;
    Some(Window { start: last.end()?, length_bytes: u64::MAX })
}

/// Checks that each actual extent lies in the expected extent of the same index and has the same mapping. If the actual
/// extents also tile a range that begins in the first expected extent, they are the expected ones, clipped: each must
/// end where the next can begin.
fn compare(expected: &[Extent], actual: &[Extent], field: &'static str) -> OracleResult {
    for (whole, part) in expected.iter().zip(actual) {
        let detail = || format!("the whole walk has {whole}\nthis one has {part}");
        let (Some(delta), Some(left)) =
            (part.start.distance_from(whole.start), left_after(whole, part.start))
        else {
            return violation(ORACLE, field, ("the same place", "another"), detail);
        };
        let mapping = whole.mapping.advanced(delta).unwrap_or(whole.mapping);
        if differing_field(&mapping, &part.mapping).is_some() || part.length_bytes > left {
            return violation(ORACLE, field, (whole.mapping.kind(), part.mapping.kind()), detail);
        }
    }
    if actual.len() > expected.len() {
        return violation(ORACLE, field, ("no more extents", "more"), || {
            format!("{} extents, expected {}", actual.len(), expected.len())
        });
    }
    Ok(())
}

/// Returns the number of bytes in an extent from `start` on.
fn left_after(extent: &Extent, start: GuestOffset) -> Option<u64> {
    extent.length_bytes.checked_sub(start.distance_from(extent.start)?)
}

#[cfg(test)]
mod tests {
    use crate::disk::extent::{Mapping, Visitor};
    use crate::disk::offsets::HostOffset;
    use crate::harness::engine::tested::TestedEngine;
    use crate::harness::engine::{Answer, Engine, Facts, OpenDisk, Opened};
    use crate::harness::files::chain::Chain;
    use crate::images::files::image::Image;

    use super::*;

    /// A disk of 12 bytes whose walks emit these extents in turn, for any window.
    #[derive(Clone)]
    struct Scripted(Vec<Vec<Extent>>);

    impl Scripted {
        /// Opens the disk, and passes it to `run`.
        fn open<T>(self, run: impl FnOnce(&mut TestedDisk) -> T) -> T {
            let facts = self.facts();
            let chain = Chain::alone(Image::default());
            let mut engine = TestedEngine::new(Box::new(self), facts);
            run(&mut engine.open(&chain).unwrap())
        }
    }

    impl Engine for Scripted {
        fn facts(&self) -> Facts {
            Facts::new("scripted")
        }

        fn open<'s>(&'s mut self, _: &'s Chain) -> Opened<'s> {
            Ok(Box::new(self.clone()))
        }
    }

    impl OpenDisk for Scripted {
        fn virtual_size_bytes(&mut self) -> u64 {
            12
        }

        fn map(&mut self, _: Window, visitor: &mut dyn Visitor) -> Answer {
            let _ = self.0.remove(0).into_iter().try_for_each(|extent| visitor.extent(extent));
            Ok(())
        }
    }

    fn whole() -> Vec<Extent> {
        let data = Mapping { present: true, data: true, ..Mapping::HOLE };
        let data = Mapping { offset: Some(HostOffset::new(512)), ..data };
        let mappings = [Mapping::HOLE, data, Mapping::HOLE];
        let extent =
            |(start, mapping)| Extent { start: GuestOffset::new(start), length_bytes: 4, mapping };
        [0, 4, 8].into_iter().zip(mappings).map(extent).collect()
    }

    /// Returns an extent that begins `late` bytes later and ends `early` bytes earlier.
    fn moved(extent: &Extent, late: i64, early: i64) -> Extent {
        let offset = extent.mapping.offset;
        let offset = offset.map(|at| HostOffset::new(at.get().wrapping_add_signed(late)));
        Extent {
            start: GuestOffset::new(extent.start.get().saturating_add_signed(late)),
            length_bytes: extent.length_bytes.saturating_add_signed(-late - early),
            mapping: Mapping { offset, ..extent.mapping },
        }
    }

    /// Each extent of both parts must be exactly the expected one.
    #[test]
    fn any_other_extent_before_or_behind_a_stop_is_found() {
        let whole = whole();
        let walk = WholeWalk::complete(&whole);
        let resumed = |stop_after: usize, walks: Vec<Vec<Extent>>| {
            Scripted(walks).open(|disk| walk.check_resumed(disk, stop_after, 100, &mut Vec::new()))
        };
        for stop_after in 1..=whole.len() {
            let walks = vec![whole[..stop_after].to_vec(), whole[stop_after..].to_vec()];
            assert!(resumed(stop_after, walks.clone()).is_ok());
            for (part, at) in
                (0..2).flat_map(|part| (0..walks[part].len()).map(move |at| (part, at)))
            {
                for (late, early) in [(1, 0), (0, 1), (1, 1), (1, -1), (-1, 0), (0, -1), (0, 4)] {
                    let mut wrong = walks.clone();
                    wrong[part][at] = moved(&walks[part][at], late, early);
                    let name = format!("stop after {stop_after}: {}", wrong[part][at]);
                    assert_ne!(wrong, walks, "{name}");
                    let found = resumed(stop_after, wrong).unwrap_err();
                    assert!(found.drawn, "{name}");
                }
                let mut lost = walks.clone();
                lost[part].remove(at);
                assert!(resumed(stop_after, lost).is_err());
            }
        }
    }

    /// A walk that fails after the second extent is compared up to there, and a window is cut there.
    #[test]
    fn a_walk_that_failed_is_compared_as_far_as_it_came() {
        let extents = &whole()[..2];
        let walk = WholeWalk { extents, is_complete: false };
        let check = |late: i64| {
            let emitted = vec![moved(&extents[1], late, 0)];
            let window = Window { start: GuestOffset::new(4), length_bytes: 8 };
            Scripted(vec![emitted]).open(|disk| walk.check(disk, window, 100, &mut Vec::new()))
        };
        assert!(check(0).is_ok());
        assert_eq!(check(1).unwrap_err().fingerprint(), "partition: start, the last end → a gap");
    }
}
