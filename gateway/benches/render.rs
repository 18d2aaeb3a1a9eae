//! What one chunk of a stream costs to render, in each dialect; the budget is 2 µs.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use muster_gateway::measure::Chunks;

fn render(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("render one chunk");
    for dialect in ["chat", "completion", "response", "message", "ollama", "llamacpp"] {
        let mut chunks = Chunks::of(dialect, false);
        group.bench_function(dialect, |bencher| bencher.iter(|| black_box(chunks.render())));
    }
    group.finish();
}

criterion_group!(benches, render);
criterion_main!(benches);
