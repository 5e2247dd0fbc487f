//! Packages with programs for GPUs, over a driver that is a small C library: which target a device gets, what is refused.

mod driver;
mod programs;

use driver::{Machine, code, floats, gpu, info, log, tensor, with_driver};
use inrush_base::{DType, Error, ErrorKind};
use inrush_host::native::{self, Form, Lowered, Model, Object, Options, Wanted, choose};
use inrush_host::program::Device;
use inrush_package::{Cpu, KernelParts, Package, TargetParts, WeightData};
use inrush_program::{GpuKernel, Program};
use inrush_runtime::{MemoryWeights, WeightSource};
use programs::{chain, program, two_products};
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

const GPU: Device = Device { kind: 1, index: 0 };

fn open(path: &Path, device: Device) -> Result<Model, Error> {
    Model::open(path, device, Options::default())
}

/// A program that multiplies by 4.
fn quadruple(arch: &str) -> Lowered {
    let (steps, last) = chain(1);
    lowered(program(GPU, steps, 3, last, 1), arch)
}

/// A program with two products, one of them with a weight.
fn products(arch: &str) -> Lowered {
    lowered(two_products(GPU), arch)
}

fn lowered(mut program: inrush_host::program::HostProgram, arch: &str) -> Lowered {
    if let Some(gpu) = &mut program.gpu {
        gpu.target.arch = arch.into();
        gpu.kernels[0].text = "the source".into();
    }
    let objects = (program.constants.iter())
        .map(|_| Object::Weight("w".into()))
        .collect();
    Lowered {
        objects,
        inputs: vec!["x".into()],
        program,
        complex: Default::default(),
        guards: Vec::new(),
        bounds: Vec::new(),
        expected: Default::default(),
    }
}

fn ptx(target: &str) -> Vec<u8> {
    format!("//\n.version 8.7\n.target {target}\n.address_size 64\n.visible .entry twice()\n")
        .into_bytes()
}

fn parts<'a>(name: &str, lowered: &'a Lowered, ptx: Option<Vec<u8>>) -> TargetParts<'a> {
    let Ok(Wanted::Gpu(w)) = Wanted::parse(name) else {
        panic!("{name}");
    };
    TargetParts::Gpu {
        gpu: w.gpu,
        lowered,
        kernels: vec![KernelParts {
            info: info(),
            code: code(),
            ptx,
        }],
    }
}

fn weights() -> MemoryWeights {
    let mut weights = MemoryWeights::default();
    let w = [0f32, 1.0, 1.0, 0.0].iter().flat_map(|v| v.to_le_bytes());
    weights.insert("w", DType::F32, vec![2, 2], w.collect());
    weights
}

fn write(path: &Path, targets: &[TargetParts<'_>]) {
    let weights = weights();
    inrush_package::write(path, targets, &|name| {
        weights.weight(name).map(|w| WeightData {
            dtype: w.dtype,
            sizes: w.sizes,
            strides: w.strides,
            bytes: w.bytes,
        })
    })
    .unwrap();
}

/// Writes a package for an A100, whose PTX later devices take, and for an H100, whose PTX no other takes.
fn two_targets(folder: &Path) -> PathBuf {
    let path = folder.join("two.inrush");
    let (a100, h100) = (quadruple("80"), quadruple("90"));
    let targets = [
        parts("a100", &a100, Some(ptx("sm_80"))),
        parts("h100", &h100, Some(ptx("sm_90a"))),
    ];
    write(&path, &targets);
    path
}

/// Returns a target whose kernel is to be built, with a candidate of other warps.
fn source<'a>(name: &str, lowered: &'a mut Lowered) -> TargetParts<'a> {
    let Ok(Wanted::Gpu(w)) = Wanted::parse(name) else {
        panic!("{name}");
    };
    if let Some(gpu) = &mut lowered.program.gpu {
        gpu.kernels[0].warps = 4;
    }
    let kernel = lowered.kernels()[0].clone();
    let other = GpuKernel {
        symbol: "thrice".into(),
        text: "another source".into(),
        warps: 8,
        ..kernel
    };
    native::source_parts(&w.gpu, lowered, vec![vec![other]])
}

