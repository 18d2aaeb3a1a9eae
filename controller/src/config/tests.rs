//! What configuration accepts, merges and complains about.

use std::{fs, path::PathBuf};

use muster_core::{DeviceKind, ModelType};
use muster_policy::{DeviceChoice, Limit};
use muster_proto::{llamacpp::Takes, settings::SETTINGS};

use super::*;

struct Files {
    dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    fn new(texts: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = texts
            .iter()
            .enumerate()
            .map(|(place, text)| {
                let path = dir.path().join(format!("{place}.toml"));
                fs::write(&path, text).unwrap();
                path
            })
            .collect();
        Self { dir, paths }
    }

    fn load(&self) -> Result<Config, ConfigError> {
        Config::load(&self.paths, None, &Defaults::default())
    }

    /// `FILE: KEY: MESSAGE` of every problem, without the directory.
    fn problems(&self) -> Vec<String> {
        let prefix = format!("{}/", self.dir.path().display());
        let problems = self.load().unwrap_err().0;
        problems
            .iter()
            .map(|problem| problem.to_string().replace(&prefix, ""))
            .collect()
    }
}

fn at_most(number: u32) -> Limit {
    Limit::AtMost(number.try_into().unwrap())
}

#[test]
fn no_file_is_an_empty_catalogue_with_defaults() {
    let config = Config::load(&[], None, &Defaults::default()).unwrap();
    assert!(config.models.is_empty());
    assert_eq!(config.policy, muster_policy::Config::default());
}

#[test]
fn the_order_of_eviction_is_a_word() {
    for (text, order) in [
        ("", muster_policy::Eviction::Lru),
        ("eviction = 'lru'", muster_policy::Eviction::Lru),
        ("eviction = 'cost_aware'", muster_policy::Eviction::CostAware),
    ] {
        let text = format!("[policy]\n{text}\n");
        let files = Files::new(&[text.as_str()]);
        assert_eq!(files.load().unwrap().policy.eviction, order, "{text}");
    }
}

#[test]
fn the_fleet_s_limits_stand_beside_those_of_each_host() {
    let of = |text: &str| Files::new(&[text]).load().unwrap().policy;
    let default = of("[policy]\nmax_loaded_models = 3\n");
    assert_eq!(default.fleet_limits.per_type, [Limit::Unlimited; 5]);
    let both = of("[policy]\nmax_loaded_models = 3\nmax_loaded_models_fleet = [8, 2]\n");
    assert_eq!(both.limits.of(ModelType::Llm), at_most(3));
    let [llm, embedding, others @ ..] = both.fleet_limits.per_type;
    assert_eq!((llm, embedding), (at_most(8), at_most(2)));
    assert_eq!(others, [Limit::Unlimited; 3], "what is not named has no limit");
    assert_eq!(
        Files::new(&["[policy]\nmax_loaded_models_fleet = 0\n"]).problems(),
        ["0.toml: policy.max_loaded_models_fleet: 0 is no limit: want at least 1, or -1 for unlimited"]
    );
}

#[test]
fn later_files_win_key_by_key() {
    let files = Files::new(&[
        "[policy]\nmargin_mib = 1\nmax_loaded_models = 3\n[models.a]\nruntime = 'stub'\npinned = true\nidle_ttl = '0s'\n[models.a.stub]\ntokens = 5\nload_time_ms = 1\n",
        "[policy]\nmargin_mib = 7\n[models.a.stub]\ntokens = 6\n[models.b]\ncheckpoint = 'b.gguf'\nlabels = ['embedding']\n",
    ]);
    let config = files.load().unwrap();
    assert_eq!(config.policy.margin, muster_core::Bytes::mib(7));
    assert_eq!(config.policy.limits.of(ModelType::Image), at_most(3));
    let [a, b] = config.models.as_slice() else {
        panic!("{:?}", config.models)
    };
    assert!(a.pinned);
    assert_eq!(a.idle_ttl, muster_policy::IdleTtl::Never);
    let stub = a.settings.stub.clone().unwrap();
    assert_eq!((stub.tokens, stub.load_time_ms), (6, 1));
    assert_eq!(b.runtime.name(), "llama_cpp");
    assert_eq!(b.kind, ModelType::Embedding);
    assert_eq!(b.labels, ["embeddings"]);
    assert_eq!(b.file, Some(files.dir.path().join("b.gguf")));
    assert_eq!(
        b.settings.checkpoint,
        files.dir.path().join("b.gguf").to_str().unwrap()
    );
}

