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
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use gatestream_serve::scheduler::ClientId;
use sha2::{Digest, Sha256};

use super::Peer;
use crate::error::{ErrorKind, InferError};
use crate::metrics::Metrics;
use crate::refusal::error_response_and_close;

/// The one who sends a request.
#[derive(Clone, Debug)]
pub struct Client {
    /// For limits of a client: one for each token, or each address if there are no tokens.
    pub id: ClientId,
    pub tenant: Tenant,
    /// Shared by all requests of the token, so that a new file of tokens also counts for open
    /// streams.
    rights: Arc<RwLock<Rights>>,
}

/// The owner of sequences: a token. Without tokens all clients are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tenant(Option<ClientId>);

/// The models that a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rights {
    All,
    Some(BTreeSet<String>),
    /// The token is no longer in the file.
    Revoked,
}

impl Client {
    /// The server itself.
    pub fn server() -> Client {
        Client {
            id: ClientId(0),
            tenant: Tenant(None),
            rights: Arc::new(RwLock::new(Rights::All)),
        }
    }

    fn of_token(digest: &TokenDigest, rights: Rights) -> Client {
        // A line number would change with the file.
        let (head, _) = digest.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let id = ClientId(u64::from_le_bytes(*head));
        Client {
            id,
            tenant: Tenant(Some(id)),
            rights: Arc::new(RwLock::new(rights)),
        }
    }

    /// Whether the client may use a model.
    pub fn may_use(&self, model: &str) -> bool {
        match &*read(&self.rights) {
            Rights::All => true,
            Rights::Some(models) => models.contains(model),
            Rights::Revoked => false,
        }
    }

    /// Whether the client may use all models, also later ones.
    pub fn may_use_all(&self) -> bool {
        *read(&self.rights) == Rights::All
    }

    /// # Errors
    /// [`ErrorKind::Forbidden`]; [`ErrorKind::Unauthenticated`] if the token has been revoked.
    pub fn check(&self, model: &str) -> Result<(), InferError> {
        if self.may_use(model) {
            return Ok(());
        }
        Err(self.refused(format!("the token is not for model {model:?}")))
    }

    /// # Errors
    /// As [`Client::check`], for a token of some models.
    pub fn check_all_models(&self) -> Result<(), InferError> {
        if self.may_use_all() {
            return Ok(());
        }
        Err(self.refused("the token is not for all models".into()))
    }

    fn refused(&self, why: String) -> InferError {
        if *read(&self.rights) == Rights::Revoked {
            return unknown_token();
        }
        InferError::new(ErrorKind::Forbidden, why)
    }
}

/// The tokens of a file, by their digests: comparing them takes no time that depends on the token.
#[derive(Debug)]
pub struct Tokens {
    /// `None`: no token is needed.
    file: Option<PathBuf>,
    clients: RwLock<HashMap<TokenDigest, Client>>,
    everybody: Arc<RwLock<Rights>>,
    addresses: RandomState,
}

type TokenDigest = [u8; 32];

