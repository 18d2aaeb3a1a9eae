// Chats: rendering through the model's template, reading the answer back.
#include "internal.h"

#include <atomic>
#include <random>

struct ms_parser {
    common_chat_parser_params params;
    common_chat_msg           last;
    std::vector<std::string>  tool_call_ids;
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

extern "C" int ms_chat_apply(const ms_model * m, const char * json, ms_chat ** out, ms_sink prompt, void * user, char * error) noexcept {
    return ms_guard(error, MS_INVALID, [&]() -> int {
        if (!m->templates) {
            ms_copy_error(error, ("the model has no usable chat template: " + m->template_error).c_str());
            return MS_INVALID;
        }
        const auto j = common_json::parse(json);

        common_chat_templates_inputs in;
        in.messages         = common_chat_msgs_parse_oaicompat(j.at("messages"));
        in.tools            = j.contains("tools") ? common_chat_tools_parse_oaicompat(j.at("tools")) : std::vector<common_chat_tool>();
        in.tool_choice      = common_chat_tool_choice_parse_oaicompat(j.value("tool_choice", "auto"));
        in.grammar          = j.value("grammar", "");
        in.json_schema      = j.value("json_schema", "");
        in.reasoning_format = common_reasoning_format_from_name(j.value("reasoning_format", "deepseek"));
        in.enable_thinking  = j.value<bool>("enable_thinking", true);
        auto caps           = common_chat_templates_get_caps(m->templates.get());
        in.parallel_tool_calls = j.value<bool>("parallel_tool_calls", caps["supports_parallel_tool_calls"]);
        if (j.contains("kwargs")) {
            for (const auto & item : j.at("kwargs").items()) {
                in.chat_template_kwargs[item.key()] = item.value().dump();
            }
        }
        const bool continues = j.value<bool>("continue_final_message", false);
        if (continues) {
            in.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
            in.add_generation_prompt  = false;
        }

        auto chat = std::make_unique<ms_chat>();
        chat->params    = common_chat_templates_apply(m->templates.get(), in);
        chat->has_tools = !in.tools.empty() && in.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
        if (!chat->params.grammar.empty()) {
            chat->grammar_type = chat->has_tools ? COMMON_GRAMMAR_TYPE_TOOL_CALLS : !in.json_schema.empty() ? COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT : COMMON_GRAMMAR_TYPE_USER;
        }
        chat->parser                  = common_chat_parser_params(chat->params);
        chat->parser.reasoning_format = in.reasoning_format;
        chat->parser.is_continuation  = continues;
        if (!chat->params.parser.empty()) {
            chat->parser.parser.load(chat->params.parser);
        }
        const bool simple = !m->specialised && (chat->params.format == COMMON_CHAT_FORMAT_CONTENT_ONLY || chat->params.format == COMMON_CHAT_FORMAT_PEG_SIMPLE ||
                                                chat->params.format == COMMON_CHAT_FORMAT_PEG_NATIVE);
        const bool splits = chat->params.supports_thinking && in.reasoning_format != COMMON_REASONING_FORMAT_NONE;
        chat->plain       = simple && !chat->has_tools && !splits && !continues;
        chat->tail_plain  = simple && !chat->has_tools && !continues;
        ms_emit(prompt, user, chat->params.prompt);
        *out = chat.release();
        return MS_OK;
    });
}

extern "C" int ms_chat_info(const ms_chat * chat, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        auto info = common_json::object();
        info["additional_stops"]   = chat->params.additional_stops;
        info["has_tools"]          = chat->has_tools;
        info["supports_thinking"]  = chat->params.supports_thinking;
        info["plain"]              = chat->plain;
        info["tail_plain"]         = chat->tail_plain;
        info["has_grammar"]        = !chat->params.grammar.empty();
        info["format"]             = std::string(common_chat_format_name(chat->params.format));
        info["generation_prompt"]  = chat->params.generation_prompt;
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
        p->params = chat->parser;
        if (p->params.is_continuation) {
            // what was there before is not news
            p->last = common_chat_parse("", true, p->params);
        }
        *out = p.release();
        return MS_OK;
    });
}

extern "C" int ms_parser_update(ms_parser * p, const char * text, size_t len, int partial, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        auto msg = common_chat_parse(std::string(text, len), partial != 0, p->params);
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
