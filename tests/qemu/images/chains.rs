//! Chains that qemu makes: qcow2 on qcow2 and on raw files with holes, with data files, of any sizes. The test opens
//! the files by the names in them, and compares our map and our reads with those of qemu-img.

use std::os::unix::fs::FileExt;
use test_support::prelude::*;

use qcowfuzz::walkers::chain::FileChain;
use test_support::qemu::WHOLE_DISK_BYTES;

const CHAINS: u64 = 120;

/// A chain that a seed determines.
struct Recipe(u64);

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chain {}", self.0)
    }
}

#[test]
fn qemu_agrees_about_chains_that_it_made() {
    let Some(()) = qemu::tools() else { return };
    let recipes: Vec<_> = (0..CHAINS).map(Recipe).collect();
    let tally: Tally = qemu::judge_all(&recipes, || (), |(), recipe| judge(recipe));
    tally.assert_at_least(&[
        ("chains", CHAINS),
        ("layers", 300),
        ("raw bases", 40),
        ("data files", 80),
        ("formats that no extension names", 60),
        ("extents", 1000),
        ("windows", 4 * CHAINS),
    ]);
}

fn judge(recipe: &Recipe) -> Checked<Tally> {
    let dir = tempfile::tempdir().described()?;
    let mut making =
        Making { entropy: Entropy::new(recipe.0), dir: dir.path(), tally: Tally::default() };
    making.tally.add("chains", 1);
    let top = making.chain()?;
    let chain = FileChain::open(&top, Some(ImageFormat::Qcow2)).described()?;
    let layers: Vec<Layer> = chain.layers().into_iter().map(|it| it.erased(&[])).collect();
    let Making { mut entropy, mut tally, .. } = making;
    tally.add("layers", layers.len() as u64);
    let extents = compare::maps(&top, &layers, Window::ALL)?;
    tally.add("extents", extents.len() as u64);
    for window in compare::windows(&mut entropy, &extents, u64::MAX, 4) {
        compare::maps(&top, &layers, window)?;
        tally.add("windows", 1);
    }
    for path in images_in(dir.path())? {
        let file = FileStorage::open(&path).described()?;
        compare::counts(&path, &[&file])?;
    }
    let length_bytes = extents.last().and_then(Extent::end).map_or(0, GuestOffset::get);
    let all = Window { start: GuestOffset::ZERO, length_bytes };
    assert!(length_bytes <= WHOLE_DISK_BYTES);
    let theirs = qemu::convert(&top, &dir.path().join("converted"))?;
    compare::same_bytes("our read", 0, &compare::read(&layers, all)?, &theirs)?;
    // Compares windows of each layer, as a guest would read them.
    let inside = |window: &Window| window.start.get() + window.length_bytes <= length_bytes;
    let mut windows = compare::windows(&mut entropy, &extents, 3000, 6);
    windows.retain(|window| window.length_bytes > 0 && inside(window));
    for (window, theirs) in windows.iter().zip(qemu::read(&top, &windows)?) {
        let start = window.start.get();
        compare::same_bytes("our read", start, &compare::read(&layers, *window)?, &theirs)?;
    }
    Ok(tally)
}

/// Returns every layer that is an image.
fn images_in(dir: &Path) -> Checked<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).described()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| path.extension() == Some(OsStr::new("qcow2"))).collect())
}

struct Making<'d> {
    entropy: Entropy,
    dir: &'d Path,
    tally: Tally,
}

