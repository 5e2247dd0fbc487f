//! Damaged bytes, full disks, killed and concurrent processes: an error that names what and where, or the right answer.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pt2")
}

fn command(cache: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_inrush"));
    c.args(args).env("INRUSH_CACHE_DIR", cache);
    c
}

fn inrush(cache: &Path, args: &[&str]) -> Output {
    command(cache, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The command fails with `code`, says all of `words` on stderr, and does not panic.
fn fails(out: &Output, code: i32, words: &[&str]) {
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{err}");
    assert!(!err.contains("panicked"), "{err}");
    for w in words {
        assert!(err.contains(w), "`{w}` is not in: {err}");
    }
}

fn succeeds(out: &Output) -> serde_json::Value {
    assert!(out.status.success(), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Names of the files of a folder.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut out: Vec<String> = entries
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    out.sort();
    out
}

/// The command under a limit on the size of files that it writes, in blocks of 512 bytes: what a full disk looks like.
fn limited(cache: &Path, blocks: u32, args: &[&str]) -> Output {
    Command::new("sh")
        .arg("-c")
        // Ignored, the signal becomes an error of the write.
        .arg(format!(
            "trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\""
        ))
        .arg(env!("CARGO_BIN_EXE_inrush"))
        .args(args)
        .env("INRUSH_CACHE_DIR", cache)
        .output()
        .unwrap()
}

#[test]
fn a_flipped_bit_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("digits.inrush");
    let model = digits().display().to_string();
    let shown = package.display().to_string();
    succeeds(&inrush(
        dir.path(),
        &["compile", &model, "-o", &shown, "--json"],
    ));
    for (whole, name) in [(digits(), "broken.pt2"), (package, "broken.inrush")] {
        let whole = std::fs::read(whole).unwrap();
        let broken = dir.path().join(name);
        let shown = broken.display().to_string();
        // All over the file: weights, sample inputs, machine code, manifest, directory. Bytes between entries do not matter.
        let mut found = 0;
        for k in 0..40 {
            let mut bytes = whole.clone();
            let at = whole.len() * (2 * k + 1) / 80;
            bytes[at] ^= 1 << (k % 8);
            std::fs::write(&broken, &bytes).unwrap();
            let out = inrush(dir.path(), &["run", &shown, "--seconds", "0", "--json"]);
            match out.status.code() {
                Some(0) => {}
                _ => {
                    fails(&out, 2, &[name]);
                    found += 1;
                }
            }
        }
        assert!(
            found >= 25,
            "{name}: only {found} of 40 flipped bits were found"
        );
    }
}

#[test]
fn a_flipped_bit_in_a_weight_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(digits()).unwrap();
    let archive = inrush_torch::open(&digits()).unwrap();
    let (_, weight) = archive.weights.iter().next().unwrap();
    let mut bytes = whole;
    bytes[weight.start() + 2] ^= 16;
    let broken = dir.path().join("broken.pt2");
    std::fs::write(&broken, &bytes).unwrap();
    let shown = broken.display().to_string();
    let out = inrush(dir.path(), &["run", &shown, "--seconds", "0"]);
    fails(&out, 2, &["broken.pt2", "weight_", "checksum"]);
    let package = dir.path().join("x.inrush").display().to_string();
    let out = inrush(dir.path(), &["compile", &shown, "-o", &package]);
    fails(&out, 2, &["broken.pt2", "checksum"]);
    assert!(!Path::new(&package).exists());
}

#[test]
fn a_full_disk_is_the_machines_fault_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, out) = (dir.path().join("cache"), dir.path().join("out"));
    std::fs::create_dir(&out).unwrap();
    let model = digits().display().to_string();
    let package = out.join("digits.inrush").display().to_string();
    let compile = ["compile", &model, "-o", &package];

    let nothing_left = || {
        assert_eq!(names(&out), [""; 0]);
        assert!(names(&cache).iter().all(|n| !n.starts_with("build-")));
    };
    // The source for the C compiler does not fit.
    let full = limited(&cache, 4, &compile);
    fails(&full, 3, &["cannot write", "in the build cache"]);
    nothing_left();
    // Nor does a part of what is built, whichever is the first.
    for blocks in [8, 16, 32] {
        fails(&limited(&cache, blocks, &compile), 3, &["File too large"]);
        nothing_left();
    }

    // The kernels fit, the package with its weights does not.
    succeeds(&inrush(
        &cache,
        &["run", &model, "--seconds", "0", "--json"],
    ));
    let kernels = (names(&cache).iter())
        .flat_map(|n| std::fs::read_dir(cache.join(n)).into_iter().flatten())
        .map(|e| e.unwrap().metadata().unwrap().len())
        .max();
    let blocks = kernels.unwrap() / 512 + 8;
    let full = limited(&cache, blocks as u32, &compile);
    fails(&full, 3, &["cannot write", "digits.inrush"]);
    assert_eq!(names(&out), [""; 0], "no half of a package is left");

    let results = out.join("y.safetensors").display().to_string();
    let run = ["run", &model, "--seconds", "0", "--output", &results];
    fails(
        &limited(&cache, 0, &run),
        3,
        &["cannot write", "y.safetensors"],
    );
    assert_eq!(names(&out), [""; 0], "no half of a result is left");
}

