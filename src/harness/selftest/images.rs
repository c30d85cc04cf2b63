//! The plain images of the self-test, as texts of programs.

use crate::disk::image_format::ImageFormat;
use crate::images::format::list::drawer;
use crate::programs::operand::Base;

/// A plain image: its name in the table, and the program that builds it.
#[derive(Clone, Copy, Debug)]
pub struct PlainImage {
    /// The name.
    pub name: &'static str,
    /// The prologue from `version` on, as far as it differs from image to image.
    image: &'static str,
    /// The operations, a line each.
    operations: &'static str,
    /// The format and the variety, if it is not a qcow2 image.
    other: Option<(ImageFormat, u16)>,
}

/// A plain image of qcow2.
const fn plain(name: &'static str, image: &'static str, operations: &'static str) -> PlainImage {
    PlainImage { name, image, operations, other: None }
}

/// An overlay in the format of most images here, as large as the layer below it.
macro_rules! overlay {
    ($size:literal) => {
        concat!(
            "overlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=",
            $size,
            "\n"
        )
    };
}

/// The plain images that begin as qcow2 images. Each has one property more than the images before it need.
const QCOW2_IMAGES: [PlainImage; 22] = [
    plain("empty disk", "size=4<<16+0", ""),
    plain("one cluster", "size=1<<16+0", "write at=start+0 clusters=1"),
    plain(
        "two clusters and a hole",
        "size=8<<16+0",
        "write at=start+1 clusters=1\nwrite at=start+6 clusters=1",
    ),
    plain(
        "clusters in reverse order",
        "size=4<<16+0",
        "write at=start+3 clusters=1\nwrite at=start+2 clusters=1\nwrite at=start+1 clusters=1\n\
                     write at=start+0 clusters=1",
    ),
    plain(
        "zeros",
        "size=8<<16+0",
        "write at=start+1 clusters=3\nzero at=start+2 clusters=1 keep=yes\nzero at=start+5 clusters=1 keep=no",
    ),
    plain(
        "compressed cluster",
        "size=4<<16+0",
        "write at=start+0 clusters=1\ncompress at=start+1 clusters=1 shape=half skew=packed",
    ),
    plain(
        "zstd",
        "features=zstd size=4<<16+0",
        "write at=start+0 clusters=1\ncompress at=start+1 clusters=1 shape=half skew=packed",
    ),
    plain(
        "qcow2 backing file",
        "size=4<<16+0",
        concat!("write at=start+1 clusters=2\n", overlay!("same"), "write at=start+2 clusters=1"),
    ),
    plain(
        "shorter backing file",
        "size=2<<16+0",
        concat!("write at=start+1 clusters=1\n", overlay!("+2<<16"), "write at=start+3 clusters=1"),
    ),
    plain(
        "raw backing file",
        "size=4<<16+0 base=raw",
        concat!("write at=start+1 clusters=2\n", overlay!("same"), "write at=start+2 clusters=1"),
    ),
    plain(
        "data file",
        "size=4<<16+0 data_in=file",
        "write at=start+1 clusters=2\nzero at=start+2 clusters=1 keep=yes",
    ),
    plain(
        "snapshot",
        "size=4<<16+0",
        "write at=start+0 clusters=2\nsnapshot\nwrite at=start+1 clusters=1",
    ),
    plain("size inside a sector", "size=2<<16+700", "write at=start+1 clusters=2"),
    // Preallocation allocates the cluster, and no guest writes to it. QEMU reads zeros past the end of the file.
    plain(
        "file ends in a cluster",
        "size=4<<16+0 blocks=first table=first",
        "reserve gap=8<<0\nwrite at=start+0 clusters=1\npreallocate at=start+1 clusters=1\n\
                     end_file end=content tail=0<<0",
    ),
    plain("version 2", "version=2 size=4<<16+0", "write at=start+1 clusters=2"),
    plain("clusters of 512 bytes", "cluster_bits=9 size=200<<9+0", "write at=start+60 clusters=8"),
    plain("clusters of 2 MiB", "cluster_bits=21 size=3<<21+0", "write at=start+1 clusters=1"),
    plain("disk of 0 bytes", "size=0<<0+0", ""),
    plain(
        "disk of 5 GiB",
        "size=5<<30+0",
        "write at=start+1 clusters=1\nwrite at=end-9 clusters=1",
    ),
    plain(
        "disk of 3 TiB",
        "size=3<<40+0",
        "write at=start+1 clusters=1\nwrite at=end-9 clusters=1",
    ),
    plain(
        "empty backing name",
        "size=4<<16+0",
        "header length=shortest order=0 unknown=0 bytes=0 flags=empty_name\nwrite at=start+1 clusters=1",
    ),
    plain(
        "extended L2 entries",
        "features=extended_l2 size=4<<16+0",
        "write at=start+0 clusters=1\nsubclusters at=start+1 change=write first=4 count=3 stride=1",
    ),
];

