//! llama.cpp's flags that are no settings with a field of their own: how they are read (llama.cpp's `common/arg.cpp`), and what they set.
//!
//! What the model and the context get is passed to the shim by llama.cpp's names for it; what requests get that say nothing themselves is
//! [`Defaults`].

use muster_core::{Code, Error};
use muster_proto::{
    llamacpp::{Said, control, find},
    parameters::{self, SAMPLING},
    v1::Sampling,
};
use serde_json::{Map, Value, json};

use crate::{limits::Defaults, model::Places};

/// What the flags of one load set.
#[derive(Clone, Debug, Default)]
pub(super) struct Tuning {
    model: Map<String, Value>,
    context: Map<String, Value>,
    /// Patterns of tensors' names, and the devices that have them; the first that fits counts.
    tensor_places: Vec<(String, String)>,
    /// What the file's header is to say instead, as `KEY=TYPE:VALUE`.
    kv_overrides: Vec<String>,
    /// How tokens are chosen for requests that do not say.
    pub(super) sampling: Sampling,
    pub(super) defaults: Defaults,
    /// Shares of the devices, where they are said.
    shares: Vec<f64>,
}

/// Flags with a value, and llama.cpp's name of the context's parameter that has it.
const CONTEXT: [(&str, &str); 8] = [
    ("--rope-scaling", "rope_scaling_type"),
    ("--rope-freq-base", "rope_freq_base"),
    ("--rope-freq-scale", "rope_freq_scale"),
    ("--yarn-orig-ctx", "yarn_orig_ctx"),
    ("--yarn-ext-factor", "yarn_ext_factor"),
    ("--yarn-attn-factor", "yarn_attn_factor"),
    ("--yarn-beta-slow", "yarn_beta_slow"),
    ("--yarn-beta-fast", "yarn_beta_fast"),
];
/// The same of the model.
const MODEL: [(&str, &str); 4] = [
    ("-sm", "split_mode"),
    ("-mg", "main_gpu"),
    ("--numa", "numa"),
    ("-lzm", "lazy_mode"),
];
/// Switches: the flag, whether it is the context's, the parameter, and what it becomes.
const SWITCHES: [(&str, bool, &str, bool); 8] = [
    ("-kvo", true, "offload_kqv", true),
    ("-nkvo", true, "offload_kqv", false),
    ("--op-offload", true, "op_offload", true),
    ("--no-op-offload", true, "op_offload", false),
    ("--repack", false, "use_extra_bufts", true),
    ("-nr", false, "use_extra_bufts", false),
    ("--no-host", false, "no_host", true),
    ("--check-tensors", false, "check_tensors", true),
];
/// Layers that `--n-cpu-moe` and `--n-cpu-ffn` count at most; llama.cpp has no model with more.
const LAYERS: u32 = 512;

impl Tuning {
    /// Takes a flag in; false if it is none of these.
    ///
    /// # Errors
    /// `invalid_load_request`, naming the flag: its value is none that it takes.
    pub(super) fn take(&mut self, said: &Said<'_>) -> Result<bool, Error> {
        let name = said.known_as();
        if let Some((_, key)) = CONTEXT.iter().find(|(flag, _)| *flag == name) {
            let value = value(said)?;
            self.context.insert((*key).to_owned(), value);
        } else if let Some((_, key)) = MODEL.iter().find(|(flag, _)| *flag == name) {
            let value = value(said)?;
            self.model.insert((*key).to_owned(), value);
        } else if let Some((_, context, key, on)) = SWITCHES.iter().find(|row| row.0 == name) {
            let part = if *context {
                &mut self.context
            } else {
                &mut self.model
            };
            part.insert((*key).to_owned(), (*on).into());
        } else if let Some(row) = SAMPLING.iter().find(|row| row.flags.contains(&said.name)) {
            let value = match row.kind {
                parameters::Kind::Bool => parameters::Value::Bool(true),
                kind @ (parameters::Kind::Float { .. }
                | parameters::Kind::Int { .. }
                | parameters::Kind::Words { .. }) => {
                    let word = said.valued()?;
                    kind.parse(word).ok_or_else(|| wrong(said, word))?
                }
            };
            (row.set)(&mut self.sampling, value);
        } else {
            return self.take_other(name, said);
        }
        Ok(true)
    }

