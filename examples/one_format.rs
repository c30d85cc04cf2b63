//! The whole command for our walker, with programs of one format: the environment variable `QCOWFUZZ_FORMAT` names it.
//!
//!     QCOWFUZZ_FORMAT=vhdx cargo run --release --example one_format -- fuzz --seconds 10 --dir /tmp/vhdx
//!
//! `scripts/format-campaigns` runs it.

use std::env;
use std::process::exit;

use qcowfuzz::base::features::FeatureSet;
use qcowfuzz::harness::Implementation;
use qcowfuzz::prelude::*;

/// Returns our walker without the features of the formats that the environment does not name.
fn one_format() -> Implementation {
    use Feature::{Qcow2, RawHoles, Vhdx, Vmdk, VmdkExtents, VmdkParent, Vpc};
    let name = env::var("QCOWFUZZ_FORMAT").unwrap_or_default();
    let others: &[Feature] = match name.as_str() {
        "qcow2" => &[Vpc, Vhdx, Vmdk, VmdkParent, VmdkExtents, RawHoles],
        "vpc" => &[Qcow2, Vhdx, Vmdk, VmdkParent, VmdkExtents],
        "vhdx" => &[Qcow2, Vpc, Vmdk, VmdkParent, VmdkExtents],
        "vmdk" => &[Qcow2, Vpc, Vhdx],
        "all" => &[],
        _ => {
            eprintln!("QCOWFUZZ_FORMAT: found '{name}', expected qcow2, vpc, vhdx, vmdk or all");
            exit(2)
        }
    };
    Implementation::our_walker().without(FeatureSet::of(others))
}

qcowfuzz::command!(one_format());
