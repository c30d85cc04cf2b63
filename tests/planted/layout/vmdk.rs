//! Bugs in the structures of VMDK images.

use test_support::prelude::*;

use qcowfuzz::formats::vmdk::constants::{
    DIRECTORY_AT_END, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY, FLAG_ZERO_GRAINS, HEADER_BYTES,
    SECTOR_BYTES, SPARSE_MAGIC, STREAM_FOOTER_BYTES,
};
use qcowfuzz::formats::vmdk::headers::{SparseHeader, footer_header};
use qcowfuzz::internal::harness::oracles::layout::LayoutJudge;
use qcowfuzz::internal::images::files::LayerFiles;
use qcowfuzz::internal::programs::operand::{Number, Relative};

/// The number of programs.
const PROGRAMS: u64 = 400;
/// The lowest number of images in which each fault is planted.
const LEAST_PLANTED: u32 = 15;

/// A built image, with the places of its structures.
struct Built {
    image: Image,
    header: SparseHeader,
    has_footer: bool,
    /// The places of each directory entry that is not zero: in the directory, and in the redundant one.
    directory: Vec<[u64; 2]>,
    /// The places of each entry of a stored grain, likewise, and its sector.
    grains: Vec<([u64; 2], u32)>,
}

impl Built {
    /// Takes an image apart. Returns `None` for an extent as ESX writes it, which has few structures.
    fn new(image: &Image) -> Option<Self> {
        let first = bytes::<HEADER_BYTES>(image, 0);
        let mut header = SparseHeader::read(&first);
        let has_footer = header.directory_sector == DIRECTORY_AT_END;
        if has_footer {
            let at = image.length_bytes() - STREAM_FOOTER_BYTES as u64;
            header = footer_header(&bytes(image, at)).unwrap();
        }
        let image = image.clone();
        let mut built = Self { image, header, has_footer, directory: vec![], grains: vec![] };
        built.read_tables();
        first.starts_with(&SPARSE_MAGIC).then_some(built)
    }

    fn read_tables(&mut self) {
        let Some(tables) = self.header.tables(u64::MAX).ok() else { return };
        let redundant = match self.has_copy() {
            true => self.header.redundant_directory_sector * SECTOR_BYTES,
            false => tables.directory.get(),
        };
        for index in 0..u64::from(tables.directory_entries) {
            let places = [tables.directory.get(), redundant].map(|start| start + index * 4);
            let [table, copy] = places.map(|at| u64::from(self.number(at)) * SECTOR_BYTES);
            if table == 0 {
                continue;
            }
            self.directory.push(places);
            for entry in 0..u64::from(tables.table_entries) {
                let places = [table, copy].map(|start| start + entry * 4);
                let sector = self.number(places[0]);
                if sector > u32::from(self.header.flags & FLAG_ZERO_GRAINS != 0) {
                    self.grains.push((places, sector));
                }
            }
        }
    }

    fn has_copy(&self) -> bool {
        self.header.flags & FLAG_REDUNDANT_DIRECTORY != 0
    }

    fn number(&self, at: u64) -> u32 {
        u32::from_le_bytes(bytes(&self.image, at))
    }

    /// Writes bytes, which is a change of the image.
    fn set(&mut self, at: u64, bytes: &[u8]) -> Option<()> {
        self.image.overwrite(HostOffset::new(at), bytes);
        Some(())
    }

    /// Changes an entry and its copy.
    fn set_both(&mut self, places: [u64; 2], sector: u32) -> Option<()> {
        places.into_iter().try_for_each(|at| self.set(at, &sector.to_le_bytes()))
    }

    /// Replaces the first `old` in the descriptor by as many bytes.
    fn replace_text(&mut self, old: &str, new: &str) -> Option<()> {
        let text = bytes::<1024>(&self.image, 512);
        let at = text.windows(old.len()).position(|there| there == old.as_bytes())?;
        self.set(512 + at as u64, new.as_bytes())
    }

