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
