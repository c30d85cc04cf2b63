//! Images of every format but qcow2, judged by qemu: valid ones of every shape, damaged ones, and those that qemu
//! makes. The installed qemu-img opens the same images as our walkers, with the same extents and the same data.

mod commands;
pub mod comparison;
mod parts;
pub mod program;
mod raw;
pub mod vdi;
pub mod vhdx;
mod vhdx_writer;
pub mod vmdk;
mod vmdk_writer;
pub mod vpc;

use crate::formats::comparison::{judge_format, judge_made};

#[test]
fn qemu_agrees_about_raw_images() {
    judge_made::<raw::Raw>();
}

#[test]
fn qemu_agrees_about_vpc_images() {
    judge_format::<vpc::Vpc>();
}

#[test]
fn qemu_agrees_about_vdi_images() {
    judge_format::<vdi::Vdi>();
}

#[test]
fn qemu_agrees_about_vhdx_images() {
    judge_format::<vhdx::Vhdx>();
}

#[test]
fn qemu_agrees_about_vmdk_images() {
    judge_format::<vmdk::Vmdk>();
}
