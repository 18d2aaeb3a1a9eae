//! Assigns a model's parts to devices: all ways to give each part its own device, up to a limit.

use smallvec::SmallVec;

use crate::api::NeedPart;

/// Limit on the steps of one search, so that a model with many parts on many devices stays cheap. Two to eight equal parts on eight devices
/// are searched completely.
const MOST_STEPS: usize = 512;

/// A search over all assignments.
pub(super) struct Ways<'a> {
    parts: &'a [NeedPart],
    /// Indexes of devices, in the order in which to try them.
    options: &'a [usize],
    /// Whether a part may go to a device.
    fits: &'a mut dyn FnMut(&NeedPart, usize) -> bool,
    steps: usize,
}

impl<'a> Ways<'a> {
    pub(super) fn new(
        parts: &'a [NeedPart],
        options: &'a [usize],
        fits: &'a mut dyn FnMut(&NeedPart, usize) -> bool,
    ) -> Self {
        Self {
            parts,
            options,
            fits,
            steps: MOST_STEPS,
        }
    }

    /// Calls `each` with the devices of every assignment, in the order of the parts. Assignments that differ only by equal parts count
    /// once.
    pub(super) fn each(mut self, each: &mut dyn FnMut(&[usize])) {
        self.go(&mut SmallVec::new(), each);
    }

    fn go(&mut self, chosen: &mut SmallVec<[usize; 8]>, each: &mut dyn FnMut(&[usize])) {
        let Some(part) = self.parts.get(chosen.len()) else {
            return each(chosen);
        };
        let before = chosen.len().checked_sub(1).and_then(|last| self.parts.get(last));
        let same = chosen.last().filter(|_| before == Some(part));
        let behind = same.and_then(|last| self.options.iter().position(|option| option == last));
        for &option in self.options.iter().skip(behind.map_or(0, |at| at + 1)) {
            if self.steps == 0 {
                return;
            }
            if chosen.contains(&option) || !(self.fits)(part, option) {
                continue;
            }
            self.steps -= 1;
            chosen.push(option);
            self.go(chosen, each);
            chosen.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_core::{Bytes, DeviceKind};

    fn ways(bytes: &[u64], devices: usize) -> Vec<Vec<usize>> {
        let part = |bytes: &u64| NeedPart {
            kind: DeviceKind::Gpu,
            bytes: Bytes::new(*bytes),
            share: None,
        };
        let parts: Vec<NeedPart> = bytes.iter().map(part).collect();
        let options: Vec<usize> = (0..devices).collect();
        let mut found = Vec::new();
        Ways::new(&parts, &options, &mut |_, _| true).each(&mut |way| found.push(way.to_vec()));
        found
    }

    #[test]
    fn equal_parts_are_combined_and_others_permuted() {
        assert_eq!(ways(&[1, 1], 3), [[0, 1], [0, 2], [1, 2]]);
        assert_eq!(ways(&[1, 2], 3).len(), 6);
        assert_eq!(
            ways(&[1, 1, 1], 7).len(),
            35,
            "all that eight devices leave to the rest"
        );
        assert!(ways(&[1, 1], 1).is_empty());
    }

    #[test]
    fn a_search_ends() {
        let found = ways(&[1, 2, 3, 4, 5, 6, 7, 8], 16);
        assert!(!found.is_empty() && found.len() < MOST_STEPS);
    }
}
