//! Quantities that must not be bare numbers.

use std::{fmt, iter::Sum};

/// A number of bytes. Arithmetic saturates: a memory figure never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// None.
    pub const ZERO: Self = Self(0);

    /// From mebibytes (2^20 bytes).
    #[must_use]
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Whole mebibytes, rounded up.
    #[must_use]
    pub const fn as_mib(self) -> u64 {
        self.0.div_ceil(1 << 20)
    }

    /// `self - other`, at least zero.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self + other`, at most the largest figure.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::plus)
    }
}

impl fmt::Display for Bytes {
    #[allow(clippy::cast_precision_loss, reason = "two decimals of a figure for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] = [
            ("TiB", 1 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        match UNITS.iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => write!(f, "{:.2} {unit}", self.0 as f64 / *size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_in_the_largest_fitting_unit() {
        assert_eq!(Bytes(17).to_string(), "17 B");
        assert_eq!(Bytes::mib(1536).to_string(), "1.50 GiB");
        assert_eq!(Bytes(1).as_mib(), 1);
        assert_eq!(Bytes(5).minus(Bytes(9)), Bytes::ZERO);
    }
}
