//! Files, functions and lines of comments stay short, including those of tests, benchmarks, examples and fuzz targets.
//! The compiler sees every file.

#[allow(dead_code, unused_imports)]
mod source;

use source::{Source, braces, files_below};

const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 70;
/// The maximum width of a line with a comment, in characters. rustfmt breaks lines of code, but not these.
const MAX_COMMENT_COLUMNS: usize = 120;

/// Returns a line for each file, each function and each line of a comment that is too long.
fn faults(source: &Source) -> Vec<String> {
    let mut faults = long_functions(source);
    faults.extend(long_comments(source));
    let lines = source.text.lines().count();
    if lines > MAX_FILE_LINES {
        faults.push(format!("{}: {lines} lines, expected up to {MAX_FILE_LINES}", source.name));
    }
    faults
}

fn long_functions(source: &Source) -> Vec<String> {
    let all = &source.with_tests;
    let starts = all.match_indices("fn ").filter(|(at, _)| {
        let before = all[..*at].chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || c == '(')
    });
    let function = |(at, _): (usize, &str)| {
        let code = &all[at..];
        let lines = code[..braces(code)?].lines().count();
        let name: String =
            code[3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let fault = || {
            let file = &source.name;
            format!("{file}: {name} has {lines} lines, expected up to {MAX_FUNCTION_LINES}")
        };
        (lines > MAX_FUNCTION_LINES && !name.is_empty()).then(fault)
    };
    starts.filter_map(function).collect()
}

/// Returns a line for each line of a comment, alone or behind code, that is too long.
fn long_comments(source: &Source) -> Vec<String> {
    let long = |(at, line): (usize, &str)| {
        let columns = line.chars().count();
        let is_comment = line.trim_start().starts_with("//") || line.contains(" // ");
        let fault = || {
            let file = &source.name;
            format!("{file}:{}: {columns} columns, expected up to {MAX_COMMENT_COLUMNS}", at + 1)
        };
        (is_comment && columns > MAX_COMMENT_COLUMNS).then(fault)
    };
    source.text.lines().enumerate().filter_map(long).collect()
}

#[test]
fn files_and_functions_stay_short() {
    let files = files_below("");
    for folder in ["src/", "crates/", "tests/", "benches/", "examples/", "fuzz/fuzz_targets/"] {
        assert!(files.iter().any(|file| file.name.starts_with(folder)), "{folder} has no files");
    }
    let faults: Vec<_> = files.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the files of `src/` and `tests/` that no file declares as a module. The compiler does not see them.
fn undeclared(files: &[Source]) -> Vec<&str> {
    let declares = |parent: &str, line: &str| {
        let parent = files.iter().find(|file| file.name == parent);
        parent.is_some_and(|file| file.with_tests.lines().any(|it| it.trim().ends_with(line)))
    };
    let is_undeclared = |name: &&str| {
        let path = name.trim_end_matches(".rs").trim_end_matches("/mod");
        let Some((folder, stem)) = path.rsplit_once('/') else { return false };
        if folder == "tests" && !name.ends_with("/mod.rs") || stem == "main" || stem == "lib" {
            // Cargo finds the roots of crates.
            return false;
        }
        let attribute = format!("#[path = \"{}\"]", name.trim_start_matches("tests/"));
        if files
            .iter()
            .any(|file| file.name.starts_with("tests/") && file.text.contains(&attribute))
        {
            return false;
        }
        let line = format!("mod {stem};");
        let roots = ["mod", "main", "lib"].map(|root| format!("{folder}/{root}.rs"));
        let tests =
            files.iter().filter(|file| folder == "tests" && file.name.starts_with("tests/"));
        let parents = roots.into_iter().chain([format!("{folder}.rs")]);
        !parents.chain(tests.map(|file| file.name.clone())).any(|parent| declares(&parent, &line))
    };
    let names = files.iter().map(|file| file.name.as_str());
    let names =
        names.filter(|name| ["src/", "crates/", "tests/"].iter().any(|it| name.starts_with(it)));
    names.filter(is_undeclared).collect()
}

#[test]
fn the_compiler_sees_every_file() {
    let all = files_below("");
    assert!(all.iter().any(|file| file.name == "tests/cli/main.rs"));
    assert_eq!(undeclared(&all), Vec::<&str>::new(), "expected a line `mod NAME;` for these files");
}

#[test]
fn undeclared_files_are_found() {
    let of = |files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().map(|(name, text)| Source::new(name, text)).collect();
        undeclared(&files).len()
    };
    let declared = ("src/cli/mod.rs", "mod map;\npub mod asm;");
    let root = ("src/main.rs", "mod cli;");
    assert_eq!(of(&[root, declared, ("src/cli/map.rs", ""), ("src/cli/asm.rs", "")]), 0);
    assert_eq!(of(&[root, declared, ("src/cli/sm.rs", "")]), 1);
    assert_eq!(
        of(&[root, declared, ("src/cli/map/size.rs", ""), ("src/cli/map.rs", "// mod size;")]),
        1
    );
    assert_eq!(
        of(&[root, declared, ("src/cli/map/size.rs", ""), ("src/cli/map.rs", "mod size;")]),
        0
    );
    assert_eq!(of(&[("tests/cli/main.rs", "mod map;"), ("tests/cli/map.rs", "")]), 0);
    assert_eq!(of(&[("tests/cli/main.rs", ""), ("tests/cli/map.rs", "")]), 1);
    assert_eq!(of(&[("tests/maps.rs", "mod tally;"), ("tests/tally/mod.rs", "")]), 0);
    assert_eq!(of(&[("tests/maps.rs", ""), ("tests/tally/mod.rs", "")]), 1);
    let path = ("tests/maps.rs", "#[path = \"qemu/maker.rs\"]\nmod maker;");
    assert_eq!(of(&[path, ("tests/qemu/maker.rs", ""), ("tests/qemu/recipe.rs", "")]), 1);
}

