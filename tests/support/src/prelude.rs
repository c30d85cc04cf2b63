//! The items that many tests use.

pub use std::collections::{BTreeMap, BTreeSet};
pub use std::ffi::OsStr;
pub use std::fmt;
pub use std::fs::{self, File};
pub use std::ops::ControlFlow;
pub use std::path::{Path, PathBuf};
pub use std::process::{Command, Output, Stdio};

pub use qcowfuzz::disk::extent::{Extent, Mapping, Visitor, Window};
pub use qcowfuzz::disk::image_format::ImageFormat;
pub use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
pub use qcowfuzz::disk::storage::{FileStorage, Layer, Storage};
pub use qcowfuzz::formats::qcow2::head::Head;
pub use qcowfuzz::harness::cases::implementation::{Implementation, no_observer};
pub use qcowfuzz::harness::engine::claims::Claims;
pub use qcowfuzz::harness::engine::status::GuestRun;
pub use qcowfuzz::harness::engine::{
    Answer, Engine, EngineError, Facts, ImageReport, OpenDisk, Opened, ReportKind, Request,
};
pub use qcowfuzz::harness::files::chain::Chain;
pub use qcowfuzz::harness::targets::TargetKind;
pub use qcowfuzz::harness::{Checks, Harness, KnownFindings, Walker};
pub use qcowfuzz::images::{FileNames, Image, Images, Limits};
pub use qcowfuzz::internal::images::entropy::Entropy;
pub use qcowfuzz::internal::images::export::Holes;
pub use qcowfuzz::internal::programs::operand::{Base, ImageForm};
pub use qcowfuzz::internal::programs::operation::Class;
pub use qcowfuzz::programs::generate::{GenerateSettings, generate, generate_any};
pub use qcowfuzz::programs::text::assemble;
pub use qcowfuzz::programs::{Operation, Program};
pub use qcowfuzz::walkers::{Disk, WalkScratch};
pub use small_writer::WritingWalker;

pub use crate::changed::{Change, Changed, Inner, Opening};
pub use crate::corpus::{self, found_in, known};
pub use crate::lines::{self, rows};
pub use crate::qemu::{self, Checked, Described, compare};
pub use crate::skipped::skipped;
pub use crate::tally::Tally;
