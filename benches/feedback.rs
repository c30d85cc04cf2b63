//! Measures the cost of the recorder. It is a separate binary because compiling the harness a second time changes the
//! rate that `rate` measures.

mod sets;

use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::{Harness, Walker};
use qcowfuzz::programs::generate::GenerateSettings;

use sets::{OPERATIONS, ROUNDS, SETS, cpu_time, encoded, evolved, run_all, set};

/// Prints, for each set, the time of the fastest round with a recorder, divided by that without. The two take turns.
fn main() {
    // `cargo test` builds benchmarks too; only `cargo bench` measures.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("| programs | observed by a recorder |");
    println!("|---|---|");
    let generated = SETS.map(|(name, compressed)| {
        (name, encoded(set(GenerateSettings { operations: OPERATIONS, compressed })))
    });
    for (name, inputs) in generated.into_iter().chain([("the evolved set", evolved())]) {
        let mut alone = Harness::new(Walker::default());
        let recorder = Rc::new(Recorder::new());
        let mut observed =
            Harness::observed(Walker::observed(Rc::clone(&recorder)), Rc::clone(&recorder));
        let mut times = [Duration::MAX; 2];
        for _ in 0..ROUNDS {
            let start = cpu_time();
            black_box(run_all(&mut alone, &inputs));
            let turn = cpu_time();
            for input in &inputs {
                recorder.begin_run();
                black_box(run_all(&mut observed, std::slice::from_ref(input)));
            }
            times = [times[0].min(turn - start), times[1].min(cpu_time() - turn)];
        }
        println!("| {name} | {:.3} × |", times[1].as_secs_f64() / times[0].as_secs_f64());
    }
}
