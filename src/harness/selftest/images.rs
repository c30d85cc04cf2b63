//! The plain images of the self-test, as texts of programs.

/// A plain image: its name in the table, and the program that builds it.
#[derive(Clone, Copy, Debug)]
pub struct PlainImage {
    /// The name.
    pub name: &'static str,
    /// The prologue from `version` on, as far as it differs from image to image.
    image: &'static str,
    /// The operations, a line each.
    operations: &'static str,
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

/// All plain images. Each has one property more than the images before it need. The last ones have other formats.
pub const IMAGES: [PlainImage; 22] = [
    PlainImage { name: "empty disk", image: "size=4<<16+0", operations: "" },
    PlainImage {
        name: "one cluster",
        image: "size=1<<16+0",
        operations: "write at=start+0 clusters=1",
    },
    PlainImage {
        name: "two clusters and a hole",
        image: "size=8<<16+0",
        operations: "write at=start+1 clusters=1\nwrite at=start+6 clusters=1",
    },
    PlainImage {
        name: "clusters in reverse order",
        image: "size=4<<16+0",
        operations: "write at=start+3 clusters=1\nwrite at=start+2 clusters=1\nwrite at=start+1 clusters=1\n\
                     write at=start+0 clusters=1",
    },
    PlainImage {
        name: "zeros",
        image: "size=8<<16+0",
        operations: "write at=start+1 clusters=3\nzero at=start+2 clusters=1 keep=yes\nzero at=start+5 clusters=1 keep=no",
    },
    PlainImage {
        name: "compressed cluster",
        image: "size=4<<16+0",
        operations: "write at=start+0 clusters=1\ncompress at=start+1 clusters=1 shape=half skew=packed",
    },
    PlainImage {
        name: "zstd",
        image: "features=zstd size=4<<16+0",
        operations: "write at=start+0 clusters=1\ncompress at=start+1 clusters=1 shape=half skew=packed",
    },
    PlainImage {
        name: "qcow2 backing file",
        image: "size=4<<16+0",
        operations: concat!(
            "write at=start+1 clusters=2\n",
            overlay!("same"),
            "write at=start+2 clusters=1"
        ),
    },
    PlainImage {
        name: "shorter backing file",
        image: "size=2<<16+0",
        operations: concat!(
            "write at=start+1 clusters=1\n",
            overlay!("+2<<16"),
            "write at=start+3 clusters=1"
        ),
    },
    PlainImage {
        name: "raw backing file",
        image: "size=4<<16+0 base=raw",
        operations: concat!(
            "write at=start+1 clusters=2\n",
            overlay!("same"),
            "write at=start+2 clusters=1"
        ),
    },
    PlainImage {
        name: "data file",
        image: "size=4<<16+0 data_in=file",
        operations: "write at=start+1 clusters=2\nzero at=start+2 clusters=1 keep=yes",
    },
    PlainImage {
        name: "snapshot",
        image: "size=4<<16+0",
        operations: "write at=start+0 clusters=2\nsnapshot\nwrite at=start+1 clusters=1",
    },
    PlainImage {
        name: "size inside a sector",
        image: "size=2<<16+700",
        operations: "write at=start+1 clusters=2",
    },
    PlainImage {
        name: "version 2",
        image: "version=2 size=4<<16+0",
        operations: "write at=start+1 clusters=2",
    },
    PlainImage {
        name: "clusters of 512 bytes",
        image: "cluster_bits=9 size=200<<9+0",
        operations: "write at=start+60 clusters=8",
    },
    PlainImage {
        name: "clusters of 2 MiB",
        image: "cluster_bits=21 size=3<<21+0",
        operations: "write at=start+1 clusters=1",
    },
    PlainImage {
        name: "extended L2 entries",
        image: "features=extended_l2 size=4<<16+0",
        operations: "write at=start+0 clusters=1\nsubclusters at=start+1 change=write first=4 count=3 stride=1",
    },
    PlainImage { name: "dynamic VHD disk", image: "size=8<<16+0 base=vpc", operations: WRITES },
    PlainImage {
        name: "fixed VHD disk",
        image: "size=8<<16+0 base=vpc form=8",
        operations: WRITES,
    },
    PlainImage {
        name: "VHDX disk",
        image: "cluster_bits=9 size=8<<20+0 base=vhdx",
        operations: WRITES,
    },
    PlainImage { name: "VMDK disk", image: "size=8<<16+0 base=vmdk", operations: WRITES },
    PlainImage {
        name: "compressed VMDK disk",
        image: "size=8<<16+0 base=vmdk form=544",
        operations: "compress at=start+6 clusters=1 shape=half skew=packed\nwrite at=start+1 clusters=1",
    },
];

/// Two blocks in reverse order, and holes.
const WRITES: &str = "write at=start+6 clusters=1\nwrite at=start+1 clusters=1";

impl PlainImage {
    /// Returns the value of an operand of the prologue, if this image has one of its own.
    fn operand(&self, name: &str) -> Option<&str> {
        self.image.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// Reports whether the image that readers open is a qcow2 image.
    #[cfg(any(test, feature = "cli"))]
    pub fn is_qcow2(&self) -> bool {
        self.operand("base").is_none_or(|base| base == "raw")
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
            ("base", "qcow2"),
            ("form", "0"),
        ];
        for (name, default) in defaults {
            let value = self.operand(name).unwrap_or(default);
            line.push_str(&format!(" {name}={value}"));
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
            ("dynamic VHD disk", Feature::Vpc),
            ("fixed VHD disk", Feature::Vpc),
            ("VHDX disk", Feature::Vhdx),
            ("VMDK disk", Feature::Vmdk),
            ("compressed VMDK disk", Feature::Vmdk),
        ] {
            let image = IMAGES.iter().find(|it| it.name == image).unwrap();
            assert!(built(image).0.meets(FeatureSet::of(&[feature])), "{}", image.text());
        }
    }

    #[test]
    fn an_image_of_another_format_has_no_qcow2_layer() {
        for image in &IMAGES {
            let has_qcow2 = built(image).0.meets(FeatureSet::of(&[Feature::Qcow2]));
            assert_eq!(has_qcow2, image.is_qcow2(), "{}", image.text());
        }
    }

    #[test]
    fn every_operation_has_an_effect() {
        for image in &IMAGES {
            assert_eq!(built(image).1, 0, "{}", image.text());
        }
        let names: BTreeSet<_> = IMAGES.iter().map(|image| image.name).collect();
        assert_eq!(names.len(), IMAGES.len());
    }
}
