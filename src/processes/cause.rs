//! The cause of an end, as languages report it on standard error: a panic in Rust and Go, an exception in Python and
//! C++, an assertion in C, a report of a sanitizer.
//!
//! Does not read the stacks that most of them print, because lines of stacks change with each build.

/// The report of a cause.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// The kind and the message, such as `panic: no table`.
    pub(crate) message: String,
    /// The index of the first line of the report.
    pub(crate) line: usize,
}

/// Returns the cause that a process has reported in its last lines. A process in Rust may catch panics, so its last
/// panic ends it. In other languages, the first report is the deepest cause.
pub(crate) fn cause_in(stderr: &str) -> Option<Cause> {
    let lines: Vec<_> = stderr.lines().collect();
    let rust = (0..lines.len()).rev().find_map(|at| rust_panic(&lines, at));
    rust.or_else(|| (0..lines.len()).find_map(|at| first_report(&lines, at)))
}

fn rust_panic(lines: &[&str], line: usize) -> Option<Cause> {
    let [place, message] = lines.get(line..line.checked_add(2)?)? else { return None };
    let is_panic = place.starts_with("thread '") && place.contains(" panicked at ");
    is_panic.then(|| Cause { message: format!("panic: {message}"), line })
}

fn first_report(lines: &[&str], line: usize) -> Option<Cause> {
    let text = lines.get(line)?;
    let rest = lines.get(line.checked_add(1)?..)?;
    let message = go_panic(text)
        .or_else(|| python_exception(text, rest))
        .or_else(|| cpp_exception(text, rest))
        .or_else(|| assertion(text))
        .or_else(|| sanitizer(text, rest))?;
    Some(Cause { message, line })
}

/// `panic: runtime error: index out of range [5] with length 3`, or `fatal error: all goroutines are asleep`.
fn go_panic(text: &str) -> Option<String> {
    let is_go = text.starts_with("panic: ") || text.starts_with("fatal error: ");
    is_go.then(|| text.to_string())
}

/// `Traceback (most recent call last):`, the indented lines of the stack, and the exception.
fn python_exception(text: &str, rest: &[&str]) -> Option<String> {
    if text.trim() != "Traceback (most recent call last):" {
        return None;
    }
    let exception = rest.iter().find(|line| !line.starts_with(char::is_whitespace))?;
    Some(format!("exception: {exception}"))
}

/// `terminate called after throwing an instance of 'std::out_of_range'` and `  what():  …` (libstdc++), or
/// `libc++abi: terminating due to uncaught exception of type std::out_of_range: …` (libc++).
fn cpp_exception(text: &str, rest: &[&str]) -> Option<String> {
    if let Some((_, exception)) = text.split_once(" uncaught exception of type ") {
        return Some(format!("exception: {exception}"));
    }
    let name = text.strip_prefix("terminate called after throwing an instance of ")?;
    let name = name.trim_matches('\'');
    let what = rest.first().and_then(|line| line.trim().strip_prefix("what():"));
    Some(match what {
        Some(what) => format!("exception: {name}: {}", what.trim()),
        None => format!("exception: {name}"),
    })
}

/// ``reader: table.c:12: entry_of: Assertion `entry < count' failed.``
fn assertion(text: &str) -> Option<String> {
    let (place, condition) = text.split_once(": Assertion `")?;
    let condition = condition.strip_suffix("' failed.")?;
    let function = place.rsplit(": ").next()?;
    Some(format!("assertion in {function}: {condition}"))
}

/// `==1==ERROR: AddressSanitizer: heap-buffer-overflow on address …` with a summary below its stacks, or
/// `table.c:12:3: runtime error: shift exponent 64 is too large`.
fn sanitizer(text: &str, rest: &[&str]) -> Option<String> {
    if let Some((_, error)) = text.split_once(": runtime error: ") {
        return Some(format!("UndefinedBehaviorSanitizer: {error}"));
    }
    let (_, report) = text.split_once("ERROR: ")?;
    let (name, error) = report.split_once("Sanitizer: ")?;
    let error = error.split_whitespace().next()?;
    let summary = rest.iter().find(|line| line.starts_with("SUMMARY: "));
    let function = summary.and_then(|line| line.rsplit_once(" in "));
    let function = function.map(|(_, function)| format!(" in {function}")).unwrap_or_default();
    Some(format!("{name}Sanitizer: {error}{function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_language_names_its_cause() {
        for (stderr, message, line) in [
            (
                "thread 'a' panicked at a.rs:1:2:\nfirst\nthread 'b' panicked at b.rs:1:2:\nlast\n",
                "panic: last",
                2,
            ),
            (
                "reading\npanic: runtime error: index out of range [5]\n\ngoroutine 1 [running]:\n",
                "panic: runtime error: index out of range [5]",
                1,
            ),
            (
                "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n\
                 KeyError: 5\n\nDuring handling of the above exception, another exception occurred:\n\n\
                 Traceback (most recent call last):\n  File \"a.py\", line 3\nOSError: no table\n",
                "exception: KeyError: 5",
                0,
            ),
            (
                "terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector\n",
                "exception: std::out_of_range: vector",
                0,
            ),
            ("terminate called after throwing an instance of 'int'\n", "exception: int", 0),
            (
                "libc++abi: terminating due to uncaught exception of type std::bad_cast: std::bad_cast",
                "exception: std::bad_cast: std::bad_cast",
                0,
            ),
            (
                "a line\nreader: t.c:12: entry_of: Assertion `entry < count' failed.\n",
                "assertion in entry_of: entry < count",
                1,
            ),
            (
                "==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x60 at pc 0x1\n\
                 READ of size 1\n    #0 0x1 in entry_of t.c:12\n\
                 SUMMARY: AddressSanitizer: heap-buffer-overflow /src/t.c:12:3 in entry_of\n",
                "AddressSanitizer: heap-buffer-overflow in entry_of",
                0,
            ),
            (
                "t.c:12:3: runtime error: shift exponent 64 is too large\n",
                "UndefinedBehaviorSanitizer: shift exponent 64 is too large",
                0,
            ),
        ] {
            let message = message.to_string();
            assert_eq!(cause_in(stderr), Some(Cause { message, line }), "{stderr}");
        }
        for none in ["", "a line", "thread 'a' panicked at a.rs:1:2:", "Traceback: none"] {
            assert_eq!(cause_in(none), None, "{none}");
        }
    }
}
