//! The whole command for our walker with the small writer of the tests, which carries out the requests of the target
//! `writes`. The environment variable `QCOWFUZZ_WRITER_FAULT` names a fault of the writer; without it, there is none.
//!
//!     cargo run --release --example small_writer -- fuzz --target writes --seconds 10
//!     QCOWFUZZ_WRITER_FAULT=head_lost cargo run --release --example small_writer -- fuzz --target writes --seconds 10
//!
//! `cargo xtask bugs writer` runs it with each fault.

use std::env;
use std::process::exit;

use qcowfuzz::harness::Implementation;
use small_writer::WriterFault;

/// Returns our walker with the small writer, which has the fault that the environment names.
fn small_writer() -> Implementation {
    let Ok(name) = env::var("QCOWFUZZ_WRITER_FAULT") else {
        return small_writer::implementation(None);
    };
    match WriterFault::ALL.iter().find(|fault| fault.name() == name) {
        Some(fault) => small_writer::implementation(Some(*fault)),
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

qcowfuzz::command!(small_writer());
