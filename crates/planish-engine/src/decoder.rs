//! One decoder for every architecture of the table: buffers, the recorded steps, and feeding tokens through them.

pub mod watch;

use std::time::Duration;

use half::f16;
use planish_device::{Init, Launch, Sequence, Slice};
use planish_kernels::cpu::rope::RopeTable;
use planish_kernels::op::Machine;
use planish_kernels::ops::{self, glu::Gate};
use planish_kernels::step;
use planish_kernels::weight::{Activation, Activations, Int8};
use planish_tune::store::Frozen;

use crate::arch::{self, Hyper};
use crate::error::{Error, Result};
use crate::identity;
use crate::plan::{self, Beyond, Calls, Choices, Chosen, Entry, Label};
use crate::weights::{Layer, Weights};

/// A step that takes longer than this has hung, wherever it runs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// Element type of the key/value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
}

impl KvType {
    /// `f16` or `f32`.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F16 => size_of::<f16>(),
            KvType::F32 => size_of::<f32>(),
        }
    }
}

/// What a decoder is built with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Positions of the key/value cache.
    pub context: usize,
    /// Most tokens of one prefill step.
    pub chunk: usize,
    /// Numerics class.
    pub activations: Activations,
    /// Key/value cache type.
    pub kv: KvType,
    /// Also record a prefill step that gives logits after every token, for verification.
    pub all_logits: bool,
}

/// Which logits a step computes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Last,
    All,
}

/// Which part of the host's work for a token is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// What the token differs in from others is written.
    Prepared,
    /// The step is handed over.
    Submitted,
    /// The step has ended.
    Waited,
    /// The logits are read.
    Read,
}

/// A recorded step for at most `batch` tokens.
struct Recorded {
    batch: usize,
    sequence: Sequence,
}

/// A model ready to run: weights, cache, scratch and recorded steps.
pub struct Decoder<'a> {
    machine: Machine<'a>,
    hyper: &'a Hyper,
    options: Options,
    buffers: Buffers,
    tables: Vec<RopeTable>,
    decode: Recorded,
    prefill: Recorded,
    every: Option<Recorded>,
    /// Worklist of a decode step.
    pub decode_plan: Vec<Entry>,
    /// Worklist of a prefill step.
    pub prefill_plan: Vec<Entry>,
    frozen: Frozen,
    position: usize,
    host: Host,
    logits: Vec<f32>,
}

/// Host memory of a step, made once: nothing is allocated between two tokens.
struct Host {
    /// Bytes on their way to or from the device.
    bytes: Vec<u8>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Host {
    fn new(hyper: &Hyper, tables: &[RopeTable], chunk: usize) -> Host {
        let row = chunk * tables.iter().map(RopeTable::row_len).max().unwrap_or(0);
        let bytes = step::bytes(chunk).max(4 * row).max(4 * hyper.vocab);
        Host { bytes: Vec::with_capacity(bytes), cos: Vec::with_capacity(row), sin: Vec::with_capacity(row) }
    }

    fn read_f32(&mut self, machine: Machine<'_>, from: &Slice, to: &mut [f32]) -> Result<()> {
        self.bytes.clear();
        self.bytes.resize(to.len() * 4, 0);
        machine.backend.read(from, &mut self.bytes)?;
        for (v, b) in to.iter_mut().zip(self.bytes.chunks_exact(4)) {
            *v = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }
        Ok(())
    }
}

/// A decoder before its steps are recorded: memory, calls, and what is chosen for each.
pub struct Planned<'a> {
    machine: Machine<'a>,
    hyper: &'a Hyper,
    options: Options,
    buffers: Buffers,
    tables: Vec<RopeTable>,
    decode: Calls,
    prefill: Calls,
    every: Option<Calls>,
    /// Worklist of a decode step.
    pub decode_plan: Vec<Entry>,
    /// Worklist of a prefill step.
    pub prefill_plan: Vec<Entry>,
    /// What the step of verification has beyond both.
    beyond: Vec<Entry>,
}

