//! The loop with a real model and faults that no request can cause.

use std::{path::PathBuf, sync::Arc};

use muster_proto::{
    llamacpp::{self, LoadMode},
    v1::{GenerateRequest, Sampling, SequenceEvents, event, session_message},
};
use tokio::sync::mpsc;

use super::{Engine, EngineParts};
use crate::{
    busy::Busy,
    context::{Context, ContextParams},
    control::Control,
    cores::Cores,
    draft::Guessing,
    group::Grouping,
    model::{self, Model, Places},
    outbox::{Message, Outbox},
    pace::Pace,
    parse,
    plan::Part,
    request::{Command, GenerateJob, GenerateParams, Job, Work},
    sampler::{Sampler, SamplerSpec},
    shared::Shared,
    waker::Waker,
};

const SEQUENCES: u32 = 4;
const CELLS: u32 = 512;

/// An engine whose ticks the test makes.
struct Bench {
    engine: Engine,
    model: Arc<Model>,
    messages: mpsc::Receiver<Message>,
    got: Vec<SequenceEvents>,
}

impl Bench {
    fn new(file: &str) -> Self {
        model::init();
        let directory = std::env::var_os("MUSTER_TEST_MODELS")
            .expect("MUSTER_TEST_MODELS is not set: use tests/run, which prepares everything");
        let path = PathBuf::from(directory).join(file);
        let model = Model::load(&path, &Places::default(), LoadMode::default(), "", &mut |_| true).unwrap();
        let params = ContextParams {
            n_ctx: CELLS,
            n_batch: 256,
            n_ubatch: 256,
            n_seq_max: SEQUENCES,
            n_outputs_max: llamacpp::outputs(SEQUENCES, &[]),
            n_threads: 1,
            n_threads_batch: 1,
            embeddings: false,
            kv_unified: true,
            swa_full: false,
            type_k: "f32".to_owned(),
            type_v: "f32".to_owned(),
            pooling: String::new(),
            flash_attention: "off".to_owned(),
            tuning: serde_json::Map::new(),
        };
        let context = Context::new(Arc::clone(&model), &params).unwrap();
        let shared = Arc::new(Shared::new(SEQUENCES as usize, CELLS, Vec::new().into()));
        let (commands, rx) = mpsc::channel(8);
        let (tx, messages) = mpsc::channel(1024);
        let mut engine = Engine::new(EngineParts {
            model: Arc::clone(&model),
            context,
            max_tokens: CELLS as usize,
            swa_full: false,
            guesses: true,
            set_aside: 1 << 20,
            encoder: None,
            rx,
            parse: parse::start(Busy::default()).unwrap(),
            shared: Arc::clone(&shared),
            waker: Waker::new(Arc::clone(&shared), commands),
            pace: Pace::new(256),
            grouping: [Grouping::default(), Grouping::default()],
            cores: Cores::new(None, 1, 1, true),
            threads: (1, 1),
        });
        let outbox = Outbox::new(tx, shared);
        assert!(engine.handle(Command::Attach { session: 1, outbox }));
        Self {
            engine,
            model,
            messages,
            got: Vec::new(),
        }
    }

    fn start(&mut self, handle: u64, prompt: &str, tokens: u32) -> Arc<Control> {
        let control = Arc::new(Control::new(1_000_000));
        let spec = SamplerSpec {
            sampling: Sampling {
                temperature: Some(0.0),
                ignore_eos: Some(true),
                ..Sampling::default()
            },
            reasoning_budget: -1,
            ..SamplerSpec::default()
        };
        let params = GenerateParams {
            max_tokens: Some(tokens),
            stops: Vec::new(),
            min_indent: 0,
            top_logprobs: None,
            post_sampling_probs: false,
            return_tokens: false,
            return_progress: false,
            timings_per_token: false,
            shown_prompt: String::new(),
            shown_sampling: None,
            cache_prompt: true,
            guessing: Guessing::Always { least: 1, most: 8 },
            shift: None,
            id_slot: None,
            tenant: None,
            scales: Vec::new().into(),
            max_predict_ms: None,
            interval: 1,
            asked: Arc::new(GenerateRequest::default()),
        };
        let job = GenerateJob {
            prompt: self.model.tokenize(prompt, true, false).unwrap().into(),
            samplers: vec![Sampler::new(Arc::clone(&self.model), &spec, None).unwrap()],
            chat: None,
            params: Arc::new(params),
        };
        assert!(self.engine.handle(Command::Start(Job {
            session: 1,
            handle,
            control: Arc::clone(&control),
            work: Work::Generate(Box::new(job)),
        })));
        control
    }

