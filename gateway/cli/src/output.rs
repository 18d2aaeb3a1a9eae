//! Standard output: tables for people, JSON for programs. JSON is protobuf's own mapping with the field names of the `.proto` files, the same that
//! `grpcurl` prints, so that nothing has to be described twice.

use std::{
    fmt,
    io::{self, Write as _},
    time::Duration,
};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::BinaryBytes;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};

use crate::failure::Failure;

/// Where results go, and how they look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// JSON or tables.
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Results are for programs.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints `message` of type `muster.v1.NAME` as one line of JSON.
    pub(crate) fn message(self, name: &str, message: &impl Message) -> Result<(), Failure> {
        self.line(to_json(name, message)?)
    }

    /// Prints a table; the first row is its head.
    pub(crate) fn table<const N: usize>(
        self,
        head: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) -> Result<(), Failure> {
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(head)
            .add_rows(rows);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let text: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        self.line(text.join("\n"))
    }

    /// Prints a line.
    #[allow(clippy::unused_self, reason = "the one way to standard output")]
    pub(crate) fn line(self, text: impl fmt::Display) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        Ok(out.flush()?)
    }

    /// Prints text as it is, at once.
    #[allow(clippy::unused_self, reason = "the one way to standard output")]
    pub(crate) fn text(self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

fn to_json(name: &str, message: &impl Message) -> Result<String, Failure> {
    let wrong = |error: &dyn fmt::Display| Failure::Json(error.to_string());
    let pool = DescriptorPool::decode(muster_proto::DESCRIPTORS).map_err(|error| wrong(&error))?;
    let descriptor = pool
        .get_message_by_name(&format!("muster.v1.{name}"))
        .ok_or_else(|| wrong(&format!("no message {name}")))?;
    let bytes = message.encode_to_vec();
    let dynamic = DynamicMessage::decode(descriptor, bytes.as_slice()).map_err(|error| wrong(&error))?;
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .skip_default_fields(false)
        .stringify_64_bit_integers(false);
    let mut json = serde_json::Serializer::new(Vec::new());
    dynamic
        .serialize_with_options(&mut json, &options)
        .map_err(|error| wrong(&error))?;
    String::from_utf8(json.into_inner()).map_err(|error| wrong(&error))
}

/// Bytes for people, in the largest unit that fits; a dash for none.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0 => "-".to_owned(),
        bytes => BinaryBytes(bytes).to_string(),
    }
}

/// A dash for an empty text.
pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text.to_owned()
    }
}

/// A time span for people: `3.2s`, `4m10s`, `2h05m`, `3d4h`.
pub(crate) fn span(span: Option<&prost_types::Duration>) -> String {
    let Some(span) = span.and_then(|span| Duration::try_from(*span).ok()) else {
        return "-".to_owned();
    };
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{:.1}s", span.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// A point in time in the local zone, to the millisecond.
pub(crate) fn moment(at: Option<&prost_types::Timestamp>) -> String {
    at.and_then(|at| jiff::Timestamp::new(at.seconds, at.nanos).ok())
        .map_or_else(
            || "-".to_owned(),
            |at| {
                at.to_zoned(jiff::tz::TimeZone::system())
                    .strftime("%H:%M:%S%.3f")
                    .to_string()
            },
        )
}

/// An enum's name as people say it: `MODEL_STATUS_LOADED` without its prefix, in lower case.
pub(crate) fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{ListModelsResponse, Model, ModelStatus};

    use super::*;

    #[test]
    fn json_has_the_names_of_the_proto_files() {
        let response = ListModelsResponse {
            models: vec![Model {
                id: "tiny".into(),
                status: ModelStatus::Loaded.into(),
                size_bytes: 7,
                ..Default::default()
            }],
            settled: true,
        };
        let json: serde_json::Value =
            serde_json::from_str(&to_json("ListModelsResponse", &response).unwrap()).unwrap();
        assert_eq!(json["models"][0]["id"], "tiny");
        assert_eq!(json["models"][0]["status"], "MODEL_STATUS_LOADED");
        assert_eq!(json["models"][0]["size_bytes"], 7);
        assert_eq!(json["models"][0]["pinned"], false);
        assert_eq!(json["settled"], true);
    }

    #[test]
    fn bytes_are_in_the_largest_unit_that_fits() {
        assert_eq!(
            [0, 1023, 100_000, 3 << 40].map(bytes),
            ["-", "1023 B", "97.66 KiB", "3.00 TiB"]
        );
    }

    #[test]
    fn spans_are_short() {
        let of = |seconds, nanos| span(Some(&prost_types::Duration { seconds, nanos }));
        assert_eq!(of(3, 240_000_000), "3.2s");
        assert_eq!(of(250, 0), "4m10s");
        assert_eq!(of(7500, 0), "2h05m");
        assert_eq!(of(273_600, 0), "3d4h");
        assert_eq!(span(None), "-");
        assert_eq!(word("MODEL_STATUS_LOADED", "MODEL_STATUS_"), "loaded");
    }
}
