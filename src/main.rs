//! The command `qcowfuzz`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