impl Making<'_> {
    /// Makes the chain and returns its top.
    fn chain(&mut self) -> Checked<PathBuf> {
        let mut size = self.size();
        let raw = self.entropy.one_in(2);
        let mut below = match raw {
            true => self.raw_file(size)?,
            false => self.image(0, size, None)?,
        };
        let mut format = if raw { "raw" } else { "qcow2" };
        self.tally.add("raw bases", u64::from(raw));
        for height in 1..2 + self.entropy.below(3) {
            size = if self.entropy.one_in(3) { size } else { self.size() };
            below = self.image(height, size, Some((&below, format)))?;
            format = "qcow2";
        }
        Ok(below)
    }

    fn size(&mut self) -> u64 {
        match self.entropy.below(8) {
            0 => 0,
            1 => self.entropy.below(1 << 16),
            _ => self.entropy.below(8 << 20),
        }
    }

    /// Creates a raw file with pieces of data and holes between them.
    fn raw_file(&mut self, size: u64) -> Checked<PathBuf> {
        let path = self.dir.join("base.raw");
        let described = |error: std::io::Error| error.to_string();
        let file = File::create(&path).map_err(described)?;
        file.set_len(size).map_err(described)?;
        for _ in 0..self.entropy.below(12) {
            let start = self.entropy.below(size + 1);
            let length = self.entropy.below(1 << 17).min(size - start);
            file.write_all_at(&vec![0xB5; length as usize], start).map_err(described)?;
        }
        Ok(path)
    }

    /// Creates an image with data, zeros and holes, on top of `backing`.
    fn image(
        &mut self,
        height: u64,
        size: u64,
        backing: Option<(&Path, &str)>,
    ) -> Checked<PathBuf> {
        let path = self.dir.join(format!("{height}.qcow2"));
        // qemu-img counts sizes in sectors.
        let size = size.next_multiple_of(512);
        let cluster_bits = 9 + self.entropy.below(13);
        let extended = cluster_bits >= 14 && self.entropy.one_in(3);
        let mut options = format!(
            "cluster_size={},extended_l2={}",
            1u64 << cluster_bits,
            if extended { "on" } else { "off" }
        );
        let external = self.entropy.one_in(3);
        if external {
            self.tally.add("data files", 1);
            options += &format!(",data_file={height}.data");
            if backing.is_none() && self.entropy.one_in(2) {
                options += ",data_file_raw=on";
            }
        }
        let mut arguments =
            vec!["create".into(), "-q".into(), "-f".into(), "qcow2".into(), "-o".into()];
        arguments.push(options);
        let mut hides_format = false;
        if let Some((name, format)) = backing {
            let name = name.file_name().and_then(OsStr::to_str).unwrap_or_default();
            arguments.extend(["-b".into(), name.to_string(), "-F".into(), format.to_string()]);
            hides_format = self.entropy.one_in(3);
        }
        let mut arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let size_text = size.to_string();
        // The image is the last argument, because it determines the current directory. So the size is an option.
        let size_option = format!("size={size_text}");
        arguments.extend([OsStr::new("-o"), OsStr::new(&size_option), path.as_os_str()]);
        qemu::img(&arguments)?;
        if hides_format {
            self.tally.add("formats that no extension names", 1);
            forget_format(&path)?;
        }
        let commands = self.commands(size, 1 << cluster_bits, external);
        if !commands.is_empty() {
            qemu::io_with(&path, &["-f", "qcow2"], &commands)?;
        }
        Ok(path)
    }

    fn commands(&mut self, size: u64, cluster: u64, external: bool) -> Vec<String> {
        let mut commands = Vec::new();
        for n in 0..self.entropy.below(10) {
            let start = self.entropy.below(size + 1) & !511;
            let length = (1 + self.entropy.below(1 << 17)).next_multiple_of(512).min(size - start);
            if length == 0 {
                continue;
            }
            let pattern = 1 + n;
            commands.push(match self.entropy.below(6) {
                0 => format!("write -q -z {start} {length}"),
                1 => format!("write -q -z -u {start} {length}"),
                2 => format!("discard -q {start} {length}"),
                // Compressed writes need whole clusters that are not allocated.
                3 if !external && commands.is_empty() && size >= cluster => {
                    format!("write -q -c -P {pattern} 0 {cluster}")
                }
                _ => format!("write -q -P {pattern} {start} {length}"),
            });
        }
        commands
    }
}

/// Replaces the type of the extension that names the backing file's format by an unknown type.
fn forget_format(path: &Path) -> Checked<()> {
    let mut bytes = fs::read(path).described()?;
    let magic = 0xE279_2ACAu32.to_be_bytes();
    let at = bytes[..512].windows(4).position(|four| four == magic).ok_or("no format is said")?;
    bytes[at..at + 4].copy_from_slice(b"none");
    fs::write(path, bytes).described()
}

#[test]
fn a_count_that_is_too_low_or_not_expected_fails() {
    let mut tally = Tally::default();
    tally.add("images", 3);
    let mut more = Tally::default();
    more.add("images", 1);
    more.add("walks", 1);
    tally += more;
    assert_eq!(tally.faults(&[("images", 4), ("walks", 1)]), Vec::<String>::new());
    assert_eq!(tally.faults(&[("images", 5), ("walks", 1)]).len(), 1);
    assert_eq!(tally.faults(&[("images", 4)]).len(), 1);
    assert_eq!(tally.faults(&[("images", 4), ("walks", 1), ("reads", 1)]).len(), 1);
}