impl Tokens {
    /// Lets everybody in.
    pub fn none() -> Tokens {
        Tokens {
            file: None,
            clients: RwLock::default(),
            everybody: Client::server().rights,
            addresses: RandomState::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, has no token, or has one twice.
    pub fn read(path: &Path) -> Result<Tokens, String> {
        let tokens = Tokens {
            file: Some(path.to_owned()),
            ..Tokens::none()
        };
        tokens.reload()?;
        Ok(tokens)
    }

    /// Reads the file again. A token that is still there keeps its sequences and its counts; one
    /// that is gone is refused, also on open connections.
    ///
    /// # Errors
    /// As [`Tokens::read`]; nothing has changed then.
    pub fn reload(&self) -> Result<(), String> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let found = std::fs::read_to_string(path).map_err(|why| why.to_string());
        let found = found.and_then(|text| parse(&text));
        let found = found.map_err(|why| format!("{}: {why}", path.display()))?;
        let mut clients = write(&self.clients);
        let mut before = std::mem::take(&mut *clients);
        for (digest, rights) in found {
            let client = match before.remove(&digest) {
                Some(client) => {
                    *write(&client.rights) = rights;
                    client
                }
                None => Client::of_token(&digest, rights),
            };
            clients.insert(digest, client);
        }
        for client in before.into_values() {
            *write(&client.rights) = Rights::Revoked;
        }
        Ok(())
    }

    /// The client of a request.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`].
    fn client(&self, token: Option<&str>, address: Option<IpAddr>) -> Result<Client, InferError> {
        if self.file.is_none() {
            return Ok(Client {
                id: ClientId(self.addresses.hash_one(address)),
                tenant: Tenant(None),
                rights: Arc::clone(&self.everybody),
            });
        }
        let token = token.ok_or_else(|| {
            InferError::new(
                ErrorKind::Unauthenticated,
                "a token is needed: send the header \"Authorization: Bearer TOKEN\"",
            )
        })?;
        let found = read(&self.clients).get(&digest(token)).cloned();
        found.ok_or_else(unknown_token)
    }
}

fn unknown_token() -> InferError {
    InferError::new(ErrorKind::Unauthenticated, "the token is unknown")
}

fn parse(text: &str) -> Result<HashMap<TokenDigest, Rights>, String> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let mut tokens = HashMap::new();
    for (line, number) in lines {
        let (token, rights) = match line.split_once(char::is_whitespace) {
            Some((token, models)) => {
                let names = models.split(',').map(str::trim);
                let names = names.filter(|name| !name.is_empty()).map(str::to_owned);
                (token, Rights::Some(names.collect()))
            }
            None => (line, Rights::All),
        };
        if tokens.insert(digest(token), rights).is_some() {
            return Err(format!(
                "the token of line {number} is in another line, too; name all its models in one"
            ));
        }
    }
    if tokens.is_empty() {
        return Err("there is no token".into());
    }
    Ok(tokens)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn digest(token: &str) -> TokenDigest {
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

/// The state of [`authenticate`].
#[derive(Clone)]
pub struct Authentication {
    pub tokens: Arc<Tokens>,
    /// They count refusals.
    pub metrics: Metrics,
}

/// Middleware: finds the [`Client`] of a request, or refuses it.
pub async fn authenticate(
    State(Authentication { tokens, metrics }): State<Authentication>,
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
            metrics.refused(&error);
            return error_response_and_close(request.headers(), &error);
        }
        Err(_) => {}
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> (Tokens, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, text).expect("written");
        (Tokens::read(&path).expect("tokens"), folder)
    }

    #[test]
    fn tokens_are_for_all_models_or_some() {
        let (tokens, _folder) = tokens("# all\nfirst\n\n  second speech, tagger\n");
        let first = tokens.client(Some("first"), None).expect("known");
        let second = tokens.client(Some("second"), None).expect("known");
        assert!(first.may_use("any") && first.check_all_models().is_ok());
        assert!(second.may_use("speech") && second.may_use("tagger") && !second.may_use("any"));
        assert!(second.check_all_models().is_err());
        assert_ne!((first.id, first.tenant), (second.id, second.tenant));
        for unknown in [None, Some(""), Some("firs"), Some("first "), Some("# all")] {
            let error = tokens.client(unknown, None).expect_err("refused");
            assert_eq!(error.kind, ErrorKind::Unauthenticated);
        }
    }

    #[test]
    fn a_file_without_tokens_or_with_one_twice_is_refused() {
        for (text, says) in [("# none\n", "no token"), ("a x\nb\n\na y\n", "line 4")] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_new_file_counts_for_clients_that_are_known() {
        let (tokens, folder) = tokens("one\ntwo speech\ngone\n");
        let client = |token: &str| tokens.client(Some(token), None);
        let [one, two, gone] = ["one", "two", "gone"].map(|token| client(token).expect("known"));
        let path = folder.path().join("tokens");
        std::fs::write(&path, "new\ntwo tagger\none speech\n").expect("written");
        tokens.reload().expect("tokens");
        assert_eq!(client("one").expect("known").id, one.id, "in another line");
        assert!(one.may_use("speech") && !one.may_use("tagger"));
        assert!(two.may_use("tagger") && !two.may_use("speech"));
        let refused = gone.check("speech").expect_err("refused").kind;
        assert_eq!(refused, ErrorKind::Unauthenticated);
        assert!(client("gone").is_err() && client("new").is_ok());

        std::fs::write(&path, "\n").expect("written");
        tokens.reload().expect_err("no token");
        assert!(client("new").is_ok() && one.may_use("speech"), "as before");
    }

    #[test]
    fn without_tokens_each_address_is_a_client_and_all_own_the_same() {
        let tokens = Tokens::none();
        let client = |address: [u8; 4]| tokens.client(None, Some(address.into())).expect("open");
        let [first, again] = [(); 2].map(|()| client([127, 0, 0, 1]));
        let other = client([127, 0, 0, 2]);
        assert_eq!(first.id, again.id);
        assert_ne!(first.id, other.id);
        assert_eq!(first.tenant, other.tenant);
    }
}
