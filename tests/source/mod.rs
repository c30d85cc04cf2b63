//! Reads Rust source for the tests of the architecture: returns the paths that it names outside of comments, strings
//! and tests.

mod modules;
mod numbers;
mod types;

use std::fs;
use std::path::{Path, PathBuf};

pub use modules::Modules;

/// One Rust file.
#[derive(Clone)]
pub struct Source {
    /// The path below the folder that was read, as `map/walk.rs`.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// The text without comments and the contents of literals. Lines keep their numbers.
    pub with_tests: String,
    /// The text without comments, the contents of literals and test modules.
    pub code: String,
}

/// Returns every Rust file of the library and of the walker, in order. The library re-exports the rooms of the walker,
/// so the paths of both begin with `crate`.
pub fn files() -> Vec<Source> {
    let mut walker = files_below("crates/walker/src");
    walker.retain(|source| source.name != "lib.rs");
    [files_below("src"), walker].concat()
}

/// Returns every Rust file below a folder of the repository, in order.
pub fn files_below(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    paths.sort();
    let source = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        Source::new(&name, &fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(source).collect()
}

/// Collects the Rust files in `dir`. Folders that cargo writes, hidden folders and links hold no source.
fn collect(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let name = entry.file_name().into_string().unwrap();
        if kind.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, into);
        } else if kind.is_file() && name.ends_with(".rs") {
            into.push(path);
        }
    }
}

impl Source {
    pub fn new(name: &str, text: &str) -> Self {
        let with_tests = without_comments(text);
        let code = without_tests(&with_tests);
        Self { name: name.to_string(), text: text.to_string(), with_tests, code }
    }

    /// Returns the module path of the file: `["map", "walk"]`.
    pub fn module(&self) -> Vec<String> {
        let stem = self.name.trim_end_matches(".rs");
        let parts = stem.split('/').filter(|part| !["mod", "lib", "main"].contains(part));
        parts.map(str::to_string).collect()
    }

    /// Returns all paths that begin with one of `roots`, with `use` trees unfolded: `["std", "fs", "File"]`. Paths
    /// inside the crate begin with `crate`, however they are written.
    pub fn paths(&self, roots: &[&str]) -> Vec<Vec<String>> {
        let tokens = tokens(&self.code);
        let mut found = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            // A path behind `in` is a visibility, not an import.
            let continued = at > 0 && ["::", "in"].contains(&tokens[at - 1].as_str());
            let rooted = tokens.get(at + 1).is_some_and(|next| next == "::");
            if !continued && rooted && roots.contains(&tokens[at].as_str()) {
                at = unfold(&tokens, at, Vec::new(), &mut found);
            } else {
                at += 1;
            }
        }
        found.into_iter().map(|path| self.absolute(path)).collect()
    }

    /// Returns the paths of all `pub use`, unfolded. Absolute paths inside the crate begin with `crate`.
    pub fn passed_on(&self) -> Vec<Vec<String>> {
        let tokens = tokens(&self.code);
        let mut found = Vec::new();
        for (at, _) in tokens.iter().enumerate().filter(|(_, token)| *token == "pub") {
            let scoped = tokens.get(at + 1).is_some_and(|token| token == "(");
            let scope = tokens[at..].iter().position(|token| token == ")").filter(|_| scoped);
            let word = at + scope.unwrap_or(0) + 1;
            if tokens.get(word).is_some_and(|token| token == "use") {
                unfold(&tokens, word + 1, Vec::new(), &mut found);
            }
        }
        found.into_iter().map(|path| self.absolute(path)).collect()
    }

    fn absolute(&self, path: Vec<String>) -> Vec<String> {
        let mut module = self.module();
        match path[0].as_str() {
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                module.truncate(module.len().saturating_sub(ups));
                module.insert(0, "crate".to_string());
                module.extend(path[ups..].iter().cloned());
                module
            }
            // The command reaches hidden modules through `internal`, which shows the rooms as they are.
            "qcowfuzz" => {
                let hidden = path.get(1).is_some_and(|first| first == "internal");
                let rest = path[1 + usize::from(hidden)..].to_vec();
                [vec!["crate".to_string()], rest].concat()
            }
            _ => path,
        }
    }
}

/// Adds the paths of the tree at `at`, and returns its end.
fn unfold(
    tokens: &[String],
    mut at: usize,
    mut prefix: Vec<String>,
    found: &mut Vec<Vec<String>>,
) -> usize {
    while let Some(token) = tokens.get(at) {
        at += 1;
        if token == "{" {
            while tokens.get(at).is_some_and(|token| token != "}") {
                at = unfold(tokens, at, prefix.clone(), found);
                if tokens.get(at).is_some_and(|token| token == ",") {
                    at += 1;
                }
            }
            return at + 1;
        }
        prefix.push(token.clone());
        if tokens.get(at).is_none_or(|token| token != "::") {
            break;
        }
        at += 1;
    }
    // The name behind `as` is not part of the path.
    if tokens.get(at).is_some_and(|token| token == "as") {
        at += 2;
    }
    found.push(prefix);
    at
}

/// Splits code into words, `::`, and single other characters.
fn tokens(code: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            ':' if rest.starts_with("::") => 2,
            first if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            first => first.len_utf8(),
        };
        if !first.is_whitespace() {
            tokens.push(rest[..length].to_string());
        }
        rest = &rest[length..];
    }
    tokens
}

/// Blanks comments and the contents of string and character literals.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kept, length) = match first {
            '/' if rest.starts_with("//") => (0, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => (0, rest.find("*/").map_or(rest.len(), |at| at + 2)),
            'r' if raw_literal(rest).is_some() => raw_literal(rest).unwrap(),
            '"' => (1, literal(rest, '"')),
            // A lifetime has no second quote.
            '\'' if rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'') => {
                (1, literal(rest, '\''))
            }
            first => (first.len_utf8(), first.len_utf8()),
        };
        code.push_str(&rest[..kept]);
        code.extend(rest[kept..length].chars().filter(|c| *c == '\n'));
        if kept > 0 && length > kept {
            code.push(first);
        }
        rest = &rest[length..];
    }
    code
}

/// Returns the length of the opening and of the whole raw literal, as `r#"text"#`, with which `rest` begins.
fn raw_literal(rest: &str) -> Option<(usize, usize)> {
    let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    let text = rest[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = text.find(&end).map_or(rest.len(), |at| hashes + 2 + at + end.len());
    Some((hashes + 2, length))
}

/// Returns the length of the literal with which `rest` begins.
fn literal(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    rest.len()
}

/// Blanks test code: the braces behind each `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        let test = &rest[at..];
        let length = braces(test).unwrap_or(test.len());
        kept.extend(test[..length].chars().filter(|c| *c == '\n'));
        rest = &test[length..];
    }
    kept + rest
}

/// Returns the end of the item with which `code` begins: behind its first pair of braces, or at a `;` before them that
/// is not part of an array type.
pub fn braces(code: &str) -> Option<usize> {
    let (mut depth, mut brackets) = (0, 0);
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(at + 1),
            '}' => depth -= 1,
            '[' => brackets += 1,
            ']' => brackets -= 1,
            ';' if depth == 0 && brackets == 0 => return Some(at + 1),
            _ => {}
        }
    }
    None
}
