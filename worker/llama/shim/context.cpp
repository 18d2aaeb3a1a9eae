// Context: decode, memory operations, outputs.
#include "internal.h"

#include "fit.h"

struct ms_context {
    llama_context *            ctx = nullptr;
    llama_memory_t             memory = nullptr; // null for models without one (BERT)
    std::vector<int32_t>       n_seq_id;         // all ones
    std::vector<llama_seq_id *> seq_ptr;

    ~ms_context() { llama_free(ctx); }
};

static ggml_type cache_type(const std::string & name) {
    for (const ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1 }) {
        if (name == ggml_type_name(type)) {
            return type;
        }
    }
    throw std::invalid_argument("unknown cache type: " + name);
}

static enum llama_pooling_type pooling_type(const std::string & name) {
    if (name == "none") { return LLAMA_POOLING_TYPE_NONE; }
    if (name == "mean") { return LLAMA_POOLING_TYPE_MEAN; }
    if (name == "cls")  { return LLAMA_POOLING_TYPE_CLS; }
    if (name == "last") { return LLAMA_POOLING_TYPE_LAST; }
    if (name == "rank") { return LLAMA_POOLING_TYPE_RANK; }
    if (name.empty())   { return LLAMA_POOLING_TYPE_UNSPECIFIED; }
    throw std::invalid_argument("unknown pooling: " + name);
}

static const char * pooling_name(enum llama_pooling_type type) {
    switch (type) {
        case LLAMA_POOLING_TYPE_MEAN: return "mean";
        case LLAMA_POOLING_TYPE_CLS:  return "cls";
        case LLAMA_POOLING_TYPE_LAST: return "last";
        case LLAMA_POOLING_TYPE_RANK: return "rank";
        default:                      return "none";
    }
}

static llama_flash_attn_type flash_type(const std::string & name) {
    if (name == "on")  { return LLAMA_FLASH_ATTN_TYPE_ENABLED; }
    if (name == "off") { return LLAMA_FLASH_ATTN_TYPE_DISABLED; }
    if (name.empty() || name == "auto") { return LLAMA_FLASH_ATTN_TYPE_AUTO; }
    throw std::invalid_argument("unknown flash attention setting: " + name);
}

static llama_rope_scaling_type rope_type(const std::string & name) {
    if (name == "none")   { return LLAMA_ROPE_SCALING_TYPE_NONE; }
    if (name == "linear") { return LLAMA_ROPE_SCALING_TYPE_LINEAR; }
    if (name == "yarn")   { return LLAMA_ROPE_SCALING_TYPE_YARN; }
    throw std::invalid_argument("unknown scaling of positions: " + name);
}

// What flags say besides (tuning.rs).
static void read_tuning(const common_json & json, llama_context_params & params) {
    if (json.contains("rope_scaling_type")) {
        params.rope_scaling_type = rope_type(json.at("rope_scaling_type").get<std::string>());
    }
    params.rope_freq_base   = json.value<float>("rope_freq_base", params.rope_freq_base);
    params.rope_freq_scale  = json.value<float>("rope_freq_scale", params.rope_freq_scale);
    params.yarn_orig_ctx    = json.value<uint32_t>("yarn_orig_ctx", params.yarn_orig_ctx);
    params.yarn_ext_factor  = json.value<float>("yarn_ext_factor", params.yarn_ext_factor);
    params.yarn_attn_factor = json.value<float>("yarn_attn_factor", params.yarn_attn_factor);
    params.yarn_beta_slow   = json.value<float>("yarn_beta_slow", params.yarn_beta_slow);
    params.yarn_beta_fast   = json.value<float>("yarn_beta_fast", params.yarn_beta_fast);
    params.offload_kqv      = json.value<bool>("offload_kqv", params.offload_kqv);
    params.op_offload       = json.value<bool>("op_offload", params.op_offload);
}

static llama_context_params read_params(const char * params_json) {
    const auto json   = common_json::parse(params_json);
    auto       params = llama_context_default_params();
    params.n_ctx           = json.at("n_ctx").get<uint32_t>();
    params.n_batch         = json.at("n_batch").get<uint32_t>();
    params.n_ubatch        = json.at("n_ubatch").get<uint32_t>();
    params.n_seq_max       = json.at("n_seq_max").get<uint32_t>();
    params.n_outputs_max   = json.at("n_outputs_max").get<uint32_t>();
    params.n_threads       = json.at("n_threads").get<int32_t>();
    params.n_threads_batch = json.at("n_threads_batch").get<int32_t>();
    params.embeddings      = json.at("embeddings").get<bool>();
    params.swa_full        = json.at("swa_full").get<bool>();
    params.type_k          = cache_type(json.at("type_k").get<std::string>());
    params.type_v          = cache_type(json.at("type_v").get<std::string>());
    params.pooling_type    = pooling_type(json.at("pooling").get<std::string>());
    params.flash_attn_type = flash_type(json.at("flash_attention").get<std::string>());
    params.kv_unified      = json.at("kv_unified").get<bool>();
    params.no_perf         = true;
    read_tuning(json, params);
    return params;
}

