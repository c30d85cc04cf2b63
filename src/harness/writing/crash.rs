//! Lets an engine go on with the file that a cut has left: its process has ended, or the power has failed, and the
//! image is opened for writing again. All that the guest has flushed must stay there, and the file must need no repair
//! but for leaks. If the image is marked as dirty, a writer counts all clusters again before it writes, or refuses the
//! image (qcow2 specification, "incompatible_features").
//!
//! Does not check: the program from there on, if the cut has lost a new size, if a request has changed snapshots since
//! the last flush, or if the image has bitmaps; the values of bytes that a request has changed since the last flush,
//! until they are written again.

use crate::formats::qcow2::header::Header;
use crate::harness::engine::tested::TestedDisk;
use crate::harness::files::chain::Chain;
use crate::programs::CutKind;

use super::WriterJudge;
use super::guest::Cut;
use super::left_files::is_dirty;

impl WriterJudge {
    /// Reports whether a crash has left an image that is marked as dirty.
    pub(super) fn needs_repair(&self, chain: &Chain) -> bool {
        let was_traced = self.meter.interrupt_trace();
        let needs_repair = self.faults.has_crashed && is_dirty(chain);
        self.meter.resume_trace(was_traced);
        needs_repair
    }

    /// Keeps files that a cut could have left while the engine closed the image. Keeps none if the engine changed
    /// nothing then. Closing is no promise to the guest: only the last guest flush decides what must survive.
    pub(super) fn cut_while_closing(
        &mut self,
        chain: &Chain,
        written: usize,
        kind: CutKind,
        choice: u16,
    ) {
        self.explored.note_closing(chain, written);
        let files = chain.after_cut_since(written, kind, choice);
        let cut = files.map(|files| Cut { kind, files, guest: self.guest.clone() });
        self.cuts.extend(cut);
    }

    /// Ends the engine in a cut. Returns the files that it leaves.
    pub(super) fn crash(
        &mut self,
        chain: &Chain,
        disk: TestedDisk,
        kind: CutKind,
        choice: u16,
    ) -> Chain {
        let files = chain.after_cut(kind, choice);
        self.cuts.push(Cut { kind, files: files.clone(), guest: self.guest.clone() });
        (self.faults.may_leak, self.faults.has_crashed) = (true, true);
        // The engine has ended. Here, it closes files that nothing reads any more, so an error has no effect.
        chain.faults(|faults| faults.disarm());
        let was_traced = self.meter.interrupt_trace();
        let _ = disk.close();
        self.meter.resume_trace(was_traced);
        files
    }

    /// Goes on with the files that a crash has left. Returns false if too little is known about their disk.
    pub(super) fn go_on(&mut self, chain: &mut Chain, left: Chain) -> bool {
        // The oracles of cuts have read this header.
        let Ok(header) = Header::read(left.image()) else { return false };
        if !self.guest.note_crash(header.virtual_size_bytes()) {
            return false;
        }
        *chain = chain.go_on(left);
        true
    }
}