    /// Returns the places of the entry of a grain, if grains are not compressed.
    fn plain_grain(&self) -> Option<[u64; 2]> {
        self.grains.first().filter(|_| self.header.compression == 0).map(|(places, _)| *places)
    }

    /// Returns the place of the footer.
    fn footer(&self) -> Option<u64> {
        self.has_footer.then(|| self.image.length_bytes() - STREAM_FOOTER_BYTES as u64)
    }

    /// Returns the place of the first grain with a marker.
    fn marker(&self) -> Option<u64> {
        let has_markers = self.header.flags & FLAG_MARKERS != 0;
        let (_, sector) = self.grains.first().filter(|_| has_markers)?;
        Some(u64::from(*sector) * SECTOR_BYTES)
    }
}

fn bytes<const N: usize>(image: &Image, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    image.read_at(HostOffset::new(at), &mut bytes).unwrap();
    bytes
}

/// A fault: its name, a function that plants it and returns `None` if the image has no place for it, and the beginning
/// of the fingerprint with which the oracle finds it, behind `layout: `.
type Fault = (&'static str, fn(&mut Built) -> Option<()>, &'static str);

const FAULTS: &[Fault] = &[
    (
        "a marker with the sector of another grain",
        |built| built.set(built.marker()?, &[0xf7]),
        "VMDK marker of another grain",
    ),
    (
        "a marker with a length of 0",
        |built| built.set(built.marker()? + 8, &[0; 4]),
        "VMDK length in a marker",
    ),
    (
        "a compressed grain without the header of its stream",
        |built| built.set(built.marker()? + 12, &[0; 2]),
        "VMDK zlib header",
    ),
    (
        "two entries with one grain",
        |built| {
            let [(_, sector), (places, _), ..] = built.grains[..] else { return None };
            built.marker().is_none().then(|| built.set_both(places, sector))?
        },
        "two structures, apart",
    ),
    (
        "a grain past the end of the file",
        |built| {
            let end = built.image.length_bytes().div_ceil(SECTOR_BYTES);
            built.set_both(built.plain_grain()?, u32::try_from(end + 1).unwrap())
        },
        "structure, in the file",
    ),
    (
        "a grain in the descriptor",
        |built| built.set_both(built.plain_grain()?, 2),
        "VMDK grain before the overhead",
    ),
    (
        "a redundant table that differs",
        |built| {
            let ([_, copy], sector) = *built.grains.first()?;
            built.has_copy().then(|| built.set(copy, &(sector ^ 1).to_le_bytes()))?
        },
        "VMDK redundant table with other entries",
    ),
    (
        "a redundant directory without a table",
        |built| {
            let [_, copy] = *built.directory.first()?;
            built.has_copy().then(|| built.set(copy, &[0; 4]))?
        },
        "VMDK redundant directory with other tables",
    ),
    (
        "a redundant directory with the other's tables",
        |built| {
            let [own, copy] = *built.directory.first()?;
            let table = built.number(own).to_le_bytes();
            built.has_copy().then(|| built.set(copy, &table))?
        },
        "two structures, apart",
    ),
    (
        "a descriptor of another size",
        |built| built.replace_text(" SPARSE", "1SPARSE"),
        "VMDK extent without a size, a kind and a name",
    ),
    (
        "a descriptor of another type",
        |built| built.replace_text("createType=\"", "createType=\"x"),
        "VMDK createType of other grains",
    ),
    (
        "a descriptor without an identity",
        |built| built.replace_text("CID=", "cid="),
        "VMDK CID of no content",
    ),
    (
        "a descriptor with a parent",
        |built| built.replace_text("parentCID=f", "parentCID=e"),
        "VMDK parentCID of another content",
    ),
    (
        "a footer with another size",
        |built| {
            let capacity = built.header.capacity_sectors ^ 1;
            built.set(built.footer()? + 512 + 12, &capacity.to_le_bytes())
        },
        "VMDK footer with other fields",
    ),
    ("a footer without a marker", |built| built.set(built.footer()? + 12, &[4]), "VMDK footer"),
    (
        "a version that no reader knows",
        |built| (!built.has_footer).then(|| built.set(4, &[9]))?,
        "VMDK version",
    ),
];

