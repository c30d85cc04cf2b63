//! Makes the inputs of a campaign: children of kept ones, generated ones, and those with which a campaign without a
//! corpus begins. Inputs are programs, files, or choices of recipes.

use crate::base::limits::MAX_OPERATIONS;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::fuzzing::mutators::{
    FileContext, MutationContext, WEIGHTS, mutate_file, mutate_program,
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

use super::scheduler::Testcase;
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
pub(super) struct InputGenerator {
    programs: [Program; 2],
    /// Builds files. A campaign with programs has none.
    builder: Option<Box<Harness>>,
}

impl InputGenerator {
    /// Returns a child of `parent`, which may have parts of `other`. `trace` runs the parent again.
    pub(super) fn child(
        &mut self,
        settings: &FuzzSettings,
        (parent, other): (&Testcase, &Testcase),
        trace: &mut TraceRun,
        rng_seed: u64,
    ) -> Vec<u8> {
        let (entropy, sound) = (Entropy::new(rng_seed), parent.sound);
        let most_bytes = match settings.inputs {
            Inputs::Programs => {
                let [program, partner] = &mut self.programs;
                program.decode_from(&parent.input);
                partner.decode_from(&other.input);
                let (limits, other) = (settings.limits, Some(&*partner));
                let most = settings.max_operations.min(MAX_OPERATIONS);
                let mut context = MutationContext { entropy, limits, most, other, sound, trace };
                mutate_program(program, &mut context, &WEIGHTS);
                return program.encode();
            }
            Inputs::Files => MAX_MADE_FILE_BYTES as usize,
            Inputs::Recipes => MAX_CHOICE_BYTES,
        };
        let mut file = parent.input.clone();
        let (other, max_bytes) = (&other.input[..], file.len().max(most_bytes));
        let mut context = FileContext { entropy, other, max_bytes, sound, trace };
        mutate_file(&mut file, &mut context, &WEIGHTS);
        file
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

    /// Returns the file of a program in this format, with the smallest clusters, if one is short enough. The
    /// images of some formats have at least some MiB.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::image_format::ImageFormat;
    use crate::formats::probe;
    use crate::programs::interpreter::Vm;

    #[test]
    fn a_campaign_begins_with_files_of_several_formats() {
        let files = InputGenerator::default().first(Inputs::Files, Limits::WALKED);
        let formats: Vec<_> = files.iter().map(|file| probe(&file.as_slice()).unwrap()).collect();
        let [ImageFormat::Qcow2, second, third] = formats[..] else { panic!("{formats:?}") };
        assert_ne!(second, third);
        assert!(formats.iter().all(|format| *format != ImageFormat::Raw), "{formats:?}");
    }

    #[test]
    fn a_campaign_of_a_writer_begins_with_an_image_of_the_engine() {
        let empty = [Program::default().encode()];
        assert_eq!(InputGenerator::default().first(Inputs::Programs, Limits::WALKED), empty);
        let programs = InputGenerator::default().first(Inputs::Programs, Limits::WRITTEN);
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
}