    fn tick(&mut self) -> bool {
        let work = self.engine.tick();
        while let Ok(message) = self.messages.try_recv() {
            if let Some(session_message::Kind::Tick(tick)) = message.unwrap().kind {
                self.got.extend(tick.sequences);
            }
        }
        work
    }

    /// Text and end of a request.
    fn answer(&self, handle: u64) -> (String, Option<event::Kind>) {
        let mut text = String::new();
        let mut end = None;
        let own = self.got.iter().filter(|entry| entry.handle == handle);
        for kind in own
            .flat_map(|entry| &entry.events)
            .filter_map(|event| event.kind.as_ref())
        {
            match kind {
                event::Kind::Delta(delta) => text.push_str(&delta.content),
                event::Kind::Finished(_) | event::Kind::Failed(_) => end = Some(kind.clone()),
                event::Kind::Admitted(_)
                | event::Kind::Progress(_)
                | event::Kind::ChoiceFinished(_)
                | event::Kind::Embedded(_)
                | event::Kind::Reranked(_) => {}
            }
        }
        (text, end)
    }

    /// Starts two requests and lets both write a little.
    fn two(file: &str) -> Self {
        let mut bench = Self::new(file);
        bench.start(1, "One of two that run side by side, a little longer.", 40);
        bench.start(2, "Two.", 40);
        for _ in 0..10 {
            assert!(bench.tick());
        }
        bench
    }

    fn run(mut self) -> Self {
        while self.tick() {}
        self
    }
}

#[test]
fn a_sequence_whose_memory_is_not_what_it_should_be_is_read_again_and_disturbs_nobody() {
    for file in [
        "tiny-chat.gguf",
        "tiny-swa.gguf",
        "tiny-mamba.gguf",
        "tiny-lfm2.gguf",
    ] {
        let whole = Bench::two(file).run();
        // all of it lost, or the end of it: llama.cpp would refuse the next decode, and both requests with it
        for from in [0, 5] {
            let mut bench = Bench::two(file);
            let seq = bench.engine.slots[0].held.seq();
            bench.engine.context.forget_from(seq, from);
            let bench = bench.run();
            for handle in [1, 2] {
                let (text, end) = bench.answer(handle);
                assert!(
                    matches!(end, Some(event::Kind::Finished(_))),
                    "{file} {handle}: {end:?}"
                );
                assert_eq!(text, whole.answer(handle).0, "{file} {handle} from {from}");
            }
        }
    }
}

#[test]
fn of_a_batch_that_llama_cpp_refuses_only_the_sequence_at_fault_fails() {
    let whole = Bench::two("tiny-chat.gguf").run();
    let mut bench = Bench::two("tiny-chat.gguf");
    // what no check let through: a token that does not exist
    *bench.engine.slots[0].content.tokens.last_mut().unwrap() = i32::MAX;
    let bench = bench.run();
    let (_, end) = bench.answer(1);
    assert!(
        matches!(&end, Some(event::Kind::Failed(error)) if error.code == "runtime_error"),
        "{end:?}"
    );
    let (text, end) = bench.answer(2);
    assert!(matches!(end, Some(event::Kind::Finished(_))), "{end:?}");
    assert_eq!(text, whole.answer(2).0);
}

/// It was counted twice, once as what it holds and once as what it wants: it came back only when nobody else was there.
#[test]
fn a_preempted_sequence_comes_back_under_a_steady_stream_of_short_requests() {
    let mut bench = Bench::new("tiny-chat.gguf");
    let old = bench.start(1, "The older one", 220);
    bench.tick();
    bench.start(2, "The younger one", 250);
    let generated = |bench: &Bench| bench.engine.slots[1].run.as_ref().map_or(0, |run| run.generated);
    while generated(&bench) < 200 {
        assert!(bench.tick());
    }
    assert!(bench.engine.preempt(&[Part { seq: 0, tokens: 1 }]));
    assert!(bench.engine.slots[1].run.as_ref().unwrap().preempted);
    old.cancel();
    let mut next = 3;
    while bench.answer(2).1.is_none() {
        assert!(next < 300, "{next} requests came and went meanwhile");
        // there are always others, and they never end together
        let idle = bench
            .engine
            .slots
            .iter()
            .filter(|slot| slot.run.is_none())
            .count();
        if idle > 1 {
            bench.start(next, "A short one", 10 + 7 * u32::try_from(next % 3).unwrap());
            next += 1;
        }
        bench.tick();
    }
    assert!(next > 4, "nobody else was there");
    let (_, end) = bench.answer(2);
    assert!(matches!(end, Some(event::Kind::Finished(_))), "{end:?}");
}
