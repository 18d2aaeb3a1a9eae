// Model, vocabulary and facts about them.
#include "internal.h"

#include "chat-auto-parser.h"
#include "ggml.h"
#include "log.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

static ms_log g_log = nullptr;

void ms_native_log(ggml_log_level level, const char * text, void *) {
    if (g_log != nullptr && level != GGML_LOG_LEVEL_CONT && level != GGML_LOG_LEVEL_NONE) {
        g_log(level == GGML_LOG_LEVEL_DEBUG ? 1 : level == GGML_LOG_LEVEL_INFO ? 2 : level == GGML_LOG_LEVEL_WARN ? 3 : 4, text);
    }
}

extern "C" void ms_init(ms_log log, ms_abort on_abort) noexcept {
    g_log = log;
    ggml_set_abort_callback(on_abort);
    llama_log_set(ms_native_log, nullptr);
    // `common` logs prompts and outputs at its debug levels and from a thread of its own: keep it silent
    common_log_set_verbosity_thold(-1);
    common_log_pause(common_log_main());
    llama_backend_init();
}

static void read_defaults(const llama_model * model, common_params_sampling & out) {
    char value[128];
    const auto has = [&](llama_model_meta_key key) {
        return llama_model_meta_val_str(model, llama_model_meta_key_str(key), value, sizeof(value)) > 0;
    };
    const auto as_int   = [&](llama_model_meta_key key, int32_t & field) { if (has(key)) { field = std::stoi(value); } };
    const auto as_float = [&](llama_model_meta_key key, float & field) { if (has(key)) { field = std::stof(value); } };
    try {
        if (has(LLAMA_MODEL_META_KEY_SAMPLING_SEQUENCE)) {
            const auto list = common_sampler_types_from_names(string_split<std::string>(value, ';'));
            if (!list.empty()) {
                out.samplers = list;
            }
        }
        as_int  (LLAMA_MODEL_META_KEY_SAMPLING_TOP_K,           out.top_k);
        as_float(LLAMA_MODEL_META_KEY_SAMPLING_TOP_P,           out.top_p);
        as_float(LLAMA_MODEL_META_KEY_SAMPLING_MIN_P,           out.min_p);
        as_float(LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY, out.xtc_probability);
        as_float(LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD,   out.xtc_threshold);
        as_float(LLAMA_MODEL_META_KEY_SAMPLING_TEMP,            out.temp);
        as_int  (LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N,  out.penalty_last_n);
        as_float(LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT,  out.penalty_repeat);
        as_float(LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_TAU,    out.mirostat_tau);
        as_float(LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA,    out.mirostat_eta);
        int32_t mirostat = 0;
        as_int(LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT, mirostat);
        if (mirostat >= 0 && mirostat <= 2) {
            out.mirostat = mirostat;
        }
    } catch (const std::exception &) {
        out = common_params_sampling(); // a model file with nonsense in it: llama.cpp's own defaults
    }
}

// Whether `common` reads this template's answers with a hand-written parser: then what is known of one chat says nothing of another,
// and text after the first content may still be more than content.
static bool is_specialised(const std::string & source, const std::string & bos, const std::string & eos) {
    if (source.empty()) {
        return false;
    }
    try {
        const common_chat_template tmpl(source, bos, eos);
        autoparser::generation_params params;
        params.messages              = common_json::parse(R"([{"role":"user","content":"x"}])");
        params.add_generation_prompt = true;
        return common_chat_try_specialized_template(tmpl, source, params).has_value();
    } catch (const std::exception &) {
        return true; // it was recognised, and does not like this chat
    }
}

// Whether this is a name of llama.cpp's own templates (`--chat-template NAME`). Of these `common` knows chatml as a template; the others are code in
// llama.cpp that writes chats and knows neither tools nor thinking.
static bool is_builtin(const std::string & name) {
    std::vector<const char *> names((size_t) llama_chat_builtin_templates(nullptr, 0));
    llama_chat_builtin_templates(names.data(), names.size());
    return std::any_of(names.begin(), names.end(), [&](const char * known) { return name == known; });
}

static void read_templates(ms_model & m, const char * override) {
    const std::string given = override;
    m.builtin       = given != "chatml" && is_builtin(given);
    if (!given.empty() && given != "chatml" && !m.builtin && given.find('{') == std::string::npos) {
        throw std::invalid_argument("`" + given + "` is neither a template nor the name of one that llama.cpp has");
    }
    m.templates     = common_chat_templates_init(m.model, override);
    if (m.builtin) {
        return;
    }
    const auto * t  = m.templates.get();
    const auto text = [&](llama_token token) { return token < 0 ? std::string() : common_token_to_piece(m.vocab, token, true); };
    const auto bos  = text(llama_vocab_bos(m.vocab));
    const auto eos  = text(llama_vocab_eos(m.vocab));
    m.specialised   = is_specialised(common_chat_templates_source(t), bos, eos) || is_specialised(common_chat_templates_source(t, "tool_use"), bos, eos);
    m.thinking      = common_chat_templates_support_enable_thinking(t);
    m.parallel_calls = common_chat_templates_get_caps(t)["supports_parallel_tool_calls"];
}

