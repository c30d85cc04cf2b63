//! Comments and pages are plain English: the words and the beginnings that made them hard to read do not come back. The
//! test knows the commonest riddles only; a reader has to judge the rest.

use test_support::prelude::*;

/// The folders and the files that are checked. Others join them when their sentences have been rewritten.
const FINISHED: &[&str] = &[
    "BUGS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "benches",
    "crates",
    "docs",
    "engines/src",
    "engines/tests",
    "examples",
    "fuzz/fuzz_targets",
    "src/base",
    "src/cli",
    "src/differential",
    "src/findings",
    "src/fuzzing",
    "src/harness",
    "src/images",
    "src/internal.rs",
    "src/lib.rs",
    "src/main.rs",
    "src/processes",
    "src/programs",
    "tests",
    "xtask",
];

/// The paths that are not checked: pages of measurements quote the words of their day, and this file quotes riddles.
const QUOTED: &[&str] = &["docs/results", "tests/plain_english.rs"];

/// Words that hide the verb of the field: use *prints, reports, records, passes, names*.
const WORDS: &[&str] = &["told", "tell", "tells", "telling", "whoever"];

/// Phrases that hide the actor or the thing: name it. They are also looked for in messages.
const PHRASES: &[&str] = &[
    "anybody",
    "became of",
    "becomes of",
    "came of",
    "comes of",
    "is what",
    "nobody",
    "of what",
    "so many",
    "that which",
    "those which",
    "whatever",
    "with what",
];

/// Beginnings of clauses and of later sentences that make a reader go back: the noun comes first.
const CLAUSES: &[&str] =
    &[", what ", "; what ", ": what ", ". What ", ". Of ", ". Which ", ". Whether "];

/// Beginnings of fragments. A function's documentation begins with a verb, that of a type or a field with a noun.
const BEGINNINGS: &[&str] = &[
    "What ",
    "Which.",
    "Which of ",
    "How.",
    "How many ",
    "How much ",
    "How often ",
    "How far ",
    "How long ",
    "Of ",
    "Whether ",
    "Where ",
    "Who ",
    "With what.",
];

/// A paragraph of prose: the line where it begins, and its text.
struct Paragraph {
    line: usize,
    text: String,
}

/// Returns the comments of Rust source; an empty comment line begins a new paragraph.
fn comments(source: &str) -> Vec<Paragraph> {
    let comment = |line: &str| -> Option<String> {
        let start =
            if line.trim_start().starts_with("//") { line.find("//") } else { line.find(" // ") };
        let text = &line[start?..];
        Some(text.trim_start().trim_start_matches('/').trim_start_matches('!').trim().to_string())
    };
    let mut whole_line = false;
    paragraphs(source.lines().map(|line| {
        let text = comment(line);
        // A comment behind code is a paragraph by itself.
        let continues = whole_line && line.trim_start().starts_with("//");
        whole_line = line.trim_start().starts_with("//");
        (continues, text)
    }))
}

/// Returns the prose of a page: paragraphs, items of lists and cells of tables, without blocks of code.
fn prose(page: &str) -> Vec<Paragraph> {
    let mut fenced = false;
    let mut all = paragraphs(page.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let words = line.trim_start().trim_start_matches(['-', '#', '*', ' ']);
        let begins = words.len() < line.trim_start().len() || line.starts_with('|');
        let code = fenced || fence || line.starts_with("    ");
        (!begins, (!code && !words.is_empty()).then(|| words.to_string()))
    }));
    let cells = |row: &Paragraph| -> Vec<Paragraph> {
        let cells = row.text.split('|').map(|cell| cell.trim().to_string());
        cells.map(|text| Paragraph { line: row.line, text }).collect()
    };
    let rows: Vec<_> = all.iter().filter(|it| it.text.starts_with('|')).flat_map(cells).collect();
    all.extend(rows);
    all
}

/// Joins lines to paragraphs. Each line states whether it may continue the one before, and its text, if it has one.
fn paragraphs(lines: impl Iterator<Item = (bool, Option<String>)>) -> Vec<Paragraph> {
    let mut all: Vec<Paragraph> = Vec::new();
    let mut open = false;
    for (at, (continues, text)) in lines.enumerate() {
        match text.filter(|text| !text.is_empty()) {
            Some(text) if open && continues => {
                let paragraph = all.last_mut().expect("an open paragraph");
                paragraph.text.push(' ');
                paragraph.text.push_str(&text);
            }
            Some(text) => {
                all.push(Paragraph { line: at + 1, text });
                open = true;
            }
            None => open = false,
        }
    }
    all
}

