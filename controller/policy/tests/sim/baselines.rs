//! What others do, and what nobody can beat, on the same requests and the same loads.
//!
//! All of them are treated kindly: GPUs of a box are one pool without fragmentation, unloading takes no time, busy models are protected,
//! an NPU hosts one model, and in a cluster every model has a home host, so that nothing is loaded twice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::outcome::Outcome;
use crate::scenario::{Micros, SECOND, Scenario};

/// Who goes first, and how many may stay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rule {
    /// Lemonade: least recently used, so many models per type; memory is not looked at.
    CountPerType(usize),
    /// llama.cpp's router: least recently used, so many models; memory is not looked at.
    Count(usize),
    /// Ollama: by memory; idle models end after the keep-alive; the shortest keep-alive goes first, and by name if all are equal.
    KeepAlive(Option<Micros>),
    /// Knows how often each model is used, not when: of those that rest, the one with the fewest uses for its bytes goes first. Unless
    /// `pooled` a model has to fit on one GPU, where those go that are used least altogether.
    Popular { pooled: bool },
    /// Knows the future: the model whose next request is farthest goes first, times its bytes if `sized`.
    Offline { sized: bool },
}

impl Rule {
    /// No rival but a limit: all hosts as one pool, and as many loads at once as there are hosts.
    fn is_bound(self) -> bool {
        match self {
            Self::CountPerType(_) | Self::Count(_) | Self::KeepAlive(_) => false,
            Self::Popular { .. } | Self::Offline { .. } => true,
        }
    }
}

/// Who was used so lately is in a conversation, for [`Rule::Popular`]; the best of the spans that were tried.
const CONVERSATION: Micros = 60 * SECOND;

/// A loaded model.
#[derive(Debug, Default)]
struct Loaded {
    running: u32,
    last_used: Micros,
    served: u32,
    ready: bool,
    gpu: usize,
}

#[derive(Debug, Default)]
struct Box {
    loaded: BTreeMap<usize, Loaded>,
    /// Models that wait to be loaded.
    queue: VecDeque<usize>,
    loading: usize,
    /// Counts crashes: what was begun before one is void.
    life: u32,
    down: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Finish { host: usize, life: u32, model: usize },
    LoadDone { host: usize, life: u32, model: usize },
    Expire { host: usize, life: u32, model: usize },
    Crash { host: usize },
    Back { host: usize },
    Arrive { request: usize },
}

struct Run<'a> {
    scenario: &'a Scenario,
    rule: Rule,
    boxes: Vec<Box>,
    /// Memory of each GPU, or of all as one.
    gpus: Vec<u64>,
    slots: usize,
    now: Micros,
    events: BinaryHeap<Reverse<(Micros, Event)>>,
    waiting: BTreeMap<usize, Vec<usize>>,
    /// Arrivals of every model, in order.
    arrivals: Vec<Vec<Micros>>,
    /// Conversations with every model.
    uses: Vec<u64>,
    out: Outcome,
}

/// Runs a scenario under a rule.
pub(crate) fn run(scenario: &Scenario, rule: Rule) -> Outcome {
    let pooled = rule.is_bound();
    let hosts = if pooled { 1 } else { scenario.hosts };
    let share = u64::try_from(scenario.hosts / hosts).unwrap();
    let mut arrivals = vec![Vec::new(); scenario.models.len()];
    for request in &scenario.requests {
        arrivals[request.model].push(request.at);
    }
    let mut run = Run {
        scenario,
        rule,
        boxes: (0..hosts).map(|_| Box::default()).collect(),
        gpus: if rule == (Rule::Popular { pooled: false }) {
            scenario.gpus.clone()
        } else {
            vec![scenario.pool() * share]
        },
        slots: scenario.hosts / hosts,
        now: 0,
        events: BinaryHeap::new(),
        waiting: BTreeMap::new(),
        uses: arrivals.iter().map(|arrivals| conversations(arrivals)).collect(),
        arrivals,
        out: Outcome::default(),
    };
    for (index, request) in scenario.requests.iter().enumerate() {
        run.events
            .push(Reverse((request.at, Event::Arrive { request: index })));
    }
    if !pooled {
        for (at, host) in &scenario.crashes {
            run.events.push(Reverse((*at, Event::Crash { host: *host })));
        }
    }
    while let Some(Reverse((at, event))) = run.events.pop() {
        run.now = at;
        run.take(event);
    }
    run.out.requests = u64::try_from(scenario.requests.len()).unwrap();
    run.out.starved = run.waiting.values().map(|waiting| waiting.len() as u64).sum();
    run.out
}

