//! Which sequence serves a request, and how much of its prompt is already in memory. Pure.
//!
//! What another tenant left is as good as nothing: neither its length nor its place may tell what was asked.
//!
//! Rule (ENGINE.md 7): the wished one, if it is idle and holds nothing of another tenant; else the idle sequence whose common prefix covers more than a tenth of the prompt (the longest);
//! else an empty one; else the least recently used. Where cells can be shared, a longer prefix of any other sequence is taken over.

use crate::model::Token;

/// A share of the prompt below which a cached prefix is not worth a particular sequence.
const WORTH: f64 = 0.1;
/// Fewest tokens worth sharing between sequences.
const SHARE_LEAST: usize = 32;

/// What the picker sees of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    /// Nobody uses it.
    pub(crate) idle: bool,
    /// What it holds is the asker's, or may be shared with him.
    pub(crate) ours: bool,
    /// Tokens in its memory.
    pub(crate) cached: &'a [Token],
    /// Tick of its last use.
    pub(crate) last_used: u64,
}

/// A pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    /// The sequence to use.
    pub(crate) seq: usize,
    /// Tokens of the prompt its own memory holds.
    pub(crate) own: usize,
    /// A sequence that holds more of the prompt, and how much.
    pub(crate) donor: Option<(usize, usize)>,
}

/// Length of the common beginning.
pub(crate) fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Picks a sequence for `prompt`; `None` if none is idle. A busy wish gives way: to wait for it would hold up all others.
pub(crate) fn pick(
    candidates: &[Candidate<'_>],
    prompt: &[Token],
    wish: Option<usize>,
    reuse: bool,
    may_share: bool,
) -> Option<Pick> {
    let prefix = |seq: usize| {
        if reuse && candidates[seq].ours {
            common_prefix(candidates[seq].cached, prompt)
        } else {
            0
        }
    };
    let idle = || (0..candidates.len()).filter(|seq| candidates[*seq].idle);
    let open = |seq: &usize| candidates[*seq].ours || candidates[*seq].cached.is_empty();
    let wished = wish.and_then(|wish| idle().filter(open).find(|seq| *seq == wish));
    let seq = match wished {
        Some(seq) => seq,
        None => {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a threshold"
            )]
            let least = (prompt.len() as f64 * WORTH) as usize;
            idle()
                .map(|seq| (prefix(seq), seq))
                .filter(|(len, _)| *len > least)
                .max_by_key(|(len, seq)| (*len, std::cmp::Reverse(*seq)))
                .map(|(_, seq)| seq)
                .or_else(|| {
                    idle().min_by_key(|seq| {
                        (
                            !candidates[*seq].cached.is_empty(),
                            candidates[*seq].last_used,
                            *seq,
                        )
                    })
                })?
        }
    };
    let own = prefix(seq);
    let donor = (may_share && reuse)
        .then(|| {
            (0..candidates.len())
                .filter(|other| *other != seq)
                .map(|other| (other, prefix(other)))
                .max_by_key(|(other, len)| (*len, std::cmp::Reverse(*other)))
        })
        .flatten()
        .filter(|(_, len)| *len >= own + SHARE_LEAST);
    Some(Pick { seq, own, donor })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(idle: bool, cached: &[Token], last_used: u64) -> Candidate<'_> {
        Candidate {
            idle,
            ours: true,
            cached,
            last_used,
        }
    }

    #[test]
    fn the_longest_prefix_wins_else_the_empty_else_the_oldest() {
        let prompt: Vec<Token> = (0..100).collect();
        let half: Vec<Token> = (0..50).collect();
        let bit: Vec<Token> = (0..5).collect();
        let all = [
            candidate(true, &bit, 1),
            candidate(true, &half, 2),
            candidate(true, &[], 3),
        ];
        assert_eq!(
            pick(&all, &prompt, None, true, false),
            Some(Pick {
                seq: 1,
                own: 50,
                donor: None
            })
        );
        assert_eq!(pick(&all, &prompt, None, false, false).map(|p| p.seq), Some(2));
        assert_eq!(
            pick(&all[..1], &prompt, None, true, false),
            Some(Pick {
                seq: 0,
                own: 5,
                donor: None
            })
        );
    }

    #[test]
    fn a_busy_sequence_lends_its_prefix_but_is_not_picked() {
        let prompt: Vec<Token> = (0..100).collect();
        let all = [candidate(false, &prompt, 9), candidate(true, &[], 1)];
        assert_eq!(
            pick(&all, &prompt, None, true, true),
            Some(Pick {
                seq: 1,
                own: 0,
                donor: Some((0, 100))
            })
        );
        assert_eq!(pick(&all, &prompt, None, true, false).and_then(|p| p.donor), None);
    }

    /// Issue 10, 3.13: `cached_tokens` and a chosen `id_slot` told one key what another had asked.
    #[test]
    fn what_another_tenant_left_is_neither_reused_nor_wished_for() {
        let prompt: Vec<Token> = (0..100).collect();
        let foreign = |idle, cached| Candidate {
            ours: false,
            ..candidate(idle, cached, 1)
        };
        // Not its own memory, whether it is wished for or not, and not as a donor.
        let all = [foreign(true, &prompt), candidate(true, &[], 9)];
        for wish in [None, Some(0)] {
            let pick = pick(&all, &prompt, wish, true, true).unwrap();
            assert_eq!((pick.seq, pick.own, pick.donor), (1, 0, None), "{wish:?}");
        }
        let busy = [foreign(false, &prompt), candidate(true, &[], 1)];
        assert_eq!(pick(&busy, &prompt, None, true, true).unwrap().donor, None);
        // If it is the only one it is taken, and nothing of it kept.
        let only = pick(&all[..1], &prompt, Some(0), true, true).unwrap();
        assert_eq!((only.seq, only.own), (0, 0));
        // Whose prefix it is decides, not how long it is.
        let part: Vec<Token> = (0..40).collect();
        let both = [foreign(true, &prompt), candidate(true, &part, 1)];
        let pick = pick(&both, &prompt, None, true, true).unwrap();
        assert_eq!((pick.seq, pick.own, pick.donor), (1, 40, None));
    }

    #[test]
    fn a_wish_is_kept_unless_it_is_busy() {
        let all = [candidate(false, &[], 1), candidate(true, &[], 2)];
        assert_eq!(pick(&all, &[1], Some(0), true, true).map(|p| p.seq), Some(1));
        assert_eq!(pick(&all, &[1], Some(1), true, true).map(|p| p.seq), Some(1));
        assert_eq!(pick(&all[..1], &[1], Some(0), true, true), None);
        let older = [candidate(true, &[], 1), candidate(true, &[], 2)];
        assert_eq!(pick(&older, &[1], Some(1), true, true).map(|p| p.seq), Some(1));
    }
}