impl<'a> Planned<'a> {
    /// Allocates cache and scratch, lists the calls, and asks `choices` once for every op at every shape.
    pub fn new(
        machine: Machine<'a>,
        hyper: &'a Hyper,
        weights: &Weights,
        options: Options,
        choices: &dyn Choices,
    ) -> Result<Self> {
        check_context(hyper, options.context)?;
        if options.chunk == 0 {
            return Err(Error::request("a prefill chunk of 0 tokens was asked for"));
        }
        let buffers = Buffers::new(&machine, hyper, weights, &options)?;
        let graph = Graph { hyper, weights, buffers: &buffers, options: &options };
        let (decode, prefill) = (graph.calls(1, Head::Last), graph.calls(options.chunk, Head::Last));
        let every = options.all_logits.then(|| graph.calls(options.chunk, Head::All));
        let (decode_plan, prefill_plan) = (decode.plan(&machine, choices)?, prefill.plan(&machine, choices)?);
        let mut beyond = every.as_ref().map_or(Ok(Vec::new()), |calls| calls.plan(&machine, &Beyond(choices)))?;
        let known =
            |e: &Entry| decode_plan.iter().chain(&prefill_plan).any(|k| k.op.name == e.op.name && k.shape == e.shape);
        beyond.retain(|e| !known(e));
        let tables = weights.tables.clone();
        Ok(Planned {
            machine,
            hyper,
            options,
            buffers,
            tables,
            decode,
            prefill,
            every,
            decode_plan,
            prefill_plan,
            beyond,
        })
    }

    /// What was chosen, as a set that cannot change any more.
    pub fn frozen(&self) -> Result<Frozen> {
        plan::freeze(self.decode_plan.iter().chain(&self.prefill_plan), &self.machine)
    }

    /// Records the steps with `frozen`: its own set, or one that several processes agreed on.
    ///
    /// Only a frozen set is taken, so that nothing can be chosen, looked up or tuned while sequences are captured:
    /// ```
    /// # use planish_engine::decoder::{Decoder, Planned};
    /// # use planish_tune::store::Frozen;
    /// fn record<'a>(planned: Planned<'a>, set: &Frozen) -> planish_engine::Result<Decoder<'a>> {
    ///     planned.record(set)
    /// }
    /// ```
    /// Choices that may still change are refused by the compiler:
    /// ```compile_fail
    /// # use planish_engine::decoder::{Decoder, Planned};
    /// # use planish_engine::plan::Choices;
    /// fn record<'a>(planned: Planned<'a>, set: &dyn Choices) -> planish_engine::Result<Decoder<'a>> {
    ///     planned.record(set)
    /// }
    /// ```
    ///
    /// # Errors
    /// When the set lacks an op of this plan at its shape, or has a configuration for it that is not legal.
    pub fn record(mut self, frozen: &Frozen) -> Result<Decoder<'a>> {
        let machine = self.machine;
        let record = |batch, calls: &Calls, frozen: &Frozen| -> Result<Recorded> {
            Ok(Recorded { batch, sequence: machine.backend.record(&calls.launches(&machine, frozen)?)? })
        };
        let decode = record(1, &self.decode, frozen)?;
        let prefill = record(self.options.chunk, &self.prefill, frozen)?;
        let whole = frozen.with(plan::freeze(&self.beyond, &machine)?.iter().cloned());
        let every = self.every.as_ref().map(|calls| record(self.options.chunk, calls, &whole)).transpose()?;
        for entry in self.decode_plan.iter_mut().chain(&mut self.prefill_plan).filter(|e| e.tuned) {
            let locked = frozen.get(&identity::key(entry.op, &entry.shape)?).expect("it was recorded with it");
            if locked.config != entry.chosen.config {
                entry.chosen = Chosen { config: locked.config.clone(), tier: "locked" };
            }
        }
        let Planned { hyper, options, buffers, tables, decode_plan, prefill_plan, .. } = self;
        let (host, logits) = (Host::new(hyper, &tables, options.chunk), vec![0.0; hyper.vocab]);
        Ok(Decoder {
            machine,
            hyper,
            options,
            buffers,
            tables,
            decode,
            prefill,
            every,
            decode_plan,
            prefill_plan,
            frozen: frozen.clone(),
            position: 0,
            host,
            logits,
        })
    }
}

