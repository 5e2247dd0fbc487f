//! Compiles kernels with the machine's C compiler and compares them with the interpreter.
#![allow(dead_code, unreachable_pub)] // several test crates take this module, each a part of it

use inrush_base::{Caps, DType, Isa};
use inrush_emulator::Emulator;
use inrush_expr::{Expr, Exprs, Sym};
use inrush_interp::{LoopsOptions, Tensor, Value};
use inrush_kernel::{Kernel, Kind};
use inrush_loops::{Axis, Body, BufId, BufferKind, Contraction, Loops, Node, Output, Stmt};
use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use std::rc::Rc;

/// How the nodes of a program become kernels.
#[derive(Clone, Default)]
pub enum Grouping {
    /// Each body alone.
    #[default]
    Apart,
    /// All bodies in one group over the first `axes` axes, with these buffers local.
    Together { axes: usize, locals: Vec<usize> },
}

/// The best level that this machine runs.
pub fn machine() -> Caps {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            return Caps::cpu(Isa::Avx512, 2);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            return Caps::cpu(Isa::Avx2, 2);
        }
    }
    Caps::cpu(Isa::Scalar, 2)
}

pub fn flags(caps: &Caps) -> Vec<&'static str> {
    let mut out = vec![
        "-O2",
        "-shared",
        "-fPIC",
        "-w",
        "-std=gnu11",
        "-fwrapv",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fno-strict-aliasing",
        "-ffp-contract=fast",
        "-fno-stack-protector",
        "-fno-asynchronous-unwind-tables",
    ];
    match caps.isa {
        Isa::Avx2 => out.push("-march=x86-64-v3"),
        Isa::Avx512 => out.push("-march=x86-64-v4"),
        _ => {}
    }
    out
}

/// All levels that run here: the machine's own, plain C, and NEON where there is an emulator.
pub fn levels() -> Vec<Caps> {
    let mut levels = vec![machine()];
    if levels[0].isa != Isa::Scalar {
        levels.push(Caps::cpu(Isa::Scalar, 1));
    }
    if inrush_emulator::tools().is_some() {
        levels.push(Caps::cpu(Isa::Neon, 2));
    }
    levels
}

/// The source with the arrays on its stack full of large numbers, positive in every type: what an array holds where nothing
/// was written must not matter.
fn poisoned(source: &str) -> String {
    const END: &str = " __attribute__((aligned(64)));";
    let mut out = String::new();
    for line in source.split_inclusive('\n') {
        let declared = line.trim_end().strip_suffix(END);
        out += line.trim_end_matches('\n');
        if let Some((head, _)) = declared.and_then(|d| d.rsplit_once('[')) {
            let name = head.rsplit([' ', '*']).next().unwrap();
            out += &format!(" __builtin_memset({name}, 0x5A, sizeof {name});");
        }
        out += "\n";
    }
    out
}

/// The C compiler takes what is written for AVX-512 also where the processor has none to run it.
pub fn builds_for_others(p: &Loops, grouping: &Grouping) {
    if machine().isa == Isa::Avx2 {
        Compiled::new(p.clone(), grouping, &Caps::cpu(Isa::Avx512, 2)).unwrap();
    }
}

/// Machine code of kernels.
enum Code {
    Native(libloading::Library),
    Emulated(Emulator),
}