/// Returns all plain images: those of qcow2, then those of the other formats, then qcow2 images on these.
pub fn plain_images() -> impl Iterator<Item = PlainImage> {
    let others = Base::other_formats().flat_map(|format| {
        drawer(format).plain_forms().iter().map(move |plain| PlainImage {
            name: plain.name,
            image: plain.operands,
            operations: plain.operations,
            other: Some((format, plain.form)),
        })
    });
    let below = Base::other_formats().filter_map(|format| {
        let plain = drawer(format).plain_forms().first()?;
        Some(PlainImage {
            name: drawer(format).name_below(),
            image: plain.operands,
            operations: BELOW,
            other: Some((format, plain.form)),
        })
    });
    QCOW2_IMAGES.into_iter().chain(others).chain(below)
}

/// Operations that write two blocks, lay a qcow2 overlay on the image, and write one cluster there.
const BELOW: &str = concat!(
    "write at=start+6 clusters=1\nwrite at=start+1 clusters=1\n",
    overlay!("same"),
    "write at=start+2 clusters=1"
);

impl PlainImage {
    /// Returns the value of an operand of the prologue, if this image has one of its own.
    fn operand(&self, name: &str) -> Option<&str> {
        self.image.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// Reports whether all images of the chain are qcow2 images or raw files.
    #[cfg(any(test, feature = "cli"))]
    pub fn is_qcow2(&self) -> bool {
        self.other.is_none()
    }

    /// Returns the text of the program.
    pub fn text(&self) -> String {
        let mut line = String::from("image");
        // With this seed, folding keeps the features that an engine may refuse.
        let defaults = [
            ("version", "3"),
            ("cluster_bits", "16"),
            ("refcount_order", "4"),
            ("features", "none"),
            ("size", "0"),
            ("rng_seed", "7"),
            ("blocks", "append"),
            ("table", "append"),
            ("tolerance", "0"),
            ("data_in", "image"),
        ];
        for (name, default) in defaults {
            let value = self.operand(name).unwrap_or(default);
            line.push_str(&format!(" {name}={value}"));
        }
        match self.other {
            Some((format, form)) => line.push_str(&format!(" base={} form={form}", format.name())),
            None => {
                let base = self.operand("base").unwrap_or("qcow2");
                line.push_str(&format!(" base={base} form=0"));
            }
        }
        format!("{line}\n{}\n", self.operations)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::base::features::{Feature, FeatureSet};
    use crate::harness::cases::pipeline::{Checks, Pipeline};
    use crate::harness::engine::claims::Claims;
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;

    /// Returns the features of the image, and the number of operations without an effect.
    fn built(image: &PlainImage) -> (FeatureSet, usize) {
        let program =
            assemble(&image.text()).unwrap_or_else(|error| panic!("{}: {error}", image.name));
        let mut pipeline = Pipeline::default();
        pipeline.load(&program.encode(), &Claims::ALL);
        let ran = pipeline.run(Limits::WALKED, Checks::AtCheckpoints, &(), |_| Ok(())).unwrap();
        (pipeline.vm().features(), ran.operations - ran.effective)
    }

    #[test]
    fn each_image_has_what_its_name_says() {
        for (image, feature) in [
            ("compressed cluster", Feature::Compressed),
            ("zstd", Feature::Zstd),
            ("qcow2 backing file", Feature::Qcow2Backing),
            ("raw backing file", Feature::RawBacking),
            ("data file", Feature::DataFile),
            ("snapshot", Feature::Snapshots),
            ("version 2", Feature::Version2),
            ("clusters of 512 bytes", Feature::Clusters512),
            ("clusters of 2 MiB", Feature::Clusters2M),
            ("extended L2 entries", Feature::ExtendedL2),
            ("disk of 0 bytes", Feature::EmptyDisk),
            ("disk of 5 GiB", Feature::Above4G),
            ("disk of 3 TiB", Feature::Above2040G),
            ("empty backing name", Feature::EmptyBackingName),
        ] {
            let image = plain_images().find(|it| it.name == image).unwrap();
            assert!(built(&image).0.has(feature), "{}", image.text());
        }
        for image in plain_images() {
            let feature = Feature::images_of(image.other.map_or(ImageFormat::Qcow2, |it| it.0));
            assert!(built(&image).0.has(feature), "{}", image.text());
        }
    }

    #[test]
    fn an_image_of_another_format_has_no_qcow2_layer() {
        for image in plain_images() {
            let has_qcow2 = built(&image).0.has(Feature::Qcow2);
            let is_above = image.operations == BELOW;
            assert_eq!(has_qcow2, image.is_qcow2() || is_above, "{}", image.text());
        }
    }

    #[test]
    fn every_operation_has_an_effect() {
        for image in plain_images() {
            assert_eq!(built(&image).1, 0, "{}", image.text());
        }
        let names: BTreeSet<_> = plain_images().map(|image| image.name).collect();
        assert_eq!(names.len(), plain_images().count());
        for format in Base::other_formats() {
            assert!(
                plain_images().any(|it| it.other.is_some_and(|it| it.0 == format)),
                "{format:?}"
            );
        }
    }
}
