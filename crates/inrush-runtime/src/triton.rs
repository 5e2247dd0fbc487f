//! Builds of Triton kernels: a pool of warm worker processes, results under the digest of what they were built from.
//!
//! Triton is a tool that is started, as a C compiler is. One process imports it, and forks the workers. Its library can abort its
//! process or hang, so workers are expendable: one that dies or takes too long is replaced and its kernel is tried once more.

use crate::cache::Cache;
use inrush_base::{Error, Result};
use inrush_program::{BinaryInfo, GpuKernel, GpuTarget, MapLayout};
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tempfile::TempDir;

mod python;
pub mod record;
mod shared;

pub use python::Python;

/// A built kernel: its machine code, and what a launch must know of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Binary {
    pub code: MachineCode,
    pub info: BinaryInfo,
    /// File of the PTX, where the pool keeps it ([`Setup::ptx`]) and the back end has such a thing.
    pub ptx: Option<PathBuf>,
}

/// Where machine code is.
#[derive(Clone, PartialEq, Debug)]
pub enum MachineCode {
    /// In a file of the cache, whose name tells its contents.
    File(PathBuf),
    /// In memory, with the digest of its bytes.
    Memory { digest: String, bytes: Arc<[u8]> },
    /// PTX in memory, which the driver finishes.
    Ptx { digest: String, text: Arc<[u8]> },
}

impl MachineCode {
    /// Returns the bytes.
    ///
    /// # Errors
    /// A machine error for a file that cannot be read.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        match self {
            MachineCode::File(path) => (std::fs::read(path).map(Cow::Owned))
                .map_err(|e| Error::machine(format!("{}: {e}", path.display()))),
            MachineCode::Memory { bytes, .. } => Ok(Cow::Borrowed(bytes)),
            MachineCode::Ptx { text, .. } => Ok(Cow::Borrowed(text)),
        }
    }

    /// Returns a name that other machine code does not have.
    pub fn key(&self) -> String {
        match self {
            MachineCode::File(path) => path.display().to_string(),
            MachineCode::Memory { digest, .. } | MachineCode::Ptx { digest, .. } => digest.clone(),
        }
    }
}

/// How workers are started.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The Python interpreter that has Triton.
    pub python: PathBuf,
    /// `python/inrush/triton/worker.py`.
    pub script: PathBuf,
    /// Where binaries are kept.
    pub folder: PathBuf,
    /// Release of the kernel compiler: binaries of another one are not taken.
    pub version: String,
    pub workers: usize,
    /// Longest build.
    pub patience: Duration,
    /// Keep the PTX of kernels for NVIDIA GPUs as well.
    pub ptx: bool,
    /// The folder is in the cache that the environment names: builds are looked for in its second tier and stored there, and the
    /// cache is bounded.
    pub shared: bool,
}

/// A worker: a fork of the server.
struct Worker {
    process: i64,
    stream: BufReader<UnixStream>,
}

/// The process that has imported Triton and forks workers. They end with it.
struct Server {
    child: Child,
    stream: BufReader<UnixStream>,
}

/// A socket in a folder of its own, for one connection.
struct Door {
    listener: UnixListener,
    folder: TempDir,
}

