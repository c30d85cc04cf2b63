//! Runs inputs, twice each, and reports them.

use std::fmt;
use std::path::Path;
use std::rc::Rc;

use crate::disk::offsets::GuestOffset;
use crate::findings::report::log::Log;
use crate::findings::runner::Runner;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Pipeline};
use crate::images::files::FileNames;

use super::Report;
use super::evidence::Evidence;

/// Runs inputs of a target, and reports them.
pub struct Examiner {
    target: TargetKind,
    checks: Checks,
    names: FileNames,
    log: Rc<Log>,
    runner: Runner,
    /// The runner of the second run, which shares no state with the first.
    again: Runner,
}

impl Examiner {
    /// Creates an examiner for inputs of `target`, with `implementation` under test. Images name other files by
    /// `names`.
    pub fn new(
        implementation: &Implementation,
        target: TargetKind,
        checks: Checks,
        names: FileNames,
    ) -> Self {
        let log: Rc<Log> = Rc::default();
        let runner = Runner::new(implementation, target, names.clone(), log.clone());
        let again = Runner::new(implementation, target, names.clone(), no_observer());
        Self { target, checks, names, log, runner, again }
    }

    /// Runs `bytes`, the content of the file `input`, twice, and reports the result with evidence. Panics have
    /// fingerprints only while [`PanicNotes`](crate::findings::panics::PanicNotes) exist. The evidence is about the
    /// program that was judged: without the features that the engine does not claim.
    pub fn examine(&mut self, input: &Path, bytes: &[u8]) -> Report {
        let mut report = self.judge(input, bytes);
        report.program = self.runner.pipeline().map(|it| it.program().to_string());
        let Self { target, runner, log, names, .. } = self;
        let folded = runner.pipeline().filter(|it| it.is_folded()).map(|it| it.program().encode());
        let judged = folded.as_deref().unwrap_or(bytes);
        report.evidence = Evidence::gather(*target, judged, runner, log, names);
        report.evidence.lanes = runner.lanes();
        report.operations_run.into_iter().for_each(|run| report.evidence.mark(run));
        let guest = report.guest_offset.map(GuestOffset::new);
        guest.into_iter().for_each(|guest| report.evidence.point_at(guest));
        report
    }

    /// Runs `bytes` twice, and reports the result without evidence.
    pub fn judge(&mut self, input: &Path, bytes: &[u8]) -> Report {
        let Self { target, checks, log, runner, again, .. } = self;
        log.begin_run();
        runner.note_lanes();
        let first = runner.run(bytes, *checks);
        log.end_run();
        let second = again.run(bytes, *checks);
        let mut report = Report::new(input, *target, runner, &first);
        if runner.pipeline().is_some_and(Pipeline::is_folded) {
            let claims = target.claims_of(&runner.implementation().facts());
            report.folded = claims.folded_lines(bytes);
        }
        if first != second {
            report.differs(&first, &second);
        }
        report
    }

    /// Prints the events of the next input's first run to `out`, each when it occurs.
    pub fn print_events(&self, out: Box<dyn fmt::Write + Send>) {
        self.log.print_next_run(out);
    }

    /// Returns the runner of the first run.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::offsets::HostOffset;
    use crate::disk::storage::Storage;
    use crate::findings::report::log::tests::Text;
    use crate::harness::engine::{Engine, Facts, Opened};
    use crate::harness::files::chain::Chain;
    use crate::programs::generate::{GenerateSettings, generate};

    /// An engine that reads two bytes of the first header, and panics.
    #[derive(Clone)]
    struct Panicking;

    impl Engine for Panicking {
        fn facts(&self) -> Facts {
            Facts::new("panicking")
        }

        fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
            for at in [4, 20] {
                chain.image().read_at(HostOffset::new(at), &mut [0]).unwrap();
            }
            panic!("planted");
        }
    }

    #[test]
    fn an_engine_that_panics_leaves_its_accesses() {
        let input = generate(3, GenerateSettings { operations: 5, compressed: false }).encode();
        for target in [TargetKind::MapExtents, TargetKind::Hostile] {
            let names = FileNames::default();
            let mut examiner = Examiner::new(&Panicking.into(), target, Checks::default(), names);
            let text = Text::default();
            examiner.print_events(Box::new(text.clone()));
            examiner.judge(Path::new("file"), &input);
            let text = text.0.lock().unwrap();
            assert!(text.contains("\n        accesses  read 0x4 → read 0x14\n"), "{text}");
        }
    }
}