impl<'a> Decoder<'a> {
    /// Allocates cache and scratch, plans, freezes what `choices` gave, and records the steps.
    pub fn new(
        machine: Machine<'a>,
        hyper: &'a Hyper,
        weights: &Weights,
        options: Options,
        choices: &dyn Choices,
    ) -> Result<Self> {
        let planned = Planned::new(machine, hyper, weights, options, choices)?;
        let frozen = planned.frozen()?;
        planned.record(&frozen)
    }

    /// What it was recorded with; equal digests launch equal configurations.
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// What it runs on.
    pub fn machine(&self) -> Machine<'a> {
        self.machine
    }

    /// Tokens in the cache.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Options it was built with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Instruction set of its kernels.
    pub fn isa(&self) -> planish_kernels::cpu::isa::Isa {
        self.machine.isa
    }

    /// Hyperparameters of the model.
    pub fn hyper(&self) -> &Hyper {
        self.hyper
    }

    /// Bytes of the key/value cache.
    pub fn kv_bytes(&self) -> usize {
        self.buffers.kv.iter().flatten().map(|s| s.len).sum()
    }

    /// Forgets all tokens after the first `position`.
    pub fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    /// Feeds `ids` and returns the logits after the last; one token goes through the decode step, more through prefill.
    ///
    /// Ids outside the vocabulary and more tokens than the cache has room for are refused, with nothing changed.
    pub fn feed(&mut self, ids: &[u32]) -> Result<&[f32]> {
        self.admit(ids)?;
        let mut rest = ids;
        while !rest.is_empty() {
            let n = rest.len().min(self.prefill.batch);
            self.prepare(&rest[..n])?;
            self.run(if n == 1 { &self.decode } else { &self.prefill })?;
            self.position += n;
            rest = &rest[n..];
        }
        let slice = self.buffers.logits.buffer.slice(self.buffers.logits.offset, self.hyper.vocab * 4)?;
        self.host.read_f32(self.machine, &slice, &mut self.logits)?;
        Ok(&self.logits)
    }

    /// Feeds `ids` as prefill and returns the logits after every one, `[ids.len()][vocab]`.
    pub fn feed_all(&mut self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        self.admit(ids)?;
        let mut all = Vec::new();
        for part in ids.chunks(self.options.chunk) {
            self.prepare(part)?;
            let step = self.every.as_ref().ok_or_else(|| {
                Error::request("logits after every token were asked of a decoder built without `all_logits`")
            })?;
            self.run(step)?;
            self.position += part.len();
            for row in 0..part.len() {
                let mut logits = vec![0.0; self.hyper.vocab];
                let at = self.buffers.logits.offset + row * self.hyper.vocab * 4;
                let slice = self.buffers.logits.buffer.slice(at, self.hyper.vocab * 4)?;
                self.host.read_f32(self.machine, &slice, &mut logits)?;
                all.push(logits);
            }
        }
        Ok(all)
    }

    /// The launches of the decode step with what each is part of, for those who time them; `weights` are those that the
    /// decoder was built with.
    pub fn decode_step(&self, weights: &Weights) -> Result<(Vec<Launch>, Vec<Label>)> {
        let graph = Graph { hyper: self.hyper, weights, buffers: &self.buffers, options: &self.options };
        graph.calls(1, Head::Last).labelled(&self.machine, &self.frozen)
    }

    /// Feeds one token through `sequence`, a recording of all launches of `decode_step`, and says when each part of the
    /// host's work is over.
    pub fn feed_by(&mut self, id: u32, sequence: &Sequence, over: &mut dyn FnMut(Over)) -> Result<&[f32]> {
        self.admit(&[id])?;
        self.prepare(&[id])?;
        over(Over::Prepared);
        let token = self.machine.backend.submit(sequence)?;
        over(Over::Submitted);
        self.machine.backend.wait(token, DEADLINE)?;
        over(Over::Waited);
        self.position += 1;
        let slice = self.buffers.logits.buffer.slice(self.buffers.logits.offset, self.hyper.vocab * 4)?;
        self.host.read_f32(self.machine, &slice, &mut self.logits)?;
        over(Over::Read);
        Ok(&self.logits)
    }

    /// Refuses ids outside the vocabulary and more of them than the cache has room for.
    pub fn admit(&self, ids: &[u32]) -> Result<()> {
        admit(ids, self.hyper.vocab, self.position..self.options.context)
    }

    /// Writes what the step of `ids` differs in from others: ids, position and rotary angles.
    fn prepare(&mut self, ids: &[u32]) -> Result<()> {
        let Host { bytes, cos, sin } = &mut self.host;
        step::encode_into(ids, self.position as u32, bytes);
        write(self.machine, &self.buffers.step, bytes)?;
        for (table, slices) in self.tables.iter().zip(&self.buffers.tables) {
            let n = ids.len() * table.row_len();
            cos.resize(n, 0.0);
            sin.resize(n, 0.0);
            table.fill(self.position, cos, sin);
            for (values, slice) in [&*cos, &*sin].into_iter().zip(slices) {
                bytes.clear();
                bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
                write(self.machine, slice, bytes)?;
            }
        }
        Ok(())
    }

    fn run(&self, step: &Recorded) -> Result<()> {
        let backend = self.machine.backend;
        let token = backend.submit(&step.sequence)?;
        Ok(backend.wait(token, DEADLINE)?)
    }

    /// The keys and values of the first `position` slots of a layer, as bytes, for tests of bit equality.
    pub fn kv_snapshot(&self, layer: usize) -> Result<(Vec<u8>, Vec<u8>)> {
        let [k, v] = &self.buffers.kv[layer];
        let read = |s: &Slice| -> Result<Vec<u8>> {
            let mut bytes = vec![0; s.len];
            self.machine.backend.read(s, &mut bytes)?;
            Ok(bytes)
        };
        Ok((read(k)?, read(v)?))
    }
}

