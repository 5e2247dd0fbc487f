//! Runs kernels for AArch64 in an emulator, in this process: NEON code is executed on machines that have none.
//!
//! Two programs are needed, named by the environment: a clang with all targets (`INRUSH_CLANG`, a command) and the library of
//! the Unicorn emulator (`INRUSH_UNICORN`, a path). `cargo xtask test` sets both.

use inrush_base::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::process::Command;
use std::sync::Mutex;

const ARM64: i32 = 2;
const ALL: u32 = 7;
const HOOK_UNMAPPED: i32 = 16 | 32;
const SP: i32 = 4;
const LR: i32 = 2;
const X0: i32 = 199;
const CPACR: i32 = 261;

/// Where calls return to; nothing is there.
const RETURN: u64 = 0x1000;
const STACK: u64 = 0x10_0000;
const STACK_BYTES: u64 = 1 << 20;
/// Memory of the host appears under its own addresses, in pieces of this size, when it is first touched.
const PIECE: u64 = 1 << 16;

/// How many programs are kept for the next emulator.
const KEPT: usize = 64;

type Engine = *mut c_void;
type Unmapped = unsafe extern "C" fn(Engine, i32, u64, i32, i64, *mut c_void) -> bool;
type Map = unsafe extern "C" fn(Engine, u64, usize, u32) -> i32;
type MapHost = unsafe extern "C" fn(Engine, u64, usize, u32, *mut c_void) -> i32;
type Write = unsafe extern "C" fn(Engine, u64, *const c_void, usize) -> i32;
type Register = unsafe extern "C" fn(Engine, i32, *mut c_void) -> i32;

/// Returns the tools that the environment names, if it does.
pub fn tools() -> Option<(String, String)> {
    let get = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
    Some((get("INRUSH_CLANG")?, get("INRUSH_UNICORN")?))
}

/// Builds a whole program: its C library is linked in, at fixed addresses.
fn build(source: &str, flags: &[&str], clang: &str) -> Result<Vec<u8>> {
    let say = |e: std::io::Error| Error::machine(format!("a build for AArch64: {e}"));
    let dir = tempfile::tempdir().map_err(say)?;
    let (c, elf) = (dir.path().join("k.c"), dir.path().join("k"));
    std::fs::write(&c, format!("{source}\nint main(void) {{ return 0; }}\n")).map_err(say)?;
    let mut words = clang.split_whitespace();
    let out = Command::new(words.next().unwrap_or_default())
        .args(words)
        .args(["-target", "aarch64-linux-musl", "-static"])
        .args((flags.iter()).filter(|f| !matches!(**f, "-shared" | "-fPIC")))
        .args(["-fno-pie", "-no-pie", "-fno-sanitize=all", "-o"])
        .args([&elf, &c])
        .arg("-lm")
        .output()
        .map_err(say)?;
    if out.status.success() {
        std::fs::read(&elf).map_err(say)
    } else {
        Err(Error::machine(format!(
            "{}\n{source}",
            String::from_utf8_lossy(&out.stderr)
        )))
    }
}

/// A program in the emulator's memory. It may move to other threads, and runs on one at a time.
pub struct Emulator {
    library: libloading::Library,
    engine: Engine,
    symbols: HashMap<String, u64>,
    // The hook keeps its address.
    _map_host: Box<MapHost>,
}

impl Emulator {
    /// Builds C source for AArch64, once in a process, and loads it.
    ///
    /// # Errors
    /// A machine error where a tool is missing, or the compiler's own message.
    ///
    /// # Panics
    /// Where the library is no emulator.
    pub fn new(source: &str, flags: &[&str]) -> Result<Emulator> {
        static BUILT: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
        let built = || BUILT.lock().unwrap_or_else(|e| e.into_inner());
        let missing = || Error::machine("INRUSH_CLANG and INRUSH_UNICORN do not name tools");
        let (clang, unicorn) = tools().ok_or_else(missing)?;
        let known = built().get(source).cloned();
        let image = match known {
            Some(image) => image,
            None => build(source, flags, &clang)?,
        };
        // SAFETY: the library is the emulator's, its functions have the types that its header gives them.
        let emulator = unsafe { Emulator::load(&image, &unicorn) };
        let mut built = built();
        // Drawn graphs are built once each.
        if built.len() >= KEPT {
            built.clear();
        }
        built.insert(source.into(), image);
        Ok(emulator)
    }

    /// # Safety
    /// `unicorn` is the path of the emulator's library.
    unsafe fn load(image: &[u8], unicorn: &str) -> Emulator {
        // SAFETY: as the caller promises.
        let library = unsafe { libloading::Library::new(unicorn) }.unwrap();
        let mut engine: Engine = std::ptr::null_mut();
        // SAFETY: the functions have the types that the library's header gives them, and get the engine that it opened.
        unsafe {
            type Open = unsafe extern "C" fn(i32, i32, *mut Engine) -> i32;
            ok(library.get::<Open>(b"uc_open").unwrap()(
                ARM64,
                0,
                &mut engine,
            ));
            let map = *library.get::<Map>(b"uc_mem_map").unwrap();
            let write = *library.get::<Write>(b"uc_mem_write").unwrap();
            ok(map(engine, STACK, STACK_BYTES as usize, ALL));
            let mut end = 0;
            for s in segments(image) {
                let from = (s.at & !0xfff).max(end);
                end = (s.at + s.bytes).next_multiple_of(0x1000).max(from);
                if end > from {
                    ok(map(engine, from, (end - from) as usize, ALL));
                }
                ok(write(engine, s.at, s.data.as_ptr().cast(), s.data.len()));
            }
            let map_host = Box::new(*library.get::<MapHost>(b"uc_mem_map_ptr").unwrap());
            type Hook = unsafe extern "C" fn(
                Engine,
                *mut usize,
                i32,
                Unmapped,
                *const MapHost,
                u64,
                u64,
            ) -> i32;
            let mut handle = 0;
            ok(library.get::<Hook>(b"uc_hook_add").unwrap()(
                engine,
                &mut handle,
                HOOK_UNMAPPED,
                touch,
                &*map_host,
                1,
                0,
            ));
            let emulator = Emulator {
                symbols: symbols(image),
                library,
                engine,
                _map_host: map_host,
            };
            emulator.register(CPACR, 3 << 20);
            emulator
        }
    }

