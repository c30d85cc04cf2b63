//! Runs inputs, twice each, and gathers what there is to tell.

use std::path::Path;
use std::rc::Rc;

use qcowfuzz::fuzzing::feedback::Log;
use qcowfuzz::harness::Checks;
use qcowfuzz::images::files::FileNames;

use super::account::Account;
use super::evidence::Evidence;
use qcowfuzz::findings::runner::Runner;
use qcowfuzz::harness::targets::TargetKind;

/// How inputs are run.
pub struct Examiner {
    target: TargetKind,
    checks: Checks,
    names: FileNames,
    log: Rc<Log>,
    runner: Runner<Rc<Log>>,
    /// Sees nothing of the first run.
    again: Runner<()>,
}

impl Examiner {
    /// For inputs of `target`. Images call other files by `names`.
    pub fn new(target: TargetKind, checks: Checks, names: FileNames) -> Self {
        let log: Rc<Log> = Rc::default();
        let runner = Runner::new(target, names.clone(), &log);
        let again = Runner::new(target, names.clone(), &());
        Self { target, checks, names, log, runner, again }
    }

    /// Runs `bytes`, the content of the file `input`, twice, and gathers what explains it. Panics are found only
    /// while there are panic notes.
    pub fn examine(&mut self, input: &Path, bytes: &[u8]) -> Account {
        let mut account = self.judge(input, bytes);
        account.program = self.runner.pipeline().map(|it| it.program().to_string());
        let Self { target, runner, log, names, .. } = self;
        account.evidence = Evidence::gather(*target, bytes, runner, log, names);
        account.operations_run.into_iter().for_each(|run| account.evidence.mark(run));
        account
    }

    /// The same, without what explains it.
    pub fn judge(&mut self, input: &Path, bytes: &[u8]) -> Account {
        let Self { target, checks, log, runner, again, .. } = self;
        log.begin_run();
        let first = runner.run(bytes, *checks);
        let second = again.run(bytes, *checks);
        let mut account = Account::new(input, *target, runner, &first);
        if first != second {
            account.differs(&second);
        }
        account
    }

    /// What happened in the first run.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// What ran the input first.
    pub fn runner(&self) -> &Runner<Rc<Log>> {
        &self.runner
    }
}
