//! The iterations of a campaign in numbers: how many had each format, feature, operation and so on.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::iteration::{Course, format_of};
use crate::recipes::recipe::{Command, Recipe, RecipeStep, value_of, verb_of};

/// The guest offset behind which data counts as far.
const FAR_DATA_BYTES: u64 = 1 << 20;
/// The numbers of extents above which a map counts as long, and as very long.
const LONG: [usize; 2] = [10, 10_000];

/// The options without which a command of qemu-img does something else.
const SWITCHES: [&str; 14] = [
    "-c",
    "-n",
    "-S",
    "-u",
    "-d",
    "-a",
    "--image-opts",
    "--shrink",
    "--add",
    "--merge",
    "--clear",
    "--remove",
    "--enable",
    "--disable",
];

/// Counts of iterations. Each map goes from a name to the number of iterations that had it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Distribution {
    /// The number of iterations.
    pub iterations: u64,
    /// Properties of disks: data past 1 MiB, many extents.
    pub disks: BTreeMap<String, u64>,
    /// The formats of the disks that were compared.
    pub formats: BTreeMap<String, u64>,
    /// The options with which images were created, and other features of them.
    pub features: BTreeMap<String, u64>,
    /// The operations that took effect.
    pub operations: BTreeMap<String, u64>,
    /// The number of images in the longest chain.
    pub chains: BTreeMap<String, u64>,
    /// The comparisons.
    pub comparisons: BTreeMap<String, u64>,
}

impl Distribution {
    /// Counts an iteration.
    pub fn add(&mut self, recipe: &Recipe, course: &Course) {
        self.iterations += 1;
        let mut disks = BTreeSet::new();
        disks.extend((course.data_end > FAR_DATA_BYTES).then_some("data past 1 MiB".to_string()));
        let long = LONG.into_iter().filter(|count| course.extents > *count);
        disks.extend(long.map(|count| format!("more than {count} extents")));
        count(&mut self.disks, disks);
        let formats = recipe.steps.iter().map(|step| format_of(&step.disk).to_string());
        count(&mut self.formats, formats.collect());
        count(&mut self.features, features(recipe, course));
        let effects = course.effects.iter().map(|operation| operation.name().to_string());
        count(&mut self.operations, effects.collect());
        let length = chain_length(recipe);
        let label = if length > 3 { "4 and more".to_string() } else { length.to_string() };
        count(&mut self.chains, BTreeSet::from([label]));
        let comparisons = course.comparisons.iter().map(|name| (*name).to_string());
        count(&mut self.comparisons, comparisons.collect());
    }

    /// Returns the groups of counts, with their headings.
    pub fn groups(&self) -> [(&'static str, &BTreeMap<String, u64>); 6] {
        [
            ("disks", &self.disks),
            ("formats", &self.formats),
            ("operations with an effect", &self.operations),
            ("images in a chain", &self.chains),
            ("comparisons", &self.comparisons),
            ("features", &self.features),
        ]
    }
}

fn count(counts: &mut BTreeMap<String, u64>, names: BTreeSet<String>) {
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
}

/// Returns the features of the images that were made: the options of the format, and what the commands state by
/// themselves.
fn features(recipe: &Recipe, course: &Course) -> BTreeSet<String> {
    let mut features = BTreeSet::new();
    for (step, log) in recipe.steps.iter().zip(&course.log) {
        for (command, _) in step.commands.iter().zip(log).filter(|(_, log)| is_done(log)) {
            match command {
                Command::QemuImg(words) => features.extend(of_image(words)),
                Command::QemuIo { options, requests, .. } => {
                    features.extend(of_requests(requests));
                    let by_options = options.iter().any(|option| option == "--image-opts");
                    features.extend(by_options.then(|| "image-opts".to_string()));
                }
                Command::Program { input, .. } => {
                    let is_damaged = hex::decode(input).is_ok_and(|input| is_hostile(&input));
                    let name = if is_damaged { "program, hostile" } else { "program, valid" };
                    features.insert(name.to_string());
                }
                Command::Folder { .. } => {
                    features.insert("images in two folders".to_string());
                }
                Command::Pattern { .. } => {}
                Command::Damage { .. } => {
                    features.insert("damage".to_string());
                }
            }
        }
        features.extend(is_probed(step).then(|| "probed format".to_string()));
    }
    features
}

fn is_done(log: &str) -> bool {
    log == "done" || log.starts_with("exit 0")
}

fn is_probed(step: &RecipeStep) -> bool {
    step.disk.format.is_none()
}

fn is_hostile(input: &[u8]) -> bool {
    use crate::programs::Program;
    use crate::programs::operation::Class;
    Program::decode(input).operations.iter().any(|operation| operation.class() == Class::Attacks)
}

/// Returns the options behind `-o`, and the switches of `convert`. Names of files are left out.
fn of_image(words: &[String]) -> Vec<String> {
    let value = |option| value_of(words, option);
    let verb = verb_of(words);
    let format = value("-O").or(value("-f")).unwrap_or("");
    let options = value("-o").unwrap_or("").split(',');
    let mut features: Vec<String> = options
        .filter(|option| {
            !option.is_empty() && !option.starts_with("data_file=") && !option.starts_with("size=")
        })
        .map(|option| format!("{format}: {option}"))
        .collect();
    let has = |option: &str| words.iter().any(|word| word == option);
    features.extend(SWITCHES.iter().filter(|it| has(it)).map(|it| format!("{verb} {it}")));
    let absolute = value("-b").is_some_and(|name| name.starts_with('{'));
    features.extend(absolute.then(|| "absolute backing name".to_string()));
    features
}

/// Returns the kinds of the requests of qemu-io.
fn of_requests(requests: &[String]) -> BTreeSet<String> {
    let kind = |request: &String| {
        let words: Vec<&str> = request.split(' ').filter(|word| *word != "-q").collect();
        let switches = words.iter().filter(|word| word.starts_with('-'));
        let switches: Vec<&str> = switches.copied().collect();
        let is_look = request.ends_with(" 512") && switches.contains(&"-s");
        match is_look {
            true => "write of another magic".to_string(),
            false => format!("{} {}", words.first().unwrap_or(&""), switches.join(" "))
                .trim()
                .to_string(),
        }
    };
    requests.iter().map(kind).collect()
}

/// Returns the number of images of the longest chain: one, and one for each overlay that stayed.
fn chain_length(recipe: &Recipe) -> usize {
    let (mut length, mut longest) = (1, 1);
    for step in &recipe.steps {
        for command in &step.commands {
            let Command::QemuImg(words) = command else { continue };
            match verb_of(words) {
                "create" if words.iter().any(|word| word == "-b") => length += 1,
                "convert" if step.operation.name() == "convert" => length = 1,
                "commit" => length = usize::max(1, length - 1),
                _ => {}
            }
            longest = longest.max(length);
        }
    }
    longest
}
