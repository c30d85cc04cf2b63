//! An implementation whose known findings are others than its own: the command adds those of `--known`, and shrinks a
//! known finding while it sets none aside.

use crate::disk::observer::Observer;

use super::chain::Chain;
use super::claims::{Claims, EnginePolicy};
use super::engine::{Engine, EngineEnd, EngineError};
use super::implementation::Implementation;
use super::known::KnownFindings;

/// An implementation with other known findings than its own.
#[derive(Clone, Debug)]
pub struct Knowing<I> {
    implementation: I,
    known: KnownFindings,
}

impl<I: Implementation> Knowing<I> {
    /// Creates an implementation whose engines are those of `implementation`, with the known findings `known`.
    pub fn new(implementation: &I, known: KnownFindings) -> Self {
        Self { implementation: implementation.clone(), known }
    }
}

impl<I: Implementation> Implementation for Knowing<I> {
    type Engine<O: Observer + Clone + 'static> = KnowingEngine<I::Engine<O>>;

    fn engine<O: Observer + Clone + 'static>(&self, observer: &O) -> Self::Engine<O> {
        KnowingEngine::new(self.implementation.engine(observer), self.known.clone())
    }
}

/// An engine with other known findings than its own.
#[derive(Clone, Debug)]
pub struct KnowingEngine<E> {
    engine: E,
    known: KnownFindings,
}

impl<E> KnowingEngine<E> {
    /// Creates the engine `engine` with the known findings `known`.
    pub fn new(engine: E, known: KnownFindings) -> Self {
        Self { engine, known }
    }
}

impl<E: Engine> Engine for KnowingEngine<E> {
    type Disk<'s>
        = E::Disk<'s>
    where
        Self: 's;

    fn name(&self) -> &str {
        self.engine.name()
    }

    fn claims(&self) -> Claims {
        self.engine.claims()
    }

    fn policy(&self) -> EnginePolicy {
        self.engine.policy()
    }

    fn known_findings(&self) -> KnownFindings {
        self.known.clone()
    }

    fn begin_rehearsal(&mut self) -> bool {
        self.engine.begin_rehearsal()
    }

    fn end_rehearsal(&mut self) {
        self.engine.end_rehearsal();
    }

    fn take_end(&mut self) -> Option<EngineEnd> {
        self.engine.take_end()
    }

    fn begin_run(&mut self) {
        self.engine.begin_run();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<Self::Disk<'s>, EngineError> {
        self.engine.open(chain)
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Result<Self::Disk<'s>, EngineError> {
        self.engine.open_snapshot(chain, index)
    }
}