#[test]
fn every_problem_is_reported_at_once_with_file_and_key() {
    let files = Files::new(&[
        "[policy]\nmargin_mib = 'much'\nplacement = 'left'\n[models.x]\nruntime = 'stub'\nparallel = -1\n",
        "colour = 'red'\n[models.x]\nspeed = 3\n[models.\"org/y.gguf\"]\nlabels = ['a', 'a']\n",
        "[models.z]\nrecipe = 'flm'\nruntime = 'llama_cpp'\ncheckpoint = 'q'\n",
        "[models\n",
    ]);
    assert_eq!(
        files.problems(),
        [
            "3.toml: line 1: unclosed table, expected `]`",
            "0.toml: policy.placement: want one of spread, pack, got `left`",
            "0.toml: policy.margin_mib: want an integer, got the string `much`",
            "0.toml: models.x.parallel: -1 is out of range: want at least 0",
            "1.toml: models.x.speed: unknown key",
            "1.toml: models.\"org/y.gguf\": names neither a runtime nor a recipe",
            "1.toml: models.\"org/y.gguf\".labels: `a` is given twice",
            "2.toml: models.z.runtime: `llama_cpp` does not host the recipe `flm`: want flm",
            "1.toml: colour: unknown key",
        ]
    );
}

#[test]
fn a_missing_checkpoint_file_is_no_problem_but_a_missing_key_is() {
    let files = Files::new(&["[models.a]\nruntime = 'llama_cpp'\ncheckpoint = '/nowhere/a.gguf'\n"]);
    assert_eq!(files.load().unwrap().models.len(), 1);
    let files = Files::new(&["[models.a]\nruntime = 'llama_cpp'\n"]);
    assert_eq!(
        files.problems(),
        ["0.toml: models.a.checkpoint: is missing: `llama_cpp` needs one"]
    );
}

#[test]
fn every_setting_is_a_key_that_is_checked() {
    for setting in SETTINGS {
        let (good, bad) = match setting.takes {
            Takes::Count | Takes::Layers => ("3".to_owned(), "'x'"),
            Takes::Nothing => ("true".to_owned(), "1"),
            Takes::Word(words) => (format!("'{}'", words[0]), "'no such word'"),
            Takes::Integer
            | Takes::Number
            | Takes::Words(_)
            | Takes::Range
            | Takes::Parameter(_)
            | Takes::Text => ("'a.gguf'".to_owned(), "7"),
        };
        let files = |value: &str| {
            // Only a repository has revisions.
            let checkpoint = if setting.key == "revision" {
                "o/n"
            } else {
                "a.gguf"
            };
            let mut keys = toml::Table::from_iter([("checkpoint".to_owned(), checkpoint.into())]);
            keys.extend(
                format!("{} = {value}", setting.key)
                    .parse::<toml::Table>()
                    .unwrap(),
            );
            Files::new(&[&format!("[models.m]\nruntime = 'llama_cpp'\n{keys}")])
        };
        let config = files(&good).load().unwrap();
        assert!(
            (setting.get)(&config.models[0].settings).is_some(),
            "{}",
            setting.key
        );
        let problems = files(bad).problems();
        let about = format!("models.m.{}: ", setting.key);
        assert!(
            problems.iter().any(|problem| problem.contains(&about)),
            "{problems:?}"
        );
    }
}

#[test]
fn a_revision_is_one_of_a_repository_and_main_is_none() {
    let model = |id: &str, checkpoint: &str, revision: &str| {
        format!("[models.{id}]\nrecipe = 'llamacpp'\ncheckpoint = '{checkpoint}'\nrevision = '{revision}'\n")
    };
    let files = Files::new(&[&(model("a", "o/n:Q4_0", "v1") + &model("b", "o/n:Q4_0", "main"))]);
    let models = files.load().unwrap().models;
    for (model, revision) in models.iter().zip(["v1", ""]) {
        assert_eq!(model.hub.as_ref().unwrap().revision, revision);
        assert_eq!(model.settings.revision, revision, "what the worker resolves");
    }
    let files = Files::new(&[&(model("a", "o/n:Q4_0", "../x") + &model("b", "b.gguf", "v1"))]);
    assert_eq!(
        files.problems(),
        [
            "0.toml: models.a.revision: `../x` is no revision: want a branch, a tag or a commit, of letters, digits and `-_.+/`",
            "0.toml: models.b.revision: `b.gguf` is no repository of a hub, which alone has revisions",
        ]
    );
}