// With the layers and the context given, `common` has nothing left to change: it says whether they fit.
extern "C" int ms_fits(const char * path, const char * model_json, const char * params_json, int * fits, char * error) noexcept {
    return ms_guard(error, MS_INVALID, [&]() -> int {
        auto model   = llama_model_default_params();
        auto context = read_params(params_json);
        const auto json = common_json::parse(model_json);
        model.n_gpu_layers = json.value<int32_t>("n_gpu_layers", -1);
        ms_places places(json);
        places.apply(model);
        std::vector<float> split(llama_max_devices());
        std::vector<llama_model_tensor_buft_override> overrides(llama_max_tensor_buft_overrides());
        std::vector<size_t> margins(std::max<size_t>(1, llama_max_devices()), 0);
        const auto status = common_fit_params(path, &model, &context, split.data(), overrides.data(), margins.data(), context.n_ctx, nullptr, GGML_LOG_LEVEL_ERROR);
        if (status == COMMON_PARAMS_FIT_STATUS_ERROR) {
            ms_copy_error(error, "llama.cpp could not lay out the model");
            return MS_FAILED;
        }
        *fits = status == COMMON_PARAMS_FIT_STATUS_SUCCESS;
        return MS_OK;
    });
}

// Adds the control vectors to what the context's layers compute.
static void apply_control(const ms_model * m, llama_context * ctx, const common_json & json) {
    std::vector<common_control_vector_load_info> files;
    const auto & list = json.at("control_vectors");
    for (size_t i = 0; i < list.size(); i++) {
        files.push_back({ (float) list.at(i).at(size_t(1)).get<double>(), list.at(i).at(size_t(0)).get<std::string>() });
    }
    const auto vectors = common_control_vector_load(files);
    if (vectors.n_embd == -1) {
        throw std::invalid_argument("a control vector can't be read: it wants tensors `direction.LAYER` of 32-bit numbers, all as wide as the model");
    }
    if (vectors.n_embd != llama_model_n_embd(m->model)) {
        throw std::invalid_argument("a control vector is " + std::to_string(vectors.n_embd) + " wide, the model " + std::to_string(llama_model_n_embd(m->model)));
    }
    // as `common` reads the range: what is not above 0 is the first layer, and the last
    int32_t first = 0, last = 0;
    if (json.contains("control_layers")) {
        first = json.at("control_layers").at(size_t(0)).get<int32_t>();
        last  = json.at("control_layers").at(size_t(1)).get<int32_t>();
    }
    first = first <= 0 ? 1 : first;
    last  = last <= 0 ? llama_model_n_layer(m->model) : last;
    if (llama_set_adapter_cvec(ctx, vectors.data.data(), vectors.data.size(), vectors.n_embd, first, last) != 0) {
        throw std::invalid_argument("llama.cpp does not take the control vectors for this model");
    }
}

extern "C" int ms_context_new(ms_model * m, const char * params_json, ms_context ** out, char * error) noexcept {
    return ms_guard(error, MS_INVALID, [&]() -> int {
        const auto params = read_params(params_json);
        auto c = std::make_unique<ms_context>();
        c->ctx = llama_init_from_model(m->model, params);
        if (c->ctx == nullptr) {
            ms_copy_error(error, "llama.cpp could not create the context");
            return MS_FAILED;
        }
        const auto json = common_json::parse(params_json);
        if (json.contains("control_vectors")) {
            apply_control(m, c->ctx, json);
        }
        c->memory = llama_get_memory(c->ctx);
        c->n_seq_id.assign(params.n_batch, 1);
        c->seq_ptr.resize(params.n_batch);
        *out = c.release();
        return MS_OK;
    });
}

extern "C" void ms_context_free(ms_context * ctx) noexcept {
    delete ctx;
}

extern "C" int ms_context_info(const ms_context * c, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        auto info = common_json::object();
        info["n_ctx"]      = llama_n_ctx(c->ctx);
        info["n_ctx_seq"]  = llama_n_ctx_seq(c->ctx);
        info["n_batch"]    = llama_n_batch(c->ctx);
        info["n_ubatch"]   = llama_n_ubatch(c->ctx);
        info["n_seq_max"]  = llama_n_seq_max(c->ctx);
        info["pooling"]    = std::string(pooling_name(llama_pooling_type(c->ctx)));
        info["has_memory"] = c->memory != nullptr;
        ms_emit(sink, user, info.dump_safe());
        return MS_OK;
    });
}

extern "C" void ms_set_threads(ms_context * c, int32_t threads, int32_t threads_batch) noexcept {
    llama_set_n_threads(c->ctx, threads, threads_batch);
}

extern "C" void ms_set_stop(ms_context * c, ms_stop stop, void * user) noexcept {
    llama_set_abort_callback(c->ctx, stop, user);
}

