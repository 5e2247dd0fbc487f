//! `inrush doctor` and `inrush cache`.
//!
//! The doctor tries what a run needs, in the order in which a run needs it: the processor's level,
//! the C compiler, a build, vector functions of the C library, a cache that can be written. Each
//! finding says what to install or set if it is not good. Drivers of GPUs and Triton are optional.

use crate::args::{CacheArgs, DoctorArgs};
use crate::out::say;
use crate::triton::Python;
use inrush_base::{Error, Result};
use inrush_runtime::cache::{Cache, CachePlace};
use inrush_runtime::cache_kinds::{KINDS, kind};
use inrush_runtime::cc::{Compiler, Target, has_vector_math};
use std::process::ExitCode;

/// One line of the report.
struct Finding {
    /// The key in JSON, with spaces replaced.
    what: &'static str,
    /// False makes the exit code 3. A missing optional part is good, with a note in `detail`.
    ok: bool,
    detail: String,
}

/// Prints the findings.
pub fn doctor(a: &DoctorArgs) -> Result<ExitCode> {
    let mut findings = Vec::new();
    let levels: Vec<&str> = inrush_cpu::available().iter().map(|i| i.name()).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    findings.push(Finding {
        what: "processor",
        ok: true,
        detail: format!(
            "{}, levels {}, {threads} threads",
            std::env::consts::ARCH,
            levels.join(", ")
        ),
    });
    findings.push(match Compiler::find().and_then(|c| Ok((c.version()?, c))) {
        Ok((version, c)) => Finding {
            what: "C compiler",
            ok: true,
            detail: format!("{} ({version})", c.path.display()),
        },
        Err(e) => Finding {
            what: "C compiler",
            ok: false,
            detail: e.message().to_string(),
        },
    });
    findings.push(match try_build() {
        Ok(ms) => Finding {
            what: "build",
            ok: true,
            detail: format!("a kernel built in {ms} ms"),
        },
        Err(e) => Finding {
            what: "build",
            ok: false,
            detail: e.message().to_string(),
        },
    });
    findings.push(Finding {
        what: "vector math",
        ok: true,
        detail: if has_vector_math() {
            "libmvec".into()
        } else {
            "none: math functions run one element at a time".into()
        },
    });
    let place = CachePlace::find();
    let writable = place.try_writing();
    let cache = Cache::at(place.dir);
    let usage = cache.usage();
    findings.push(Finding {
        what: "cache",
        ok: writable.is_ok(),
        detail: match writable {
            Ok(()) => {
                let notice = place.notice.map(|n| format!("; {n}"));
                format!(
                    "{}: {} objects, {:.1} MB{}",
                    cache.dir().display(),
                    usage.entries,
                    usage.bytes as f64 / 1e6,
                    notice.unwrap_or_default()
                )
            }
            Err(e) => format!(
                "{}: not writable: {e}; set INRUSH_CACHE_DIR",
                cache.dir().display()
            ),
        },
    });
    findings.extend(gpus());
    findings.push(Finding {
        what: "Triton",
        ok: true,
        detail: Python::find().map_or_else(|e| e.message().to_string(), |p| p.summary()),
    });
    let healthy = findings.iter().all(|f| f.ok);
    if a.json {
        let map: serde_json::Map<String, serde_json::Value> = findings
            .iter()
            .map(|f| {
                (
                    f.what.replace(' ', "_"),
                    serde_json::json!({"ok": f.ok, "detail": f.detail}),
                )
            })
            .collect();
        say!("{}", serde_json::Value::Object(map))?;
    } else {
        for f in &findings {
            say!(
                "{} {:<12} {}",
                if f.ok { "ok  " } else { "FAIL" },
                f.what,
                f.detail
            )?;
        }
    }
    Ok(if healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(3)
    })
}

/// Looks for the drivers of all kinds of GPUs, and their devices.
fn gpus() -> impl Iterator<Item = Finding> {
    let text = |kind: &inrush_base::Device| {
        let driver = inrush_devices::driver(kind)?;
        let (version, count) = (driver.version()?, driver.devices()?);
        let device = |index| {
            driver.make_current(index)?;
            Ok(driver.properties()?.arch)
        };
        let archs = (0..count).map(device).collect::<Result<Vec<String>>>()?;
        Ok(match archs.as_slice() {
            [] => format!("{version}, no device"),
            archs => format!("{version}, devices of architecture {}", archs.join(", ")),
        })
    };
    inrush_devices::ALL.into_iter().map(move |kind| Finding {
        what: kind.name,
        ok: true,
        detail: text(kind).unwrap_or_else(|e: Error| e.message().to_string()),
    })
}

/// Builds one function in a throw-away cache; milliseconds.
fn try_build() -> Result<u128> {
    let dir = tempfile::tempdir()
        .map_err(|e| Error::machine(format!("cannot make a temporary folder: {e}")))?;
    let start = std::time::Instant::now();
    let target = Target {
        isa: inrush_cpu::detect(),
        vector_math: has_vector_math(),
    };
    let source = "int inrush_probe(int x) { return x + 1; }\n".to_string();
    Compiler::find()?.build(&[source], &target, &Cache::at(dir.path().to_path_buf()))?;
    Ok(start.elapsed().as_millis())
}

/// Prints what the cache keeps, by kind. With `--clear` or `--limit` the figures are of what was removed.
pub fn cache(a: &CacheArgs) -> Result<ExitCode> {
    let cache = Cache::open_default();
    let all: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
    let removed = match (&a.clear, a.limit) {
        (Some(names), _) if names.is_empty() => Some(cache.clear_kinds(&all)?),
        (Some(names), _) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            names.iter().try_for_each(|n| kind(n).map(drop))?;
            Some(cache.clear_kinds(&names)?)
        }
        (None, Some(bytes)) => Some(cache.bound(bytes)?),
        (None, None) => None,
    };
    let shown = removed.clone().unwrap_or_else(|| cache.kinds());
    let bytes: u64 = shown.iter().map(|u| u.bytes).sum();
    let dir = cache.dir().display();
    if a.json {
        let kinds: serde_json::Map<String, serde_json::Value> = (KINDS.iter().zip(&shown))
            .map(|(k, u)| {
                let line = serde_json::json!({"entries": u.entries, "bytes": u.bytes});
                (k.name.to_string(), line)
            })
            .collect();
        say!(
            "{}",
            serde_json::json!({
                "dir": dir.to_string(),
                "objects": shown[0].entries,
                "bytes": bytes,
                "kinds": kinds,
                "removed": removed.is_some(),
            })
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let word = if removed.is_some() { ", removed" } else { "" };
    say!("{dir}: {:.1} MB{word}", mb(bytes))?;
    for (k, u) in KINDS.iter().zip(&shown) {
        say!(
            "  {:<14} {:>6} {:>9.1} MB  {}",
            k.name,
            u.entries,
            mb(u.bytes),
            k.what
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
