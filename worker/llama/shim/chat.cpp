// Chats: rendering through the model's template, reading the answer back.
#include "internal.h"

#include <atomic>
#include <random>

struct ms_parser {
    std::shared_ptr<const ms_format> format;
    common_chat_msg                  last;
    std::vector<std::string>         tool_call_ids;
};

static std::string new_tool_call_id() {
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    thread_local std::mt19937_64 rng{ std::random_device{}() };
    std::uniform_int_distribution<size_t> pick(0, sizeof(alphabet) - 2);
    std::string id(32, '0');
    for (auto & c : id) {
        c = alphabet[pick(rng)];
    }
    return id;
}

static common_chat_templates_inputs read_inputs(const ms_model * m, const char * messages, const common_json & j) {
    common_chat_templates_inputs in;
    in.messages         = common_chat_msgs_parse_oaicompat(common_json::parse(messages));
    in.tools            = j.contains("tools") ? common_chat_tools_parse_oaicompat(j.at("tools")) : std::vector<common_chat_tool>();
    in.tool_choice      = common_chat_tool_choice_parse_oaicompat(j.value("tool_choice", "auto"));
    in.grammar          = j.value("grammar", "");
    in.json_schema      = j.value("json_schema", "");
    in.reasoning_format = common_reasoning_format_from_name(j.value("reasoning_format", "deepseek"));
    in.enable_thinking  = j.value<bool>("enable_thinking", true);
    in.use_jinja        = !m->builtin;
    in.parallel_tool_calls = j.value<bool>("parallel_tool_calls", m->parallel_calls);
    if (j.contains("kwargs")) {
        for (const auto & item : j.at("kwargs").items()) {
            in.chat_template_kwargs[item.key()] = item.value().dump();
        }
    }
    in.add_generation_prompt = j.value<bool>("add_generation_prompt", true);
    if (j.value<bool>("continue_final_message", false)) {
        in.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
        in.add_generation_prompt  = false;
    }
    const bool tools = !in.tools.empty() && in.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    if (m->builtin && (tools || in.continue_final_message != COMMON_CHAT_CONTINUATION_NONE)) {
        throw std::invalid_argument("the chat template given by name knows no tools and continues no answers");
    }
    return in;
}

static std::shared_ptr<const ms_format> make_format(const ms_model * m, const common_chat_templates_inputs & in, common_chat_params params) {
    auto       format    = std::make_shared<ms_format>();
    const bool continues = in.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
    params.prompt.clear();
    format->has_tools = !in.tools.empty() && in.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    if (!params.grammar.empty()) {
        format->grammar_type = format->has_tools ? COMMON_GRAMMAR_TYPE_TOOL_CALLS : !in.json_schema.empty() ? COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT : COMMON_GRAMMAR_TYPE_USER;
    }
    format->parser                  = common_chat_parser_params(params);
    format->parser.reasoning_format = in.reasoning_format;
    format->parser.is_continuation  = continues;
    if (!params.parser.empty()) {
        format->parser.parser.load(params.parser);
    }
    const bool simple = !m->specialised && (params.format == COMMON_CHAT_FORMAT_CONTENT_ONLY || params.format == COMMON_CHAT_FORMAT_PEG_SIMPLE ||
                                            params.format == COMMON_CHAT_FORMAT_PEG_NATIVE);
    const bool splits  = params.supports_thinking && in.reasoning_format != COMMON_REASONING_FORMAT_NONE;
    format->plain      = simple && !format->has_tools && !splits && !continues;
    format->tail_plain = simple && !format->has_tools && !continues;
    format->params     = std::move(params);
    return format;
}

static std::shared_ptr<const ms_format> find_format(const ms_model * m, const std::string & key) {
    const std::lock_guard<std::mutex> guard(m->formats.lock);
    const auto it = m->formats.known.find(key);
    return it == m->formats.known.end() ? nullptr : it->second;
}

static void keep_format(const ms_model * m, std::string key, std::shared_ptr<const ms_format> format) {
    const std::lock_guard<std::mutex> guard(m->formats.lock);
    if (m->formats.known.size() >= ms_formats::CAPACITY) {
        m->formats.known.clear();
    }
    m->formats.known.emplace(std::move(key), std::move(format));
}

