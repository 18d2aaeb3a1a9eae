// Devices beside the CPU: which there are, which one model gets, and what it took of them.
#include "internal.h"

#include "ggml-backend.h"
#include "llama-ext.h"

#include <map>
#include <regex>

static bool is_gpu(ggml_backend_dev_t dev) {
    const auto type = ggml_backend_dev_type(dev);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

extern "C" int ms_devices(ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        auto backends = common_json::array();
        for (size_t i = 0; i < ggml_backend_reg_count(); i++) {
            backends.push_back(std::string(ggml_backend_reg_name(ggml_backend_reg_get(i))));
        }
        auto devices = common_json::array();
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            const auto dev = ggml_backend_dev_get(i);
            if (!is_gpu(dev)) {
                continue;
            }
            ggml_backend_dev_props props = {};
            ggml_backend_dev_get_props(dev, &props);
            auto device = common_json::object();
            device["name"]         = std::string(props.name);
            device["description"]  = std::string(props.description);
            device["backend"]      = std::string(ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev)));
            device["id"]           = std::string(props.device_id == nullptr ? "" : props.device_id);
            device["integrated"]   = props.type == GGML_BACKEND_DEVICE_TYPE_IGPU;
            device["free_bytes"]   = (uint64_t) props.memory_free;
            device["total_bytes"]  = (uint64_t) props.memory_total;
            devices.push_back(device);
        }
        auto all = common_json::object();
        all["backends"] = backends;
        all["devices"]  = devices;
        ms_emit(sink, user, all.dump_safe());
        return MS_OK;
    });
}

// The memory that a rule of `--override-tensor` names: the CPU's, or that of one of the model's devices.
static ggml_backend_buffer_type_t memory_of(const std::string & name, const std::vector<ggml_backend_dev_t> * devices) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        const auto dev   = ggml_backend_dev_get(i);
        const auto buft  = ggml_backend_dev_buffer_type(dev);
        const bool given = !is_gpu(dev) || devices == nullptr || std::find(devices->begin(), devices->end(), dev) != devices->end();
        if (buft != nullptr && given && name == ggml_backend_buft_name(buft)) {
            return buft;
        }
    }
    throw std::invalid_argument("there is no memory `" + name + "` for tensors among what this model gets");
}

static llama_split_mode split_mode_of(const std::string & name) {
    if (name == "none")  { return LLAMA_SPLIT_MODE_NONE; }
    if (name == "layer") { return LLAMA_SPLIT_MODE_LAYER; }
    if (name == "row")   { return LLAMA_SPLIT_MODE_ROW; }
    throw std::invalid_argument("unknown split mode: " + name);
}

static llama_lazy_mode lazy_mode_of(const std::string & name) {
    if (name == "on")   { return LLAMA_LAZY_MODE_ON; }
    if (name == "off")  { return LLAMA_LAZY_MODE_OFF; }
    if (name == "auto") { return LLAMA_LAZY_MODE_AUTO; }
    throw std::invalid_argument("unknown lazy mode: " + name);
}

ms_places::ms_places(const common_json & json) {
    const bool chosen = json.contains("devices") && !json.at("devices").is_null();
    if (chosen) {
        for (const auto & name : json.at("devices")) {
            const auto text = name.get<std::string>();
            const auto dev  = ggml_backend_dev_by_name(text.c_str());
            if (dev == nullptr) {
                throw std::invalid_argument("this build of llama.cpp has no device " + text + " here");
            }
            devices.push_back(dev);
        }
    }
    if (json.contains("tensor_places")) {
        const auto & rules = json.at("tensor_places");
        for (size_t i = 0; i < rules.size(); i++) {
            patterns.push_back(rules.at(i).at(size_t(0)).get<std::string>());
            (void) std::regex(patterns.back()); // llama.cpp would only say that the model can't be loaded
            overrides.push_back({ patterns.back().c_str(), memory_of(rules.at(i).at(size_t(1)).get<std::string>(), chosen ? &devices : nullptr) });
        }
    }
    if (overrides.size() >= llama_max_tensor_buft_overrides()) {
        throw std::invalid_argument("there are more rules for tensors than llama.cpp takes");
    }
    if (json.contains("kv_overrides")) {
        for (const auto & text : json.at("kv_overrides").get<std::vector<std::string>>()) {
            if (!string_parse_kv_override(text.c_str(), header)) {
                throw std::invalid_argument("`--override-kv` does not take `" + text + "`: it wants KEY=TYPE:VALUE");
            }
        }
    }
    if (!overrides.empty()) {
        overrides.push_back({ nullptr, nullptr });
    }
    if (!header.empty()) {
        header.emplace_back();
        header.back().key[0] = '\0';
    }
    split_mode      = split_mode_of(json.value<std::string>("split_mode", "layer"));
    lazy_mode       = lazy_mode_of(json.value<std::string>("lazy_mode", "auto"));
    main_gpu        = json.value<int32_t>("main_gpu", main_gpu);
    check_tensors   = json.value<bool>("check_tensors", check_tensors);
    use_extra_bufts = json.value<bool>("use_extra_bufts", use_extra_bufts);
    no_host         = json.value<bool>("no_host", no_host);
    if (chosen) {
        // by itself llama.cpp would go by free memory: an even share is what was reserved
        split.assign(llama_max_devices(), 0.0f);
        std::fill_n(split.begin(), std::min(devices.size(), split.size()), 1.0f);
        devices.push_back(nullptr);
    }
}

void ms_places::apply(llama_model_params & params) {
    params.split_mode      = split_mode;
    params.lazy_mode       = lazy_mode;
    params.main_gpu        = devices.size() == 1 ? 0 : main_gpu; // without a device there is none
    params.check_tensors   = check_tensors;
    params.use_extra_bufts = use_extra_bufts;
    params.no_host         = no_host;
    params.tensor_buft_overrides = overrides.empty() ? nullptr : overrides.data();
    params.kv_overrides          = header.empty() ? nullptr : header.data();
    if (devices.empty()) {
        return;
    }
    params.devices = devices.data();
    if (devices.size() > 2) {
        params.tensor_split = split.data();
    }
}

extern "C" int ms_context_memory(ms_context * c, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        std::map<std::string, llama_memory_breakdown_data> sums;
        for (const auto & [type, data] : llama_get_memory_breakdown(ms_raw_context(c))) {
            const auto dev = ggml_backend_buft_get_device(type);
            // memory of the host is not always a device's
            auto & sum = sums[dev != nullptr && is_gpu(dev) && !ggml_backend_buft_is_host(type) ? ggml_backend_dev_name(dev) : "CPU"];
            sum.model   += data.model;
            sum.context += data.context;
            sum.compute += data.compute;
        }
        auto all = common_json::array();
        for (const auto & [name, sum] : sums) {
            auto one = common_json::object();
            one["device"]        = name;
            one["weights_bytes"] = (uint64_t) sum.model;
            one["cache_bytes"]   = (uint64_t) sum.context;
            one["compute_bytes"] = (uint64_t) sum.compute;
            all.push_back(one);
        }
        ms_emit(sink, user, all.dump_safe());
        return MS_OK;
    });
}