impl Code {
    fn grid(&self, name: &str, bufs: &[*mut u8], sizes: &[i64], begin: i64, end: i64) -> i32 {
        type Entry = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64) -> i32;
        match self {
            // SAFETY: emitted kernels over a grid have this type; buffers and sizes are those that the kernel declares.
            Code::Native(library) => unsafe {
                let entry = library.get::<Entry>(name.as_bytes()).unwrap();
                entry(bufs.as_ptr(), sizes.as_ptr(), begin, end)
            },
            Code::Emulated(e) => {
                let places = [bufs.as_ptr() as u64, sizes.as_ptr() as u64];
                (e.call(name, &[places[0], places[1], begin as u64, end as u64])).unwrap()
            }
        }
    }

    /// The epilogue over the sums `acc`; `place` is the distance of their rows, the batch, and the ranges of m and n.
    fn epilogue(
        &self,
        name: &str,
        bufs: &[*mut u8],
        sizes: &[i64],
        acc: *const f32,
        place: [i64; 6],
    ) {
        type Entry = unsafe extern "C" fn(
            *const *mut u8,
            *const i64,
            *const f32,
            i64,
            i64,
            i64,
            i64,
            i64,
            i64,
        );
        match self {
            // SAFETY: emitted epilogues have this type; `acc` holds the range of sums that `place` names.
            Code::Native(library) => unsafe {
                let entry = library.get::<Entry>(name.as_bytes()).unwrap();
                let [ld, batch, m0, m1, n0, n1] = place;
                entry(
                    bufs.as_ptr(),
                    sizes.as_ptr(),
                    acc,
                    ld,
                    batch,
                    m0,
                    m1,
                    n0,
                    n1,
                );
            },
            Code::Emulated(e) => {
                let mut arguments = vec![bufs.as_ptr() as u64, sizes.as_ptr() as u64, acc as u64];
                arguments.extend(place.map(|n| n as u64));
                e.call(name, &arguments).unwrap();
            }
        }
    }
}

fn code(source: &str, caps: &Caps) -> Code {
    match caps.isa {
        Isa::Neon if cfg!(not(target_arch = "aarch64")) => {
            Code::Emulated(Emulator::new(source, &flags(caps)).unwrap())
        }
        _ => Code::Native(compile(source, caps)),
    }
}

pub fn compile(source: &str, caps: &Caps) -> libloading::Library {
    let dir = tempfile::tempdir().unwrap();
    let (c, so) = (dir.path().join("k.c"), dir.path().join("k.so"));
    std::fs::write(&c, source).unwrap();
    if let Ok(keep) = std::env::var("INRUSH_TEST_SOURCE") {
        std::fs::write(keep, source).unwrap();
    }
    let mut cmd = Command::new("cc");
    cmd.args(flags(caps)).arg("-o").arg(&so).arg(&c);
    if caps.vector_math {
        cmd.arg("-lmvec");
    }
    let out = cmd.arg("-lm").output().expect("a C compiler");
    assert!(
        out.status.success(),
        "{}\n{source}",
        String::from_utf8_lossy(&out.stderr)
    );
    // SAFETY: emitted code has no initialisers.
    unsafe { libloading::Library::new(&so) }.unwrap()
}

pub type Symbols = HashMap<Sym, i64>;

pub fn eval(exprs: &Exprs, e: Expr, symbols: &Symbols) -> i64 {
    exprs.eval(e, &|s| symbols.get(&s).copied()).unwrap()
}

enum Task {
    Grid(Kernel, inrush_c::Function),
    Tile(Box<Contraction>, Kernel, inrush_c::Function),
}

/// A program compiled by one unit.
pub struct Compiled {
    pub loops: Loops,
    tasks: Vec<Task>,
    code: Rc<Code>,
    pub source: Rc<str>,
}

impl Compiled {
    pub fn new(loops: Loops, grouping: &Grouping, caps: &Caps) -> Result<Compiled, String> {
        let mut all = Compiled::batch(vec![(loops, grouping.clone())], caps)?;
        Ok(all.remove(0))
    }

    /// Many programs, compiled together.
    pub fn batch(programs: Vec<(Loops, Grouping)>, caps: &Caps) -> Result<Vec<Compiled>, String> {
        let mut prepared = Vec::new();
        for (mut loops, grouping) in programs {
            if let Grouping::Together { axes, locals } = &grouping {
                localize(&mut loops, *axes, locals);
            }
            let tasks = tasks(&loops, &grouping, caps)?;
            prepared.push((loops, tasks));
        }
        let functions = prepared.iter().flat_map(|(_, t)| t).map(|t| match t {
            Task::Grid(_, f) | Task::Tile(_, _, f) => f,
        });
        let source: Rc<str> = poisoned(&inrush_c::unit(functions)).into();
        let code = Rc::new(code(&source, caps));
        Ok(prepared
            .into_iter()
            .map(|(loops, tasks)| Compiled {
                loops,
                tasks,
                code: code.clone(),
                source: source.clone(),
            })
            .collect())
    }

