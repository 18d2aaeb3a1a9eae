// Projectors: what turns images into embeddings that a model reads beside its tokens (llama.cpp's mtmd).
#include "internal.h"

#include "ggml-backend.h"
#include "mtmd.h"

struct ms_media {
    mtmd::context_ptr ctx;
    int32_t           n_embd = 0; // of one embedding
    std::mutex        encoding;   // mtmd has one place for its output
};

extern "C" int ms_media_load(const ms_model * m, const char * path, const char * params_json, ms_media ** out, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        mtmd_log_set(ms_native_log, nullptr);
        const auto json      = common_json::parse(params_json);
        const auto marker    = json.at("marker").get<std::string>();
        auto       params    = mtmd_context_params_default();
        params.print_timings = false;
        params.media_marker  = marker.c_str();
        params.n_threads     = json.at("n_threads").get<int32_t>();
        // where the model's first layers are
        const ms_places places(json);
        const bool chosen    = json.contains("devices") && !json.at("devices").is_null();
        params.use_gpu       = json.value<int32_t>("n_gpu_layers", -1) != 0 && (!chosen || places.devices.front() != nullptr);
        params.device        = params.use_gpu && chosen ? places.devices.front() : nullptr;
        auto media = std::make_unique<ms_media>();
        media->ctx.reset(mtmd_init_from_file(path, m->model, params));
        if (!media->ctx) {
            ms_copy_error(error, "llama.cpp could not load the projector");
            return MS_FAILED;
        }
        media->n_embd = llama_model_n_embd_inp(m->model);
        *out = media.release();
        return MS_OK;
    });
}

extern "C" void ms_media_free(ms_media * media) noexcept {
    delete media;
}

extern "C" int ms_media_info(const ms_media * media, ms_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        const auto * ctx = media->ctx.get();
        auto info = common_json::object();
        info["vision"]  = mtmd_support_vision(ctx);
        info["n_embd"]  = media->n_embd;
        ms_emit(sink, user, info.dump_safe());
        return MS_OK;
    });
}

extern "C" int ms_media_split(const ms_media * media, const char * text, size_t len, int add_special, int parse_special,
                              const ms_image * images, size_t n_images, ms_piece_sink sink, void * user, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        mtmd::bitmaps bitmaps;
        for (size_t i = 0; i < n_images; i++) {
            mtmd::bitmap bitmap(images[i].width, images[i].height, images[i].rgb);
            bitmap.set_id(std::to_string(i).c_str());
            bitmaps.entries.push_back(std::move(bitmap));
        }
        const auto            pointers = bitmaps.c_ptr();
        const mtmd_input_text input{ text, len, add_special != 0, parse_special != 0 };
        mtmd::input_chunks_ptr chunks(mtmd_input_chunks_init());
        if (mtmd_tokenize(media->ctx.get(), chunks.get(), &input, const_cast<const mtmd_bitmap **>(pointers.data()), pointers.size()) != 0) {
            ms_copy_error(error, "llama.cpp could not read the images");
            return MS_INVALID;
        }
        for (size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); i++) {
            const auto * chunk = mtmd_input_chunks_get(chunks.get(), i);
            if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
                size_t       n      = 0;
                const auto * tokens = mtmd_input_chunk_get_tokens_text(chunk, &n);
                sink(user, tokens, n, nullptr, 0, 0, 0, 0);
                continue;
            }
            const char * id = mtmd_input_chunk_get_id(chunk);
            sink(user, nullptr, 0, reinterpret_cast<ms_chunk *>(mtmd_input_chunk_copy(chunk)), std::stoul(id == nullptr ? "" : id),
                 mtmd_input_chunk_get_n_tokens(chunk), mtmd_input_chunk_get_n_pos(chunk), mtmd_decode_use_non_causal(media->ctx.get(), chunk) ? 1 : 0);
        }
        return MS_OK;
    });
}

static const mtmd_input_chunk * raw(const ms_chunk * chunk) {
    return reinterpret_cast<const mtmd_input_chunk *>(chunk);
}

extern "C" void ms_chunk_free(ms_chunk * chunk) noexcept {
    mtmd_input_chunk_free(reinterpret_cast<mtmd_input_chunk *>(chunk));
}

extern "C" int ms_chunk_encode(ms_media * media, const ms_chunk * chunk, float * out, size_t cap, char * error) noexcept {
    return ms_guard(error, MS_FAILED, [&]() -> int {
        const std::lock_guard<std::mutex> guard(media->encoding);
        const size_t need = mtmd_input_chunk_get_n_tokens(raw(chunk)) * (size_t) media->n_embd;
        if (need != cap || mtmd_encode_chunk(media->ctx.get(), raw(chunk)) != 0) {
            ms_copy_error(error, "llama.cpp could not encode an image");
            return MS_FAILED;
        }
        std::memcpy(out, mtmd_get_output_embd(media->ctx.get()), need * sizeof(float));
        return MS_OK;
    });
}

extern "C" void ms_chunk_positions(const ms_media * media, const ms_chunk * chunk, int32_t begin, int32_t * out) noexcept {
    const size_t n      = mtmd_input_chunk_get_n_tokens(raw(chunk));
    const auto * tokens = mtmd_input_chunk_get_tokens_image(raw(chunk));
    for (size_t i = 0; i < n; i++) {
        int32_t * pos = out + i * MS_POSITIONS;
        if (mtmd_decode_use_mrope(media->ctx.get()) && tokens != nullptr) {
            const auto at = mtmd_image_tokens_get_decoder_pos(tokens, begin, i);
            pos[0] = (int32_t) at.t;
            pos[1] = (int32_t) at.y;
            pos[2] = (int32_t) at.x;
            pos[3] = (int32_t) at.z;
        } else {
            std::fill_n(pos, MS_POSITIONS, begin + (int32_t) i);
        }
    }
}

namespace {
struct causal_off {
    llama_context * ctx;
    bool            off;
    causal_off(llama_context * ctx, bool off) : ctx(ctx), off(off) {
        if (off) {
            llama_set_causal_attn(ctx, false);
        }
    }
    ~causal_off() {
        if (off) {
            llama_set_causal_attn(ctx, true);
        }
    }
};
} // namespace

extern "C" int ms_decode_media(ms_context * c, const ms_media * media, int32_t n, const float * embd, const int32_t * pos, int32_t seq, int non_causal) noexcept {
    try {
        auto * ctx = ms_raw_context(c);
        const std::unique_ptr<llama_batch_ext, decltype(&llama_batch_ext_free)> batch(llama_batch_ext_init(ctx), llama_batch_ext_free);
        for (int32_t i = 0; i < n; i++) {
            const llama_embd one{ embd + (size_t) i * media->n_embd, 1, (size_t) media->n_embd };
            const int32_t    at = llama_batch_ext_add_embd(batch.get(), seq, one);
            if (at < 0 || !llama_batch_ext_set_pos(batch.get(), at, pos + (size_t) i * MS_POSITIONS)) {
                return -1;
            }
        }
        const causal_off guard(ctx, non_causal != 0);
        const int code = llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get());
        if (code == 0) {
            llama_synchronize(ctx);
        }
        return code;
    } catch (...) {
        return -1000;
    }
}
