//! Parts of backing chains and external data files.

use qcowfuzz::formats::qcow2::geometry::Version;
use qcowfuzz::internal::images::qcow2::Builder;
use qcowfuzz::internal::programs::operand::{DataIn, Size};
use qcowfuzz::internal::programs::prologue::Prologue;
use test_support::prelude::*;

use super::{ANYWHERE, Part, Trace};

/// The parts of backing chains and external data files.
pub const PARTS: &[Part] = &[
    Part {
        name: "backing file, qcow2",
        prepare: ANYWHERE,
        lines: |entropy| overlay(entropy, "same"),
        had: |trace| backing(trace, ImageFormat::Qcow2),
    },
    Part {
        name: ON_RAW,
        prepare: |prologue| {
            prologue.base = Base::Raw;
            small(prologue);
        },
        lines: |entropy| {
            let lines = overlay(entropy, "same");
            let look = ["qcow2", "vmdk", "vpc", "mbr"][entropy.below(4) as usize];
            format!(
                "write_as at=start+0 clusters=1 look={look}\nwrite at=end-0 clusters=1\n\
                 write at=part+20000 clusters=3\n{lines}"
            )
        },
        had: |trace| backing(trace, ImageFormat::Raw),
    },
    Part {
        name: ON_VPC,
        prepare: |prologue| over(prologue, Base::of(ImageFormat::Vpc)),
        lines: overlay_over_data,
        had: |trace| backing(trace, ImageFormat::Vpc),
    },
    Part {
        name: ON_VHDX,
        prepare: |prologue| over(prologue, Base::of(ImageFormat::Vhdx)),
        lines: overlay_over_data,
        had: |trace| backing(trace, ImageFormat::Vhdx),
    },
    Part {
        name: ON_VMDK,
        prepare: |prologue| over(prologue, Base::of(ImageFormat::Vmdk)),
        lines: |entropy| {
            // An image in one file, one with an extent, or one with a parent.
            let kinds = [
                "",
                "",
                "extent kind=flat length=1<<1 lead=3\n",
                "extent kind=vmfs length=1<<1 lead=0\n",
                "extent kind=sparse length=1<<1 lead=0\n",
                "extent kind=vmfs_sparse length=1<<1 lead=0\n",
                "extent kind=se_sparse length=1<<1 lead=0\n",
                "write at=start+0 clusters=3\noverlay_vmdk cluster_bits=12 form=0 size=same\n",
            ];
            let kind = kinds[entropy.below(kinds.len() as u64) as usize];
            kind.to_string() + &overlay_over_data(entropy)
        },
        had: |trace| backing(trace, ImageFormat::Vmdk),
    },
    Part {
        name: "four layers",
        prepare: small,
        lines: |entropy| {
            let layers: Vec<_> = (0..3).map(|_| overlay(entropy, "same")).collect();
            layers.join("\n")
        },
        had: |trace| trace.vm.builders().len() == 4,
    },
    Part {
        name: "shorter backing file",
        prepare: ANYWHERE,
        lines: |entropy| overlay(entropy, "+37<<12"),
        had: |trace| sizes(trace, |above, below| 0 < below && below < above),
    },
    Part {
        name: "longer backing file",
        prepare: small,
        lines: |entropy| overlay(entropy, "part+9000"),
        had: |trace| sizes(trace, |above, below| above < below),
    },
    Part {
        name: "backing file of the same size",
        prepare: ANYWHERE,
        lines: |entropy| overlay(entropy, "same"),
        had: |trace| sizes(trace, |above, below| above == below && above > 0),
    },
    Part {
        name: "backing file of odd size",
        prepare: |prologue| prologue.size = Size::new(prologue.rng_seed | 1, 9, 77).unwrap(),
        lines: |entropy| overlay(entropy, "+1<<20"),
        had: |trace| sizes(trace, |_, below| below % 512 != 0),
    },
    Part {
        name: "backing file of size 0",
        prepare: ANYWHERE,
        lines: |entropy| {
            let nothing = overlay(entropy, "part+0");
            let something = overlay(entropy, "+200<<14");
            format!("{nothing}\n{something}")
        },
        had: |trace| sizes(trace, |above, below| below == 0 && above > 0),
    },
    Part {
        name: "backing file of another cluster size",
        prepare: small,
        lines: |entropy| overlay(entropy, "same"),
        had: |trace| {
            let bits = |it: &Builder| it.plan().geometry.cluster_size.bits();
            let bits: Vec<_> = trace.vm.builders().map(bits).collect();
            bits.windows(2).any(|pair| pair[0] != pair[1])
        },
    },
    Part {
        name: "data file",
        prepare: |prologue| {
            prologue.version = Version::V3;
            prologue.data_in = DataIn::File;
            small(prologue);
        },
        lines: |_| "write at=start+0 clusters=4\nzero at=last-1 clusters=1 keep=yes".to_string(),
        had: |trace| data_files(trace, false),
    },
    Part {
        name: RAW_DATA_FILE,
        prepare: |prologue| {
            prologue.version = Version::V3;
            prologue.data_in = DataIn::RawFile;
            small(prologue);
        },
        lines: |_| "write at=start+0 clusters=3\nwrite at=end-0 clusters=1".to_string(),
        had: |trace| data_files(trace, true),
    },
    Part {
        name: "data file with a backing file",
        prepare: small,
        lines: |entropy| {
            let (bits, order) = (9 + entropy.below(13), entropy.below(7));
            format!(
                "overlay version=3 cluster_bits={bits} refcount_order={order} features=none \
                 data_in=file size=same\nwrite at=start+0 clusters=2\nwrite at=part+9 clusters=2"
            )
        },
        had: |trace| {
            let mut plans = trace.vm.builders().map(|it| *it.plan());
            plans.any(|plan| plan.backing.is_some() && plan.data_file.is_some())
        },
    },
];

