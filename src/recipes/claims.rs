//! The features of the images that a recipe makes, so that a campaign can leave out those that a program lacks.

use crate::base::features::{Feature, FeatureSet};
use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::images::format::list::drawer;

use super::recipe::{ABORT, COMPRESSED_WRITE, Command, Recipe, value_of, verb_of};

/// Returns the features that a recipe names.
pub(crate) fn features_of(recipe: &Recipe) -> FeatureSet {
    let commands = recipe.steps.iter().flat_map(|step| &step.commands);
    commands.fold(FeatureSet::EMPTY, |features, command| features.with(of_command(command)))
}

/// Returns the features that a command names. A program of this project has all of them: a campaign that leaves out a
/// feature leaves out programs.
pub(super) fn of_command(command: &Command) -> FeatureSet {
    match command {
        Command::QemuImg(words) => of_image(words),
        Command::QemuIo { requests, .. } => {
            let mut features = FeatureSet::EMPTY;
            let is_compressed = |request: &String| request.starts_with(COMPRESSED_WRITE);
            features.add_if(requests.iter().any(is_compressed), Feature::Compressed);
            let is_abort = requests.iter().any(|request| request == ABORT);
            features.add_if(is_abort, Feature::Dirty);
            features.add_if(is_abort, Feature::OutOfDateRefcounts);
            features
        }
        Command::Program { .. } => FeatureSet::of(&Feature::ALL),
        Command::Folder { .. } | Command::Pattern { .. } | Command::Damage { .. } => {
            FeatureSet::EMPTY
        }
    }
}

fn of_image(words: &[String]) -> FeatureSet {
    let value = |option| value_of(words, option);
    let mut features = FeatureSet::EMPTY;
    let verb = verb_of(words);
    features.add_if(verb == "snapshot", Feature::Snapshots);
    features.add_if(verb == "bitmap", Feature::Bitmaps);
    let backing = value("-F").and_then(|name| ImageFormat::named(name.as_bytes()));
    match backing {
        Some(ImageFormat::Qcow2) => features.add_if(true, Feature::Qcow2Backing),
        Some(format) => features.add_if(true, Feature::images_of(format)),
        None => {}
    }
    let made = match verb {
        "create" => value("-f"),
        "convert" => value("-O"),
        _ => None,
    };
    let options: Vec<&str> = value("-o").unwrap_or_default().split(',').collect();
    if verb == "amend" {
        amended(&options, &mut features);
    }
    match made.and_then(|name| ImageFormat::named(name.as_bytes())) {
        Some(ImageFormat::Qcow2) => {
            features.add_if(true, Feature::Qcow2);
            features.add_if(words.iter().any(|word| word == "-c"), Feature::Compressed);
            of_qcow2(&options, &mut features);
        }
        Some(ImageFormat::Raw) | None => {}
        Some(format) => {
            features.add_if(true, Feature::images_of(format));
            let has_parent = backing.is_some() && format.facts().has_own_parents;
            features.add_if(has_parent, Feature::Parents);
            let has_files = options.iter().any(|option| drawer(format).creates_extents(option));
            features.add_if(has_files, Feature::Extents);
        }
    }
    features
}

/// Adds the features that creation options of a qcow2 image name, or that are QEMU's defaults.
fn of_qcow2(options: &[&str], features: &mut FeatureSet) {
    let number = |name: &str, default: u64| {
        let mut values = options.iter().filter_map(|option| option.strip_prefix(name));
        values.next_back().and_then(|value| value.parse::<u64>().ok()).unwrap_or(default)
    };
    let has = |option: &str| options.contains(&option);
    features.add_if(has("compat=0.10"), Feature::Version2);
    features.add_if(!has("compat=0.10"), Feature::Version3);
    let bits = number("cluster_size=", 65_536).trailing_zeros();
    if let Some(size) = ClusterSize::from_bits(bits) {
        features.add_if(true, Feature::clusters(size));
    }
    let order = number("refcount_bits=", 16).trailing_zeros();
    features.add_if(true, Feature::refcounts(order.min(6)));
    features.add_if(has("extended_l2=on"), Feature::ExtendedL2);
    features.add_if(has("compression_type=zstd"), Feature::Zstd);
    features.add_if(has("lazy_refcounts=on"), Feature::LazyRefcounts);
    features.add_if(options.iter().any(|it| it.starts_with("data_file=")), Feature::DataFile);
    features.add_if(has("data_file_raw=on"), Feature::RawDataFile);
}

/// Adds the features that an image may have after `amend`.
fn amended(options: &[&str], features: &mut FeatureSet) {
    features.add_if(options.contains(&"compat=0.10"), Feature::Version2);
    features.add_if(options.contains(&"compat=1.1"), Feature::Version3);
    features.add_if(options.contains(&"lazy_refcounts=on"), Feature::LazyRefcounts);
    features.add_if(options.contains(&"data_file_raw=on"), Feature::RawDataFile);
    let widths = options.iter().filter_map(|it| it.strip_prefix("refcount_bits=")?.parse().ok());
    for bits in widths {
        let bits: u64 = bits;
        features.add_if(true, Feature::refcounts(bits.trailing_zeros().min(6)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::draw;

    #[test]
    fn options_name_features() {
        let line = "create -q -f qcow2 -o compat=1.1,cluster_size=4096,refcount_bits=1,extended_l2=on,\
                    compression_type=zstd,data_file=a.data -b a.raw -F raw a.qcow2";
        let words: Vec<String> = line.split(' ').map(str::to_string).collect();
        let names = "version 3, clusters of 4 KiB, refcounts of 1 bit, extended L2 entries, compression type zstd, \
                     a raw backing file, an external data file, qcow2 images";
        assert_eq!(of_image(&words).to_string(), names);
    }

    #[test]
    fn recipes_with_and_without_a_feature_are_drawn() {
        for feature in
            [Feature::Compressed, Feature::Qcow2Backing, Feature::Snapshots, Feature::Zstd]
        {
            let has = |number: &u64| features_of(&draw::recipe(1, *number)).has(feature);
            assert!((0..50).any(|number| has(&number)), "{feature:?}");
            assert!((0..50).any(|number| !has(&number)), "{feature:?}");
        }
    }
}
