//! Bugs that only unusual files show: each is planted in a seed with such a file, and found.

use test_support::prelude::*;

use crate::altered::Altered;
use qcowfuzz::base::features::FeatureSet;
use qcowfuzz::formats::qcow2::entry::{ClusterKind, L2Entry};
use qcowfuzz::internal::harness::cases::case::Case;
use qcowfuzz::internal::harness::model::{Model, PieceState};
use qcowfuzz::internal::harness::oracles::qcow2::recount::Recount;
use qcowfuzz::internal::harness::oracles::qcow2::{self, Structures, refcounts};
use qcowfuzz::internal::harness::oracles::{OracleResult, data};
use qcowfuzz::internal::images::damage::Damage;
use qcowfuzz::internal::images::files::LayerFiles;
use qcowfuzz::programs::text;
use test_support::planted::{Fault, Faulty, LookUp};

fn seed(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/text/map_extents").join(name);
    text::assemble(&fs::read_to_string(path).unwrap()).unwrap().encode()
}

/// Returns the harness after a run of the seed, which finds nothing.
fn ran(input: &[u8]) -> Harness {
    let mut harness = Harness::new(Walker::default());
    harness.run(input, Checks::AfterEach).unwrap();
    harness
}

/// Returns the violations that the recount and the data oracle find in an image of the seed's program.
fn found(image: &Image, harness: &Harness) -> Vec<String> {
    let mut model = Model::new();
    model.replay(harness.vm().journals());
    let counted = refcounts::check(&mut Recount::new(), image, &[], &mut Err);
    let (mut walker, chain) = (Walker::default(), Chain::alone(image.clone()));
    let mut disk = walker.open(&chain).unwrap();
    let read = data::edges::check(&mut |at, into| disk.read(at, into), &model, |_| true, &mut Err);
    [counted, read].into_iter().filter_map(|it| it.err().map(|it| it.fingerprint())).collect()
}

/// Returns a copy of the image in a file that ends at `length`.
fn cut(image: &Image, length: u64) -> Image {
    let mut copy = Image::default();
    for data in image.written() {
        let left = length.saturating_sub(data.offset.get()).min(data.bytes.len() as u64);
        if left > 0 {
            copy.write(data.offset, &data.bytes[..left as usize]);
        }
    }
    copy.seal(length);
    copy
}

#[test]
fn bytes_in_a_cluster_that_was_never_written_are_found() {
    let harness = ran(&seed("preallocated_and_cut.txt"));
    let mut model = Model::new();
    model.replay(harness.vm().journals());
    let host = model.visible().iter().find_map(|it| match it.piece.state {
        PieceState::Normal(host, write) if write.0 == 0 => Some(host),
        _ => None,
    });
    let mut altered = Altered::new(harness.image());
    altered.write(host.unwrap().get() + 3, &[1]);
    let fingerprints = found(&altered.image(), &harness);
    assert_eq!(fingerprints, ["data: normal, what was written → other bytes"]);
}

#[test]
fn a_file_that_loses_its_end_is_found() {
    let harness = ran(&seed("payload_at_the_end.txt"));
    let image = harness.image();
    let length = image.length_bytes();
    assert_ne!(length % 512, 0);
    assert_eq!(found(&cut(image, length), &harness), Vec::<String>::new());
    // The reader needs the whole cluster, because the end of the stream is missing.
    let mut model = Model::new();
    model.replay(harness.vm().journals());
    let geometry = harness.vm().builder().plan().geometry;
    let last =
        model.visible().iter().rfind(|it| matches!(it.piece.state, PieceState::Compressed(..)));
    let end = last.unwrap().piece_end;
    let cluster = geometry.cluster_size.bytes();
    let start = qcowfuzz::disk::offsets::GuestOffset::new(end - cluster);
    let fingerprint = |image: &Image| {
        let (mut walker, chain) = (Walker::default(), Chain::alone(image.clone()));
        let mut disk = walker.open(&chain).unwrap();
        let mut buffers = Default::default();
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        data::check_range(read, &model, start, cluster as usize, &mut buffers)
            .err()
            .map(|it| it.fingerprint())
    };
    assert_eq!(fingerprint(&cut(image, length)), None);
    let fingerprint = fingerprint(&cut(image, length - 5));
    let expected =
        "data: range, an answer → an error (compressed cluster at guest offset _: the deflate";
    assert!(fingerprint.unwrap().starts_with(expected));
    // If the file is one cluster shorter, it does not contain the payload.
    let fingerprints = found(&cut(image, length - cluster), &harness);
    assert_eq!(fingerprints[0], "refcounts: compressed data, in the file → past its end");
}

