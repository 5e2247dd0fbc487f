//! The example in C against the library: compiled with the system's C compiler, its classes compared with the labels.
#![cfg(target_os = "linux")]

use inrush_cli::args::{CompileArgs, OperatorArgs};
use inrush_cli::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folder that holds the library: that of the test's own dependencies, or the one above.
fn library_folder() -> PathBuf {
    let me = std::env::current_exe().expect("the test's path");
    let folders = me.ancestors().skip(1).take(2);
    let newest = folders
        .filter_map(|f| {
            let made = f.join("libinrush.so").metadata().ok()?.modified().ok()?;
            Some((made, f.to_path_buf()))
        })
        .max();
    newest.expect("libinrush.so").1
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

fn run(c: &mut Command) -> Output {
    // The path that the program was linked with says which library it takes; cargo's folders come first otherwise.
    let out = c.env_remove("LD_LIBRARY_PATH").output();
    let out = out.expect("a command");
    assert!(
        out.status.success(),
        "{c:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    out
}

/// Compiles a program in C against the header and the library.
fn build(source: &Path, to: &Path) {
    build_all(&[source], to);
}

/// Likewise from several sources.
fn build_all(sources: &[&Path], to: &Path) {
    let library = library_folder();
    run(Command::new(compiler())
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(repository().join("crates/inrush-capi/include"))
        .args(sources)
        .arg("-o")
        .arg(to)
        .arg("-L")
        .arg(&library)
        .args(["-linrush", "-lm"])
        .arg(format!("-Wl,-rpath,{}", library.display())));
}

/// Makes the package of the digits.
fn package(folder: &Path) -> PathBuf {
    package_of(&repository().join("examples/digits/digits.pt2"), folder)
}

fn package_of(archive: &Path, folder: &Path) -> PathBuf {
    let output = folder.join("model.inrush");
    inrush_cli::package::compile(&CompileArgs {
        model: archive.to_path_buf(),
        output: output.clone(),
        target: vec!["cpu".into()],
        threads: Some(2),
        format: inrush_cli::args::Format::Inrush,
        emit: None,
        operators: OperatorArgs::default(),
        kernels: inrush_cli::args::Kernels::Code,
        tune: false,
        no_libraries: false,
        json: true,
    })
    .expect("a package");
    output
}

fn lines(out: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().map(str::to_string).collect()
}

/// Expects lines of a status, a space, and a text that has the wanted words.
fn expect(texts: &[String], wanted: &[&str]) {
    assert_eq!(texts.len(), wanted.len(), "{texts:?}");
    for (text, want) in texts.iter().zip(wanted) {
        let (status, message) = want.split_at(2);
        assert!(
            text.starts_with(status) && text.contains(message),
            "`{text}` is not `{want}`"
        );
    }
}

#[test]
fn the_example_in_c_classifies_and_swaps_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("digits");
    build(&repository().join("examples/c/digits.c"), &program);
    let package = package(folder.path());
    let given = io::read(&repository().join("examples/digits/digits.inputs.safetensors")).unwrap();
    let expect = io::read(&repository().join("examples/digits/digits.expect.safetensors")).unwrap();
    let images = folder.path().join("images");
    std::fs::write(&images, given["0"].to_bytes()).expect("the images");
    let out = run(Command::new(&program).arg(&package).arg(&images));
    let classes = lines(&out);
    let labels = expect["labels"].to_bytes();
    let labels: Vec<String> = labels.chunks(8).map(|b| b[0].to_string()).collect();
    assert_eq!(classes.len(), 2 * labels.len());
    let (before, after) = classes.split_at(labels.len());
    let right = before.iter().zip(&labels).filter(|(a, b)| a == b).count();
    assert!(
        right * 100 >= 99 * labels.len(),
        "{right} of {}",
        labels.len()
    );
    assert!(after.iter().all(|c| c == "7"), "{after:?}");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("input x: "), "{said}");
}

#[test]
fn wrong_calls_are_errors_with_a_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("misuse");
    build(
        &repository().join("crates/inrush-capi/tests/misuse.c"),
        &program,
    );
    let package = package(folder.path());
    let damaged = folder.path().join("damaged.inrush");
    let mut bytes = std::fs::read(&package).expect("the package");
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&damaged, bytes).expect("half a package");
    let out = run(Command::new(&program).arg(&package).arg(&damaged));
    let texts = lines(&out);
    let wanted = [
        "1 cannot open",
        "1 not a compiled package",
        "1 `options.size` is 0",
        "1 `path` is NULL",
        "1 the model gives 1 outputs, room is given for 2",
        "1 the model takes 1 inputs",
        "1 input `x` must be float32",
        "1 input `x`: dimension 3 must be 8, got 7",
        "1 `inputs[0]` is NULL",
        "1 output 0 is float32 of sizes [2, 10]",
        "1 the model has no weight `nothing`",
        "1 there are no new weights to swap in",
        "1 the model draws no random numbers",
        "0 ",
    ];
    expect(&texts, &wanted);
}