// `common` finds out how a template's answers are written by rendering it some dozens of times, at every call: milliseconds. What it finds out depends on
// the options (tools, schema, thinking, …) and on how the prompt ends, not on the messages, so it is remembered by these; a known chat is only rendered.
// Not so where a parser was written by hand for the template, or where a message is continued: there everything is done each time, as `common` does.
extern "C" int ms_chat_apply(const ms_model * m, const char * messages, const char * options, ms_chat ** out, ms_sink prompt, void * user, char * error) noexcept {
    return ms_guard(error, MS_INVALID, [&]() -> int {
        if (!m->templates) {
            ms_copy_error(error, ("the model has no usable chat template: " + m->template_error).c_str());
            return MS_INVALID;
        }
        const auto in        = read_inputs(m, messages, common_json::parse(options));
        auto       chat      = std::make_unique<ms_chat>();
        const bool may_keep  = !m->specialised && in.continue_final_message == COMMON_CHAT_CONTINUATION_NONE;
        std::string key;
        common_chat_params rendered;
        if (may_keep) {
            auto only_render = in;
            only_render.force_pure_content = true;
            rendered     = common_chat_templates_apply(m->templates.get(), only_render);
            key          = std::string(options) + '\n' + rendered.generation_prompt;
            chat->format = find_format(m, key);
        }
        if (!chat->format) {
            auto full = common_chat_templates_apply(m->templates.get(), in);
            const bool same = may_keep && full.prompt == rendered.prompt && full.generation_prompt == rendered.generation_prompt;
            rendered.prompt = full.prompt;
            chat->format = make_format(m, in, std::move(full));
            if (same) {
                keep_format(m, std::move(key), chat->format);
            }
        }
        ms_emit(prompt, user, rendered.prompt);
        *out = chat.release();
        return MS_OK;
    });
}

extern "C" int ms_chat_info(const ms_chat * chat, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        const auto & format = *chat->format;
        auto info = common_json::object();
        info["additional_stops"]   = format.params.additional_stops;
        info["plain"]              = format.plain;
        info["tail_plain"]         = format.tail_plain;
        info["has_grammar"]        = !format.params.grammar.empty();
        ms_emit(sink, user, info.dump_safe());
        return MS_OK;
    });
}

extern "C" void ms_chat_free(ms_chat * chat) noexcept {
    delete chat;
}

extern "C" int ms_parser_new(const ms_chat * chat, ms_parser ** out, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        auto p    = std::make_unique<ms_parser>();
        p->format = chat->format;
        if (p->format->parser.is_continuation) {
            // what was there before is not news
            p->last = common_chat_parse("", true, p->format->parser);
        }
        *out = p.release();
        return MS_OK;
    });
}

extern "C" int ms_parser_update(ms_parser * p, const char * text, size_t len, int partial, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        auto msg = common_chat_parse(std::string(text, len), partial != 0, p->format->parser);
        auto out = common_json::object();
        auto list = common_json::array();
        if (!msg.empty()) {
            msg.set_tool_call_ids(p->tool_call_ids, new_tool_call_id);
            for (const auto & diff : common_chat_msg_diff::compute_diffs(p->last, msg)) {
                auto item = common_json::object();
                if (!diff.reasoning_content_delta.empty()) {
                    item["reasoning"] = diff.reasoning_content_delta;
                }
                if (!diff.content_delta.empty()) {
                    item["content"] = diff.content_delta;
                }
                if (diff.tool_call_index != std::string::npos) {
                    item["index"]     = (uint64_t) diff.tool_call_index;
                    item["id"]        = diff.tool_call_delta.id;
                    item["name"]      = diff.tool_call_delta.name;
                    item["arguments"] = diff.tool_call_delta.arguments;
                }
                list.push_back(item);
            }
            p->last = std::move(msg);
        }
        out["diffs"]       = list;
        out["content_len"] = (uint64_t) p->last.content.size();
        out["tool_calls"]  = (uint64_t) p->last.tool_calls.size();
        // the text ends with the content, so what follows can be taken as it comes
        const std::string_view all(text, len);
        const auto & content = p->last.content;
        out["tail_is_content"] = !content.empty() && all.size() >= content.size() && all.substr(all.size() - content.size()) == content;
        ms_emit(sink, user, out.dump_safe());
        return MS_OK;
    });
}

extern "C" void ms_parser_free(ms_parser * parser) noexcept {
    delete parser;
}
