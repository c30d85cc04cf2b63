//! A process that runs inputs, from its own side.

use std::io::{self, Read};
use std::sync::mpsc;
use std::sync::mpsc::Receiver;

use crate::findings::panics::PanicNotes;
use crate::findings::runner::{Runner, finding_of_two};
use crate::harness::Checks;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;
use crate::processes::RunCounter;

use super::isolated_run::{FinishedRun, Repeat};
use super::messages::Messages;

/// Runs the inputs of `target` that come on standard input, with `implementation` under test, and prints a line for
/// each. `counter` counts them, for the limit of CPU time. The process ends when standard input closes.
///
/// # Errors
/// Standard output cannot be written.
pub fn run_inputs(
    implementation: &Implementation,
    target: TargetKind,
    repeat: Repeat,
    counter: &RunCounter,
) -> io::Result<()> {
    let messages = Messages::take_stdout()?;
    let _silence = PanicNotes::take_over();
    let runner = || Runner::new(implementation, target, FileNames::default(), no_observer());
    let (mut runner, mut again) = (runner(), (repeat == Repeat::Twice).then(runner));
    for input in inputs() {
        counter.begin_run();
        let first = runner.run(&input, Checks::default());
        let second = again.as_mut().map(|again| again.run(&input, Checks::default()));
        let second = second.as_ref().unwrap_or(&first);
        let ran = FinishedRun {
            fingerprint: finding_of_two(&first, second).map(|finding| finding.fingerprint),
            known: runner.met().iter().map(|met| met.known.clone()).collect(),
            drawn: first.is_drawn() && first == *second,
        };
        messages.send(&ran)?;
    }
    Ok(())
}

/// Returns the inputs of standard input. When it closes, this process ends at once: the process that waits for the
/// results has ended, or needs no more.
fn inputs() -> Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut from = io::stdin().lock();
        while let Ok(input) = frame(&mut from)
            && send.send(input).is_ok()
        {}
        std::process::exit(0);
    });
    receive
}

/// Reads a length and as many bytes.
fn frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let (length, mut input) = (u64::from_le_bytes(length), Vec::new());
    match from.take(length).read_to_end(&mut input)? as u64 == length {
        true => Ok(input),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
