//! Weights that a package stores in panels, from the compiler to the answer.

use inrush_base::{ErrorKind, Isa};
use inrush_cli::io;
use inrush_package::Package;
use inrush_runtime::{Model, Names, Pool, Session, Tensor, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn digits(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/digits")
        .join(name)
}

/// Compiles the digits for targets.
fn compile(folder: &Path, targets: &str) -> PathBuf {
    let path = folder.join(format!("{}.inrush", targets.replace([',', ':'], "-")));
    let out = Command::new(env!("CARGO_BIN_EXE_inrush"))
        .arg("compile")
        .arg(digits("digits.pt2"))
        .arg("-o")
        .arg(&path)
        .args(["--target", targets])
        .env("INRUSH_CACHE_DIR", folder.join("cache"))
        .output()
        .expect("the command runs");
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{targets}: {err}");
    path
}

/// A target of this processor, and the plainest one.
fn levels() -> (String, &'static str) {
    (format!("cpu:{}", inrush_cpu::detect().name()), "cpu:scalar")
}

fn pool() -> Arc<Pool> {
    Arc::new(Pool::new(Some(2)).expect("a pool"))
}

fn open(path: &Path) -> Session {
    Session::new(Model::open(path, pool()).expect("a package"))
}

fn answer(session: &Session) -> Vec<u8> {
    let images = io::read(&digits("digits.inputs.safetensors")).expect("images");
    let outputs = session.run(&[Value::Tensor(images["0"].clone())]);
    match outputs.expect("an answer").swap_remove(0) {
        Value::Tensor(t) => t.to_bytes(),
        _ => panic!("the digits' output is a tensor"),
    }
}

/// Returns the names of the weights that a package stores in panels.
fn in_panels(path: &Path) -> Vec<String> {
    let package = Package::open(path).expect("a package");
    let names = open(path).weights().into_iter().map(|w| w.name);
    names.filter(|n| package.panels(n).is_some()).collect()
}

/// Returns all weights of a session.
fn weights(session: &Session) -> BTreeMap<String, Tensor> {
    let model = session.model();
    let names = session.weights().into_iter().map(|w| w.name);
    names
        .map(|n| {
            let t = model.weight(&n).expect("a weight of the model");
            (n, t)
        })
        .collect()
}

/// Returns a tensor of floats, each multiplied by `factor`.
fn scaled(t: &Tensor, factor: f32) -> Tensor {
    let mut bytes = t.to_bytes();
    for word in bytes.chunks_mut(4) {
        let x = f32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        word.copy_from_slice(&(x * factor).to_ne_bytes());
    }
    Tensor::from_bytes(t.dtype, t.sizes.clone(), &bytes).expect("a tensor")
}

#[test]
fn answers_and_weights_are_those_of_the_plain_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let (native, scalar) = levels();
    let one = compile(folder.path(), &native);
    let names = in_panels(&one);
    assert!(!names.is_empty(), "no weight is stored in panels");
    let (one, archive) = (open(&one), inrush_torch::open(&digits("digits.pt2")));
    let archive = archive.expect("the digits").weights;
    let own = weights(&one);
    for (name, t) in &own {
        if let Some(w) = archive.view(name) {
            assert_eq!(t.sizes, w.sizes, "{name}");
            assert!(w.bytes.starts_with(&t.to_bytes()), "{name}");
        }
    }
    assert!(names.iter().all(|n| archive.view(n).is_some()));
    if native == scalar {
        return;
    }
    // Several targets share the plain order.
    let several = compile(folder.path(), &format!("{native},{scalar}"));
    assert!(in_panels(&several).is_empty());
    let several = open(&several);
    assert_eq!(answer(&one), answer(&several));
    let others = weights(&several);
    for (name, t) in &own {
        assert_eq!(t.to_bytes(), others[name].to_bytes(), "{name}");
    }
    // Updates: of a weight in panels alone, then of all.
    for given in [vec![names[0].clone()], own.keys().cloned().collect()] {
        let new: Vec<(String, Tensor)> = (given.into_iter())
            .filter(|n| own[n].dtype == inrush_base::DType::F32)
            .map(|n| (n.clone(), scaled(&own[&n], 0.75)))
            .collect();
        let views: Vec<_> = new.iter().map(|(n, t)| (n.as_str(), t.view())).collect();
        let before = answer(&one);
        for session in [&one, &several] {
            session
                .update_weights(&views, Names::Some)
                .expect("an update");
            session.swap_weights().expect("a swap");
        }
        assert_ne!(answer(&one), before, "{} weights", views.len());
        assert_eq!(answer(&one), answer(&several), "{} weights", views.len());
        for (name, t) in &new {
            let now = one.model().weight(name).expect("the weight");
            assert_eq!(now.to_bytes(), t.to_bytes(), "{name}");
        }
    }
    // A weight that no update named is still there.
    assert_eq!(weights(&one).len(), own.len());
}

