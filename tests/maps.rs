//! Maps of small images: each file in `tests/maps/` is a program, and the extents of the image that it builds. Our
//! walker, the reference model, the engine of `examples/engine.rs` and the installed qemu-img must all answer as the
//! file says.
//!
//! A file is text that `qcowfuzz asm` reads: a caption, the program, and the extents as comments behind `; Extents:`.
//! To add a case, write a caption and a program, and run `QCOWFUZZ_BLESS=1 cargo test --test maps`, which writes the
//! extents of the walker behind it, names the files that it changed, and fails.

#[path = "maps/case.rs"]
mod case;
#[path = "../examples/engine.rs"]
#[allow(dead_code, missing_docs)]
mod engine;

use test_support::prelude::*;

use case::{Case, cases};
use engine::Small;
use qcowfuzz::harness::Pipeline;
use qcowfuzz::internal::images::export;

/// Calls `judge` with the files that the program of `case` builds.
fn with_images<T>(case: &Case, judge: impl FnOnce(&Images) -> T) -> T {
    let mut harness = Harness::new(Walker::default());
    harness.build(&case.program.encode());
    judge(harness.images())
}

fn layers(images: &Images) -> Vec<Layer<'_>> {
    images.layers().map(|files| files.layer().erased(&[])).collect()
}

/// Returns the extents of the whole disk, as an engine maps it.
fn map<E: Engine>(engine: &mut E, images: &Images) -> Result<Vec<Extent>, EngineError> {
    let mut extents = Vec::new();
    let chain = Chain::new(images);
    engine.begin_run();
    let mut disk = engine.open(&chain)?;
    disk.map(Window::ALL, &mut |extent: Extent| {
        extents.push(extent);
        ControlFlow::Continue(())
    })?;
    Ok(extents)
}

/// Reports whether an engine claims all features that the images of `case` need: then its program is not folded.
fn supports(engine: impl Engine, case: &Case) -> bool {
    let input = case.program.encode();
    *Pipeline::default().load(&input, &engine.facts().claims) == input
}

/// Returns the cases that an engine supports.
fn supported<E: Engine>(engine: impl Fn() -> E) -> Vec<Case> {
    cases().into_iter().filter(|case| supports(engine(), case)).collect()
}

/// Returns a line for each case that an engine maps differently.
fn faults<E: Engine>(engine: impl Fn() -> E, cases: &[Case]) -> Vec<String> {
    let fault = |case: &Case| match with_images(case, |images| map(&mut engine(), images)) {
        Ok(extents) => case.fault(&extents),
        Err(error) => Some(format!("{}: {error}", case.name)),
    };
    cases.iter().filter_map(fault).collect()
}

/// Replaces the extents of each file that differ from the walker's, and returns the names of these files.
fn bless() -> Vec<String> {
    let mut blessed = Vec::new();
    for case in cases() {
        let extents = with_images(&case, |images| map(&mut Walker::default(), images)).unwrap();
        if case.fault(&extents).is_some() {
            fs::write(&case.path, case.blessed(&extents)).unwrap();
            blessed.push(case.name);
        }
    }
    blessed
}

#[test]
fn the_walker_maps_every_case() {
    if std::env::var_os("QCOWFUZZ_BLESS").is_some() {
        let blessed = bless();
        let names = blessed.join(", ");
        assert!(
            blessed.is_empty(),
            "QCOWFUZZ_BLESS: look at what is new in {names}, and run again"
        );
    }
    let supported = supported(Walker::default);
    let faults = faults(Walker::default, &supported);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(supported.len(), cases().len());
    assert!(supported.len() >= 40, "{} cases", supported.len());
}

#[test]
fn the_model_expects_every_case_and_the_oracles_pass_it() {
    for case in cases() {
        let mut harness = Harness::new(Walker::default());
        let run = harness.run(&case.program.encode(), Checks::AfterEach);
        let outcome = run.unwrap_or_else(|found| panic!("{}: {}", case.name, found.violation));
        assert_eq!(case.fault(harness.expected()), None);
        assert_eq!(
            outcome.effective, outcome.operations,
            "{}: an operation does nothing",
            case.name
        );
    }
}

#[test]
fn the_example_engine_maps_every_case_that_it_supports() {
    let sound = || Small { sees_zero_flag: true };
    let supported = supported(sound);
    let faults = faults(sound, &supported);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // It declares no extended L2 entries, backing files and data files.
    let (supported, unsupported) = (supported.len(), cases().len() - supported.len());
    assert!(supported >= 26 && unsupported >= 13, "{supported} supported, {unsupported} not");
}

#[test]
fn an_engine_that_ignores_zeros_fails_where_there_are_zeros() {
    let wrong = || Small { sees_zero_flag: false };
    let supported = supported(wrong);
    let faults = faults(wrong, &supported);
    let names: Vec<_> = faults.iter().map(|fault| fault.split(':').next().unwrap()).collect();
    let zeros = supported.iter().filter(|case| case.mentions("zero-"));
    assert!(names.len() >= 5 && zeros.map(|case| &case.name).eq(names), "{faults:#?}");
}

#[test]
fn qemu_img_maps_every_case() {
    let Some(()) = qemu::tools() else { return };
    let (mut faults, mut judged) = (Vec::new(), 0);
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("layer.qcow2");
        let theirs = with_images(&case, |images| {
            for (name, image) in images.files(&FileNames::default()) {
                let path = name.map_or(path.clone(), |name| path.with_file_name(name));
                export::write(image, &File::create(path).unwrap(), Holes::Fill).unwrap();
            }
            // The files have no holes, so that qemu-img asks for none.
            compare::maps(&path, &layers(images), Window::ALL)
        });
        faults.extend(theirs.map_or_else(Some, |extents| case.fault(&extents)));
        judged += 1;
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(judged, cases().len());
}

#[test]
fn cases_show_every_kind_of_extent() {
    let mut seen = BTreeSet::new();
    for case in cases() {
        let extents = with_images(&case, |images| map(&mut Walker::default(), images)).unwrap();
        seen.extend(extents.iter().map(|it| (it.mapping.kind(), it.mapping.depth.min(2))));
    }
    let every = ["compressed", "normal", "unallocated", "zero-allocated", "zero-plain"];
    let every = every.into_iter().flat_map(|kind| [0, 1].map(|depth| (kind, depth)));
    let also = [("unallocated subcluster", 0), ("normal", 2), ("unallocated", 2)];
    let expected: BTreeSet<_> = every.chain(also).collect();
    let missing: Vec<_> = expected.difference(&seen).collect();
    assert!(missing.is_empty(), "no extents like {missing:?}");
}