/// Writes a package that holds source for an H100.
fn of_source(folder: &Path) -> PathBuf {
    let path = folder.join("source.inrush");
    write(&path, &[source("h100", &mut quadruple("90"))]);
    path
}

#[test]
fn a_package_keeps_source_and_candidates() {
    let folder = tempfile::tempdir().unwrap();
    let package = Package::open(&of_source(folder.path())).unwrap();
    let target = package.gpus().next().unwrap();
    let kernels = package.source_kernels(target).unwrap().unwrap();
    assert_eq!(kernels.len(), 1);
    let (kernel, candidates) = (&kernels[0].kernel, &kernels[0].candidates);
    assert_eq!((kernel.text.as_str(), kernel.warps), ("the source", 4));
    assert_eq!(candidates.len(), 1);
    let other = &candidates[0];
    assert_eq!((other.text.as_str(), other.warps), ("another source", 8));
    // Source for an architecture of its own fits no other, and there is no PTX.
    assert!(choose(&package, GPU, "90").is_ok());
    for arch in ["80", "91", "100"] {
        assert!(choose(&package, GPU, arch).is_err(), "{arch}");
    }
    // Packages of code are of the format that older readers take.
    let format = |path: PathBuf| {
        let mut found = 0;
        let whole = std::fs::read(path).unwrap();
        changed(
            &whole,
            &mut |m| found = m["format"].as_u64().unwrap(),
            &mut |_, _| {},
        );
        found
    };
    let formats = (
        format(of_source(folder.path())),
        format(two_targets(folder.path())),
    );
    assert_eq!(formats, (9, 8));
}

#[test]
fn source_is_not_built_unless_that_is_allowed() {
    let name = "source_is_not_built_unless_that_is_allowed";
    with_driver(name, Machine::default(), |folder| {
        let error = open(&of_source(folder), GPU).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        for word in ["`twice`", "no record here", "--build-kernels"] {
            assert!(text.contains(word), "{text}");
        }
    });
}

#[test]
fn damaged_source_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(of_source(folder.path())).unwrap();
    let read = |bytes| -> Result<(), Error> { Package::read(bytes).map(drop) };
    read(changed(&whole, &mut |_| {}, &mut |_, _| {})).unwrap();
    let kernel = "/targets/0/Source/lowered/program/gpu/kernels/0";
    let entry = "/targets/0/Source/kernels/0";
    let candidate = format!("{entry}/candidates/0/kernel");
    let many: Vec<serde_json::Value> = Vec::from_iter((0..100).map(|_| serde_json::Value::Null));
    for (at, value, word) in [
        (format!("{kernel}/function"), "os.system".into(), "numbers"),
        (format!("{kernel}/function"), "".into(), "numbers"),
        (format!("{kernel}/warps"), 64.into(), "numbers"),
        (format!("{kernel}/warps"), 3.into(), "numbers"),
        (format!("{candidate}/warps"), 0.into(), "candidate"),
        (
            format!("{candidate}/signature"),
            serde_json::json!([]),
            "candidate",
        ),
        (
            format!("{candidate}/divisible"),
            serde_json::json!([5]),
            "candidate",
        ),
        (format!("{entry}/text/digest"), "00".into(), "digest"),
        (
            format!("{entry}/text/entry"),
            "weights/9".into(),
            "weights/9",
        ),
        (
            "/targets/0/Source/kernels".into(),
            serde_json::json!([]),
            "kernels",
        ),
        (format!("{entry}/candidates"), many.into(), "null"),
        (
            "/targets/0/Source/gpu/build/arch".into(),
            "80".into(),
            "another GPU",
        ),
    ] {
        let mut edit =
            |m: &mut serde_json::Value| *m.pointer_mut(&at).expect("a field") = value.clone();
        let error = read(changed(&whole, &mut edit, &mut |_, _| {})).expect_err(&at);
        assert_eq!(error.kind(), ErrorKind::Input, "{at}");
        assert!(error.to_string().contains(word), "{at}: {error}");
    }
    // More candidates than a kernel may have.
    let mut more = |m: &mut serde_json::Value| {
        let all = m.pointer_mut(&format!("{entry}/candidates")).unwrap();
        *all = vec![all[0].clone(); 65].into();
    };
    let error = read(changed(&whole, &mut more, &mut |_, _| {})).unwrap_err();
    assert!(error.to_string().contains("too many candidates"), "{error}");
    // The digest holds the text.
    let swapped = changed(&whole, &mut |_| {}, &mut |name, bytes| {
        if name.ends_with("source/0") {
            *bytes = b"import os".to_vec();
        }
    });
    let error = read(swapped).unwrap_err().to_string();
    assert!(
        error.contains("source/0") && error.contains("digest"),
        "{error}"
    );
}

