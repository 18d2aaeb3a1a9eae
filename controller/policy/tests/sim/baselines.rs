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
    /// Knows how often each model is used, not when: of those that rest, the one with the fewest uses for its bytes goes first.
    Popular,
    /// Knows the future: the model whose next request is farthest goes first, times its bytes if `sized`.
    Offline { sized: bool },
}

impl Rule {
    /// No rival but a limit: all hosts as one pool, and as many loads at once as there are hosts.
    fn is_bound(self) -> bool {
        match self {
            Self::CountPerType(_) | Self::Count(_) | Self::KeepAlive(_) => false,
            Self::Popular | Self::Offline { .. } => true,
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
    pool: u64,
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
        pool: scenario.pool() * share,
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
            while !self.fits(host, model) {
                let Some(victim) = self.victim(host, model) else {
                    return;
                };
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
                    ..Loaded::default()
                },
            );
            let def = &self.scenario.models[model];
            self.out.loads += 1;
            self.out.loading += def.load;
            if self.gpu_bytes(host) > self.pool {
                self.out.out_of_memory += 1;
            }
            let done = Event::LoadDone { host, life, model };
            self.events.push(Reverse((self.now + def.load, done)));
        }
    }

    fn gpu_bytes(&self, host: usize) -> u64 {
        let models = self.boxes[host]
            .loaded
            .keys()
            .map(|model| &self.scenario.models[*model]);
        models.filter(|model| !model.npu).map(|model| model.bytes).sum()
    }

    fn fits(&self, host: usize, model: usize) -> bool {
        let models = &self.scenario.models;
        let wanted = &models[model];
        let loaded = &self.boxes[host].loaded;
        if wanted.npu {
            return loaded.keys().all(|other| !models[*other].npu);
        }
        let count = |test: &dyn Fn(usize) -> bool| {
            loaded
                .keys()
                .filter(|other| !models[**other].npu && test(**other))
                .count()
        };
        match self.rule {
            Rule::CountPerType(limit) => count(&|other| models[other].kind == wanted.kind) < limit,
            Rule::Count(limit) => count(&|_| true) < limit,
            Rule::KeepAlive(_) | Rule::Popular | Rule::Offline { .. } => {
                self.gpu_bytes(host) + wanted.bytes <= self.pool
            }
        }
    }

    fn victim(&self, host: usize, model: usize) -> Option<usize> {
        let models = &self.scenario.models;
        let wanted = &models[model];
        let idle = self.boxes[host].loaded.iter().filter(|(other, loaded)| {
            let in_the_way = models[**other].npu == wanted.npu
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
            Rule::Popular => idle.min_by_key(|(other, loaded)| {
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

/// The largest limit with which a rule never runs out of memory; none if even one model per limit is too much.
fn largest(scenario: &Scenario, rule: impl Fn(usize) -> Rule) -> Option<Outcome> {
    let mut best = None;
    for limit in 1..=scenario.models.len() {
        let mut out = run(scenario, rule(limit));
        if out.out_of_memory > 0 {
            break;
        }
        out.policy = format!("at most {limit}");
        best = Some(out);
    }
    best
}

/// What others do, and what bounds all.
pub(crate) struct Others {
    /// With the limits that suit them best.
    pub(crate) baselines: Vec<Outcome>,
    /// See [`Rule::Popular`].
    pub(crate) popular: Outcome,
    /// The better of Belady's rule and its variant by bytes.
    pub(crate) offline: Outcome,
}

/// Runs all of them.
pub(crate) fn all(scenario: &Scenario) -> Others {
    let mut baselines = Vec::new();
    let counted = [
        ("count per type (Lemonade)", largest(scenario, Rule::CountPerType)),
        ("count (llama.cpp router)", largest(scenario, Rule::Count)),
    ];
    for (name, found) in counted {
        if let Some(mut out) = found {
            out.policy = format!("{name}, {}", out.policy);
            baselines.push(out);
        }
    }
    for (name, span) in [
        ("keep-alive 5 min (Ollama)", Some(300 * SECOND)),
        ("keep-alive for ever (Ollama)", None),
    ] {
        let mut out = run(scenario, Rule::KeepAlive(span));
        out.policy = name.to_owned();
        baselines.push(out);
    }
    let bound = |rule, name: &str| {
        let mut out = run(scenario, rule);
        name.clone_into(&mut out.policy);
        out
    };
    let [plain, sized] = [false, true].map(|sized| {
        let rule = Rule::Offline { sized };
        bound(rule, "offline bound (Belady, by bytes)")
    });
    Others {
        baselines,
        popular: bound(Rule::Popular, "one pool, popularity known"),
        offline: if sized.loads <= plain.loads { sized } else { plain },
    }
}
