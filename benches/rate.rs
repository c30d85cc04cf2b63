//! Measures the cost of a run. `cargo bench` prints all tables; `cargo bench --bench rate -- rate`, `-- evolved`,
//! `-- growth`, `-- formats`, `-- writes`, `-- checks`, `-- isolation` and `-- qemu` print one of them. Only ratios
//! between the rows of a table are comparable between machines.

mod largest;
mod sets;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::fuzzing::embedded::Subject;
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::against::qemu_io::{CostlyComparisons, Qemu};
use qcowfuzz::harness::cases::implementation::{Implementation, no_observer};
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::images::FileNames;
use qcowfuzz::internal::fuzzing::campaign::subject::{Slot, Supervised};
use qcowfuzz::internal::programs::operand::{Base, ImageForm, Number, Size};
use qcowfuzz::internal::programs::prologue::PROLOGUE_BYTES;
use qcowfuzz::processes::ProcessLimits;
use qcowfuzz::programs::Operation;
use qcowfuzz::programs::generate::{GenerateSettings, generate_any, generate_writes};
use small_writer::WritingWalker;

use sets::{Inputs, OPERATIONS, ROUNDS, SET, SETS, cpu_time, encoded, evolved, run_all, set};

/// Returns the time of the fastest round of each set. The sets take turns, so that a slow minute affects all of them.
fn fastest(sets: &[&Inputs]) -> Vec<Duration> {
    let mut harness = Harness::new(Walker::default());
    let mut times = vec![Duration::MAX; sets.len()];
    for _ in 0..ROUNDS {
        for (time, set) in times.iter_mut().zip(sets) {
            let start = cpu_time();
            black_box(run_all(&mut harness, set));
            *time = (cpu_time() - start).min(*time);
        }
    }
    times
}

fn rates() {
    println!("| programs | operations | take effect | images a second, one core |");
    println!("|---|---|---|---|");
    for (name, compressed) in SETS {
        let inputs = encoded(set(GenerateSettings { operations: OPERATIONS, compressed }));
        let outcome = run_all(&mut Harness::new(Walker::default()), &inputs);
        let time = fastest(&[&inputs])[0];
        println!(
            "| {name} | {} | {:.1}% | {:.0} |",
            outcome.operations / inputs.len(),
            outcome.effective as f64 * 100.0 / outcome.operations as f64,
            outcome.images as f64 / time.as_secs_f64()
        );
    }
}

/// Prints the distribution of the cost of single runs, over the corpus of a campaign.
fn distribution() {
    let inputs = evolved();
    let mut harness = Harness::new(Walker::default());
    let mut times = vec![Duration::MAX; inputs.len()];
    for _ in 0..ROUNDS / 3 {
        for (time, input) in times.iter_mut().zip(&inputs) {
            let start = cpu_time();
            black_box(run_all(&mut harness, std::slice::from_ref(input)));
            *time = (cpu_time() - start).min(*time);
        }
    }
    times.sort_unstable();
    let total: Duration = times.iter().sum();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    // The cost that this share of the runs does not exceed, and the share of all time that the rest takes.
    let at = |percent: usize| {
        let rank = (times.len() * percent / 100).min(times.len() - 1);
        let rest: Duration = times[rank..].iter().sum();
        (micros(times[rank]), rest.as_secs_f64() * 100.0 / total.as_secs_f64())
    };
    println!("| evolved set | µs a run | × the median | the costlier runs' share of the time |");
    println!("|---|---|---|---|");
    for (name, percent) in [("median", 50), ("90%", 90), ("99%", 99), ("worst", 100)] {
        let (cost, share) = at(percent);
        println!("| {name} | {cost:.1} | {:.1} | {share:.0}% |", cost / at(50).0);
    }
    let rate = times.len() as f64 / total.as_secs_f64();
    println!(
        "| mean | {:.1} | {:.1} | {rate:.0} runs a second |",
        1e6 / rate,
        1e6 / rate / at(50).0
    );
}

/// The disk of a set of programs.
#[derive(Clone, Copy)]
struct DiskOfSet {
    operations: usize,
    cluster_bits: u8,
    size: Size,
    base: Base,
    /// The variety of the image's format.
    form: u16,
}

