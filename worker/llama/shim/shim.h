// C interface between muster-llama (Rust) and llama.cpp's library and `common` code.
//
// Rules of this boundary:
//  - every function is noexcept: what llama.cpp throws becomes a code and a message, since a throw through extern "C" aborts;
//  - nothing that is returned points into a std:: object, except where a comment says how long it lives;
//  - inputs were checked by the Rust side (guard.rs): a GGML_ASSERT can't be caught.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MS_OK       = 0,
    MS_INVALID  = 1, // the caller's input is at fault
    MS_FAILED   = 2, // llama.cpp failed
    MS_DEAD_END = 3, // sampling: no candidate is left
};

#define MS_ERROR_BYTES 1024

typedef struct ms_model   ms_model;   // weights, vocabulary, chat templates
typedef struct ms_context ms_context; // KV cache and compute buffers
typedef struct ms_sampler ms_sampler; // one request's sampler chain and grammar
typedef struct ms_chat    ms_chat;    // a rendered chat and how to read the answer
typedef struct ms_parser  ms_parser;  // the answer read so far
typedef struct ms_adapter ms_adapter; // a LoRA adapter
typedef struct ms_media   ms_media;   // a projector: turns images into embeddings
typedef struct ms_chunk   ms_chunk;   // a part of an image, as large as one graph takes, ready to be encoded

// Gets a copy of bytes; called during the call it was given to, zero or more times.
typedef void (*ms_sink)(void * user, const uint8_t * data, size_t len);
// Called while loading with 0..1; false stops the load.
typedef int (*ms_progress)(float fraction, void * user);
// level: 1 debug, 2 info, 3 warning, 4 error
typedef void (*ms_log)(int level, const char * text);
typedef void (*ms_abort)(const char * message);
// asked between the steps of a graph, on the thread that decodes; true gives the decode up
typedef bool (*ms_stop)(void * user);

void ms_init(ms_log log, ms_abort on_abort) noexcept;

// takes (or gives up) a range of a file; 0 if another open file has it
int  ms_range_lock(int fd, int64_t start, int64_t len, int take) noexcept;
// a range that another open file has within this one; 0 if there is none
int  ms_range_locked(int fd, int64_t start, int64_t len, int64_t * found, int64_t * found_len) noexcept;

// what llama.cpp was built with, and the GPUs it finds, as a JSON object
int  ms_devices(ms_sink sink, void * user, char * error) noexcept;
// bytes that a model and its context take on each device, as a JSON array
int  ms_context_memory(ms_context * ctx, ms_sink sink, void * user, char * error) noexcept;

int  ms_model_load(const char * path, const char * params_json, const char * chat_template, ms_progress progress, void * user,
                   ms_model ** out, char * error) noexcept;
void ms_model_free(ms_model * model) noexcept;
// facts about the model, as a JSON object
int  ms_model_info(const ms_model * model, ms_sink sink, void * user, char * error) noexcept;
// sink gets an array of int32 token ids
int  ms_tokenize(const ms_model * model, const char * text, size_t len, int add_special, int parse_special, ms_sink sink, void * user, char * error) noexcept;
// writes at most `cap` bytes, returns the length or a negative needed length; token must be in the vocabulary
int  ms_piece(const ms_model * model, int32_t token, int special, char * out, int32_t cap) noexcept;
int  ms_detokenize(const ms_model * model, const int32_t * tokens, size_t n, ms_sink sink, void * user, char * error) noexcept;
// gives memory that was freed back to the system; takes a while
void ms_give_back(void) noexcept;
int  ms_is_eog(const ms_model * model, int32_t token) noexcept;
int  ms_schema_to_grammar(const char * schema_json, ms_sink sink, void * user, char * error) noexcept;