extern "C" int ms_decode(ms_context * c, int32_t n, const int32_t * tokens, const int32_t * pos, const int32_t * seq, const int8_t * output) noexcept {
    try {
        for (int32_t i = 0; i < n; i++) {
            c->seq_ptr[(size_t) i] = const_cast<llama_seq_id *>(seq + i);
        }
        llama_batch batch = {};
        batch.n_tokens = n;
        batch.token    = const_cast<llama_token *>(tokens);
        batch.pos      = const_cast<llama_pos *>(pos);
        batch.n_seq_id = c->n_seq_id.data();
        batch.seq_id   = c->seq_ptr.data();
        batch.logits   = const_cast<int8_t *>(output);
        const int code = llama_decode(c->ctx, batch);
        if (code == 0) {
            llama_synchronize(c->ctx);
        }
        return code;
    } catch (...) {
        return -1000;
    }
}

extern "C" int ms_seq_rm(ms_context * c, int32_t seq, int32_t p0, int32_t p1) noexcept {
    try {
        return c->memory == nullptr || llama_memory_seq_rm(c->memory, seq, p0, p1) ? 1 : 0;
    } catch (...) {
        return 0;
    }
}

extern "C" void ms_seq_cp(ms_context * c, int32_t from, int32_t to) noexcept {
    try {
        if (c->memory != nullptr) {
            llama_memory_seq_cp(c->memory, from, to, -1, -1);
        }
    } catch (...) {
        // the caller checks the copy by its last position
    }
}

extern "C" int32_t ms_seq_pos_min(ms_context * c, int32_t seq) noexcept {
    return c->memory == nullptr ? -1 : llama_memory_seq_pos_min(c->memory, seq);
}

extern "C" int32_t ms_seq_pos_max(ms_context * c, int32_t seq) noexcept {
    return c->memory == nullptr ? -1 : llama_memory_seq_pos_max(c->memory, seq);
}

extern "C" void ms_memory_clear(ms_context * c) noexcept {
    if (c->memory != nullptr) {
        llama_memory_clear(c->memory, false);
    }
}

extern "C" int ms_adapter_load(const ms_model * model, const char * path, ms_adapter ** out, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        auto * adapter = llama_adapter_lora_init(model->model, path);
        if (adapter == nullptr) {
            ms_copy_error(error, "llama.cpp could not load the adapter: it is none, or one of another model");
            return MS_INVALID;
        }
        if (llama_adapter_get_alora_n_invocation_tokens(adapter) > 0) {
            ms_copy_error(error, "the adapter waits for certain tokens (aLoRA), which this engine does not do");
            return MS_INVALID;
        }
        *out = reinterpret_cast<ms_adapter *>(adapter);
        return MS_OK;
    });
}

extern "C" int ms_adapters_apply(ms_context * c, ms_adapter * const * adapters, const float * scales, size_t n, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        std::vector<llama_adapter_lora *> all;
        for (size_t i = 0; i < n; i++) {
            all.push_back(reinterpret_cast<llama_adapter_lora *>(adapters[i]));
        }
        std::vector<float> by(scales, scales + n);
        llama_set_adapters_lora(c->ctx, all.data(), n, by.data());
        return MS_OK;
    });
}

static llama_state_seq_flags state_flags(int32_t whole) {
    return whole != 0 ? 0 : LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
}

extern "C" size_t ms_state_size(ms_context * c, int32_t seq, int32_t whole) noexcept {
    try {
        return llama_state_seq_get_size_ext(c->ctx, seq, state_flags(whole));
    } catch (...) {
        return 0;
    }
}

extern "C" size_t ms_state_save(ms_context * c, int32_t seq, int32_t whole, uint8_t * out, size_t cap) noexcept {
    try {
        return llama_state_seq_get_data_ext(c->ctx, out, cap, seq, state_flags(whole));
    } catch (...) {
        return 0;
    }
}

extern "C" size_t ms_state_load(ms_context * c, int32_t seq, int32_t whole, const uint8_t * data, size_t len) noexcept {
    try {
        return llama_state_seq_set_data_ext(c->ctx, data, len, seq, state_flags(whole));
    } catch (...) {
        return 0;
    }
}

extern "C" const float * ms_logits(ms_context * c, int32_t index) noexcept {
    try {
        return llama_get_logits_ith(c->ctx, index);
    } catch (...) {
        return nullptr;
    }
}

extern "C" const float * ms_embedding_seq(ms_context * c, int32_t seq) noexcept {
    try {
        return llama_get_embeddings_seq(c->ctx, seq);
    } catch (...) {
        return nullptr;
    }
}

extern "C" const float * ms_embedding_token(ms_context * c, int32_t index) noexcept {
    try {
        return llama_get_embeddings_ith(c->ctx, index);
    } catch (...) {
        return nullptr;
    }
}

// used by sampler.cpp, which must not know the context's inside
llama_context * ms_raw_context(ms_context * c) {
    return c->ctx;
}
