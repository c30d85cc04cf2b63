//! An implementation under test: creates an engine whenever a target needs a new one.

use crate::disk::observer::Observer;

use super::Walker;
use super::engine::Engine;

/// An implementation under test. Every engine that can be cloned is one.
pub trait Implementation: Clone + 'static {
    /// The engines that it creates.
    type Engine<O: Observer + Clone + 'static>: Engine + 'static;

    /// Creates an engine. Our walker reports its events to `observer`; other engines report none.
    fn engine<O: Observer + Clone + 'static>(&self, observer: &O) -> Self::Engine<O>;
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
