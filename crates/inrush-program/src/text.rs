//! The program as text, for people: `inrush inspect --stage wrap`.

use crate::*;
use std::fmt;

impl Program {
    /// A size as an expression over symbols.
    pub fn show_size(&self, id: SizeId) -> String {
        let bin = |a: SizeId, op: &str, b: SizeId| {
            format!("({} {op} {})", self.show_size(a), self.show_size(b))
        };
        match self.sizes[id.0 as usize] {
            Size::Const(v) => v.to_string(),
            Size::Sym(s) => self.symbols[s as usize].name.clone(),
            Size::Add(a, b) => bin(a, "+", b),
            Size::Mul(a, b) => bin(a, "*", b),
            Size::FloorDiv(a, b) => bin(a, "//", b),
            Size::Mod(a, b) => bin(a, "%", b),
            Size::Min(a, b) => format!("min({}, {})", self.show_size(a), self.show_size(b)),
            Size::Max(a, b) => format!("max({}, {})", self.show_size(a), self.show_size(b)),
        }
    }

    fn show_sizes(&self, ids: &[SizeId]) -> String {
        let parts: Vec<String> = ids.iter().map(|i| self.show_size(*i)).collect();
        format!("[{}]", parts.join(", "))
    }

    fn show_buffers(&self, ids: &[BufferId]) -> String {
        let parts: Vec<&str> = ids
            .iter()
            .map(|b| self.buffers[*b as usize].name.as_str())
            .collect();
        parts.join(", ")
    }

    fn write_step(&self, f: &mut fmt::Formatter<'_>, step: &Step) -> fmt::Result {
        match step {
            Step::Launch(l) => {
                let k = &self.kernels[l.kernel as usize];
                writeln!(
                    f,
                    "  launch {}({}) sizes {} units {} cost {}{}  ;; {}",
                    k.symbol,
                    self.show_buffers(&l.buffers),
                    self.show_sizes(&l.sizes),
                    self.show_size(l.units),
                    self.show_size(l.unit_cost),
                    if l.serial { " serial" } else { "" },
                    k.title
                )
            }
            Step::Contract(c) => {
                let level = |l: &[Level]| {
                    let v: Vec<String> = l
                        .iter()
                        .map(|l| format!("{}:{}", self.show_size(l.size), self.show_size(l.stride)))
                        .collect();
                    v.join(" ")
                };
                let k: Vec<String> =
                    c.k.iter()
                        .map(|l| {
                            format!(
                                "{}:{}:{}",
                                self.show_size(l.size),
                                self.show_size(l.a_stride),
                                self.show_size(l.b_stride)
                            )
                        })
                        .collect();
                let batch: Vec<String> = c
                    .batch
                    .iter()
                    .map(|l| {
                        format!(
                            "{}:{}:{}",
                            self.show_size(l.size),
                            self.show_size(l.a_stride),
                            self.show_size(l.b_stride)
                        )
                    })
                    .collect();
                let e = &self.kernels[c.epilogue as usize];
                writeln!(
                    f,
                    "  contract {} x {} batch [{}] m [{}] n [{}] k [{}] in {} -> {}({}) sizes {}  ;; {}",
                    self.buffers[c.a as usize].name,
                    self.buffers[c.b as usize].name,
                    batch.join(" "),
                    level(&c.m),
                    level(&c.n),
                    k.join(" "),
                    c.acc.0,
                    e.symbol,
                    self.show_buffers(&c.buffers),
                    self.show_sizes(&c.sizes),
                    e.title
                )
            }
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}", self.name)?;
        for s in &self.symbols {
            writeln!(
                f,
                "symbol {} in {}..={} from {:?}",
                s.name, s.lower, s.upper, s.source
            )?;
        }
        for i in &self.inputs {
            match &i.ty {
                InputType::Tensor {
                    dtype,
                    sizes,
                    strides,
                } => writeln!(
                    f,
                    "input {}: {}{} strides {}",
                    i.name,
                    dtype.0,
                    self.show_sizes(sizes),
                    self.show_sizes(strides)
                )?,
                InputType::Int { value } => {
                    writeln!(f, "input {}: int {}", i.name, self.show_size(*value))?
                }
                InputType::Ignored => writeln!(f, "input {}: ignored", i.name)?,
                InputType::Constant { value } => {
                    writeln!(f, "input {}: constant {}", i.name, Scalar::from(*value))?
                }
            }
        }
        for g in &self.guards {
            writeln!(
                f,
                "guard {} {:?} {}",
                self.show_size(g.left),
                g.relation,
                self.show_size(g.right)
            )?;
        }
        for b in &self.buffers {
            let place = match &b.place {
                Place::Input { input } => format!("input {input}"),
                Place::Weight(w) => {
                    format!("weight {} {:?} strides {:?}", w.name, w.sizes, w.strides)
                }
                Place::Persistent { offset } => {
                    format!("persistent at {}", self.show_size(*offset))
                }
                Place::Arena { offset } => format!("arena at {}", self.show_size(*offset)),
                Place::Output { output } => format!("output {output}"),
                Place::Alias { of, offset } => {
                    format!(
                        "alias of {} at {}",
                        self.buffers[*of as usize].name,
                        self.show_size(*offset)
                    )
                }
            };
            writeln!(
                f,
                "buffer {}: {} {} bytes, {place}",
                b.name,
                b.dtype.0,
                self.show_size(b.bytes)
            )?;
        }
        writeln!(f, "arena {} bytes", self.show_size(self.arena_bytes))?;
        if !self.load_steps.is_empty() {
            writeln!(f, "load:")?;
            self.load_steps
                .iter()
                .try_for_each(|s| self.write_step(f, s))?;
        }
        writeln!(f, "run:")?;
        self.steps.iter().try_for_each(|s| self.write_step(f, s))?;
        for (i, o) in self.outputs.iter().enumerate() {
            match o {
                Output::Tensor {
                    buffer,
                    dtype,
                    sizes,
                    strides,
                } => writeln!(
                    f,
                    "output {i}: {} {}{} strides {}",
                    self.buffers[*buffer as usize].name,
                    dtype.0,
                    self.show_sizes(sizes),
                    self.show_sizes(strides)
                )?,
                Output::Int { value } => writeln!(f, "output {i}: int {}", self.show_size(*value))?,
                Output::Scalar { value } => writeln!(f, "output {i}: {}", Scalar::from(*value))?,
                Output::Mutation => writeln!(f, "output {i}: mutation")?,
                Output::None => writeln!(f, "output {i}: none")?,
            }
        }
        Ok(())
    }
}
