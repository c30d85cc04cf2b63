use super::*;

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
