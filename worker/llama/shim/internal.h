// What the shim's translation units share.
#pragma once

#include "shim.h"

#include "chat.h"
#include "common.h"
#include "json-schema-to-grammar.h"
#include "json.h"
#include "llama.h"
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

// How a chat's answer is constrained and read back: all of a rendered chat but its prompt. Never changed after it was made.
struct ms_format {
    common_chat_params        params; // `prompt` is empty
    common_chat_parser_params parser;
    common_grammar_type       grammar_type = COMMON_GRAMMAR_TYPE_NONE;
    bool                      has_tools    = false;
    bool                      plain        = false; // nothing to parse: the output is the content
    bool                      tail_plain   = false; // once content began, the rest is content
};

struct ms_chat {
    std::shared_ptr<const ms_format> format;
};

// Formats of earlier chats, see ms_chat_apply.
struct ms_formats {
    static constexpr size_t                                           CAPACITY = 64;
    std::mutex                                                        lock;
    std::unordered_map<std::string, std::shared_ptr<const ms_format>> known;
};

struct ms_model {
    llama_model *             model = nullptr;
    const llama_vocab *       vocab = nullptr;
    common_chat_templates_ptr templates;
    std::string               template_error;         // why there are no templates
    bool                      builtin        = false; // the template is a name: llama.cpp's own code writes chats
    bool                      specialised    = false; // `common` reads the template's answers with a hand-written parser
    bool                      thinking       = false; // the template knows enable_thinking
    bool                      parallel_calls = false; // the template knows several tool calls at once
    common_params_sampling    defaults;               // from the model file
    std::vector<llama_token>  eog;
    mutable ms_formats        formats;

    ~ms_model() { llama_model_free(model); }
};

// The devices that a model may use, as `devices` of the parameters names them: absent or null = all, empty = none but the CPU. And what is said of
// how it is laid over them, and of its file.
struct ms_places {
    std::vector<ggml_backend_dev_t> devices; // ends with null
    std::vector<float>              split;
    std::list<std::string>                            patterns;  // of `overrides`
    std::vector<llama_model_tensor_buft_override>     overrides; // ends with null
    std::vector<llama_model_kv_override>              header;    // ends with an empty key
    llama_split_mode                split_mode      = LLAMA_SPLIT_MODE_LAYER;
    llama_lazy_mode                 lazy_mode       = LLAMA_LAZY_MODE_AUTO;
    int32_t                         main_gpu        = 0;
    bool                            check_tensors   = false;
    bool                            use_extra_bufts = true;
    bool                            no_host         = false;

    // throws std::invalid_argument or std::regex_error
    explicit ms_places(const common_json & json);
    // all must live until the model is loaded
    void apply(llama_model_params & params);
};

llama_context * ms_raw_context(ms_context * c);

// Passes what llama.cpp logs on.
void ms_native_log(ggml_log_level level, const char * text, void *);

// Takes values under those names.
void ms_read_parameters(const common_json & j, common_params_sampling & p);

// Values of the parameters that requests know, under their names.
common_json ms_parameters(const common_params_sampling & p);

inline void ms_copy_error(char * error, const char * text) noexcept {
    if (error != nullptr) {
        strncpy(error, text, MS_ERROR_BYTES - 1);
        error[MS_ERROR_BYTES - 1] = '\0';
    }
}

// Runs `body`, turning what it throws into a code.
template <typename F> int ms_guard(char * error, int code, F && body) noexcept {
    try {
        return body();
    } catch (const std::exception & e) {
        ms_copy_error(error, e.what());
    } catch (...) {
        ms_copy_error(error, "an exception of unknown type");
    }
    return code;
}

inline void ms_emit(ms_sink sink, void * user, const std::string & text) {
    sink(user, reinterpret_cast<const uint8_t *>(text.data()), text.size());
}
