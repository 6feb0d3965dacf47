//! The decoder on a GPU: memory, the recorded steps, feeding tokens, and drawing them on the device ahead of the host.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use planish_device::{Init, Launch, Sequence, Slice, Token};
use planish_kernels::gpu::decode::model::{HISTORY, Memory, Model, RING, STEP_WORDS, SYNC_WORDS};
use planish_kernels::gpu::decode::stamped::Stamped;
use planish_kernels::gpu::decode::{self, Draw, Sampler};
use planish_kernels::gpu::sample;
use planish_kernels::op::{Attrs, Machine, OpCall, Shape};
use planish_kernels::rope_table::RopeTable;
use planish_kernels::weight::Activations;
use planish_tune::store::Frozen;
use planish_tune::{Config, Space, Value};

use super::chunk::{self, Chunks};
use super::parts::{Part, freeze, model, parts};
use super::weights::Weights;
use crate::arch::Hyper;
use crate::decoder::DEADLINE;
use crate::error::{Error, Result};
use crate::generate::Flow;
use crate::identity::key;
use crate::plan::{Choices, Chosen};

/// Steps that are on the device before the host knows the token of the first of them, where nobody says otherwise.
pub const AHEAD: usize = 3;
/// Words of the step before its ring of drawn tokens.
const HEADER: usize = STEP_WORDS - RING;
/// Words of a draw's settings, as the sampler's kernel reads them.
const SETTINGS: usize = 18;
/// The parameter of the space that says how a step is handed over.
const PATH: &str = "PATH";

/// How a step is handed to the device; all of them give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One launch after the other.
    Launches,
    /// The same launches recorded as one graph.
    Graph,
    /// One launch a layer, with barriers of the grid inside.
    Layer,
    /// One launch a token.
    Token,
}

impl Route {
    /// Every route.
    pub const ALL: [Route; 4] = [Route::Launches, Route::Graph, Route::Layer, Route::Token];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Route::Launches => "launches",
            Route::Graph => "graph",
            Route::Layer => "layer",
            Route::Token => "token",
        }
    }

    /// The route of this name.
    pub fn from_name(name: &str) -> Option<Route> {
        Route::ALL.into_iter().find(|r| r.name() == name)
    }
}

/// What a decoder is built with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Positions of the key/value cache.
    pub context: usize,
    /// Numerics class.
    pub activations: Activations,
    /// How steps are handed over; none for what the configuration says.
    pub route: Option<Route>,
    /// Also record a step that draws by temperature and filters.
    pub sampled: bool,
    /// Steps that are on the device before the host knows the token of the first of them; 1 waits for each.
    pub ahead: usize,
    /// Tokens of a prompt that go through the model together; 0 for one after the other.
    pub chunk: usize,
}

/// What the host's thread did while tokens were drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Steps submitted.
    pub steps: u32,
    /// Handing them to the device.
    pub submitting: Duration,
    /// Waiting for tokens and reading them.
    pub waiting: Duration,
}

/// How a token is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// The likeliest, the first of equals.
    Likeliest,
    /// By temperature and filters; the words of `sample::settings`, whose step the device counts up.
    Settings([u32; SETTINGS]),
    /// The same with penalties.
    Penalised([u32; SETTINGS], Window),
}

/// What penalties look back on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Tokens that it holds, 1 to `HISTORY`; the device puts those in that it draws.
    pub room: usize,
    /// The tokens before the first draw; those that have room count, from the newest back.
    pub tokens: Vec<u32>,
}

impl Window {
    /// As the device reads it.
    fn words(&self) -> Result<Vec<u32>> {
        if !(1..=HISTORY).contains(&self.room) {
            let message = format!("penalties that look back on {} tokens: 1 to {HISTORY} on a GPU", self.room);
            return Err(Error::request(message));
        }
        let newest = &self.tokens[self.tokens.len().saturating_sub(self.room)..];
        let mut words = vec![newest.len() as u32, self.room as u32];
        words.extend(newest);
        Ok(words)
    }
}

