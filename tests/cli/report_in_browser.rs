//! Pages of `report` in a browser, used with the mouse and with the keyboard. Without chromium, the tests print a line;
//! with `QCOWFUZZ_REQUIRE_BROWSER=1`, they fail.

use serde_json::Value;
use test_support::prelude::*;

use crate::support::Folder;

/// The script that acts as a reader and records the visible state.
const READER: &str = include_str!("report_in_browser.js");

const OPERATIONS: &str = "write at=start+0 clusters=3\nzero at=start+1 clusters=1 keep=yes\n\
                          compress at=start+9 clusters=1 shape=text skew=packed\n";

const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
                     --disable-background-networking --disable-component-update --disable-sync \
                     --enable-logging=stderr --virtual-time-budget=5000 --dump-dom";

/// Returns the browser's document of a page and its messages, or `None` if there is no browser.
fn browse(dir: &Folder, page: &str, flags: &[&str]) -> Option<(String, Vec<String>)> {
    let (file, profile) = (dir.join("shown.html"), tempfile::tempdir().unwrap());
    fs::write(&file, page).unwrap();
    let mut command = Command::new("chromium");
    command
        .args(FLAGS.split(' '))
        .args(flags)
        .arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg(format!("file://{}", file.display())).stdin(Stdio::null());
    match command.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            let complaints = said.lines().filter(|line| line.contains("CONSOLE"));
            let dom = String::from_utf8(output.stdout).unwrap();
            Some((dom, complaints.map(String::from).collect()))
        }
        Err(error) => {
            let required = std::env::var_os("QCOWFUZZ_REQUIRE_BROWSER");
            let required = required.is_some_and(|set| set == "1");
            assert!(!required, "chromium: {error}, and QCOWFUZZ_REQUIRE_BROWSER=1");
            skipped(format_args!("chromium: {error}"));
            None
        }
    }
}

/// Returns a folder, and the page about a program with these operations.
fn page() -> (Folder, String) {
    let dir =
        Folder::of([("program", &lines::encoded("cluster_bits=12 size=33<<12+0", OPERATIONS))]);
    dir.run("report program --html page.html").ok();
    let page = dir.read_text("page.html");
    (dir, page)
}

/// Returns the page with our script, and without its policy, which would block the script.
fn with_reader(page: &str) -> String {
    let (before, rest) = page.split_once("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let (_, after) = rest.split_once('>').unwrap();
    let body = after.replace("</body>", &format!("<script>{READER}</script></body>"));
    format!("{before}{body}")
}

/// Returns the notes of the script. On a busy machine, the window may not have the focus yet and gets no keys. Then
/// this function opens the page again.
fn read(dir: &Folder, page: &str, flags: &[&str]) -> Option<Value> {
    let mut notes = read_once(dir, page, flags)?;
    for _ in 0..9 {
        if notes["focused"] == true {
            break;
        }
        notes = read_once(dir, page, flags)?;
    }
    assert_eq!(notes["focused"], true);
    Some(notes)
}

fn read_once(dir: &Folder, page: &str, flags: &[&str]) -> Option<Value> {
    let (dom, complaints) = browse(dir, &with_reader(page), flags)?;
    assert_eq!(complaints, Vec::<String>::new());
    let (_, notes) = dom.split_once("<pre id=\"test-result\">").expect("no notes");
    let notes = notes.split("</pre>").next().unwrap();
    let notes = notes.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Some(serde_json::from_str(&notes).unwrap())
}

/// Returns the keys of all elements whose attributes name an operation as their cause.
fn written_by(page: &str, operation: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for element in page.split(" data-item=\"").skip(1) {
        let (key, rest) = element.split_once('"').unwrap();
        let element = rest.split('>').next().unwrap();
        let list = element.split(" data-ops=\"").nth(1).and_then(|it| it.split('"').next());
        if list.is_some_and(|list| list.split(' ').any(|number| number == operation)) {
            keys.insert(key.to_string());
        }
    }
    keys
}

fn set(value: &Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_string()).collect()
}

/// Asserts that no element is marked or held.
fn assert_empty(seen: &Value) {
    let empty: &[Value] = &[];
    for list in ["chosen", "linked", "jumps", "counts"] {
        assert_eq!(seen[list].as_array().unwrap(), empty, "{list}: {seen}");
    }
    assert_eq!(seen["pressed"], 0);
    assert_eq!((&seen["release"], &seen["says"]), (&false.into(), &"Nothing is marked.".into()));
}

#[test]
fn pages_open_without_a_complaint_and_run_nothing_but_their_own_script() {
    let (dir, page) = page();
    let Some((dom, complaints)) = browse(&dir, &page, &[]) else { return };
    assert_eq!(complaints, Vec::<String>::new());
    // The script has run, and the style is applied.
    assert!(dom.contains("class=\"js\"") && dom.contains(">Nothing is marked.</p>"));
    // A script from another source would not run.
    let foreign = "<script>document.title = 'foreign'</script><img src='x.png' onerror='1'></body>";
    let planted = page.replace("</body>", foreign);
    let (dom, complaints) = browse(&dir, &planted, &[]).unwrap();
    assert!(!dom.contains("<title>foreign") && complaints.len() >= 2, "{complaints:?}");
}