impl Door {
    fn open() -> std::io::Result<Door> {
        let folder = tempfile::tempdir()?;
        let listener = UnixListener::bind(folder.path().join("s"))?;
        listener.set_nonblocking(true)?;
        Ok(Door { listener, folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.stream.get_ref().shutdown(Shutdown::Both);
        // It ends its workers first; if it hangs, they end with their sockets.
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[derive(Default)]
struct State {
    idle: Vec<Worker>,
    running: usize,
}

/// The pool. The server starts with the first build, or with [`Pool::warm`].
pub struct Pool {
    setup: Setup,
    /// Set where the folder is in the cache that the environment names.
    cache: Option<Cache>,
    state: Mutex<State>,
    free: Condvar,
    server: Mutex<Option<Server>>,
}

/// A failure of a worker.
enum Failure {
    /// Triton refused the kernel.
    Refused(String),
    /// This Triton cannot build for the target.
    Missing(String),
    /// The process died or hung.
    Lost(String),
}

impl Pool {
    pub fn new(setup: Setup) -> Pool {
        // Threads of builds do not read the environment.
        let cache = setup.shared.then(Cache::open_default);
        Pool {
            setup,
            cache,
            state: Mutex::default(),
            free: Condvar::new(),
            server: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the number of kernels that are built at once.
    pub fn workers(&self) -> usize {
        self.setup.workers.max(1)
    }

    /// Starts the server before the first build.
    pub fn warm(&self) -> Result<()> {
        let mut server = self.server();
        if server.is_none() {
            *server = Some(self.serve()?);
        }
        Ok(())
    }

    /// Builds all kernels in parallel. Returns the results in order, and true if all were in the cache.
    pub fn build_all(
        &self,
        sources: &[&GpuKernel],
        target: &GpuTarget,
    ) -> (Vec<Result<Binary>>, bool) {
        let keys: Vec<String> = sources.iter().map(|s| self.key(s, target)).collect();
        let mut found: Vec<Option<Binary>> = keys.iter().map(|k| self.find(k)).collect();
        self.fetch_missing(&keys, &mut found);
        if found.iter().all(Option::is_some) {
            return (found.into_iter().flatten().map(Ok).collect(), true);
        }
        // Each key once: the others find what was built. Those that take longest come first.
        let mut first: Vec<usize> = (0..keys.len())
            .filter(|k| keys.iter().position(|x| x == &keys[*k]) == Some(*k))
            .collect();
        first.sort_by_key(|k| std::cmp::Reverse(sources[*k].text.len()));
        let all = sources;
        let sources: Vec<&GpuKernel> = first.iter().map(|k| all[*k]).collect();
        let next = std::sync::atomic::AtomicUsize::new(0);
        let results: Mutex<Vec<Option<Result<Binary>>>> =
            Mutex::new(sources.iter().map(|_| None).collect());
        std::thread::scope(|s| {
            for _ in 0..self.setup.workers.clamp(1, sources.len().max(1)) {
                s.spawn(|| {
                    loop {
                        let k = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        let Some(source) = sources.get(k) else { break };
                        let built = self.build_here(source, target);
                        results.lock().unwrap_or_else(|e| e.into_inner())[k] = Some(built);
                    }
                });
            }
        });
        let results = results.into_inner().unwrap_or_else(|e| e.into_inner());
        let built: Vec<Result<Binary>> = (results.into_iter())
            .map(|r| r.unwrap_or_else(|| Err(Error::internal("a build was not tried"))))
            .collect();
        let results = (keys.iter())
            .map(|key| {
                let at = first.iter().position(|f| &keys[*f] == key);
                at.map_or_else(
                    || Err(Error::internal("a lost build")),
                    |k| built[k].clone(),
                )
            })
            .collect();
        (results, false)
    }

    /// Builds one kernel. A worker that dies or hangs is replaced once.
    ///
    /// # Errors
    /// Triton's message with the source, or what happened to the workers.
    pub fn build(&self, source: &GpuKernel, target: &GpuTarget) -> Result<Binary> {
        let fetched = self.fetch(&self.key(source, target));
        fetched.map_or_else(|| self.build_here(source, target), Ok)
    }

    /// Builds a kernel that the second tier does not have.
    fn build_here(&self, source: &GpuKernel, target: &GpuTarget) -> Result<Binary> {
        let key = self.key(source, target);
        if let Some(found) = self.find(&key) {
            return Ok(found);
        }
        let request = self.request(&key, source, target)?;
        let mut lost = String::new();
        for _ in 0..2 {
            let mut worker = self.take()?;
            match self.ask(&mut worker, &request) {
                Ok(answer) => {
                    self.give(Some(worker));
                    return self.keep(&key, &answer);
                }
                Err(Failure::Refused(message)) => {
                    self.give(Some(worker));
                    return Err(Error::internal(format!(
                        "Triton refuses the kernel `{}`:\n{message}\n{}",
                        source.function,
                        numbered(&source.text)
                    )));
                }
                Err(Failure::Missing(message)) => {
                    self.give(Some(worker));
                    return Err(Error::machine(message));
                }
                Err(Failure::Lost(why)) => {
                    lost = self
                        .end(worker)
                        .map_or(why.clone(), |s| format!("{why}, {s}"));
                    self.give(None);
                }
            }
        }
        Err(Error::machine(format!(
            "the Triton worker {lost}, twice, on the kernel `{}`:\n{}",
            source.function,
            numbered(&source.text)
        )))
    }

    /// Returns the content address of a build: source, signature, options, target, release.
    fn key(&self, source: &GpuKernel, target: &GpuTarget) -> String {
        let mut parts = canonical(source);
        parts.symbol.clear();
        let all = (&parts, target, &self.setup.version);
        let text = serde_json::to_vec(&all).unwrap_or_default();
        blake3::hash(&text).to_hex()[..40].to_string()
    }

    /// Returns the content address of data that depends on the release of the kernel compiler.
    pub fn address(&self, of: &str) -> String {
        let text = format!("{of} {}", self.setup.version);
        blake3::hash(text.as_bytes()).to_hex()[..40].to_string()
    }

    fn notes(&self, key: &str) -> PathBuf {
        self.setup
            .folder
            .join("binaries")
            .join(format!("{key}.json"))
    }

    /// Returns an earlier build if it is complete.
    fn find(&self, key: &str) -> Option<Binary> {
        let notes: Json = serde_json::from_slice(&std::fs::read(self.notes(key)).ok()?).ok()?;
        let mut found = binary(&notes).ok()?;
        let same = |path: &str, digest: &Json| {
            let bytes = std::fs::read(path).ok();
            bytes.is_some_and(|b| digest.as_str() == Some(blake3::hash(&b).to_hex().as_str()))
        };
        let whole = same(notes["binary"].as_str()?, &notes["digest"])
            // Builds that were to keep no PTX do not say whether there is one.
            && (!self.setup.ptx || notes["ptx"].as_bool() == Some(false)
                || same(notes["ptx"].as_str()?, &notes["ptx_digest"]));
        found.ptx = found.ptx.filter(|_| self.setup.ptx);
        if whole {
            self.touch(key, &found);
        }
        whole.then_some(found)
    }

    /// Stores a build in the cache.
    fn keep(&self, key: &str, answer: &Json) -> Result<Binary> {
        let made = binary(answer)?;
        let io = |e: std::io::Error| Error::machine(format!("the cache of kernels: {e}"));
        let digest = |bytes: &[u8]| json!(blake3::hash(bytes).to_hex().as_str());
        let mut notes = answer.clone();
        notes["digest"] = digest(&made.code.bytes()?);
        if let Some(ptx) = &made.ptx {
            notes["ptx_digest"] = digest(&std::fs::read(ptx).map_err(io)?);
        }
        let folder = self.setup.folder.join("binaries");
        std::fs::create_dir_all(&folder).map_err(io)?;
        let mut file = tempfile::NamedTempFile::new_in(&folder).map_err(io)?;
        file.write_all(notes.to_string().as_bytes()).map_err(io)?;
        file.persist(self.notes(key)).map_err(|e| io(e.error))?;
        self.share(key, &notes, &made);
        Ok(made)
    }

    fn request(&self, key: &str, source: &GpuKernel, target: &GpuTarget) -> Result<Json> {
        let folder = self.setup.folder.join("sources");
        let io = |e: std::io::Error| Error::machine(format!("{}: {e}", folder.display()));
        std::fs::create_dir_all(&folder).map_err(io)?;
        let name = blake3::hash(source.text.as_bytes()).to_hex();
        let path = folder.join(format!("{}.py", &name.as_str()[..32]));
        if self.cache.is_some() {
            // The bound leaves what was used lately.
            crate::cache_limit::touch(&path);
        }
        if std::fs::read(&path).ok().as_deref() != Some(source.text.as_bytes()) {
            let mut file = tempfile::NamedTempFile::new_in(&folder).map_err(io)?;
            file.write_all(source.text.as_bytes()).map_err(io)?;
            file.persist(&path).map_err(|e| io(e.error))?;
        }
        let constants: serde_json::Map<String, Json> = (source.constants.iter())
            .map(|(n, v)| (n.clone(), json!(v)))
            .collect();
        let arch = match target.arch.parse::<i64>() {
            Ok(n) => json!(n),
            Err(_) => json!(target.arch),
        };
        Ok(json!({
            "id": key,
            "source": path,
            "function": source.function,
            "signature": source.signature,
            "constants": constants,
            "divisible": source.divisible,
            "options": {
                "num_warps": source.warps,
                "num_stages": source.stages,
                "debug": source.debug,
            },
            "target": [target.backend, arch, target.warp],
            "out": self.setup.folder.join("binaries"),
            "ptx": self.setup.ptx,
        }))
    }

    /// Returns an idle worker, or a new one below the limit; else waits for one.
    fn take(&self) -> Result<Worker> {
        let mut state = self.state();
        loop {
            if let Some(w) = state.idle.pop() {
                return Ok(w);
            }
            if state.running < self.setup.workers.max(1) {
                state.running += 1;
                drop(state);
                let started = self.start();
                if started.is_err() {
                    self.give(None);
                }
                return started;
            }
            state = self.free.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn give(&self, worker: Option<Worker>) {
        let mut state = self.state();
        match worker {
            Some(w) => state.idle.push(w),
            None => state.running -= 1,
        }
        drop(state);
        self.free.notify_one();
    }

    /// Starts a worker. A server that died is replaced once.
    fn start(&self) -> Result<Worker> {
        let mut server = self.server();
        if let Some(s) = server.as_mut() {
            match self.fork(s) {
                Ok(worker) => return Ok(worker),
                Err(_) => {
                    // Its workers end with it.
                    *server = None;
                    let mut state = self.state();
                    state.running -= state.idle.len();
                    state.idle.clear();
                }
            }
        }
        let mut started = self.serve()?;
        let worker = self.fork(&mut started)?;
        *server = Some(started);
        Ok(worker)
    }

    fn serve(&self) -> Result<Server> {
        let door = Door::open().map_err(no_start)?;
        let mut child = Command::new(&self.setup.python)
            .arg(&self.setup.script)
            .arg(door.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| {
                Error::machine(format!(
                    "Python was not found at `{}`: {e}",
                    self.setup.python.display()
                ))
            })?;
        let mut stream = self.accept(&door, &mut child)?;
        match answer(&mut stream) {
            Ok(a) if a["ready"].is_string() => Ok(Server { child, stream }),
            Ok(a) => Err(Error::machine(format!("a Triton worker says {a}"))),
            Err(Failure::Lost(why) | Failure::Refused(why) | Failure::Missing(why)) => {
                _ = child.kill();
                _ = child.wait();
                Err(Error::machine(format!(
                    "a Triton worker {why}: is the Python package `triton` installed for `{}`?",
                    self.setup.python.display()
                )))
            }
        }
    }

    /// The connection of the server `child` or of one of its forks.
    fn accept(&self, door: &Door, child: &mut Child) -> Result<BufReader<UnixStream>> {
        let deadline = Instant::now() + self.setup.patience;
        let stream = loop {
            match door.listener.accept() {
                Ok((s, _)) => break s,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(no_start(e)),
            }
            if let Some(status) = child.try_wait().map_err(no_start)? {
                return Err(Error::machine(format!(
                    "a Triton worker ended at once ({status}): `{} {}`",
                    self.setup.python.display(),
                    self.setup.script.display()
                )));
            }
            if Instant::now() > deadline {
                _ = child.kill();
                _ = child.wait();
                return Err(Error::machine("a Triton worker does not answer"));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        stream.set_nonblocking(false).map_err(no_start)?;
        (stream.set_read_timeout(Some(self.setup.patience))).map_err(no_start)?;
        Ok(BufReader::new(stream))
    }

    fn fork(&self, server: &mut Server) -> Result<Worker> {
        let lost = |f| match f {
            Failure::Lost(why) | Failure::Refused(why) | Failure::Missing(why) => {
                Error::machine(format!("the server of Triton workers {why}"))
            }
        };
        let door = Door::open().map_err(no_start)?;
        let told = tell(&mut server.stream, &json!({"fork": door.path()})).map_err(lost)?;
        let process = told["pid"].as_i64();
        Ok(Worker {
            process: process.ok_or_else(|| Error::machine("a Triton worker has no number"))?,
            stream: self.accept(&door, &mut server.child)?,
        })
    }

    /// Ends a worker that died or hangs, and returns how it ended.
    fn end(&self, worker: Worker) -> Option<String> {
        let mut server = self.server();
        let told = tell(
            &mut server.as_mut()?.stream,
            &json!({"end": worker.process}),
        );
        let status = told.ok()?["status"].as_i64()?;
        Some(if status < 0 {
            format!("signal {}", -status)
        } else {
            format!("exit status {status}")
        })
    }

    fn ask(&self, worker: &mut Worker, request: &Json) -> Result<Json, Failure> {
        let a = tell(&mut worker.stream, request)?;
        match a["error"].as_str() {
            Some(e) if a["missing"] == true => Err(Failure::Missing(e.into())),
            Some(e) => Err(Failure::Refused(e.into())),
            None => Ok(a),
        }
    }
}

fn no_start(e: std::io::Error) -> Error {
    Error::machine(format!("a Triton worker cannot start: {e}"))
}

/// A worker's answer to a request.
fn tell(stream: &mut BufReader<UnixStream>, request: &Json) -> Result<Json, Failure> {
    let mut line = request.to_string();
    line.push('\n');
    (stream.get_mut().write_all(line.as_bytes()))
        .map_err(|e| Failure::Lost(format!("cannot be reached ({e})")))?;
    answer(stream)
}

/// The next line.
fn answer(stream: &mut BufReader<UnixStream>) -> Result<Json, Failure> {
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(0) => Err(Failure::Lost("died".into())),
        Ok(_) => serde_json::from_str(&line)
            .map_err(|e| Failure::Lost(format!("answered with nonsense ({e})"))),
        Err(e) => Err(Failure::Lost(format!("did not finish in time ({e})"))),
    }
}

/// Reads a built kernel from a worker's answer. A missing entry is an error.
fn binary(answer: &Json) -> Result<Binary> {
    let m = &answer["metadata"];
    let missing = |what: &str| Error::machine(format!("a Triton build reports no `{what}`"));
    let number = |key: &str| m[key].as_u64().ok_or_else(|| missing(key));
    // Back ends without scratch space do not report any.
    let or_none = |key: &str, none: u64| match &m[key] {
        Json::Null => Ok(none),
        v => v.as_u64().ok_or_else(|| missing(key)),
    };
    let path = answer["binary"].as_str().ok_or_else(|| missing("binary"))?;
    let info = BinaryInfo {
        symbol: (m["name"].as_str())
            .ok_or_else(|| missing("name"))?
            .to_string(),
        warps: number("num_warps")? as u32,
        ctas: number("num_ctas")? as u32,
        shared: number("shared")? as u32,
        scratch: or_none("global_scratch_size", 0)?,
        scratch_align: or_none("global_scratch_align", 1)?,
        cooperative: m["launch_cooperative_grid"].as_bool().unwrap_or(false),
        maps: maps(&m["tensordesc_meta"])?,
    };
    Ok(Binary {
        code: MachineCode::File(path.into()),
        info,
        ptx: answer["ptx"].as_str().map(PathBuf::from),
    })
}

/// The driver's number of an element's type. Builds tell the machine's, which is another one for three types.
fn host_element(machine: u32) -> u32 {
    match machine {
        8 => 10,
        9 => 8,
        10 => 9,
        n => n,
    }
}

/// Tensor maps of a build; none where the back end has no such thing.
fn maps(told: &Json) -> Result<Vec<MapLayout>> {
    let missing = || Error::machine("a Triton build reports tensor maps that are incomplete");
    let number = |v: &Json| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let Some(told) = told.as_array() else {
        return Ok(Vec::new());
    };
    (told.iter())
        .map(|m| {
            if m["fp4_padded"].as_bool() == Some(true) {
                return Err(Error::unsupported("tensor maps of four-bit numbers"));
            }
            let field = |key: &str| number(&m[key]).ok_or_else(missing);
            let block = m["block_size"].as_array().ok_or_else(missing)?;
            Ok(MapLayout {
                swizzle: field("swizzle")?,
                element: host_element(field("elem_type")?),
                element_bytes: field("elem_size")?,
                block: (block.iter().map(number).collect::<Option<_>>()).ok_or_else(missing)?,
            })
        })
        .collect()
}

/// Returns the source without the parts that builds do not depend on: comments, and the kernel's name, which holds names of
/// operators.
fn canonical(source: &GpuKernel) -> GpuKernel {
    let mut out = source.clone();
    out.text = (source.text.replace(&source.function, "kernel").lines())
        .filter(|l| !l.trim_start().starts_with('#'))
        .flat_map(|l| [l, "\n"])
        .collect();
    out.function = "kernel".into();
    out
}

/// Returns the source with line numbers as in Triton's messages.
fn numbered(text: &str) -> String {
    (text.lines().enumerate())
        .map(|(k, l)| format!("{:4} {l}\n", k + 1))
        .collect()
}
