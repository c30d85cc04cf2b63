//! Images of every format but qcow2, judged by qemu: valid ones of every shape, damaged ones, and those that qemu
//! makes. The installed qemu-img opens the same images as our walkers, with the same extents and the same data.

#[path = "qemu_formats/attacks.rs"]
mod attacks;
#[path = "qemu_formats/commands.rs"]
mod commands;
#[path = "qemu_formats/comparison.rs"]
mod comparison;
#[path = "qemu_formats/form_fields.rs"]
mod form_fields;
#[allow(dead_code)]
#[path = "qemu/info.rs"]
mod info;
#[allow(dead_code)]
mod lines;
#[path = "qemu_formats/maker.rs"]
mod maker;
#[path = "qemu_formats/parts.rs"]
mod parts;
#[path = "qemu_formats/parts_of_disk.rs"]
mod parts_of_disk;
#[path = "qemu_formats/program.rs"]
mod program;
#[allow(dead_code)]
mod qemu;
#[path = "qemu_formats/raw.rs"]
mod raw;
#[path = "qemu_formats/rules.rs"]
mod rules;
mod tally;
#[path = "qemu_formats/vdi.rs"]
mod vdi;
#[path = "qemu_formats/vhdx.rs"]
mod vhdx;
#[path = "qemu_formats/vhdx_damage.rs"]
mod vhdx_damage;
#[path = "qemu_formats/vhdx_writer.rs"]
mod vhdx_writer;
#[path = "qemu_formats/vmdk.rs"]
mod vmdk;
#[path = "qemu_formats/vmdk_damage.rs"]
mod vmdk_damage;
#[path = "qemu_formats/vmdk_extents.rs"]
mod vmdk_extents;
#[path = "qemu_formats/vmdk_writer.rs"]
mod vmdk_writer;
#[path = "qemu_formats/vpc.rs"]
mod vpc;
#[path = "qemu_formats/vpc_writer.rs"]
mod vpc_writer;

use comparison::{judge_format, judge_made};

#[test]
fn qemu_agrees_about_raw_images() {
    judge_made::<raw::Raw>("qemu_agrees_about_raw_images");
}

#[test]
fn qemu_agrees_about_vpc_images() {
    judge_format::<vpc::Vpc>("qemu_agrees_about_vpc_images");
}

#[test]
fn qemu_agrees_about_vdi_images() {
    judge_format::<vdi::Vdi>("qemu_agrees_about_vdi_images");
}

#[test]
fn qemu_agrees_about_vhdx_images() {
    judge_format::<vhdx::Vhdx>("qemu_agrees_about_vhdx_images");
}

#[test]
fn qemu_agrees_about_vmdk_images() {
    judge_format::<vmdk::Vmdk>("qemu_agrees_about_vmdk_images");
}
