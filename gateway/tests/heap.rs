//! What the heap sees of rendering: hot paths write into buffers that are there already.
//!
//! The profiler counts the whole process, so this is one test in a binary of its own.

use muster_gateway::measure::Chunks;

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

const CHUNKS: usize = 1000;

/// Heap allocations while so many chunks are rendered, per chunk.
#[allow(clippy::cast_precision_loss, reason = "a ratio of small numbers")]
fn allocations(dialect: &str, logprobs: bool) -> f64 {
    let mut chunks = Chunks::of(dialect, logprobs);
    // What a stream allocates once.
    for event in chunks.events(10) {
        chunks.render_this(event);
    }
    let events = chunks.events(CHUNKS);
    let before = dhat::HeapStats::get().total_blocks;
    for event in events {
        assert!(chunks.render_this(event) > 20);
    }
    (dhat::HeapStats::get().total_blocks - before) as f64 / CHUNKS as f64
}

#[test]
fn rendering_a_chunk_allocates_nothing() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let mut wrong = Vec::new();
    for dialect in ["chat", "completion", "response", "message", "ollama", "llamacpp"] {
        for logprobs in [false, true] {
            let measured = allocations(dialect, logprobs);
            println!("{dialect}, logprobs {logprobs}: {measured} allocations per chunk");
            // Buffers that grow with the answer, and a new one for every few frames; events of a response that repeat the probabilities need
            // a copy of each token's alternatives.
            let most = if (dialect, logprobs) == ("response", true) {
                1.1
            } else {
                0.1
            };
            if measured > most {
                wrong.push((dialect, logprobs, measured));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