    fn take_other(&mut self, name: &str, said: &Said<'_>) -> Result<bool, Error> {
        match name {
            "--rope-scale" => {
                let scale = number(said)?;
                if scale <= 0.0 {
                    return Err(wrong(said, said.valued()?));
                }
                self.context
                    .insert("rope_freq_scale".to_owned(), (1.0 / scale).into());
            }
            "-ts" => self.shares = shares(said)?,
            "-ot" => {
                for rule in said.valued()?.split(',') {
                    let (pattern, place) = rule.split_once('=').ok_or_else(|| wrong(said, rule))?;
                    self.place(pattern, place);
                }
            }
            // llama.cpp's own patterns (`common.h`)
            "-cmoe" => self.place(EXPERTS, CPU),
            "-ncmoe" => self.place_layers(said, EXPERTS)?,
            "-ncffn" => self.place_layers(said, DENSE)?,
            "--override-kv" => {
                self.kv_overrides.extend(control::rows(said.valued()?));
            }
            "--control-vector" | "--control-vector-scaled" => {
                let vectors = self.context.remove("control_vectors");
                let mut vectors = vectors.unwrap_or_else(|| json!([]));
                if let Value::Array(all) = &mut vectors {
                    all.extend(
                        control::vectors(said)?
                            .into_iter()
                            .map(|vector| json!([vector.path, vector.scale])),
                    );
                }
                self.context.insert("control_vectors".to_owned(), vectors);
            }
            "--control-vector-layer-range" => {
                let range = said.range()?;
                self.context.insert("control_layers".to_owned(), json!(range));
            }
            _ => return self.take_default(name, said),
        }
        Ok(true)
    }

    /// What requests get that say nothing themselves.
    fn take_default(&mut self, name: &str, said: &Said<'_>) -> Result<bool, Error> {
        let defaults = &mut self.defaults;
        match name {
            // below 0 = as long as there is room
            "-n" => defaults.max_tokens = u32::try_from(integer(said)?).ok(),
            "--cache-prompt" => defaults.no_cache = false,
            "--no-cache-prompt" => defaults.no_cache = true,
            "--spm-infill" => defaults.suffix_first = true,
            "--reasoning-format" => said.valued()?.clone_into(&mut defaults.reasoning_format),
            "-rea" => {
                defaults.thinking = match said.valued()? {
                    "on" => Some(true),
                    "off" => Some(false),
                    "auto" => None,
                    word => return Err(wrong(said, word)),
                }
            }
            "--reasoning-budget" => {
                let budget = integer(said)?;
                defaults.thinking_budget = (budget >= 0).then(|| i32::try_from(budget).unwrap_or(i32::MAX));
            }
            "--reasoning-budget-message" => said.valued()?.clone_into(&mut defaults.budget_message),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn place(&mut self, pattern: &str, place: &str) {
        self.tensor_places.push((pattern.to_owned(), place.to_owned()));
    }

    fn place_layers(&mut self, said: &Said<'_>, pattern: &str) -> Result<(), Error> {
        let layers = integer(said)?;
        for layer in 0..layers.clamp(0, LAYERS.into()) {
            self.place(&format!("blk\\.{layer}{pattern}"), CPU);
        }
        Ok(())
    }

    /// Parameters of the model, for the shim.
    pub(super) fn of_model(&self) -> Map<String, Value> {
        let mut model = self.model.clone();
        model.insert("tensor_places".to_owned(), json!(self.tensor_places));
        model.insert("kv_overrides".to_owned(), json!(self.kv_overrides));
        model.insert("sampling".to_owned(), sampling(&self.sampling));
        model
    }

    /// Parameters of the context, for the shim.
    pub(super) fn of_context(&self) -> Map<String, Value> {
        self.context.clone()
    }

    /// What the flags change in the model, but for the context's parameters: a sequence that was saved without it is another's.
    ///
    /// # Errors
    /// A control vector's file cannot be read.
    pub(super) fn identity(&self) -> std::io::Result<Vec<u8>> {
        let mut all = serde_json::to_vec(&self.kv_overrides)?;
        let vectors = self.context.get("control_vectors").and_then(Value::as_array);
        for path in vectors
            .into_iter()
            .flatten()
            .filter_map(|vector| vector[0].as_str())
        {
            all.append(&mut std::fs::read(path)?);
        }
        Ok(all)
    }

    /// Whether tensors lie elsewhere than their layers do: then no plan that was made from layers holds.
    pub(super) fn moves_tensors(&self) -> bool {
        !self.tensor_places.is_empty()
    }

    /// The longest text in tokens of a model that was trained on texts of `trained`: the flags that scale its positions stretch it.
    pub(super) fn stretched(&self, trained: u32) -> u32 {
        let scale = self.context.get("rope_freq_scale").and_then(Value::as_f64);
        let none = self.context.get("rope_scaling_type").and_then(Value::as_str) == Some("none");
        match scale {
            Some(scale) if scale > 0.0 && scale < 1.0 && !none => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "whole and positive, and a cast ends at the largest number"
                )]
                let tokens = (f64::from(trained) / scale).round() as u32;
                tokens
            }
            Some(_) | None => trained,
        }
    }

    /// Whether the flags agree with the devices that were reserved, each for an equal share.
    ///
    /// # Errors
    /// `invalid_load_request`, naming the flag that does not.
    pub(super) fn agree(&self, places: &Places) -> Result<(), Error> {
        let Some(devices) = places
            .devices
            .as_ref()
            .map(Vec::len)
            .filter(|devices| *devices > 0)
        else {
            // Without a device none of them has an effect; where llama.cpp chooses, nothing was reserved.
            return Ok(());
        };
        let main = self.model.get("main_gpu").and_then(Value::as_u64).unwrap_or(0);
        if main >= devices as u64 {
            return Err(bad(format!(
                "`--main-gpu {main}` is none of the {devices} devices that this model gets"
            )));
        }
        if self.model.get("split_mode").and_then(Value::as_str) == Some("none") && devices > 1 {
            return Err(bad(format!(
                "`--split-mode none` leaves the model on one device, and memory was reserved on {devices}"
            )));
        }
        let (given, beyond) = self.shares.split_at(self.shares.len().min(devices));
        let even = given.windows(2).all(|two| (two[0] - two[1]).abs() < f64::EPSILON);
        let whole = given.is_empty() || given.len() == devices && given[0] > 0.0;
        if !(even && whole && beyond.iter().all(|share| *share <= 0.0)) {
            return Err(bad(
                "`--tensor-split` must give all of the model's devices the same share: so their memory was reserved",
            ));
        }
        Ok(())
    }
}

