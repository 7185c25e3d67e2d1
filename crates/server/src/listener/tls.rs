//! TLS with a certificate and a key in PEM files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, SignatureAlgorithm};

/// The files of a certificate chain and of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM, the server's certificate first.
    pub certificate: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// TLS 1.2 and 1.3 of a port. Connections that are open keep the certificate that they began with.
pub struct Tls {
    files: TlsFiles,
    /// ALPN, the preferred one first.
    protocols: &'static [&'static str],
    acceptor: RwLock<TlsAcceptor>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// The name of the file that cannot be read, and why.
    pub fn read(files: &TlsFiles, protocols: &'static [&'static str]) -> Result<Tls, String> {
        Ok(Tls {
            files: files.clone(),
            protocols,
            acceptor: RwLock::new(acceptor(files, protocols)?),
        })
    }

    /// Reads the files again, for connections from now on.
    ///
    /// # Errors
    /// As [`Tls::read`]; nothing has changed then.
    pub fn reload(&self) -> Result<(), String> {
        let read = acceptor(&self.files, self.protocols)?;
        *self
            .acceptor
            .write()
            .unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// For the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        let acceptor = self.acceptor.read();
        acceptor.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn acceptor(files: &TlsFiles, protocols: &[&str]) -> Result<TlsAcceptor, String> {
    let of = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|why| of(&files.certificate, &why))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|why| of(&files.key, &why))?;
    let builder = ServerConfig::builder().with_no_client_auth();
    let provider = Arc::clone(builder.crypto_provider());
    let loaded = provider.key_provider.load_private_key(key.clone_key());
    if loaded.is_ok_and(|key| key.algorithm() == SignatureAlgorithm::ED25519) {
        tracing::warn!(
            "{}: browsers and most gRPC clients refuse keys of Ed25519; make one of P-256",
            files.key.display()
        );
    }
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|why| of(&files.certificate, &why))?;
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}