/// Refuses a cache of no position, or of more than the model was made for.
pub(crate) fn check_context(hyper: &Hyper, context: usize) -> Result<()> {
    if context == 0 || context > hyper.context {
        let message = format!("a context of {context} was asked for; the model was made for {}", hyper.context);
        return Err(Error::request(message).with_hint(format!("use --context {} or less", hyper.context)));
    }
    Ok(())
}

/// Refuses no ids, ids outside the vocabulary, and more of them than there are free positions.
pub(crate) fn admit(ids: &[u32], vocab: usize, free: std::ops::Range<usize>) -> Result<()> {
    if ids.is_empty() {
        return Err(Error::request("no token was given"));
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(Error::request(format!("token {id} is outside the vocabulary of {vocab}")));
    }
    if ids.len() > free.len() {
        let (wanted, taken, context) = (ids.len(), free.start, free.end);
        let message = format!("{wanted} tokens do not fit: {taken} of {context} positions are taken");
        return Err(Error::request(message).with_hint("use a larger --context"));
    }
    Ok(())
}

/// Writes `bytes` to the start of `to`.
fn write(machine: Machine<'_>, to: &Slice, bytes: &[u8]) -> Result<()> {
    Ok(machine.backend.write(&to.buffer.slice(to.offset, bytes.len())?, bytes)?)
}

/// Scratch and cache of a decoder.
struct Buffers {
    step: Slice,
    x: Slice,
    y: Slice,
    a: Activation,
    o: Activation,
    b: Activation,
    last: Activation,
    q: Slice,
    k: Slice,
    v: Slice,
    gate: Slice,
    up: Slice,
    tables: Vec<[Slice; 2]>,
    partial: Slice,
    kv: Vec<[Slice; 2]>,
    logits: Slice,
}