    pub fn print(&self) -> String {
        self.tasks
            .iter()
            .map(|t| match t {
                Task::Grid(k, _) | Task::Tile(_, k, _) => {
                    inrush_kernel::print(&self.loops.exprs, k)
                }
            })
            .collect()
    }

    /// Runs the kernels on fresh memory; `step` units at a time. Gives the outputs, or the number of a failed check.
    pub fn run(&self, inputs: &[Value], symbols: &Symbols, step: i64) -> Result<Vec<Value>, i32> {
        let mut ready = self.prepare(inputs, symbols);
        ready.launch(step)?;
        Ok(ready.memory.outputs(&self.loops))
    }

    /// Memory and arguments of all launches.
    pub fn prepare(&self, inputs: &[Value], symbols: &Symbols) -> Ready<'_> {
        let memory = Memory::new(&self.loops, inputs, symbols);
        let exprs = &self.loops.exprs;
        let mut launches = Vec::new();
        for task in &self.tasks {
            let (Task::Grid(kernel, _) | Task::Tile(_, kernel, _)) = task;
            let mut bufs: Vec<*mut u8> = (kernel.arguments())
                .map(|(_, b)| memory.pointer(&self.loops, b.buf))
                .collect();
            let len = kernel
                .scratch_bytes
                .map_or(0, |e| eval(exprs, e, symbols) as usize);
            let mut scratch = vec![0x5Au8; len + 64];
            if kernel.scratch_bytes.is_some() {
                let p = scratch.as_mut_ptr();
                // SAFETY: alignment takes less than the 64 spare bytes.
                bufs.push(unsafe { p.add(p.align_offset(64)) });
            }
            launches.push(Launch {
                bufs,
                sizes: (kernel.sizes.iter())
                    .map(|p| eval(exprs, p.value, symbols))
                    .collect(),
                units: eval(exprs, kernel.units, symbols),
                _scratch: scratch,
            });
        }
        Ready {
            compiled: self,
            memory,
            launches,
            symbols: symbols.clone(),
        }
    }
}

struct Launch {
    bufs: Vec<*mut u8>,
    sizes: Vec<i64>,
    units: i64,
    _scratch: Vec<u8>,
}

/// A program with memory, to be launched as often as one likes.
pub struct Ready<'a> {
    compiled: &'a Compiled,
    memory: Memory,
    launches: Vec<Launch>,
    symbols: Symbols,
}

impl Ready<'_> {
    /// Runs all kernels, `step` units at a time.
    pub fn launch(&mut self, step: i64) -> Result<(), i32> {
        let c = self.compiled;
        for (task, l) in c.tasks.iter().zip(&self.launches) {
            match task {
                Task::Grid(kernel, f) => {
                    assert!(matches!(kernel.kind, Kind::Grid(_)));
                    let mut begin = 0;
                    while begin < l.units {
                        let end = (begin.saturating_add(step)).min(l.units);
                        let rc = c.code.grid(&f.name, &l.bufs, &l.sizes, begin, end);
                        if rc != 0 {
                            return Err(rc);
                        }
                        begin = end;
                    }
                }
                Task::Tile(contraction, _, f) => self.memory.contraction(
                    c,
                    contraction,
                    &f.name,
                    &l.bufs,
                    &l.sizes,
                    &self.symbols,
                ),
            }
        }
        Ok(())
    }
}

/// Returns the C text of a program, also for targets that this machine cannot run.
pub fn source(loops: &Loops, grouping: &Grouping, caps: &Caps) -> String {
    let tasks = tasks(loops, grouping, caps).unwrap();
    inrush_c::unit(tasks.iter().map(|t| match t {
        Task::Grid(_, f) | Task::Tile(_, _, f) => f,
    }))
}