#[test]
fn a_flag_that_repeats_a_key_is_a_problem() {
    let files = Files::new(&[
        "[models.a]\ncheckpoint = 'a.gguf'\nctx_size = 512\nllamacpp_args = '--mlock -c 1024'\n",
        "[models.b]\ncheckpoint = 'a.gguf'\nllamacpp_args = '--no-mmap \"x y\"'\n",
        "[models.c]\ncheckpoint = 'a.gguf'\nllamacpp_args = '\"open'\n",
    ]);
    assert_eq!(
        files.problems(),
        [
            "0.toml: models.a.llamacpp_args: `-c` says the same as `ctx_size`: give one of them",
            "2.toml: models.c.llamacpp_args: missing closing quote",
        ]
    );
}

#[test]
fn labels_decide_the_type_by_precedence() {
    let files = Files::new(&[
        "[models.a]\nruntime = 'stub'\nlabels = ['image', 'audio', 'embeddings', 'reranking']\n[models.b]\nruntime = 'stub'\nlabels = ['vision', 'image', 'audio']\n",
    ]);
    let kinds: Vec<_> = files
        .load()
        .unwrap()
        .models
        .iter()
        .map(|model| model.kind)
        .collect();
    assert_eq!(kinds, [ModelType::Reranking, ModelType::Audio]);
}

#[test]
fn limits_follow_the_seed() {
    let limits = |numbers: &[i64]| policy::limits_of(numbers, Limit::ONE).map(|limits| limits.per_type);
    assert_eq!(limits(&[4]).unwrap(), [at_most(4); 5]);
    assert_eq!(limits(&[-1]).unwrap(), [Limit::Unlimited; 5]);
    assert_eq!(
        limits(&[3, -1]).unwrap(),
        [at_most(3), Limit::Unlimited, Limit::ONE, Limit::ONE, Limit::ONE]
    );
    for wrong in [&[][..], &[0], &[-2], &[1, 0], &[1, 1, 1, 1, 1, 1]] {
        limits(wrong).unwrap_err();
    }
}

#[test]
fn times_have_units() {
    let files = Files::new(&["[policy]\nsettle = '1m 500ms'\n[sessions]\nhold_ttl = '2h'\n"]);
    let config = files.load().unwrap();
    assert_eq!(config.policy.settle, Duration::from_millis(60_500));
    assert_eq!(config.timing.hold_ttl, Duration::from_secs(7200));
    let files = Files::new(&[
        "[policy]\nsettle = 5\nworker_wait = '5'\n[sessions]\nping_wait = '-1s'\nlost_after = '1ms'\n",
    ]);
    assert_eq!(
        files.problems(),
        [
            "0.toml: policy.settle: want a duration such as \"10m\", got the integer 5",
            "0.toml: policy.worker_wait: want a duration such as \"10m\", got `5`",
            "0.toml: sessions.ping_wait: want a duration such as \"10m\", got `-1s`",
            "0.toml: sessions.lost_after: must be longer than heartbeat_every",
        ]
    );
}

#[test]
fn the_operator_makes_devices_exclusive_or_not() {
    let files = Files::new(&["[devices.'sim:a']\nexclusive = true\n[devices.npu0]\nexclusive = false\n"]);
    let rules = files.load().unwrap().devices;
    let applied = |id: &str, exclusive| {
        let mut device = muster_proto::v1::Device {
            device_id: id.to_owned(),
            exclusive,
            ..muster_proto::v1::Device::default()
        };
        rules.apply(&mut device);
        device.exclusive
    };
    assert!(applied("sim:a", false) && !applied("npu0", true));
    assert!(applied("other", true) && !applied("other", false));
    let files = Files::new(&["[devices.x]\nexclusive = 1\ncolour = 'red'\n"]);
    assert_eq!(
        files.problems(),
        [
            "0.toml: devices.x.exclusive: want true or false, got the integer 1",
            "0.toml: devices.x.colour: unknown key",
        ]
    );
}