/// Where the CPU's memory is meant, by ggml's name.
const CPU: &str = "CPU";
/// Names of the tensors of experts, and of plain feed-forward layers, in llama.cpp's own patterns (`common.h`).
const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";
const DENSE: &str = r"\.ffn_(up|down|gate)\.";

fn bad(message: impl Into<String>) -> Error {
    Code::InvalidLoadRequest.error(message)
}

fn wrong(said: &Said<'_>, value: &str) -> Error {
    bad(format!("`{}` does not take `{value}`", said.name))
}

/// A value of the type that the flag has.
fn value(said: &Said<'_>) -> Result<Value, Error> {
    let word = said.valued()?;
    let flag = find(said.name).filter(|flag| flag.fits(word));
    let read = flag.and_then(|flag| flag.takes.read(word));
    read.ok_or_else(|| wrong(said, word))
}

fn number(said: &Said<'_>) -> Result<f64, Error> {
    let word = said.valued()?;
    let number = word.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| bad(format!("`{}` needs a number, not `{word}`", said.name)))
}

fn integer(said: &Said<'_>) -> Result<i64, Error> {
    let word = said.valued()?;
    let fits = find(said.name).is_none_or(|flag| flag.fits(word));
    let number = word.parse().ok().filter(|_| fits);
    number.ok_or_else(|| bad(format!("`{}` needs a number, not `{word}`", said.name)))
}

/// Shares of devices, separated by commas or slashes.
fn shares(said: &Said<'_>) -> Result<Vec<f64>, Error> {
    let text = said.valued()?;
    let read = |word: &str| {
        let share = word.trim().parse().ok();
        share
            .filter(|share: &f64| share.is_finite() && *share >= 0.0)
            .ok_or_else(|| wrong(said, text))
    };
    text.split([',', '/']).map(read).collect()
}