/// Returns the programs of the set on a disk, without operations that resize it. The programs touch the same clusters
/// on every disk: the first sixteen, which the smallest disk has.
fn on_disk(disk: DiskOfSet) -> Inputs {
    let programs = set(GenerateSettings { operations: disk.operations, compressed: false });
    let mut inputs = encoded(programs.into_iter().map(|mut program| {
        program.prologue.cluster_bits = Number::new(disk.cluster_bits).expect("a cluster size");
        program.prologue.size = disk.size;
        program.prologue.base = disk.base;
        program.prologue.form = ImageForm(disk.form);
        program.operations.retain(|operation| !matches!(operation, Operation::Resize { .. }));
        program
    }));
    let records = inputs.iter_mut().flat_map(|input| input[PROLOGUE_BYTES..].chunks_mut(8));
    for record in records.filter(|record| matches!(record[0], 0..=4 | 10..=12)) {
        // The position of these operations: a distance from the start, below 16.
        let steps = record[2] % 16;
        record[1..4].copy_from_slice(&[0, steps, 0]);
    }
    inputs
}

/// Prints how the time of a run grows with the disk. A VHD image stores an entry for each block, so that its table has
/// 64 KiB at the largest size; the tables of the other formats have the same size in the file on both disks. A disk has
/// 16,384 blocks at most; [`largest::growth`] measures the formats' largest disks.
fn growth() {
    let mib = Size::new(1, 20, 0).expect("a size");
    let pib = Size::new(8, 47, 0).expect("a size");
    let gib = Size::new(1, 30, 0).expect("a size");
    let qcow2 =
        DiskOfSet { operations: 20, cluster_bits: 16, size: gib, base: Base::Qcow2, form: 0 };
    let bits = |cluster_bits| DiskOfSet { cluster_bits, ..qcow2 };
    let sizes = |base, form| [mib, pib].map(|size| DiskOfSet { size, base, form, ..qcow2 });
    // Blocks of VHDX are larger: this disk has sixteen.
    let [of_vhdx, largest_of_vhdx] = sizes(Base::of(ImageFormat::Vhdx), 0);
    let of_vhdx = DiskOfSet { size: Size::new(1, 31, 0).expect("a size"), ..of_vhdx };
    let pairs = [
        ("1 MiB → 1 PiB, 64 KiB clusters", sizes(Base::Qcow2, 0)),
        ("64 KiB → 2 MiB clusters, 1 GiB", [qcow2, bits(21)]),
        ("64 KiB → 512-byte clusters, 1 GiB", [qcow2, bits(9)]),
        (
            "20 → 40 operations, 64 KiB clusters, 1 GiB",
            [qcow2, DiskOfSet { operations: 40, ..qcow2 }],
        ),
        ("vpc, 16 → 16,384 blocks", sizes(Base::of(ImageFormat::Vpc), 0)),
        ("vhdx, 16 → 16,384 blocks", [of_vhdx, largest_of_vhdx]),
        (
            "vmdk, 16 → 16,384 grains, tables where there are grains",
            sizes(Base::of(ImageFormat::Vmdk), 2),
        ),
        ("vmdk, 16 → 16,384 grains, all tables", sizes(Base::of(ImageFormat::Vmdk), 0)),
    ];
    println!("| from → to | time of a run |");
    println!("|---|---|");
    for (name, disks) in pairs {
        let [from, to] = disks.map(on_disk);
        let times = fastest(&[&from, &to]);
        println!("| {name} | {:.2} × |", times[1].as_secs_f64() / times[0].as_secs_f64());
    }
}

/// Prints the rate of the same programs in other formats, divided by their rate in qcow2.
fn formats() {
    let programs = set(GenerateSettings { operations: OPERATIONS, compressed: false });
    let in_format = |base| {
        encoded(programs.iter().cloned().map(|mut program| {
            program.prologue.base = base;
            program
        }))
    };
    let others = Base::other_formats().map(|format| (format.name(), Base::of(format)));
    let bases: Vec<_> = [("qcow2", Base::Qcow2)].into_iter().chain(others).collect();
    let sets: Vec<_> = bases.iter().map(|(_, base)| in_format(*base)).collect();
    let times = fastest(&sets.iter().collect::<Vec<_>>());
    println!("| format | rate, that of qcow2 = 1 |");
    println!("|---|---|");
    for ((name, _), time) in bases.iter().zip(&times) {
        println!("| {name} | {:.2} |", times[0].as_secs_f64() / time.as_secs_f64());
    }
}

