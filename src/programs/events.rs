//! Events of operations, for an observer.

use crate::disk::observer::{Event, Observer, State};

use super::operation::Class;
use super::{Effect, Operation, Vm};

impl Vm {
    /// Runs one operation, and reports its event to `observer`.
    pub fn step_observed(&mut self, operation: Operation, observer: &dyn Observer) -> Effect {
        if !observer.observes() {
            return self.step(operation);
        }
        let before = self.builder().census();
        let effect = self.step(operation);
        let class = operation.class();
        let event = if effect == Effect::None { Event::NoEffect } else { class.event() };
        observer.event(State::Build, event);
        if effect == Effect::Changed && matches!(class, Class::Builds(_)) {
            self.builder().census().report(&before, observer);
        }
        effect
    }
}