#[test]
fn devices_are_kinds_or_ids() {
    let files = Files::new(&[
        "[models.a]\nruntime = 'stub'\ndevice = 'cpu'\n[models.b]\nruntime = 'stub'\ndevice = 'sim:x'\n[models.c]\nruntime = 'stub'\n",
    ]);
    let devices: Vec<_> = files
        .load()
        .unwrap()
        .models
        .into_iter()
        .map(|model| model.device)
        .collect();
    assert_eq!(
        devices,
        [
            DeviceChoice::Kind(DeviceKind::Cpu),
            DeviceChoice::Device("sim:x".into()),
            DeviceChoice::Any
        ]
    );
}

#[test]
fn a_template_file_is_read_and_a_literal_is_kept() {
    let files = Files::new(&[
        "[models.a]\nruntime = 'stub'\nchat_template = 't.jinja'\n[models.b]\nruntime = 'stub'\nchat_template = '{{ x }}'\n[models.c]\nruntime = 'stub'\nlora = ['l.gguf=0.5']\n",
    ]);
    fs::write(files.dir.path().join("t.jinja"), "{{ messages }}").unwrap();
    let models = files.load().unwrap().models;
    assert_eq!(models[0].settings.chat_template, "{{ messages }}");
    assert_eq!(models[1].settings.chat_template, "{{ x }}");
    assert!((models[2].settings.lora[0].scale - 0.5).abs() < f32::EPSILON);
}

#[test]
fn the_command_line_fills_what_models_of_llama_cpp_leave_open() {
    let files = Files::new(&[
        "[models.a]\ncheckpoint = 'a.gguf'\n[models.b]\ncheckpoint = 'b.gguf'\nctx_size = 512\ndevice = 'sim:x'\nllamacpp_args = '--mlock'\n[models.c]\nruntime = 'stub'\n",
    ]);
    let defaults = Defaults::new(Some(8192), Some("cpu"), Some("--no-mmap -t 2")).unwrap();
    let models = Config::load(&files.paths, None, &defaults).unwrap().models;
    let [a, b, c] = models.as_slice() else {
        panic!("{models:?}")
    };
    assert_eq!(
        (a.settings.ctx_size, a.settings.args.as_slice()),
        (8192, ["--no-mmap", "-t", "2"].map(String::from).as_slice())
    );
    assert_eq!(a.device, DeviceChoice::Kind(DeviceKind::Cpu));
    assert_eq!(
        (b.settings.ctx_size, b.settings.args.as_slice()),
        (512, ["--mlock".to_owned()].as_slice())
    );
    assert_eq!(b.device, DeviceChoice::Device("sim:x".into()));
    assert_eq!((c.settings.ctx_size, c.settings.args.len()), (0, 0));
    Defaults::new(None, Some("abacus"), None).unwrap_err();

    let twice = Defaults::new(None, None, Some("-c 4")).unwrap();
    let problems = Config::load(&files.paths, None, &twice).map(|config| config.models.len());
    assert_eq!(problems.unwrap(), 3, "the args of b are its own");
    let files = Files::new(&["[models.b]\ncheckpoint = 'b.gguf'\nctx_size = 512\n"]);
    let error = Config::load(&files.paths, None, &twice).unwrap_err().to_string();
    assert!(error.contains("`-c` says the same as `ctx_size`"), "{error}");
}

#[test]
fn seed_001_a_prompt_format_is_a_template() {
    let text = |line: &str| format!("[models.a]\nruntime = 'stub'\n{line}\n");
    for name in [
        "generic",
        "mistral_template",
        "qwen3_template",
        "gemma4_template",
        "translategemma_template",
    ] {
        let files = Files::new(&[&text(&format!("prompt_format = '{name}'"))]);
        let model = files.load().unwrap().models.remove(0);
        assert_eq!(model.prompt_format, name);
        assert!(model.settings.chat_template.contains("messages"), "{name}");
    }
    for wrong in [
        "prompt_format = 'alpaca'",
        "prompt_format = 'generic'\nchat_template = '{{ x }}'",
        "prompt_format = 'generic'\nrecipe = 'vllm'\nruntime = 'vllm'\ncheckpoint = 'x'",
    ] {
        let text = match wrong.contains("vllm") {
            true => format!("[models.a]\n{wrong}\n"),
            false => text(wrong),
        };
        let error = Files::new(&[&text]).problems().join("\n");
        assert!(error.contains("models.a.prompt_format"), "{error}");
    }
}

