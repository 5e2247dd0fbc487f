//! Draws graphs for a while and compares them: `drawn-graphs --seconds 60`.
fn main() -> std::process::ExitCode {
    inrush_filetest::drawn::main()
}