#[test]
fn functions_of_the_library_are_called_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("library");
    build(
        &repository().join("crates/inrush-capi/tests/library.c"),
        &program,
    );
    let out = run(&mut Command::new(&program));
    let texts = lines(&out);
    let wanted = [
        "0 ",
        "2 the library function `no.such`",
        "1 `function` is NULL",
        "1 -1 threads",
        "1 `linalg.inv`: ",
        "1 `inputs` is NULL",
        "1 `inputs[0]` is NULL",
        "1 `linalg.inv`: output 0 has strides [1, 2], it must be row-major",
        "1 `linalg.inv`: output 0 shares memory with another tensor",
        "1 `linalg.inv`: output 0 has strides [1, 2], it must be row-major",
        "1 params[0]: an argument of kind 9",
        "1 `params[0]` is left out",
        "0 ",
        "1 `nonzero` gives 1 results, room is given for 2",
        "1 `nonzero`: ",
        "2 the library function `linalg.inv`",
        "1 `outputs` is NULL",
    ];
    expect(&texts, &wanted);
}

#[test]
fn a_fork_after_the_first_call_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("fork");
    build(
        &repository().join("crates/inrush-capi/tests/fork.c"),
        &program,
    );
    let out = run(Command::new(&program).arg(package(folder.path())));
    let texts = lines(&out);
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert_eq!(texts[0], "0 ", "before the first call");
    assert!(
        texts[1].starts_with("3 this process is a fork"),
        "{texts:?}"
    );
}

#[test]
fn operators_in_c_are_called() {
    let folder = tempfile::tempdir().expect("a folder");
    let example = repository().join("examples/operators");
    let program = folder.path().join("operators");
    let host = repository().join("crates/inrush-capi/tests/operators.c");
    build_all(&[&host, &example.join("operators.c")], &program);
    let schemas = [
        "example::scale(Tensor x, float by=2.0, str rounding=\"none\", int[]? dims=None) -> Tensor",
        "example::count(Tensor(a!) seen, Tensor x, int by=1) -> ()",
        "example::above(Tensor x, float limit) -> Tensor",
        "example::blend(Tensor[] items, float[] weights, bool flip) -> (Tensor, Tensor[])",
    ];
    inrush_cli::operators::take(&OperatorArgs {
        declared: schemas.map(str::to_string).to_vec(),
        libraries: Vec::new(),
    })
    .expect("good schemas");
    let package = package_of(&example.join("model.pt2"), folder.path());
    let given = io::read(&example.join("model.inputs.safetensors")).expect("inputs");
    let expect = io::read(&example.join("model.expect.safetensors")).expect("outputs");
    let input = folder.path().join("input");
    std::fs::write(&input, given["0"].to_bytes()).expect("the input");
    let out = run(Command::new(&program).arg(&package).arg(&input));
    let said = lines(&out);
    let text = said.join("\n");
    for words in [
        "1 without: ",
        "operators that the host did not register for `cpu`",
        "example::blend(",
        "model.py:",
        "1 null: `operators` is NULL",
        "1 bad: the operator `scale(Tensor x) -> Tensor`: its name has no namespace",
        "1 bad: the `schema` of an operator is NULL",
        "1 bad: functions of operators are for `cpu` or `cuda`",
        "not `tpu`",
        "1 bad: `a::b(Tensor x) -> Tensor` has no function",
        "1 library: /nowhere/liboperators.so",
        "2 failing: node `scale` (example.scale.default)",
        "it is Sunday",
        "1 wild: node `scale` (example.scale.default)",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    for k in 0..3 {
        let line = said
            .iter()
            .find_map(|l| l.strip_prefix(&format!("output {k} ")));
        let got: Vec<f32> = (line.expect("an output").split(' '))
            .map(|w| w.parse().expect("a number"))
            .collect();
        let wanted = expect[&k.to_string()].to_bytes();
        let word = |b: &[u8]| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        let wanted: Vec<f32> = wanted.chunks(4).map(word).collect();
        assert_eq!(got.len(), wanted.len());
        assert!(got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}
