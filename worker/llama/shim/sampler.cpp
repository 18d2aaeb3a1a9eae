// Sampling through llama.cpp's common_sampler, with a shortcut for plain greedy decoding.
#include "internal.h"

llama_context * ms_raw_context(ms_context * c);

struct ms_sampler {
    const ms_model *          model = nullptr;
    common_sampler *          smpl  = nullptr;
    std::vector<llama_token>  preserved; // special tokens whose text is rendered
    bool                      greedy = false;
    bool                      reads_prompt = false; // penalties or DRY look at the prompt

    ~ms_sampler() { common_sampler_free(smpl); }
};

static bool has(const common_params_sampling & p, common_sampler_type type) {
    return std::find(p.samplers.begin(), p.samplers.end(), type) != p.samplers.end();
}

static bool penalises(const common_params_sampling & p) {
    const bool penalties = p.penalty_last_n != 0 && (p.penalty_repeat != 1.0f || p.penalty_freq != 0.0f || p.penalty_present != 0.0f);
    const bool dry       = p.dry_multiplier != 0.0f && p.dry_penalty_last_n != 0;
    return p.mirostat == 0 && (penalties || dry);
}

// True if the chain's result is the token with the highest logit, whatever the logits are (ties aside).
static bool is_greedy(const ms_model * m, const common_params_sampling & p) {
    int32_t n_suppress = 0;
    llama_vocab_get_suppress_tokens(m->vocab, &n_suppress);
    return p.temp <= 0.0f && p.dynatemp_range <= 0.0f && p.mirostat == 0 && p.grammar.empty() && p.reasoning_budget_start.empty() && p.logit_bias.empty() &&
           n_suppress == 0 && !penalises(p) && p.typ_p >= 1.0f && p.xtc_probability <= 0.0f && has(p, COMMON_SAMPLER_TYPE_TEMPERATURE) &&
           !has(p, COMMON_SAMPLER_TYPE_ADAPTIVE_P) && !has(p, COMMON_SAMPLER_TYPE_INFILL);
}

// Where llama.cpp keeps each parameter of requests (message Sampling of proto/muster/v1/inference.proto). Requests are read and the model's defaults
// shown by these lines.
template <typename P, typename F> static void each_parameter(P & p, F && row) {
    row("temperature",           p.temp);
    row("dynatemp_range",        p.dynatemp_range);
    row("dynatemp_exponent",     p.dynatemp_exponent);
    row("top_k",                 p.top_k);
    row("top_p",                 p.top_p);
    row("min_p",                 p.min_p);
    row("typical_p",             p.typ_p);
    row("top_n_sigma",           p.top_n_sigma);
    row("xtc_probability",       p.xtc_probability);
    row("xtc_threshold",         p.xtc_threshold);
    row("repeat_penalty",        p.penalty_repeat);
    row("repeat_last_n",         p.penalty_last_n);
    row("presence_penalty",      p.penalty_present);
    row("frequency_penalty",     p.penalty_freq);
    row("dry_multiplier",        p.dry_multiplier);
    row("dry_base",              p.dry_base);
    row("dry_allowed_length",    p.dry_allowed_length);
    row("dry_penalty_last_n",    p.dry_penalty_last_n);
    row("dry_sequence_breakers", p.dry_sequence_breakers);
    row("mirostat",              p.mirostat);
    row("mirostat_tau",          p.mirostat_tau);
    row("mirostat_eta",          p.mirostat_eta);
    row("seed",                  p.seed);
    row("samplers",              p.samplers);
    row("min_keep",              p.min_keep);
    row("ignore_eos",            p.ignore_eos);
    row("adaptive_target",       p.adaptive_target);
    row("adaptive_decay",        p.adaptive_decay);
}

using sampler_types = std::vector<enum common_sampler_type>;

struct parameter_reader {
    const common_json & j;

    template <typename T> void operator()(const char * name, T & field) const {
        if (j.contains(name)) {
            field = j.at(name).get<T>();
        }
    }
    void operator()(const char * name, float & field) const {
        if (j.contains(name)) {
            field = (float) j.at(name).get<double>();
        }
    }
    void operator()(const char * name, sampler_types & field) const {
        if (j.contains(name)) {
            field = common_sampler_types_from_names(j.at(name).get<std::vector<std::string>>());
        }
    }
};