impl Buffers {
    fn new(machine: &Machine<'_>, hyper: &Hyper, weights: &Weights, options: &Options) -> Result<Self> {
        let batch = options.chunk;
        let alloc = |bytes: usize| -> Result<Slice> { Ok(machine.backend.alloc(bytes, Init::Zero)?.all()) };
        let rows = |cols: usize| alloc(batch * cols * 4);
        let forms = weights.forms(options.activations);
        let activation = |batch: usize, cols: usize| -> Result<Activation> {
            let f32 = forms.f32.then(|| alloc(batch * cols * 4)).transpose()?;
            let blocks =
                || -> Result<Int8> { Ok(Int8 { codes: alloc(batch * cols)?, meta: alloc(batch * cols / 2)? }) };
            let int8 = if forms.int8 && cols.is_multiple_of(32) { Some(blocks()?) } else { None };
            Ok(Activation { cols, f32, int8 })
        };
        let (wide, kv_cols) = (hyper.heads * hyper.head_dim, hyper.kv_heads * hyper.head_dim);
        let (k, v) = ops::attention::cache_bytes(hyper.kv_heads, hyper.head_dim, options.context, options.kv.name());
        let cache = |_| -> Result<[Slice; 2]> { Ok([alloc(k)?, alloc(v)?]) };
        let kv = (0..hyper.layers).map(cache).collect::<Result<_>>().map_err(|e| {
            let bytes = hyper.layers as u128 * (k as u128 + v as u128);
            e.context(format!("a cache of {} tokens, {bytes} bytes", options.context))
                .with_hint("use a smaller --context")
        })?;
        let table = |t: &RopeTable| -> Result<[Slice; 2]> { Ok([rows(t.row_len())?, rows(t.row_len())?]) };
        let partial = ops::attention::scratch_bytes(hyper.heads, hyper.kv_heads, hyper.head_dim, options.context);
        let logit_rows = if options.all_logits { batch } else { 1 };
        Ok(Buffers {
            step: alloc(step::bytes(batch))?,
            x: rows(hyper.hidden)?,
            y: rows(hyper.hidden)?,
            a: activation(batch, hyper.hidden)?,
            o: activation(batch, wide)?,
            b: activation(batch, hyper.ffn)?,
            last: activation(1, hyper.hidden)?,
            q: rows(wide)?,
            k: rows(kv_cols)?,
            v: rows(kv_cols)?,
            gate: rows(hyper.ffn)?,
            up: rows(hyper.ffn)?,
            tables: weights.tables.iter().map(table).collect::<Result<_>>()?,
            partial: alloc(partial.max(batch * wide * 4))?,
            kv,
            logits: alloc(logit_rows * hyper.vocab * 4)?,
        })
    }
}

fn gate(activation: arch::Activation) -> Gate {
    match activation {
        arch::Activation::Silu => Gate::Silu,
        arch::Activation::GeluTanh => Gate::Gelu,
    }
}

/// The calls of a step.
struct Graph<'g> {
    hyper: &'g Hyper,
    weights: &'g Weights,
    buffers: &'g Buffers,
    options: &'g Options,
}

