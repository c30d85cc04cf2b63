//! Lengthens an input that shows a bug of our walker or of the build. The program inserts operations that take effect
//! until there are as many as requested, and keeps the fingerprint. `scripts/minimized` measures the minimizer with
//! such inputs.
//!
//!     cargo run --release --example grow -- INPUT OPERATIONS OUTPUT

use std::error::Error;

use qcowfuzz::findings::PanicNotes;
use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::images::FileNames;
use qcowfuzz::images::Limits;
use qcowfuzz::internal::findings::explain::explain;
use qcowfuzz::internal::findings::panics::caught;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::programs::interpreter::Effect;
use qcowfuzz::programs::Program;
use qcowfuzz::programs::generate::operation;

/// Returns the fingerprint that a run of the program has, if it finds a bug.
fn fingerprint(program: &Program) -> Option<String> {
    let input = program.encode();
    let run = || Harness::new(Walker::default()).run(&input, Checks::AtCheckpoints);
    match caught(run) {
        Ok(run) => run.err().map(|failure| failure.violation.fingerprint()),
        Err(note) => Some(note.fingerprint()),
    }
}

/// Returns the number of operations that take effect.
fn effective(program: &Program) -> usize {
    let names = FileNames::default();
    let explained = || explain(&program.encode(), Limits::WALKED, usize::MAX, &names);
    let Ok(explanation) = caught(explained) else { return 0 };
    let effective = |effect: Option<Effect>| effect.is_some_and(|effect| effect != Effect::None);
    explanation.steps.iter().filter(|step| effective(step.effect)).count()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, input, operations, output] = arguments.as_slice() else {
        return Err("expected INPUT OPERATIONS OUTPUT".into());
    };
    let wanted: usize = operations.parse()?;
    let _silence = PanicNotes::take_over();
    let mut program = Program::decode(&std::fs::read(input)?);
    let shown = fingerprint(&program).ok_or("nothing is found in the input")?;
    let mut entropy = Entropy::new(1);
    for _ in 0..wanted * 1000 {
        if program.operations.len() >= wanted && effective(&program) >= wanted {
            std::fs::write(output, program.encode())?;
            println!("{shown}");
            return Ok(());
        }
        let mut grown = program.clone();
        for _ in 0..1 + entropy.below(8) {
            let at = entropy.below(grown.operations.len() as u64 + 1) as usize;
            operation(&mut entropy).into_iter().for_each(|it| grown.operations.insert(at, it));
        }
        if fingerprint(&grown).as_ref() == Some(&shown) && effective(&grown) > effective(&program) {
            program = grown;
        }
    }
    Err(format!("{shown}: no more than {} operations take effect", effective(&program)).into())
}
