//! The second tier of the cache: what one machine built another one finds, and whatever is wrong with the tier, models run.
#![cfg(all(target_os = "linux", feature = "redis", feature = "s3"))]

mod toy;

use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use toy::{Fault, Kind, Server};

/// Machines with a compiler that counts how often it is called.
struct Machines {
    folder: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Machines {
    fn new(environment: Vec<(&'static str, String)>) -> Machines {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("cc.sh");
        let log = folder.path().join("calls");
        let text = format!("#!/bin/sh\necho >> '{}'\nexec cc \"$@\"\n", log.display());
        std::fs::write(&script, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        Machines {
            folder,
            environment,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns how often the compiler was called.
    fn calls(&self) -> usize {
        std::fs::read(self.path("calls")).map_or(0, |c| c.len())
    }

    fn command(&self, machine: &str, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_inrush"));
        c.args(args)
            .env("INRUSH_CACHE_DIR", self.path(machine))
            .env("CC", self.path("cc.sh"))
            .env("INRUSH_REMOTE_CACHE_CONNECT", "0.4")
            .env("INRUSH_REMOTE_CACHE_READ", "0.4")
            .envs(self.environment.iter().map(|(k, v)| (*k, v)));
        c
    }

    /// Runs a model on a machine and returns what it reports, and what it says on stderr.
    fn run(&self, machine: &str) -> (Json, String) {
        run(&mut self.command(machine, &[]))
    }
}

fn run(command: &mut Command) -> (Json, String) {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
    let out: Output = command
        .arg("run")
        .arg(digits.join("digits.pt2"))
        .arg("--expect")
        .arg(digits.join("digits.expect.safetensors"))
        .arg("--inputs")
        .arg(digits.join("digits.inputs.safetensors"))
        .args(["--json", "--seconds", "0"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    (serde_json::from_slice(&out.stdout).unwrap(), said)
}

/// Returns hits, misses, refused, stored and dropped.
fn counts(report: &Json) -> Vec<u64> {
    let names = ["hits", "misses", "refused", "stored", "dropped"];
    let tier = &report["remote_cache"];
    names.iter().map(|n| tier[n].as_u64().unwrap()).collect()
}

/// One machine builds, another one with an empty cache builds nothing; both have right results.
fn one_builds_for_another(environment: Vec<(&'static str, String)>) -> Machines {
    let machines = Machines::new(environment);
    let (first, said) = machines.run("one");
    assert_eq!(said, "");
    assert_eq!(first["cached"], false);
    assert_eq!(counts(&first), [0, 1, 0, 1, 0], "{first}");
    let calls = machines.calls();
    assert!(calls > 0);
    let (second, said) = machines.run("other");
    assert_eq!(said, "");
    assert_eq!(second["cached"], true);
    assert_eq!(counts(&second), [1, 0, 0, 0, 0], "{second}");
    assert_eq!(machines.calls(), calls, "the compiler ran");
    // Now it is in the folder.
    assert_eq!(counts(&machines.run("other").0), [0, 0, 0, 0, 0]);
    machines
}

#[test]
fn a_shared_folder_is_found_by_another_machine() {
    let shared = tempfile::tempdir().unwrap();
    let url = format!("file://{}", shared.path().display());
    one_builds_for_another(vec![("INRUSH_REMOTE_CACHE", url)]);
}

#[test]
fn entries_without_the_secret_are_not_run() {
    let shared = tempfile::tempdir().unwrap();
    let url = format!("file://{}", shared.path().display());
    let machines = one_builds_for_another(vec![("INRUSH_REMOTE_CACHE", url)]);
    let calls = machines.calls();
    let keyed = |machine: &str| {
        run(machines
            .command(machine, &[])
            .env("INRUSH_REMOTE_CACHE_KEY", "secret"))
    };
    let (report, said) = keyed("third");
    assert_eq!(
        (report["cached"].as_bool(), counts(&report)),
        (Some(false), vec![0, 0, 1, 1, 0])
    );
    assert!(said.contains("was not written with the secret"), "{said}");
    assert_eq!(machines.calls(), 2 * calls);
    // The entry has been replaced by one that is authentic.
    let (report, said) = keyed("fourth");
    assert_eq!((said.as_str(), counts(&report)), ("", vec![1, 0, 0, 0, 0]));
}

#[test]
fn two_processes_share_a_folder_at_the_same_time() {
    let shared = tempfile::tempdir().unwrap();
    let url = format!("file://{}", shared.path().display());
    let machines = Machines::new(vec![("INRUSH_REMOTE_CACHE", url)]);
    std::thread::scope(|s| {
        let all: Vec<_> = (["a", "b", "c"].iter())
            .map(|m| s.spawn(|| machines.run(m)))
            .collect();
        for one in all {
            assert_eq!(one.join().unwrap().1, "");
        }
    });
    assert_eq!(machines.run("d").0["cached"], true);
}

#[test]
fn redis_is_found_by_another_machine_and_may_fail_in_any_way() {
    check_server(Kind::Redis);
}

#[test]
fn s3_is_found_by_another_machine_and_may_fail_in_any_way() {
    check_server(Kind::S3);
}

fn check_server(kind: Kind) {
    let server = Server::start(kind);
    let machines = one_builds_for_another(server.environment());
    let names = server.names();
    let [name] = names.as_slice() else {
        panic!("{names:?}");
    };
    let begin = match kind {
        Kind::Redis => "inrush:objects/",
        Kind::S3 => "/bucket/some/prefix/objects/",
    };
    assert!(name.starts_with(begin), "{name}");
    let faults = [
        Fault::Hangs,
        Fault::Stalls,
        Fault::Cuts,
        Fault::Drips,
        Fault::Garbage,
        Fault::Refuses,
    ];
    for fault in faults {
        server.set(fault);
        let start = Instant::now();
        let (report, said) = machines.run(&format!("{fault:?}"));
        assert_eq!(report["cached"], false, "{fault:?}");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 1, "{fault:?}: one warning: {said}");
        assert!(
            said.contains("is off for this process"),
            "{fault:?}: {said}"
        );
        assert!(!said.contains("password"), "{fault:?}: {said}");
        assert!(
            report["remote_cache"]["off"].is_string(),
            "{fault:?}: {report}"
        );
        // A connection and four waits, and a build.
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{fault:?}: {:?}",
            start.elapsed()
        );
        // The local cache has it.
        assert_eq!(
            machines.run(&format!("{fault:?}")).0["cached"],
            true,
            "{fault:?}"
        );
    }
    // A damaged entry is refused, and replaced.
    server.set(Fault::FlipsABit);
    let (report, said) = machines.run("flipped");
    assert_eq!(
        (report["cached"].as_bool(), counts(&report)),
        (Some(false), vec![0, 0, 1, 1, 0])
    );
    assert!(said.contains("is damaged"), "{said}");
    server.set(Fault::None);
    assert_eq!(machines.run("last").0["cached"], true);
}

#[test]
fn a_server_that_is_not_there_is_one_warning() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    for kind in [Kind::Redis, Kind::S3] {
        let mut gone = Server::start(kind);
        gone.port = port;
        let (report, said) = Machines::new(gone.environment()).run("one");
        assert_eq!(report["cached"], false);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("is off for this process"), "{said}");
    }
}

#[test]
fn the_doctor_asks_the_tier_for_a_sign_of_life() {
    let server = Server::start(Kind::S3);
    let machines = Machines::new(server.environment());
    let doctor = || {
        let out = machines.command("one", &["doctor"]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let line = text.lines().find(|l| l.contains("second tier")).unwrap();
        (out.status.code(), line.to_string())
    };
    let (code, line) = doctor();
    assert_eq!(code, Some(0), "{line}");
    assert!(
        line.contains("answers in") && line.contains("are not authenticated"),
        "{line}"
    );
    server.set(Fault::Refuses);
    let (code, line) = doctor();
    assert_eq!(code, Some(3), "{line}");
    assert!(line.contains("FAIL") && line.contains("AWS_"), "{line}");
}

#[test]
fn the_cache_keeps_itself_below_its_bound() {
    let machines = Machines::new(Vec::new());
    machines.run("one");
    let dir = machines.path("one");
    // Entries of yesterday.
    std::fs::create_dir_all(dir.join("aa")).unwrap();
    for k in 0..10 {
        let path = dir.join(format!("aa/{k}.so"));
        std::fs::write(&path, vec![0; 1_000_000]).unwrap();
        let time = std::time::SystemTime::now() - Duration::from_secs(86_400 - k);
        let times = std::fs::FileTimes::new()
            .set_modified(time)
            .set_accessed(time);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_times(times).unwrap();
    }
    // Another compiler, for another build; a process has looked lately, but this one stores more than a twentieth.
    let script = machines.path("cc.sh");
    std::fs::copy(&script, machines.path("cc2.sh")).unwrap();
    let bounded = |limit: &str| {
        let mut c = machines.command("one", &[]);
        c.env("INRUSH_CACHE_LIMIT", limit);
        c.env("CC", machines.path("cc2.sh"));
        run(&mut c).0
    };
    std::fs::remove_file(dir.join("bounded")).unwrap();
    assert_eq!(bounded("5MB")["cached"], false);
    let left: Vec<bool> = (0..10)
        .map(|k| dir.join(format!("aa/{k}.so")).exists())
        .collect();
    assert!(left.iter().is_sorted(), "the oldest go first: {left:?}");
    assert!(!left[0] && left[9], "{left:?}");
    // What was built just now is there, and the bound is shown.
    assert_eq!(bounded("5MB")["cached"], true);
    let mut c = machines.command("one", &["cache", "--json"]);
    let out = c.env("INRUSH_CACHE_LIMIT", "5MB").output().unwrap();
    let shown: Json = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(shown["limit"], 5_000_000);
    assert!(shown["bytes"].as_u64().unwrap() <= 5_000_000, "{shown}");
}