fn tasks(loops: &Loops, grouping: &Grouping, caps: &Caps) -> Result<Vec<Task>, String> {
    let mut tasks = Vec::new();
    let say = |e: inrush_base::Error| e.to_string();
    let group = |axes: &[Axis], bodies: &[Body], locals: &[BufId]| -> Result<Task, String> {
        let kernel =
            inrush_kernel::tile(loops.tables(), axes, bodies, locals, caps).map_err(say)?;
        if let Err(e) = inrush_kernel::verify(&loops.exprs, &kernel) {
            return Err(format!(
                "{e}\n{}",
                inrush_kernel::print(&loops.exprs, &kernel)
            ));
        }
        let f = inrush_c::emit(&loops.exprs, &kernel, caps).map_err(say)?;
        Ok(Task::Grid(kernel, f))
    };
    match grouping {
        Grouping::Apart => {
            for node in &loops.nodes {
                match node {
                    Node::Body(b) => {
                        tasks.push(group(&b.axes[..b.outer], std::slice::from_ref(b), &[])?)
                    }
                    Node::Contraction(c) => {
                        let kernel =
                            inrush_kernel::tile_epilogue(loops.tables(), c, caps).map_err(say)?;
                        inrush_kernel::verify(&loops.exprs, &kernel).map_err(say)?;
                        let f = inrush_c::emit(&loops.exprs, &kernel, caps).map_err(say)?;
                        tasks.push(Task::Tile(c.clone(), kernel, f));
                    }
                    Node::Library(_) | Node::Attention(_) => {
                        return Err("a library call or an attention".into());
                    }
                }
            }
        }
        Grouping::Together { axes, locals } => {
            let bodies: Vec<Body> = loops
                .nodes
                .iter()
                .map(|n| match n {
                    Node::Body(b) => b.clone(),
                    _ => panic!("only bodies stand in a group"),
                })
                .collect();
            let locals: Vec<BufId> = locals.iter().map(|l| BufId::from_index(*l)).collect();
            tasks.push(group(&bodies[0].axes[..*axes], &bodies, &locals)?);
        }
    }
    Ok(tasks)
}

/// Cuts the group's axes, which lead their coordinates, off the local buffers.
fn localize(p: &mut Loops, axes: usize, locals: &[usize]) {
    for l in locals {
        p.buffers[*l].sizes.drain(..axes);
        p.buffers[*l].layout = None;
    }
    for node in &mut p.nodes {
        for stmt in &mut node.body_mut().stmts {
            if let Stmt::Load { buf, coords, .. } | Stmt::Store { buf, coords, .. } = stmt
                && locals.contains(&buf.index())
            {
                coords.drain(..axes);
            }
        }
    }
}

/// All buffers of a program; an alias has none of its own.
struct Memory {
    storages: Vec<Vec<u64>>,
    sizes: Vec<Vec<i64>>,
    strides: Vec<Vec<i64>>,
    offsets: Vec<i64>,
}

impl Memory {
    fn new(p: &Loops, inputs: &[Value], symbols: &Symbols) -> Memory {
        let mut m = Memory {
            storages: Vec::new(),
            sizes: Vec::new(),
            strides: Vec::new(),
            offsets: Vec::new(),
        };
        for b in &p.buffers {
            let all = |es: &[Expr]| es.iter().map(|e| eval(&p.exprs, *e, symbols)).collect();
            let sizes: Vec<i64> = all(&b.sizes);
            let (strides, offset): (Vec<i64>, i64) = match &b.layout {
                Some(l) => (all(&l.strides), eval(&p.exprs, l.offset, symbols)),
                None => (all(&p.exprs.contiguous_strides(&b.sizes)), 0),
            };
            let last: i64 = sizes
                .iter()
                .zip(&strides)
                .map(|(n, s)| (n - 1).max(0) * (*s).max(0))
                .sum();
            let bytes = (offset + last + 1) as usize * b.dtype.size();
            let own = !matches!(b.kind, BufferKind::Alias { .. });
            m.storages.push(vec![
                0x7f7f_7f7f_7f7f_7f7f;
                if own { bytes.div_ceil(8) } else { 0 }
            ]);
            m.sizes.push(sizes);
            m.strides.push(strides);
            m.offsets.push(offset);
            if let BufferKind::Input { index } = b.kind {
                let t = inputs[index].tensor().unwrap();
                assert_eq!(t.dtype, b.dtype);
                let at = m.sizes.len() - 1;
                let size = b.dtype.size();
                for k in 0..t.numel() {
                    let place = m.place(at, k) as usize * size;
                    m.bytes_mut(at)[place..place + size]
                        .copy_from_slice(&t.data[k * size..(k + 1) * size]);
                }
            }
        }
        m
    }

