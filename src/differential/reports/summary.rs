//! The summary of a campaign, as JSON and as a page: its divergences, and its iterations in numbers: how many had each
//! format, feature, operation and so on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use maud::{Markup, html};
use serde::Serialize;

use super::{DivergenceReport, ReportOrigin, Reports, describe_known};
use crate::base::error::Error;
use crate::differential::divergence::{cause_of, reason_of};
use crate::differential::iteration::{Course, format_of};
use crate::differential::sides::CpuSeconds;
use crate::findings::report::page::document;
use crate::harness::KnownFindings;
use crate::recipes::recipe::{Command, Recipe, RecipeStep, value_of, verb_of};

/// The work and the findings of a campaign.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The seed of the campaign.
    pub rng_seed: u64,
    /// The version of qemu-img.
    pub qemu_version: String,
    /// The program under test.
    pub tested: String,
    /// The campaign has carried out all iterations.
    pub is_complete: bool,
    /// The time since the start, in seconds.
    pub seconds: f64,
    /// Iterations a second.
    pub rate: f64,
    /// The CPU time, also that of minimizing divergences.
    pub cpu_seconds: CpuSeconds,
    /// The share of the CPU time that QEMU's processes took, from 0 to 1.
    pub qemu_share: f64,
    /// The number of iterations that failed: a process could not be started, or a file could not be read or written.
    pub failed: u64,
    /// The new divergences, by fingerprint.
    pub found: BTreeMap<String, FoundDivergence>,
    /// The known divergences that occurred, by the fingerprint in the list.
    pub known: BTreeMap<String, KnownDivergence>,
    /// The shares of the iterations.
    pub distribution: Distribution,
}

impl Summary {
    /// Counts the known divergences of an iteration.
    pub(in crate::differential) fn count_known(
        &mut self,
        origin: ReportOrigin<'_>,
        known: &KnownFindings,
        course: &Course,
    ) {
        for (fingerprint, met) in &course.known {
            let times = self.known.get(fingerprint).map_or(0, |counted| counted.times);
            if times == 0
                && let Some(finding) = known.iter().find(|it| it.fingerprint == *fingerprint)
            {
                let reason = reason_of(cause_of(known, finding));
                let (commands, issue) = describe_known(origin, met, reason);
                let iteration = origin.iteration;
                let first = KnownDivergence { times, iteration, commands, issue };
                self.known.insert(fingerprint.clone(), first);
            }
            if let Some(counted) = self.known.get_mut(fingerprint) {
                counted.times = counted.times.saturating_add(1);
            }
        }
    }

    /// Computes the rates, after this time and CPU time.
    pub fn measure(&mut self, elapsed: Duration, cpu: CpuSeconds) {
        self.seconds = elapsed.as_secs_f64();
        self.rate = self.distribution.iterations as f64 / self.seconds.max(1e-3);
        self.cpu_seconds = cpu;
        let [(_, qemu_share), ..] = cpu.shares();
        self.qemu_share = qemu_share;
    }
}

/// A known divergence that occurred in a campaign.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KnownDivergence {
    /// The number of iterations that showed it.
    pub times: u64,
    /// One of them.
    pub iteration: u64,
    /// The shell commands of that iteration, up to the divergence.
    pub commands: Vec<String>,
    /// The text of an issue about it.
    #[serde(skip)]
    pub issue: String,
}

/// A divergence of a campaign.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FoundDivergence {
    /// The number of iterations that met it.
    pub times: u64,
    /// The first of them.
    pub iteration: u64,
    /// The difference in the minimized image.
    pub detail: String,
    /// The shell commands that show it.
    pub commands: Vec<String>,
    /// The folder of the report, inside the folder of all reports.
    pub folder: String,
}

impl FoundDivergence {
    /// Returns the divergence of a report, which this many iterations met.
    pub fn of(report: &DivergenceReport, times: u64) -> Self {
        Self {
            times,
            iteration: report.iteration,
            detail: report.detail.clone(),
            commands: report.commands.clone(),
            folder: report.folder.clone(),
        }
    }
}

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