struct parameter_writer {
    common_json & j;

    template <typename T> void operator()(const char * name, const T & field) const { j[name] = field; }
    void operator()(const char * name, const sampler_types & field) const {
        std::vector<std::string> names;
        for (const auto type : field) {
            names.push_back(common_sampler_type_to_str(type));
        }
        j[name] = names;
    }
};

common_json ms_parameters(const common_params_sampling & p) {
    auto shown = common_json::object();
    each_parameter(p, parameter_writer{ shown });
    return shown;
}

void ms_read_parameters(const common_json & j, common_params_sampling & p) {
    each_parameter(p, parameter_reader{ j });
}

static void read_spec(const common_json & j, common_params_sampling & p) {
    ms_read_parameters(j, p);
    if (j.contains("logit_bias")) {
        const auto & list = j.at("logit_bias");
        for (size_t i = 0; i < list.size(); i++) {
            p.logit_bias.push_back({ list.at(i).at(size_t(0)).get<int32_t>(), (float) list.at(i).at(size_t(1)).get<double>() });
        }
    }
    if (j.contains("never")) {
        for (const int32_t token : j.at("never").get<std::vector<int32_t>>()) {
            p.logit_bias.push_back({ token, -INFINITY });
        }
    }
}

// A sampler that a request's parameters need but its list leaves out is put where llama.cpp's own order has it (first).
static void add_needed(common_params_sampling & p) {
    if (p.mirostat != 0) {
        return;
    }
    const bool penalties = p.penalty_last_n != 0 && (p.penalty_repeat != 1.0f || p.penalty_freq != 0.0f || p.penalty_present != 0.0f);
    if (p.dry_multiplier != 0.0f && !has(p, COMMON_SAMPLER_TYPE_DRY)) {
        p.samplers.insert(p.samplers.begin(), COMMON_SAMPLER_TYPE_DRY);
    }
    if (penalties && !has(p, COMMON_SAMPLER_TYPE_PENALTIES)) {
        p.samplers.insert(p.samplers.begin(), COMMON_SAMPLER_TYPE_PENALTIES);
    }
}

static void read_chat(const ms_model * m, const ms_chat * chat, int32_t budget, const std::string & budget_message, common_params_sampling & p) {
    const auto & c = chat->format->params;
    if (!c.grammar.empty()) {
        p.grammar      = common_grammar(chat->format->grammar_type, c.grammar);
        p.grammar_lazy = c.grammar_lazy;
    }
    p.generation_prompt = c.generation_prompt;
    for (const auto & text : c.preserved_tokens) {
        const auto ids = common_tokenize(m->vocab, text, false, true);
        if (ids.size() == 1) {
            p.preserved_tokens.insert(ids[0]);
        }
    }
    for (const auto & trigger : c.grammar_triggers) {
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
            const auto ids = common_tokenize(m->vocab, trigger.value, false, true);
            if (ids.size() == 1 && p.preserved_tokens.count(ids[0]) > 0) {
                p.grammar_triggers.push_back({ COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN, trigger.value, ids[0] });
                continue;
            }
        }
        p.grammar_triggers.push_back(trigger);
    }
    if (!c.thinking_start_tag.empty() && !c.thinking_end_tags.empty() && (budget >= 0 || p.grammar_lazy)) {
        p.reasoning_budget_tokens = budget;
        p.reasoning_budget_start  = common_tokenize(m->vocab, c.thinking_start_tag, false, true);
        for (const auto & tag : c.thinking_end_tags) {
            auto ids = common_tokenize(m->vocab, tag, false, true);
            if (!ids.empty()) {
                p.reasoning_budget_end.push_back(std::move(ids));
            }
        }
        if (!p.reasoning_budget_end.empty()) {
            p.reasoning_budget_forced = common_tokenize(m->vocab, budget_message + c.thinking_end_tags.front(), false, true);
        } else {
            p.reasoning_budget_start.clear();
        }
    }
}

