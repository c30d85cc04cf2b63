//! Engines to which the harness cannot give an image.

use qcowfuzz::harness::engine::questions::QuestionKind;
use test_support::prelude::*;

use super::{PROGRAMS, program};

/// A failure to use images for one purpose.
#[derive(Clone)]
struct NotUsed {
    purpose: Opening,
    error: fn() -> EngineError,
}

impl Change for NotUsed {
    fn begin(&mut self, opening: Opening, _: &Chain) -> Answer {
        if self.purpose == opening { Err((self.error)()) } else { Ok(()) }
    }
}

/// If the harness cannot give an image to an engine, the engine is not to blame, and none of its answers is missing.
#[test]
fn a_program_whose_image_cannot_be_given_is_not_judged() {
    let not_given: fn() -> EngineError = || EngineError::NotGiven("planted".into());
    for (purpose, error, is_given) in [
        (Opening::Read, not_given, false),
        (Opening::Write, not_given, false),
        (Opening::Create, not_given, false),
        (Opening::Write, || EngineError::NoAnswer, true),
    ] {
        let mut target = TargetKind::Writes.judging(Changed::writer(NotUsed { purpose, error }));
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
