//! Panics of the code under test. They are findings, and this module gives them fingerprints.

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::Path;
use std::sync::Mutex;

use crate::harness::engine::failure;

/// The place and the message of a panic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PanicNote {
    /// The crate of `function`. Empty if the build has no symbols with paths.
    pub crate_name: String,
    /// The path of the source file within its crate, because the folder of the crate differs between machines.
    pub file: String,
    /// The function without its module or type, because their spelling depends on the compiler. Empty if the build has
    /// no symbols.
    pub function: String,
    /// The innermost function outside of the standard library, as `walkers::qcow2::read::read_piece`. If that library
    /// panicked, this caller distinguishes bugs. Without symbols, only the module of `file`.
    pub frame: String,
    /// The place and the message.
    pub detail: String,
}

impl PanicNote {
    /// Returns the note of a panic, from the information that a panic hook gets.
    pub fn of(panic: &PanicHookInfo) -> Self {
        let message = message(panic).unwrap_or("a panic without a message");
        let file = panic.location().map_or("", |location| location.file()).to_string();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let Stack { function, crate_name, frame, .. } = Stack::of_panic(&file);
        let frame = frame.unwrap_or_else(|| module(&file));
        let file = in_its_crate(&file).to_string();
        let crate_name = crate_name.map_or(String::new(), project);
        let function = function.unwrap_or_default();
        Self { crate_name, file, function, frame, detail: format!("{place}: {message}") }
    }

    /// Returns one line that is the same for the same bug: the crate and the function. It contains neither line nor
    /// file, because both change when the surrounding code does. A build without symbols names the file instead, and so
    /// does an inlined function without a name, such as the body of an `async fn`.
    pub fn fingerprint(&self) -> String {
        let Self { crate_name, file, function, .. } = self;
        match (function.is_empty(), crate_name.is_empty()) {
            (true, true) => format!("panic: {file}"),
            (true, false) => format!("panic: {crate_name}, {file}"),
            (false, true) => format!("panic: {file}, {function}"),
            (false, false) => format!("panic: {crate_name}, {function}"),
        }
    }
}

/// Reports whether `found` is the fingerprint that was `recorded`. Earlier versions named the source file of a panic
/// (`panic: src/map/read.rs, read_piece`) instead of the crate. If the function had no name, they named only the file.
pub fn is_recorded(recorded: &str, found: &str) -> bool {
    let function = |fingerprint: &str, of_file: bool| {
        let (place, function) = fingerprint.strip_prefix("panic: ")?.split_once(", ")?;
        (place.ends_with(".rs") == of_file).then(|| function.to_string())
    };
    let renamed = || function(recorded, true).is_some_and(|it| function(found, false) == Some(it));
    let unnamed = || {
        let (_, file) = found.strip_prefix("panic: ")?.split_once(", ")?;
        (file.ends_with(".rs") && recorded.strip_prefix("panic: ")? == file).then_some(())
    };
    // Earlier versions did not add the text of an engine's error.
    let added = || found.strip_prefix(recorded).is_some_and(|text| text.starts_with(" ("));
    recorded == found || renamed() || unnamed().is_some() || added()
}

/// Returns the message of a panic, if it has one.
pub fn message<'p>(panic: &'p PanicHookInfo) -> Option<&'p str> {
    let payload = panic.payload();
    let formatted = || payload.downcast_ref::<String>().map(String::as_str);
    payload.downcast_ref::<&str>().copied().or_else(formatted)
}

/// Returns the path of a source file from the last folder `src` on. If there is no such folder, returns the file's
/// name.
fn in_its_crate(path: &str) -> &str {
    let source = path.rfind("/src/").map(|at| at + 1).or(path.starts_with("src/").then_some(0));
    let name = path.rfind('/').map_or(0, |at| at + 1);
    path.get(source.unwrap_or(name)..).unwrap_or(path)
}

/// Returns the module of a source file without its crate: `map::read` for `/home/me/qcowfuzz/src/map/read.rs`.
fn module(path: &str) -> String {
    let file = in_its_crate(path);
    let file = file.strip_prefix("src/").unwrap_or(file);
    let file = file.strip_suffix(".rs").unwrap_or(file);
    file.strip_suffix("/mod").unwrap_or(file).replace('/', "::")
}

/// Reports whether a source file belongs to the standard library, or to a crate that is built into it.
fn is_standard(path: &str) -> bool {
    path.starts_with("/rustc/")
        || path.starts_with("/rust/deps/")
        || path.contains("/lib/rustlib/src/rust/library/")
}

/// The place of a panic according to its stack.
#[derive(Debug, Default)]
struct Stack {
    /// The innermost function in the file of the panic's location. It called the function that panicked (an index, an
    /// `unwrap`).
    function: Option<String>,
    /// The folder of that function's crate.
    root: Option<String>,
    /// The crate of that function.
    crate_name: Option<String>,
    /// The innermost function outside of the standard library, with its module.
    frame: Option<String>,
}