/// Returns the faults of paragraphs, each with its line.
fn faults(paragraphs: &[Paragraph]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for Paragraph { line, text } in paragraphs {
        let words = text.split(|letter: char| !letter.is_alphabetic());
        let words = words.filter(|word| WORDS.contains(&word.to_lowercase().as_str()));
        found.extend(words.map(|word| (*line, format!("the word '{word}'"))));
        let text = without_code(text);
        found.extend(phrases(&text).map(|phrase| (*line, format!("the phrase '{phrase}'"))));
        let clauses = CLAUSES.iter().filter(|clause| text.contains(**clause));
        found.extend(clauses.map(|clause| (*line, format!("the clause '{clause}'"))));
        let beginning = BEGINNINGS.iter().find(|beginning| text.starts_with(**beginning));
        found.extend(beginning.map(|beginning| (*line, format!("the beginning '{beginning}'"))));
    }
    found
}

/// Returns the phrases in a text. They end at the end of a word, and names with `_` are one word.
fn phrases(text: &str) -> impl Iterator<Item = &'static str> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    let words = format!(" {} ", words.join(" "));
    PHRASES.iter().copied().filter(move |phrase| words.contains(&format!(" {phrase} ")))
}

/// Returns a text without the code between backticks, which may quote a fingerprint.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Returns the faults of the messages in Rust source, each with its line. Only phrases are looked for: code has no
/// sentences, and fingerprints keep their words.
fn faults_of_messages(source: &str) -> Vec<(usize, String)> {
    let lines = source.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
    let fault = |at: usize, phrase: &str| (at + 1, format!("the phrase '{phrase}' in a message"));
    lines.flat_map(|(at, line)| phrases(line).map(move |phrase| fault(at, phrase))).collect()
}

/// Returns the Rust files and the pages at a path.
fn files(path: &Path) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if QUOTED.iter().any(|quoted| root.join(quoted) == path) {
        return Vec::new();
    }
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        return entries.flat_map(|entry| files(&entry)).collect();
    }
    let checked = path.extension().is_some_and(|extension| extension == "rs" || extension == "md");
    if checked { vec![path.to_path_buf()] } else { Vec::new() }
}

#[test]
fn finished_pages_and_comments_are_plain() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for finished in FINISHED {
        let files = files(&root.join(finished));
        assert!(!files.is_empty(), "{finished}: no page and no source, expected some");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let page = file.extension().is_some_and(|extension| extension == "md");
            let paragraphs = if page { prose(&text) } else { comments(&text) };
            let name = file.strip_prefix(root).unwrap().display();
            let mut faults = faults(&paragraphs);
            if !page {
                faults.extend(faults_of_messages(&text));
            }
            found.extend(faults.iter().map(|(line, fault)| format!("{name}:{line}: {fault}")));
        }
    }
    assert!(found.is_empty(), "rewrite these sentences (plain English):\n{}", found.join("\n"));
}

#[test]
fn planted_phrases_and_clauses_are_found() {
    let found = |text: &str| {
        let paragraph = Paragraph { line: 1, text: text.to_string() };
        faults(&[paragraph]).into_iter().map(|fault| fault.1).collect::<Vec<_>>()
    };
    for phrase in PHRASES {
        assert_eq!(found(&format!("It is ({phrase}).")), [format!("the phrase '{phrase}'")]);
        let name = phrase.replace(' ', "_");
        assert_eq!(
            found(&format!("Plain: un{phrase}, `{phrase}`, {phrase}less, a_{name}.")),
            [""; 0]
        );
        let source =
            format!("let a = \"it is {phrase}\"; // {phrase}\n    // {phrase}\na_{name}();");
        let expected = (1, format!("the phrase '{phrase}' in a message"));
        assert_eq!(faults_of_messages(&source), [expected]);
    }
    for clause in CLAUSES {
        let expected = format!("the clause '{clause}'");
        assert_eq!(found(&format!("The walker reads{clause}the rest.")), [expected]);
        assert_eq!(found(&format!("Plain: `reads{clause}the rest`.")), [""; 0]);
    }
    let plain =
        "The walker reads what it needs. Often, it reads a part of it; whether it does is noted.";
    assert_eq!(found(plain), [""; 0]);
}

#[test]
fn planted_riddles_are_found() {
    let lines =
        |faults: Vec<(usize, String)>| faults.iter().map(|fault| fault.0).collect::<Vec<_>>();
    let source = "/// What it is.\nfn f() {}\n/// Plain, and the caller is\n/// told so.\nconst A: u8 = 0; // Of B.\n\
                  /// Plain.\n///\n/// Whoever reads this.\nlet told = tells; // plain\n//! Wrapped so that the\n//! Of
                  /// comes second.";
    assert_eq!(lines(faults(&comments(source))), [1, 3, 5, 8]);
    let page = "# Title\n\nPlain, and\nOf comes second.\n\n- What is in a list.\n\n    $ tells\n\n\
                | a | How many rows |\n\n```text\ntold\n```\nThe last one tells.\n";
    assert_eq!(lines(faults(&prose(page))), [6, 15, 10]);
}
