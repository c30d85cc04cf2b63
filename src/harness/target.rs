//! The interface of the fuzz targets, and their constant properties.

use crate::images::files::LayerFiles;
use crate::images::limits::Limits;

use super::{Checks, Failure, MetFinding, Outcome, Pipeline};

/// A fuzz target: runs the inputs of one kind and judges each run. It reuses its buffers from run to run.
pub trait Target {
    /// Runs `input` and judges the run. A target whose inputs are files ignores `checks`, and judges the file once.
    ///
    /// # Errors
    /// The first violation.
    fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>>;

    /// Returns the pipeline with the program, the virtual machine and the images of the last run; `None` if inputs are
    /// files.
    fn pipeline(&self) -> Option<&Pipeline>;

    /// Returns the files at the top as the engine of the last run has left them, or as the first cut did in which an
    /// oracle found a violation, known or not; `None` if no engine has written them.
    fn left(&self) -> Option<&LayerFiles> {
        None
    }

    /// Returns the known findings that the last run met, each once.
    fn met(&self) -> &[MetFinding];
}

/// Lets a box with a target stand for the target.
impl<T: Target + ?Sized> Target for Box<T> {
    fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        (**self).run(input, checks)
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        (**self).pipeline()
    }

    fn left(&self) -> Option<&LayerFiles> {
        (**self).left()
    }

    fn met(&self) -> &[MetFinding] {
        (**self).met()
    }
}

/// The constant properties of a target.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// The name on the command line, of the libFuzzer binary and of the corpus folder.
    pub name: &'static str,
    /// The description in help texts: one line.
    pub about: &'static str,
    /// The kind of its inputs.
    pub inputs: Inputs,
    /// The limits of its programs. They mean nothing if its inputs are files.
    pub limits: Limits,
    /// The extents that the harness expects from the walk of an image.
    pub expectation: Expectation,
}

/// The kind of a target's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Programs, which build images.
    Programs,
    /// Image files of any content.
    Files,
}

/// The extents that the harness expects from the walk of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The extents of the reference model.
    Extents,
    /// The extents of the reference model in the guest ranges that no attack has touched.
    UntouchedExtents,
    /// Nothing: the target judges the disk that the engine has written.
    Written,
    /// Nothing: the target judges the refcounts, and no image is walked.
    NotWalked,
    /// Nothing: a file without a journal has no expectation.
    Unknown,
}