/// What a sampling message sets, by the parameters' names.
fn sampling(sampling: &Sampling) -> Value {
    let said = SAMPLING.said(sampling);
    said.map(|(name, value)| (name.to_owned(), Value::from(value)))
        .collect::<Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::llamacpp::words;

    fn tuned(text: &str) -> Result<Tuning, Error> {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let mut tuning = Tuning::default();
        for said in words(&args) {
            assert!(tuning.take(&said)?, "{}", said.name);
        }
        Ok(tuning)
    }

    #[test]
    fn flags_become_llama_cpps_own_parameters() -> Result<(), Error> {
        let tuning = tuned(
            "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 2048 -nkvo --no-op-offload --control-vector a,b \
             --control-vector-scaled c:0.5 --control-vector-layer-range 1 3 \
             --numa isolate -nr --check-tensors --override-kv a.b=int:1,c=bool:true -ncmoe 2 -ot x=CPU --temp 0.5",
        )?;
        assert_eq!(
            Value::from(tuning.of_context()),
            json!({"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 2048, "offload_kqv": false, "op_offload": false,
                   "control_vectors": [["a", 1.0], ["b", 1.0], ["c", 0.5]], "control_layers": [1, 3]})
        );
        assert_eq!(
            Value::from(tuning.of_model()),
            json!({"numa": "isolate", "use_extra_bufts": false, "check_tensors": true, "kv_overrides": ["a.b=int:1", "c=bool:true"],
                   "tensor_places": [["blk\\.0\\.ffn_(up|down|gate|gate_up)_(ch|)exps", "CPU"], ["blk\\.1\\.ffn_(up|down|gate|gate_up)_(ch|)exps", "CPU"], ["x", "CPU"]],
                   "sampling": {"temperature": 0.5}})
        );
        assert_eq!(tuning.stretched(2048), 8192);
        assert_eq!(tuned("--rope-scaling none --rope-scale 4")?.stretched(2048), 2048);
        assert_eq!(tuned("--rope-freq-scale 2")?.stretched(2048), 2048);
        Ok(())
    }

    #[test]
    fn the_last_word_counts_and_what_requests_get_is_kept_apart() -> Result<(), Error> {
        let tuning = tuned(
            "-nkvo -kvo --no-cache-prompt --reasoning off -n 5 -n -1 --reasoning-budget 7 --spm-infill",
        )?;
        assert_eq!(Value::from(tuning.of_context()), json!({"offload_kqv": true}));
        let defaults = tuning.defaults;
        assert!(defaults.no_cache && defaults.suffix_first);
        assert_eq!((defaults.thinking, defaults.max_tokens), (Some(false), None));
        assert_eq!(defaults.thinking_budget, Some(7));
        Ok(())
    }

    #[test]
    fn what_a_flag_does_not_take_is_refused_by_its_name() {
        for (args, flag) in [
            ("--rope-scale 0", "--rope-scale"),
            ("--rope-freq-base nan", "--rope-freq-base"),
            ("--temp hot", "--temp"),
            ("--top-p 2", "--top-p"),
            ("-ot nothing", "-ot"),
            ("--reasoning maybe", "--reasoning"),
            ("-ts 1,x", "-ts"),
            ("--control-vector-scaled a", "--control-vector-scaled"),
            ("--control-vector-layer-range 1 x", "--control-vector-layer-range"),
        ] {
            let error = tuned(args).expect_err(args);
            assert!(error.message.contains(flag), "{args}: {}", error.message);
        }
    }

    #[test]
    fn devices_are_used_as_they_were_reserved_or_not_at_all() -> Result<(), Error> {
        let on = |devices: &[&str]| Places {
            devices: Some(devices.iter().map(|device| (*device).to_owned()).collect()),
            ..Places::default()
        };
        let (none, one, two) = (on(&[]), on(&["A"]), on(&["A", "B"]));
        for (args, places) in [
            ("-ts 3,1 -mg 5 -sm none", &none),
            ("-sm none -mg 0 -ts 1", &one),
            ("-ts 1,0", &one),
            ("-sm row -mg 1 -ts 2/2", &two),
        ] {
            assert!(tuned(args)?.agree(places).is_ok(), "{args}");
        }
        for (args, places, flag) in [
            ("-mg 1", &one, "--main-gpu"),
            ("-sm none", &two, "--split-mode"),
            ("-ts 3,1", &two, "--tensor-split"),
            ("-ts 1", &two, "--tensor-split"),
            ("-ts 0,1", &two, "--tensor-split"),
            ("-ts 0", &one, "--tensor-split"),
        ] {
            let error = tuned(args)?.agree(places).expect_err(args);
            assert!(error.message.contains(flag), "{args}: {}", error.message);
        }
        Ok(())
    }
}
