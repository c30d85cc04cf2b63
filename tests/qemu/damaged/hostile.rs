//! Damaged images, judged by qemu: the installed qemu-img opens and walks the same images as our walker, with the same
//! extents. If both fail on the way, the shorter list of extents is the beginning of the longer one. The rules of the
//! oracle `refusal` name the images that qemu-img does not open.

use crate::images::{check, info};
use qcowfuzz::formats::qcow2::entry::Layout;
use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Part;
use qcowfuzz::internal::images::damage::Transform;
use qcowfuzz::internal::images::export;
use qcowfuzz::internal::images::format::list::drawer;
use qcowfuzz::internal::programs::operand::{DataIn, Number};
use qcowfuzz::walkers;
use qcowfuzz::walkers::MapError;

/// The number of images.
const IMAGES: usize = 480;
/// The number of pairs of a part and a transform.
const PAIRS: usize = Part::OF_QCOW2 * Transform::ALL.len();
/// The length of the longest file that is judged. In a longer one, a truncated refcount table takes qemu-img seconds.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// The highest number of L2 tables of a disk, because qemu-img visits each table, including empty ones.
const MAX_TABLES: u64 = 4096;
/// The length up to which a file is written without holes.
const MAX_FILLED_BYTES: u64 = 8 << 20;

/// The result of a walk: the error, if any, and the extents before it.
struct Walked {
    refused: Option<String>,
    extents: Vec<Extent>,
}

fn ours(path: &Path) -> Walked {
    let storage = FileStorage::open(path).unwrap();
    let mut extents = Vec::new();
    let result = Disk::open(&[Layer::alone(&storage)]).and_then(|disk| {
        let disk = disk.with_host_holes();
        let mut keep = |extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        };
        walkers::map_extents(&disk, Window::ALL, &mut WalkScratch::new(), &mut keep)
    });
    Walked { refused: result.err().map(|error: MapError| error.to_string()), extents }
}

/// Returns the walk of qemu-img. If it fails, its JSON ends in the middle.
fn theirs(path: &Path) -> Walked {
    let arguments = ["map", "--output=json", "-f", "qcow2"].map(OsStr::new);
    let arguments = [&arguments[..], &[path.as_os_str()]].concat();
    let output = qemu::run("qemu-img", &arguments).unwrap();
    let extents = qemu::beginning(&output).unwrap().into_iter();
    let failed = !output.status.success();
    let refused = failed.then(|| String::from_utf8_lossy(&output.stderr).into_owned());
    Walked { refused, extents: extents.filter(|it| it.length_bytes > 0).collect() }
}

/// Reports whether two walks differ by a named difference.
type IsNamed = fn(&Walked, &Walked) -> bool;

/// The intended differences: a name, and a function that recognizes the difference by QEMU's error.
const NAMED: &[(&str, IsNamed)] = &[(
    // The mapping does not depend on bitmaps, so our walk does not read their directory.
    "QEMU loads the bitmaps when it opens an image",
    |ours, theirs| {
        let said = theirs.refused.as_deref().unwrap_or_default();
        ours.refused.is_none() && said.contains("Could not open") && said.contains("itmap")
    },
)];

/// Returns the disagreement of two walks, if there is one.
fn disagreement(ours: &Walked, theirs: &Walked) -> Option<String> {
    let difference =
        |what: &str| Some(format!("{what}\nours {:?}\ntheirs {:?}", ours.refused, theirs.refused));
    let (one, other) = (&ours.extents, &theirs.extents);
    match (&ours.refused, &theirs.refused) {
        (None, None) if one == other => None,
        (None, None) => {
            let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
            difference(&format!("extent {same}: {:?} and {:?}", one.get(same), other.get(same)))
        }
        (Some(_), Some(_)) => {
            // The failure may have cut the last extent of each walk.
            let common = one.len().min(other.len()).saturating_sub(1);
            match one[..common] == other[..common] {
                true => None,
                false => difference("two beginnings, neither of which begins with the other"),
            }
        }
        (None, Some(_)) => difference("qemu-img refuses, and we do not"),
        (Some(_), None) => difference("we refuse, and qemu-img does not"),
    }
}

