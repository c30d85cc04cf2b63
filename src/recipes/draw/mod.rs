//! Draws a recipe from choices: those of random numbers give the same recipe for the same seed and iteration, on any
//! machine; those of bytes give a fuzzer a hold on each.

mod changes;
mod create;
mod writes;
use super::pattern::Pattern;
use super::recipe::{
    AskedDisk, Command, DiskOperation, DiskQuestion, FOLDER, Recipe, RecipeStep, relative_to,
};
use crate::disk::image_format::ImageFormat;
use crate::images::content::entropy::Entropy;
use crate::images::format::list::drawer;
use crate::programs::generate::choices::{ByteChoices, Choices};

/// The number of operations after the creation: from the first number up to the second.
const CHANGES: (u64, u64) = (1, 3);
/// The folder in which some images lie.
const SUBFOLDER: &str = "folder";

/// Returns the recipe of an iteration.
pub fn recipe(rng_seed: u64, iteration: u64) -> Recipe {
    drawn(&mut Entropy::new(seed_of(rng_seed, iteration)))
}

/// Returns the recipe that `input` chooses. Choices for which no bytes are left are always the same.
pub fn recipe_of_bytes(input: &[u8]) -> Recipe {
    drawn(&mut ByteChoices::new(input, Entropy::new(0)))
}

fn drawn(choices: &mut dyn Choices) -> Recipe {
    let mut draft = Draft::new(choices);
    draft.create();
    let (least, most) = CHANGES;
    for _ in 0..least + draft.choices.below(most - least + 1) {
        draft.change();
    }
    draft.ask_everything();
    Recipe { steps: draft.steps }
}

/// Returns the seed of an iteration's own random numbers. Neighbouring iterations have nothing in common.
fn seed_of(rng_seed: u64, iteration: u64) -> u64 {
    let mut entropy = Entropy::new(rng_seed);
    entropy.next_u64() ^ Entropy::new(iteration).next_u64().rotate_left(32)
}

/// A recipe that is being drawn, and what is known of the disk.
struct Draft<'c> {
    choices: &'c mut dyn Choices,
    steps: Vec<RecipeStep>,
    /// The commands of the step that is being drawn.
    commands: Vec<Command>,
    top: DraftImage,
    /// The images below the top, the highest one first.
    below: Vec<DraftImage>,
    /// The number of files that have been named.
    files: usize,
    patterns: Vec<(Pattern, String)>,
    /// The folder for images has been made.
    has_folder: bool,
}

/// An image, as far as the commands let one know it. QEMU may have refused some of them.
#[derive(Clone, Debug, Default)]
struct DraftImage {
    file: String,
    format: ImageFormat,
    /// The virtual size in bytes.
    size: u64,
    /// The cluster, grain or block size in bytes.
    unit: u64,
    has_data_file: bool,
    /// The image takes compressed writes only, one behind the other.
    is_stream: bool,
    /// The first byte behind all compressed writes of a stream.
    stream_end: u64,
    snapshots: Vec<String>,
    bitmaps: Vec<String>,
}

impl<'c> Draft<'c> {
    fn new(choices: &'c mut dyn Choices) -> Self {
        Self {
            choices,
            steps: Vec::new(),
            commands: Vec::new(),
            top: DraftImage::default(),
            below: Vec::new(),
            files: 0,
            patterns: Vec::new(),
            has_folder: false,
        }
    }

    /// Ends the step with the commands that were drawn for it.
    fn finish(&mut self, operation: DiskOperation) {
        // Half of the images are probed, except for those whose guest data may look like a format.
        let is_probed = !drawer(self.top.format).begins_with_data() && self.choices.one_in(2);
        let format = (!is_probed).then(|| self.top.format.name().to_string());
        let disk = AskedDisk { file: self.top.file.clone(), format };
        let commands = std::mem::take(&mut self.commands);
        self.steps.push(RecipeStep { operation, commands, disk, questions: Vec::new() });
        self.ask_two();
    }

    /// Returns a new file name in the iteration's folder.
    fn name(&mut self, format: ImageFormat) -> String {
        self.files += 1;
        format!("disk{}.{}", self.files, format.name())
    }

    /// Returns a new file name. Some images lie in a folder of their own, so that others name them through it.
    fn place_of(&mut self, format: ImageFormat) -> String {
        let name = self.name(format);
        if !self.percent(12) {
            return name;
        }
        if !self.has_folder {
            self.has_folder = true;
            self.commands.push(Command::Folder { name: SUBFOLDER.to_string() });
        }
        format!("{SUBFOLDER}/{name}")
    }

    /// Returns the name by which the image `image` names another one: absolute in some draws.
    fn backing_name(&mut self, image: &str, backing: &str) -> String {
        match self.percent(30) {
            true => format!("{FOLDER}/{backing}"),
            false => relative_to(image, backing),
        }
    }

    /// Returns a file with this content, and has it written if no earlier command did.
    fn pattern(&mut self, content: Pattern) -> String {
        if let Some((_, file)) = self.patterns.iter().find(|(known, _)| *known == content) {
            return file.clone();
        }
        let file = format!("pattern{}", self.patterns.len());
        self.patterns.push((content, file.clone()));
        self.commands.push(Command::Pattern { content, file: file.clone() });
        file
    }

    fn img<const N: usize>(&mut self, arguments: [&str; N]) {
        self.commands.push(Command::QemuImg(arguments.map(str::to_string).to_vec()));
    }

    /// Returns true in `percent` of 100 draws.
    fn percent(&mut self, percent: u64) -> bool {
        self.choices.below(100) < percent
    }

