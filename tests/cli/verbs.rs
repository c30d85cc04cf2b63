//! Every verb: its help text, its test, its page.

use test_support::prelude::*;

use crate::support::Folder;

/// Returns the verbs that `qcowfuzz --help` lists.
fn verbs() -> Vec<String> {
    let help = Folder::new().run("--help").out;
    let (_, listed) = help.split_once("Commands:\n").unwrap();
    let lines = listed.lines().take_while(|line| line.starts_with("  "));
    // The description of a verb may go on in a line that is indented further.
    let lines = lines.filter(|line| !line.starts_with("   "));
    let verbs = lines.map(|line| line.split_whitespace().next().unwrap().to_string());
    verbs.filter(|verb| verb != "help").collect()
}

/// Returns the files with an extension directly in a folder of the repository, in one text.
fn all_in(folder: &str, extension: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.extension().is_some_and(|it| it == extension));
    paths.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Returns the faults of a verb, given the source of the tests and the pages.
fn faults(verb: &str, tests: &str, pages: &str) -> Vec<String> {
    let help = Folder::new().run(&[verb, "--help"]).ok().out;
    let page = |end: &str| pages.contains(&format!("qcowfuzz {verb}{end}"));
    let is_run = |start: &str| tests.contains(&format!("{start}{verb}"));
    let checks = [
        (help.contains("Exit codes"), "exit codes in the help text"),
        (help.contains("\nExample"), "an example in the help text"),
        (
            is_run("(\"") || is_run("[\"") || is_run("(&format!(\""),
            "a test in tests/cli/ that runs it",
        ),
        (page(" ") || page("`"), "'qcowfuzz VERB' in README.md or a page of docs/"),
    ];
    let missing = checks.into_iter().filter(|(is_there, _)| !is_there);
    missing.map(|(_, expected)| format!("{verb}: expected {expected}")).collect()
}

#[test]
fn every_verb_has_a_help_text_a_test_and_a_page() {
    let tests = all_in("tests/cli", "rs");
    let pages = all_in("", "md") + &all_in("docs", "md");
    let verbs = verbs();
    assert!(verbs.len() > 10, "{verbs:?}");
    let faults: Vec<_> = verbs.iter().flat_map(|verb| faults(verb, &tests, &pages)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The help of a verb has the options about the implementation that the verb takes, and no other.
#[test]
fn help_has_no_option_that_the_verb_refuses() {
    let help = |verb: &str| Folder::new().run(&[verb, "--help"]).ok().out;
    for (verb, taken) in [("replay", 6), ("map", 0), ("disasm", 3), ("differential", 1)] {
        let help = help(verb);
        let options =
            ["--known", "--without", "--engine-command", "--engine-qemu-img", "--against "];
        let options = options.into_iter().chain(["--against-command"]);
        let shown: Vec<_> = options.filter(|it| help.contains(&format!("  {it}"))).collect();
        assert_eq!(shown.len(), taken, "{verb}: {shown:?}");
    }
    let refused = Folder::new().run("map file --engine-command=cat").exits(2);
    assert!(refused.line().starts_with("--engine-command: 'map' runs no inputs"), "{refused:?}");
}

#[test]
fn a_verb_without_a_test_or_a_page_is_found() {
    let (test, page) = ("dir.run(\"asm text -o out\")", "`qcowfuzz asm text -o out`");
    assert_eq!(faults("asm", test, page), Vec::<String>::new());
    assert_eq!(faults("asm", "", page).len(), 1);
    assert_eq!(faults("asm", test, "qcowfuzz assemble").len(), 1);
}