/// Returns the program of a seed with one to three attacks, which take turns through the pairs of part and transform.
fn program(rng_seed: u64, entropy: &mut Entropy) -> Program {
    let mut program = generate_any(rng_seed, 10);
    // The test opens one file by itself.
    program.prologue.data_in = DataIn::Image;
    program.operations.retain(|one| one.class() != Class::Overlays);
    let tables = "snapshot\nbitmap granularity=12 flags=in_use name=2";
    program.operations.extend(lines::operations(tables));
    let transforms = Transform::ALL.len();
    for more in 0..1 + entropy.below(3) / 2 {
        let pair = (rng_seed + more * 37) as usize % PAIRS;
        let (part, transform) = (Part::ALL[pair / transforms], Transform::ALL[pair % transforms]);
        let (depth, nth) = (Number::LOWEST, entropy.below(24) as u16);
        let value =
            [entropy.below(24) as u16, entropy.next_u64() as u16][entropy.below(2) as usize];
        program.operations.push(Operation::Patch { part, depth, nth, transform, value });
    }
    if rng_seed % 12 == 5 {
        let cut = format!("{}<<{}", 1 + entropy.below(255), entropy.below(12));
        program.operations.extend(lines::operations(&format!("truncate depth=0 cut={cut}")));
    }
    program
}

/// The images that QEMU does not open although they break no rule: the mapping does not depend on the bitmap directory.
const LOADS_BITMAPS: &str = "rules: QEMU loads the bitmaps when it opens an image";

/// Compares the rules with the answer of qemu-img, and counts the broken rule.
fn judge_rules(image: &Image, theirs: &Walked, tally: &mut Tally) -> Option<String> {
    let unopened = theirs.refused.as_deref().filter(|error| error.contains("Could not open '"));
    match (drawer(ImageFormat::Qcow2).broken_at_open(image), unopened) {
        (None, None) => {}
        (Some(_), Some(_)) => tally.add("rules: broken", 1),
        (None, Some(error)) if error.contains("itmap") && !error.contains("bitmaps_ext") => {
            tally.add(LOADS_BITMAPS, 1);
        }
        (None, Some(error)) => return Some(format!("no rule is broken; qemu-img: {error}")),
        (Some(rule), None) => return Some(format!("qemu-img opens an image that breaks: {rule}")),
    }
    None
}

/// Compares the record of an image, or the decision to refuse it, with `qemu-img info`, and counts the result.
fn judge_info(path: &Path, tally: &mut Tally) -> Option<String> {
    match info::compare_json(path, ImageFormat::Qcow2) {
        Ok(compared) => {
            tally.add(format!("info: {compared:?}"), 1);
            None
        }
        Err(what) => Some(what),
    }
}

/// Compares the check of an image with `qemu-img check`, and counts the exit codes and the named differences.
fn judge_check(path: &Path, with_human: bool, tally: &mut Tally) -> Option<String> {
    let mut judge = || {
        let check::Compared { code, has_counts, named } = check::compare_json(path)?;
        let counts = if has_counts { "counts" } else { "no counts" };
        tally.add(format!("check: exit code {code}, {counts}"), 1);
        for ((name, _), count) in check::NAMED.iter().zip(named) {
            if count > 0 {
                tally.add(*name, 1);
            }
        }
        if with_human {
            check::compare_human(path)?;
            tally.add("check: human form", 1);
        }
        qemu::Checked::Ok(())
    };
    judge().err()
}

fn save(image: &Image, path: &Path) {
    let holes = if image.length_bytes() <= MAX_FILLED_BYTES { Holes::Fill } else { Holes::Keep };
    export::write(image, &File::create(path).unwrap(), holes).unwrap();
}