    fn register(&self, register: i32, mut value: u64) {
        // SAFETY: as in `load`.
        unsafe {
            let f = self.library.get::<Register>(b"uc_reg_write").unwrap();
            ok(f(self.engine, register, (&raw mut value).cast()));
        }
    }

    /// Calls a function with integers and addresses of the host. Gives what it returns.
    ///
    /// # Errors
    /// Where the function is not there, or touches memory that is not.
    pub fn call(&self, name: &str, arguments: &[u64]) -> Result<i32> {
        let Some(at) = self.symbols.get(name) else {
            return Err(Error::internal(format!("no function `{name}`")));
        };
        let (first, rest) = arguments.split_at(arguments.len().min(8));
        for (k, a) in first.iter().enumerate() {
            self.register(X0 + k as i32, *a);
        }
        let top = STACK + STACK_BYTES - 4096;
        self.register(SP, top);
        self.register(LR, RETURN);
        let mut result = 0u64;
        // SAFETY: as in `load`; the kernel touches the memory that it was given.
        unsafe {
            let write = self.library.get::<Write>(b"uc_mem_write").unwrap();
            ok(write(
                self.engine,
                top,
                rest.as_ptr().cast(),
                8 * rest.len(),
            ));
            type Start = unsafe extern "C" fn(Engine, u64, u64, u64, usize) -> i32;
            let start = self.library.get::<Start>(b"uc_emu_start").unwrap();
            let status = start(self.engine, *at, RETURN, 0, 0);
            if status != 0 {
                let what = format!("`{name}` stopped in the emulator with status {status}");
                return Err(Error::internal(what));
            }
            let read = self.library.get::<Register>(b"uc_reg_read").unwrap();
            ok(read(self.engine, X0, (&raw mut result).cast()));
        }
        Ok(result as i32)
    }
}

// SAFETY: the engine has no ties to the thread that opened it.
unsafe impl Send for Emulator {}

impl Drop for Emulator {
    fn drop(&mut self) {
        // SAFETY: the engine was opened by this library.
        unsafe {
            type Close = unsafe extern "C" fn(Engine) -> i32;
            if let Ok(close) = self.library.get::<Close>(b"uc_close") {
                close(self.engine);
            }
        }
    }
}

/// Shows the program a piece of the host's memory.
unsafe extern "C" fn touch(
    engine: Engine,
    _kind: i32,
    address: u64,
    bytes: i32,
    _value: i64,
    map_host: *mut c_void,
) -> bool {
    // Nothing of the host's lies below; such an address is a mistake of the kernel's.
    if address < 1 << 32 {
        return false;
    }
    let mut any = false;
    let mut piece = address / PIECE * PIECE;
    while piece < address + bytes.max(1) as u64 {
        // SAFETY: the pointer is that of `Emulator::_map_host`.
        let f = unsafe { *map_host.cast::<MapHost>() };
        // A piece that is there already is refused.
        // SAFETY: the engine runs in this thread; the piece is the host's memory, which the kernel was given.
        any |= unsafe { f(engine, piece, PIECE as usize, ALL, piece as *mut c_void) } == 0;
        piece += PIECE;
    }
    any
}

fn ok(status: i32) {
    assert_eq!(status, 0, "the emulator stopped");
}

struct Segment<'a> {
    at: u64,
    bytes: u64,
    data: &'a [u8],
}

fn number(image: &[u8], at: u64, bytes: usize) -> u64 {
    let mut word = [0; 8];
    word[..bytes].copy_from_slice(&image[at as usize..][..bytes]);
    u64::from_le_bytes(word)
}

/// Returns the segments to load, by address.
fn segments(image: &[u8]) -> Vec<Segment<'_>> {
    let (table, size, count) = (
        number(image, 32, 8),
        number(image, 54, 2),
        number(image, 56, 2),
    );
    let mut out: Vec<Segment> = (0..count)
        .map(|k| table + k * size)
        .filter(|h| number(image, *h, 4) == 1)
        .map(|h| Segment {
            at: number(image, h + 16, 8),
            bytes: number(image, h + 40, 8),
            data: &image[number(image, h + 8, 8) as usize..][..number(image, h + 32, 8) as usize],
        })
        .collect();
    out.sort_by_key(|s| s.at);
    out
}

/// Addresses by name.
fn symbols(image: &[u8]) -> HashMap<String, u64> {
    let (table, size, count) = (
        number(image, 40, 8),
        number(image, 58, 2),
        number(image, 60, 2),
    );
    let section = |k: u64| {
        let h = table + k * size;
        let field = |at, bytes| number(image, h + at, bytes);
        (field(4, 4), field(24, 8), field(32, 8), field(40, 4))
    };
    let mut out = HashMap::new();
    for k in 0..count {
        let (2, at, bytes, names) = section(k) else {
            continue;
        };
        let (_, names, _, _) = section(names);
        for s in (at..at + bytes).step_by(24) {
            let name = &image[(names + number(image, s, 4)) as usize..];
            let end = name.iter().position(|c| *c == 0).unwrap();
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            out.insert(name, number(image, s + 8, 8));
        }
    }
    out
}