static ggml_numa_strategy numa_of(const std::string & name) {
    if (name == "distribute") { return GGML_NUMA_STRATEGY_DISTRIBUTE; }
    if (name == "isolate")    { return GGML_NUMA_STRATEGY_ISOLATE; }
    if (name == "numactl")    { return GGML_NUMA_STRATEGY_NUMACTL; }
    throw std::invalid_argument("unknown NUMA strategy: " + name);
}

extern "C" int ms_model_load(const char * path, const char * params_json, const char * chat_template, ms_progress progress, void * user,
                             ms_model ** out, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        struct forward { ms_progress call; void * user; } state{ progress, user };

        const auto json   = common_json::parse(params_json);
        auto       params = llama_model_default_params();
        params.n_gpu_layers = json.value<int32_t>("n_gpu_layers", -1);
        std::unique_ptr<ms_places> places;
        const int refused = ms_guard(error, MS_INVALID, [&]() -> int {
            places = std::make_unique<ms_places>(json);
            return MS_OK;
        });
        if (refused != MS_OK) {
            return refused;
        }
        places->apply(params);
        if (json.contains("numa")) {
            llama_numa_init(numa_of(json.at("numa").get<std::string>()));
        }
        params.load_mode    = llama_load_mode_from_str(json.value<std::string>("load_mode", "auto").c_str());
        params.progress_callback = [](float fraction, void * raw) -> bool {
            const auto * s = static_cast<forward *>(raw);
            return s->call(fraction, s->user) != 0;
        };
        params.progress_callback_user_data = &state;

        auto m = std::make_unique<ms_model>();
        m->model = llama_model_load_from_file(path, params);
        if (m->model == nullptr) {
            ms_copy_error(error, "llama.cpp could not load the model");
            return MS_FAILED;
        }
        m->vocab = llama_model_get_vocab(m->model);
        read_defaults(m->model, m->defaults);
        if (json.contains("sampling")) {
            ms_read_parameters(json.at("sampling"), m->defaults);
        }
        const int32_t n_vocab = llama_vocab_n_tokens(m->vocab);
        for (llama_token t = 0; t < n_vocab; t++) {
            if (llama_vocab_is_eog(m->vocab, t)) {
                m->eog.push_back(t);
            }
        }
        try {
            read_templates(*m, chat_template);
        } catch (const std::exception & e) {
            m->templates.reset();
            m->template_error = e.what();
            if (chat_template[0] != '\0') {
                ms_copy_error(error, (std::string("the chat template is not usable: ") + e.what()).c_str());
                return MS_INVALID;
            }
        }
        *out = m.release();
        return MS_OK;
    });
}

extern "C" void ms_model_free(ms_model * model) noexcept {
    delete model;
}