// whether llama.cpp expects the model with these layers on devices and this context to fit into their free memory (without a device: into host memory)
int  ms_fits(const char * path, const char * model_json, const char * params_json, int * fits, char * error) noexcept;
int  ms_context_new(ms_model * model, const char * params_json, ms_context ** out, char * error) noexcept;
void ms_context_free(ms_context * ctx) noexcept;
int  ms_context_info(const ms_context * ctx, ms_sink sink, void * user, char * error) noexcept;
void ms_set_threads(ms_context * ctx, int32_t threads, int32_t threads_batch) noexcept;
// `stop` may be asked during any decode (by CPU and Metal; other devices do not ask)
void ms_set_stop(ms_context * ctx, ms_stop stop, void * user) noexcept;
// llama_decode's own codes; -1000 if it threw. One sequence per token; `output` marks tokens whose logits are wanted.
int  ms_decode(ms_context * ctx, int32_t n, const int32_t * tokens, const int32_t * pos, const int32_t * seq, const int8_t * output) noexcept;
int  ms_seq_rm(ms_context * ctx, int32_t seq, int32_t p0, int32_t p1) noexcept; // 1 = removed
void ms_seq_cp(ms_context * ctx, int32_t from, int32_t to) noexcept;
int32_t ms_seq_pos_min(ms_context * ctx, int32_t seq) noexcept; // -1 = empty
int32_t ms_seq_pos_max(ms_context * ctx, int32_t seq) noexcept; // -1 = empty
void ms_memory_clear(ms_context * ctx) noexcept;
// a LoRA adapter of a model, which frees it
int ms_adapter_load(const ms_model * model, const char * path, ms_adapter ** out, char * error) noexcept;
// applies so much of each adapter from now on
int ms_adapters_apply(ms_context * ctx, ms_adapter * const * adapters, const float * scales, size_t n, char * error) noexcept;
// the whole state of a sequence, or only the part that can't be rolled back (SWA window, recurrent state)
size_t ms_state_size(ms_context * ctx, int32_t seq, int32_t whole) noexcept;
size_t ms_state_save(ms_context * ctx, int32_t seq, int32_t whole, uint8_t * out, size_t cap) noexcept;
size_t ms_state_load(ms_context * ctx, int32_t seq, int32_t whole, const uint8_t * data, size_t len) noexcept; // 0 = failed
// valid until the next decode; null if there is none
const float * ms_logits(ms_context * ctx, int32_t index) noexcept;
const float * ms_embedding_seq(ms_context * ctx, int32_t seq) noexcept;
const float * ms_embedding_token(ms_context * ctx, int32_t index) noexcept;

// numbers that make up a position, whatever a model uses of them
#define MS_POSITIONS 4

typedef struct {
    uint32_t        width, height;
    const uint8_t * rgb; // three bytes per pixel
} ms_image;
// Gets the pieces of a prompt in their order: tokens, or the part of an image with the index of that image. The part is the receiver's.
typedef void (*ms_piece_sink)(void * user, const int32_t * tokens, size_t n, ms_chunk * chunk, size_t image, size_t cells, int32_t positions, int non_causal);

// params_json is ProjectorParams (media.rs); the model must outlive the projector
int  ms_media_load(const ms_model * model, const char * path, const char * params_json, ms_media ** out, char * error) noexcept;
void ms_media_free(ms_media * media) noexcept;
int  ms_media_info(const ms_media * media, ms_sink sink, void * user, char * error) noexcept;
// text has as many of the projector's markers as there are images; several threads may call it at once
int  ms_media_split(const ms_media * media, const char * text, size_t len, int add_special, int parse_special, const ms_image * images, size_t n_images,
                    ms_piece_sink sink, void * user, char * error) noexcept;
void ms_chunk_free(ms_chunk * chunk) noexcept;
// writes the part's embeddings, `cap` floats: its cells × the model's width; takes long
int  ms_chunk_encode(ms_media * media, const ms_chunk * chunk, float * out, size_t cap, char * error) noexcept;
// writes MS_POSITIONS numbers for each of the part's cells, which begins at this position
void ms_chunk_positions(const ms_media * media, const ms_chunk * chunk, int32_t begin, int32_t * out) noexcept;
// as ms_decode, for embeddings of one sequence without outputs
int  ms_decode_media(ms_context * ctx, const ms_media * media, int32_t n, const float * embd, const int32_t * pos, int32_t seq, int non_causal) noexcept;

// chat may be null; json is SamplerSpec (sampler.rs)
int  ms_sampler_new(const ms_model * model, const char * json, const ms_chat * chat, ms_sampler ** out, char * error) noexcept;
void ms_sampler_free(ms_sampler * sampler) noexcept;
int  ms_sampler_accept_prompt(ms_sampler * sampler, const int32_t * tokens, size_t n, char * error) noexcept;

typedef struct {
    int32_t token;
    int32_t eog;
    int32_t piece_len; // negative: the buffer was too small by that need
    int32_t greedy;    // taken by the greedy path
} ms_sampled;
// samples from the logits at `index`, accepts the token and renders it
int  ms_sample(ms_sampler * sampler, ms_context * ctx, int32_t index, ms_sampled * out, char * piece, int32_t piece_cap, char * error) noexcept;
// candidates left after the chain, likeliest first, as pairs (int32 id, float p); valid after ms_sample
int  ms_sampler_candidates(ms_sampler * sampler, ms_sink sink, void * user, char * error) noexcept;

// messages as OpenAI writes them, options are ChatSpec (chat.rs); the prompt goes to the sink
int  ms_chat_apply(const ms_model * model, const char * messages_json, const char * options_json, ms_chat ** out, ms_sink prompt, void * user, char * error) noexcept;
int  ms_chat_info(const ms_chat * chat, ms_sink sink, void * user, char * error) noexcept;
void ms_chat_free(ms_chat * chat) noexcept;

int  ms_parser_new(const ms_chat * chat, ms_parser ** out, char * error) noexcept;
// parses the whole text so far; the sink gets a JSON array of what is new
int  ms_parser_update(ms_parser * parser, const char * text, size_t len, int partial, ms_sink sink, void * user, char * error) noexcept;
void ms_parser_free(ms_parser * parser) noexcept;

#ifdef __cplusplus
}
#endif