#[test]
fn a_package_keeps_its_targets_and_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.inrush");
    let with = products("90");
    let program = Program {
        sizes: vec![inrush_program::Size::Const(0)],
        ..Program::default()
    };
    let cpu = TargetParts::Cpu {
        cpu: Cpu {
            arch: "x86_64".into(),
            os: "linux".into(),
            isa: "avx2".into(),
        },
        program: &program,
        object: b"no machine code",
    };
    write(&path, &[cpu, parts("h100", &with, None)]);
    let package = Package::open(&path).unwrap();
    assert_eq!(
        package.target_names(),
        "cpu:avx2 (linux x86_64), cuda:h100 (90)"
    );
    let (cpu, gpu) = (
        package.cpus().next().unwrap(),
        package.gpus().next().unwrap(),
    );
    assert_eq!(package.code(&cpu.object), b"no machine code");
    assert_eq!((gpu.products(), gpu.kernels[0].info.clone()), (2, info()));
    assert_eq!(package.code(&gpu.kernels[0].code), code());
    let kernel = &gpu.lowered.program.gpu.as_ref().unwrap().kernels[0];
    assert_eq!(
        (kernel.symbol.as_str(), kernel.text.as_str()),
        ("twice", "")
    );
    assert_eq!(package.weight("w").unwrap().bytes.len(), 16);
    package.check_weights().unwrap();
    // The same again is the same bytes.
    let first = std::fs::read(&path).unwrap();
    let again = folder.path().join("again.inrush");
    let cpu = TargetParts::Cpu {
        cpu: cpu.cpu.clone(),
        program: &program,
        object: b"no machine code",
    };
    write(&again, &[cpu, parts("h100", &with, None)]);
    assert_eq!(first, std::fs::read(&again).unwrap());
}

#[test]
fn a_package_runs_on_any_device_without_builds() {
    let name = "a_package_runs_on_any_device_without_builds";
    with_driver(name, Machine::default(), |folder| {
        let path = two_targets(folder);
        for index in 0..2 {
            let model = open(&path, Device { index, ..GPU }).unwrap();
            assert_eq!(model.inputs(), ["x"]);
            // Another thread has no current context of its own.
            let out = std::thread::scope(|s| {
                let run = s.spawn(|| model.run(&[tensor(&[1.0, 2.0, -3.0])]).unwrap());
                run.join().unwrap()
            });
            assert_eq!(floats(&out[0]), [4.0, 8.0, -12.0]);
            let log = log(folder);
            assert_eq!(
                log.contains(&"stream on 1".to_string()),
                index == 1,
                "{log:?}"
            );
            assert!(log.iter().all(|l| !l.contains("ptx")), "{log:?}");
        }
        let error = open(&path, Device { index: 7, ..GPU }).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Machine);
        assert!(error.to_string().contains("device 7"), "{error}");
    });
}

