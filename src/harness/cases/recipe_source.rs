//! Recipes as a source of cases: QEMU makes and changes a disk, and the files are judged after each step.

use crate::disk::observer::Observer;
use crate::harness::cases::case::Case;
use crate::harness::cases::pipeline::{Failure, Outcome};
use crate::harness::engine::failure;
use crate::harness::oracles::OracleResult;
use crate::images::damage::Damage;
use crate::images::files::Images;
use crate::processes::TemporaryFolder;
use crate::recipes::RecipeError;
use crate::recipes::draw::recipe_of_bytes;
use crate::recipes::perform::QemuTools;
use crate::recipes::recipe::Recipe;
use crate::recipes::workshop::{MadeDisk, Workshop};

/// QEMU's tools, the recipe of the last run, and the files of its last step.
#[derive(Debug, Default)]
pub(crate) struct RecipeSource {
    tools: Option<QemuTools>,
    /// The folder of the folders of the runs.
    scratch: Option<TemporaryFolder>,
    recipe: Recipe,
    images: Images,
    no_damage: Damage,
}

impl RecipeSource {
    /// Draws the recipe that `input` chooses, for the next run.
    pub(crate) fn draw(&mut self, input: &[u8]) {
        self.recipe = recipe_of_bytes(input);
    }

    /// Carries out the recipe, and passes the files to `judge` after each step. If QEMU cannot
    /// work, it ends the run without a verdict.
    pub(crate) fn run(
        &mut self,
        observer: &dyn Observer,
        mut judge: impl FnMut(&Case) -> OracleResult,
    ) -> Result<Outcome, Box<Failure>> {
        let Self { tools, scratch, recipe, images, no_damage } = self;
        let tools = tools.get_or_insert_with(|| {
            QemuTools::find("qemu-img".as_ref()).unwrap_or_else(|error| not_carried_out(&error))
        });
        let scratch = scratch.get_or_insert_with(|| {
            TemporaryFolder::on_disk().unwrap_or_else(|error| not_carried_out(&error))
        });
        let folder = tempfile::tempdir_in(scratch.path());
        let folder = folder.unwrap_or_else(|error| not_carried_out(&error));
        let mut workshop = Workshop::of_qemu(tools, folder.path());
        let (operations, varies) = (recipe.steps.len(), recipe.varies());
        let mut outcome = Outcome { operations, varies, ..Outcome::default() };
        for (index, step) in recipe.steps.iter().enumerate() {
            let made = workshop.change(step).and_then(|()| workshop.take(&step.disk, images));
            let made = made.unwrap_or_else(|error: RecipeError| not_carried_out(&error));
            let Some(MadeDisk { features, is_any_content, known }) = made else { continue };
            let case = Case::of_file(images, no_damage);
            let case = Case { features, is_any_content, known: &known, ..case };
            outcome.images += 1;
            outcome.effective += 1;
            judge(&case).map_err(|violation| {
                Box::new(Failure { violation: *violation, operations_run: index + 1 })
            })?;
            observer.measured();
        }
        // QEMU has made nothing that can be judged.
        outcome.unsupported = outcome.images == 0;
        Ok(outcome)
    }

    /// Returns the recipe of the last run.
    pub(crate) fn recipe(&self) -> &Recipe {
        &self.recipe
    }
}

/// Ends the run without a verdict.
fn not_carried_out(error: &dyn std::fmt::Display) -> ! {
    failure::fail(format!("a recipe cannot be carried out: {error}"))
}