/// A model ready to run on a GPU.
pub struct GpuDecoder<'a> {
    machine: Machine<'a>,
    hyper: &'a Hyper,
    options: Options,
    memory: Memory,
    settings: Slice,
    window: Slice,
    steps: Steps,
    chunks: Option<Chunks>,
    route: Route,
    parts: Vec<Part>,
    /// Of each part.
    chosen: Vec<Chosen>,
    frozen: Frozen,
    position: usize,
    flying: VecDeque<Token>,
    spent: Spent,
    bytes: Vec<u8>,
    logits: Vec<f32>,
}

/// The recorded steps.
struct Steps {
    /// Leaves logits and draws nothing.
    watch: Sequence,
    likeliest: Sequence,
    settings: Option<Sequence>,
    penalised: Option<Sequence>,
}

impl<'a> GpuDecoder<'a> {
    /// Allocates cache and scratch, compiles the kernels and records the steps.
    pub fn new(
        machine: Machine<'a>,
        hyper: &'a Hyper,
        weights: &Weights,
        options: Options,
        choices: &dyn Choices,
    ) -> Result<Self> {
        crate::decoder::check_context(hyper, options.context)?;
        if options.ahead == 0 || options.ahead > RING / 2 {
            return Err(Error::request(format!("{} steps ahead of the host: 1 to {}", options.ahead, RING / 2)));
        }
        let model = model(hyper, weights, &options);
        model.check().map_err(|e| Error::model(e).with_hint("run it with --device cpu"))?;
        let parts = parts(machine, hyper, weights, &options);
        let mut chosen = parts.iter().map(|part| part.chosen(choices)).collect::<Result<Vec<_>>>()?;
        let (route, config) = along(&parts[0].space, &chosen[0].config, options.route)?;
        let tier = if config == chosen[0].config { chosen[0].tier } else { "pinned" };
        chosen[0] = Chosen { config, tier };
        let frozen = freeze(&machine, parts.iter().zip(&chosen))?;
        // Whatever is captured is captured with what is frozen.
        let config = |part: &Part| -> Result<&Config> {
            Ok(&frozen.get(&key(part.op, &part.shape)?).expect("frozen above").config)
        };
        let memory = memory(machine, &model, weights)?;
        let settings = machine.backend.alloc(4 * SETTINGS, Init::Zero)?.all();
        let window = machine.backend.alloc(4 * (2 + HISTORY), Init::Zero)?.all();
        let record = |draw: &Draw| -> Result<Sequence> {
            let config = config(&parts[0])?;
            let launches = decode::step((&model, &weights.at), &memory, draw, config, &machine);
            let refused = |r| Error::request(format!("a step with {config}: {r}"));
            let launches = launches.map_err(refused)?;
            let backend = machine.backend;
            Ok(if route == Route::Graph { backend.record_graph(&launches)? } else { backend.record(&launches)? })
        };
        let sampled = |window: Option<&Slice>| -> Result<Option<Sequence>> {
            options.sampled.then(|| record(&sampler(machine, &memory, &settings, window)?)).transpose()
        };
        let steps = Steps {
            watch: record(&Draw::None)?,
            likeliest: record(&Draw::Greedy)?,
            settings: sampled(None)?,
            penalised: sampled(Some(&window))?,
        };
        let chunk = options.chunk.min(options.context);
        let chunks = |part| Chunks::new(machine, (&model, &weights.at), &memory, (chunk, config(part)?));
        let chunks = parts.get(1).map(chunks).transpose()?;
        let (flying, logits) = (VecDeque::with_capacity(options.ahead), vec![0.0; hyper.vocab]);
        let bytes = Vec::with_capacity(4 * hyper.vocab);
        Ok(GpuDecoder {
            machine,
            hyper,
            options,
            memory,
            settings,
            window,
            steps,
            chunks,
            route,
            parts,
            chosen,
            frozen,
            position: 0,
            flying,
            spent: Spent::default(),
            bytes,
            logits,
        })
    }

    /// Tokens in the cache.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Options it was built with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Hyperparameters of the model.
    pub fn hyper(&self) -> &Hyper {
        self.hyper
    }

    /// How its steps are handed over.
    pub fn route(&self) -> Route {
        self.route
    }

    /// The shape under which its configuration is stored.
    pub fn shape(&self) -> &Shape {
        &self.parts[0].shape
    }

