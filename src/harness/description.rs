//! A builder of [`Facts`]: the macro [`describe!`](crate::harness::prelude::describe) calls a function of
//! [`Description`] for each fact.

use std::borrow::Cow;

use crate::base::features::Feature;
use crate::harness::engine::claims::{Claims, CostPolicy, SizePolicy};
use crate::harness::engine::known::KnownFindings;
use crate::harness::engine::{AccessFeedback, Facts};

/// The statement of an implementation about itself. Each function adds one fact, in any order.
#[derive(Clone, Debug)]
pub struct Description {
    facts: Facts,
    yes: Vec<Feature>,
    no: Vec<Feature>,
    refuses: Vec<Feature>,
    no_writes: Option<Vec<Feature>>,
}

impl Description {
    /// Begins with the name of the implementation, and the defaults of all else.
    pub fn new(name: &'static str) -> Self {
        let (facts, no_writes) = (Facts::new(name), None);
        Self { facts, yes: Vec::new(), no: Vec::new(), refuses: Vec::new(), no_writes }
    }

    /// States the version, as reports name it.
    pub fn version(mut self, version: impl Into<Cow<'static, str>>) -> Self {
        self.facts.version = version.into();
        self
    }

    /// Adds features that the implementation supports in addition to those of qcow2 images.
    pub fn yes(mut self, features: impl AsRef<[Feature]>) -> Self {
        self.yes.extend(features.as_ref());
        self
    }

    /// Adds features that it does not support.
    pub fn no(mut self, features: impl AsRef<[Feature]>) -> Self {
        self.no.extend(features.as_ref());
        self
    }

    /// Adds features that it may refuse. If it accepts an image with one, its answers must be correct.
    pub fn refuses(mut self, features: impl AsRef<[Feature]>) -> Self {
        self.refuses.extend(features.as_ref());
        self
    }

    /// Adds features of images to which it does not write, although it reads them.
    pub fn no_writes(mut self, features: impl AsRef<[Feature]>) -> Self {
        self.no_writes.get_or_insert_default().extend(features.as_ref());
        self
    }

    /// States the policy about sizes.
    pub fn size(mut self, size: SizePolicy) -> Self {
        self.facts.policy.size = size;
        self
    }

    /// States the policy about the cost of a walk.
    pub fn cost(mut self, cost: CostPolicy) -> Self {
        self.facts.policy.cost = cost;
        self
    }

    /// States the unit of all reads and writes in bytes: the harness rounds their ranges.
    pub fn sectors(mut self, sector_bytes: u32) -> Self {
        self.facts.sector_bytes = Some(sector_bytes);
        self
    }

    /// Adds the known findings in the text of a file.
    ///
    /// # Panics
    /// The text is malformed. The message names the faulty line.
    pub fn known(mut self, text: &str) -> Self {
        let known = KnownFindings::parse(text);
        self.facts.known = known.unwrap_or_else(|error| panic!("known findings: {error}"));
        self
    }

    /// States the accesses to files that are feedback while the implementation reads.
    pub fn reads(mut self, reads: AccessFeedback) -> Self {
        self.facts.reads = reads;
        self
    }

    /// States the accesses to files that are feedback while the implementation writes.
    pub fn writes(mut self, writes: AccessFeedback) -> Self {
        self.facts.writes = Some(writes);
        self
    }

    /// Returns all facts. If several lists name a feature, `no` wins over `refuses`, and `refuses` over `yes`.
    pub fn facts(self) -> Facts {
        let claims = Claims::QCOW2.yes(&self.yes).refuse_or_be_right(&self.refuses).no(&self.no);
        let write_claims = self.no_writes.map(|features| claims.no(&features));
        Facts { claims, write_claims, ..self.facts }
    }
}
