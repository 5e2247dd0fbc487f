//! The error that every library crate returns: what is wrong, whose fault it is, and where.

use std::fmt;

/// Whose fault an error is; decides the exit code and what the user is told to do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The user's file, graph or tensors (exit code 2).
    Input,
    /// An index that is out of range for its dimension (exit code 2).
    OutOfRange,
    /// An integer that is divided by zero (exit code 2).
    ZeroDivision,
    /// An element of an argument that the operator does not take (exit code 2).
    InvalidValue,
    /// Something valid that inrush does not do yet (exit code 2).
    Unsupported,
    /// The machine: compiler, driver, cache, disk (exit code 3).
    Machine,
    /// Memory that the machine does not have (exit code 3).
    OutOfMemory,
    /// inrush itself: a broken invariant that a verifier found (exit code 4).
    Internal,
}

impl ErrorKind {
    /// Returns the code that a process ends with.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Input
            | ErrorKind::OutOfRange
            | ErrorKind::ZeroDivision
            | ErrorKind::InvalidValue
            | ErrorKind::Unsupported => 2,
            ErrorKind::Machine | ErrorKind::OutOfMemory => 3,
            ErrorKind::Internal => 4,
        }
    }
}

/// A check that a kernel makes on data while it runs.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum CheckKind {
    /// An index is in range.
    Index,
    /// The divisor of an integer is not zero.
    Divisor,
    /// The operator takes an element of its argument.
    Value,
}

impl CheckKind {
    const ALL: [CheckKind; 3] = [CheckKind::Index, CheckKind::Divisor, CheckKind::Value];

    /// Returns the name in texts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CheckKind::Index => "index",
            CheckKind::Divisor => "divisor",
            CheckKind::Value => "value",
        }
    }

    /// Finds a kind by its name.
    #[must_use]
    pub fn parse(name: &str) -> Option<CheckKind> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Returns the kind of the error where the check fails.
    #[must_use]
    pub fn error(self) -> ErrorKind {
        match self {
            CheckKind::Index => ErrorKind::OutOfRange,
            CheckKind::Divisor => ErrorKind::ZeroDivision,
            CheckKind::Value => ErrorKind::InvalidValue,
        }
    }
}

/// An error with its place: file, graph node and operator, Python source line, pipeline stage. Each is optional.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    file: Option<String>,
    node: Option<String>,
    op: Option<String>,
    line: Option<String>,
    stage: Option<&'static str>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            file: None,
            node: None,
            op: None,
            line: None,
            stage: None,
        }))
    }
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, message)
    }
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }
    pub fn machine(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Machine, message)
    }
    /// Makes an error of [`ErrorKind::OutOfMemory`].
    pub fn out_of_memory(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::OutOfMemory, message)
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The message alone, without its place.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    pub fn stage(&self) -> Option<&'static str> {
        self.0.stage
    }
    /// The first result of the graph node that is at fault, as the graph that was handed in names it.
    pub fn node(&self) -> Option<&str> {
        self.0.node.as_deref()
    }
    /// The operator at fault.
    pub fn op(&self) -> Option<&str> {
        self.0.op.as_deref()
    }

    /// Sets the file unless an inner call already did: the innermost place wins.
    pub fn in_file(mut self, file: impl Into<String>) -> Self {
        self.0.file.get_or_insert_with(|| file.into());
        self
    }
    pub fn at_node(mut self, node: impl Into<String>) -> Self {
        self.0.node.get_or_insert_with(|| node.into());
        self
    }
    pub fn in_op(mut self, op: impl Into<String>) -> Self {
        self.0.op.get_or_insert_with(|| op.into());
        self
    }
    pub fn at_line(mut self, line: impl Into<String>) -> Self {
        self.0.line.get_or_insert_with(|| line.into());
        self
    }
    pub fn in_stage(mut self, stage: &'static str) -> Self {
        self.0.stage.get_or_insert(stage);
        self
    }
    /// Puts `what: ` before the message.
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        if let Some(file) = &e.file {
            write!(f, "{file}: ")?;
        }
        if let Some(stage) = e.stage {
            write!(f, "{stage}: ")?;
        }
        match (&e.node, &e.op) {
            (Some(n), Some(o)) => write!(f, "node `{n}` ({o}): ")?,
            (Some(n), None) => write!(f, "node `{n}`: ")?,
            (None, Some(o)) => write!(f, "{o}: ")?,
            (None, None) => {}
        }
        f.write_str(&e.message)?;
        if let Some(line) = &e.line {
            write!(f, "\n  at {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
