//! TLS with a certificate and a key in PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The files of a certificate chain and of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM, the server's certificate first.
    pub certificate: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// Accepts TLS 1.2 and 1.3 for these protocols (ALPN), the preferred one first.
///
/// # Errors
/// The name of the file that cannot be read, and why.
pub fn acceptor(files: &TlsFiles, protocols: &[&str]) -> Result<TlsAcceptor, String> {
    let of = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|why| of(&files.certificate, &why))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|why| of(&files.key, &why))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|why| of(&files.certificate, &why))?;
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}