#[test]
fn a_later_device_has_its_driver_finish_ptx() {
    let name = "a_later_device_has_its_driver_finish_ptx";
    let machine = Machine {
        capability: 120,
        ..Machine::default()
    };
    with_driver(name, machine, |folder| {
        let model = open(&two_targets(folder), GPU).unwrap();
        let out = model.run(&[tensor(&[1.0, 2.0])]).unwrap();
        assert_eq!(floats(&out[0]), [4.0, 8.0]);
        assert!(log(folder).contains(&"load ptx".to_string()));
    });
}

/// Writes a package for AMD GPUs of two architectures.
fn for_amd(folder: &Path) -> PathBuf {
    let path = folder.join("amd.inrush");
    let amd = Device { kind: 6, index: 0 };
    let program_for = |arch| {
        let (steps, last) = chain(1);
        lowered(program(amd, steps, 3, last, 1), arch)
    };
    let (mi250, mi300x) = (program_for("gfx90a"), program_for("gfx942"));
    let targets = [parts("mi250", &mi250, None), parts("mi300x", &mi300x, None)];
    write(&path, &targets);
    path
}

#[test]
fn an_amd_gpu_gets_the_code_of_its_architecture() {
    let name = "an_amd_gpu_gets_the_code_of_its_architecture";
    let machine = Machine {
        kinds: &["rocm"],
        ..Machine::default()
    };
    with_driver(name, machine, |folder| {
        for index in 0..2 {
            let device = Device { index, ..gpu() };
            let model = open(&for_amd(folder), device).unwrap();
            assert_eq!(
                model.lowered().program.gpu.as_ref().unwrap().target.arch,
                "gfx942"
            );
            log(folder);
            let out = model.run(&[tensor(&[1.0, 2.0, -3.0])]).unwrap();
            assert_eq!(floats(&out[0]), [4.0, 8.0, -12.0]);
            let got = log(folder);
            // Four warps of 64 threads.
            let launch = "launch twice grid=1,1,1 threads=256 shared=65536 args=40 n=3";
            assert_eq!(got.iter().filter(|l| *l == launch).count(), 2, "{got:?}");
        }
        let error = open(&for_amd(folder), Device { index: 2, ..gpu() });
        let text = error.err().unwrap().to_string();
        assert!(
            text.contains("device 2") && text.contains("2 devices"),
            "{text}"
        );
        // Packages for other vendors are refused by name.
        let text = open(&two_targets(folder), gpu()).err().unwrap().to_string();
        assert!(
            text.contains("`rocm:0`") && text.contains("cuda:a100 (80)"),
            "{text}"
        );
        let text = open(&for_amd(folder), GPU).err().unwrap().to_string();
        assert!(
            text.contains("`cuda:0`") && text.contains("rocm:mi300x (gfx942)"),
            "{text}"
        );
    });
}

#[test]
fn an_amd_gpu_of_another_architecture_lists_the_targets() {
    let name = "an_amd_gpu_of_another_architecture_lists_the_targets";
    let machine = Machine {
        kinds: &["rocm"],
        arch: "gfx1100",
        ..Machine::default()
    };
    with_driver(name, machine, |folder| {
        let error = open(&for_amd(folder), gpu()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        for word in ["gfx1100", "rocm:mi250 (gfx90a)", "rocm:mi300x (gfx942)"] {
            assert!(text.contains(word), "{text}");
        }
        // Nor are kernels built for it.
        let text = native::device::caps(gpu()).err().unwrap().to_string();
        assert!(
            text.contains("gfx1100") && text.contains("gfx942"),
            "{text}"
        );
    });
}

#[test]
fn the_latest_code_that_fits_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let package = Package::open(&two_targets(folder.path())).unwrap();
    let chosen = |arch: &str| {
        choose(&package, GPU, arch)
            .map(|(t, form)| (t.gpu.model.clone(), form))
            .map_err(|e| e.to_string())
    };
    let of = |model: &str, form| Ok((model.to_string(), form));
    assert_eq!(chosen("80"), of("a100", Form::Code));
    assert_eq!(chosen("86"), of("a100", Form::Code));
    assert_eq!(chosen("90"), of("h100", Form::Code));
    assert_eq!(chosen("100"), of("a100", Form::Ptx));
    let error = chosen("75").unwrap_err();
    assert!(error.contains("cuda:a100 (80), cuda:h100 (90)"), "{error}");
    // Code of one architecture fits no other.
    let path = folder.path().join("one.inrush");
    let h100 = quadruple("90");
    write(&path, &[parts("h100", &h100, Some(ptx("sm_90a")))]);
    let package = Package::open(&path).unwrap();
    let error = choose(&package, GPU, "100").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("sm_90a"), "{error}");
}