#[test]
fn a_table_lost_past_the_end_of_the_disk_is_found() {
    let program = Program::decode(&seed("beyond_the_end.txt"));
    let mut early = program.clone();
    let checkpoint = early.operations.iter().position(|one| one.name() == "checkpoint").unwrap();
    early.operations.truncate(checkpoint);
    let harness = ran(&early.encode());
    let mut altered = Altered::new(harness.image());
    // The last table maps only clusters past the end of the disk.
    let entry = *altered.l2.iter().rfind(|it| matches!(it.kind, ClusterKind::Normal(_))).unwrap();
    assert!(L2Entry(entry.word).copied());
    altered.write_word(entry.at, 0);
    let fingerprints = found(&altered.image(), &harness);
    assert_eq!(fingerprints, ["refcounts: unreferenced cluster, free → counted"]);
}

#[test]
fn an_engine_that_does_not_read_past_the_end_of_the_file_is_found() {
    let fault = Fault {
        read: Some(|disk, facts, guest, into| {
            let end = disk.lookup(guest)?.offset.map_or(0, HostOffset::get) + into.len() as u64;
            match end > facts.storage.length_bytes() {
                true => Err(EngineError::untyped("past the end of the file")),
                false => disk.read(guest, into),
            }
        }),
        ..Fault::NONE
    };
    let run = Harness::new(Faulty::new(fault))
        .run(&seed("preallocated_and_cut.txt"), Checks::AtCheckpoints);
    let fingerprint = run.unwrap_err().violation.fingerprint();
    let expected = "data: normal, an answer → an error (past the end of the file)";
    assert_eq!(fingerprint, expected);
}

#[test]
fn a_raw_data_file_that_differs_from_the_disk_is_found() {
    let harness = ran(&seed("data_file_raw.txt"));
    let mut model = Model::new();
    model.replay(harness.vm().journals());
    let file = harness.images().raw_data_file().unwrap();
    assert!(qcow2::check_raw_data_file(file, &model).is_ok());
    let length = file.length_bytes();
    let shorter = cut(file, length - 512);
    let mut lost = cut(file, length - 512);
    lost.seal(length);
    let faults = [
        (
            "a raw data file that is shorter than the disk",
            shorter,
            "raw_data_file: length, that of the disk → another",
        ),
        (
            "a raw data file without its last write",
            lost,
            "raw_data_file: normal, what was written → zeros",
        ),
    ];
    for (name, file, fingerprint) in faults {
        let violation = qcow2::check_raw_data_file(&file, &model).unwrap_err();
        assert_eq!(violation.fingerprint(), fingerprint, "{name}");
    }
}

/// Judges one layer with the oracles of structures, in the way of the harness.
fn structures(layer: LayerFiles, harness: &Harness) -> OracleResult {
    let mut images = Images::default();
    images.resize(1);
    *images.layer_mut(0) = layer;
    let case = Case {
        requests: &[],
        new_image: None,
        images: &images,
        journals: harness.vm().journals().collect(),
        questions: &[],
        damage: &Damage::default(),
        features: FeatureSet::EMPTY,
        cell_bytes: 1,
        table_span_bits: 0,
        is_any_content: false,
        known: &[],
        in_full: true,
    };
    Structures::default().check(&case)
}

#[test]
fn the_oracles_of_structures_judge_each_part_of_a_layer() {
    let harness = ran(&seed("data_file_raw.txt"));
    let top = harness.images().top();
    let whole = |file: &Image| cut(file, file.length_bytes());
    let layer = || LayerFiles {
        image: whole(&top.image),
        data_file: whole(&top.data_file),
        has_data_file: true,
        data_file_is_raw: true,
        declarations: top.declarations.clone(),
        ..LayerFiles::default()
    };
    let fingerprint =
        |layer| structures(layer, &harness).err().map(|violation| violation.fingerprint());
    assert_eq!(fingerprint(layer()), None);
    let mut miscounted = Altered::new(&top.image);
    let block = miscounted.block_hosts()[0];
    miscounted.write(block.get(), &[0xFF]);
    let mut other_name = layer();
    other_name.declarations.data_file_name.push(b'x');
    let mut shorter = layer();
    shorter.data_file = cut(&top.data_file, top.data_file.length_bytes() - 512);
    let found = [LayerFiles { image: miscounted.image(), ..layer() }, other_name, shorter];
    let found = found.map(|layer| fingerprint(layer).unwrap());
    assert!(found[0].starts_with("refcounts: "), "{}", found[0]);
    assert_eq!(found[1], "declarations: data file's name, as meant → different");
    assert_eq!(found[2], "raw_data_file: length, that of the disk → another");
}
