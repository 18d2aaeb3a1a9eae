//! Embedding vectors: shortened and normalised as llama.cpp's `embd_normalize` says (seed 004). Pure.

/// Cuts to `dimensions` (0 = whole) and normalises: −1 none, 0 largest element to 32,760, 1 taxicab, 2 Euclidean, p > 2 the p-norm.
pub(crate) fn finish(mut values: Vec<f32>, dimensions: usize, normalize: i32) -> Vec<f32> {
    if dimensions > 0 {
        values.truncate(dimensions);
    }
    let norm: f64 = match normalize {
        i32::MIN..=-1 => return values,
        0 => values.iter().map(|v| f64::from(v.abs())).fold(0.0, f64::max) / 32_760.0,
        1 => values.iter().map(|v| f64::from(v.abs())).sum(),
        2 => values
            .iter()
            .map(|v| f64::from(*v) * f64::from(*v))
            .sum::<f64>()
            .sqrt(),
        p => values
            .iter()
            .map(|v| f64::from(v.abs()).powi(p))
            .sum::<f64>()
            .powf(1.0 / f64::from(p)),
    };
    let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
    for value in &mut values {
        #[expect(clippy::cast_possible_truncation, reason = "a scaled f32")]
        let scaled = (f64::from(*value) * scale) as f32;
        *value = scaled;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms() {
        assert_eq!(finish(vec![3.0, 4.0], 0, 2), vec![0.6, 0.8]);
        assert_eq!(finish(vec![3.0, 1.0], 0, 1), vec![0.75, 0.25]);
        assert_eq!(finish(vec![3.0, 4.0], 0, -1), vec![3.0, 4.0]);
        assert_eq!(finish(vec![3.0, 4.0, 9.0], 2, 2), vec![0.6, 0.8]);
        assert_eq!(finish(vec![0.0, 0.0], 0, 2), vec![0.0, 0.0]);
    }
}
