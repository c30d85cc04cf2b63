//! The whole command for our walker and its small writer, with a planted fault: the environment variable
//! `QCOWFUZZ_WRITER_FAULT` names it.
//!
//!     QCOWFUZZ_WRITER_FAULT=head_lost cargo run --release --example faulty_writer -- fuzz --target writes --seconds 10
//!
//! `scripts/writer-faults` runs it with each fault.

use std::env;
use std::process::exit;

use qcowfuzz::harness::Walker;
use qcowfuzz::harness::implementation::Implementation;
use qcowfuzz::internal::disk::observer::Observer;
use qcowfuzz::internal::writers::WriterFault;

/// Our walker, whose writer has a fault.
#[derive(Clone, Copy)]
struct FaultyWriter {
    fault: WriterFault,
}

impl Implementation for FaultyWriter {
    type Engine<O: Observer + Clone + 'static> = Walker<O>;

    fn engine<O: Observer + Clone + 'static>(&self, observer: &O) -> Walker<O> {
        Walker::observed(observer.clone()).with_fault(self.fault)
    }
}

/// Returns the fault that the environment names.
fn named_fault() -> FaultyWriter {
    let name = env::var("QCOWFUZZ_WRITER_FAULT").unwrap_or_default();
    match WriterFault::ALL.iter().find(|fault| fault.name() == name) {
        Some(fault) => FaultyWriter { fault: *fault },
        None => {
            let names: Vec<_> = WriterFault::ALL.iter().map(|fault| fault.name()).collect();
            eprintln!(
                "QCOWFUZZ_WRITER_FAULT: found '{name}', expected one of {}",
                names.join(", ")
            );
            exit(2)
        }
    }
}

qcowfuzz::command!(named_fault());
