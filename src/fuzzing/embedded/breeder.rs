//! Makes the inputs of a campaign: children of kept ones, generated ones, and those with which a campaign without a
//! corpus begins. Inputs are programs, files, or choices of recipes. A mutation is chosen more often for a while if
//! children that it bred were kept.

use serde::{Deserialize, Serialize};

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::fuzzing::mutators::{
    Breeding, FileBreeding, MUTATIONS, Used, Weights, breed, breed_file,
};
use crate::harness::cases::target::Inputs;
use crate::harness::cases::tracer::TraceRun;
use crate::harness::{Harness, Walker};
use crate::images::content::entropy::Entropy;
use crate::images::limits::Limits;
use crate::programs::Program;
use crate::programs::generate::{build_nothing, generate_any, generate_writes, writing_begins};
use crate::programs::operand::{Base, Number, Size};
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::prologue::{PROLOGUE_BYTES, Prologue};

use super::pool::PoolEntry;
use super::subject::FuzzSettings;

/// The number of operations of a generated program.
const GENERATED_OPERATIONS: usize = 12;
/// The longest file that the loop makes: as long as those of libFuzzer (`fuzz/options/raw_image.options`). A child may
/// be as long as its parent.
const MAX_MADE_FILE_BYTES: u64 = 256 << 10;
/// The number of programs that are tried until one builds a file that is short enough.
const FILE_TRIES: usize = 16;
/// The number of recipes with which a campaign begins.
const FIRST_RECIPES: usize = 8;
/// The number of bytes that choose a generated recipe: most recipes use fewer.
const GENERATED_CHOICE_BYTES: usize = 384;
/// The most bytes that a child has for the choices of a recipe.
const MAX_CHOICE_BYTES: usize = 1024;
/// Makes inputs, with buffers that are reused.
#[derive(Debug, Default)]
pub(super) struct Breeder {
    programs: [Program; 2],
    /// Builds files. A campaign with programs has none.
    builder: Option<Box<Harness>>,
}

impl Breeder {
    /// Returns a child of `parent`, which may have parts of `other`, and the mutations that made it. `trace` runs the
    /// parent again.
    pub(super) fn child(
        &mut self,
        settings: &FuzzSettings,
        (parent, other): (&PoolEntry, &PoolEntry),
        weights: &Weights,
        trace: &mut TraceRun,
        rng_seed: u64,
    ) -> (Vec<u8>, Used) {
        match settings.inputs {
            Inputs::Programs => {
                let [program, partner] = &mut self.programs;
                program.decode_from(&parent.input);
                partner.decode_from(&other.input);
                let breeding = Breeding {
                    other: partner,
                    weights,
                    limits: settings.limits,
                    max_operations: settings.max_operations,
                    sound: parent.sound,
                };
                let used = breed(program, &breeding, trace, rng_seed);
                (program.encode(), used)
            }
            Inputs::Files | Inputs::Recipes => {
                let mut file = parent.input.clone();
                let most = match settings.inputs {
                    Inputs::Recipes => MAX_CHOICE_BYTES,
                    _ => MAX_MADE_FILE_BYTES as usize,
                };
                let max_bytes = file.len().max(most);
                let sound = parent.sound;
                let breeding = FileBreeding { other: &other.input, weights, max_bytes, sound };
                let used = breed_file(&mut file, &breeding, trace, rng_seed);
                (file, used)
            }
        }
    }

    /// Returns a generated input, which depends on no other: half of them have random bytes.
    pub(super) fn generated(&mut self, settings: &FuzzSettings, entropy: &mut Entropy) -> Vec<u8> {
        match (entropy.one_in(2), settings.inputs) {
            (true, Inputs::Programs) => program(settings, entropy).encode(),
            (true, Inputs::Files) => {
                let mut files = (0..FILE_TRIES).map(|_| self.file(&program(settings, entropy)));
                files.find_map(|file| file).unwrap_or_default()
            }
            (_, Inputs::Recipes) => choices(entropy),
            (false, inputs) => {
                let operations = 4 + entropy.below(40) as usize;
                let length = PROLOGUE_BYTES + operations * OPERATION_BYTES;
                let mut bytes: Vec<u8> = (0..length).map(|_| entropy.next_u64() as u8).collect();
                if inputs == Inputs::Programs {
                    // The encoding of this version.
                    bytes[0] = 0;
                }
                bytes
            }
        }
    }