#[test]
fn a_package_without_a_target_for_the_device_lists_what_it_has() {
    let name = "a_package_without_a_target_for_the_device_lists_what_it_has";
    let machine = Machine {
        capability: 75,
        ..Machine::default()
    };
    with_driver(name, machine, |folder| {
        let error = open(&two_targets(folder), GPU).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        for word in ["two.inrush", "cuda:0", "architecture 75", "cuda:a100 (80)"] {
            assert!(text.contains(word), "{text}");
        }
    });
}

#[test]
fn products_need_cublas_and_say_so() {
    let name = "products_need_cublas_and_say_so";
    with_driver(name, Machine::default(), |folder| {
        let path = folder.join("products.inrush");
        let with = products("90");
        write(&path, &[parts("h100", &with, None)]);
        let model = open(&path, GPU).unwrap();
        let out = model.run(&[tensor(&[1.0, 2.0, 3.0, 4.0])]).unwrap();
        // [[1, 2], [3, 4]] * 4 with columns exchanged: [[8, 4], [16, 12]], squared.
        assert_eq!(floats(&out[0]), [128.0, 80.0, 320.0, 208.0]);
    });
}

#[test]
fn a_machine_without_cublas_is_told() {
    let name = "a_machine_without_cublas_is_told";
    let machine = Machine {
        has_cublas: false,
        ..Machine::default()
    };
    with_driver(name, machine, |folder| {
        let path = folder.join("products.inrush");
        let with = products("90");
        write(&path, &[parts("h100", &with, None)]);
        let error = open(&path, GPU).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Machine);
        let text = error.to_string();
        assert!(
            text.contains("libcublas") && text.contains("--no-libraries"),
            "{text}"
        );
        // What calls no library runs.
        let model = open(&two_targets(folder), GPU).unwrap();
        assert_eq!(floats(&model.run(&[tensor(&[1.0])]).unwrap()[0]), [4.0]);
    });
}

#[test]
fn a_machine_without_a_driver_is_told() {
    let folder = tempfile::tempdir().unwrap();
    if let Err(error) = open(&two_targets(folder.path()), GPU) {
        assert_eq!(error.kind(), ErrorKind::Machine);
        assert!(error.to_string().contains("driver"), "{error}");
    }
}

#[test]
fn flipped_bits_are_found_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    for path in [two_targets(folder.path()), of_source(folder.path())] {
        flip_bits(&std::fs::read(path).unwrap());
    }
}

/// Reads a package with each seventh byte changed.
fn flip_bits(whole: &[u8]) {
    let mut found = 0;
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (at % 8);
        match Package::read(bytes).and_then(|p| p.check_weights()) {
            Ok(()) => {}
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Input, "{at}: {e}");
                found += 1;
            }
        }
    }
    // Bytes between entries, and most fields of their headers, are read by nothing.
    assert!(
        found * 2 > whole.len() / 7,
        "{found} of {}",
        whole.len() / 7
    );
}

/// Returns the package with its manifest, and its code, changed.
fn changed(
    whole: &[u8],
    manifest: &mut dyn FnMut(&mut serde_json::Value),
    code: &mut dyn FnMut(&str, &mut Vec<u8>),
) -> Vec<u8> {
    let mut from = zip::ZipArchive::new(Cursor::new(whole)).unwrap();
    let mut to = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for k in 0..from.len() {
        let mut entry = from.by_index(k).unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        if entry.name() == "inrush.json" {
            let mut json = serde_json::from_slice(&bytes).unwrap();
            manifest(&mut json);
            bytes = serde_json::to_vec(&json).unwrap();
        } else {
            code(entry.name(), &mut bytes);
        }
        to.start_file(entry.name(), options).unwrap();
        to.write_all(&bytes).unwrap();
    }
    to.finish().unwrap().into_inner()
}

