//! Bearer tokens of a file, each for all models or for some.
//!
//! ```text
//! # comment
//! TOKEN                    all models, and loading
//! TOKEN speech,tagger      these models
//! ```

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use cellstream_serve::scheduler::ClientId;
use sha2::{Digest, Sha256};

use super::Peer;
use crate::error::{ErrorKind, InferError};
use crate::refusal::last_refusal;

/// The one who sends a request.
#[derive(Clone, Debug)]
pub struct Client {
    /// For limits of a client: one for each token, or each address if there are no tokens.
    pub id: ClientId,
    /// `None`: all.
    models: Option<Arc<BTreeSet<String>>>,
}

impl Client {
    /// Whether the client may use a model.
    pub fn may_use(&self, model: &str) -> bool {
        self.models
            .as_ref()
            .is_none_or(|models| models.contains(model))
    }

    /// # Errors
    /// [`ErrorKind::Forbidden`].
    pub fn check(&self, model: &str) -> Result<(), InferError> {
        match self.may_use(model) {
            true => Ok(()),
            false => Err(InferError::new(
                ErrorKind::Forbidden,
                format!("the token is not for model {model:?}"),
            )),
        }
    }

    /// # Errors
    /// [`ErrorKind::Forbidden`] for a token of some models.
    pub fn check_all_models(&self) -> Result<(), InferError> {
        match self.models {
            None => Ok(()),
            Some(_) => Err(InferError::new(
                ErrorKind::Forbidden,
                "the token is not for all models",
            )),
        }
    }
}

/// The tokens of a file, by their digests: comparing them takes no time that depends on the token.
#[derive(Debug)]
pub struct Tokens {
    /// `None`: no token is needed.
    clients: Option<HashMap<[u8; 32], Client>>,
    addresses: RandomState,
}

impl Tokens {
    /// Lets everybody in.
    pub fn none() -> Tokens {
        Tokens {
            clients: None,
            addresses: RandomState::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or has no token.
    pub fn read(path: &Path) -> Result<Tokens, String> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|why| format!("{}: {why}", path.display()))?;
        match Tokens::parse(&text) {
            tokens if tokens.clients.as_ref().is_some_and(HashMap::is_empty) => {
                Err(format!("{}: there is no token", path.display()))
            }
            tokens => Ok(tokens),
        }
    }

    fn parse(text: &str) -> Tokens {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let clients = lines.zip(0..).map(|(line, number)| {
            let (token, models) = match line.split_once(char::is_whitespace) {
                Some((token, models)) => (token, Some(models)),
                None => (line, None),
            };
            let models = models.map(|models| {
                let names = models.split(',').map(|name| name.trim().to_owned());
                Arc::new(names.collect())
            });
            let id = ClientId(number);
            (digest(token), Client { id, models })
        });
        Tokens {
            clients: Some(clients.collect()),
            addresses: RandomState::new(),
        }
    }

    /// The client of a request.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`].
    fn client(&self, token: Option<&str>, address: Option<IpAddr>) -> Result<Client, InferError> {
        let Some(clients) = &self.clients else {
            return Ok(Client {
                id: ClientId(self.addresses.hash_one(address)),
                models: None,
            });
        };
        let token = token.ok_or_else(|| {
            InferError::new(
                ErrorKind::Unauthenticated,
                "a token is needed: send the header \"Authorization: Bearer TOKEN\"",
            )
        })?;
        clients
            .get(&digest(token))
            .cloned()
            .ok_or_else(|| InferError::new(ErrorKind::Unauthenticated, "the token is unknown"))
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Paths that need no token: probes of health, and the page without its numbers.
const OPEN: [&str; 6] = [
    // The page itself; its numbers need one.
    "/",
    "/v2/health/live",
    "/v2/health/ready",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    // Of the server; models need one.
    "/grpc.health.v1.Health/Check",
];

/// Middleware: finds the [`Client`] of a request, or refuses it.
pub async fn authenticate(
    State(tokens): State<Arc<Tokens>>,
    mut request: Request,
    next: Next,
) -> Response {
    let address = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
    let header = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    match tokens.client(token, address) {
        Ok(client) => {
            request.extensions_mut().insert(client);
        }
        Err(error) if !OPEN.contains(&request.uri().path()) => {
            return last_refusal(request.headers(), &error);
        }
        Err(_) => {}
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_for_all_models_or_some() {
        let tokens = Tokens::parse("# all\nfirst\n\n  second speech, tagger\n");
        let first = tokens.client(Some("first"), None).expect("known");
        let second = tokens.client(Some("second"), None).expect("known");
        assert!(first.may_use("any") && first.check_all_models().is_ok());
        assert!(second.may_use("speech") && second.may_use("tagger") && !second.may_use("any"));
        assert!(second.check_all_models().is_err());
        assert_ne!(first.id, second.id);
        for unknown in [None, Some(""), Some("firs"), Some("first "), Some("# all")] {
            let error = tokens.client(unknown, None).expect_err("refused");
            assert_eq!(error.kind, ErrorKind::Unauthenticated);
        }
    }

    #[test]
    fn without_tokens_each_address_is_a_client() {
        let tokens = Tokens::none();
        let client = |address: [u8; 4]| tokens.client(None, Some(address.into())).expect("open").id;
        assert_eq!(client([127, 0, 0, 1]), client([127, 0, 0, 1]));
        assert_ne!(client([127, 0, 0, 1]), client([127, 0, 0, 2]));
    }
}
