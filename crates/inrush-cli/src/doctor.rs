//! `inrush doctor` and `inrush cache`.
//!
//! The doctor tries what a run needs, in the order in which a run needs it: the processor's level,
//! the C compiler, a build, vector functions of the C library, a cache that can be written. Each
//! finding says what to install or set if it is not good.

use crate::args::{CacheArgs, DoctorArgs};
use crate::out::say;
use inrush_base::{Error, Result};
use inrush_runtime::cache::{Cache, CachePlace};
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

/// Prints or clears the usage of the cache; with `--clear` the figures are of what was removed.
pub fn cache(a: &CacheArgs) -> Result<ExitCode> {
    let cache = Cache::open_default();
    let usage = if a.clear {
        cache.clear()?
    } else {
        cache.usage()
    };
    let dir = cache.dir().display();
    if a.json {
        say!(
            "{}",
            serde_json::json!({
                "dir": dir.to_string(),
                "objects": usage.entries,
                "bytes": usage.bytes,
                "removed": a.clear,
            })
        )?;
    } else {
        say!(
            "{dir}: {} objects, {:.1} MB{}",
            usage.entries,
            usage.bytes as f64 / 1e6,
            if a.clear { ", removed" } else { "" }
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
