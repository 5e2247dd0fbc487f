//! A compiled model on a device: its weights, and calls.

use super::building::Builder;
use super::call::{CallState, Given, Parts};
use super::complex::{self, SplitWeights};
use super::executable::Executable;
use super::graphs::{self, Captured, Found, Graphs, Key};
use super::hosts::Hosts;
use super::memory::TensorLibrary;
use super::process::Process;
use super::tensor::{Argument, DeviceTensor, Output};
use super::weights::{Entry, NewWeight, WeightSet};
use crate::devices;
use crate::gpu::Provided;
use crate::gpu::cublas::Blas;
use crate::gpu::driver::{Entered, Marker, OwnedStream, Stream};
use crate::program::{Device, HostProgram, Lowered};
use inrush_base::{Error, Result};
use inrush_program::{Reads, SEED};
use inrush_runtime::tensor::copy_strided;
use inrush_runtime::triton::Binary;
use inrush_runtime::{
    Names, Set, Signature, Tensor, Value, WeightSource, WeightSpec, check_update,
};
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a model runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Calls that run at once, each with its own stream and memory; more wait.
    pub concurrent: usize,
    /// Calls are captured as graphs of the driver, from the second of the same sizes on.
    pub capture: bool,
    /// The seed of the first call's random numbers, if the model draws some.
    pub seed: i64,
    /// The library that memory of calls and weights is from; `None` for the driver.
    pub library: Option<Arc<dyn TensorLibrary>>,
    /// Builds kernels whose source the package holds, which has Triton's Python run code of the package.
    pub build_kernels: bool,
    /// The Python interpreter that has Triton, unless `INRUSH_PYTHON` names one; `None` for `python3`.
    pub python: Option<PathBuf>,
    /// A folder of built kernels, which is read before the cache and written too.
    pub records: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            concurrent: 4,
            capture: false,
            seed: 0,
            library: None,
            build_kernels: false,
            python: None,
            records: None,
        }
    }
}

/// A model on a device. Calls and updates of weights may come from several threads at once.
pub struct Model {
    loaded: ManuallyDrop<Loaded>,
}

/// All of a model that is freed in the context that it is from.
pub struct Loaded {
    executable: Executable,
    hosts: Hosts,
    device: Device,
    signature: Signature,
    options: Options,
    /// Builds of kernels, where some had no record.
    builder: Option<Builder>,
    graphs: Option<Graphs>,
    active: Mutex<Arc<WeightSet>>,
    /// Waits for what writes tensors that come in without a stream of the call's, and a marker of that.
    imports: (OwnedStream, Mutex<Marker>, AtomicBool),
    /// Held by a call that writes the model's buffers, and by swaps. The marker is the end of the last such call.
    state: Mutex<Marker>,
    /// Held during an update and a swap.
    sets: Mutex<Sets>,
}

#[derive(Default)]
struct Sets {
    /// The inactive set, once an update gave it values.
    next: Option<Next>,
    /// The set that was active before: its memory serves the next update.
    spare: Option<Arc<WeightSet>>,
}