extern "C" int ms_sampler_new(const ms_model * m, const char * json, const ms_chat * chat, ms_sampler ** out, char * error) noexcept {
    return ms_guard(error, MS_INVALID, [&]() -> int {
        const auto j = common_json::parse(json);
        auto       p = m->defaults;
        read_spec(j, p);
        p.no_perf = true;
        if (chat != nullptr) {
            read_chat(m, chat, j.value<int32_t>("reasoning_budget", -1), j.value("reasoning_budget_message", ""), p);
        }
        if (j.contains("grammar")) {
            p.grammar = common_grammar(j.value<bool>("grammar_is_schema", false) ? COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT : COMMON_GRAMMAR_TYPE_USER,
                                       j.at("grammar").get<std::string>());
        }
        if (p.ignore_eos) {
            for (const llama_token t : m->eog) {
                p.logit_bias.push_back({ t, -INFINITY });
            }
        }
        add_needed(p);

        auto s          = std::make_unique<ms_sampler>();
        s->model        = m;
        s->greedy       = is_greedy(m, p) && !j.value<bool>("needs_candidates", false);
        s->reads_prompt = penalises(p);
        s->preserved.assign(p.preserved_tokens.begin(), p.preserved_tokens.end());
        s->smpl         = common_sampler_init(m->model, p);
        if (s->smpl == nullptr) {
            ms_copy_error(error, "the sampler could not be made");
            return MS_INVALID;
        }
        *out = s.release();
        return MS_OK;
    });
}

extern "C" void ms_sampler_free(ms_sampler * sampler) noexcept {
    delete sampler;
}

extern "C" int ms_sampler_accept_prompt(ms_sampler * s, const int32_t * tokens, size_t n, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        if (s->reads_prompt) {
            for (size_t i = 0; i < n; i++) {
                common_sampler_accept(s->smpl, tokens[i], false);
            }
        }
        return MS_OK;
    });
}

// The highest logit's token; -1 if it is not unique or not finite (then the chain decides, with its own order of ties).
static llama_token argmax(const float * logits, int32_t n) {
    float best = -INFINITY;
#pragma omp simd reduction(max : best)
    for (int32_t i = 0; i < n; i++) {
        best = logits[i] > best ? logits[i] : best;
    }
    if (!std::isfinite(best)) {
        return -1;
    }
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int32_t i = 0; i < n; i++) {
        count += logits[i] == best ? 1 : 0;
    }
    return count == 1 ? (llama_token) (std::find(logits, logits + n, best) - logits) : -1;
}

extern "C" int ms_sample(ms_sampler * s, ms_context * c, int32_t index, ms_sampled * out, char * piece, int32_t piece_cap, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        llama_context * ctx = ms_raw_context(c);
        llama_token     id  = -1;
        out->greedy = 0;
        if (s->greedy) {
            id = argmax(llama_get_logits_ith(ctx, index), llama_vocab_n_tokens(s->model->vocab));
            out->greedy = id >= 0 ? 1 : 0;
        }
        if (id < 0) {
            id = common_sampler_sample(s->smpl, ctx, index);
            // without a live candidate the chain still names a token; accepting it would abort in the grammar
            const auto * cur = common_sampler_get_candidates(s->smpl, false);
            if (id < 0 || cur->size == 0 || cur->selected < 0 || std::isnan(cur->data[cur->selected].logit) || cur->data[cur->selected].logit == -INFINITY) {
                return MS_DEAD_END;
            }
            common_sampler_accept(s->smpl, id, true);
        }
        const bool special = !s->preserved.empty() && std::binary_search(s->preserved.begin(), s->preserved.end(), id);
        out->token     = id;
        out->eog       = llama_vocab_is_eog(s->model->vocab, id) ? 1 : 0;
        out->piece_len = llama_token_to_piece(s->model->vocab, id, piece, piece_cap, 0, special);
        return MS_OK;
    });
}

extern "C" int ms_sampler_candidates(ms_sampler * s, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        const auto * cur = common_sampler_get_candidates(s->smpl, true);
        for (size_t i = 0; i < cur->size; i++) {
            if (cur->data[i].p <= 0.0f) {
                break;
            }
            struct { int32_t id; float p; } pair = { cur->data[i].id, cur->data[i].p };
            sink(user, reinterpret_cast<const uint8_t *>(&pair), sizeof(pair));
        }
        return MS_OK;
    });
}
