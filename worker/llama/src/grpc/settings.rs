//! Model settings: llama.cpp's own flags folded in, defaults filled, what this engine can't do refused by name.

use std::path::{Path, PathBuf};

use muster_core::{Code, Error};
use muster_gguf::{Facts, Gguf, Kind};
use muster_proto::{
    llamacpp::{LoadMode, SLOT_FILES, Said, Takes, default, last_of, outputs, splits_cache, value_of, words},
    parameters::SAMPLING,
    settings,
    v1::{ModelSettings, ModelType},
};

use super::{convert::unsupported, tuning::Tuning};
use crate::{context::ContextParams, guard, limits::Role, model::ModelInfo};

/// A load request's settings, with `args` folded in.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) settings: ModelSettings,
    pub(super) role: Role,
    /// Threads were left to us.
    pub(super) choose_threads: bool,
    pub(super) mode: LoadMode,
    /// The folder in which sequences are saved.
    pub(super) slot_files: Option<PathBuf>,
    /// What its flags say besides.
    pub(super) tuning: Tuning,
}

/// Cores this process may use at a time: its affinity and its cgroup's quota are respected.
pub(super) fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores).unwrap_or(1)
}

fn bad(message: impl Into<String>) -> Error {
    Code::InvalidLoadRequest.error(message)
}

/// Reads the settings.
pub(super) fn read(settings: &ModelSettings) -> Result<Wanted, Error> {
    let mut settings = settings.clone();
    let args = std::mem::take(&mut settings.args);
    let mut tuning = Tuning::default();
    for said in words(&args) {
        fold(&mut settings, &mut tuning, &said)?;
    }
    // a window of the whole context is as long as it
    let context = if settings.ctx_size == 0 {
        default::CONTEXT
    } else {
        settings.ctx_size
    };
    SAMPLING.within(&mut tuning.sampling, context);
    let mode = LoadMode::of(&args);
    if mode.is_none() && last_of(&args, &LoadMode::FLAGS).is_some() {
        return Err(bad("this engine has no such `--load-mode`"));
    }
    settings.args = args;
    let slot_files = slot_files(&settings.args)?;
    if !settings.draft.is_empty() {
        return Err(unsupported("draft", "this engine does no speculative decoding"));
    }
    if !Path::new(&settings.checkpoint).is_file() {
        return Err(Code::FileNotFound.error(format!("there is no file `{}`", settings.checkpoint)));
    }
    let role = match ModelType::try_from(settings.r#type) {
        Ok(ModelType::Llm | ModelType::Unspecified) => Role::Generate,
        Ok(ModelType::Embedding) => Role::Embed,
        Ok(ModelType::Reranking) => Role::Rerank,
        Ok(ModelType::Audio | ModelType::Image) | Err(_) => {
            return Err(unsupported(
                "type",
                "this engine serves text, embeddings and reranking",
            ));
        }
    };
    check_kind(&settings, role)?;
    check_adapters(&settings, role)?;
    if !settings.mmproj.is_empty() {
        if role != Role::Generate {
            let why = "this engine makes vectors and scores of text alone";
            return Err(unsupported("mmproj", why));
        }
        if !Path::new(&settings.mmproj).is_file() {
            return Err(Code::FileNotFound.error(format!("there is no file `{}`", settings.mmproj)));
        }
    }
    let choose_threads = settings.threads == 0;
    Ok(Wanted {
        settings,
        role,
        choose_threads,
        mode: mode.unwrap_or_default(),
        slot_files,
        tuning,
    })
}

/// The folder in which sequences are saved, which must be there.
fn slot_files(args: &[String]) -> Result<Option<PathBuf>, Error> {
    let Some(folder) = value_of(args, SLOT_FILES) else {
        return Ok(None);
    };
    if !Path::new(folder).is_dir() {
        return Err(bad(format!("`{SLOT_FILES}`: there is no folder `{folder}`")));
    }
    Ok(Some(folder.into()))
}

