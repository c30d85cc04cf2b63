//! An implementation with other known findings than its own, and with fewer claims: the command adds the findings of
//! `--known`, shrinks a known finding while it sets none aside, and drops the claims of `--without`.

use crate::disk::features::FeatureSet;
use crate::disk::observer::Observer;

use super::chain::Chain;
use super::claims::Claims;
use super::engine::{Answer, Engine, EngineError, NewImage, pass_on_to_engine};
use super::implementation::Implementation;
use super::known::KnownFindings;
use super::second_opinion::SecondOpinion;

/// An implementation with other known findings than its own, and perhaps with fewer claims.
#[derive(Clone, Debug)]
pub struct Knowing<I> {
    implementation: I,
    known: KnownFindings,
    unclaimed: FeatureSet,
}

impl<I: Implementation> Knowing<I> {
    /// Creates an implementation whose engines are those of `implementation`, with the known findings `known`.
    pub fn new(implementation: &I, known: KnownFindings) -> Self {
        Self { implementation: implementation.clone(), known, unclaimed: FeatureSet::EMPTY }
    }

    /// Returns the implementation without its claims about `features`.
    pub fn without(self, features: FeatureSet) -> Self {
        Self { unclaimed: features, ..self }
    }
}

impl<I: Implementation> Implementation for Knowing<I> {
    type Engine<O: Observer + Clone + 'static> = KnowingEngine<I::Engine<O>>;

    fn engine<O: Observer + Clone + 'static>(&self, observer: &O) -> Self::Engine<O> {
        let unclaimed = self.unclaimed;
        KnowingEngine {
            unclaimed,
            ..KnowingEngine::new(self.implementation.engine(observer), self.known.clone())
        }
    }

    fn second_opinion<O: Observer + Clone + 'static>(
        &self,
        observer: &O,
    ) -> Option<Box<dyn SecondOpinion>> {
        self.implementation.second_opinion(observer)
    }
}

/// An engine with other known findings than its own, and perhaps with fewer claims.
#[derive(Clone, Debug)]
pub struct KnowingEngine<E> {
    engine: E,
    known: KnownFindings,
    unclaimed: FeatureSet,
}

impl<E> KnowingEngine<E> {
    /// Creates the engine `engine` with the known findings `known`.
    pub fn new(engine: E, known: KnownFindings) -> Self {
        Self { engine, known, unclaimed: FeatureSet::EMPTY }
    }
}

impl<E: Engine> Engine for KnowingEngine<E> {
    type Disk<'s>
        = E::Disk<'s>
    where
        Self: 's;

    pass_on_to_engine!();

    fn claims(&self) -> Claims {
        self.engine.claims().without(self.unclaimed)
    }

    fn write_claims(&self) -> Claims {
        self.engine.write_claims().without(self.unclaimed)
    }

    fn known_findings(&self) -> KnownFindings {
        self.known.clone()
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<Self::Disk<'s>, EngineError> {
        self.engine.open(chain)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Result<Self::Disk<'s>, EngineError> {
        self.engine.open_to_write(chain)
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        self.engine.create(chain, image)
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Result<Self::Disk<'s>, EngineError> {
        self.engine.open_snapshot(chain, index)
    }
}
