//! All file tests. `cargo bless` sets `INRUSH_BLESS`; `INRUSH_FILTER` picks files whose name contains it.

use std::path::Path;

#[test]
fn files() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let bless = std::env::var_os("INRUSH_BLESS").is_some();
    let filter = std::env::var("INRUSH_FILTER").unwrap_or_default();
    let mut failures = Vec::new();
    let (mut files, mut checked, mut blessed) = (0, 0, 0);
    for path in inrush_filetest::files(&dir).expect("the folder `tests` is there") {
        if !path.to_string_lossy().contains(&filter) {
            continue;
        }
        let outcome = inrush_filetest::check_file(&path, bless);
        files += 1;
        checked += outcome.checked;
        blessed += outcome.blessed;
        failures.extend(outcome.failures);
    }
    println!("{files} files, {checked} expectations, {blessed} rewritten");
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(checked > 0, "no file test was found");
}
