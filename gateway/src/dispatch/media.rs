//! Checks the addresses in content parts. An engine would fetch an address from inside the network, with its own rights. So only `data:`
//! URLs and hosts that the operator lists are passed on. The engine fetches from those hosts and follows their redirects.

use muster_core::{Code, Error};
use muster_proto::v1::{Chat, content_part, generate_request::Input, start::Work};
use serde_json::Value;

/// The hosts from which engines may fetch images and audio.
#[derive(Clone, Debug, Default)]
pub(crate) struct MediaHosts {
    /// Host names in lower case, without a port.
    listed: Vec<String>,
}

impl MediaHosts {
    /// The hosts that the operator listed; usually none.
    pub(crate) fn new(listed: &[String]) -> Self {
        Self {
            listed: listed.iter().map(|host| host.to_ascii_lowercase()).collect(),
        }
    }

    /// Checks a request before anything is loaded for it.
    ///
    /// # Errors
    /// `media_url_refused`, naming the message.
    pub(crate) fn check(&self, work: &Work) -> Result<(), Error> {
        match work {
            Work::Generate(work) => match &work.input {
                Some(Input::Chat(chat)) => self.check_chat(chat),
                Some(Input::Prompt(_) | Input::Infill(_)) | None => Ok(()),
            },
            Work::Embed(_) | Work::Rerank(_) => Ok(()),
        }
    }

    /// As [`check`](Self::check), for a conversation.
    ///
    /// # Errors
    /// `media_url_refused`, naming the message.
    pub(crate) fn check_chat(&self, chat: &Chat) -> Result<(), Error> {
        for (index, message) in chat.messages.iter().enumerate() {
            for part in &message.parts {
                let checked = match &part.kind {
                    Some(content_part::Kind::ImageUrl(url)) => self.check_url(url),
                    // Base64 has no colon, so data with a colon is an address.
                    Some(content_part::Kind::InputAudio(audio)) if audio.data.contains(':') => {
                        self.check_url(&audio.data)
                    }
                    Some(content_part::Kind::OtherJson(text)) => self.check_json(text.as_bytes()),
                    Some(content_part::Kind::InputAudio(_) | content_part::Kind::Text(_)) | None => Ok(()),
                };
                checked.map_err(|error| error.with_param(format!("messages[{index}].content")))?;
            }
        }
        Ok(())
    }

    /// Checks every address in a JSON text. Text that is not JSON passes: no engine would find an address in it.
    ///
    /// # Errors
    /// `media_url_refused`.
    pub(crate) fn check_json(&self, text: &[u8]) -> Result<(), Error> {
        serde_json::from_slice(text).map_or(Ok(()), |value| self.check_value(&value))
    }

    fn check_value(&self, value: &Value) -> Result<(), Error> {
        match value {
            Value::Object(fields) => fields.iter().try_for_each(|(key, value)| match value {
                Value::String(address) if points(key) => self.check_url(address),
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_)
                | Value::Object(_) => self.check_value(value),
            }),
            Value::Array(list) => list.iter().try_for_each(|value| self.check_value(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    /// Checks one address.
    ///
    /// # Errors
    /// `media_url_refused`. The message does not repeat the address, since a data URL may have megabytes.
    pub(crate) fn check_url(&self, url: &str) -> Result<(), Error> {
        let data = url
            .get(..5)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
        if data || host(url).is_some_and(|host| self.listed.contains(&host)) {
            return Ok(());
        }
        let message = "images and sounds must come as `data:` URLs: an address is fetched only from hosts that the gateway lists (--allowed-media-host)";
        Err(Code::MediaUrlRefused.error(message))
    }
}

/// Whether a field with this name holds an address.
fn points(key: &str) -> bool {
    matches!(key, "url" | "uri" | "path" | "file" | "href" | "src")
        || ["_url", "_uri", "_path"].iter().any(|end| key.ends_with(end))
}

/// The host of a web address; none unless the address is so plain that no engine can read another host out of it.
fn host(url: &str) -> Option<String> {
    let rest = ["https://", "http://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme))?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = authority.split_once(':').unwrap_or((authority, "0"));
    let plain = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    plain.then(|| host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{ChatMessage, ContentPart, InputAudio};

    use super::*;

    fn refused(hosts: &MediaHosts, kind: content_part::Kind) -> bool {
        let parts = vec![ContentPart { kind: Some(kind) }];
        let chat = Chat {
            messages: vec![ChatMessage {
                parts,
                ..ChatMessage::default()
            }],
            ..Chat::default()
        };
        let error = hosts.check_chat(&chat).err();
        if let Some(error) = &error {
            assert_eq!(
                (error.code, error.param.as_deref().unwrap_or_default()),
                (Code::MediaUrlRefused, "messages[0].content")
            );
        }
        error.is_some()
    }

    const ADDRESSES: [&str; 9] = [
        "http://169.254.169.254/latest/meta-data",
        "https://evil.test/x.png",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "ftp://x/y",
        "/etc/passwd",
        "//x/y",
        "",
        "gopher://127.0.0.1:6379/_x",
    ];

    /// Regression (issue 10, 3.4): the engine fetched addresses in content parts.
    #[test]
    fn only_data_is_passed_to_an_engine() {
        let none = MediaHosts::default();
        for url in ADDRESSES {
            assert!(refused(&none, content_part::Kind::ImageUrl(url.into())), "{url}");
            let other = serde_json::json!({"type": "video_url", "video_url": {"url": url}});
            assert!(
                refused(&none, content_part::Kind::OtherJson(other.to_string())),
                "{url}"
            );
        }
        let audio = |data: &str| {
            content_part::Kind::InputAudio(InputAudio {
                data: data.into(),
                format: "wav".into(),
            })
        };
        assert!(refused(&none, audio("http://127.0.0.1/x")));
        assert!(!refused(&none, audio("UklGRg==")));
        for url in ["data:image/png;base64,AA", "DATA:image/png;base64,AA"] {
            assert!(!refused(&none, content_part::Kind::ImageUrl(url.into())), "{url}");
        }
        let text = serde_json::json!({"type": "text", "text": "see http://x", "target_lang_code": "de"});
        assert!(!refused(&none, content_part::Kind::OtherJson(text.to_string())));
    }

    #[test]
    fn hosts_that_are_listed_are_passed_on_and_nothing_that_looks_like_them() {
        let listed = MediaHosts::new(&["Images.example".to_owned()]);
        for url in [
            "https://images.example/a.png?b=c",
            "http://IMAGES.example:8080/a",
            "https://images.example",
        ] {
            assert!(listed.check_url(url).is_ok(), "{url}");
        }
        for url in [
            "https://images.example.evil.test/",
            "https://images.example@evil.test/",
            "https://images.example:80@evil.test/",
            "https://images.example#@evil.test/",
            "https://images.example?@evil.test/",
            "https://images.example\\@evil.test/",
            "https://evil.test/images.example",
            "https://images.example/a\r\nb",
            "ftp://images.example/a",
            "file://images.example/etc/passwd",
        ] {
            assert!(listed.check_url(url).is_err(), "{url}");
        }
        for url in ADDRESSES {
            assert!(listed.check_url(url).is_err(), "{url}");
        }
    }
}
