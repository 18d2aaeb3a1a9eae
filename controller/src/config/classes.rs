//! `[policy.models_per_device]`: how many models a device of a kind may host at once (I3), for devices whose workers do not tell.

use std::collections::BTreeMap;

use muster_core::{DeviceKind, ModelType};
use muster_policy::Exclusivity;

use super::section::Section;

/// Reads the section. `1` = one model of any type, `-1` = as many as fit, an array = a number per type in the order llm, embedding,
/// reranking, audio, image; missing entries are 0, -1 = as many as fit.
pub(super) fn classes(section: Section<'_>) -> BTreeMap<DeviceKind, Exclusivity> {
    let mut classes = BTreeMap::new();
    for kind in DeviceKind::ALL {
        let key = kind.name();
        let Some(value) = section.leaf(key) else { continue };
        match class(value) {
            Ok(class) => {
                classes.insert(kind, class);
            }
            Err(message) => section.problem(key, message),
        }
    }
    section.finish();
    classes
}

fn class(value: &toml::Value) -> Result<Exclusivity, String> {
    const WANT: &str = "want 1, -1 for as many as fit, or an array of one to five numbers, one for each type";
    let Some(items) = value.as_array() else {
        return match value.as_integer() {
            Some(1) => Ok(Exclusivity::OneModel),
            Some(-1) => Ok(Exclusivity::Shared),
            Some(_) | None => Err(WANT.to_owned()),
        };
    };
    let mut limits = [Some(0); ModelType::ALL.len()];
    if items.is_empty() || items.len() > limits.len() {
        return Err(WANT.to_owned());
    }
    for (limit, item) in limits.iter_mut().zip(items) {
        *limit = match item.as_integer() {
            Some(-1) => None,
            Some(number) => Some(u32::try_from(number).map_err(|_| WANT.to_owned())?),
            None => return Err(WANT.to_owned()),
        };
    }
    Ok(Exclusivity::PerType(limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Exclusivity, String> {
        let table: toml::Table = format!("x = {text}").parse().unwrap();
        class(&table["x"])
    }

    #[test]
    fn one_number_is_for_all_types_and_an_array_for_each() {
        assert_eq!(read("1"), Ok(Exclusivity::OneModel));
        assert_eq!(read("-1"), Ok(Exclusivity::Shared));
        let one_of_two = Exclusivity::PerType([Some(1), Some(1), Some(0), Some(0), Some(0)]);
        assert_eq!(read("[1, 1]"), Ok(one_of_two));
        let many = Exclusivity::PerType([None, Some(2), Some(0), Some(0), Some(0)]);
        assert_eq!(read("[-1, 2]"), Ok(many));
        for wrong in ["0", "2", "'one'", "[]", "[-2]", "[1, 1, 1, 1, 1, 1]", "[true]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
