//! Engines to which the harness cannot give an image.

use qcowfuzz::harness::Checks;
use qcowfuzz::harness::engine::questions::QuestionKind;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::prelude::{Answer, Chain, Engine, EngineError, Facts, NewImage, Opened};
use small_writer::WritingWalker;

use super::{PROGRAMS, program};

/// The purpose for which an engine uses an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    Write,
    Create,
}

/// Our walker, which fails to use images for one purpose.
struct NotUsed {
    walker: WritingWalker,
    purpose: Use,
    error: fn() -> EngineError,
}

impl NotUsed {
    fn check(&self, purpose: Use) -> Answer {
        if self.purpose == purpose { Err((self.error)()) } else { Ok(()) }
    }
}

impl Engine for NotUsed {
    fn facts(&self) -> Facts {
        Facts { write_claims: self.walker.facts().write_claims, ..Facts::new("not used") }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.check(Use::Read)?;
        self.walker.open(chain)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.check(Use::Write)?;
        self.walker.open_to_write(chain)
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        self.check(Use::Create)?;
        self.walker.create(chain, image)
    }
}

/// If the harness cannot give an image to an engine, the engine is not to blame, and none of its answers is missing.
#[test]
fn a_program_whose_image_cannot_be_given_is_not_judged() {
    let not_given: fn() -> EngineError = || EngineError::NotGiven("planted".into());
    for (purpose, error, is_given) in [
        (Use::Read, not_given, false),
        (Use::Write, not_given, false),
        (Use::Create, not_given, false),
        (Use::Write, || EngineError::NoAnswer, true),
    ] {
        let engine = NotUsed { walker: WritingWalker::default(), purpose, error };
        let mut target = TargetKind::Writes.judging(engine);
        let (mut unsupported, mut unanswered) = (0, 0);
        for program in (0..PROGRAMS / 6).map(program) {
            let outcome = target.run(&program.encode(), Checks::AtCheckpoints).unwrap();
            unsupported += u32::from(outcome.unsupported);
            unanswered += u32::from(outcome.unanswered.has(QuestionKind::Writing));
        }
        assert_eq!(unsupported > 0, !is_given, "{purpose:?}");
        assert_eq!(unanswered > 0, is_given, "{purpose:?}");
    }
}
