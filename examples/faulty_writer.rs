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
use qcowfuzz::internal::writers::WriterFault;

/// Returns our walker, whose writer has the fault that the environment names.
fn faulty_writer() -> Implementation {
    let name = env::var("QCOWFUZZ_WRITER_FAULT").unwrap_or_default();
    match WriterFault::ALL.iter().find(|fault| fault.name() == name) {
        Some(fault) => Implementation::new(move |observer| {
            Box::new(Walker::observed(observer.clone()).with_fault(*fault))
        }),
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

qcowfuzz::command!(faulty_writer());
