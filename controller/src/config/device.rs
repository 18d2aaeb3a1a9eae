//! `[devices.ID]`: what the operator says of a device, over what its worker says.

use std::collections::BTreeMap;

use muster_proto::v1::Device;

use super::section::Section;

/// Rules by device id; they hold on every host that has such a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceRules(BTreeMap<String, Rule>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    exclusive: Option<bool>,
}

impl DeviceRules {
    /// The device as policy is to see it.
    pub(crate) fn apply(&self, device: &mut Device) {
        let rule = self.0.get(&device.device_id);
        if let Some(exclusive) = rule.and_then(|rule| rule.exclusive) {
            device.exclusive = exclusive;
        }
    }
}

/// Reads `[devices]`.
pub(super) fn rules(section: &Section<'_>) -> DeviceRules {
    let rule = |(id, section): (&str, Section<'_>)| {
        let rule = Rule {
            exclusive: section.boolean("exclusive"),
        };
        section.finish();
        (id.to_owned(), rule)
    };
    DeviceRules(section.sections().into_iter().map(rule).collect())
}
