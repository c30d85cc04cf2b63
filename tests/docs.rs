//! Compares the statements of README and docs with the code: tables, names, files, commands.

#[path = "docs/bytecode.rs"]
mod bytecode;
#[path = "../examples/engine.rs"]
#[allow(dead_code, missing_docs)]
mod engine;
#[path = "docs/formats.rs"]
mod formats;
#[path = "docs/modules.rs"]
mod modules;
#[allow(dead_code)]
mod parts;
#[allow(dead_code, unused_imports)]
mod source;

use test_support::prelude::*;

use qcowfuzz::disk::observer::{Event, State, Vital};
use qcowfuzz::formats::rare_events;
use qcowfuzz::internal::fuzzing::feedback::layout::{EDGES, MAGNITUDES, OWN_COUNTERS, REASONS};
use qcowfuzz::internal::fuzzing::mutators::MUTATIONS;
use qcowfuzz::internal::programs::operation::OPERATION_BYTES;
use qcowfuzz::programs::text;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text_of(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the cells of the table rows between two headings.
fn rows(document: &str, heading: &str) -> Vec<Vec<String>> {
    rows_of_section(document.split(&format!("\n{heading}\n")).nth(1).expect(heading))
}

/// Returns the cells of the table rows before the next heading, in a text that begins inside a heading.
fn rows_below_heading(section: &str) -> Vec<Vec<String>> {
    section.split_once('\n').map_or(Vec::new(), |(_, below)| rows_of_section(below))
}

/// Returns the cells of the table rows before the next heading.
fn rows_of_section(section: &str) -> Vec<Vec<String>> {
    let lines = section.lines().take_while(|line| !line.starts_with('#'));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_string()).collect();
    let table = lines.filter(|line| line.starts_with('|')).map(cells).collect::<Vec<Vec<_>>>();
    table.into_iter().skip(2).map(|cells| cells[1..cells.len() - 1].to_vec()).collect()
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> Vec<&str> {
    between(text, '`')
}

/// Returns the texts between pairs of the same mark.
fn between(text: &str, mark: char) -> Vec<&str> {
    text.split(mark).skip(1).step_by(2).collect()
}

/// Returns the paths of the project's Markdown files.
fn documents() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    // The folder of results is excluded: its pages name the files that existed when they were measured.
    let docs = docs.filter(|path| path.is_file());
    let top = ["README.md", "BUGS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(|name| root().join(name));
    docs.chain(top).collect()
}

/// Returns the paths in a document: the targets of links, and words in backticks that look like paths.
fn references(document: &str) -> Vec<String> {
    let links = document.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let links = links.map(|link| link.split('#').next().unwrap_or_default());
    let mut found: Vec<_> = links.filter(|link| !link.contains("://")).map(String::from).collect();
    let rooms = ["src/", "crates/", "tests/", "examples/", "docs/", "benches/"];
    let rooms = [&rooms[..], &["corpus/", ".ci/", "xtask/"]].concat();
    let words = quoted(document).into_iter().flat_map(str::split_whitespace);
    let paths = words.filter(|word| rooms.iter().any(|room| word.starts_with(room)));
    found.extend(paths.map(|word| word.trim_end_matches(',').to_string()));
    found
}

#[test]
fn files_that_are_named_exist() {
    let mut missing = Vec::new();
    let mut seen = 0;
    for path in documents() {
        let folder = path.parent().unwrap();
        for reference in references(&fs::read_to_string(&path).unwrap()) {
            seen += 1;
            if !folder.join(&reference).exists() && !root().join(&reference).exists() {
                missing.push(format!("{}: {reference}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(seen > 40, "{seen} references");
    assert_eq!(references("[a](b.md#c) `src/x.rs --y` `not/a/path`"), ["b.md", "src/x.rs"]);
}

#[test]
fn the_first_page_is_short_and_the_pages_are_few() {
    let lines = |name: &str| text_of(name).lines().count();
    assert!(
        lines("README.md") <= 130,
        "README.md: {} lines, expected up to 130",
        lines("README.md")
    );
    let pages = documents().into_iter().filter(|path| path.parent().unwrap().ends_with("docs"));
    assert!(pages.count() <= 10, "more than ten pages in docs/: each has one kind of reader");
}

#[test]
fn the_two_commands_are_those_of_ci() {
    let readme = text_of("README.md");
    let section = readme.split("\n## Set-up\n").nth(1).unwrap();
    let blocks = section.lines().skip_while(|line| !line.starts_with("    "));
    let commands: Vec<_> =
        blocks.take_while(|line| line.starts_with("    ")).map(str::trim).collect();
    assert_eq!(
        commands,
        [
            "cargo install --locked cargo-fuzz && cargo +nightly fuzz run --no-trace-compares map_extents -- -use_counters=0",
            "cargo test"
        ]
    );
    let ci = text_of(".ci/run");
    assert!(ci.contains("\nstep tools .ci/install-tools qemu chromium llvm cargo-fuzz "));
    assert!(text_of(".ci/install-tools").contains("|| cargo install --locked cargo-fuzz ;;\n"));
    assert!(ci.contains("\nstep tests cargo test "));
    // The workflow runs all targets, and every run of CI this one.
    assert!(ci.contains("\nstep fuzz less_optimized cargo xtask fuzz-smoke map_extents\n"));
    assert!(ci.contains("\nstep fuzz-targets less_optimized cargo xtask fuzz-smoke\n"));
    let fuzzing = text_of("xtask/src/checks/fuzzing.rs");
    assert!(fuzzing.contains("\"fuzz\", \"list\"]"));
    assert!(fuzzing.contains("for target in targets_or_all(targets, toolchain)? {"));
    assert!(fuzzing.contains("\"fuzz\", \"run\"]).args(build).arg(target)"));
    assert!(fuzzing.contains("let build: &[&str] = &[\"--no-trace-compares\", "));
    assert!(text_of("fuzz/options/programs.options").contains("\nuse_counters = 0\n"));
    assert!(text_of("fuzz/Cargo.toml").contains("name = \"map_extents\""));
    let version = text_of("Cargo.toml");
    let version = version.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    assert!(readme.contains(&format!("Rust {version} or newer")));
}

/// docs/crash.md shows the place at which the target panics, and the seed that causes the panic.
#[test]
fn the_page_about_crashes_shows_a_seed() {
    let page = text_of("docs/crash.md");
    let (_, place) = page.split_once(" panicked at .../src/fuzzing/libfuzzer.rs:").unwrap();
    let line: usize = place.split(':').next().unwrap().parse().unwrap();
    let source = text_of("src/fuzzing/libfuzzer.rs");
    let source = source.lines().nth(line - 1).unwrap();
    assert_eq!(source.trim(), r#"panic!("{}", failure.violation);"#);
    let (_, shown) = place.split_once("/map_extents/crash-").unwrap();
    let seed = fs::read(root().join("corpus/map_extents/data_file_raw")).unwrap();
    assert_eq!(shown.lines().next().unwrap(), qcowfuzz::fuzzing::corpus::name(&seed));
}

/// README quotes the totals of BUGS.md, which are bold there.
#[test]
fn readme_quotes_the_totals_of_bugs() {
    let [readme, bugs] = ["README.md", "BUGS.md"]
        .map(|page| text_of(page).split_whitespace().collect::<Vec<_>>().join(" "));
    let totals = bugs.split("**").skip(1).step_by(2).take(4).collect::<Vec<_>>();
    assert!(totals[0].contains(" bugs in ") && totals[3].contains(" QEMU "), "{totals:?}");
    for total in totals.iter().filter(|_| readme.contains("](BUGS.md")) {
        assert!(readme.contains(total), "README.md: expected '{total}', as in BUGS.md");
    }
}

#[test]
fn feedback_is_listed() {
    let document = text_of("docs/architecture.md");
    let documented = |heading: &str| -> Vec<String> {
        rows(&document, heading).into_iter().map(|mut row| row.swap_remove(0)).collect()
    };
    assert_eq!(
        documented("### States"),
        State::ALL.iter().map(|one| one.name()).collect::<Vec<_>>()
    );
    assert_eq!(
        documented("### Events"),
        Event::ALL.iter().map(|one| one.name()).collect::<Vec<_>>()
    );
    assert_eq!(
        documented("### Rare events"),
        rare_events::ALL.iter().map(|one| one.name()).collect::<Vec<_>>()
    );
    assert_eq!(
        documented("### Vitals"),
        Vital::ALL.iter().map(|one| one.name()).collect::<Vec<_>>()
    );
    assert_eq!(
        documented("### Mutations"),
        MUTATIONS.iter().map(|one| one.name).collect::<Vec<_>>()
    );
    let counters = rows(&document, "### Counters");
    assert_eq!(counters[0][1], format!("{},{:03}", EDGES / 1000, EDGES % 1000));
    assert_eq!(counters[1][1], format!("{}, with room for 64", rare_events::COUNT));
    for row in &counters[2..5] {
        assert_eq!(row[1], format!("{} × {MAGNITUDES}", Vital::COUNT));
    }
    assert_eq!(counters[5][1], REASONS.to_string());
    let (thousands, rest) = (OWN_COUNTERS / 1000, OWN_COUNTERS % 1000);
    let words = document.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("in {thousands},{rest:03} counters")));
    assert!(words.contains(&format!("INFO: {OWN_COUNTERS} Extra Counters")));
}

/// docs/campaigns.md shows the first line that `corpus show` prints for the committed seeds. Each has a text; the
/// inputs that fuzzers have added to the folder have none.
#[test]
fn the_page_about_campaigns_counts_the_seeds() {
    let texts = fs::read_dir(root().join("corpus/text/map_extents")).unwrap();
    let names: Vec<_> = texts.map(|entry| entry.unwrap().path()).collect();
    let seed = |text: &PathBuf| root().join("corpus/map_extents").join(text.file_stem().unwrap());
    let bytes: u64 = names.iter().map(|text| fs::metadata(seed(text)).unwrap().len()).sum();
    let line = format!("    corpus/map_extents: {} inputs, {bytes} bytes\n", names.len());
    assert!(text_of("docs/campaigns.md").contains(&line), "docs/campaigns.md should say: {line}");
}

#[test]
fn readme_lists_every_target() {
    let rows = rows(&text_of("README.md"), "The fuzz targets:");
    let listed: Vec<_> = rows.iter().map(|row| quoted(&row[0])[0]).collect();
    assert_eq!(listed, TargetKind::ALL.map(TargetKind::name));
}

#[test]
fn the_source_layout_has_every_folder() {
    let rows = rows(&text_of("docs/architecture.md"), "## Source layout");
    let listed: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| quoted(&row[0]))
        .filter_map(|path| path.strip_prefix("src/"))
        .map(|folder| folder.trim_end_matches('/').to_string())
        .collect();
    let there: BTreeSet<String> = fs::read_dir(root().join("src"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed, there);
}

/// Returns the Rust source below a folder of the tests, in one text.
fn sources(folder: &str) -> String {
    let entries = fs::read_dir(root().join("tests").join(folder)).unwrap();
    entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
}

/// Returns the sources of each oracle: the files that name it in a violation, and the file of their folder.
fn sources_of_oracles() -> BTreeMap<String, String> {
    let marks = [": &str = \"", "Oracle::drawn(\"", "violation(\"", "attributed_to(\""];
    let folder = source::files_below("src/harness/oracles");
    let mut files: Vec<_> = folder.into_iter().map(|it| (it.name, it.text)).collect();
    let of_folders = files.clone();
    // Oracles that lie with their only users.
    let others =
        ["targets/mod.rs", "writing/faults.rs", "writing/hostile.rs", "writing/left_files.rs"];
    files.extend(others.map(|name| {
        let name = format!("src/harness/{name}");
        let text = text_of(&name);
        (name, text)
    }));
    let mut found = BTreeMap::<String, String>::new();
    for (file, text) in files {
        let code = text.split("#[cfg(test)]").next().unwrap();
        let names = marks.iter().flat_map(|mark| code.split(mark).skip(1));
        let names = names.filter_map(|rest| rest.split('"').next());
        let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let of_folder = file.split_once('/').and_then(|(folder, _)| {
            of_folders.iter().find(|(name, _)| *name == format!("{folder}/mod.rs"))
        });
        for name in names.filter(is_name).collect::<BTreeSet<_>>() {
            let sources = found.entry(name.to_string()).or_default();
            sources.push_str(&text);
            sources.push_str(of_folder.map_or("", |(_, text)| text));
        }
    }
    found
}

/// Returns the first lines of the sources of an oracle, each text in one line: the paragraph that begins with its name,
/// if there is one.
fn caption_of(name: &str, sources: &str) -> String {
    let lines = sources.lines().filter_map(|line| line.strip_prefix("//!"));
    let all = lines.map(|line| if line.is_empty() { "\n" } else { line }).collect::<String>();
    let own = all.split('\n').find(|paragraph| paragraph.starts_with(&format!(" `{name}`: ")));
    own.map_or(all.clone(), str::to_string)
}

#[test]
fn every_oracle_is_documented_with_planted_bugs() {
    let document = text_of("docs/oracles.md");
    let files = [
        "tests/planted/declarations.rs",
        "tests/planted/files.rs",
        "tests/planted/writers/hostile.rs",
        "tests/planted_memory.rs",
        "tests/planted/reports.rs",
        "tests/recipes.rs",
        "tests/small_writer/src/fault.rs",
    ]
    .map(text_of);
    let planted =
        ["support/src/planted", "planted/layout", "planted/altered"].map(sources).concat()
            + &files.concat();
    let sources_of_oracles = sources_of_oracles();
    let mut documented = BTreeSet::new();
    for section in document.split("\n## ").skip(1) {
        let name = section.lines().next().unwrap();
        let Some((_, faults)) = section.split_once("\nPlanted: ") else { continue };
        documented.insert(name.to_string());
        let faults: Vec<_> = faults.split('"').skip(1).step_by(2).collect();
        assert!(!faults.is_empty(), "{name}");
        for fault in faults {
            let fault = fault.replace('\n', " ");
            let quoted = format!("\"{fault}\"");
            let in_own_tests =
                || sources_of_oracles.get(name).is_some_and(|it| it.contains(&quoted));
            // A row of a table begins with the name.
            let is_row = || planted.contains(&format!("\n    {fault} | "));
            assert!(planted.contains(&quoted) || is_row() || in_own_tests(), "{name}: {fault}");
        }
        let prints = section.split("Fingerprints: ").nth(1).unwrap().split("Planted").next();
        for print in quoted(prints.unwrap()) {
            assert!(print.starts_with(&format!("{name}: ")) && print.contains(" → "), "{print}");
        }
    }
    let oracles: BTreeSet<String> = sources_of_oracles.keys().cloned().collect();
    let sections = "sections of docs/oracles.md with 'Planted: ', and files of oracles";
    assert_eq!(documented, oracles, "{sections}");
    let silent: Vec<_> = oracles
        .iter()
        .filter(|name| !caption_of(name, &sources_of_oracles[*name]).contains("Does not check"))
        .collect();
    assert!(silent.is_empty(), "the first lines lack 'Does not check': {silent:?}");
}

/// The sections of docs/formats.md with the features of formats other than qcow2.
const OTHER_FORMATS: [&str; 5] = ["Raw files", "VHD", "VHDX", "VMDK", "VDI"];

/// Returns the features of formats, from all tables in sections of docs/formats.md.
fn features_of(sections: &[&str]) -> Vec<Vec<String>> {
    let document = text_of("docs/formats.md");
    let section = |title: &&str| {
        let mut all = document.split("\n## ").filter(|it| it.starts_with(&format!("{title}\n")));
        all.next().unwrap_or_else(|| panic!("docs/formats.md has no section '{title}'"))
    };
    let tables = sections.iter().map(section).flat_map(|it| it.split("\n#"));
    let features: Vec<_> = tables.flat_map(rows_below_heading).collect();
    assert!(features.len() > 60 && features.iter().all(|row| row.len() == 6), "{features:?}");
    features
}

#[test]
fn every_part_that_is_compared_with_qemu_is_documented() {
    let features = features_of(&["qcow2"]);
    let documented: BTreeSet<&str> =
        features.iter().flat_map(|row| between(&row[4], '"')).collect();
    let all = parts::all();
    assert_eq!(documented, all.iter().map(|part| part.name).collect());
}

/// The document's column for programs names an operation or the prologue, with an operand or a value.
#[test]
fn the_lines_that_bring_a_feature_into_programs_assemble() {
    let default = Program::default().to_string();
    let image = format!("{} data_in=image base=qcow2 form=0", default.trim_end());
    let mut phrases = 0;
    let documents = [features_of(&["qcow2"]), features_of(&OTHER_FORMATS)];
    for phrase in documents.iter().flatten().flat_map(|row| quoted(&row[1])) {
        phrases += 1;
        let mut words = phrase.split(' ');
        let name = words.next().unwrap();
        let code = Operation::OPCODES.iter().find(|(_, known)| *known == name);
        let mut line = match code {
            Some((code, _)) => {
                let record = Operation::with_opcode(*code, [0; OPERATION_BYTES]);
                let line = Operation::decode(&record).unwrap().to_string();
                // In a text, the data stand for their length.
                if name == "bytes" { line.replace("length=0", "data=61") } else { line }
            }
            None => image.clone(),
        };
        assert!(code.is_some() || name == "image", "{phrase}");
        for word in words {
            let operand = word.split('=').next().unwrap();
            let old = line.split(' ').find(|it| it.split('=').next() == Some(operand));
            let old = old.unwrap_or_else(|| panic!("{phrase}: {operand}")).to_string();
            let new = if word.contains('=') { word } else { old.as_str() };
            line = line.replace(&format!(" {old}"), &format!(" {new}"));
        }
        let program = if code.is_some() { format!("{default}{line}") } else { line };
        text::assemble(&program).unwrap_or_else(|error| panic!("{phrase}: {error}"));
    }
    assert!(phrases > 140, "{phrases}");
}

#[test]
fn the_example_engine_has_one_bug_and_it_is_found() {
    let sound = engine::Small { sees_zero_flag: true };
    let (judged, found) = engine::judge(&mut Harness::new(sound), 1000);
    assert!(found.is_empty(), "{found:?}");
    let readme = text_of("README.md");
    let documented = |line: String| assert!(readme.contains(&line), "README should say: {line}");
    documented(format!("    {judged} of 1000 programs have images"));
    let mut harness = Harness::new(engine::Small { sees_zero_flag: false });
    let (_, found) = engine::judge(&mut harness, 1000);
    for (fingerprint, (count, input)) in &found {
        documented(format!("    {count} × {fingerprint}; minimized:\n"));
        let program = engine::minimized(&mut harness, fingerprint, input).to_string();
        documented(program.lines().map(|line| format!("    {line}\n")).collect());
    }
    assert_eq!(found.len(), 2);
}
