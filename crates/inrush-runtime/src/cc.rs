//! Builds C source into one shared object with the machine's C compiler, in parallel pieces, cached by content.

use crate::cache::Cache;
use crate::watch::{self, Cancel};
use inrush_base::{Error, Isa, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// Time limit of one compilation. A compiler that takes longer hangs: the slowest pieces take seconds.
const LIMIT: Duration = Duration::from_secs(900);

/// A C compiler that was found on this machine.
#[derive(Clone, Debug)]
pub struct Compiler {
    pub path: PathBuf,
    /// Identifies the compiler in cache keys: path, size and time of the executable.
    identity: String,
}

/// The target of a build, which decides the machine code together with the source.
#[derive(Clone, Debug)]
pub struct Target {
    pub isa: Isa,
    /// Link glibc's vector math library.
    pub vector_math: bool,
}

/// The result of a build.
#[derive(Clone, Debug)]
pub struct Built {
    pub path: PathBuf,
    /// True if the object came from the cache.
    pub cached: bool,
}

impl Compiler {
    /// The compiler that `$CC` names, else the first of `cc`, `gcc`, `clang` in `$PATH`.
    ///
    /// # Errors
    /// A machine error that says what to install.
    pub fn find() -> Result<Compiler> {
        if let Some(cc) = std::env::var_os("CC").filter(|v| !v.is_empty()) {
            return locate(&cc).ok_or_else(|| {
                Error::machine(format!(
                    "the C compiler that $CC names, `{}`, was not found",
                    cc.to_string_lossy()
                ))
            });
        }
        ["cc", "gcc", "clang"].iter().find_map(|n| locate(&OsString::from(n))).ok_or_else(|| {
            Error::machine(
                "no C compiler found: install gcc or clang (for example the package `gcc`), or set $CC to one",
            )
        })
    }

    /// Flags that only GCC knows. One region for a whole function saves a tenth of its time, and kernels are as fast.
    fn own_flags(&self) -> &'static [&'static str] {
        // Elsewhere than on macOS no other compiler is installed under this name: links have been followed.
        let name = self.path.canonicalize().unwrap_or_default();
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        if name.contains("gcc") && !cfg!(target_os = "macos") {
            &["-fira-region=one"]
        } else {
            &[]
        }
    }

    /// First line of `--version`.
    pub fn version(&self) -> Result<String> {
        let out = Command::new(&self.path)
            .arg("--version")
            .output()
            .map_err(|e| Error::machine(format!("cannot run `{}`: {e}", self.path.display())))?;
        Ok(String::from_utf8_lossy(&out.stdout)
            .lines()
            .next()
            .unwrap_or("unknown")
            .to_string())
    }

    /// Builds `pieces` (each a translation unit) into one shared object, or finds it in the cache.
    ///
    /// # Errors
    /// A machine error with the compiler's own message when it fails, hangs or cannot be started, or when the cache directory
    /// cannot be written.
    pub fn build(&self, pieces: &[String], target: &Target, cache: &Cache) -> Result<Built> {
        self.build_unless(pieces, target, cache, None)
    }

    /// Builds as [`Compiler::build`] does, until another thread cancels it, which is an error too. With `cancel` the compiler gets
    /// no signals of the terminal.
    pub fn build_unless(
        &self,
        pieces: &[String],
        target: &Target,
        cache: &Cache,
        cancel: Option<&Cancel>,
    ) -> Result<Built> {
        let mut flags = compile_flags(target.isa);
        flags.extend(self.own_flags());
        let mut hash = blake3::Hasher::new();
        let mut field = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        field(b"inrush-c-1");
        field(self.identity.as_bytes());
        flags.iter().for_each(|f| field(f.as_bytes()));
        field(&[target.vector_math as u8]);
        pieces.iter().for_each(|p| field(p.as_bytes()));
        let key = hash.finalize().to_hex().to_string();

        let (path, cached) = cache.get_or_build(&key, "so", |dir| {
            self.build_in(dir, pieces, &flags, target, cancel)
        })?;
        Ok(Built { path, cached })
    }

    /// Compiles every piece at once (one process each), then links.
    fn build_in(
        &self,
        dir: &Path,
        pieces: &[String],
        flags: &[&str],
        target: &Target,
        cancel: Option<&Cancel>,
    ) -> Result<PathBuf> {
        let out = dir.join("kernels.so");
        let mut objects = Vec::with_capacity(pieces.len());
        let mut commands = Vec::with_capacity(pieces.len());
        for (i, piece) in pieces.iter().enumerate() {
            // Not through a pipe, which a compiler that hangs would leave us writing to.
            let source = dir.join(format!("piece{i}.c"));
            std::fs::write(&source, piece).map_err(|e| {
                Error::machine(format!(
                    "cannot write `{}` in the build cache: {e}",
                    source.display()
                ))
            })?;
            let object = source.with_extension("o");
            let mut cmd = Command::new(&self.path);
            cmd.args(flags)
                .arg("-c")
                .arg(&source)
                .arg("-o")
                .arg(&object);
            objects.push(object);
            commands.push(cmd);
        }
        self.run(commands, cancel)?;
        let mut cmd = Command::new(&self.path);
        cmd.args(["-shared", "-Wl,--as-needed", "-o"])
            .arg(&out)
            .args(&objects);
        if target.vector_math {
            cmd.arg("-lmvec");
        }
        cmd.arg("-lm");
        self.run(vec![cmd], cancel)?;
        Ok(out)
    }

    fn run(&self, commands: Vec<Command>, cancel: Option<&Cancel>) -> Result<()> {
        watch::run(commands, LIMIT, cancel)
            .map_err(|e| Error::machine(format!("the C compiler {}", e.message())))
    }
}