/// Requires that each kind of image, answer and named difference still occurs.
fn assert_bounds(tally: &Tally) {
    let parts = Part::ALL[..Part::OF_QCOW2].iter().map(|part| part.name());
    let bounds_of = |part| [(format!("{part}: accepted"), 10), (format!("{part}: refused"), 2)];
    let patched: Vec<_> = parts.map(bounds_of).collect();
    let rules = [("rules: broken", 60), (LOADS_BITMAPS, 1)];
    let records = [("info: Same", 190), ("info: Refused", 50)];
    let bounds = [("images: accepted", 250), ("images: refused", 120)];
    let checks = [
        ("check: exit code 0, counts", 80),
        ("check: exit code 1, no counts", 100),
        ("check: exit code 1, counts", 1),
        ("check: exit code 2, counts", 100),
        ("check: exit code 3, counts", 15),
        ("check: human form", 25),
    ];
    let bounds = bounds.into_iter().chain(rules).chain(records).chain(checks);
    // If no image shows a difference, it has to be removed from the list.
    let named = NAMED.iter().map(|(name, _)| (*name, 1));
    let named = named.chain(check::NAMED.map(|(name, _)| (name, 1)));
    let patched = patched.iter().flatten().map(|(what, least)| (what.as_str(), *least));
    tally.assert_at_least(&bounds.chain(named).chain(patched).collect::<Vec<_>>());
}

/// Returns the pairs of a part and a transform that no image has.
fn missing(pairs: &BTreeSet<(Part, usize)>) -> Vec<(Part, usize)> {
    let all = Part::ALL[..Part::OF_QCOW2]
        .iter()
        .flat_map(|part| Transform::ALL.iter().map(|transform| (*part, *transform as usize)));
    all.filter(|pair| !pairs.contains(pair)).collect()
}

#[test]
fn qemu_opens_and_walks_the_same_damaged_images() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut hostile = TargetKind::Hostile.judging(Walker::default());
    let mut entropy = Entropy::new(41);
    let (mut judged, mut rng_seed) = (0, 0);
    let mut tally = Tally::default();
    let mut pairs = BTreeSet::new();
    let mut found = Vec::new();
    // Long files are left out, so some pairs take more images.
    while judged < IMAGES || pairs.len() < PAIRS && judged < 2 * IMAGES {
        rng_seed += 1;
        let program = program(rng_seed, &mut entropy);
        if let Err(failure) = hostile.run(&program.encode(), Checks::AtCheckpoints) {
            panic!("{}\n{program}", failure.violation);
        }
        let image = &hostile.pipeline().images().top().image;
        if image.length_bytes() > MAX_FILE_BYTES {
            continue;
        }
        let chain = [Layer::alone(image)];
        let slow = |disk: Disk<Image>| {
            disk.virtual_size_bytes() / disk.header().unwrap().geometry.l2_span_bytes() > MAX_TABLES
        };
        if Disk::open(&chain).is_ok_and(slow) {
            continue;
        }
        let path = dir.path().join("image.qcow2");
        save(image, &path);
        let (ours, theirs) = (ours(&path), theirs(&path));
        judged += 1;
        let verdict = if theirs.refused.is_none() { "accepted" } else { "refused" };
        tally.add(format!("images: {verdict}"), 1);
        for operation in &program.operations {
            if let Operation::Patch { part, transform, .. } = operation {
                pairs.insert((*part, *transform as usize));
                tally.add(format!("{}: {verdict}", part.name()), 1);
            }
        }
        // A further process for each image would make the test slower by a third.
        if judged % 8 < 5
            && let Some(what) = judge_info(&path, &mut tally)
        {
            found.push(format!("{what}\n{program}"));
        }
        // Two further processes for each image take a fifth of the test's time.
        if judged % 4 != 0
            && let Some(what) = judge_check(&path, judged % 16 == 1, &mut tally)
        {
            found.push(format!("{what}\n{program}"));
        }
        if let Some(what) = judge_rules(image, &theirs, &mut tally) {
            found.push(format!("{what}\n{program}"));
        }
        if let Some(what) = disagreement(&ours, &theirs) {
            match NAMED.iter().find(|(_, is_this)| is_this(&ours, &theirs)) {
                Some((name, _)) => tally.add(*name, 1),
                None => found.push(format!("{what}\n{program}")),
            }
        }
    }
    assert!(found.is_empty(), "{} disagreements\n{}", found.len(), found.join("\n\n"));
    assert_eq!(missing(&pairs), []);
    assert_bounds(&tally);
}
