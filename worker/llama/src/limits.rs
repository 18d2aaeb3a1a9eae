//! What a loaded model allows a request, decided once at load.

/// What the instance is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Generate,
    Embed,
    Rerank,
}

/// Bounds of requests.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) role: Role,
    /// Most tokens one request may use, prompt and output together.
    pub(crate) context: usize,
    /// Most tokens of one input for embeddings.
    pub(crate) input: usize,
    /// Most bytes of text that the context can hold, and of one input: whatever is longer is refused unread.
    pub(crate) context_text: usize,
    pub(crate) input_text: usize,
    /// An input gives a vector for each of its tokens (pooling `none`).
    pub(crate) vector_per_token: bool,
    /// Physical batch: the largest part of an image whose cells see each other.
    pub(crate) ubatch: usize,
    /// Logical batch, for infill's shares.
    pub(crate) batch: usize,
    /// Tokens gathered per event of a stream.
    pub(crate) interval: u32,
    /// Texts go on beyond the context, and keep so many tokens of their beginning (below 0 = the prompt) if the request does not say; none = they end.
    pub(crate) shift: Option<i64>,
    pub(crate) defaults: Defaults,
}

/// What requests get that say nothing themselves, by llama.cpp's flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Defaults {
    /// Most tokens of an answer (`-n`); none = as long as there is room.
    pub(crate) max_tokens: Option<u32>,
    /// No beginning is taken from the cache (`--no-cache-prompt`).
    pub(crate) no_cache: bool,
    /// Infill prompts begin with what follows the gap (`--spm-infill`).
    pub(crate) suffix_first: bool,
    /// llama.cpp's name of it (`--reasoning-format`); empty = `deepseek`.
    pub(crate) reasoning_format: String,
    /// Whether chats think (`--reasoning`); none = as the template does.
    pub(crate) thinking: Option<bool>,
    /// Most tokens of thinking (`--reasoning-budget`); none = no limit.
    pub(crate) thinking_budget: Option<i32>,
    /// What the model reads when that is used up (`--reasoning-budget-message`).
    pub(crate) budget_message: String,
}

/// Texts up to this size are read whatever the context: tokenizers that drop white space or take any word for one token fit more into it than its tokens spell.
const ALWAYS_READ: usize = 1 << 20;

/// Most bytes of text that may fit `tokens` tokens of at most `longest` bytes.
pub(crate) fn text(tokens: usize, longest: usize) -> usize {
    tokens.saturating_mul(longest).max(ALWAYS_READ)
}

/// A request of this size has a text that takes a while to tokenize, and much memory: one at a time, and not on the way of others.
pub(crate) const LARGE: usize = 256 << 10;

/// Most bytes of text that are tokenized for their own sake (`/tokenize`).
pub(crate) const TOKENIZE_TEXT: usize = 4 << 20;

/// Most tokens that are made text for their own sake (`/detokenize`).
pub(crate) const DETOKENIZE_TOKENS: usize = 1 << 20;

/// Most bytes of an answer in one message, or of a prompt that is shown.
pub(crate) const ANSWER: usize = muster_proto::MAX_MESSAGE_BYTES / 2;

/// Tokens gathered per event for a caller that reads no stream.
pub(crate) const INTERVAL_UNSTREAMED: u32 = 32;