#[test]
fn damaged_manifests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(two_targets(folder.path())).unwrap();
    let read = |bytes| -> Result<(), Error> { Package::read(bytes).map(drop) };
    let same = changed(&whole, &mut |_| {}, &mut |_, _| {});
    read(same).unwrap();
    let refused = |edit: &mut dyn FnMut(&mut serde_json::Value), word: &str| {
        let error = read(changed(&whole, edit, &mut |_, _| {})).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(
            error.to_string().contains(word),
            "`{word}` is not in: {error}"
        );
    };
    refused(&mut |m| m["format"] = 3.into(), "package format 3");
    refused(&mut |m| m["targets"] = serde_json::json!([]), "no targets");
    // A manifest of format 3, which has other fields.
    let old = serde_json::json!({"format": 3, "version": "0.1.0", "target": {}, "program": {}});
    refused(&mut |m| *m = old.clone(), "compile the model again");
    refused(
        &mut |m| m["targets"][0]["Gpu"]["kernels"] = serde_json::json!([]),
        "kernels",
    );
    refused(
        &mut |m| m["targets"][0]["Gpu"]["kernels"][0]["info"]["warps"] = 4000.into(),
        "numbers",
    );
    refused(
        &mut |m| m["targets"][0]["Gpu"]["kernels"][0]["code"]["digest"] = "00".into(),
        "digest",
    );
    refused(
        &mut |m| m["targets"][0]["Gpu"]["gpu"]["build"]["arch"] = "90".into(),
        "another GPU",
    );
    refused(
        &mut |m| m["targets"][0]["Gpu"]["lowered"]["program"]["inputs"][0] = 2.into(),
        "damaged",
    );
    // The checksum of a part fits what is there, and its digest does not.
    let swapped = changed(&whole, &mut |_| {}, &mut |name, bytes| {
        if name.ends_with("kernel/0") {
            bytes[100] ^= 1;
        }
    });
    let error = read(swapped).unwrap_err().to_string();
    assert!(
        error.contains("kernel/0") && error.contains("digest"),
        "{error}"
    );
}

/// Calls `f` with every number of a JSON value.
fn numbers(v: &mut serde_json::Value, f: &mut dyn FnMut(&mut serde_json::Value)) {
    match v {
        serde_json::Value::Number(_) => f(v),
        serde_json::Value::Array(a) => a.iter_mut().for_each(|v| numbers(v, f)),
        serde_json::Value::Object(o) => o.values_mut().for_each(|v| numbers(v, f)),
        _ => {}
    }
}

#[test]
fn no_number_of_a_manifest_makes_reading_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("products.inrush");
    let with = products("90");
    write(&path, &[parts("h100", &with, None)]);
    for path in [path, of_source(folder.path())] {
        change_numbers(&std::fs::read(&path).unwrap());
    }
}

/// Reads a package with each number of its manifest changed.
fn change_numbers(whole: &[u8]) {
    let mut count = 0;
    changed(
        whole,
        &mut |m| numbers(m, &mut |_| count += 1),
        &mut |_, _| {},
    );
    assert!(count > 50, "{count} numbers");
    let mut refused = 0;
    for at in 0..count {
        for value in [-1i64, 0, 7, 1 << 40, i64::MAX] {
            let mut k = 0;
            let edit = &mut |v: &mut serde_json::Value| {
                if k == at {
                    *v = value.into();
                }
                k += 1;
            };
            let bytes = changed(whole, &mut |m| numbers(m, edit), &mut |_, _| {});
            if let Err(e) = Package::read(bytes) {
                assert_eq!(e.kind(), ErrorKind::Input, "{e}");
                refused += 1;
            }
        }
    }
    assert!(refused > count, "{refused} of {count} numbers times 5");
}