/// Prints the rate of programs that the small writer carries out, in operations, beside that of the frozen set.
fn writes() {
    let frozen = encoded(set(GenerateSettings { operations: OPERATIONS, compressed: true }));
    let written = encoded(SET.map(|rng_seed| generate_writes(rng_seed, OPERATIONS * 2 / 3)));
    let sets =
        [("frozen", TargetKind::MapExtents, frozen), ("writes", TargetKind::Writes, written)];
    let mut targets = sets.each_ref().map(|(_, kind, _)| kind.judging(WritingWalker::default()));
    let (mut times, mut operations) = ([Duration::MAX; 2], [0; 2]);
    for _ in 0..ROUNDS / 3 {
        for (index, (_, _, inputs)) in sets.iter().enumerate() {
            let start = cpu_time();
            operations[index] = 0;
            for input in inputs {
                match targets[index].run(black_box(input), Checks::AtCheckpoints) {
                    Ok(outcome) => operations[index] += outcome.operations,
                    Err(failure) => panic!("{}", failure.violation),
                }
            }
            times[index] = (cpu_time() - start).min(times[index]);
        }
    }
    let rates = [0, 1].map(|index| operations[index] as f64 / times[index].as_secs_f64());
    println!("| programs | operations a second | that of the frozen set = 1 |");
    println!("|---|---|---|");
    for ((name, _, _), rate) in sets.iter().zip(rates) {
        println!("| {name} | {rate:.0} | {:.2} |", rate / rates[0]);
    }
}

/// Prints the cost of checks after each operation, and the number of images that they verify.
fn checks() {
    let frozen = encoded(set(GenerateSettings { operations: OPERATIONS, compressed: true }));
    let written = encoded(SET.map(|rng_seed| generate_writes(rng_seed, OPERATIONS * 2 / 3)));
    let any = encoded(SET.map(|rng_seed| generate_any(rng_seed, OPERATIONS)));
    let sets = [
        ("map_extents, frozen", TargetKind::MapExtents, frozen),
        ("map_extents, evolved", TargetKind::MapExtents, evolved()),
        ("map_extents, all formats", TargetKind::MapExtents, any.clone()),
        ("hostile", TargetKind::Hostile, any.clone()),
        ("refcounts", TargetKind::Refcounts, any),
        ("writes", TargetKind::Writes, written),
    ];
    let times = [Checks::AtCheckpoints, Checks::Drawn, Checks::AfterChanges, Checks::AfterEach];
    println!("| programs | checks | images a program | cost of a run |");
    println!("|---|---|---|---|");
    for (name, kind, inputs) in sets {
        let mut target = kind.judging(WritingWalker::default());
        let mut fastest = [(Duration::MAX, 0); 4];
        for _ in 0..ROUNDS / 6 {
            for (checks, (time, images)) in times.iter().zip(&mut fastest) {
                let start = cpu_time();
                *images = 0;
                for input in &inputs {
                    match target.run(black_box(input), *checks) {
                        Ok(outcome) => *images += outcome.images,
                        Err(failure) => panic!("{}", failure.violation),
                    }
                }
                *time = (cpu_time() - start).min(*time);
            }
        }
        for (checks, (time, images)) in times.iter().zip(fastest) {
            println!(
                "| {name} | {checks:?} | {:.2} | {:.2} × |",
                images as f64 / inputs.len() as f64,
                time.as_secs_f64() / fastest[0].0.as_secs_f64()
            );
        }
    }
}