impl Stack {
    /// Reads the stack of a panic at a location in `file`.
    fn of_panic(file: &str) -> Self {
        let (mut stack, mut panicking) = (Self::default(), false);
        backtrace::trace(|traced| {
            backtrace::resolve_frame(traced, |symbol| {
                let Some(name) = symbol.name().map(|name| format!("{name:#}")) else { return };
                let path = symbol.filename().and_then(Path::to_str).unwrap_or_default();
                // The frames above belong to the hook and its callees.
                if panicking {
                    stack.add(file, &name, path);
                }
                panicking |= name.contains("panicking");
            });
            !stack.is_complete()
        });
        // Some builds have only the functions' own names. Then the folder names the crate.
        if stack.crate_name.is_none() {
            stack.crate_name = stack.root.as_deref().and_then(crate_in);
        }
        stack
    }

    /// Adds the next frame outward: its function and its source file.
    fn add(&mut self, file: &str, name: &str, path: &str) {
        if self.function.is_none() && Path::new(path).ends_with(file) {
            self.function = Some(last_segment(name));
            self.root = Some(crate_root(path).to_string());
        }
        // Some inlined functions have only their own names. Then a caller in the same crate names the crate.
        let in_crate = self.root.as_deref() == Some(crate_root(path));
        if self.crate_name.is_none() && in_crate {
            self.crate_name = crate_of(name);
        }
        if self.frame.is_none() && !path.is_empty() && !is_standard(path) {
            self.frame = Some(format!("{}::{}", module(path), last_segment(name)));
        }
    }

    fn is_complete(&self) -> bool {
        self.function.is_some() && self.crate_name.is_some() && self.frame.is_some()
    }
}

/// Returns the name of a crate in fingerprints. The walker was a part of the library, and its panics keep that name.
fn project(crate_name: String) -> String {
    match crate_name.as_str() {
        "qcowfuzz_walker" => env!("CARGO_CRATE_NAME").to_string(),
        _ => crate_name,
    }
}

/// The crates of the standard library. Their types can be first in a function's path.
const STANDARD: [&str; 3] = ["core", "alloc", "std"];

/// Returns the crate whose sources are in a folder: this crate (of which the walker was a part), or the folder's name
/// without a version.
fn crate_in(root: &str) -> Option<String> {
    let root = root.trim_end_matches('/');
    if [env!("CARGO_MANIFEST_DIR"), concat!(env!("CARGO_MANIFEST_DIR"), "/crates/walker")]
        .contains(&root)
    {
        return Some(env!("CARGO_CRATE_NAME").to_string());
    }
    let folder = root.rsplit('/').next().filter(|folder| !folder.is_empty())?;
    let name = match folder.rsplit_once('-') {
        Some((name, version)) if version.starts_with(|it: char| it.is_ascii_digit()) => name,
        _ => folder,
    };
    Some(name.replace('-', "_"))
}

/// Returns the folder of a source file's crate: the path up to the last folder `src`.
fn crate_root(path: &str) -> &str {
    path.strip_suffix(in_its_crate(path)).unwrap_or(path)
}

/// Returns the function's own name in a path, without types, closures and generics.
fn last_segment(path: &str) -> String {
    let named = |segment: &&String| !segment.is_empty() && !segment.starts_with('{');
    segments(path).iter().rev().find(named).cloned().unwrap_or_default()
}

/// Returns the parts of a path between `::`, without the text in angle brackets.
fn segments(path: &str) -> Vec<String> {
    let (mut depth, mut segments) = (0u32, vec![String::new()]);
    let mut characters = path.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            ':' if depth == 0 && characters.peek() == Some(&':') => {
                characters.next();
                segments.push(String::new());
            }
            _ if depth == 0 => segments.last_mut().into_iter().for_each(|it| it.push(character)),
            _ => {}
        }
    }
    segments
}

/// Returns the crate in a function's path: the first name, without types and references around it. `None` if the path
/// is the function's own name, with or without generics.
fn crate_of(path: &str) -> Option<String> {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let start = path.trim_start_matches(|character: char| !is_word(character));
    let first = start.split(|character| !is_word(character)).next().unwrap_or_default();
    let named = segments(path).len() > 1 && !first.is_empty() && !STANDARD.contains(&first);
    named.then(|| first.to_string())
}

static LAST_PANIC: Mutex<Option<PanicNote>> = Mutex::new(None);

/// A guard that replaces the panic hook: the hook records panics of the code under test and does not print them.
pub struct PanicNotes;

impl PanicNotes {
    /// Installs the hook until the guard is dropped.
    pub fn take_over() -> Self {
        std::panic::set_hook(Box::new(|panic| {
            let note = PanicNote::of(panic);
            if let Ok(mut last) = LAST_PANIC.lock() {
                *last = Some(note);
            }
        }));
        Self
    }
}

impl Drop for PanicNotes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
}