    fn bytes_mut(&mut self, at: usize) -> &mut [u8] {
        let s = &mut self.storages[at];
        // SAFETY: a storage is a list of 8-byte words, borrowed as long as its bytes.
        unsafe { std::slice::from_raw_parts_mut(s.as_mut_ptr() as *mut u8, s.len() * 8) }
    }

    /// Element offset of row-major element `k`.
    fn place(&self, buf: usize, mut k: usize) -> i64 {
        let mut out = self.offsets[buf];
        for (n, s) in self.sizes[buf].iter().zip(&self.strides[buf]).rev() {
            out += (k as i64 % n) * s;
            k /= *n as usize;
        }
        out
    }

    fn pointer(&self, p: &Loops, b: BufId) -> *mut u8 {
        self.storages[p.storage(b).index()].as_ptr() as *mut u8
    }

    fn outputs(&self, p: &Loops) -> Vec<Value> {
        let read = |b: &BufId| {
            let at = b.index();
            let dtype = p.buffers[at].dtype;
            let n: i64 = self.sizes[at].iter().product();
            let size = dtype.size();
            let base = self.pointer(p, *b);
            let mut data = Vec::new();
            for k in 0..n as usize {
                let place = self.place(at, k) as usize * size;
                // SAFETY: the place is that of an element of the buffer.
                data.extend(unsafe { std::slice::from_raw_parts(base.add(place), size) });
            }
            Value::Tensor(Tensor {
                dtype,
                sizes: self.sizes[at].clone(),
                data,
            })
        };
        p.outputs
            .iter()
            .map(|o| match o {
                Output::Tensor { buffer } | Output::Mutation { buffer, .. } => read(buffer),
                _ => Value::None,
            })
            .collect()
    }

    /// A contraction of `f32`: sums computed here, tile by tile, then the compiled epilogue.
    fn contraction(
        &self,
        run: &Compiled,
        c: &Contraction,
        name: &str,
        bufs: &[*mut u8],
        sizes: &[i64],
        symbols: &Symbols,
    ) {
        let exprs = &run.loops.exprs;
        let extents = |axes: &[Axis]| -> Vec<i64> {
            axes.iter().map(|a| eval(exprs, a.size, symbols)).collect()
        };
        let count = |axes: &[Axis]| extents(axes).iter().product::<i64>();
        let set = |axes: &[Axis], mut linear: i64, known: &mut Symbols| {
            for (a, n) in axes.iter().zip(extents(axes)).rev() {
                known.insert(a.sym, linear % n);
                linear /= n;
            }
        };
        let read = |access: &inrush_loops::Access, known: &Symbols| {
            let at = access.buf.index();
            let offset: i64 = self.offsets[at]
                + access
                    .coords
                    .iter()
                    .zip(&self.strides[at])
                    .map(|(e, s)| eval(exprs, *e, known) * s)
                    .sum::<i64>();
            // SAFETY: the coordinates are in the buffer's bounds.
            unsafe { *(self.pointer(&run.loops, access.buf) as *const f32).add(offset as usize) }
        };
        let (nb, nm, nn, nk) = (count(&c.batch), count(&c.m), count(&c.n), count(&c.k));
        for batch in 0..nb {
            for (m0, m1) in [(0, nm / 2), (nm / 2, nm)] {
                for (n0, n1) in [(0, nn / 3), (nn / 3, nn)] {
                    let ld = n1 - n0 + 3;
                    let mut acc = vec![f32::NAN; ((m1 - m0) * ld) as usize];
                    let mut known = symbols.clone();
                    for m in m0..m1 {
                        for n in n0..n1 {
                            set(&c.batch, batch, &mut known);
                            set(&c.m, m, &mut known);
                            set(&c.n, n, &mut known);
                            let mut sum = 0.0;
                            for k in 0..nk {
                                set(&c.k, k, &mut known);
                                sum += read(&c.a, &known) * read(&c.b, &known);
                            }
                            acc[((m - m0) * ld + n - n0) as usize] = sum;
                        }
                    }
                    let place = [ld, batch, m0, m1, n0, n1];
                    (run.code).epilogue(name, bufs, sizes, acc.as_ptr(), place);
                }
            }
        }
    }
}

