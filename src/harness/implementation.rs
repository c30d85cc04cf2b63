//! An implementation under test: creates an engine whenever a target needs a new one.

use crate::disk::observer::Observer;

use super::Walker;
use super::engine::Engine;
use super::second_opinion::SecondOpinion;

/// An implementation under test. Every engine that can be cloned is one.
pub trait Implementation: Clone + 'static {
    /// The engines that it creates.
    type Engine<O: Observer + Clone + 'static>: Engine + 'static;

    /// Creates an engine. Our walker reports its events to `observer`; other engines report none.
    fn engine<O: Observer + Clone + 'static>(&self, observer: &O) -> Self::Engine<O>;

    /// Creates another implementation that judges the images of a run, too: by default, none. It reports its answers to
    /// `observer`.
    fn second_opinion<O: Observer + Clone + 'static>(
        &self,
        observer: &O,
    ) -> Option<Box<dyn SecondOpinion>> {
        let _ = observer;
        None
    }
}

impl<E: Engine + Clone + 'static> Implementation for E {
    type Engine<O: Observer + Clone + 'static> = E;

    fn engine<O: Observer + Clone + 'static>(&self, _observer: &O) -> E {
        self.clone()
    }
}

/// Our walker as the implementation under test.
#[derive(Clone, Copy, Debug, Default)]
pub struct OurWalker;

impl Implementation for OurWalker {
    type Engine<O: Observer + Clone + 'static> = Walker<O>;

    fn engine<O: Observer + Clone + 'static>(&self, observer: &O) -> Walker<O> {
        Walker::observed(observer.clone())
    }
}
