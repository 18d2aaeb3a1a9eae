//! What a load's body looks like, for the document only: it is read by [`muster_proto::overrides`].

#![allow(dead_code, reason = "read by the derive only")]

use utoipa::ToSchema;

/// Settings for one load (seed 001, Supported load override fields). They are gone with its unload; what is absent stays as defined.
#[derive(ToSchema)]
#[schema(as = AdminLoad, example = json!({"replicas": 2, "gguf_n_ctx": 32768, "gguf_type_k": "q8_0"}))]
pub(super) struct LoadBody {
    /// Replicas, all or none, at most the model's `replica_max`.
    #[schema(minimum = 1)]
    replicas: Option<u32>,
    /// llama_cpp: KV cells.
    #[schema(minimum = 1)]
    gguf_n_ctx: Option<u32>,
    /// llama_cpp: `on`, `off` or `auto`.
    gguf_flash_attn: Option<String>,
    /// llama_cpp: element type of the K cache; null = the runtime's default.
    gguf_type_k: Option<String>,
    /// llama_cpp: element type of the V cache; null = the runtime's default.
    gguf_type_v: Option<String>,
    /// ExLlamaV3: a multiple of 256.
    #[schema(minimum = 256, multiple_of = 256)]
    exllama_cache_size: Option<u32>,
    /// ExLlamaV3: `"<bits>"` or `"<k_bits>,<v_bits>"`; null = fp16.
    exllama_cache_quant: Option<String>,
    /// ExLlamaV3: with `exllama_cache_v_bits`, never with `exllama_cache_quant`; both null = fp16.
    #[schema(minimum = 2, maximum = 8)]
    exllama_cache_k_bits: Option<u32>,
    /// ExLlamaV3: with `exllama_cache_k_bits`.
    #[schema(minimum = 2, maximum = 8)]
    exllama_cache_v_bits: Option<u32>,
    /// ExLlamaV3: tokens of one request.
    #[schema(minimum = 1)]
    exllama_max_rq_tokens: Option<u32>,
    /// vLLM: context length.
    #[schema(minimum = 1)]
    vllm_max_model_len: Option<u32>,
    /// vLLM: any that it supports.
    vllm_kv_cache_dtype: Option<String>,
    /// vLLM: bytes of the KV cache, over its share of the GPU.
    #[schema(minimum = 1)]
    vllm_kv_cache_memory_bytes: Option<u64>,
    /// vLLM: pixels per image.
    #[schema(minimum = 1)]
    vllm_max_pixels: Option<u32>,
    /// vLLM: `mtp`, `draft_model`, `mlp_speculator`, …; null = none.
    vllm_speculative_method: Option<String>,
    /// vLLM: checkpoint of the draft.
    vllm_speculative_model: Option<String>,
    /// vLLM: tokens drafted at a time.
    #[schema(minimum = 1)]
    vllm_num_speculative_tokens: Option<u32>,
    /// llama-server: KV cells.
    #[schema(minimum = 1)]
    llama_server_n_ctx: Option<u32>,
    /// llama-server: tokens per image.
    #[schema(minimum = 1)]
    llama_server_image_max_tokens: Option<u32>,
    /// llama-server: `draft-mtp`; null = none.
    llama_server_spec_type: Option<String>,
    /// llama-server: tokens drafted at a time.
    #[schema(minimum = 1, maximum = 6)]
    llama_server_spec_draft_n_max: Option<u32>,
    /// llama-server: least probability of a drafted token.
    #[schema(minimum = 0.0, maximum = 1.0)]
    llama_server_spec_draft_p_min: Option<f64>,
}