/// A model is loaded for what it was made for: without the right head llama.cpp computes something meaningless, or aborts. A file that is not
/// understood passes: llama.cpp will say what is wrong with it.
fn check_kind(settings: &ModelSettings, role: Role) -> Result<(), Error> {
    let gguf = Gguf::open(Path::new(&settings.checkpoint));
    let Some(facts) = gguf.ok().and_then(|gguf| Facts::read(&gguf).ok()) else {
        return Ok(());
    };
    let message = match (role, facts.kind) {
        (_, Kind::Part) => "this file is a part of a model (an adapter or a projector), no model",
        (Role::Generate, Kind::Embedding) => {
            "this model gives vectors, it writes no text: label it `embeddings`"
        }
        (Role::Generate, Kind::Reranking) => {
            "this model scores documents, it writes no text: label it `reranking`"
        }
        (Role::Rerank, Kind::Text | Kind::Embedding) => {
            "this model has no head that scores documents: it is no reranker"
        }
        (Role::Rerank, Kind::Reranking) if !["", "rank"].contains(&settings.pooling.as_str()) => {
            "reranking needs the pooling `rank`"
        }
        (Role::Embed, Kind::Reranking) if settings.pooling.is_empty() => {
            "this model scores documents, it gives no vectors: label it `reranking`"
        }
        (Role::Generate, Kind::Text) | (Role::Embed, _) | (Role::Rerank, Kind::Reranking) => return Ok(()),
    };
    Err(bad(message))
}

/// Adapters fit the model's architecture; what is not understood of a file llama.cpp will say.
fn check_adapters(settings: &ModelSettings, role: Role) -> Result<(), Error> {
    if !settings.lora.is_empty() && role != Role::Generate {
        let why = "this engine applies adapters to models that write text";
        return Err(unsupported("lora", why));
    }
    let header = |path: &str| Gguf::open(Path::new(path)).ok();
    let model = header(&settings.checkpoint);
    for adapter in &settings.lora {
        let path = &adapter.path;
        let wrong = |what: &str| bad(format!("the adapter `{path}` {what}")).with_param("lora");
        if !Path::new(path).is_file() {
            return Err(Code::FileNotFound.error(format!("there is no file `{path}`")));
        }
        if !adapter.scale.is_finite() {
            return Err(wrong("has no number as its scale"));
        }
        let (Some(model), Some(adapter)) = (&model, header(path)) else {
            continue;
        };
        if adapter.metadata().text("adapter.type") != Some("lora") {
            return Err(wrong("is no LoRA adapter"));
        }
        let of = |file: &Gguf| file.metadata().text("general.architecture").map(str::to_owned);
        if of(&adapter) != of(model) {
            return Err(wrong("was made for another architecture"));
        }
    }
    Ok(())
}

/// One flag of llama.cpp.
fn fold(wanted: &mut ModelSettings, tuning: &mut Tuning, said: &Said<'_>) -> Result<(), Error> {
    let flag = said.name;
    if let Some(setting) = settings::flagged(flag).filter(|setting| setting.ours) {
        let value = if setting.takes == Takes::Nothing {
            true.into()
        } else {
            let text = said.valued()?;
            let wrong = || bad(format!("`{flag}` needs a number, not `{text}`"));
            setting.takes.read(text).ok_or_else(wrong)?
        };
        (setting.set)(wanted, &value);
        return Ok(());
    }
    match flag {
        "--chat-template-file" => {
            let path = said.valued()?;
            wanted.chat_template = std::fs::read_to_string(path)
                .map_err(|error| bad(format!("the chat template `{path}` can't be read: {error}")))?;
        }
        // `LoadMode::of` reads them
        "--mmap" | "--no-mmap" | "--mlock" => {}
        "-lm" | "--load-mode" => drop(said.valued()?),
        "--embedding" | "--embeddings" => wanted.r#type = ModelType::Embedding.into(),
        "--rerank" | "--reranking" => wanted.r#type = ModelType::Reranking.into(),
        // what this engine always does
        "--jinja" | "-cb" | "--cont-batching" | "--no-warmup" | "--warmup" => {}
        // `llamacpp::shifts` reads them
        "--context-shift" | "--no-context-shift" => {}
        "--keep" => {
            let text = said.valued()?;
            let number = Takes::Integer.read(text);
            number.ok_or_else(|| bad(format!("`{flag}` needs a number, not `{text}`")))?;
        }
        // `llamacpp::guesses` reads it
        "--spec-type" => {
            let drafts = said.valued()?;
            if !said.flag.is_some_and(|flag| flag.is_ours(Some(drafts))) {
                return Err(bad(format!("this engine does not draft by `{drafts}`")));
            }
        }
        // `llamacpp::splits_cache` reads them
        "-kvu" | "--kv-unified" | "-no-kvu" | "--no-kv-unified" => {}
        // what our gateway reads (seed 004, `/slots` and `POST /props`)
        "--slots" | "--props" | "--metrics" => {}
        // [`slot_files`] reads it
        SLOT_FILES => drop(said.valued()?),
        _ if tuning.take(said)? => {}
        _ => {
            return Err(bad(format!("`{flag}` is not a flag this engine can honour")));
        }
    }
    Ok(())
}