#[test]
fn panels_of_another_level_are_packed_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (native, scalar) = levels();
    let path = compile(folder.path(), scalar);
    assert!(
        !in_panels(&path).is_empty(),
        "no weight is stored in panels"
    );
    // The engine runs its best level whatever the package was compiled for.
    let here = answer(&open(&path));
    let there = inrush_cpu::limited(Isa::Scalar, || answer(&open(&path)));
    let close = |a: &[u8], b: &[u8]| {
        let float = |w: &[u8]| f32::from_ne_bytes([w[0], w[1], w[2], w[3]]);
        a.len() == b.len()
            && (a.chunks(4).zip(b.chunks(4))).all(|(x, y)| (float(x) - float(y)).abs() < 1e-3)
    };
    assert!(close(&here, &there));
    let plain = compile(folder.path(), &native);
    assert!(close(&here, &answer(&open(&plain))));
    let read: BTreeMap<_, _> = weights(&open(&path));
    for (name, t) in weights(&open(&plain)) {
        assert_eq!(t.to_bytes(), read[&name].to_bytes(), "{name}");
    }
}

#[test]
fn a_package_in_memory_may_begin_anywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = compile(folder.path(), &levels().0);
    let bytes = std::fs::read(&path).expect("a package");
    let want = answer(&open(&path));
    let model = Model::from_bytes(bytes, pool()).expect("a package");
    assert_eq!(answer(&Session::new(model)), want);
}

#[test]
fn a_flipped_byte_in_panels_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = compile(folder.path(), &levels().0);
    let whole = std::fs::read(&path).expect("a package");
    let package = Package::open(&path).expect("a package");
    for name in in_panels(&path) {
        let bytes = package.panels(&name).expect("panels").bytes;
        let at = whole.windows(bytes.len()).position(|w| w == bytes);
        let at = at.expect("the panels");
        for k in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at + k] ^= 4;
            let broken = folder.path().join("broken.inrush");
            std::fs::write(&broken, &damaged).expect("a file");
            let error = Model::open(&broken, pool()).map(drop).expect_err("damage");
            assert_eq!(error.kind(), ErrorKind::Input);
            let error = error.to_string();
            for word in ["broken.inrush", "weights/", "checksum"] {
                assert!(error.contains(word), "{name}, byte {k}: {error}");
            }
        }
    }
}

/// Returns the facts that a build cache notes.
fn notes(cache: &Path) -> usize {
    let folders = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let files = folders.flat_map(|f| std::fs::read_dir(f.path()).into_iter().flatten().flatten());
    files
        .filter(|f| f.path().extension().is_some_and(|e| e == "note"))
        .count()
}

#[test]
fn weights_that_passed_are_compared_again_after_a_change() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = compile(folder.path(), &levels().0);
    let cache = folder.path().join("runs");
    let run = |always: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inrush"));
        command.arg("run").arg(&path).args(["--seconds", "0"]);
        command.env("INRUSH_CACHE_DIR", &cache);
        if always {
            command.env("INRUSH_CHECK", "always");
        }
        let out = command.output().expect("the command runs");
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code(), err)
    };
    // What has just been written is not noted.
    assert_eq!(run(false).0, Some(0));
    assert_eq!(notes(&cache), 0);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    for _ in 0..2 {
        assert_eq!(run(false).0, Some(0));
        assert_eq!(notes(&cache), 1);
    }
    let names = in_panels(&path);
    let package = Package::open(&path).expect("a package");
    let bytes = package.panels(&names[0]).expect("panels").bytes.to_vec();
    drop(package);
    let whole = std::fs::read(&path).expect("a package");
    let at = whole.windows(bytes.len()).position(|w| w == bytes);
    let at = at.expect("the panels");
    // A byte in place, with the size and the time of writing as they were.
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("the package");
    let written = file.metadata().and_then(|m| m.modified()).expect("a time");
    let put = |byte: u8| {
        file.write_all_at(&[byte], at as u64 + 1).expect("a byte");
        file.set_modified(written).expect("a time");
    };
    put(bytes[1] ^ 64);
    for always in [false, true] {
        let (code, err) = run(always);
        assert_eq!(code, Some(2), "{err}");
        assert!(
            err.contains("weights/") && err.contains("checksum"),
            "{err}"
        );
    }
    put(bytes[1]);
    assert_eq!(run(false).0, Some(0));
    assert_eq!(notes(&cache), 1, "the changed file is too young");
}
