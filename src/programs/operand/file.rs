//! Operands for the end of a file, and for clusters past the end of the disk.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::images::qcow2::FileEnd;

use super::encoding::Operand;
use super::kind::OperandKind;
use super::word::words;

/// The kind of clusters past the end of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hidden {
    /// Data.
    #[default]
    Data,
    /// Compressed data.
    Compressed,
    /// Clusters that read as zeros, without an allocation.
    Zeros,
    /// Allocations without data.
    Allocated,
}

words!(
    FileEnd,
    Other,
    "cluster, sector, content, zeros or garbage",
    FileEnd::Cluster = "cluster",
    FileEnd::Sector = "sector",
    FileEnd::Content = "content",
    FileEnd::Zeros = "zeros",
    FileEnd::Garbage = "garbage",
);
words!(
    Hidden,
    Content,
    "data, compressed, zeros or allocated",
    Hidden::Data = "data",
    Hidden::Compressed = "compressed",
    Hidden::Zeros = "zeros",
    Hidden::Allocated = "allocated",
);