/// Returns true if this machine has glibc's vector math library with its full set of functions (2.35 and later).
pub fn has_vector_math() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if !cfg!(all(
            target_os = "linux",
            target_env = "gnu",
            target_arch = "x86_64"
        )) {
            return false;
        }
        // SAFETY: loading the C library's own companion runs no code of others; only a symbol's presence is read.
        unsafe {
            libloading::Library::new("libmvec.so.1")
                .is_ok_and(|l| l.get::<*const ()>(b"_ZGVdN8v_erff\0").is_ok())
        }
    })
}

/// Flags that every piece is compiled with. Strict floating point except that a product and a sum may fuse.
pub fn compile_flags(isa: Isa) -> Vec<&'static str> {
    let mut flags = vec![
        "-O2",
        "-std=gnu11",
        "-fPIC",
        "-fwrapv",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=fast",
        "-fno-strict-aliasing",
        "-fno-stack-protector",
        "-fno-asynchronous-unwind-tables",
        "-w",
        "-pipe",
    ];
    match isa {
        Isa::Scalar | Isa::Neon => {}
        Isa::Avx2 => flags.extend([
            "-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt",
        ]),
        Isa::Avx512 => flags.extend([
            "-mavx512f",
            "-mavx512bw",
            "-mavx512cd",
            "-mavx512dq",
            "-mavx512vl",
            "-mfma",
            "-mf16c",
            "-mbmi",
            "-mbmi2",
            "-mlzcnt",
            "-mpopcnt",
            "-mprefer-vector-width=512",
        ]),
    }
    flags
}

/// The executable that `name` means: a path, or a name looked up in `$PATH`.
fn locate(name: &OsString) -> Option<Compiler> {
    let candidates: Vec<PathBuf> = if Path::new(name).components().count() > 1 {
        vec![PathBuf::from(name)]
    } else {
        std::env::split_paths(&std::env::var_os("PATH")?)
            .map(|d| d.join(name))
            .collect()
    };
    candidates.into_iter().find_map(|path| {
        let real = path.canonicalize().ok()?;
        let meta = real.metadata().ok().filter(|m| m.is_file())?;
        let modified = meta
            .modified()
            .ok()
            .and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok())
            .map_or(0, |d| d.as_secs());
        let identity = format!("{} {} {modified}", real.display(), meta.len());
        Some(Compiler { path, identity })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_once_and_repairs_a_damaged_entry() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_path_buf());
        let cc = Compiler::find().unwrap();
        let target = Target {
            isa: Isa::Scalar,
            vector_math: false,
        };
        let source = [
            "int answer(void) { return 42; }".to_string(),
            "int other(void) { return 7; }".to_string(),
        ];
        let first = cc.build(&source, &target, &cache).unwrap();
        assert!(!first.cached);
        assert!(cc.build(&source, &target, &cache).unwrap().cached);
        std::fs::write(&first.path, b"not an object").unwrap();
        let again = cc.build(&source, &target, &cache).unwrap();
        assert!(!again.cached);
        // SAFETY: the object was just built from the source above.
        unsafe {
            let lib = libloading::Library::new(&again.path).unwrap();
            let f: libloading::Symbol<unsafe extern "C" fn() -> i32> = lib.get(b"answer").unwrap();
            assert_eq!(f(), 42);
        }
    }

    #[test]
    fn only_gcc_gets_flags_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let flags = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, b"").unwrap();
            let compiler = Compiler {
                path,
                identity: String::new(),
            };
            compiler.own_flags().len()
        };
        assert_eq!(
            flags("x86_64-linux-gnu-gcc-12"),
            usize::from(!cfg!(target_os = "macos"))
        );
        assert_eq!(flags("clang-18") + flags("cc"), 0);
    }

    #[test]
    fn a_failing_compiler_is_a_machine_error_with_its_message() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_path_buf());
        let cc = Compiler::find().unwrap();
        let target = Target {
            isa: Isa::Scalar,
            vector_math: false,
        };
        let e = cc
            .build(&["int f( {".to_string()], &target, &cache)
            .unwrap_err();
        assert_eq!(e.kind(), inrush_base::ErrorKind::Machine);
        assert!(e.to_string().contains("error"), "{e}");
    }
}
