//! The committed corpus: every seed is the assembled form of its text, the seeds together cover all operations and
//! events, and none shows a bug. `QCOWFUZZ_BLESS=1 cargo test --test corpus` writes the seeds again.

use std::sync::Arc;
use test_support::prelude::*;

use qcowfuzz::base::file_parts::MAX_EXTENT_FILES;
use qcowfuzz::formats::anatomy::Part;
use qcowfuzz::formats::probe;
use qcowfuzz::fuzzing::libfuzzer;
use qcowfuzz::harness::Outcome;
use qcowfuzz::internal::findings::explain::explain;
use qcowfuzz::internal::images::format::list;
use qcowfuzz::internal::programs::interpreter::Effect;
use qcowfuzz::programs::text;
use qcowfuzz::walkers::{map_extents, read};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Returns the name and the content of each text of a target that has this extension.
fn read_texts(target: &str, extension: &str) -> Vec<(String, String)> {
    let folder = corpus().join("text").join(target);
    let entries = fs::read_dir(&folder);
    let mut all: Vec<_> = entries
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == extension))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_string();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();
    all.sort();
    all
}

/// Returns the name and the program of each text of a target.
fn texts(target: &str) -> Vec<(String, Program)> {
    let program = |(name, text): (String, String)| {
        let program = text::assemble(&text);
        let program = program.unwrap_or_else(|error| panic!("{target}/{name}: {error}"));
        (name, program)
    };
    read_texts(target, "txt").into_iter().map(program).collect()
}

/// Returns the name and the seed of each text of a target.
fn seeds(kind: TargetKind) -> Vec<(String, Vec<u8>)> {
    let built = texts(kind.name()).into_iter().map(|(name, it)| (name, seed(kind, &it)));
    let files = read_texts(kind.name(), "hex").into_iter();
    built.chain(files.map(|(name, text)| (name, file(&text)))).collect()
}

/// Returns the file that a text in hexadecimal numbers describes: an offset and the bytes there in each line, `BYTE*N`
/// for N (decimal) equal bytes, zeros between the lines, and comments after a `;`.
fn file(text: &str) -> Vec<u8> {
    let mut file = Vec::new();
    for line in text.lines().map(|line| line.split(';').next().unwrap()) {
        let Some((offset, bytes)) = line.split_once(':') else { continue };
        let offset = usize::from_str_radix(offset, 16).unwrap();
        assert!(offset >= file.len(), "{line}: the lines are in the order of the file");
        file.resize(offset, 0);
        for byte in bytes.split_whitespace() {
            let (byte, count) = byte.split_once('*').unwrap_or((byte, "1"));
            let byte = u8::from_str_radix(byte, 16).unwrap();
            file.extend(std::iter::repeat_n(byte, count.parse().unwrap()));
        }
    }
    file
}

/// Returns the seed of a program: its bytes, or for a target of files the image that it builds and damages, without the
/// zeros at its end.
fn seed(target: TargetKind, program: &Program) -> Vec<u8> {
    if target.runs_programs() {
        return program.encode();
    }
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    libfuzzer::report(hostile.run(&program.encode(), Checks::AtCheckpoints));
    let image = &hostile.pipeline().images().top().image;
    let mut file = vec![0; usize::try_from(image.length_bytes()).unwrap()];
    image.read_at(HostOffset::ZERO, &mut file).unwrap();
    let used = file.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    file.truncate(used);
    file
}

#[test]
fn seeds_are_assembled_from_their_texts() {
    let bless = std::env::var_os("QCOWFUZZ_BLESS").is_some();
    for kind in TargetKind::of_libfuzzer() {
        let target = kind.name();
        let mut named = BTreeSet::new();
        for (name, expected) in seeds(kind) {
            let path = corpus().join(target).join(&name);
            if bless {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, &expected).unwrap();
            }
            let actual = fs::read(&path).unwrap_or_default();
            assert!(actual == expected, "{} is not what its text says", path.display());
            assert!(expected.len() <= 1 << 18, "{} is large", path.display());
            named.insert(name);
        }
        // Inputs that the fuzzer kept have a hash for a name, and are not committed.
        for entry in fs::read_dir(corpus().join(target)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let found = name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(found || named.contains(&name), "{target}/{name} has no text");
        }
    }
}

#[test]
fn seeds_find_nothing() {
    for (name, program) in texts("map_extents") {
        let run = Harness::new(Walker::default()).run(&program.encode(), Checks::AfterEach);
        let outcome = run.unwrap_or_else(|failure| panic!("{name}: {}", failure.violation));
        // A seed may have the purpose to do nothing.
        assert!(outcome.effective * 4 >= outcome.operations * 3, "{name}: {outcome:?}");
    }
    for target in TargetKind::of_libfuzzer() {
        for (name, seed) in seeds(target) {
            // The seeds of `writes` need an engine that writes.
            let implementation = || small_writer::implementation(None);
            if let Err(failure) = libfuzzer::run_with(implementation, target, &seed) {
                panic!("{}/{name}: {}", target.name(), failure.violation);
            }
        }
    }
}

