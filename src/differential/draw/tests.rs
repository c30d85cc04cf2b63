use super::*;

#[test]
fn a_recipe_depends_on_seed_and_iteration_alone() {
    let recipes: Vec<Recipe> = (0..40).map(|iteration| recipe(1, iteration)).collect();
    for (iteration, drawn) in (0..40).zip(&recipes).collect::<Vec<_>>().into_iter().rev() {
        assert_eq!(recipe(1, iteration), *drawn);
        assert_ne!(recipe(2, iteration), *drawn);
    }
}