struct Next {
    set: WeightSet,
    /// Names that updates gave since the last swap.
    given: BTreeSet<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Model {
    /// Loads the kernels and copies the weights to a device. `binaries` are those of the program's kernels, in order; with `blas`,
    /// matrix products go there.
    ///
    /// # Errors
    /// A weight that is missing or not what the program says, too little memory, those of the driver; an unsupported error for
    /// graphs of a program that cannot be captured.
    pub fn new(
        lowered: Lowered,
        binaries: Vec<Binary>,
        weights: &dyn WeightSource,
        device: Device,
        blas: Option<&'static Blas>,
        options: Options,
    ) -> Result<Model> {
        let kernels = binaries.into_iter().map(Provided::Built).collect();
        Model::with(lowered, (kernels, None), weights, device, blas, options)
    }

    /// As [`Model::new`], with kernels that may still be built.
    ///
    /// # Errors
    /// Those of [`Model::new`].
    pub(super) fn with(
        lowered: Lowered,
        (kernels, builder): (Vec<Provided>, Option<Builder>),
        weights: &dyn WeightSource,
        device: Device,
        blas: Option<&'static Blas>,
        options: Options,
    ) -> Result<Model> {
        let graphs = match options.capture {
            true => Some(capturable(&lowered.program)?),
            false => None,
        };
        let driver = devices::driver(device)?;
        if graphs.is_some() && !driver.can_capture() {
            return Err(Error::unsupported(format!(
                "graphs: {} captures no calls; launches on `{}` are issued one by one",
                driver.version()?,
                devices::name(device)
            )));
        }
        let context = driver.primary_context(device.index)?;
        let _entered = driver.enter(context)?;
        super::custom::check_operators(&lowered)?;
        let executable = Executable::new(lowered, &mut kernels.into_iter())?;
        let plan = &executable.plan;
        let hosts = Hosts::new(
            (driver.clone(), context),
            blas,
            options.library.clone(),
            options.concurrent,
        );
        let set = WeightSet::new(plan, (&driver, context), &hosts.memory)?;
        set.fill(plan, weights)?;
        if let Some(e) = plan.entry(SEED) {
            set.write_seed(e, options.seed)?;
        }
        Ok(Model {
            loaded: ManuallyDrop::new(Loaded {
                signature: super::signature::of(&executable.lowered),
                imports: (
                    driver.own_stream()?,
                    Mutex::new(driver.marker()?),
                    AtomicBool::new(false),
                ),
                state: Mutex::new(driver.marker()?),
                hosts,
                active: Mutex::new(Arc::new(set)),
                sets: Mutex::default(),
                executable,
                device,
                options,
                builder,
                graphs,
            }),
        })
    }

    /// Says which records of kernels were not used, and why, and what of those that were built could not be kept.
    pub fn notes(&self) -> Vec<String> {
        self.builder.as_ref().map_or_else(Vec::new, Builder::notes)
    }

    /// Says for each kernel that a first launch chose among several what was measured.
    pub fn chosen(&self) -> Vec<String> {
        self.builder.as_ref().map_or_else(Vec::new, Builder::chosen)
    }

    /// Returns the names of the inputs, in call order.
    pub fn inputs(&self) -> &[String] {
        &self.executable.lowered.inputs
    }

    /// Returns the program.
    pub fn program(&self) -> &HostProgram {
        &self.executable.lowered.program
    }

    /// Returns the program with what callers see of it.
    pub fn lowered(&self) -> &Lowered {
        &self.executable.lowered
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the number of calls that run at once.
    pub fn concurrent(&self) -> usize {
        self.options.concurrent.max(1)
    }

    /// Returns true if calls write buffers of the model, such as a cache. They run one at a time then.
    pub fn writes_state(&self) -> bool {
        self.executable.plan.writes_state()
    }

    /// Returns the inputs and outputs.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Returns what the program assumes about the memory of each input, in call order.
    pub fn input_reads(&self) -> Vec<Reads> {
        let slots = self.executable.lowered.program.inputs.iter();
        slots.map(|slot| self.executable.reads[*slot]).collect()
    }

    /// Lists the weights that the model reads, in the program's order.
    pub fn weights(&self) -> Vec<WeightSpec> {
        self.executable.plan.specs()
    }

    /// Returns a stream that calls without one of the caller's wait for. Other libraries have it wait for the work that
    /// writes what they pass. Where streams are not shared ([`devices::shares_streams`]) that work has to be done.
    pub fn import_stream(&self) -> Stream {
        if devices::shares_streams(self.device) {
            self.imports.2.store(true, Ordering::Release);
        }
        self.imports.0.stream()
    }

    /// Has work of a stream come after what writes the arguments.
    fn order_after(
        &self,
        inputs: &[Given<'_>],
        stream: Option<Stream>,
        work: Stream,
    ) -> Result<()> {
        if stream.is_none() && self.imports.2.load(Ordering::Acquire) {
            let marker = lock(&self.imports.1);
            marker.record(self.imports.0.stream())?;
            marker.wait(work)?;
        }
        for given in inputs {
            if let Given::Device(t) = given {
                t.order_in(&self.hosts.driver, work)?;
            }
        }
        Ok(())
    }

    fn enter(&self) -> Result<Entered> {
        self.hosts.driver.enter(self.hosts.context)
    }

    /// Runs the model on its flat inputs, and copies the outputs to the host.
    ///
    /// # Errors
    /// Inputs of other sizes or dtypes than the model was compiled for; too little memory; those of the driver.
    pub fn run(&self, inputs: &[Value]) -> Result<Vec<Value>> {
        let given: Vec<Given<'_>> = inputs.iter().map(Given::Value).collect();
        let outputs = self.issue(&given, Vec::new(), None)?;
        let host = |o: Output| match o {
            Output::Value(v) => Ok(v),
            Output::Device(t) => t.download().map(Value::Tensor),
        };
        outputs.into_iter().map(host).collect()
    }

    /// Runs the model. Inputs in memory of the host are copied to the device; outputs stay there.
    ///
    /// With a stream of the caller's, all work is issued on it. The call returns before the work is done, unless inputs are in
    /// memory of the host; outputs belong to the work of that stream, and are dropped when work of no other uses them. Without
    /// one, what writes the inputs has to be done, and the outputs are when the call returns.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn call(&self, inputs: &[Argument], stream: Option<Stream>) -> Result<Vec<Output>> {
        let given: Vec<Given<'_>> = inputs.iter().map(Given::from).collect();
        self.issue(&given, Vec::new(), stream)
    }

    /// Runs the model into memory of the caller, of the host or of the device: a [`Value::None`] for outputs that are no tensors.
    /// Kernels write directly into memory of the device that starts at a multiple of 16 bytes and is laid out as the output
    /// is. A call with an output in memory of the host returns when its work is done.
    ///
    /// # Errors
    /// As [`Model::run`]; an input error for memory of another dtype or other sizes, and for memory of the device that is laid out
    /// otherwise.
    ///
    /// # Safety
    /// No element of the outputs' memory is that of another element, and nothing else uses it during the call's work.
    pub unsafe fn call_into(
        &self,
        inputs: &[Argument],
        outputs: &[Argument],
        stream: Option<Stream>,
    ) -> Result<()> {
        let signature = self.signature();
        if outputs.len() != signature.outputs.len() {
            return Err(Error::input(format!(
                "the model gives {} outputs, room is given for {}",
                signature.outputs.len(),
                outputs.len()
            )));
        }
        let given: Vec<Given<'_>> = inputs.iter().map(Given::from).collect();
        let into = (outputs.iter())
            .map(|o| match o {
                Argument::Device(t) => Some(t),
                Argument::Value(_) => None,
            })
            .collect();
        let results = self.issue(&given, into, stream)?;
        for (k, (result, place)) in results.iter().zip(outputs).enumerate() {
            let to = match (result, place) {
                (Output::Device(t), Argument::Value(Value::Tensor(to))) => copy_out(t, to),
                (Output::Device(_), Argument::Value(_)) => Err(Error::input("no memory is given")),
                (Output::Device(_), Argument::Device(_)) | (Output::Value(_), _) => Ok(()),
            };
            to.map_err(|e| e.context(format!("output {k}")))?;
        }
        Ok(())
    }

    /// Issues a call, and waits for it where the caller cannot.
    fn issue(
        &self,
        inputs: &[Given<'_>],
        into: Vec<Option<&DeviceTensor>>,
        stream: Option<Stream>,
    ) -> Result<Vec<Output>> {
        let lowered = &self.executable.lowered;
        if lowered.complex.is_empty() {
            return self.issue_real(inputs, into, stream);
        }
        let pairs = complex::inputs(lowered, inputs)?;
        let given: Vec<Given<'_>> = (inputs.iter().zip(&pairs))
            .map(|(given, pairs)| pairs.as_ref().map_or(*given, Given::from))
            .collect();
        let memory = (into.iter().enumerate())
            .map(|(at, t)| t.map(|t| complex::into(lowered, at, t)).transpose())
            .collect::<Result<Vec<_>>>()?;
        let into = memory.iter().map(Option::as_ref).collect();
        complex::outputs(lowered, self.issue_real(&given, into, stream)?)
    }

    /// Issues a call whose tensors are as the program sees them.
    fn issue_real(
        &self,
        inputs: &[Given<'_>],
        into: Vec<Option<&DeviceTensor>>,
        stream: Option<Stream>,
    ) -> Result<Vec<Output>> {
        let _entered = self.enter()?;
        // A swap waits for calls that write the model's buffers, or it would lose their writes.
        let state = self.writes_state().then(|| lock(&self.state));
        let set = lock(&self.active).clone();
        let parts = Parts {
            executable: &self.executable,
            set: &set,
            copies_strides: self.hosts.memory.copies_strides(),
            is_body: false,
            device: self.device,
            stream,
        };
        let host = self.hosts.take(stream)?;
        let work = crate::host::Host::stream(&*host);
        if let Some(last) = &state {
            last.wait(work)?;
        }
        if self.executable.lowered.reads_data() && self.hosts.driver.is_capturing(work)? {
            return Err(Error::unsupported(
                "the caller captures a stream, and the model has the host read data during a call",
            ));
        }
        // What others capture is to be made of launches, not of loading kernels.
        let first = self.builder.as_ref().filter(|b| !b.has_run());
        if first.is_some() && self.hosts.driver.is_capturing(work)? {
            return Err(Error::unsupported(
                "the caller captures a stream, and the first call of the model waits for kernels that are built: call it once before",
            ));
        }
        let mut call = CallState::new(parts, inputs, into)?;
        self.order_after(inputs, stream, work)?;
        let done = self.run_call(&host, inputs, &mut call, work);
        if let Some(last) = &state {
            last.record(work)?;
        }
        drop(state);
        // After an error too: the driver may still read the caller's memory.
        if stream.is_none() || call.waits {
            self.hosts.driver.synchronize(work)?;
        }
        done?;
        if let Some(builder) = first {
            builder.note_run();
        }
        for (to, from) in &call.to_host {
            copy_out(from, to)?;
        }
        if stream.is_none() {
            for o in &mut call.outputs {
                if let Output::Device(t) = o {
                    t.stream = None;
                }
            }
        }
        Ok(call.outputs)
    }

    /// Runs a call by a captured one if there is one, else by its steps.
    fn run_call<'c>(
        &self,
        host: &Process,
        inputs: &[Given<'c>],
        call: &mut CallState<'c>,
        work: Stream,
    ) -> Result<()> {
        let Some(graphs) = &self.graphs else {
            return self
                .executable
                .engine
                .run(host, &self.executable.lowered.program, call);
        };
        let key = Key {
            symbols: call.symbols.clone(),
            set: call.parts().set.addresses(),
        };
        // What is captured is to be made of launches, not of loading kernels that are being built, or of choosing them.
        let is_building = self.builder.as_ref().is_some_and(|b| !b.has_run());
        if is_building || self.hosts.driver.is_capturing(work)? {
            return self
                .executable
                .engine
                .run(host, &self.executable.lowered.program, call);
        }
        let captured = match graphs.find(&key, self.concurrent()) {
            Found::New => {
                return self
                    .executable
                    .engine
                    .run(host, &self.executable.lowered.program, call);
            }
            Found::Captured(c) => *c,
            Found::Familiar => {
                let made = self.capture(key.clone(), inputs, call);
                made.inspect_err(|_| graphs.forget(&key))?
            }
        };
        let issued = captured.issue(host, call, work);
        if issued.is_err() {
            graphs.forget(&key);
            return issued;
        }
        graphs.give(captured);
        Ok(())
    }

    /// Captures a call of these sizes. Nothing runs.
    fn capture<'c>(
        &self,
        key: Key,
        inputs: &[Given<'c>],
        call: &CallState<'c>,
    ) -> Result<Captured> {
        let host = self.hosts.apart()?;
        let fixed = call.fixed_inputs(&host)?;
        let given: Vec<Given<'_>> = (inputs.iter().zip(&fixed))
            .map(|(given, fixed)| fixed.as_ref().map_or(*given, Given::Device))
            .collect();
        let mut inner = CallState::new(call.parts(), &given, Vec::new())?;
        let driver = &self.hosts.driver;
        let stream = crate::host::Host::stream(&host);
        // SAFETY of what is recorded: all memory is the captured call's, or the weights' of its key.
        let recording = driver.record(stream, || {
            self.executable
                .engine
                .run(&host, &self.executable.lowered.program, &mut inner)
        })?;
        if inner.waits {
            return Err(Error::internal("a captured call that reads the host"));
        }
        let outputs = std::mem::take(&mut inner.outputs);
        drop(inner);
        drop(given);
        Ok(Captured {
            key,
            recording,
            outputs,
            done: driver.marker()?,
            inputs: fixed,
            _host: host,
        })
    }

    /// Replaces weights of the inactive set, by copies. The set starts as the active one, and further updates add to it until
    /// [`Model::swap_weights`] makes it active. Calls go on meanwhile. The memory of two sets is needed.
    ///
    /// # Errors
    /// An input error that names the weight, for a name that the model does not have, another dtype or other sizes, and with
    /// [`Names::All`] for a name that is missing. The sets are unchanged then, and so they are for too little memory.
    pub fn update_weights(&self, new: &[(&str, NewWeight<'_>)], names: Names) -> Result<()> {
        self.update(Set::Inactive, new, names)
    }

    /// Replaces weights of a set. New calls see a change of the active set at once, calls in flight finish on the old weights.
    /// The other set is unchanged.
    ///
    /// # Errors
    /// Those of [`Model::update_weights`].
    pub fn update(&self, which: Set, new: &[(&str, NewWeight<'_>)], names: Names) -> Result<()> {
        let split = SplitWeights::of(new);
        let new = &split.weights(new)[..];
        let given = self.check_new(new, names)?;
        let _entered = self.enter()?;
        let mut sets = lock(&self.sets);
        let set = self.new_set(&mut sets, which, new, &given)?;
        let mut next = Next { set, given };
        match which {
            Set::Active => self.activate(&mut sets, next),
            Set::Inactive => {
                if let Some(before) = sets.next.take() {
                    next.given.extend(before.given);
                    sets.spare = Some(Arc::new(before.set));
                }
                sets.next = Some(next);
                Ok(())
            }
        }
    }

    /// Compares new weights with what the model takes, and returns their names.
    fn check_new(&self, new: &[(&str, NewWeight<'_>)], names: Names) -> Result<BTreeSet<String>> {
        let given: Vec<_> = (new.iter())
            .map(|(name, w)| match w {
                NewWeight::Host(v) => (*name, v.dtype, v.sizes),
                NewWeight::Device(t) | NewWeight::Shared(t) => (*name, t.dtype, t.sizes.as_slice()),
            })
            .collect();
        check_update(&self.weights(), &given, names)?;
        for (name, w) in new {
            if let NewWeight::Device(t) | NewWeight::Shared(t) = w
                && t.device != self.device
            {
                return Err(Error::input(format!(
                    "the weight `{name}` is in the memory of `{}`, the model is on `{}`",
                    devices::name(t.device),
                    devices::name(self.device)
                )));
            }
        }
        Ok(given.iter().map(|g| g.0.to_string()).collect())
    }

    /// Makes a set that has new weights, and all others of the set that is updated.
    fn new_set(
        &self,
        sets: &mut Sets,
        which: Set,
        new: &[(&str, NewWeight<'_>)],
        given: &BTreeSet<String>,
    ) -> Result<WeightSet> {
        let host = self.hosts.take(None)?;
        let stream = crate::host::Host::stream(&*host);
        let driver = &self.hosts.driver;
        let values = new.iter().filter_map(|(_, w)| match w {
            NewWeight::Device(t) | NewWeight::Shared(t) => Some(Given::Device(t)),
            NewWeight::Host(_) => None,
        });
        self.order_after(&values.collect::<Vec<_>>(), None, stream)?;
        driver.synchronize(stream)?;
        let mut set = self.blank(sets)?;
        let active = lock(&self.active).clone();
        let next = sets.next.as_ref().filter(|_| which == Set::Inactive);
        let base = next.map_or(&*active, |n| &n.set);
        let kept = |e: &Entry| !given.contains(&e.name);
        set.copy_from(&self.executable.plan, base, stream, &kept)?;
        for (name, w) in new {
            let Some(e) = self.executable.plan.entry(name) else {
                continue;
            };
            match w {
                NewWeight::Host(v) => set.write_host(e, v)?,
                NewWeight::Device(t) => set.write_device(e, t, stream)?,
                NewWeight::Shared(t) => set.share(e, t)?,
            }
        }
        driver.synchronize(stream)?;
        Ok(set)
    }

    /// Returns a set that nothing reads: that of an earlier swap, if its calls are over, else a new one.
    fn blank(&self, sets: &mut Sets) -> Result<WeightSet> {
        if let Some(mut spare) = sets.spare.take().and_then(|s| Arc::try_unwrap(s).ok()) {
            // Work that calls issued may still read it.
            self.hosts.driver.synchronize_all()?;
            spare.clear_shared();
            return Ok(spare);
        }
        let on = (&self.hosts.driver, self.hosts.context);
        WeightSet::new(&self.executable.plan, on, &self.hosts.memory)
    }

    /// Makes the inactive set the active one. Calls that have begun finish on the old set; later ones run on the new one.
    /// Buffers that calls write keep their contents unless an update named them.
    ///
    /// # Errors
    /// An input error where no update came since the last swap; those of the driver.
    pub fn swap_weights(&self) -> Result<()> {
        let _entered = self.enter()?;
        let mut sets = lock(&self.sets);
        let next = sets.next.take().ok_or_else(|| {
            Error::input("there are no new weights to swap in: update them first")
        })?;
        self.activate(&mut sets, next)
    }

    /// Makes a set the active one. Buffers that calls write keep their contents unless the set was given others.
    fn activate(&self, sets: &mut Sets, mut next: Next) -> Result<()> {
        let state = self.writes_state().then(|| lock(&self.state));
        if let Some(last) = &state {
            let host = self.hosts.take(None)?;
            let stream = crate::host::Host::stream(&*host);
            last.wait(stream)?;
            let kept = |e: &Entry| e.written && !next.given.contains(&e.name);
            let active = lock(&self.active).clone();
            (next.set).copy_from(&self.executable.plan, &active, stream, &kept)?;
            self.hosts.driver.synchronize(stream)?;
        }
        let old = std::mem::replace(&mut *lock(&self.active), Arc::new(next.set));
        sets.spare = Some(old);
        drop(state);
        Ok(())
    }

    /// Returns an error where there is no inactive set. Nothing is computed of weights before calls, so that weights in memory of
    /// others which their owners have written are read as they are.
    ///
    /// # Errors
    /// An input error where there is no inactive set.
    pub fn recompute(&self, which: Set) -> Result<()> {
        if which == Set::Inactive && lock(&self.sets).next.is_none() {
            return Err(Error::input(
                "there is no inactive set of weights: update it first",
            ));
        }
        Ok(())
    }

    /// Forgets the inactive set.
    pub fn discard_update(&self) {
        let mut sets = lock(&self.sets);
        if let Some(next) = sets.next.take() {
            sets.spare = Some(Arc::new(next.set));
        }
    }

    /// Copies the current value of a weight of the active set to the host; `None` for a name that the model does not have.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub fn weight(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(e) = self.executable.plan.entry(name) else {
            return Ok(None);
        };
        let _entered = self.enter()?;
        let state = self.writes_state().then(|| lock(&self.state));
        let set = lock(&self.active).clone();
        if state.is_some() {
            self.hosts.driver.synchronize_all()?;
        }
        let t = DeviceTensor {
            dtype: e.dtype,
            sizes: e.shape.sizes.to_vec(),
            strides: e.shape.strides.to_vec(),
            address: set.address(e),
            device: self.device,
            read_only: true,
            stream: None,
            owner: Arc::new(()),
        };
        let dense = inrush_runtime::tensor::contiguous_strides(&t.sizes);
        let found = t.download()?;
        drop(state);
        match found.lies_as(&dense) {
            true => Ok(Some(found)),
            false => found.with_strides(&dense).map(Some),
        }
    }

    /// Sets the seed of the next call's random numbers. False when the model draws none.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn set_seed(&self, seed: i64) -> Result<bool> {
        let Some(e) = self.executable.plan.entry(SEED) else {
            return Ok(false);
        };
        let _entered = self.enter()?;
        let _state = lock(&self.state);
        // Calls that were issued read the seed before.
        self.hosts.driver.synchronize_all()?;
        lock(&self.active).write_seed(e, seed)?;
        Ok(true)
    }
}

impl Deref for Model {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Without the context the process is at its end.
        if let Ok(_entered) = self.enter() {
            // SAFETY: nothing uses the field after this.
            unsafe { ManuallyDrop::drop(&mut self.loaded) };
        }
    }
}

/// Copies a tensor of the device into one of the host.
fn copy_out(from: &DeviceTensor, to: &Tensor) -> Result<()> {
    if to.dtype != from.dtype || to.sizes != from.sizes {
        return Err(Error::input(format!(
            "it is {} of sizes {:?}, the memory given is {} of sizes {:?}",
            from.dtype.torch_name(),
            from.sizes,
            to.dtype.torch_name(),
            to.sizes
        )));
    }
    let t = from.download()?;
    if t.numel() > 0 {
        // SAFETY: both are of these sizes and this dtype; the caller gave the memory to be written.
        unsafe {
            copy_strided(
                t.data(),
                &t.strides,
                to.data(),
                &to.strides,
                &t.sizes,
                t.dtype.size(),
            );
        }
    }
    Ok(())
}

/// Returns an empty list of captured calls.
///
/// # Errors
/// An unsupported error that says why a program cannot be captured.
fn capturable(program: &HostProgram) -> Result<Graphs> {
    match graphs::refusal(program) {
        None => Ok(Graphs::default()),
        Some(why) => Err(Error::unsupported(format!(
            "graphs: the calls of this model cannot be captured: {why}"
        ))),
    }
}