    /// Returns the inputs with which a campaign begins if its corpus is empty: the empty program, and with requests one
    /// for which the engine creates the image, or files of the formats that have short ones.
    pub(super) fn first(&mut self, inputs: Inputs, limits: Limits) -> Vec<Vec<u8>> {
        match inputs {
            Inputs::Programs => {
                let creates = (limits.requests > 0).then(new_image).flatten();
                let programs = [Program::default()].into_iter().chain(creates);
                programs.map(|program| program.encode()).collect()
            }
            Inputs::Files => {
                let bases = [Base::Qcow2].into_iter().chain(Base::other_formats().map(Base::of));
                bases.filter_map(|base| self.first_of(base)).collect()
            }
            Inputs::Recipes => {
                let mut entropy = Entropy::new(0);
                (0..FIRST_RECIPES).map(|_| choices(&mut entropy)).collect()
            }
        }
    }

    /// Returns the file of a program in this format, with the smallest clusters, if one is short enough. A VHDX image
    /// of a program has some MiB.
    fn first_of(&mut self, base: Base) -> Option<Vec<u8>> {
        let program = |rng_seed| {
            let mut program = generate_any(rng_seed, GENERATED_OPERATIONS);
            let cluster_bits = Prologue::default().cluster_bits;
            program.prologue = Prologue { base, cluster_bits, ..program.prologue };
            program
        };
        (0..FILE_TRIES as u64).find_map(|rng_seed| self.file(&program(rng_seed)))
    }

    fn file(&mut self, program: &Program) -> Option<Vec<u8>> {
        let builder = self.builder.get_or_insert_with(|| Box::new(Harness::new(Walker::default())));
        built_file(builder, &program.encode(), MAX_MADE_FILE_BYTES)
    }
}

/// Returns a program for which the engine creates the image. Few mutations of the empty program lead there: nothing may
/// be built. Its disk ends inside a cluster, which takes larger clusters than the smallest ones.
fn new_image() -> Option<Program> {
    let (cluster_bits, size) = (Number::new(12)?, Size::new(9, 12, 512)?);
    let prologue = Prologue { cluster_bits, size, ..Prologue::default() };
    let mut program = Program { prologue, ..Program::default() };
    build_nothing(&mut program);
    program.operations.push(writing_begins());
    Some(program)
}

/// Returns random bytes that choose a recipe.
fn choices(entropy: &mut Entropy) -> Vec<u8> {
    (0..GENERATED_CHOICE_BYTES).map(|_| entropy.next_u64() as u8).collect()
}

/// Generates a program, with requests if the target has them.
fn program(settings: &FuzzSettings, entropy: &mut Entropy) -> Program {
    let rng_seed = entropy.next_u64();
    match settings.limits.requests {
        0 => generate_any(rng_seed, GENERATED_OPERATIONS),
        _ => generate_writes(rng_seed, GENERATED_OPERATIONS),
    }
}

/// Returns the file of a program's image, if it is the only file and has at most `max_bytes`.
pub(crate) fn built_file(harness: &mut Harness, program: &[u8], max_bytes: u64) -> Option<Vec<u8>> {
    harness.build(program);
    let files = harness.images().top();
    let is_alone = harness.images().layers().len() == 1 && files.extents.all().is_empty();
    let length_bytes = files.image.length_bytes();
    if !is_alone || files.has_data_file || length_bytes > max_bytes {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length_bytes).ok()?];
    files.image.read_at(HostOffset::ZERO, &mut bytes).ok()?;
    Some(bytes)
}

/// The number of children after which all earlier counts are halved.
const HALF_LIFE: u64 = 1 << 13;
/// The count that one kept child adds. It is high because few children are kept, and halving must not erase them.
const KEPT: u64 = 1 << 10;
/// The credit that leaves a weight as it is. Credit changes a weight at most to a quarter or to four times its value.
const EVEN: u64 = 64;
const MIN_CREDIT: u64 = EVEN / 4;
const MAX_CREDIT: u64 = EVEN * 4;
/// The number of children that each mutation is assumed to have had before the first, with the average share kept.
const CHILDREN: u128 = 1 << 8;

/// The number of children that each mutation helped to breed, and the number of those that were kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    bred: u64,
    children: Weights,
    kept: Weights,
}

/// The worth of a mutation, for people and scripts.
#[derive(Debug, Serialize)]
pub struct MutationWorth {
    /// The name.
    pub mutation: &'static str,
    /// The share of all choices of a mutation that fall on this one, in percent.
    pub chosen_percent: f64,
    /// The number of children that it helped to breed. Older children count less.
    pub children: u64,
    /// The number of those that were kept. Older ones count less, so this has a fraction.
    pub kept: f64,
    /// The factor by which its children change its weight, from 0.25 to 4.
    pub credit: f64,
}

