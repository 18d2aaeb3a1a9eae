//! Which tokens go into the next decode. Pure: no FFI, no clock.
//!
//! Every sequence that generates gives one token; what room is left goes to prompts, first come first served, bounded so that
//! a long prompt neither stalls the others nor delays its own cancellation.

/// What one sequence could add to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// Sequence.
    pub(crate) seq: usize,
    /// Tokens it has that are not in memory.
    pub(crate) tokens: usize,
    /// It generates: exactly its one token, ahead of all prompts.
    pub(crate) decode: bool,
    /// Order of arrival.
    pub(crate) age: u64,
}

/// What one sequence adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) seq: usize,
    pub(crate) tokens: usize,
}

/// Bounds of one decode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Tokens a decode call takes (`n_batch`).
    pub(crate) batch: usize,
    /// Prompt tokens while others generate.
    pub(crate) prefill_beside: usize,
    /// Prompt tokens while nobody generates.
    pub(crate) prefill_alone: usize,
}

/// Fills `parts` for the next decode, in sequence order.
pub(crate) fn plan(wants: &mut [Want], bounds: Bounds, parts: &mut Vec<Part>) {
    parts.clear();
    wants.sort_unstable_by_key(|want| (!want.decode, want.age));
    let mut left = bounds.batch;
    let mut decoding = false;
    let mut prefill = 0;
    for want in wants.iter() {
        let tokens = if want.decode {
            decoding = true;
            want.tokens.min(1).min(left)
        } else {
            let bound = if decoding {
                bounds.prefill_beside
            } else {
                bounds.prefill_alone
            };
            want.tokens.min(left).min(bound.saturating_sub(prefill))
        };
        if tokens > 0 {
            left -= tokens;
            if !want.decode {
                prefill += tokens;
            }
            parts.push(Part {
                seq: want.seq,
                tokens,
            });
        }
    }
    parts.sort_unstable_by_key(|part| part.seq);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        batch: 512,
        prefill_beside: 64,
        prefill_alone: 256,
    };

    fn want(seq: usize, tokens: usize, decode: bool, age: u64) -> Want {
        Want {
            seq,
            tokens,
            decode,
            age,
        }
    }

    fn planned(mut wants: Vec<Want>) -> Vec<Part> {
        let mut parts = Vec::new();
        plan(&mut wants, BOUNDS, &mut parts);
        parts
    }

    #[test]
    fn a_long_prompt_does_not_stall_those_who_generate() {
        let parts = planned(vec![
            want(0, 10_000, false, 1),
            want(1, 1, true, 2),
            want(2, 1, true, 3),
        ]);
        assert_eq!(
            parts,
            vec![
                Part { seq: 0, tokens: 64 },
                Part { seq: 1, tokens: 1 },
                Part { seq: 2, tokens: 1 }
            ]
        );
    }

    #[test]
    fn the_older_prompt_goes_first() {
        let parts = planned(vec![want(0, 300, false, 2), want(1, 200, false, 1)]);
        assert_eq!(
            parts,
            vec![Part { seq: 0, tokens: 56 }, Part { seq: 1, tokens: 200 }]
        );
    }

    proptest! {
        #[test]
        fn never_more_than_a_batch_and_never_nothing(spec in prop::collection::vec((0_usize..2000, any::<bool>()), 1..40)) {
            let wants: Vec<Want> = spec.iter().enumerate()
                .map(|(seq, (tokens, decode))| want(seq, if *decode { (*tokens).min(1) } else { *tokens }, *decode, seq as u64)).collect();
            let parts = planned(wants.clone());
            let total: usize = parts.iter().map(|p| p.tokens).sum();
            prop_assert!(total <= BOUNDS.batch);
            prop_assert!(total > 0 || wants.iter().all(|w| w.tokens == 0));
            prop_assert!(parts.windows(2).all(|w| w[0].seq < w[1].seq));
            for part in &parts {
                prop_assert!(part.tokens <= wants[part.seq].tokens);
            }
            for w in wants.iter().filter(|w| w.decode && w.tokens > 0) {
                prop_assert!(parts.iter().any(|p| p.seq == w.seq));
            }
        }
    }
}