#[test]
fn processes_that_want_the_same_kernels_build_them_once() {
    let dir = tempfile::tempdir().unwrap();
    let model = digits().display().to_string();
    let args = ["run", &model, "--seconds", "0", "--json", "--threads", "1"];
    let children: Vec<_> = (0..4)
        .map(|_| {
            command(dir.path(), &args)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut built = 0;
    for child in children {
        let line = succeeds(&child.wait_with_output().unwrap());
        built += (line["cached"] == false) as u32;
    }
    assert_eq!(built, 1, "one builds, the others wait for it");
}

#[test]
fn a_killed_process_does_not_stand_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    // The C compiler, which waits when it is told to.
    let cc = dir.path().join("cc");
    std::fs::write(
        &cc,
        "#!/bin/sh\n[ -z \"$WAIT\" ] || exec sleep 60\nexec cc \"$@\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&cc, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let model = digits().display().to_string();
    let args = ["run", &model, "--seconds", "0", "--json"];
    let mut child = command(&cache, &args)
        .env("CC", &cc)
        .env("WAIT", "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let building = || cache.exists() && names(&cache).iter().any(|n| n.starts_with("build-"));
    let end = Instant::now() + Duration::from_secs(60);
    while !building() {
        assert!(Instant::now() < end, "no build begins");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(building(), "what it was doing is left");

    // The lock went with the process.
    let line = succeeds(&command(&cache, &args).env("CC", &cc).output().unwrap());
    assert_eq!(line["cached"], false);

    // What was left goes when it is old.
    for name in names(&cache).iter().filter(|n| n.starts_with("build-")) {
        let folder = std::fs::File::open(cache.join(name)).unwrap();
        let old = std::time::SystemTime::now() - Duration::from_secs(3 * 24 * 3600);
        folder.set_modified(old).unwrap();
    }
    let other = [
        "run",
        &model,
        "--seconds",
        "0",
        "--json",
        "--target",
        "scalar",
    ];
    succeeds(&command(&cache, &other).env("CC", &cc).output().unwrap());
    assert!(!building(), "{:?}", names(&cache));
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let model = digits().display().to_string();
    let nowhere = dir
        .path()
        .join("missing/digits.inrush")
        .display()
        .to_string();
    let out = inrush(dir.path(), &["compile", &model, "-o", &nowhere]);
    fails(&out, 3, &["cannot write", "missing/digits.inrush"]);
    let nowhere = dir
        .path()
        .join("missing/y.safetensors")
        .display()
        .to_string();
    let run = ["run", &model, "--seconds", "0", "--output", &nowhere];
    fails(&inrush(dir.path(), &run), 3, &["missing/y.safetensors"]);
}