/// Values of size symbols, learned from the inputs' shapes.
pub fn symbols(p: &Loops, inputs: &[Value]) -> Symbols {
    let mut out = Symbols::new();
    for b in &p.buffers {
        if let BufferKind::Input { index } = b.kind {
            for (e, n) in b.sizes.iter().zip(&inputs[index].tensor().unwrap().sizes) {
                if let Some(s) = p.exprs.as_sym(*e) {
                    out.insert(s, *n);
                }
            }
        }
    }
    out
}

/// Returns the interpreter's results.
pub fn expected(p: &Loops, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let none = BTreeMap::new();
    let wide = LoopsOptions { wide_sums: true };
    inrush_interp::loops(p, inputs, &none, &BTreeMap::new(), wide).map_err(|e| e.to_string())
}

/// Tolerance of an output's dtype, relative to its largest value.
/// Sums without lanes run in one chain and lose more digits.
pub fn tolerance(d: DType, caps: &Caps) -> f64 {
    match d {
        DType::F32 if caps.isa == Isa::Scalar => 2e-4,
        DType::F64 => 1e-12,
        DType::F32 => 2e-6,
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 0.0,
    }
}

/// Compiles `text` and compares with the interpreter, at each level that runs here.
#[track_caller]
pub fn check(text: &str, grouping: Grouping, inputs: &[Value]) {
    check_at(&levels(), text, grouping, inputs);
}

/// The same at these levels.
#[track_caller]
pub fn check_at(levels: &[Caps], text: &str, grouping: Grouping, inputs: &[Value]) {
    let p = inrush_loops::text::parse(text).unwrap();
    inrush_loops::verify::verify(&p).unwrap();
    let want = expected(&p, inputs).unwrap();
    let known = symbols(&p, inputs);
    builds_for_others(&p, &grouping);
    for caps in levels {
        let c = Compiled::new(p.clone(), &grouping, caps).unwrap();
        for step in [1, 3, i64::MAX / 2] {
            let got = c.run(inputs, &known, step).unwrap();
            for (at, (g, w)) in got.iter().zip(&want).enumerate() {
                let (g, w) = (g.tensor().unwrap(), w.tensor().unwrap());
                let error = g.max_error(w).unwrap();
                assert!(
                    error <= tolerance(g.dtype, caps),
                    "{caps}: output {at} is off by {error:e}\ngot  {:?}\nwant {:?}\n{}\n{}",
                    &g.scalars().unwrap()[..g.numel().min(40)],
                    &w.scalars().unwrap()[..w.numel().min(40)],
                    c.print(),
                    c.source
                );
            }
        }
    }
}

/// A small deterministic generator of numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// In -2..2, with few digits so that sums are exact.
    pub fn float(&mut self) -> f64 {
        (self.below(4097) as f64 - 2048.0) / 1024.0
    }
    pub fn tensor(&mut self, dtype: DType, sizes: &[i64]) -> Value {
        let n: i64 = sizes.iter().product();
        let values: Vec<inrush_base::Scalar> = (0..n)
            .map(|_| match dtype {
                DType::Bool => inrush_base::Scalar::Bool(self.below(2) == 1),
                d if d.is_float() => inrush_base::Scalar::Float(self.float()),
                _ => inrush_base::Scalar::Int(self.below(200) as i64 - 100),
            })
            .collect();
        Value::Tensor(Tensor::from_scalars(dtype, sizes, &values).unwrap())
    }
}
