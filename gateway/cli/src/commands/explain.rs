//! `muster explain`.

use muster_proto::v1::{ExplainLoadRequest, ExplainLoadResponse, PlacePlan, VictimPlan};

use crate::{
    client::{Controller, answer},
    failure::Failure,
    output::{Output, bytes, or_dash},
};

/// Explains what loading a model would do now.
pub(crate) async fn explain(controller: &Controller, output: Output, model: String) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let request = ExplainLoadRequest {
        model,
        ..ExplainLoadRequest::default()
    };
    let response = answer(client.explain_load(request).await)?;
    if output.is_json() {
        return output.message("ExplainLoadResponse", &response);
    }
    output.line(headline(&response))?;
    if response.places.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = response.places.iter().flat_map(place).collect();
    output.table(
        [
            "", "WORKER", "DEVICE", "WANTED", "POSSIBLE", "FREE", "RESERVED", "MEMORY",
        ],
        rows,
    )?;
    for place in &response.places {
        for note in notes(place) {
            output.line(note)?;
        }
    }
    if response.more_places > 0 {
        output.line(format_args!("and {} more places", response.more_places))?;
    }
    Ok(())
}

fn headline(response: &ExplainLoadResponse) -> String {
    let code = response.refusal.as_ref().map(|error| error.code.as_str());
    let code = code.map_or_else(String::new, |code| format!("{code}: "));
    let place = match response.queue_position {
        0 => String::new(),
        place => format!(" (it waits already, place {place})"),
    };
    format!("{}: {code}{}{place}", response.model, response.reason)
}

/// One row per device of a place. The chosen place has a mark.
fn place(place: &PlacePlan) -> Vec<[String; 8]> {
    let row = |(number, part): (usize, &muster_proto::v1::PartPlan)| {
        let first = number == 0;
        [
            if first && place.chosen { "→" } else { "" }.to_owned(),
            if first {
                place.worker_id.clone()
            } else {
                String::new()
            },
            part.device_id.clone(),
            bytes(part.wanted_bytes),
            bytes(part.possible_bytes),
            part.free_bytes.map_or_else(|| or_dash(""), bytes),
            bytes(part.committed_bytes),
            bytes(part.capacity_bytes),
        ]
    };
    place.parts.iter().enumerate().map(row).collect()
}

fn notes(place: &PlacePlan) -> Vec<String> {
    let devices: Vec<&str> = place.parts.iter().map(|part| part.device_id.as_str()).collect();
    let at = format!("{} on {}", place.worker_id, devices.join(" and "));
    let victims = place.victims.iter().map(|victim| {
        format!(
            "{at}: {} would go, {}: {}, {}",
            victim.model,
            victim.rule,
            victim.standing,
            returned(victim)
        )
    });
    let obstruction =
        (!place.obstruction.is_empty()).then(|| format!("{at}: impossible now: {}", place.obstruction));
    victims.chain(obstruction).collect()
}

fn returned(victim: &VictimPlan) -> String {
    let parts = victim
        .reservations
        .iter()
        .map(|part| format!("{} on {}", bytes(part.bytes), part.device_id));
    format!("gives back {}", or_dash(&parts.collect::<Vec<_>>().join(" and ")))
}

#[cfg(test)]
mod tests {
    use muster_core::Code;
    use muster_proto::v1::PartPlan;

    use super::*;

    #[test]
    fn the_headline_says_what_and_why() {
        let mut response = ExplainLoadResponse {
            model: "m".to_owned(),
            reason: "it would be loaded after evicting n".to_owned(),
            queue_position: 2,
            ..ExplainLoadResponse::default()
        };
        assert_eq!(
            headline(&response),
            "m: it would be loaded after evicting n (it waits already, place 2)"
        );
        response.queue_position = 0;
        response.refusal = Some(Code::SlotsPinned.error("x").into());
        response.reason = "no room".to_owned();
        assert_eq!(headline(&response), "m: slots_pinned: no room");
    }

    #[test]
    fn notes_name_the_devices_and_victims_their_rule_and_what_they_give_back() {
        let part = |device: &str| PartPlan {
            device_id: device.to_owned(),
            ..PartPlan::default()
        };
        let plan = PlacePlan {
            worker_id: "w".to_owned(),
            chosen: true,
            parts: vec![part("gpu0"), part("gpu1")],
            victims: vec![VictimPlan {
                model: "n".to_owned(),
                rule: "type slot (I2)".to_owned(),
                standing: "idle".to_owned(),
                reservations: vec![muster_proto::v1::Reservation {
                    device_id: "cpu".to_owned(),
                    bytes: 1 << 30,
                }],
                ..VictimPlan::default()
            }],
            obstruction: "p are pinned (I6)".to_owned(),
            ..PlacePlan::default()
        };
        assert_eq!(
            notes(&plan),
            [
                "w on gpu0 and gpu1: n would go, type slot (I2): idle, gives back 1.00 GiB on cpu",
                "w on gpu0 and gpu1: impossible now: p are pinned (I6)"
            ]
        );
        let marks: Vec<String> = place(&plan).into_iter().map(|row| row[0].clone()).collect();
        assert_eq!(marks, ["→", ""]);
    }
}
