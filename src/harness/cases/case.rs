//! One image chain that a program built, as the harness judges it. The oracles know this type, and no image format.

use smallvec::SmallVec;

use crate::base::features::FeatureSet;
use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::base::limits::MAX_LAYERS;
use crate::base::ranges::KnownBytes;
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