#[test]
fn raw_images_reach_every_outcome() {
    let mut outcomes = [0; 3];
    for (_, program) in texts("raw_image") {
        let ran = libfuzzer::run(TargetKind::RawImage, &seed(TargetKind::RawImage, &program));
        let Outcome { refused, failed, .. } = ran.unwrap();
        outcomes[refused * 2 + failed] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// The first word of a text whose file cannot be opened, or cannot be walked to its end.
const REFUSED: &str = "; Refused: ";

#[test]
fn files_of_other_formats_are_walked_and_have_correct_checksums() {
    let mut formats = BTreeSet::new();
    for (name, text) in &read_texts("raw_image", "hex") {
        let seed = file(text);
        if text.starts_with(REFUSED) {
            let Outcome { refused, failed, .. } =
                libfuzzer::run(TargetKind::RawImage, &seed).unwrap();
            assert_eq!(refused + failed, 1, "{name}");
            continue;
        }
        formats.insert(probe(seed.as_slice()).unwrap().name());
        assert_eq!(has_data(name, &seed), name != "vhdx_without_data", "{name}");
        let Outcome { refused, failed, .. } = libfuzzer::run(TargetKind::RawImage, &seed).unwrap();
        assert_eq!((refused, failed), (0, 0), "{name}");
        let mut corrected = seed.clone();
        list::correct_checksums(&mut corrected);
        assert!(corrected == seed, "{name} has a wrong checksum");
    }
    // A fixed VHD disk begins with the guest data. The other seeds are qcow2 images.
    let others = ImageFormat::ALL.into_iter().filter(|format| *format != ImageFormat::Qcow2);
    assert_eq!(formats, others.map(ImageFormat::name).collect());
}

/// Reports whether the walker maps data of a file, and a guest reads bytes there that are not zeros. If the file is a
/// descriptor, it is also the file of all extents.
fn has_data(name: &str, file: &[u8]) -> bool {
    let format = match probe(file).unwrap() {
        ImageFormat::Raw => ImageFormat::Vpc,
        format => format,
    };
    let extents: Vec<Arc<&[u8]>> = (0..MAX_EXTENT_FILES).map(|_| Arc::new(file)).collect();
    let chain = [Layer { image: &file, data_file: None, extents: &extents }];
    let disk = Disk::open_as(format, &chain).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut found = Vec::new();
    let mut scratch = WalkScratch::default();
    let walked = map_extents(&disk, Window::ALL, &mut scratch, &mut |extent: Extent| {
        found.extend(extent.mapping.data.then_some(extent.start));
        ControlFlow::Continue(())
    });
    walked.unwrap_or_else(|error| panic!("{name}: {error}"));
    found.into_iter().any(|start| {
        let mut bytes = [0; 512];
        read(&disk, start, &mut bytes, &mut scratch).unwrap();
        bytes.iter().any(|byte| *byte != 0)
    })
}

/// The operations that the explanation describes only by their text.
const SAYS_IT_ALL: [&str; 4] = ["place", "header", "fail_read", "bytes"];

/// The oracles and QEMU test an operation only if it has an effect in a seed. A reader sees the effect only if the
/// explanation describes it.
#[test]
fn each_operation_has_an_effect_in_a_seed_and_is_explained() {
    let all: BTreeSet<_> = Operation::OPCODES.iter().map(|(_, name)| *name).collect();
    let (mut effective, mut explained) = (BTreeSet::new(), BTreeSet::from(SAYS_IT_ALL));
    for target in [TargetKind::MapExtents, TargetKind::Hostile, TargetKind::Writes] {
        for (_, program) in texts(target.name()) {
            let (input, names) = (program.encode(), FileNames::default());
            let explanation = explain(&input, target.limits(), usize::MAX, &names);
            let steps = explanation.steps.iter().filter(|step| step.effect != Some(Effect::None));
            for step in steps {
                let name = step.operation.expect("a seed is canonical").name();
                effective.insert(name);
                assert!(!SAYS_IT_ALL.contains(&name) || step.changes.is_empty(), "{name}");
                if !step.changes.is_empty() {
                    explained.insert(name);
                }
            }
        }
    }
    let missing = |there: &BTreeSet<_>| all.difference(there).copied().collect::<Vec<_>>();
    let without = missing(&effective);
    assert!(without.is_empty(), "have no effect in any seed of corpus/text/: {without:?}");
    let without = missing(&explained);
    assert!(without.is_empty(), "are not explained (Vm::clamped, explain/steps.rs): {without:?}");
}

#[test]
fn seeds_reach_everything() {
    let mut kinds = BTreeSet::new();
    let mut parts = BTreeSet::new();
    let (mut sizes, mut orders) = (BTreeSet::new(), BTreeSet::new());
    for (_, program) in texts("map_extents") {
        let plan = program.prologue.plan();
        if plan.file.format == ImageFormat::Qcow2 {
            sizes.insert(plan.geometry.cluster_size.bits());
            orders.insert(plan.geometry.refcount_order);
        }
        let mut harness = Harness::new(Walker::default());
        libfuzzer::report(harness.run(&program.encode(), Checks::AtCheckpoints));
        kinds.extend(harness.actual().iter().map(|extent| extent.mapping.kind()));
    }
    for (_, program) in texts("hostile") {
        for operation in &program.operations {
            if let Operation::Patch { part, .. } = operation {
                parts.insert(*part);
            }
        }
    }
    assert!(parts.into_iter().eq(Part::ALL));
    assert!(sizes.into_iter().eq(9..=21));
    assert!(orders.into_iter().eq(0..=6));
    let every_kind = [
        "compressed",
        "normal",
        "unallocated",
        "unallocated subcluster",
        "zero-allocated",
        "zero-plain",
    ];
    assert!(kinds.iter().eq(every_kind.iter()), "{kinds:?}");
}
