//! `inrush doctor` and `inrush cache`.
//!
//! The doctor tries what a run needs, in the order in which a run needs it: the processor's level,
//! the C compiler, a build, vector functions of the C library, a cache that can be written. Each
//! finding says what to install or set if it is not good. Drivers of GPUs and Triton are optional.

use crate::args::{CacheArgs, DoctorArgs};
use crate::out::say;
use inrush_base::{Error, Result};
use inrush_runtime::cache::{Cache, CachePlace};
use inrush_runtime::cache_kinds::{KINDS, kind};
use inrush_runtime::cache_limit::Limit;
use inrush_runtime::cc::{Compiler, Target, has_vector_math};
use inrush_runtime::remote::{Remote, Settings};
use inrush_runtime::triton::Python;
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
                let limit = Limit::of(cache.dir());
                let notices = [place.notice, limit.notice.clone()];
                let notices: Vec<String> = (notices.into_iter().flatten())
                    .map(|n| format!("; {n}"))
                    .collect();
                format!(
                    "{}: {} objects, {:.1} MB, {}{}",
                    cache.dir().display(),
                    usage.entries,
                    usage.bytes as f64 / 1e6,
                    bound(&limit),
                    notices.concat()
                )
            }
            Err(e) => format!(
                "{}: not writable: {e}; set INRUSH_CACHE_DIR",
                cache.dir().display()
            ),
        },
    });
    findings.push(tier());
    let python = Python::find();
    let backends = python
        .as_ref()
        .map_or_else(|_| Vec::new(), Python::backends);
    findings.extend(gpus(python.is_ok().then_some(&backends)));
    findings.push(Finding {
        what: "Triton",
        ok: true,
        detail: python.map_or_else(|e| e.message().to_string(), |p| p.summary(&backends)),
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

/// Says what the bound on the cache's folder is.
fn bound(limit: &Limit) -> String {
    match limit.bytes {
        Some(bytes) => format!("bounded by {:.1} MB", bytes as f64 / 1e6),
        None => "not bounded".into(),
    }
}

/// Asks the second tier of the cache for a sign of life.
fn tier() -> Finding {
    let (ok, detail) = match Settings::from_environment() {
        Ok(None) => (true, "none: INRUSH_REMOTE_CACHE names one".into()),
        Err(e) => (false, e.message().to_string()),
        Ok(Some(settings)) => {
            let name = settings.shown();
            let keyed = if settings.is_keyed() {
                "entries are authenticated"
            } else {
                "entries are not authenticated: INRUSH_REMOTE_CACHE_KEY sets a secret"
            };
            match Remote::open(settings).ping() {
                Ok(took) => {
                    let ms = took.as_secs_f64() * 1e3;
                    (true, format!("{name} answers in {ms:.1} ms, {keyed}"))
                }
                Err(e) => (false, format!("{name}: {}", e.message())),
            }
        }
    };
    Finding {
        what: "second tier",
        ok,
        detail,
    }
}

/// Returns what became of the second tier in this process, once all is stored; null if there is none.
pub(crate) fn tier_json() -> serde_json::Value {
    let Some(remote) = Remote::current() else {
        return serde_json::Value::Null;
    };
    remote.finish(remote.settings().longest_request());
    let mut line = serde_json::json!({
        "tier": remote.settings().shown(),
        "off": remote.why_off(),
    });
    for (name, n) in remote.counts().named() {
        line[name] = n.into();
    }
    line
}

/// Looks for the drivers of all kinds of GPUs and their devices, and says what else is missing there. `backends` are those of Triton,
/// if there is one.
fn gpus(backends: Option<&Vec<String>>) -> impl Iterator<Item = Finding> {
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
        detail: text(kind).unwrap_or_else(|e: Error| e.message().to_string())
            + &lacks(kind, backends),
    })
}

/// Says what programs for a kind of GPU lack, besides a driver.
fn lacks(kind: &inrush_base::Device, backends: Option<&Vec<String>>) -> String {
    let mut text = String::new();
    let (name, packages) = kind.backend_package;
    if backends.is_some_and(|all| !all.iter().any(|b| b == name)) {
        text += &format!(
            "; no kernels are built: Triton's back end `{name}` is missing; install {packages}"
        );
    }
    if kind.runs.as_ref().is_some_and(|r| !r.shares_streams) {
        text += "; in torch.compile on queues of SYCL of the second Level Zero adapter of oneAPI 2025.3 or later: set SYCL_UR_USE_LEVEL_ZERO_V2=1 where it is not the default";
    }
    text
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
    let tier = Settings::from_environment()?;
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
    let limit = Limit::of(cache.dir());
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
                "limit": limit.bytes,
                "remote": tier.as_ref().map(Settings::shown),
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
    if removed.is_none() {
        say!("  {}", bound(&limit))?;
        if let Some(notice) = &limit.notice {
            say!("  {notice}")?;
        }
        match &tier {
            Some(tier) => say!("  second tier: {}", tier.shown())?,
            None => say!("  no second tier")?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
