//! Programs whose kernels run in an emulator, on a processor that cannot run them.
//!
//! The runtime loads an object of this processor, whose functions hand each call over to the emulator. All else of a call (plans,
//! memory, the matrix engine) runs here, the engine as plain code.
//!
//! ```text
//! runtime --call--> shim in an object of this processor --forward--> emulator (AArch64 code)
//!         <-status-                                      <----------
//! ```
//!
//! Pointers are passed as they are: the emulator sees this process's memory at the same
//! addresses. A shim has only words as arguments, which holds for all kernels: units of a grid
//! and epilogues of contractions alike.

use inrush_base::{Error, Isa, Result};
use inrush_emulator::Emulator;
use inrush_program::{Program, Step};
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target, compile_flags};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Returns true if kernels of this level run in the emulator, because this processor runs others.
pub fn is_needed(isa: Isa) -> bool {
    isa == Isa::Neon && cfg!(not(target_arch = "aarch64")) && inrush_emulator::tools().is_some()
}

/// Every level that this processor or the emulator can run, where it is asked for by name.
pub fn is_available(isa: Isa) -> bool {
    inrush_cpu::available().contains(&isa) || is_needed(isa)
}

/// Machine code in the emulator, and the object that the runtime loads.
pub struct Emulated {
    state: Box<State>,
    pub object: PathBuf,
}

struct State {
    emulator: Mutex<Emulator>,
    /// Why the first call failed that the emulator stopped.
    failed: Mutex<Option<Error>>,
}

/// Numbers of arguments of a kernel over units and of an epilogue.
/// Must agree with the signatures that `inrush-c` prints and the runtime calls.
const LAUNCH: usize = 4;
const EPILOGUE: usize = 9;

/// State, name of the kernel, its arguments, their number; gives the kernel's status.
type Forward = unsafe extern "C" fn(*const c_void, *const c_char, *const u64, u64) -> c_int;

impl Emulated {
    /// Builds the pieces for AArch64, and the object that calls them.
    pub fn new(program: &Program, pieces: &[String], cache: &Cache) -> Result<Emulated> {
        let source = match pieces {
            [piece] => piece,
            _ => return Err(Error::internal("an emulator takes one piece")),
        };
        let emulator = Emulator::new(source, &compile_flags(Isa::Neon))?;
        let target = Target {
            // The object has no kernels, only calls.
            isa: Isa::Scalar,
            vector_math: false,
        };
        let built = Compiler::find()?.build(&[shims(program)], &target, cache)?;
        Ok(Emulated {
            state: Box::new(State {
                emulator: Mutex::new(emulator),
                failed: Mutex::new(None),
            }),
            object: built.path,
        })
    }

    /// Runs `f`, whose kernels this emulator executes. Programs with equal kernels share an object, so that one runs at a time.
    pub fn run<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        let _object = point(&self.object, &self.state)?;
        let result = f();
        // A failed emulator gives status 0 to the runtime, so that the call ends; its error
        // counts, not the result.
        match self.failed().take() {
            Some(e) => Err(e),
            None => result,
        }
    }

    /// Locks the error, also after a panic of another thread.
    fn failed(&self) -> std::sync::MutexGuard<'_, Option<Error>> {
        self.state.failed.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Has the object call this emulator. It stays loaded as long as what is given back.
fn point(object: &Path, state: &State) -> Result<libloading::Library> {
    let say = |e| Error::machine(format!("{}: {e}", object.display()));
    // SAFETY: `shims` wrote the object; its two variables have these types.
    unsafe {
        let library = libloading::Library::new(object).map_err(say)?;
        **library
            .get::<*mut *const c_void>(b"inrush_emulator")
            .map_err(say)? = std::ptr::from_ref(state).cast();
        **library
            .get::<*mut Forward>(b"inrush_forward")
            .map_err(say)? = forward;
        Ok(library)
    }
}

/// C functions with the names of the program's kernels, which hand their arguments over.
fn shims(program: &Program) -> String {
    let steps = program.load_steps.iter().chain(&program.steps);
    // Only steps tell epilogues from kernels over units.
    let contracts = steps.filter_map(|s| match s {
        Step::Contract(c) => Some(c.epilogue as usize),
        Step::Launch(_) | Step::Library(_) => None,
    });
    let epilogues: BTreeSet<usize> = contracts.collect();
    let mut out = String::from(
        "typedef unsigned long word;\n\
         void *inrush_emulator;\n\
         int (*inrush_forward)(void *, const char *, const word *, word);\n",
    );
    let mut written = BTreeSet::new();
    for (k, kernel) in program.kernels.iter().enumerate() {
        // Equal kernels have one name.
        if !written.insert(&kernel.symbol) {
            continue;
        }
        let count = if epilogues.contains(&k) {
            EPILOGUE
        } else {
            LAUNCH
        };
        let list = |prefix: &str| {
            let all: Vec<String> = (0..count).map(|n| format!("{prefix}a{n}")).collect();
            all.join(", ")
        };
        _ = writeln!(
            out,
            "int {0}({1}) {{ word a[] = {{{2}}}; return inrush_forward(inrush_emulator, \"{0}\", a, {count}); }}",
            kernel.symbol,
            list("word "),
            list(""),
        );
    }
    out
}

/// Called by the object for each kernel.
///
/// # Safety
/// `state` is that of a running [`Emulated::run`], `name` is a string, and `arguments` has `count` words.
unsafe extern "C" fn forward(
    state: *const c_void,
    name: *const c_char,
    arguments: *const u64,
    count: u64,
) -> c_int {
    // SAFETY: as promised above.
    let (state, name, arguments) = unsafe {
        (
            &*state.cast::<State>(),
            CStr::from_ptr(name).to_string_lossy(),
            std::slice::from_raw_parts(arguments, count as usize),
        )
    };
    let emulator = state.emulator.lock().unwrap_or_else(|e| e.into_inner());
    match emulator.call(&name, arguments) {
        Ok(status) => status,
        Err(e) => {
            let mut failed = state.failed.lock().unwrap_or_else(|e| e.into_inner());
            // The first error: later ones follow from it.
            failed.get_or_insert(e);
            0
        }
    }
}
