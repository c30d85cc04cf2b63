//! Two engines in turn: each opens an image for writing every second time. So each goes on with the file that the other
//! has closed, or has left in a crash. The first engine answers everything else, and reads what both have written.
//!
//! A format is an agreement between its writers. All that the oracles of writers demand holds for two writers as for
//! one, so they judge both as one engine.

use crate::harness::cases::implementation::{Expression, Implementation, no_observer};
use crate::harness::engine::claims::EnginePolicy;
use crate::harness::engine::{Answer, Engine, EngineQuestion, Facts, NewImage, Opened};
use crate::harness::files::chain::Chain;

impl Implementation {
    /// Returns the implementation, with which `other` takes turns: each opens an image for writing every second time.
    pub fn in_turn_with(self, other: Self) -> Self {
        let other_text = other.expression().map(Expression::of_implementation);
        let call = other_text.map(|other| format!(".in_turn_with({other})"));
        let first = self.clone();
        let create = move |observer: &_| -> Box<dyn Engine> {
            // The events of the other engine are no feedback.
            let engines = [first.engine(observer), other.engine(&no_observer())];
            Box::new(InTurn { engines, is_turn_of_other: false })
        };
        self.taking_turns(create).written_with(call)
    }
}

/// Two engines, and whose turn it is.
struct InTurn {
    engines: [Box<dyn Engine>; 2],
    is_turn_of_other: bool,
}

impl Engine for InTurn {
    fn facts(&self) -> Facts {
        let [first, other] = self.engines.each_ref().map(|engine| engine.facts());
        Facts {
            name: format!("{} in turn with {}", first.title(), other.title()).into(),
            version: "".into(),
            write_claims: Some(first.write_claims().and(other.write_claims())),
            known: first.known.and(&other.known),
            policy: EnginePolicy { size: first.policy.size.max(other.policy.size), ..first.policy },
            writes: Some(first.writes().min(other.writes())),
            sector_bytes: first.sector_bytes.max(other.sector_bytes),
            ..first
        }
    }

    fn begin_run(&mut self) {
        self.is_turn_of_other = false;
        self.engines.iter_mut().for_each(|engine| engine.begin_run());
    }

    fn prepare(&mut self, chain: &Chain, questions: &[EngineQuestion]) {
        self.engines[0].prepare(chain, questions);
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.engines[0].open(chain)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let [first, other] = &mut self.engines;
        let is_turn_of_other = self.is_turn_of_other;
        self.is_turn_of_other = !is_turn_of_other;
        let engine = if is_turn_of_other { other } else { first };
        engine.open_to_write(chain)
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        self.engines[0].open_snapshot(chain, index)
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        self.engines[0].create(chain, image)
    }
}
