//! The token that Muster's processes on different machines share, and clients' credentials.

use std::{fmt, io, path::PathBuf};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
};

use super::keys::{Fingerprint, fingerprint, fingerprints, is_one_of, lines};

/// Shortest token; a shorter one could be guessed.
const SHORTEST: usize = 16;

/// The secret of Muster's processes on different machines. Several are accepted, so that it can be changed; the first one is sent.
#[derive(Clone)]
pub struct Token {
    accepted: Vec<Fingerprint>,
    shown: Credentials,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Makes a token from the accepted ones; the first one is sent.
    ///
    /// # Errors
    /// None is given, one is too short to be a secret, or one cannot be sent in a header.
    pub fn new(tokens: &[String]) -> io::Result<Self> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        if tokens.iter().any(|token| token.len() < SHORTEST) {
            return Err(wrong(format!(
                "a token of at least {SHORTEST} characters is wanted"
            )));
        }
        let first = tokens
            .first()
            .ok_or_else(|| wrong("there is no token".to_owned()))?;
        Ok(Self {
            accepted: fingerprints(tokens),
            shown: Credentials::bearer(first)?,
        })
    }

    /// Whether the secret is one of the accepted ones.
    #[must_use]
    pub fn accepts(&self, sent: Option<&[u8]>) -> bool {
        sent.is_some_and(|sent| is_one_of(&fingerprint(sent), &self.accepted))
    }
}

/// The flag for the token's file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TokenOptions {
    /// File with the token that Muster's processes on different machines send each other, one per line: the first is sent, all are
    /// accepted. Required if one of them listens on HOST:PORT. The token is sent unencrypted.
    #[arg(long, env = "MUSTER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl TokenOptions {
    /// The token; none if no file is given.
    ///
    /// # Errors
    /// The file cannot be read or is empty.
    pub fn read(&self) -> io::Result<Option<Token>> {
        let Some(file) = &self.token_file else {
            return Ok(None);
        };
        let wrong = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        Token::new(&lines(file)?).map(Some).map_err(wrong)
    }
}

/// What a client sends on HOST:PORT. On a unix socket the kernel tells who the client is.
#[derive(Clone, Default)]
pub struct Credentials {
    bearer: Option<MetadataValue<Ascii>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.bearer.is_some() {
            "Credentials(bearer)"
        } else {
            "Credentials(none)"
        })
    }
}

impl Credentials {
    /// No credentials.
    #[must_use]
    pub const fn none() -> Self {
        Self { bearer: None }
    }

    /// A token or a key as credentials.
    ///
    /// # Errors
    /// It has characters that a header cannot contain.
    pub fn bearer(secret: &str) -> io::Result<Self> {
        let value = format!("Bearer {secret}").parse();
        let mut value: MetadataValue<Ascii> = value
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a key is ASCII without blanks"))?;
        value.set_sensitive(true);
        Ok(Self { bearer: Some(value) })
    }
}

impl From<Option<&Token>> for Credentials {
    fn from(token: Option<&Token>) -> Self {
        token.map(|token| token.shown.clone()).unwrap_or_default()
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tokens_are_accepted_and_none_is_printed() {
        let tokens = [
            "0123456789abcdef-new".to_owned(),
            "0123456789abcdef-old".to_owned(),
        ];
        let token = Token::new(&tokens).unwrap();
        for text in &tokens {
            assert!(token.accepts(Some(text.as_bytes())));
        }
        assert!(!token.accepts(None) && !token.accepts(Some(b"0123456789abcdef")));
        let shown = format!("{token:?} {:?}", token.shown);
        assert!(!shown.contains("0123"), "{shown}");
        assert!(Token::new(&["short".to_owned()]).is_err());
        assert!(Token::new(&[]).is_err());
    }
}