const ON_RAW: &str = "backing file, raw";
const ON_VPC: &str = "backing file, VHD";
const ON_VHDX: &str = "backing file, VHDX";
const ON_VMDK: &str = "backing file, VMDK";
const RAW_DATA_FILE: &str = "raw data file";

/// The pairs of parts that exclude each other in a chain, each with its reason.
pub const APART: &[(&str, &str, &str)] = &[
    (ON_RAW, ON_VPC, ONE_BASE),
    (ON_RAW, ON_VHDX, ONE_BASE),
    (ON_RAW, ON_VMDK, ONE_BASE),
    (ON_VPC, ON_VHDX, ONE_BASE),
    (ON_VPC, ON_VMDK, ONE_BASE),
    (ON_VHDX, ON_VMDK, ONE_BASE),
    (ON_RAW, RAW_DATA_FILE, NO_QCOW2_BASE),
    (ON_VPC, RAW_DATA_FILE, NO_QCOW2_BASE),
    (ON_VHDX, RAW_DATA_FILE, NO_QCOW2_BASE),
    (ON_VMDK, RAW_DATA_FILE, NO_QCOW2_BASE),
];

const ONE_BASE: &str =
    "only the lowest layers have another format than qcow2, and it is one format";
const NO_QCOW2_BASE: &str =
    "a raw data file conflicts with backing files: only a lowest layer in qcow2 can have one";

/// Returns an overlay with some data. `size` is relative to the size of the disk below.
fn overlay(entropy: &mut Entropy, size: &str) -> String {
    let (bits, order) =
        (9 + entropy.below(13), [0, 1, 1, 2, 3, 4, 5, 6][entropy.below(8) as usize]);
    let version = if entropy.one_in(3) { 2 } else { 3 };
    let features = ["none", "extended_l2", "zstd", "extended_l2,zstd"][entropy.below(4) as usize];
    let far = entropy.below(1 << 16);
    format!(
        "overlay version={version} cluster_bits={bits} refcount_order={order} features={features} \
         data_in=image size={size}\nwrite at=start+1 clusters=2\nwrite at=part+{far} clusters=1\n\
         zero at=part+{far} clusters=2 keep=no\ncompress at=end-0 clusters=1 shape=text skew=packed"
    )
}

/// Returns an overlay on some data.
fn overlay_over_data(entropy: &mut Entropy) -> String {
    let size = ["same", "part+9000", "+37<<12"][entropy.below(3) as usize];
    let (keep, far) = (["yes", "no"][entropy.below(2) as usize], entropy.below(1 << 16));
    let lines = overlay(entropy, size);
    format!(
        "write at=start+0 clusters=2\nwrite at=part+{far} clusters=3\n\
         zero at=part+{far} clusters=1 keep={keep}\nwrite at=end-0 clusters=1\n{lines}"
    )
}

/// Makes the lowest image one of any form in the format of `base`, with a disk of a few megabytes.
fn over(prologue: &mut Prologue, base: Base) {
    prologue.base = base;
    prologue.form = ImageForm(prologue.rng_seed.wrapping_mul(0x9e37));
    small(prologue);
}

/// Makes the disk a few megabytes long, mostly with an incomplete last sector.
fn small(prologue: &mut Prologue) {
    let seed = prologue.rng_seed;
    prologue.size = Size::new(1 + seed % 1500, 13, (seed % 1000) as i16 - 500).unwrap();
}

fn backing(trace: &Trace, format: ImageFormat) -> bool {
    trace.vm.builders().any(|it| it.plan().backing.is_some_and(|it| it.format == format))
}

/// Reports whether `wanted` is true of the sizes of two neighbours: the upper and the lower layer.
fn sizes(trace: &Trace, wanted: fn(u64, u64) -> bool) -> bool {
    let layers = trace.vm.builders().zip(trace.vm.journals());
    let sizes: Vec<u64> = layers.map(|(it, journal)| size_bytes(it, journal.format)).collect();
    sizes.windows(2).any(|pair| wanted(pair[0], pair[1]))
}

/// Returns the size of a layer. The other formats than qcow2 and raw count sectors.
fn size_bytes(builder: &Builder, format: ImageFormat) -> u64 {
    match format {
        ImageFormat::Qcow2 | ImageFormat::Raw => builder.plan().size_bytes,
        _ => builder.plan().virtual_size_bytes(),
    }
}

fn data_files(trace: &Trace, raw: bool) -> bool {
    // A layer that became a raw file has no image any more.
    let mut images = trace
        .vm
        .builders()
        .zip(trace.vm.journals())
        .filter(|(_, it)| it.format == ImageFormat::Qcow2);
    images.any(|(it, _)| it.plan().data_file.is_some_and(|it| it.raw == raw))
}
