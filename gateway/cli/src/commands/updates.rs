//! `muster check-updates`.

use muster_proto::{
    hub::Revision,
    v1::{CheckUpdatesRequest, ModelUpdate},
};

use crate::{
    client::{Controller, answer},
    failure::Failure,
    output::{Output, or_dash, word},
};

/// Characters of a commit that are shown, as git does.
const SHORT: usize = 7;

/// Tells which models the hub has newer files of.
pub(crate) async fn check(
    controller: &Controller,
    output: Output,
    models: Vec<String>,
) -> Result<(), Failure> {
    let mut client = controller.models().await?;
    let response = answer(client.check_updates(CheckUpdatesRequest { models }).await)?;
    if output.is_json() {
        return output.message("CheckUpdatesResponse", &response);
    }
    if response.updates.is_empty() {
        return output.line("no model of the hub is downloaded");
    }
    let columns = ["MODEL", "STATUS", "REVISION", "HERE", "HUB", "NEWER FILES", "WHY"];
    output.table(columns, response.updates.iter().map(row))
}

fn row(update: &ModelUpdate) -> [String; 7] {
    let revision = match update.revision.parse::<Revision>() {
        Ok(revision) if revision.is_commit() => short(revision.as_str()),
        Ok(revision) => revision.to_string(),
        Err(_) => update.revision.clone(),
    };
    let why = update.error.as_ref().map_or("", |error| error.message.as_str());
    [
        update.model.clone(),
        word(update.status().as_str_name(), "UPDATE_STATUS_"),
        revision,
        short(&update.cached_commit),
        short(&update.hub_commit),
        or_dash(&update.changed_files.join(", ")),
        or_dash(why),
    ]
}

fn short(commit: &str) -> String {
    or_dash(commit.get(..SHORT).unwrap_or(commit))
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::UpdateStatus;

    use super::*;

    #[test]
    fn a_row_has_short_commits_and_no_empty_cell() {
        let update = ModelUpdate {
            model: "m".to_owned(),
            status: UpdateStatus::Outdated.into(),
            cached_commit: "0123456789".to_owned(),
            changed_files: vec!["a.gguf".to_owned(), "b.gguf".to_owned()],
            ..ModelUpdate::default()
        };
        assert_eq!(
            row(&update),
            ["m", "outdated", "main", "0123456", "-", "a.gguf, b.gguf", "-"]
        );
    }
}
