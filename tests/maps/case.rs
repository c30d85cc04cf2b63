//! The files in `tests/maps/`.

use test_support::prelude::*;

/// The line between the program and its extents.
const HEADING: &str = "; Extents:\n";

/// A program, and the extents that are expected of its image.
pub struct Case {
    pub name: String,
    pub path: PathBuf,
    pub program: Program,
    /// The text up to the extents.
    head: String,
    /// The extents, a line each; `None` before the case is blessed.
    expected: Option<Vec<String>>,
}

/// Returns all cases, by name.
pub fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/maps");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "txt")).collect();
    paths.sort();
    let case = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        Case::parse(&path, &text).unwrap_or_else(|what| panic!("{}: {what}", path.display()))
    };
    paths.into_iter().map(case).collect()
}

impl Case {
    /// Reads the text of a file.
    fn parse(path: &Path, text: &str) -> Result<Self, String> {
        let caption = text.lines().next().and_then(|line| line.strip_prefix("; "));
        if caption.is_none_or(|caption| caption.len() < 20 || !caption.ends_with(['.', ':', ','])) {
            return Err("line 1: expected '; ' and a sentence about what the case shows".into());
        }
        let program = assemble(text).described()?;
        let (head, tail) = text.split_once(HEADING).unzip();
        let extent = |line: &str| {
            let extent = line.strip_prefix("; ").map(str::to_string);
            extent.ok_or(format!("'{line}', expected '; ' and an extent"))
        };
        let expected = tail.map(|tail| tail.lines().map(extent).collect()).transpose()?;
        let head = head.unwrap_or(text).to_string();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, path: path.to_path_buf(), program, head, expected })
    }

    /// Returns the first line in which `extents` differ from what is expected, if there is one.
    pub fn fault(&self, extents: &[Extent]) -> Option<String> {
        let name = &self.name;
        let Some(expected) = &self.expected else {
            return Some(format!("{name}: no extents, expected {}", HEADING.trim_end()));
        };
        let found: Vec<String> = extents.iter().map(Extent::to_string).collect();
        let same = expected.iter().zip(&found).take_while(|(one, other)| one == other).count();
        let line = |lines: &[String]| lines.get(same).cloned().unwrap_or("no extent".to_string());
        let fault = || {
            let (expected, found) = (line(expected), line(&found));
            format!("{name}: extent {same}: expected {expected}, found {found}")
        };
        (*expected != found).then(fault)
    }

    /// Reports whether a line about an extent has `word` in it.
    pub fn mentions(&self, word: &str) -> bool {
        self.expected.iter().flatten().any(|line| line.contains(word))
    }

    /// Returns the text with `extents` in place of the expected ones.
    pub fn blessed(&self, extents: &[Extent]) -> String {
        let lines = extents.iter().map(|extent| format!("; {extent}\n"));
        format!("{}{HEADING}{}", self.head, lines.collect::<String>())
    }
}

#[test]
fn a_malformed_file_is_refused() {
    let parse = |text: &str| Case::parse(Path::new("a.txt"), text).map(|case| case.expected);
    let refusal = |text: &str| parse(text).unwrap_err();
    let sound =
        format!("; A disk that nothing is in.\n{}; Extents:\n; one\n; two\n", Program::default());
    assert_eq!(parse(&sound).unwrap().unwrap(), ["one", "two"]);
    assert!(
        refusal(&sound.replacen("; ", "", 1)).starts_with("line 1: expected '; ' and a sentence")
    );
    assert!(refusal(&sound.replacen("image ", "imago ", 1)).starts_with("line 2: "));
    assert!(refusal(&sound.replace("; two", "two")).starts_with("line 5: "));
    assert_eq!(refusal(&sound.replace("; two", ";two")), "';two', expected '; ' and an extent");
}

#[test]
fn blessing_changes_nothing_but_the_extents() {
    let text = format!("; A disk that nothing is in.\n{}; A comment.\n", Program::default());
    let parse = |text: &str| Case::parse(Path::new("a.txt"), text).unwrap();
    // A case that is not blessed fails, even if there is no extent.
    assert!(parse(&text).fault(&[]).unwrap().contains("no extents"));
    let blessed = parse(&text).blessed(&[]);
    assert_eq!(blessed, format!("{text}; Extents:\n"));
    assert_eq!(parse(&blessed).fault(&[]), None);
    assert_eq!(parse(&blessed).blessed(&[]), blessed);
}