impl Graph<'_> {
    /// The calls of a step for at most `batch` tokens.
    fn calls(&self, batch: usize, head: Head) -> Calls {
        let mut calls = Calls::default();
        self.step(&mut calls, batch, head);
        calls
    }

    fn step(&self, emit: &mut Calls, batch: usize, head: Head) {
        let (hyper, w, b) = (self.hyper, self.weights, self.buffers);
        (0..=w.layers.len()).for_each(|part| self.part(emit, batch, part));
        let norm = ops::norm::Norm { weight: &w.output_norm, eps: hyper.eps, batch, last: head == Head::Last };
        let (activation, rows) = match head {
            Head::Last => (&b.last, 1),
            Head::All => (&b.a, batch),
        };
        emit.push("output_norm", ops::norm::call(&norm, &b.x, activation, &b.step));
        let logits = ops::matmul::call(&w.head, self.options.activations, rows, activation, &b.logits, &b.step);
        emit.push("head", logits);
        if let Some(cap) = hyper.logit_softcap {
            emit.push("softcap", ops::softcap::call(&b.logits, &b.step, rows, hyper.vocab, cap));
        }
    }

    /// The embedding as part 0, and each layer, counted from 1.
    fn part(&self, emit: &mut Calls, batch: usize, part: usize) {
        let (w, b) = (self.weights, self.buffers);
        let Some(index) = part.checked_sub(1) else {
            emit.push("embed", ops::embed::call(&w.embedding, &b.step, &b.x, batch, self.hyper.embedding_scale));
            return;
        };
        self.attention(emit, batch, index, &w.layers[index]);
        self.feed_forward(emit, batch, &w.layers[index]);
    }

    fn attention(&self, emit: &mut Calls, batch: usize, index: usize, layer: &Layer) {
        let (hyper, b, class) = (self.hyper, self.buffers, self.options.activations);
        let norm = ops::norm::Norm { weight: &layer.attn_norm, eps: hyper.eps, batch, last: false };
        emit.push("attn_norm", ops::norm::call(&norm, &b.x, &b.a, &b.step));
        let project = |w, out: &Slice| ops::matmul::call(w, class, batch, &b.a, out, &b.step);
        emit.push("q", project(&layer.q, &b.q).with_bias(layer.q_bias.as_ref()));
        emit.beside("k", project(&layer.k, &b.k).with_bias(layer.k_bias.as_ref()));
        emit.beside("v", project(&layer.v, &b.v).with_bias(layer.v_bias.as_ref()));
        let [keys, values] = &b.kv[index];
        let heads = ops::attention::Heads {
            heads: hyper.heads,
            kv_heads: hyper.kv_heads,
            head_dim: hyper.head_dim,
            kv: self.options.kv.name(),
            context: self.options.context,
            batch,
        };
        let rope = ops::rope::Rope {
            heads: &heads,
            dims: hyper.rope_dims,
            pairs: self.weights.tables[layer.table].pairs(),
            eps: hyper.eps,
            norms: layer.head_norms.as_ref().map(|[q, k]| [q, k]),
            table: b.tables[layer.table].each_ref(),
        };
        emit.push("rope", ops::rope::call(&rope, [&b.q, &b.k, &b.v], [keys, values], &b.step));
        let mask = ops::attention::Mask { window: layer.window, softcap: hyper.attn_softcap, scale: hyper.attn_scale };
        emit.push("attention", ops::attention::call(&heads, &mask, [&b.q, keys, values], &b.o, &b.partial, &b.step));
        self.add_back(emit, batch, ("out", &layer.o, &b.o), ("attn_post_norm", layer.attn_post_norm.as_ref()));
    }

    fn feed_forward(&self, emit: &mut Calls, batch: usize, layer: &Layer) {
        let (hyper, b, class) = (self.hyper, self.buffers, self.options.activations);
        let norm = ops::norm::Norm { weight: &layer.ffn_norm, eps: hyper.eps, batch, last: false };
        emit.push("ffn_norm", ops::norm::call(&norm, &b.x, &b.a, &b.step));
        emit.push("gate", ops::matmul::call(&layer.gate, class, batch, &b.a, &b.gate, &b.step));
        emit.beside("up", ops::matmul::call(&layer.up, class, batch, &b.a, &b.up, &b.step));
        emit.push("glu", ops::glu::call(gate(hyper.activation), batch, [&b.gate, &b.up], &b.b, &b.step));
        self.add_back(emit, batch, ("down", &layer.down, &b.b), ("ffn_post_norm", layer.ffn_post_norm.as_ref()));
    }

    /// `x += W a`, through a norm where the architecture has one behind the block; each with what it is for.
    fn add_back(
        &self,
        emit: &mut Calls,
        batch: usize,
        (role, weight, from): (&'static str, &planish_kernels::weight::Weight, &Activation),
        (norm_role, post_norm): (&'static str, Option<&Slice>),
    ) {
        let (b, class) = (self.buffers, self.options.activations);
        match post_norm {
            None => emit.push(role, ops::matmul::call(weight, class, batch, from, &b.x, &b.step).adding()),
            Some(norm) => {
                emit.push(role, ops::matmul::call(weight, class, batch, from, &b.y, &b.step));
                emit.push(norm_role, ops::norm::add_call(norm, self.hyper.eps, batch, [&b.y, &b.x], &b.step));
            }
        }
    }
}