    fn one_of<T: Copy>(&mut self, things: &[T]) -> Option<T> {
        things.get(self.choices.below(things.len() as u64) as usize).copied()
    }

    /// Returns one of some words.
    fn word(&mut self, words: &[&'static str]) -> &'static str {
        self.one_of(words).unwrap_or_default()
    }
}

/// The unit of aligned windows in bytes, if the format's own is not larger.
const WINDOW_UNIT_BYTES: u64 = 64 << 10;
/// The largest disk whose data both sides write to a raw file, in bytes.
const MAX_READ_BYTES: u64 = 4 << 30;

impl Draft<'_> {
    /// Adds the map and one other question to the last step.
    fn ask_two(&mut self) {
        let map = self.map();
        let other = match self.choices.below(10) {
            0 | 1 => self.map(),
            2..=4 => DiskQuestion::Check,
            5 | 6 => DiskQuestion::Info,
            7 => DiskQuestion::Measure,
            _ => DiskQuestion::Read,
        };
        let other = Some(other).filter(|other| *other != map);
        let questions = [map].into_iter().chain(other);
        let questions: Vec<_> = questions.filter(|question| self.can_ask(question)).collect();
        if let Some(step) = self.steps.last_mut() {
            step.questions.extend(questions);
        }
    }

    /// Asks all questions after the last step, some of them for the map of a window, too.
    fn ask_everything(&mut self) {
        use DiskQuestion::{Check, Info, Measure, Read};
        let window = Some(self.map()).filter(|map| *map != DiskQuestion::MAP);
        let all = [DiskQuestion::MAP].into_iter().chain(window).chain([Check, Info, Measure, Read]);
        let all = all.filter(|question| self.can_ask(question)).collect();
        if let Some(step) = self.steps.last_mut() {
            step.questions = all;
        }
    }

    fn can_ask(&self, question: &DiskQuestion) -> bool {
        let is_small = self.top.size <= MAX_READ_BYTES;
        is_small || !matches!(question, DiskQuestion::Read | DiskQuestion::Measure)
    }

    /// Draws the map of a window: in a quarter of the draws it has a start, and in a quarter a length.
    fn map(&mut self) -> DiskQuestion {
        let size = self.top.size;
        let start = self.percent(25).then(|| self.point(0, size / 2));
        let length = self.percent(25).then(|| self.point(WINDOW_UNIT_BYTES, size));
        DiskQuestion::Map { start, length }
    }

    /// Draws a number of bytes between two numbers. Half of them are aligned to 64 KiB, or to the format's unit if that
    /// is larger. A few are zero or past the end.
    fn point(&mut self, least: u64, most: u64) -> u64 {
        let at = least.saturating_add(self.choices.below(most.saturating_sub(least).max(1)));
        // The unit of a raw file is that of its file system.
        let unit = match self.top.format {
            ImageFormat::Raw => WINDOW_UNIT_BYTES,
            _ => self.top.unit.max(WINDOW_UNIT_BYTES),
        };
        match self.choices.below(20) {
            0 => 0,
            1 => self.top.size.saturating_add(self.choices.below(3) * 512),
            2..=10 => at / unit * unit,
            _ => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::recipe::COMPRESSED_WRITE;

    #[test]
    fn a_recipe_depends_on_seed_and_iteration_alone() {
        let recipes: Vec<Recipe> = (0..40).map(|iteration| recipe(1, iteration)).collect();
        for (iteration, drawn) in (0..40).zip(&recipes).collect::<Vec<_>>().into_iter().rev() {
            assert_eq!(recipe(1, iteration), *drawn);
            assert_ne!(recipe(2, iteration), *drawn);
        }
    }

    #[test]
    fn every_action_on_bitmaps_and_snapshots_is_drawn_often() {
        let recipes: Vec<Recipe> = (0..4000).map(|iteration| recipe(1, iteration)).collect();
        for action in [
            "bitmap --add",
            "bitmap --merge",
            "bitmap --clear",
            "bitmap --disable",
            "bitmap --enable",
            "bitmap --remove",
            "snapshot -q -c",
            "snapshot -q -a",
            "snapshot -q -d",
        ] {
            let has = |recipe: &&Recipe| {
                let mut commands = recipe.steps.iter().flat_map(|step| &step.commands);
                commands.any(|command| command.to_string().contains(action))
            };
            let count = recipes.iter().filter(has).count();
            // QEMU refuses some of them, and 1% of all iterations must have the effect.
            assert!(count >= 60, "{action}: {count} of 4000 recipes");
        }
    }

    /// QEMU places the compressed clusters of one request in a random order.
    #[test]
    fn a_request_writes_one_compressed_cluster() {
        let mut several = 0;
        for iteration in 0..4000 {
            for command in recipe(1, iteration).steps.iter().flat_map(|step| &step.commands) {
                let Command::QemuIo { requests, .. } = command else { continue };
                let requests = requests.iter().filter(|it| it.starts_with(COMPRESSED_WRITE));
                let ranges: Vec<[u64; 2]> = requests
                    .map(|request| {
                        let words: Vec<&str> = request.rsplitn(3, ' ').collect();
                        [words[1], words[0]].map(|number| number.parse().unwrap())
                    })
                    .collect();
                let Some([_, cluster_bytes]) = ranges.first().copied() else { continue };
                several += usize::from(ranges.len() > 1);
                for [start, length_bytes] in ranges {
                    assert_eq!(
                        (start % cluster_bytes, length_bytes),
                        (0, cluster_bytes),
                        "{iteration}"
                    );
                }
            }
        }
        assert!(several >= 500, "{several} commands with several compressed writes");
    }
}
