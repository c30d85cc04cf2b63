//! The sizes that new images need: `measure` agrees with the installed qemu-img about drawn options, for empty disks
//! and for images of every format that qemu makes.

use test_support::prelude::*;

use super::maker::Recipe;
use crate::images::maker::Making;
use qcowfuzz::internal::cli::measure::{Source, record_of};

/// The lowest count of each comparison.
const BOUNDS: [(&str, u64); 13] = [
    ("empty disks", 300),
    ("raw sources", 70),
    ("qcow2 sources", 300),
    ("vpc sources", 45),
    ("vmdk sources", 100),
    ("vhdx sources", 45),
    ("vdi sources", 45),
    ("chains", 70),
    ("snapshots", 40),
    ("bitmaps", 30),
    ("sources with holes and data", 170),
    ("refused", 80),
    ("as JSON", 400),
];

/// A source to make, and the seed of everything that is drawn.
#[derive(Clone, Copy, Debug)]
enum Case {
    /// An empty disk.
    Empty(u64),
    /// A qcow2 image with a history, and an overlay.
    Qcow2(u64),
    /// An image with these options of `qemu-img create`.
    Other(&'static str, &'static str, u64),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The other formats, and options of each.
const OTHERS: &[(&str, &str)] = &[
    ("raw", "preallocation=off"),
    ("raw", "preallocation=falloc"),
    ("raw", "preallocation=full"),
    ("vpc", "subformat=dynamic"),
    ("vpc", "subformat=fixed"),
    ("vhdx", "subformat=dynamic"),
    ("vhdx", "subformat=fixed"),
    ("vdi", "static=off"),
    ("vdi", "static=on"),
    ("vmdk", "subformat=monolithicSparse"),
    ("vmdk", "subformat=monolithicFlat"),
    ("vmdk", "subformat=twoGbMaxExtentSparse"),
    ("vmdk", "subformat=streamOptimized"),
];

fn cases() -> Vec<Case> {
    let empty = (0..60).map(Case::Empty);
    // Each cluster size has several refcount widths.
    let qcow2 = (0..78).map(Case::Qcow2);
    let others = (0..8).flat_map(|seed| {
        OTHERS.iter().map(move |(format, options)| Case::Other(format, options, seed))
    });
    empty.chain(qcow2).chain(others).collect()
}

#[test]
fn we_measure_as_qemu_img_does() {
    let Some(()) = qemu::tools() else { return };
    let dir = || tempfile::tempdir().unwrap();
    let tally: Tally = qemu::judge_all(&cases(), dir, |dir, case| {
        let judged = judge(*case, dir.path());
        for file in fs::read_dir(dir.path()).unwrap().flatten() {
            fs::remove_file(file.path()).unwrap();
        }
        judged
    });
    tally.assert_at_least(&BOUNDS);
}

fn judge(case: Case, dir: &Path) -> Checked<Tally> {
    let mut tally = Tally::default();
    match case {
        Case::Empty(seed) => {
            let mut entropy = Entropy::new(seed ^ 0xE317);
            for _ in 0..5 {
                let size = size_of_disk(&mut entropy);
                let question = Question::draw(&mut entropy, 5);
                question.ask(Source::Empty(size), &mut tally)?;
                tally.add("empty disks", 300);
            }
        }
        Case::Qcow2(seed) => judge_qcow2(seed, dir, &mut tally)?,
        Case::Other(format, options, seed) => {
            let mut entropy = Entropy::new(seed ^ options.len() as u64);
            let path = dir.join("made");
            let size = 512 * (1 + entropy.below(20_000));
            create(&path, format, options, size, &[])?;
            // QEMU cannot write to a part of a compressed image.
            if options != "subformat=streamOptimized" {
                change(&path, format, size, &mut entropy)?;
            }
            for _ in 0..3 {
                ask_about(&path, format, None, &mut entropy, &mut tally)?;
            }
            if format == "vmdk" && options == "subformat=monolithicSparse" {
                let over = dir.join("over");
                create(&over, "vmdk", options, size, &[("-b", &path), ("-F", Path::new("vmdk"))])?;
                change(&over, format, size, &mut entropy)?;
                ask_about(&over, format, None, &mut entropy, &mut tally)?;
                tally.add("chains", 70);
            }
        }
    }
    Ok(tally)
}

/// Makes an image with a history, and asks about its disk, the disks of its snapshots, and the disk of an overlay.
fn judge_qcow2(seed: u64, dir: &Path, tally: &mut Tally) -> Checked<()> {
    let recipe = Recipe::new(seed);
    let mut making = Making::begin(&recipe, dir)?;
    for _ in 0..1 + seed % 2 {
        if making.with_bitmaps() {
            making.manage_bitmaps()?;
        }
        making.change()?;
        making.manage()?;
    }
    let story = making.story.join("\n");
    let with_story = |error: String| format!("{error}\n{story}");
    let path = making.path.clone();
    let mut entropy = Entropy::new(seed ^ 0x3EA5);
    for _ in 0..3 {
        ask_about(&path, "qcow2", None, &mut entropy, tally).map_err(with_story)?;
    }
    if seed % 4 == 1 {
        let copy = making.compressed_copy()?;
        ask_about(&copy, "qcow2", None, &mut entropy, tally).map_err(with_story)?;
    }
    let size = virtual_size(&path)?;
    // A snapshot needs refcounts above 1; one of a disk of another size needs version 3.
    if recipe.refcount_order > 3 && !recipe.version_2 {
        qemu::img_at(&["snapshot", "-c", "last"], &path, &[])?;
        change(&path, "qcow2", size, &mut entropy)?;
        if making.with_bitmaps() || entropy.one_in(3) {
            let wanted = ["last", "snapshot.name=last", "1", "none"][seed as usize % 4];
            ask_about(&path, "qcow2", Some(wanted), &mut entropy, tally).map_err(with_story)?;
        } else {
            let other = (512 + entropy.below(2 * size + (4 << 20))) / 512 * 512;
            qemu::img_at(
                &["resize", "-q", "--shrink", "-f", "qcow2"],
                &path,
                &[&other.to_string()],
            )?;
            ask_about(&path, "qcow2", Some("last"), &mut entropy, tally).map_err(with_story)?;
        }
        tally.add("snapshots", 40);
    }
    let over = dir.join("over");
    let size = (virtual_size(&path)? / 2 + entropy.below(size + 4096)) / 512 * 512;
    // The largest disk with clusters of 4 KiB is larger.
    let size = size.min(1 << 42);
    let options = ["cluster_size=4k", "extended_l2=on"][seed as usize % 2];
    create(&over, "qcow2", options, size, &[("-b", &path), ("-F", Path::new("qcow2"))])?;
    change(&over, "qcow2", size, &mut entropy)?;
    tally.add("chains", 70);
    let wanted = match entropy.one_in(3) {
        true => {
            qemu::img_at(&["snapshot", "-c", "7"], &over, &[])?;
            qemu::img_at(&["resize", "-q", "-f", "qcow2"], &over, &["+3M"])?;
            tally.add("snapshots", 40);
            Some("7")
        }
        false => None,
    };
    ask_about(&over, "qcow2", wanted, &mut entropy, tally).map_err(with_story)
}

/// Asks a question about the image at `path`.
fn ask_about(
    path: &Path,
    format: &str,
    snapshot: Option<&str>,
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<()> {
    // QEMU decides by the blocks of a file whether it looks for holes, and a file system may allocate them late.
    fs::File::open(path).and_then(|file| file.sync_all()).described()?;
    tally.add(format!("{format} sources"), 1);
    Question::draw(entropy, 12).ask(Source::Image { path, format: Some(format), snapshot }, tally)
}

const REFCOUNT_BITS: &[&str] = &[
    "refcount_bits=1",
    "refcount_bits=2",
    "refcount_bits=4",
    "refcount_bits=010",
    "refcount_bits=0x10",
    "refcount_bits=32",
    "refcount_bits=64",
];

const PREALLOCATION: &[&str] =
    &["preallocation=off", "preallocation=metadata", "preallocation=falloc", "preallocation=full"];

/// Options that are wrong, or wrong with some of the others.
const OFTEN_WRONG: &[&str] = &[
    "compat=0.10",
    "compat=2",
    "refcount_bits=128",
    "cluster_size=3k",
    "extended_l2=on",
    "preallocation=some",
    "size=1P",
    "size=4E",
    "block_size=1",
];

/// A new image, and the form of the answer.
struct Question {
    target_format: &'static str,
    options: Vec<String>,
    json: bool,
}

impl Question {
    /// Draws a question. One in `wrong` has an option that may be wrong.
    fn draw(entropy: &mut Entropy, wrong: u64) -> Self {
        let json = entropy.one_in(2);
        if entropy.one_in(8) {
            let options = if entropy.one_in(2) { vec!["size=3k".to_string()] } else { Vec::new() };
            return Self { target_format: "raw", options, json };
        }
        let bits = if entropy.one_in(4) { 16 } else { 9 + entropy.below(13) };
        let mut options = vec![format!("cluster_size={}", 1 << bits)];
        let mut add = |times: u64, choices: &[&str]| {
            if entropy.one_in(times) {
                let index = entropy.below(choices.len() as u64) as usize;
                options.push(choices[index].to_string());
            }
        };
        add(2, REFCOUNT_BITS);
        add(2, PREALLOCATION);
        let extended_l2: &[&str] = match bits >= 14 {
            true => &["extended_l2=on", "extended_l2"],
            false => &["noextended_l2"],
        };
        add(2, extended_l2);
        add(8, &["backing_file=base,,qcow2", "backing_file=base,backing_fmt=raw"]);
        add(6, &["lazy_refcounts=on", "compression_type=zstd", "data_file=data,data_file_raw=on"]);
        add(6, &["compat=1.1", "size=1M", "refcount_bits=16,compat=0.10"]);
        add(wrong, OFTEN_WRONG);
        Self { target_format: "qcow2", options, json }
    }

    /// Compares the exit codes and the outputs.
    fn ask(&self, source: Source, tally: &mut Tally) -> Checked<()> {
        let mut words = vec!["measure", "-O", self.target_format];
        words.extend(self.options.iter().flat_map(|option| ["-o", option]));
        if self.json {
            words.push("--output=json");
        }
        let size;
        let mut arguments = Vec::new();
        match source {
            Source::Empty(size_bytes) => {
                size = size_bytes.to_string();
                words.extend(["--size", &size]);
            }
            Source::Image { path, format, snapshot } => {
                words.extend(format.iter().flat_map(|format| ["-f", format]));
                words.extend(snapshot.iter().flat_map(|snapshot| ["-l", snapshot]));
                arguments.push(path.as_os_str());
            }
        }
        let arguments = [words.iter().map(OsStr::new).collect(), arguments].concat();
        let theirs = qemu::run("qemu-img", &arguments)?;
        let ours = record_of(source, self.target_format, &self.options);
        let mut printed = Vec::new();
        let code = match &ours {
            Ok(record) if self.json => record.print_json(&mut printed).map(|()| 0),
            Ok(record) => record.print(&mut printed).map(|()| 0),
            Err(_) => Ok(1),
        };
        let code = code.described()?;
        if theirs.status.code() != Some(code) || theirs.stdout != printed {
            let printed = String::from_utf8_lossy(&printed);
            let theirs = qemu::failure("qemu-img", &arguments, &theirs);
            return Err(format!("ours: {code}, {:?}\n{printed}theirs: {theirs}", ours.err()));
        }
        self.count(&printed, source, tally);
        Ok(())
    }

    /// Counts a comparison without a disagreement.
    fn count(&self, printed: &[u8], source: Source, tally: &mut Tally) {
        tally.add("as JSON", u64::from(self.json));
        let printed = String::from_utf8_lossy(printed);
        let numbers: Vec<u64> = printed
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .collect();
        // JSON begins with the bitmaps; the text ends with them.
        let (required, full, bitmaps) = match (numbers.as_slice(), self.json) {
            (&[required, full], _) => (required, full, 0),
            (&[bitmaps, required, full], true) => (required, full, bitmaps),
            (&[required, full, bitmaps], false) => (required, full, bitmaps),
            _ => return tally.add("refused", 80),
        };
        tally.add("bitmaps", u64::from(bitmaps > 0));
        let has_source = matches!(source, Source::Image { .. });
        tally.add("sources with holes and data", u64::from(has_source && required < full));
    }
}

/// Draws the size of a disk, from nothing to more than QEMU creates.
fn size_of_disk(entropy: &mut Entropy) -> u64 {
    let bits = entropy.below(63);
    entropy.below(1 << bits)
}

/// Creates an image. `named` are options of the command with names of files or formats.
fn create(
    path: &Path,
    format: &str,
    options: &str,
    size: u64,
    named: &[(&str, &Path)],
) -> Checked<()> {
    let mut arguments = ["create", "-q", "-f", format, "-o", options].map(OsStr::new).to_vec();
    arguments
        .extend(named.iter().flat_map(|(option, value)| [OsStr::new(*option), value.as_os_str()]));
    let size = size.to_string();
    arguments.extend([path.as_os_str(), OsStr::new(&size)]);
    qemu::img(&arguments).map(drop)
}

/// Writes data and zeros to an image of `size` bytes, and discards some.
fn change(path: &Path, format: &str, size: u64, entropy: &mut Entropy) -> Checked<()> {
    if size == 0 {
        return Ok(());
    }
    let mut commands = Vec::new();
    for _ in 0..1 + entropy.below(6) {
        let at = entropy.below(size) / 512 * 512;
        let length = (512 * (1 + entropy.below(400))).min(size - at);
        let verb = ["write -q -P 7", "write -q -P 7", "write -q -z", "discard -q"];
        commands.push(format!("{} {at} {length}", verb[entropy.below(4) as usize]));
    }
    qemu::io_with(path, &["-f", format, "-t", "unsafe"], &commands).map(drop)
}

fn virtual_size(path: &Path) -> Checked<u64> {
    qemu::info(path)?["virtual-size"].as_u64().ok_or_else(|| "no size".to_string())
}