impl Wanted {
    /// The context for a model, every default filled in; `settings` then says what is in force.
    pub(super) fn context(&mut self, info: &ModelInfo) -> Result<ContextParams, Error> {
        let generate = self.role == Role::Generate;
        if generate && (info.diffusion || info.has_encoder || !info.has_decoder) {
            return Err(unsupported(
                "checkpoint",
                "this engine generates with decoder-only models",
            ));
        }
        self.sized(info.n_ctx_train)
    }

    /// The context's parameters, defaults filled in; `n_ctx_train` is the most the model was trained for.
    ///
    /// # Errors
    /// `invalid_load_request`: sizes that don't go together.
    pub(super) fn sized(&mut self, n_ctx_train: u32) -> Result<ContextParams, Error> {
        let generate = self.role == Role::Generate;
        let s = &mut self.settings;
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        s.ctx_size = or(s.ctx_size, n_ctx_train.clamp(1, default::CONTEXT));
        s.sequences = or(s.sequences, default::SEQUENCES.min(s.ctx_size));
        if generate {
            s.batch_size = or(s.batch_size, default::BATCH.max(s.sequences)).min(s.ctx_size);
            s.ubatch_size = or(s.ubatch_size, default::UBATCH).min(s.batch_size);
        } else {
            // whole inputs must fit one graph run
            let room = or(s.ubatch_size, default::BATCH.max(s.batch_size)).min(s.ctx_size);
            s.batch_size = room;
            s.ubatch_size = room;
        }
        guard::context(s.ctx_size, s.batch_size, s.ubatch_size, s.sequences)
            .map_err(|refusal| bad(refusal.message))?;
        if s.threads == 0 {
            s.threads = cores();
        }
        if s.threads > 512 || s.threads_batch > 512 {
            return Err(bad("more than 512 threads"));
        }
        s.threads_batch = or(s.threads_batch, s.threads);
        let text = |value: &mut String, default: &str| {
            if value.is_empty() {
                default.clone_into(value);
            }
            value.clone()
        };
        let pooling = if self.role == Role::Rerank {
            text(&mut s.pooling, "rank")
        } else {
            s.pooling.clone()
        };
        Ok(ContextParams {
            n_ctx: s.ctx_size,
            n_batch: s.batch_size,
            n_ubatch: s.ubatch_size,
            n_seq_max: s.sequences,
            n_outputs_max: if generate {
                outputs(s.sequences, &s.args).min(s.batch_size)
            } else {
                0
            },
            n_threads: i32::try_from(s.threads).unwrap_or(1),
            n_threads_batch: i32::try_from(s.threads_batch).unwrap_or(1),
            embeddings: !generate,
            swa_full: s.swa_full,
            kv_unified: !splits_cache(&s.args),
            type_k: text(&mut s.cache_type_k, "f16"),
            type_v: text(&mut s.cache_type_v, "f16"),
            pooling,
            flash_attention: text(&mut s.flash_attention, "auto"),
            tuning: self.tuning.of_context(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold_all(args: &[&str]) -> Result<ModelSettings, Error> {
        let mut settings = ModelSettings::default();
        let args: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
        for said in words(&args) {
            fold(&mut settings, &mut Tuning::default(), &said)?;
        }
        Ok(settings)
    }

    #[test]
    fn seed_000_example_arguments_are_honoured() -> Result<(), Error> {
        let settings = fold_all(&["--flash-attn", "on", "--no-mmap"])?;
        assert_eq!(settings.flash_attention, "on");
        Ok(())
    }

    #[test]
    fn flags_are_folded_in() -> Result<(), Error> {
        let settings = fold_all(&["-c", "1024", "--parallel=8", "-ngl", "all", "--swa-full"])?;
        assert_eq!(
            (settings.ctx_size, settings.sequences, settings.gpu_layers),
            (1024, 8, Some(-1))
        );
        assert!(settings.swa_full);
        Ok(())
    }

    #[test]
    fn exactly_the_flags_that_the_controller_counts_on_are_honoured() {
        use muster_proto::llamacpp::{Takes, beyond_embedded, check, flags};
        let checked = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            check(&words).is_ok()
        };
        let ours = || flags().filter(|flag| flag.ours && flag.our_words.is_empty());
        for flag in ours().filter(|flag| flag.takes != Takes::Nothing) {
            // A file that is not there is another matter.
            let file = flag.names.contains(&"--chat-template-file");
            let fitting = match flag.takes {
                Takes::Word(words) => words[0],
                Takes::Parameter(muster_proto::parameters::Kind::Words { .. }) => "top_k",
                Takes::Parameter(muster_proto::parameters::Kind::Float { .. }) => "0.5",
                Takes::Text if flag.names.contains(&"-ot") => "a=CPU",
                Takes::Text if flag.names.contains(&"--control-vector-scaled") => "a:1",
                Takes::Nothing
                | Takes::Count
                | Takes::Layers
                | Takes::Integer
                | Takes::Number
                | Takes::Words(_)
                | Takes::Parameter(_)
                | Takes::Range
                | Takes::Text => "1",
            };
            for name in flag.names.iter().copied() {
                let mut words = vec![name, fitting];
                if flag.takes == Takes::Range {
                    words.push(fitting);
                }
                let refused = fold_all(&words).err().filter(|_| !file);
                assert!(refused.is_none(), "{name}: {refused:?}");
                assert!(fold_all(&[name]).is_err(), "{name} needs a value");
                assert!(checked(&words) && !checked(&[name]), "{name}");
                if let Takes::Count | Takes::Layers | Takes::Integer | Takes::Number | Takes::Parameter(_) =
                    flag.takes
                {
                    for value in ["many", "-1", "all"] {
                        // The list does not know that it divides.
                        let same = checked(&[name, value]) == fold_all(&[name, value]).is_ok();
                        assert!(same || value == "-1" && name == "--rope-scale", "{name} {value}");
                    }
                }
            }
        }
        let alone = ours().filter(|flag| flag.takes == Takes::Nothing);
        for flag in alone.flat_map(|flag| flag.names).copied() {
            let refused = fold_all(&[flag]).err();
            assert!(refused.is_none(), "{flag}: {refused:?}");
        }
        for (flag, word) in flags().flat_map(|flag| flag.our_words.iter().map(move |word| (flag, word))) {
            let name = flag.names[0];
            assert!(
                fold_all(&[name, word]).is_ok() && checked(&[name, word]),
                "{name} {word}"
            );
            assert!(
                fold_all(&[name, "draft-mtp"]).is_err() && !checked(&[name, "draft-mtp"]),
                "{name}"
            );
        }
        let theirs = flags().filter(|flag| !flag.ours).flat_map(|flag| flag.names);
        for flag in ["--grp-attn-n", "--rpc", "--lora", "stray"].iter().chain(theirs) {
            let flag = *flag;
            let words = [flag.to_owned()];
            assert_eq!(beyond_embedded(&words), Some(flag));
            assert!(fold_all(&[flag]).is_err(), "{flag}");
        }
    }

    #[test]
    fn a_flag_that_cannot_be_honoured_is_named() {
        let error = fold_all(&["--grp-attn-n", "2"]).expect_err("an unknown flag");
        assert!(error.message.contains("--grp-attn-n"));
        assert!(fold_all(&["-c"]).is_err());
        assert!(fold_all(&["-c", "many"]).is_err());
    }
}