/// Runs the code under test.
///
/// # Errors
/// The code panicked. The note has the place while [`PanicNotes`] exist.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, PanicNote> {
    let last = || LAST_PANIC.lock().ok().and_then(|mut last| last.take()).unwrap_or_default();
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        failure::pass_on(&*payload);
        last()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_alike_on_every_machine() {
        assert_eq!(in_its_crate("src/map/read.rs"), "src/map/read.rs");
        assert_eq!(in_its_crate("/home/me/src/qcowfuzz/src/map/read.rs"), "src/map/read.rs");
        assert_eq!(in_its_crate("/tmp/engine.rs"), "engine.rs");
        assert_eq!(in_its_crate("engine.rs"), "engine.rs");
    }

    // One test covers both, because the process has only one hook.
    #[test]
    fn a_panic_is_named_by_its_function() {
        #[inline(always)]
        fn third(bytes: &[u8]) -> u8 {
            bytes[2]
        }
        #[inline(never)]
        fn too_much(bytes: usize) -> Vec<u8> {
            let mut all = Vec::with_capacity(1);
            all.reserve(std::hint::black_box(bytes));
            all
        }
        let notes = PanicNotes::take_over();
        let index = caught(|| third(&std::hint::black_box([1, 2]))).unwrap_err();
        // This panic is in a file of the standard library.
        let capacity = caught(|| too_much(usize::MAX)).unwrap_err();
        drop(notes);
        assert_eq!(index.fingerprint(), "panic: qcowfuzz, third");
        assert_eq!(index.frame, "findings::panics::third");
        assert!(index.detail.contains("index out of bounds: the len is 2"), "{}", index.detail);
        assert_eq!(capacity.frame, "findings::panics::too_much", "{capacity:?}");
    }

    #[test]
    fn a_function_without_a_name_is_named_by_its_file() {
        let note = |crate_name: &str| PanicNote {
            crate_name: crate_name.to_string(),
            file: "src/utils.rs".to_string(),
            ..PanicNote::default()
        };
        assert_eq!(note("my_disk").fingerprint(), "panic: my_disk, src/utils.rs");
        assert_eq!(note("").fingerprint(), "panic: src/utils.rs");
    }

    #[test]
    fn files_are_modules() {
        for path in ["src/map/read.rs", "/home/me/src/qcowfuzz/src/map/read/mod.rs"] {
            assert_eq!(module(path), "map::read");
        }
        assert_eq!(module("/tmp/engine.rs"), "engine");
        let library = "/rustc/0123/library/alloc/src/raw_vec/mod.rs";
        assert!(is_standard(library) && !is_standard("/home/me/src/map/read.rs"));
    }

    #[test]
    fn functions_are_named_alike_by_every_compiler() {
        for path in [
            "qcowfuzz::walkers::qcow2::walk::Walk<S,O>::piece",
            "<qcowfuzz::walkers::qcow2::walk::Walk<S, O>>::piece::<u8>",
            "<qcowfuzz::walkers::qcow2::walk::Walk<S> as core::iter::Iterator>::piece",
            "qcowfuzz::walkers::qcow2::walk::Walk<S>::piece::{{closure}}",
            "qcowfuzz::walkers::qcow2::walk::piece::{closure#0}::{closure#1}",
        ] {
            assert_eq!(last_segment(path), "piece", "{path}");
            assert_eq!(crate_of(path).as_deref(), Some("qcowfuzz"), "{path}");
        }
        for path in ["piece", "piece<dyn qcowfuzz::disk::Storage>", "<alloc::vec::Vec<u8>>::piece"]
        {
            assert_eq!(crate_of(path), None, "{path}");
        }
    }

    #[test]
    fn folders_name_crates() {
        let crate_of_file = |path: &str| crate_in(crate_root(path));
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src/findings/panics.rs");
        assert_eq!(crate_of_file(own).as_deref(), Some("qcowfuzz"));
        let walker = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/walker/src/walkers/read.rs");
        assert_eq!(crate_of_file(walker).as_deref(), Some("qcowfuzz"));
        assert_eq!(project("qcowfuzz_walker".to_string()), "qcowfuzz");
        let registry = "/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/my-disk-0.1.4/src/a/b.rs";
        assert_eq!(crate_of_file(registry).as_deref(), Some("my_disk"));
        assert_eq!(crate_of_file("/home/me/my-disk/src/lib.rs").as_deref(), Some("my_disk"));
        assert_eq!(crate_of_file("src/lib.rs"), None);
    }

    #[test]
    fn recorded_fingerprints_with_a_file_are_understood() {
        let found = "panic: qcowfuzz, read_piece";
        assert!(is_recorded(found, found));
        assert!(is_recorded("panic: src/map/read.rs, read_piece", found));
        assert!(!is_recorded("panic: src/map/read.rs, read_layer", found));
        assert!(!is_recorded(found, "panic: src/map/read.rs, read_piece"));
        assert!(is_recorded("panic: src/utils.rs", "panic: my_disk, src/utils.rs"));
        assert!(!is_recorded("panic: src/utils.rs", "panic: my_disk, src/lib.rs"));
        assert!(!is_recorded("panic: src/map/read.rs", found));
        assert!(!is_recorded("model: kind, normal → unallocated", found));
    }
}