/// Requests that come more than a conversation's pause after the one before.
fn conversations(arrivals: &[Micros]) -> u64 {
    let pauses = arrivals
        .windows(2)
        .filter(|pair| pair[1] - pair[0] > CONVERSATION);
    1 + u64::try_from(pauses.count()).unwrap()
}

impl Run<'_> {
    fn home(&self, model: usize) -> usize {
        (model * 7_919) % self.boxes.len()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Arrive { request } => self.arrive(request),
            Event::Finish { host, life, model } => self.finish(host, life, model),
            Event::LoadDone { host, life, model } => self.load_done(host, life, model),
            Event::Expire { host, life, model } => self.expire(host, life, model),
            Event::Crash { host } => {
                let found = &mut self.boxes[host];
                let lost = std::mem::take(&mut found.loaded);
                found.life += 1;
                found.loading = 0;
                found.down = true;
                // Who waited for a load that was lost still waits.
                let unready = lost.iter().filter(|(_, loaded)| !loaded.ready);
                found.queue.extend(unready.map(|(model, _)| *model));
                self.out.wasted += lost.values().filter(|loaded| loaded.served == 0).count() as u64;
                let back = self.now + Scenario::OUTAGE;
                self.events.push(Reverse((back, Event::Back { host })));
            }
            Event::Back { host } => {
                self.boxes[host].down = false;
                self.load_next(host);
            }
        }
    }

    fn arrive(&mut self, index: usize) {
        let model = self.scenario.requests[index].model;
        let host = self.home(model);
        let ready = self.boxes[host]
            .loaded
            .get(&model)
            .is_some_and(|loaded| loaded.ready);
        if ready {
            self.out.served(None);
            self.begin(host, index);
            return;
        }
        self.waiting.entry(model).or_default().push(index);
        let found = &mut self.boxes[host];
        if !found.loaded.contains_key(&model) && !found.queue.contains(&model) {
            found.queue.push_back(model);
        }
        self.load_next(host);
    }

    fn begin(&mut self, host: usize, index: usize) {
        let request = self.scenario.requests[index];
        let found = &mut self.boxes[host];
        let life = found.life;
        if let Some(loaded) = found.loaded.get_mut(&request.model) {
            loaded.running += 1;
            loaded.served += 1;
            loaded.last_used = self.now;
        }
        let done = Event::Finish {
            host,
            life,
            model: request.model,
        };
        self.events.push(Reverse((self.now + request.takes, done)));
    }

    fn finish(&mut self, host: usize, life: u32, model: usize) {
        let found = &mut self.boxes[host];
        if found.life != life {
            return;
        }
        if let Some(loaded) = found.loaded.get_mut(&model) {
            loaded.running -= 1;
            loaded.last_used = self.now;
            if let (0, Rule::KeepAlive(Some(span))) = (loaded.running, self.rule) {
                let event = Event::Expire { host, life, model };
                self.events.push(Reverse((self.now + span, event)));
            }
        }
        self.load_next(host);
    }

    fn expire(&mut self, host: usize, life: u32, model: usize) {
        let Rule::KeepAlive(Some(span)) = self.rule else {
            return;
        };
        let found = &mut self.boxes[host];
        let over = found.life == life
            && found.loaded.get(&model).is_some_and(|loaded| {
                loaded.ready && loaded.running == 0 && loaded.last_used + span <= self.now
            });
        if over {
            found.loaded.remove(&model);
        }
    }

    fn load_done(&mut self, host: usize, life: u32, model: usize) {
        let found = &mut self.boxes[host];
        if found.life != life {
            return;
        }
        found.loading -= 1;
        if let Some(loaded) = found.loaded.get_mut(&model) {
            loaded.ready = true;
            loaded.last_used = self.now;
        }
        for index in self.waiting.remove(&model).unwrap_or_default() {
            self.out.served(Some(self.now - self.scenario.requests[index].at));
            self.begin(host, index);
        }
        self.load_next(host);
    }

    fn load_next(&mut self, host: usize) {
        while self.boxes[host].loading < self.slots && !self.boxes[host].down {
            let Some(model) = self.boxes[host].queue.front().copied() else {
                return;
            };
            let rooms = (0..self.gpus.len()).filter_map(|gpu| self.room(host, model, gpu));
            let Some((_, gpu, going)) = rooms.min() else {
                return;
            };
            for victim in going {
                if let Some(ended) = self.boxes[host].loaded.remove(&victim) {
                    self.out.wasted += u64::from(ended.served == 0);
                }
            }
            let found = &mut self.boxes[host];
            found.queue.pop_front();
            found.loading += 1;
            let life = found.life;
            found.loaded.insert(
                model,
                Loaded {
                    last_used: self.now,
                    gpu,
                    ..Loaded::default()
                },
            );
            let def = &self.scenario.models[model];
            self.out.loads += 1;
            self.out.loading += def.load;
            if self.gpu_bytes(host, gpu, &[]) > self.gpus[gpu] {
                self.out.out_of_memory += 1;
            }
            let done = Event::LoadDone { host, life, model };
            self.events.push(Reverse((self.now + def.load, done)));
        }
    }

    /// Who has to go for a model to fit on a GPU, and how bad that is: whether somebody is in a conversation, and the uses of all.
    fn room(&self, host: usize, model: usize, gpu: usize) -> Option<((bool, u64), usize, Vec<usize>)> {
        let mut going = Vec::new();
        while !self.fits(host, model, gpu, &going) {
            going.push(self.victim(host, model, gpu, &going)?);
        }
        if self.gpus.len() > 1 {
            for spared in (0..going.len()).rev() {
                let victim = going.remove(spared);
                if !self.fits(host, model, gpu, &going) {
                    going.insert(spared, victim);
                }
            }
        }
        let talking = |victim: &usize| self.now < self.boxes[host].loaded[victim].last_used + CONVERSATION;
        let loss = (
            going.iter().any(talking),
            going.iter().map(|victim| self.uses[*victim]).sum(),
        );
        Some((loss, gpu, going))
    }

    fn gpu_bytes(&self, host: usize, gpu: usize, going: &[usize]) -> u64 {
        let there = self.boxes[host].loaded.iter();
        let staying = there.filter(|(model, loaded)| loaded.gpu == gpu && !going.contains(model));
        let models = staying.map(|(model, _)| &self.scenario.models[*model]);
        models.filter(|model| !model.npu).map(|model| model.bytes).sum()
    }

    fn fits(&self, host: usize, model: usize, gpu: usize, going: &[usize]) -> bool {
        let models = &self.scenario.models;
        let wanted = &models[model];
        let loaded = &self.boxes[host].loaded;
        let staying = || loaded.keys().filter(|other| !going.contains(other));
        if wanted.npu {
            return staying().all(|other| !models[*other].npu);
        }
        let count = |test: &dyn Fn(usize) -> bool| {
            staying()
                .filter(|other| !models[**other].npu && test(**other))
                .count()
        };
        match self.rule {
            Rule::CountPerType(limit) => count(&|other| models[other].kind == wanted.kind) < limit,
            Rule::Count(limit) => count(&|_| true) < limit,
            Rule::KeepAlive(_) | Rule::Popular { .. } | Rule::Offline { .. } => {
                self.gpu_bytes(host, gpu, going) + wanted.bytes <= self.gpus[gpu]
            }
        }
    }

    fn victim(&self, host: usize, model: usize, gpu: usize, going: &[usize]) -> Option<usize> {
        let models = &self.scenario.models;
        let wanted = &models[model];
        let idle = self.boxes[host].loaded.iter().filter(|(other, loaded)| {
            let in_the_way = models[**other].npu == wanted.npu
                && (wanted.npu || loaded.gpu == gpu)
                && !going.contains(other)
                && (!matches!(self.rule, Rule::CountPerType(_))
                    || wanted.npu
                    || models[**other].kind == wanted.kind);
            // Who was loaded for requests serves them first.
            in_the_way && loaded.ready && loaded.running == 0 && loaded.served > 0
        });
        let farthest = |other: usize, sized: bool| {
            let arrivals = &self.arrivals[other];
            let next = arrivals.partition_point(|at| *at <= self.now);
            let away = arrivals.get(next).map_or(u64::MAX / 4, |at| at - self.now);
            let bytes = models[other].bytes >> 20;
            u128::from(away) * u128::from(if sized { bytes } else { 1 })
        };
        let found = match self.rule {
            Rule::CountPerType(_) | Rule::Count(_) => idle.min_by_key(|(_, loaded)| loaded.last_used),
            Rule::KeepAlive(_) => idle.min_by_key(|(other, _)| &models[**other].name),
            Rule::Popular { .. } => idle.min_by_key(|(other, loaded)| {
                let talking = self.now < loaded.last_used + CONVERSATION;
                let value = u128::from(self.uses[**other]) << 64;
                let resting = value / u128::from(models[**other].bytes);
                (talking, if talking { loaded.last_used.into() } else { resting })
            }),
            Rule::Offline { sized } => idle.max_by_key(|(other, _)| farthest(**other, sized)),
        };
        found.map(|(other, _)| *other)
    }
}
