//! `[devices.ID]`: what the operator sets for a device, in place of what its worker reports.

use std::collections::BTreeMap;

use muster_proto::v1::Device;

use super::section::Section;

/// Rules by device id. They apply on every host that has such a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceRules(BTreeMap<String, Rule>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    exclusive: Option<bool>,
}

impl DeviceRules {
    /// Changes the device to what policy should see.
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