#[test]
fn long_files_are_found() {
    let of = |lines: usize| faults(&Source::new("a.rs", &"\n".repeat(lines))).len();
    assert_eq!((of(MAX_FILE_LINES), of(MAX_FILE_LINES + 1)), (0, 1));
}

#[test]
fn long_functions_are_found() {
    let count = |text: &str| faults(&Source::new("a.rs", text)).len();
    // A function of 70 lines and one of 71, with braces in text that do not end it.
    let body = |statement: &str, lines: usize| {
        format!("{{\n{}}}\nfn g() {{}}", format!("    {statement}\n").repeat(lines - 2))
    };
    let statements =
        ["let _ = '{';", "let _ = \"}\";", "// }", "let _ = r#\"\"}\"#;", "let _ = [0; 4];"];
    for statement in statements {
        for head in ["fn f() ", "pub fn f(a: [u8; 4]) -> [u8; 4] ", "#[test]\nfn f() "] {
            assert_eq!(count(&format!("{head}{}", body(statement, 70))), 0, "{head}{statement}");
            assert_eq!(count(&format!("{head}{}", body(statement, 71))), 1, "{head}{statement}");
        }
    }
    // The functions of a test module count too.
    let module = format!("#[cfg(test)]\nmod tests {{\nfn f() {}\n}}", body("f();", 71));
    assert_eq!(count(&module), 1);
    // No body: a type, a method that a trait declares.
    assert_eq!(count("type F = fn (u8);\ntrait T { fn f(&self) -> [u8; 4]; }"), 0);
}

#[test]
fn long_comments_are_found() {
    let faults = |text: &str| faults(&Source::new("a.rs", text));
    for head in ["//", "///", "//!", "    // ", "let a = 1; // "] {
        // A letter of two bytes is one column.
        let fill = "ä".repeat(MAX_COMMENT_COLUMNS - head.len());
        assert_eq!(faults(&format!("\n{head}{fill}\n")), [""; 0]);
        let expected = "a.rs:2: 121 columns, expected up to 120";
        assert_eq!(faults(&format!("\n{head}{fill}ä\n")), [expected]);
    }
    // rustfmt cannot break a literal.
    assert_eq!(
        faults(&format!("let a = \"http://{}\";", "a".repeat(MAX_COMMENT_COLUMNS))),
        [""; 0]
    );
}