    /// The configuration of its steps and where it comes from.
    pub fn chosen(&self) -> &Chosen {
        &self.chosen[0]
    }

    /// Every part of it that has a configuration, with that.
    pub fn parts(&self) -> impl Iterator<Item = (&Part, &Chosen)> {
        self.parts.iter().zip(&self.chosen)
    }

    /// What it was recorded with; equal digests launch equal configurations.
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// Launches of one step.
    pub fn launches(&self) -> usize {
        self.steps.likeliest.launches
    }

    /// The recorded steps and the recorded chunk, for those who look at their launches.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        let chunk = self.chunks.as_ref().map(Chunks::sequence);
        [&self.steps.watch, &self.steps.likeliest].into_iter().chain(&self.steps.settings).chain(chunk)
    }

    /// What the host did during the last `draw`.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// Bytes of the key/value cache.
    pub fn kv_bytes(&self) -> usize {
        self.memory.keys.len + self.memory.values.len
    }

    /// Bytes of what chunks of a prompt need beside a step's.
    pub fn chunk_bytes(&self) -> usize {
        self.chunks.as_ref().map_or(0, Chunks::bytes)
    }

    /// Forgets all tokens after the first `position`.
    pub fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    /// Feeds `ids` and returns the logits after the last.
    ///
    /// Ids outside the vocabulary and more tokens than the cache has room for are refused, with nothing changed.
    pub fn feed(&mut self, ids: &[u32]) -> Result<&[f32]> {
        self.admit(ids)?;
        self.prefill(ids)?;
        self.read_logits()
    }

    /// Feeds `ids` and returns the logits after every one, `[ids.len()][vocab]`.
    pub fn feed_all(&mut self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        self.admit(ids)?;
        ids.iter().map(|id| Ok(self.feed(&[*id])?.to_vec())).collect()
    }

    /// Refuses ids outside the vocabulary and more of them than the cache has room for.
    pub fn admit(&self, ids: &[u32]) -> Result<()> {
        crate::decoder::admit(ids, self.hyper.vocab, self.position..self.options.context)
    }

    /// Feeds tokens that `admit` let pass, and leaves the logits after the last on the device.
    pub fn prefill(&mut self, mut ids: &[u32]) -> Result<()> {
        while let Some(chunks) = self.chunks.as_ref().filter(|_| ids.len() >= chunk::LEAST) {
            let fed = chunks.feed(self.machine, self.position, ids, DEADLINE)?;
            self.position += fed;
            ids = &ids[fed..];
        }
        for id in ids {
            self.begin(*id)?;
            let token = self.machine.backend.submit(&self.steps.watch)?;
            self.machine.backend.wait(token, DEADLINE)?;
            self.position += 1;
        }
        Ok(())
    }

    /// Feeds `last` and then each token as it is drawn, and shows every drawn one to `take`: at most `most`, as many as
    /// the cache has room for, and none after one at which `take` stops. Returns how many were drawn.
    ///
    /// Steps run ahead of what the host knows; what they wrote beyond the last token shown is forgotten.
    pub fn draw(
        &mut self,
        last: u32,
        by: &By,
        most: usize,
        take: &mut dyn FnMut(u32) -> Result<Flow>,
    ) -> Result<usize> {
        self.admit(&[last])?;
        let most = most.min(self.options.context - self.position);
        self.begin(last)?;
        let write = |to: &Slice, words: &[u32]| -> Result<()> {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            Ok(self.machine.backend.write(&to.buffer.slice(to.offset, bytes.len())?, &bytes)?)
        };
        if let By::Settings(words) | By::Penalised(words, _) = by {
            write(&self.settings, words)?;
        }
        if let By::Penalised(_, window) = by {
            write(&self.window, &window.words()?)?;
        }
        self.flying.clear();
        self.spent = Spent::default();
        let (mut submitted, mut drawn) = (0, 0);
        while drawn < most {
            let start = Instant::now();
            while submitted < most.min(drawn + self.options.ahead) {
                let token = self.machine.backend.submit(self.step(by)?)?;
                self.flying.push_back(token);
                submitted += 1;
            }
            let handed = Instant::now();
            let id = self.drawn(drawn)?;
            self.spent.steps = submitted as u32;
            self.spent.submitting += handed - start;
            self.spent.waiting += handed.elapsed();
            self.position += 1;
            drawn += 1;
            if take(id)? == Flow::Stop {
                break;
            }
        }
        Ok(drawn)
    }

    /// The launches of a step as path `launches` has them, the draw of the likeliest token behind them; `weights` are those
    /// that the decoder was built with.
    pub fn phases(&self, weights: &Weights) -> Result<Vec<Launch>> {
        let (model, config) = (model(self.hyper, weights, &self.options), &self.chosen[0].config);
        let config = config.clone().with(PATH, Route::Launches.name());
        let launches = decode::step((&model, &weights.at), &self.memory, &Draw::Greedy, &config, &self.machine);
        launches.map_err(|r| Error::request(format!("a step with {config}: {r}")))
    }

    /// The step whose grids leave times, and where they leave them; none on a path without grids.
    pub fn stamped(&self, weights: &Weights) -> Result<Option<(Stamped, Slice)>> {
        if !matches!(self.route, Route::Token | Route::Layer) {
            return Ok(None);
        }
        let (model, config) = (model(self.hyper, weights, &self.options), &self.chosen[0].config);
        let refused = |r| Error::request(format!("a stamped step with {config}: {r}"));
        let bytes = Stamped::ticks_bytes(&model, config).map_err(refused)?;
        let ticks = self.machine.backend.alloc(bytes, Init::Zero)?.all();
        let stamped = Stamped::new((&model, &weights.at), &self.memory, &ticks, config, &self.machine);
        Ok(Some((stamped.map_err(refused)?, ticks)))
    }

    /// Records launches as the path in use is recorded.
    pub fn record(&self, launches: &[Launch]) -> Result<Sequence> {
        let backend = self.machine.backend;
        Ok(if self.route == Route::Graph { backend.record_graph(launches)? } else { backend.record(launches)? })
    }

    /// The step that draws the likeliest token.
    pub fn likeliest(&self) -> &Sequence {
        &self.steps.likeliest
    }

    /// What it runs on.
    pub fn machine(&self) -> Machine<'a> {
        self.machine
    }

    /// Says that the next step feeds `id` at the decoder's position; waits for all steps before.
    pub fn at(&mut self, id: u32) -> Result<()> {
        self.admit(&[id])?;
        self.begin(id)
    }

    fn step(&self, by: &By) -> Result<&Sequence> {
        let step = match by {
            By::Likeliest => Some(&self.steps.likeliest),
            By::Settings(_) => self.steps.settings.as_ref(),
            By::Penalised(..) => self.steps.penalised.as_ref(),
        };
        step.ok_or_else(|| Error::request("a draw by a sampler was asked of a decoder built without `sampled`"))
    }

    /// The token drawn as number `n` since `begin`, once its step has ended.
    fn drawn(&mut self, n: usize) -> Result<u32> {
        let step = self.flying.pop_front().expect("a step in flight draws this token");
        self.machine.backend.wait(step, DEADLINE)?;
        let mut word = [0; 4];
        let step = &self.memory.step;
        self.machine.backend.peek(&step.buffer.slice(step.offset + 4 * (HEADER + n % RING), 4)?, &mut word)?;
        let id = u32::from_le_bytes(word);
        if id as usize >= self.hyper.vocab {
            let position = self.position;
            let message =
                format!("no token can be drawn at position {position}: the logits have no largest finite one");
            return Err(Error::model(message));
        }
        Ok(id)
    }

    /// Says which token the next step feeds, and at which position; waits for all steps before.
    fn begin(&mut self, id: u32) -> Result<()> {
        let words = [id, self.position as u32, 0, 0];
        let bytes: [u8; 16] = std::array::from_fn(|i| words[i / 4].to_le_bytes()[i % 4]);
        let step = &self.memory.step;
        Ok(self.machine.backend.write(&step.buffer.slice(step.offset, bytes.len())?, &bytes)?)
    }

    fn read_logits(&mut self) -> Result<&[f32]> {
        self.bytes.resize(4 * self.logits.len(), 0);
        self.machine.backend.read(&self.memory.logits, &mut self.bytes)?;
        for (v, b) in self.logits.iter_mut().zip(self.bytes.chunks_exact(4)) {
            *v = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }
        Ok(&self.logits)
    }
}