/// Writes the summary of a campaign to the folder of its reports, for programs and for people.
///
/// # Errors
/// A file cannot be written.
pub fn save(summary: &Summary, reports: &Reports) -> Result<(), Error> {
    let json = serde_json::to_vec_pretty(summary)
        .map_err(|error| Error::file(reports.dir(), error.into()))?;
    reports.replace("summary.json", &json)?;
    reports.replace("index.html", render(summary).as_bytes())
}

/// Returns the page.
fn render(summary: &Summary) -> String {
    let title = match summary.found.len() {
        0 => "No divergence".to_string(),
        1 => "1 divergence".to_string(),
        count => format!("{count} divergences"),
    };
    let style = if summary.found.is_empty() { "fine" } else { "violation" };
    let body = html! {
        header {
            h1 .(style) { (title) }
            (facts(summary))
            nav aria-label="Sections" {
                a href="#divergences" { "Divergences" } " "
                a href="#known" { "Known divergences" } " "
                a href="#distribution" { "Distribution" }
            }
        }
        main {
            section #divergences aria-labelledby="divergences-h" {
                h2 #divergences-h { "Divergences" }
                @if summary.found.is_empty() { p { "None." } }
                @for (fingerprint, found) in &summary.found { (divergence(fingerprint, found)) }
            }
            section #known aria-labelledby="known-h" {
                h2 #known-h { "Known divergences" }
                @if summary.known.is_empty() { p { "None occurred." } } @else {
                    @let known = summary.known.iter().map(|(name, known)| (name, &known.times));
                    (counts("docs/quirks.md describes those of QEMU", known, summary))
                }
            }
            section #distribution aria-labelledby="distribution-h" {
                h2 #distribution-h { "Distribution" }
                @for (heading, group) in summary.distribution.groups() {
                    (counts(heading, group.iter(), summary))
                }
            }
        }
    };
    document(&title, &body)
}

fn facts(summary: &Summary) -> Markup {
    let Summary { rng_seed, qemu_version, tested, seconds, rate, is_complete, .. } = summary;
    let iterations = summary.distribution.iterations;
    html! {
        dl {
            dt { "Seed" } dd { (rng_seed) }
            dt { "Iterations" } dd {
                (iterations) " in " (format!("{seconds:.0} s, {rate:.1} a second"))
                @if !is_complete { ", not complete" }
            }
            dt { "CPU time" } dd {
                @for (index, (name, share)) in summary.cpu_seconds.shares().iter().enumerate() {
                    @if index > 0 { ", " }
                    (name) " " (format!("{:.0}%", share * 100.0))
                }
            }
            dt { "QEMU" } dd { (qemu_version) }
            dt { "Tested" } dd { (tested) }
        }
    }
}

fn divergence(fingerprint: &str, found: &FoundDivergence) -> Markup {
    let FoundDivergence { times, iteration, detail, commands, folder } = found;
    html! {
        article {
            h3 { (fingerprint) }
            p {
                "Met by " (times) @if *times == 1 { " iteration" } @else { " iterations" }
                ", first by iteration " (iteration) "."
            }
            @if !folder.is_empty() {
                p { "Files: " a href=(folder) { (folder) } }
            }
            p.detail { (detail) }
            pre { @for command in commands { (command) "\n" } }
        }
    }
}

/// Returns a table of counts, with their shares of all iterations.
fn counts<'c>(
    caption: &str,
    counts: impl Iterator<Item = (&'c String, &'c u64)>,
    summary: &Summary,
) -> Markup {
    let all = summary.distribution.iterations.max(1) as f64;
    html! {
        div.scroll { table {
            caption { (caption) }
            thead { tr { th scope="col" { "Name" } th scope="col" { "Iterations" } th scope="col" { "Share" } } }
            tbody {
                @for (name, count) in counts {
                    tr {
                        th scope="row" { (name) }
                        td.number { (count) }
                        td.number { (format!("{:.1}%", *count as f64 / all * 100.0)) }
                    }
                }
            }
        } }
    }
}