extern "C" int ms_model_info(const ms_model * m, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        char desc[256] = "";
        llama_model_desc(m->model, desc, sizeof(desc));
        auto info = common_json::object();
        info["description"]  = std::string(desc);
        info["llama_cpp"]    = std::string(llama_version());
        info["n_vocab"]      = llama_vocab_n_tokens(m->vocab);
        size_t longest = 1;
        for (llama_token t = 0, n = llama_vocab_n_tokens(m->vocab); t < n; t++) {
            longest = std::max(longest, strlen(llama_vocab_get_text(m->vocab, t)));
        }
        info["longest_piece"] = longest;
        info["n_ctx_train"]  = llama_model_n_ctx_train(m->model);
        info["n_embd"]       = llama_model_n_embd(m->model);
        info["vocab_type"]   = static_cast<int32_t>(llama_vocab_type(m->vocab));
        info["n_embd_out"]   = llama_model_n_embd_out(m->model);
        info["n_cls_out"]    = llama_model_n_cls_out(m->model);
        info["n_params"]     = llama_model_n_params(m->model);
        info["size"]         = llama_model_size(m->model);
        info["n_swa"]        = llama_model_n_swa(m->model);
        info["recurrent"]    = llama_model_is_recurrent(m->model);
        info["hybrid"]       = llama_model_is_hybrid(m->model);
        info["has_encoder"]  = llama_model_has_encoder(m->model);
        info["has_decoder"]  = llama_model_has_decoder(m->model);
        info["diffusion"]    = llama_model_is_diffusion(m->model);
        info["bos"]          = llama_vocab_bos(m->vocab);
        info["eos"]          = llama_vocab_eos(m->vocab);
        info["sep"]          = llama_vocab_sep(m->vocab);
        info["add_bos"]      = llama_vocab_get_add_bos(m->vocab);
        info["add_eos"]      = llama_vocab_get_add_eos(m->vocab);
        info["add_sep"]      = llama_vocab_get_add_sep(m->vocab);
        info["fim_pre"]      = llama_vocab_fim_pre(m->vocab);
        info["fim_suf"]      = llama_vocab_fim_suf(m->vocab);
        info["fim_mid"]      = llama_vocab_fim_mid(m->vocab);
        info["fim_rep"]      = llama_vocab_fim_rep(m->vocab);
        info["fim_sep"]      = llama_vocab_fim_sep(m->vocab);
        info["thinking"]     = m->thinking;
        info["chat"]         = m->templates != nullptr;
        info["template"]     = m->templates ? common_chat_templates_source(m->templates.get()) : std::string();
        info["template_error"] = m->template_error;
        const char * rerank  = llama_model_chat_template(m->model, "rerank");
        info["rerank_template"] = std::string(rerank != nullptr ? rerank : "");
        auto caps = common_json::object();
        bool tools = false;
        if (m->templates) {
            for (const auto & [name, can] : common_chat_templates_get_caps(m->templates.get())) {
                caps[name] = can;
                tools = tools || (can && !m->builtin && name == "supports_tools");
            }
        }
        info["tools"] = tools;
        info["template_caps"] = caps;
        info["file_type"]     = std::string(llama_ftype_name(llama_model_ftype(m->model)));
        const auto text = [&](llama_token token) { return token < 0 ? std::string() : std::string(llama_vocab_get_text(m->vocab, token)); };
        info["eog"]           = std::vector<llama_token>(m->eog.begin(), m->eog.end());
        info["bos_text"]      = text(llama_vocab_bos(m->vocab));
        info["eos_text"]      = text(llama_vocab_eos(m->vocab));
        auto meta = common_json::object();
        for (int32_t i = 0, n = llama_model_meta_count(m->model); i < n; i++) {
            char key[256]; char value[512];
            if (llama_model_meta_key_by_index(m->model, i, key, sizeof(key)) > 0) {
                const int32_t len = llama_model_meta_val_str_by_index(m->model, i, value, sizeof(value));
                if (len >= 0 && len < 256) {
                    meta[key] = std::string(value);
                }
            }
        }
        info["metadata"] = meta;
        info["sampling"] = ms_parameters(m->defaults);
        ms_emit(sink, user, info.dump_safe());
        return MS_OK;
    });
}

extern "C" int ms_tokenize(const ms_model * m, const char * text, size_t len, int add_special, int parse_special, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_INVALID, [&]() -> int {
        std::vector<llama_token> tokens(len + 4);
        int32_t n = llama_tokenize(m->vocab, text, (int32_t) len, tokens.data(), (int32_t) tokens.size(), add_special != 0, parse_special != 0);
        if (n < 0) {
            if (n == INT32_MIN) {
                ms_copy_error(error, "the text is too long to tokenize");
                return MS_INVALID;
            }
            tokens.resize((size_t) -n);
            n = llama_tokenize(m->vocab, text, (int32_t) len, tokens.data(), (int32_t) tokens.size(), add_special != 0, parse_special != 0);
            if (n < 0) {
                ms_copy_error(error, "the text can't be tokenized");
                return MS_FAILED;
            }
        }
        sink(user, reinterpret_cast<const uint8_t *>(tokens.data()), (size_t) n * sizeof(llama_token));
        return MS_OK;
    });
}

extern "C" int ms_piece(const ms_model * m, int32_t token, int special, char * out, int32_t cap) noexcept {
    try {
        return llama_token_to_piece(m->vocab, token, out, cap, 0, special != 0);
    } catch (...) {
        return 0;
    }
}

extern "C" int ms_detokenize(const ms_model * m, const int32_t * tokens, size_t n, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        ms_emit(sink, user, common_detokenize(m->vocab, std::vector<llama_token>(tokens, tokens + n), true));
        return MS_OK;
    });
}

extern "C" void ms_give_back(void) noexcept {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

extern "C" int ms_is_eog(const ms_model * m, int32_t token) noexcept {
    return std::find(m->eog.begin(), m->eog.end(), token) != m->eog.end() ? 1 : 0;
}

extern "C" int ms_schema_to_grammar(const char * schema_json, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_INVALID, [&]() -> int {
        ms_emit(sink, user, json_schema_to_grammar(common_json::parse(schema_json)));
        return MS_OK;
    });
}
