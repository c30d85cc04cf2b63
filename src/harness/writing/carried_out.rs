//! Has another engine carry out the requests of a program, and judges nothing.

use crate::base::features::{Feature, FeatureSet};
use crate::harness::cases::case::Case;
use crate::harness::engine::Answer;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::files::chain::Chain;
use crate::programs::WriteRequest;

use super::judge::WriterJudge;

impl WriterJudge {
    /// Returns the files of `case` after all requests, on a copy that `engine` writes. There are no power cuts: the
    /// files that an engine closes do not depend on them.
    ///
    /// # Errors
    /// The engine has not carried out a request; or it has no answer to one.
    pub(in crate::harness) fn carry_out_all(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
    ) -> Answer<Chain> {
        self.built.replay(case.journals.iter().copied());
        let has_bitmaps = case.features.meets(FeatureSet::of(&[Feature::Bitmaps]));
        self.guest.begin(&self.built, has_bitmaps.then(|| Chain::new(case.images)));
        let chain = match &case.new_image {
            Some(wanted) => {
                let chain = Chain::empty(case.images, false, &self.meter);
                engine.create(&chain, wanted)?;
                chain.note_closed();
                chain
            }
            None => Chain::writable(case.images, false, &self.meter),
        };
        for session in case.requests.split(|request| *request == WriteRequest::Reopen) {
            let mut disk = engine.open_to_write(&chain)?;
            for request in session {
                if self.guest.fits(request)
                    && let Some((_, _, done)) = self.pass(&mut disk, request)
                {
                    done?;
                    self.guest.note(request);
                }
            }
            disk.close()?;
            chain.note_closed();
            self.guest.settle();
        }
        self.guest.bitmaps.forget();
        Ok(chain.into_written())
    }
}
