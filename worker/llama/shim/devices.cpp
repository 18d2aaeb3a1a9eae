// Devices beside the CPU: which there are, which one model gets, and what it took of them.
#include "internal.h"

#include "ggml-backend.h"
#include "llama-ext.h"

#include <map>

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

ms_places::ms_places(const common_json & json) {
    if (!json.contains("devices") || json.at("devices").is_null()) {
        return;
    }
    for (const auto & name : json.at("devices")) {
        const auto text = name.get<std::string>();
        const auto dev  = ggml_backend_dev_by_name(text.c_str());
        if (dev == nullptr) {
            throw std::invalid_argument("this build of llama.cpp has no device " + text + " here");
        }
        devices.push_back(dev);
    }
    // by itself llama.cpp would go by free memory: an even share is what was reserved
    split.assign(llama_max_devices(), 0.0f);
    std::fill_n(split.begin(), std::min(devices.size(), split.size()), 1.0f);
    devices.push_back(nullptr);
}

void ms_places::apply(llama_model_params & params) {
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