/// The configuration on `route`, its other values as they are, and the route that it says where none is asked for.
fn along(space: &Space, config: &Config, route: Option<Route>) -> Result<(Route, Config)> {
    let paths = space.params.iter().find(|p| p.name == PATH).map(|p| p.values.as_slice()).unwrap_or_default();
    let asked = route.or_else(|| config.name(PATH).and_then(Route::from_name)).unwrap_or(Route::Launches);
    let config = config.clone().with(PATH, Value::Name(asked.name().to_owned()));
    match space.violated(&config) {
        None => Ok((asked, config)),
        Some(why) => {
            let known = paths.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
            Err(Error::request(format!("path {} with {config} is not legal: {why}", asked.name()))
                .with_hint(format!("paths are {known}; leave --path out for the one that suits the configuration")))
        }
    }
}

/// The sampler on the logits of a step, with `settings`, and with penalties for the tokens of `window`.
fn sampler(machine: Machine<'_>, memory: &Memory, settings: &Slice, window: Option<&Slice>) -> Result<Draw> {
    let op = &sample::OP.op;
    let vocab = memory.logits.len / 4;
    let entries = if window.is_some() { HISTORY } else { 0 };
    let shape = Shape::new().with("rows", 1).with("vocab", vocab as i64).with("history", entries as i64);
    let words = |n: usize| -> Result<Slice> { Ok(machine.backend.alloc(4 * n, Init::Zero)?.all()) };
    let (drawn, history) = (words(1)?, words(3 * HISTORY)?);
    let config = (op.space)(&shape, &machine).default;
    let args = vec![memory.logits.clone(), history.clone(), settings.clone(), drawn.clone()];
    let launches = OpCall { op, shape, attrs: Attrs::new(), args }.steps(&config, &machine);
    let launches = launches.map_err(|r| Error::request(format!("{} with {config}: {r}", op.name)))?;
    let window = window.map(|w| (w.clone(), history));
    Ok(Draw::Sampled(Sampler { launches, drawn, settings: settings.clone(), window }))
}

