//! Bugs in VMDK images whose data lie in other files.

use qcowfuzz::internal::harness::oracles::layout::LayoutJudge;
use qcowfuzz::internal::images::files::LayerFiles;
use qcowfuzz::programs::text;
use test_support::prelude::*;

/// The indices of the extents that the program builds.
const FLAT: usize = 0;
const SE_SPARSE: usize = 1;
const COWD: usize = 2;
const SPARSE: usize = 3;

const PROGRAM: &str = "\
image version=3 cluster_bits=12 refcount_order=4 features=none size=64<<12+0 rng_seed=0 \
blocks=append table=append tolerance=0 base=vmdk form=0
extent kind=flat length=1<<3 lead=2
extent kind=se_sparse length=1<<4 lead=0
extent kind=vmfs_sparse length=1<<4 lead=0
extent kind=sparse length=1<<0 lead=0
write at=start+4 clusters=8
write at=start+20 clusters=8
write at=start+40 clusters=2
";

/// A fault: its name, its change, and the beginning of the fingerprint behind `layout: `.
type Fault = (&'static str, fn(&mut Files), &'static str);

const FAULTS: &[Fault] = &[
    (
        "an extent of another size",
        |files| files.replace_text("RW 64 FLAT", "RW 63 FLAT"),
        "VMDK extent of another size",
    ),
    (
        "another name of a file",
        |files| files.replace_text("-s1.vmdk", "-s9.vmdk"),
        "VMDK extent with another name",
    ),
    (
        "an extent that does not count",
        |files| files.replace_text("RW 128 SESPARSE", "RO 128 SESPARSE"),
        "VMDK extent with another name",
    ),
    (
        "another kind",
        |files| files.replace_text("SESPARSE", "VMFSPARS"),
        "VMDK extent of another kind",
    ),
    (
        "no parent's identity",
        |files| files.replace_text("parentCID=f", "parentCID=e"),
        "VMDK parentCID",
    ),
    (
        "a flat file without its last byte",
        |files| {
            let length = files.extents[FLAT].length_bytes();
            files.extents[FLAT].cut(length - 1);
        },
        "VMDK extent of another size",
    ),
    (
        "another capacity of a sparse extent",
        |files| files.set(SPARSE, 12, 1),
        "VMDK extent of another size",
    ),
    (
        "another capacity of a COWD extent",
        |files| files.set(COWD, 12, 1),
        "VMDK extent of another size",
    ),
    (
        "another capacity of an seSparse extent",
        |files| files.set(SE_SPARSE, 16, 1),
        "VMDK extent of another size",
    ),
    ("a reserved field", |files| files.set(SE_SPARSE, 48, 1), "seSparse reserved field"),
    ("a journal to replay", |files| files.set(SE_SPARSE, 512 + 24, 1), "seSparse journal"),
    ("an unknown table", |files| files.set(SE_SPARSE, 1024 + 7, 0x20), "seSparse entry of a table"),
    ("an unknown grain", |files| files.set(SE_SPARSE, 1536 + 7, 0x40), "seSparse entry of a grain"),
    (
        "a grain that two entries name",
        |files| {
            let mut second = [0; 8];
            files.extents[SE_SPARSE].read_at(HostOffset::new(1640), &mut second).unwrap();
            files.extents[SE_SPARSE].overwrite(HostOffset::new(1632), &second);
        },
        "two structures",
    ),
];

/// The files of an image.
struct Files {
    image: Image,
    extents: Vec<Image>,
}

impl Files {
    fn build() -> (Self, LayerFiles) {
        let mut harness = Harness::new(Walker::default());
        harness.build(&text::assemble(PROGRAM).unwrap().encode());
        let files = (**harness.images().layers().next().unwrap()).clone();
        let extents = files.extents.all().iter().map(|image| (**image).clone()).collect();
        (Self { image: files.image.clone(), extents }, files)
    }

    fn set(&mut self, extent: usize, at: u64, byte: u8) {
        self.extents[extent].overwrite(HostOffset::new(at), &[byte]);
    }

    /// Replaces the first `old` in the descriptor by as many bytes.
    fn replace_text(&mut self, old: &str, new: &str) {
        let mut text = vec![0; self.image.length_bytes() as usize];
        self.image.read_at(HostOffset::ZERO, &mut text).unwrap();
        let at = text.windows(old.len()).position(|there| there == old.as_bytes()).unwrap();
        self.image.overwrite(HostOffset::new(at as u64), new.as_bytes());
    }
}

#[test]
fn every_fault_in_the_files_beside_vmdk_images_is_found() {
    for (name, plant, expected) in FAULTS {
        let (mut altered, mut files) = Files::build();
        let check = |files: &LayerFiles| {
            let checked = LayoutJudge::default().check(files, None);
            checked.err().map_or("nothing".into(), |violation| violation.fingerprint())
        };
        assert_eq!(check(&files), "nothing");
        plant(&mut altered);
        files.image = altered.image;
        files.extents = Default::default();
        for extent in altered.extents {
            *files.extents.add() = extent;
        }
        let found = check(&files);
        assert!(found.starts_with(&format!("layout: {expected}")), "{name}: {found}");
    }
}
