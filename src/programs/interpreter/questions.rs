//! Operations that ask a question of the image that the program built.

use crate::disk::clusters::GuestCluster;
use crate::disk::extent::Window;
use crate::disk::offsets::GuestOffset;
use crate::programs::operand::{At, Inside, Length, Magnitude};

use super::question::Question;
use super::{Effect, Vm};

impl Vm {
    /// Asks for the extents of a window.
    pub(super) fn walk(&mut self, at: At, inside: Inside, length: Magnitude) -> Effect {
        let start = self.byte(at, inside);
        self.ask(Question::Walk(Window { start, length_bytes: length.get() }))
    }

    /// Asks for the mapping of a byte.
    pub(super) fn lookup(&mut self, at: At, inside: Inside) -> Effect {
        let byte = self.byte(at, inside);
        self.ask(Question::Lookup(byte))
    }

    /// Asks for the data of a range.
    pub(super) fn read(&mut self, at: At, inside: Inside, length: Length) -> Effect {
        let start = self.byte(at, inside);
        self.ask(Question::Read { start, length_bytes: length.get() })
    }

    /// Returns the questions since the last checkpoint.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// Forgets the questions, which the caller has answered.
    pub fn answered(&mut self) {
        self.questions.clear();
    }

    fn ask(&mut self, question: Question) -> Effect {
        let room = self.questions.len() < self.limits.questions;
        if room {
            self.questions.push(question);
        }
        if room { Effect::Asked } else { Effect::None }
    }

    fn byte(&self, at: At, inside: Inside) -> GuestOffset {
        let cluster_size = self.builder.plan().geometry.cluster_size;
        let cluster = GuestCluster::new(self.cluster(at));
        cluster_size.guest_offset(cluster) + inside.bytes(cluster_size.bytes())
    }
}