/// Everything a step reads and writes; rotary angles and the table of tensors are filled in.
fn memory(machine: Machine<'_>, model: &Model, weights: &Weights) -> Result<Memory> {
    let zeros = |bytes: usize| -> Result<Slice> { Ok(machine.backend.alloc(bytes, Init::Zero)?.all()) };
    let filled = |bytes: &[u8]| -> Result<Slice> {
        let slice = zeros(bytes.len())?;
        machine.backend.write(&slice, bytes)?;
        Ok(slice)
    };
    let words = weights.at.table(model).map_err(|r| Error::model(r.to_string()))?;
    let cache = 2 * model.cache_elements();
    Ok(Memory {
        arena: weights.arena.all(),
        table: filled(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>())?,
        step: zeros(4 * STEP_WORDS)?,
        ropes: filled(&angles(&weights.tables, model.capacity))?,
        keys: zeros(cache)?,
        values: zeros(cache)?,
        work: zeros(model.work_bytes())?,
        logits: zeros(4 * model.vocab)?,
        sync: zeros(4 * SYNC_WORDS)?,
    })
}

/// For each table and position the cosines of all pairs, then the sines, as f32.
fn angles(tables: &[RopeTable], positions: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for table in tables {
        let row = table.row_len();
        let (mut cos, mut sin) = (vec![0.0; positions * row], vec![0.0; positions * row]);
        table.fill(0, &mut cos, &mut sin);
        // Where a pair has two elements in a row, the second has its sine with the sign as it is.
        let each = 2 * row / table.rotary_dim();
        for (cos, sin) in cos.chunks_exact(row).zip(sin.chunks_exact(row)) {
            for values in [cos, sin] {
                bytes.extend(values.chunks_exact(each).flat_map(|pair| pair[each - 1].to_le_bytes()));
            }
        }
    }
    bytes
}