/// Prints the cost of a worker process: an input is written to a file before it runs, allocations are counted, and
/// panics are caught. The feedback is the same in both rows.
fn isolation() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let slot = Slot::open(file.path()).expect("a slot");
    let limits = ProcessLimits { cpu_time: Duration::from_secs(60), memory_mib: 4096 };
    let counter = limits.enforce().expect("limits");
    let recorder = Rc::new(Recorder::new());
    let kind = TargetKind::MapExtents;
    let walker = Implementation::our_walker();
    let mut target = kind.create(&walker, FileNames::default(), recorder.clone());
    let mut worker =
        Supervised::new(&walker, kind, slot, BTreeSet::new(), counter, Checks::default());
    println!("| programs | in the process, runs a second | in a worker | cost |");
    println!("|---|---|---|---|");
    for (name, compressed) in SETS {
        let inputs = encoded(set(GenerateSettings { operations: OPERATIONS, compressed }));
        let mut times = [Duration::MAX; 2];
        for _ in 0..ROUNDS {
            let start = cpu_time();
            for input in &inputs {
                recorder.begin_run();
                black_box(target.run(input, Checks::AtCheckpoints)).expect("no violation");
            }
            let middle = cpu_time();
            for input in &inputs {
                worker.recorder().begin_run();
                black_box(worker.run(input));
            }
            times[0] = times[0].min(middle - start);
            times[1] = times[1].min(cpu_time() - middle);
        }
        let [alone, isolated] = times.map(|time| time.as_secs_f64());
        let rates = [alone, isolated].map(|seconds| inputs.len() as f64 / seconds);
        let cost = (isolated / alone - 1.0) * 100.0;
        println!("| {name} | {:.0} | {:.0} | {cost:.1}% |", rates[0], rates[1]);
    }
}

/// Prints the cost of QEMU in the loop: the CPU time of both processes, for the target alone and with QEMU.
fn against_qemu() {
    let qemu = match Qemu::start(CostlyComparisons::Drawn) {
        Ok(qemu) => qemu,
        Err(what) => return println!("not measured: {what}"),
    };
    let walker = Implementation::our_walker();
    println!("| programs | images a program | alone, programs a second | judged by QEMU | cost |");
    println!("|---|---|---|---|---|");
    let frozen = SETS.map(|(name, compressed)| {
        (name, encoded(set(GenerateSettings { operations: OPERATIONS, compressed })))
    });
    for (name, inputs) in frozen.into_iter().chain([("evolved", evolved())]) {
        let (alone, _) = judged(&walker, &inputs);
        let (both, images) = judged(&walker.clone().against(&qemu), &inputs);
        println!(
            "| {name} | {:.1} | {:.0} | {:.0} | {:.1} × |",
            images as f64 / inputs.len() as f64,
            inputs.len() as f64 / alone,
            inputs.len() as f64 / both,
            both / alone
        );
    }
}

/// Runs the inputs for at least two seconds. Returns the CPU time of a round in seconds, with that of QEMU, and the
/// number of images that QEMU judges in it.
fn judged(implementation: &Implementation, inputs: &Inputs) -> (f64, usize) {
    let (start, mut rounds, mut images) = (ticks(), 0_u32, 0);
    while ticks() - start < 200 {
        let names = FileNames::default();
        let mut target = TargetKind::MapExtents.create(implementation, names, no_observer());
        images = 0;
        for input in inputs {
            match target.run(black_box(input), Checks::AtCheckpoints) {
                Ok(outcome) => images += outcome.second.compared,
                Err(failure) => panic!("{}", failure.violation),
            }
        }
        // The time of a process counts when it has ended.
        drop(target);
        rounds += 1;
    }
    ((ticks() - start) as f64 / 100.0 / f64::from(rounds), images)
}

/// Returns the CPU time of this process and of the processes that it has started and that have ended, in hundredths of
/// a second.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let (_, behind_name) = stat.rsplit_once(") ").expect("a name");
    behind_name
        .split(' ')
        .skip(11)
        .take(4)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum()
}

fn main() {
    // `cargo test` builds benchmarks too; only `cargo bench` measures.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    if !asked("--bench") {
        return;
    }
    let all = arguments.len() == 1;
    if all || asked("rate") {
        rates();
        println!();
    }
    if all || asked("evolved") {
        distribution();
        println!();
    }
    if all || asked("growth") {
        growth();
        println!();
        largest::growth();
        println!();
    }
    if all || asked("formats") {
        formats();
        println!();
    }
    if all || asked("writes") {
        writes();
        println!();
    }
    if all || asked("checks") {
        checks();
        println!();
    }
    if all || asked("isolation") {
        isolation();
        println!();
    }
    if all || asked("qemu") {
        against_qemu();
    }
}