#[test]
fn related_elements_are_marked() {
    let (dir, page) = page();
    let Some(notes) = read(&dir, &page, &["--window-size=1000,900"]) else { return };
    let written = |operation: &str| written_by(&page, operation);
    assert_empty(&notes["start"]);
    assert!(notes["stops"].as_array().unwrap().iter().all(|stops| *stops == 1), "{notes}");
    assert_eq!((&notes["buttons"], &notes["named"]), (&true.into(), &true.into()));

    // With the mouse.
    let first = &notes["overOperation"];
    assert_eq!(set(&first["chosen"]), ["op-0".to_string()].into());
    assert_eq!(set(&first["linked"]), written("0"));
    let says = first["says"].as_str().unwrap();
    let begins = "Operation 0 wrote 4 runs: L2 table at 0x2000 (1 cluster), data at 0x3000 (1 cluster), data at \
                  0x4000 (1 cluster), data at 0x5000 (1 cluster); ";
    assert!(says.starts_with(begins), "{says}");
    assert!(
        says.contains("2 entries: L2 table entry at 0x2000 (COPIED, normal at 0x3000), "),
        "{says}"
    );
    assert!(
        says.contains("extents: Reference model: guest 0x0+0x1000 normal at 0x3000, "),
        "{says}"
    );
    let run = &notes["overRun"];
    assert_eq!(set(&run["chosen"]), ["run-0-3".to_string()].into());
    assert_eq!(set(&run["linked"]), ["op-0".to_string()].into());
    assert_eq!(run["says"], "data at 0x3000 (1 cluster): by operation 0.");
    assert_eq!(notes["rowOfRun"], true);
    let extent = &notes["overExtent"];
    assert_eq!(set(&extent["linked"]), ["op-0", "op-1"].map(String::from).into());
    let says = "Implementation: guest 0x1000+0x1000 zero-allocated at 0x4000: by operations 0, 1.";
    assert_eq!(extent["says"], says);
    let entry = &notes["overEntry"];
    assert_eq!(set(&entry["chosen"]), ["entry-0-0".to_string()].into());
    assert_eq!(set(&entry["linked"]), ["op-0".to_string()].into());
    assert_empty(&notes["overNothing"]);

    keyboard(&notes, &written);
    clicks(&notes, &written("2"));
}

/// Checks the marks that the keyboard sets and releases.
fn keyboard(notes: &Value, written: &impl Fn(&str) -> BTreeSet<String>) {
    assert_eq!(set(&notes["focusFirst"]["linked"]), written("0"));
    let second = &notes["focusSecond"];
    assert_eq!((&second["focus"], set(&second["linked"])), (&"op-1".into(), written("1")));
    assert!(written("1") != written("0") && !written("1").is_empty());
    assert_eq!(notes["stopMoved"], true);
    for pinned in ["pinned", "pinnedStays"] {
        let seen = &notes[pinned];
        assert_eq!(set(&seen["chosen"]), ["op-1".to_string()].into(), "{pinned}");
        assert_eq!((set(&seen["linked"]), set(&seen["jumps"])), (written("1"), written("1")));
        assert!(
            seen["says"]
                .as_str()
                .unwrap()
                .ends_with(" The mark is held. Press Escape to release it.")
        );
        assert_eq!((&seen["pressed"], &seen["release"]), (&1.into(), &true.into()));
    }
    assert_eq!(notes["pinnedStays"]["focus"], "op-2");
    // No element is held, and the element with the focus is marked again.
    let released = &notes["released"];
    assert_eq!((&released["pressed"], &released["release"]), (&0.into(), &false.into()));
    assert_eq!(set(&released["linked"]), written("2"));
    for last in ["focusLast", "behindTheLast"] {
        assert_eq!(notes[last]["focus"], "op-2");
    }
    let run = &notes["pinnedRun"];
    assert_eq!(set(&run["linked"]), ["op-0".to_string()].into());
    // The row and the part of the picture.
    assert_eq!((&run["pressed"], set(&run["jumps"])), (&2.into(), ["op-0".to_string()].into()));
    assert_empty(&notes["blurred"]);
}

fn clicks(notes: &Value, written: &BTreeSet<String>) {
    let clicked = &notes["clicked"];
    assert_eq!((set(&clicked["linked"]), &clicked["release"]), (written.clone(), &true.into()));
    assert!(!clicked["counts"].as_array().unwrap().is_empty());
    assert_eq!((&notes["wasFolded"], &notes["unfolded"]), (&true.into(), &true.into()));
    assert_eq!(notes["clickedAgain"]["pressed"], 0);
    let extent = &notes["clickedExtent"];
    assert_eq!(set(&extent["chosen"]), ["expected-0".to_string()].into());
    assert_eq!(extent["release"], true);
    assert_empty(&notes["letGo"]);
}

#[test]
fn pages_are_readable_by_day_and_by_night() {
    let (dir, page) = page();
    let scheme = |number: u8| format!("--blink-settings=preferredColorScheme={number}");
    let Some(day) = read(&dir, &page, &["--window-size=1000,900", &scheme(1)]) else { return };
    let night = read(&dir, &page, &["--window-size=520,900", &scheme(0)]).unwrap();
    for notes in [&day, &night] {
        let contrast = &notes["contrast"];
        assert!(contrast["ratio"].as_f64().unwrap() >= 4.5, "{contrast}");
        assert_eq!(notes["tooWide"], 0);
        assert!(notes["narrowest"].as_f64().unwrap() >= 14.0);
    }
    for colour in ["paper", "ink", "fills"] {
        assert_ne!(day[colour], night[colour], "{colour}");
    }
}