fn images() -> Vec<LayerFiles> {
    let mut harness = Harness::new(Walker::default());
    let programs = (0..PROGRAMS).map(|rng_seed| {
        let mut program = generate_any(rng_seed, 24);
        let is_of_one_file = |one: &Operation| !matches!(one, Operation::Extent { .. });
        program.operations.retain(|one| one.class() != Class::Overlays && is_of_one_file(one));
        program.prologue.base = Base::of(ImageFormat::Vmdk);
        program.prologue.form = ImageForm((rng_seed as u16).wrapping_mul(0x9e37));
        program
    });
    let build = |program: Program| {
        harness.build(&program.encode());
        harness.images().top().clone()
    };
    programs.map(build).collect()
}

#[test]
fn every_fault_in_the_structures_of_vmdk_images_is_found() {
    let images = images();
    let found = |files: &LayerFiles, image: Image| {
        let files = LayerFiles { image, ..files.clone() };
        let checked = LayoutJudge::default().check(&files, None);
        checked.err().map(|violation| violation.fingerprint())
    };
    for files in &images {
        assert_eq!(found(files, files.image.clone()), None, "unaltered");
    }
    for (name, plant, expected) in FAULTS {
        let (mut planted, mut others) = (0, BTreeSet::new());
        for files in &images {
            let Some(mut built) = Built::new(&files.image) else { continue };
            if plant(&mut built).is_none() {
                continue;
            }
            planted += 1;
            let found = found(files, built.image).unwrap_or_else(|| "nothing".into());
            if !found.starts_with(&format!("layout: {expected}")) {
                others.insert(found);
            }
        }
        assert!(planted >= LEAST_PLANTED, "{name}: planted {planted}");
        assert!(others.is_empty(), "{name}: {others:?}");
    }
}

/// Builds a VMDK image on another one. Returns the files of the parent, and those of the image.
fn child() -> (LayerFiles, LayerFiles) {
    let mut program = Program::default();
    program.prologue.base = Base::of(ImageFormat::Vmdk);
    program.operations.push(Operation::OverlayInFormat {
        cluster_bits: Number::LOWEST,
        form: ImageForm::default(),
        size: Relative::Same,
    });
    let mut harness = Harness::new(Walker::default());
    harness.build(&program.encode());
    let layers: Vec<_> = harness.images().layers().collect();
    let [child, parent] = layers[..] else { panic!("{} layers", layers.len()) };
    ((**parent).clone(), (**child).clone())
}

#[test]
fn every_fault_in_the_reference_to_a_parent_is_found() {
    let (parent, child) = child();
    let found = |image: Image| {
        let files = LayerFiles { image, ..child.clone() };
        let checked = LayoutJudge::default().check(&files, Some(&parent));
        checked.err().map(|violation| violation.fingerprint())
    };
    assert_eq!(found(child.image.clone()), None);
    for (from, to, expected) in [
        ("parentCID=f", "parentCID=e", "layout: VMDK parentCID of another content, "),
        (
            "parentFileNameHint=\"",
            "parentFileNameHint=\"x",
            "layout: VMDK parentFileNameHint of another file, ",
        ),
        (
            "parentFileNameHint=\"",
            "parentFileNameHunt=\"",
            "layout: VMDK parentFileNameHint of another file, ",
        ),
    ] {
        let mut built = Built::new(&child.image).unwrap();
        built.replace_text(from, to).unwrap();
        let found = found(built.image).unwrap_or_else(|| "nothing".into());
        assert!(found.starts_with(expected), "{to}: {found}");
    }
}
