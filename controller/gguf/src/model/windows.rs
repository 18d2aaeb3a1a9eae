//! Which layers see only a window of the context (sliding-window or chunked attention).
//!
//! Source: `load_arch_hparams` of llama.cpp's architectures, and `set_swa_pattern` (llama-hparams.cpp).

use super::{WIDTH_LIMIT, keys::Keys};
use crate::Error;

/// The window of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// Number of cells in the window; 0 = no window.
    pub(super) cells: u64,
    /// For each layer, whether it sees only the window.
    pub(super) layers: Vec<bool>,
}

/// What an architecture does if the file does not say.
#[derive(Debug, Clone, Copy)]
struct Habit {
    /// Number of cells if the key is missing; 0 = then no window.
    cells: u64,
    /// Every n-th layer is full; 0 = none.
    period: u64,
    /// The full layer is the first of its period instead of the last.
    full_first: bool,
}

const LAST_FULL: Habit = Habit {
    cells: 0,
    period: 4,
    full_first: false,
};

const FIRST_FULL: Habit = Habit {
    full_first: true,
    ..LAST_FULL
};

/// The habit of architectures whose files do not say which layers have a window. Architectures with the pattern in the file need no entry.
fn habit(architecture: &str, layers: u64) -> Option<Habit> {
    Some(match architecture {
        "afmoe" | "cohere2" | "mellum" | "olmo2" | "muse-glimmer" => LAST_FULL,
        "exaone-moe" => Habit {
            cells: 128,
            ..LAST_FULL
        },
        // Only the 32B model; its smaller siblings have no window.
        "exaone4" if layers == 64 => Habit {
            cells: 4096,
            ..LAST_FULL
        },
        "llama4" => Habit {
            cells: 8192,
            ..LAST_FULL
        },
        "gemma2" => Habit {
            cells: 4096,
            period: 2,
            ..LAST_FULL
        },
        "gpt-oss" => Habit {
            period: 2,
            ..LAST_FULL
        },
        "gemma3n" => Habit {
            period: 5,
            ..LAST_FULL
        },
        "gemma3" | "gemma-embedding" => Habit {
            period: 6,
            ..LAST_FULL
        },
        "plamo3" => Habit {
            period: 8,
            ..LAST_FULL
        },
        "cohere2moe" | "laguna" | "smallthinker" => FIRST_FULL,
        "modern-bert" => Habit {
            period: 3,
            ..FIRST_FULL
        },
        // All attention layers; it makes no difference for the others.
        "lfm2" | "lfm2moe" | "deepseek4" => Habit {
            period: 0,
            ..LAST_FULL
        },
        _ => return None,
    })
}

/// The window of a model with `layers` layers.
pub(super) fn of(keys: &Keys<'_>, layers: u64) -> Result<Window, Error> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let none = Window {
        cells: 0,
        layers: vec![false; usize::try_from(layers).unwrap_or(0)],
    };
    // phi3's converters wrote windows that llama.cpp does not use.
    if keys.architecture() == "phi3" {
        return Ok(none);
    }
    let habit = habit(keys.architecture(), layers);
    let given = keys.number("attention.sliding_window", WIDTH_LIMIT)?;
    let cells = match (given, habit, keys.architecture()) {
        // Any value but 0 means this one (llama4.cpp, smallthinker.cpp).
        (Some(1..), _, "llama4") => 8192,
        (Some(1..), _, "smallthinker") => 4096,
        (Some(cells), ..) => cells,
        (None, Some(habit), _) => habit.cells,
        (None, None, _) => 0,
    };
    if cells == 0 {
        return Ok(none);
    }
    if let Some(pattern) = keys.list(PATTERN) {
        let windowed = |layer| pattern.get(layer).is_some_and(|flag| *flag != 0);
        return Ok(Window {
            cells,
            layers: (0..none.layers.len()).map(windowed).collect(),
        });
    }
    let period = keys.number(PATTERN, WIDTH_LIMIT)?;
    let Some(period) = period.or(habit.map(|habit| habit.period)) else {
        // It is unknown which layers have the window: llama.cpp would not use it either.
        return Ok(none);
    };
    let full_first = habit.is_some_and(|habit| habit.full_first);
    let windowed = |layer: u64| match layer.checked_rem(period) {
        None => true,
        Some(rest) if full_first => rest != 0,
        Some(rest) => rest + 1 < period,
    };
    Ok(Window {
        cells,
        layers: (0..layers).map(windowed).collect(),
    })
}