impl Credit {
    /// Returns the present weight of each mutation.
    pub fn weights(&self) -> Weights {
        let all = |counts: &Weights| u128::from(counts.iter().sum::<u64>());
        let (children, kept) = (all(&self.children) + CHILDREN, all(&self.kept) + u128::from(KEPT));
        let mut weights = Weights::default();
        for (place, weight) in weights.iter_mut().enumerate() {
            // The share of this mutation's children that were kept, divided by the share of all children that were.
            // The assumed children keep the quotient near 1 while a mutation has few of its own.
            let own = u128::from(self.kept[place]) * children + CHILDREN * kept;
            let even = (u128::from(self.children[place]) + CHILDREN) * kept;
            let credit = (own * u128::from(EVEN) / even) as u64;
            *weight = MUTATIONS[place].weight * credit.clamp(MIN_CREDIT, MAX_CREDIT);
        }
        weights
    }

    /// Returns the worth of each mutation of these inputs, the one that is worth most first.
    pub fn worth(&self, inputs: Inputs) -> Vec<MutationWorth> {
        let weights = self.weights();
        let of_inputs = |place: &(usize, u64)| MUTATIONS[place.0].changes(inputs);
        let all: u64 = weights.into_iter().enumerate().filter(of_inputs).map(|(_, it)| it).sum();
        let worth = |(place, weight): (usize, u64)| MutationWorth {
            mutation: MUTATIONS[place].name,
            chosen_percent: 100.0 * weight as f64 / all as f64,
            children: self.children[place],
            kept: self.kept[place] as f64 / KEPT as f64,
            credit: weight as f64 / (MUTATIONS[place].weight * EVEN) as f64,
        };
        let mut mutations: Vec<_> =
            weights.into_iter().enumerate().filter(of_inputs).map(worth).collect();
        mutations.sort_by(|one, other| other.credit.total_cmp(&one.credit));
        mutations
    }

    /// Counts a child that the mutations `used` bred, and whether it was kept.
    pub fn child(&mut self, used: Used, kept: bool) {
        for place in used.iter() {
            self.children[place] += 1;
            self.kept[place] += KEPT * u64::from(kept);
        }
        self.bred += 1;
        if self.bred.is_multiple_of(HALF_LIFE) {
            self.children.iter_mut().chain(&mut self.kept).for_each(|count| *count /= 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::image_format::ImageFormat;
    use crate::formats::probe;
    use crate::programs::generate::{GenerateSettings, generate};
    use crate::programs::interpreter::Vm;

    #[test]
    fn a_campaign_begins_with_files_of_several_formats() {
        let files = Breeder::default().first(Inputs::Files, Limits::WALKED);
        let formats: Vec<_> = files.iter().map(|file| probe(&file.as_slice()).unwrap()).collect();
        assert_eq!(formats, [ImageFormat::Qcow2, ImageFormat::Vpc, ImageFormat::Vmdk]);
    }

    #[test]
    fn a_campaign_of_a_writer_begins_with_an_image_of_the_engine() {
        let empty = [Program::default().encode()];
        assert_eq!(Breeder::default().first(Inputs::Programs, Limits::WALKED), empty);
        let programs = Breeder::default().first(Inputs::Programs, Limits::WRITTEN);
        let [first, creates] = &*programs else { panic!("{} programs", programs.len()) };
        assert_eq!([first], empty.each_ref());
        let program = Program::decode(creates);
        let mut vm = Vm::new();
        vm.begin(&program.prologue, Limits::WRITTEN);
        for operation in &program.operations {
            vm.step(*operation);
        }
        let image = vm.new_image().unwrap();
        assert!(!image.size_bytes.is_multiple_of(1 << image.cluster_bits));
    }

    /// Returns the record of a child that only the mutation at `place` has bred.
    fn used(place: usize) -> Used {
        let mut weights = Weights::default();
        weights[place] = 1;
        let mut entropy = Entropy::new(1);
        loop {
            let mut program = generate(1, GenerateSettings { operations: 20, compressed: true });
            let breeding = Breeding {
                other: &Program::default(),
                weights: &weights,
                limits: Limits::WALKED,
                max_operations: 64,
                sound: true,
            };
            let used = breed(&mut program, &breeding, &mut || None, entropy.next_u64());
            if used.iter().eq([place]) {
                return used;
            }
        }
    }

    #[test]
    fn mutations_whose_children_are_kept_gain_weight_and_lose_it_later() {
        let mut credit = Credit::default();
        let even = credit.weights();
        assert!(even.iter().zip(MUTATIONS).all(|(own, it)| *own == it.weight * EVEN));
        let (insert, delete) = (used(0), used(1));
        for at in 0..4000 {
            credit.child(insert, at % 10 == 0);
            credit.child(delete, false);
        }
        let paid = credit.weights();
        assert!(paid[0] > even[0] && paid[1] < even[1], "{paid:?}");
        assert!(paid[1] >= even[1] / 4 && paid[0] <= even[0] * 4, "{paid:?}");
        (0..20 * HALF_LIFE).for_each(|_| credit.child(delete, false));
        assert!(credit.weights()[0] < paid[0], "{:?}", credit.weights());
    }
}