#[test]
fn seed_001_replica_max_is_at_least_replicas() {
    let read = |line: &str| Files::new(&[&format!("[models.a]\nruntime = 'stub'\n{line}\n")]);
    let of = |line: &str| {
        let model = read(line).load().unwrap().models.remove(0);
        (model.replicas.get(), model.replica_max.get())
    };
    assert_eq!(of(""), (1, 1));
    assert_eq!(of("replicas = 3"), (3, 3));
    assert_eq!(of("replicas = 3\nreplica_max = 4"), (3, 4));
    let error = read("replicas = 3\nreplica_max = 2").problems().join("\n");
    assert!(error.contains("models.a.replica_max"), "{error}");
}

#[test]
fn seed_001_settings_and_local_json_are_merged_like_toml() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let paths = [
        write("base.toml", "[policy]\nmax_loaded_models = 2\n"),
        write(
            "settings.json",
            r#"{"models": {"m": {"backend": "llama_cpp", "model_path": "m.gguf", "gguf_n_ctx": 4096, "gguf_type_k": "q8_0", "enabled": true}}}"#,
        ),
        write(
            "local.json",
            r#"{"models": {"m": {"gguf_n_ctx": 8192, "gguf_type_k": null},
                           "v": {"backend": "vllm", "model_path": "org/name", "vllm_max_model_len": 16384, "vllm_kv_cache_dtype": "fp8"}}}"#,
        ),
    ];
    let config = Config::load(&paths, None, &Defaults::default()).unwrap();
    let [m, v] = config.models.as_slice() else {
        panic!("{:?}", config.models)
    };
    assert_eq!((m.runtime.name(), m.enabled), ("llama_cpp", true));
    assert_eq!(
        (m.settings.ctx_size, m.settings.cache_type_k.as_str()),
        (8192, ""),
        "an explicit null resets"
    );
    assert_eq!(m.file.as_deref(), Some(dir.path().join("m.gguf").as_path()));
    let own: serde_json::Value = serde_json::from_str(&v.settings.runtime_json).unwrap();
    assert_eq!(
        own,
        serde_json::json!({"vllm_max_model_len": 16384, "vllm_kv_cache_dtype": "fp8"})
    );
    let wrong = write(
        "wrong.json",
        r#"{"models": {"m": {"backend": "llama_cpp", "model_path": "m.gguf", "vllm_max_pixels": 1}}}"#,
    );
    let error = Config::load(&[wrong], None, &Defaults::default()).unwrap_err();
    assert!(error.to_string().contains("vllm_max_pixels"), "{error}");
}

#[test]
fn requests_get_a_models_defaults() {
    let text = r#"
        [models.m]
        runtime = "stub"
        [models.m.defaults]
        temperature = 0.25
        top_k = 7
        samplers = ["top_k", "temperature"]
        system_prompt = "Be kind."
        chat_template_kwargs = '{"enable_thinking": false}'
        stop = ["END"]
        max_tokens = 9
    "#;
    let config = Files::new(&[text]).load().unwrap();
    let defaults = config.models[0].defaults.as_ref().unwrap();
    let sampling = defaults.sampling.as_ref().unwrap();
    assert_eq!((sampling.temperature, sampling.top_k), (Some(0.25), Some(7)));
    assert_eq!(sampling.samplers, ["top_k", "temperature"]);
    assert_eq!(defaults.template_kwargs_json, r#"{"enable_thinking":false}"#);
    assert_eq!(
        (defaults.system_prompt.as_str(), defaults.max_tokens),
        ("Be kind.", Some(9))
    );
    assert_eq!(
        Files::new(&["[models.m]\nruntime = \"stub\"\n[models.m.defaults]\n"])
            .load()
            .unwrap()
            .models[0]
            .defaults,
        None
    );
}

#[test]
fn defaults_of_requests_are_checked_as_requests_are() {
    let text = r#"
        [models.m]
        runtime = "stub"
        [models.m.defaults]
        top_p = 1.5
        top_k = "many"
        chat_template_kwargs = "[1]"
        max_tokens = 0
        temprature = 1
    "#;
    let problems = Files::new(&[text]).problems();
    assert_eq!(problems.len(), 5, "{problems:#?}");
    for key in [
        "top_p",
        "top_k",
        "chat_template_kwargs",
        "max_tokens",
        "temprature",
    ] {
        let named = format!("models.m.defaults.{key}:");
        assert!(
            problems.iter().any(|problem| problem.contains(&named)),
            "{key}: {problems:#?}"
        );
    }
}
