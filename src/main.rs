//! The command `qcowfuzz`.

fn main() -> std::process::ExitCode {
    qcowfuzz::cli::main()
}
