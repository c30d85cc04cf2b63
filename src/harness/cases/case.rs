//! One image chain that a program built, as the harness judges it, and the verdicts of the oracles on a run. The
//! oracles know these types, and no image format. A violation ends the run, unless its finding is known. Then only this
//! violation is set aside, and the run goes on.

use smallvec::SmallVec;

use crate::base::features::FeatureSet;
use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::base::limits::MAX_LAYERS;
use crate::base::ranges::KnownBytes;
use crate::harness::Violation;
use crate::harness::engine::known::{KnownFindings, MetFinding};
use crate::harness::engine::{EngineEnd, ErrorKind};
use crate::harness::oracles::{OracleResult, process_end};
use crate::images::damage::Damage;
use crate::images::files::Images;
use crate::programs::{Journal, NewImage, Question, WriteRequest};

/// A chain that a program built, and all that the oracles need to judge it.
#[derive(Clone, Debug)]
pub struct Case<'c> {
    /// The files, with the damage that the program's attacks have done.
    pub images: &'c Images,
    /// The journal of each layer, from the top down: the reference model replays them.
    pub journals: SmallVec<[&'c Journal; MAX_LAYERS]>,
    /// The questions that the program asks.
    pub questions: &'c [Question],
    /// The requests of the program to an engine that writes.
    pub requests: &'c [WriteRequest],
    /// The image that the engine creates before the requests, if the program wants that.
    pub new_image: Option<NewImage>,
    /// The damage that was done to the files, and the damage that reads will meet.
    pub damage: &'c Damage,
    /// The features of all images. An engine may lack some.
    pub features: FeatureSet,
    /// The smallest unit of mapping in any layer, in bytes, at least 1.
    pub cell_bytes: u64,
    /// log2 of the guest bytes that one table of the image at the top maps.
    pub table_span_bits: u32,
    /// Nothing is known about the content of the files: even a correct engine may refuse them.
    pub is_any_content: bool,
    /// Bytes that a guest must read, if there are no journals.
    pub known: &'c [KnownBytes],
    /// The oracles judge the whole disk: true at the last image of a program and under
    /// [`Checks::AfterEach`](crate::harness::Checks::AfterEach). Before, they judge the changes since the last image.
    pub in_full: bool,
}

impl<'c> Case<'c> {
    /// Returns the case of a file of any content. Nothing is known about its disk.
    pub(crate) fn of_file(file: &'c Images, no_damage: &'c Damage) -> Self {
        Self {
            images: file,
            journals: SmallVec::new(),
            questions: &[],
            requests: &[],
            new_image: None,
            damage: no_damage,
            features: FeatureSet::EMPTY,
            cell_bytes: 1,
            table_span_bits: u64::BITS - 1,
            is_any_content: true,
            known: &[],
            in_full: true,
        }
    }

    /// Returns the guest offsets at which a layer continues in another file.
    pub fn file_edges(&self) -> SmallVec<[u64; MAX_LAYERS * MAX_EXTENT_FILES]> {
        let behind_first =
            self.journals.iter().flat_map(|journal| journal.parts.all().iter().skip(1));
        behind_first.map(|part| part.start).collect()
    }
}

/// The verdicts on one run. A violation whose finding is new is an error, and ends the run.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    /// The findings that are known in every run.
    known: KnownFindings,
    /// The known findings that the run met, each once.
    met: Vec<MetFinding>,
    /// The commands of the recipe that the run carries out; none if the input is no recipe.
    commands: Vec<String>,
    /// The features of the images that are judged.
    features: FeatureSet,
    /// The oracle to which all violations from now on are attributed, if there is one.
    attribution: Option<&'static str>,
    /// The words of the fingerprint that was set aside last: many answers in a row may have the same.
    last: Option<[&'static str; 4]>,
}

impl Verdicts {
    /// Creates the verdicts of runs in which the findings `known` are set aside.
    pub(crate) fn knowing(known: KnownFindings) -> Self {
        Self { known, ..Self::default() }
    }

    pub(crate) fn begin_run(&mut self) {
        self.met.clear();
        self.commands.clear();
        self.last = None;
    }

    /// Notes the features of the images that are judged next.
    pub(crate) fn begin_case(&mut self, features: FeatureSet) {
        self.features = features;
        self.attribution = None;
        self.last = None;
    }

    /// Attributes all violations from now on to an oracle, or each to its own. Returns the oracle so far.
    pub(crate) fn attribute_to(&mut self, oracle: Option<&'static str>) -> Option<&'static str> {
        std::mem::replace(&mut self.attribution, oracle)
    }

    /// Notes the commands of the recipe that the run carries out.
    #[cfg(feature = "cli")]
    pub(crate) fn begin_recipe(&mut self, commands: Vec<String>) {
        self.commands = commands;
    }

    /// Returns the known findings that the run met, each once.
    pub(crate) fn met(&self) -> &[MetFinding] {
        &self.met
    }

    /// Returns the result of an oracle; `None` if it met a known finding.
    pub(crate) fn judge<T>(&mut self, result: OracleResult<T>) -> OracleResult<Option<T>> {
        match result {
            Ok(held) => Ok(Some(held)),
            Err(violation) => self.set_aside(violation).map(|()| None),
        }
    }

    pub(crate) fn set_aside(&mut self, mut violation: Box<Violation>) -> OracleResult {
        // An image that the harness could not give is no violation.
        if let Some(oracle) = self.attribution.filter(|_| !violation.is_not_given()) {
            // The questions of the oracle that found it may still follow from the checksum of the input.
            violation.oracle = oracle;
        }
        if self.known.is_empty() {
            return Err(violation);
        }
        let words = violation.words();
        if words.is_some() && words == self.last {
            return Ok(());
        }
        // A violation is rare: its fingerprint may cost more than the search.
        if !self.note_known(&violation.fingerprint()) {
            return Err(violation);
        }
        self.last = words;
        Ok(())
    }

    /// Notes that the run met the finding with this fingerprint. Returns false if it is not known.
    pub(crate) fn note_known(&mut self, fingerprint: &str) -> bool {
        let known = self.known.find_with(fingerprint, &self.commands, self.features);
        known.into_iter().for_each(|known| {
            MetFinding::add(&mut self.met, known, fingerprint);
        });
        known.is_some()
    }

    /// Returns the result of an oracle that asks questions of one kind; `None` if the engine has no answers to them, or
    /// if the oracle met a known finding.
    pub(crate) fn judge_answer<T>(&mut self, result: OracleResult<T>) -> OracleResult<Option<T>> {
        match result {
            Err(found) if found.error_kind() == Some(ErrorKind::NoAnswer) => Ok(None),
            result => self.judge(result),
        }
    }

    /// Returns the result of all oracles on an image: the end of the engine's process, if there is one, or `judged`.
    /// Returns `ended` if that end is a known finding.
    pub(crate) fn judge_end<T>(
        &mut self,
        end: Option<EngineEnd>,
        judged: OracleResult<T>,
        ended: T,
    ) -> OracleResult<T> {
        match end {
            None => judged,
            Some(end) => Ok(self.judge(Err(process_end(end)))?.unwrap_or(ended)),
        }
    }
}
