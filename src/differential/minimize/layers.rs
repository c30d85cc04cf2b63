//! Removes images from a backing chain: one between two others, the top one, or all that lie below one.

use super::search::{CommandPlace, RecipeSearch, words_mut};
use crate::recipes::recipe::{Command, Recipe, named_by, relative_to, value_of, verb_of};

/// Removes images.
pub(super) fn reduce(search: &mut RecipeSearch<'_>) {
    search.each_command(|search, command, place| {
        let Some(overlay) = Overlay::of(command) else { return };
        let without_image = overlay.removed(search.recipe());
        if search.keep(without_image) {
            return;
        }
        if let Some(alone) = overlay.without_backing(search.recipe(), place) {
            search.keep(alone);
        }
    });
}

/// An image that `qemu-img create` puts on top of another.
struct Overlay {
    file: String,
    backing: String,
    backing_format: String,
}

impl Overlay {
    /// Returns the overlay that a command creates.
    fn of(command: &Command) -> Option<Self> {
        let Command::QemuImg(words) = command else { return None };
        if verb_of(words) != "create" {
            return None;
        }
        Some(Self {
            file: file_of(words)?.to_string(),
            backing: backing_of(words)?,
            backing_format: value_of(words, "-F")?.to_string(),
        })
    }

    /// Returns the recipe without this image. Overlays and questions that name it name the image below it instead.
    fn removed(&self, recipe: &Recipe) -> Recipe {
        let mut recipe = recipe.clone();
        for step in &mut recipe.steps {
            step.commands.retain(|command| !self.is_changed_by(command));
            for command in &mut step.commands {
                self.lower_backing(command);
            }
            if step.disk.file == self.file {
                step.disk.file.clone_from(&self.backing);
                if let Some(format) = &mut step.disk.format {
                    format.clone_from(&self.backing_format);
                }
            }
        }
        recipe
    }

    /// Reports whether a command makes or changes this image.
    fn is_changed_by(&self, command: &Command) -> bool {
        match command {
            Command::QemuImg(words) => {
                let mut named = words.iter().skip(1).filter(|word| **word == self.file);
                named.next().is_some() && value_of(words, "-b") != Some(&self.file)
            }
            Command::Folder { .. } => false,
            Command::QemuIo { file, .. }
            | Command::Program { file, .. }
            | Command::Pattern { file, .. }
            | Command::Damage { file, .. } => *file == self.file,
        }
    }

    /// Replaces this image by the one below it as the backing file that a command names.
    fn lower_backing(&self, command: &mut Command) {
        let Command::QemuImg(words) = command else { return };
        if backing_of(words).as_ref() != Some(&self.file) {
            return;
        }
        let name = file_of(words).map(|file| relative_to(file, &self.backing));
        let name = name.unwrap_or_default();
        for (option, value) in [("-b", &name), ("-F", &self.backing_format)] {
            let at = words.iter().position(|word| word == option);
            if let Some(word) = at.and_then(|at| words.get_mut(at.saturating_add(1))) {
                word.clone_from(value);
            }
        }
    }

    /// Returns the recipe in which this image has no backing file, and the size of the image below.
    fn without_backing(&self, recipe: &Recipe, place: CommandPlace) -> Option<Recipe> {
        let is_sized = |command: &&Command| match command {
            Command::QemuImg(words) => words.iter().rev().nth(1) == Some(&self.backing),
            _ => false,
        };
        let mut commands = recipe.steps.iter().flat_map(|step| &step.commands);
        let size = match commands.find(is_sized) {
            Some(Command::QemuImg(words)) => words.last().cloned(),
            _ => None,
        };
        let mut recipe = recipe.clone();
        let words = words_mut(&mut recipe, place)?;
        for option in ["-b", "-F"] {
            let at = words.iter().position(|word| word == option)?;
            words.drain(at..at.saturating_add(2).min(words.len()));
        }
        if words.last() == Some(&self.file) {
            words.push(size?);
        }
        Some(recipe)
    }
}

/// Returns the image that a command makes or changes. A size may follow it.
fn file_of(words: &[String]) -> Option<&str> {
    let is_size = |word: &&String| word.parse::<u64>().is_ok();
    words.iter().rev().find(|word| !is_size(word)).map(String::as_str)
}

/// Returns the file that a command names as the backing file.
fn backing_of(words: &[String]) -> Option<String> {
    Some(named_by(file_of(words)?, value_of(words, "-b")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::recipe::{AskedDisk, DiskOperation, DiskQuestion, RecipeStep};

    fn create(line: &str) -> Command {
        Command::QemuImg(line.split(' ').map(str::to_string).collect())
    }

    fn write(file: &str) -> Command {
        let requests = vec!["write 0 512".to_string()];
        Command::QemuIo { options: Vec::new(), requests, file: file.into() }
    }

    /// A qcow2 image on a qcow2 image on a raw file.
    fn chain() -> Recipe {
        let commands = vec![
            create("create -f raw a.raw 4096"),
            create("create -f qcow2 -b {folder}/a.raw -F raw b.qcow2"),
            write("b.qcow2"),
            create("create -f qcow2 -b b.qcow2 -F qcow2 c.qcow2 8192"),
            write("c.qcow2"),
        ];
        let disk = AskedDisk { file: "c.qcow2".into(), format: Some("qcow2".into()) };
        let questions = vec![DiskQuestion::MAP];
        let operation = DiskOperation::Create;
        Recipe { steps: vec![RecipeStep { operation, commands, disk, questions }] }
    }

    fn overlay(recipe: &Recipe, at: usize) -> Overlay {
        Overlay::of(&recipe.steps[0].commands[at]).unwrap()
    }

    #[test]
    fn an_image_between_two_others_is_removed() {
        let recipe = chain();
        let removed = overlay(&recipe, 1).removed(&recipe);
        let expected = vec![
            create("create -f raw a.raw 4096"),
            create("create -f qcow2 -b a.raw -F raw c.qcow2 8192"),
            write("c.qcow2"),
        ];
        assert_eq!(removed.steps[0].commands, expected);
        assert_eq!(removed.steps[0].disk, recipe.steps[0].disk);
    }

    #[test]
    fn questions_about_a_removed_top_image_are_about_the_one_below() {
        let recipe = chain();
        let removed = overlay(&recipe, 3).removed(&recipe);
        assert_eq!(removed.steps[0].commands, recipe.steps[0].commands[..3]);
        assert_eq!(removed.steps[0].disk.file, "b.qcow2");
    }

    #[test]
    fn an_image_without_a_backing_file_has_the_size_of_the_one_below() {
        let recipe = chain();
        let alone = overlay(&recipe, 1).without_backing(&recipe, (0, 1)).unwrap();
        assert_eq!(alone.steps[0].commands[1], create("create -f qcow2 b.qcow2 4096"));
        let sized = overlay(&recipe, 3).without_backing(&recipe, (0, 3)).unwrap();
        assert_eq!(sized.steps[0].commands[3], create("create -f qcow2 c.qcow2 8192"));
    }
}
