//! Trust in the certificates of servers, and the words of errors.

use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Certificate, ClientTlsConfig};

use super::WireModel;
use gatestream_command::Failure;

/// A connector of HTTP/1.1.
///
/// # Errors
/// The certificates cannot be read; the system has none.
pub fn connector(of: &WireModel) -> Result<HttpsConnector<HttpConnector>, String> {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    let builder = HttpsConnectorBuilder::new();
    let builder = match &of.authorities {
        _ if !of.server.is_secure => builder.with_tls_config(config(RootCertStore::empty())?),
        Some(pem) => builder.with_tls_config(config(roots(pem)?)?),
        None => builder
            .with_provider_and_native_roots(ring::default_provider())
            .map_err(reason)?,
    };
    Ok(builder.https_or_http().enable_http1().wrap_connector(http))
}

/// The settings of gRPC.
///
/// # Errors
/// The certificates cannot be read.
pub fn of_grpc(of: &WireModel) -> Result<ClientTlsConfig, String> {
    let tls = ClientTlsConfig::new();
    match &of.authorities {
        Some(pem) => {
            roots(pem)?;
            Ok(tls.ca_certificate(Certificate::from_pem(pem)))
        }
        None => Ok(tls.with_native_roots()),
    }
}

fn config(roots: RootCertStore) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(reason)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|why| format!("--ca: {}", reason(why)))?;
        roots
            .add(certificate)
            .map_err(|why| format!("--ca: {}", reason(why)))?;
    }
    if roots.is_empty() {
        return Err("--ca: the file has no certificate; expected PEM".into());
    }
    Ok(roots)
}

/// Parts of messages about certificates, and the ways out.
const HINTS: [(&str, &str); 5] = [
    ("native root CA", NO_ROOTS),
    ("no native certs", NO_ROOTS),
    (
        "UnknownIssuer",
        "give the certificate that signs the server's with --ca",
    ),
    (
        "CaUsedAsEndEntity",
        "the server's certificate is one for signing: make it with basicConstraints=CA:FALSE",
    ),
    (
        "InvalidContentType",
        "the server speaks no TLS on this port: use http:// or grpc://",
    ),
];

const NO_ROOTS: &str =
    "the system has no certificates: give those that sign the server's with --ca";

/// An error and its causes in one line, with the way out if it is about certificates.
pub fn reason(error: impl std::error::Error + 'static) -> String {
    let line = Failure::from(error).to_string();
    match HINTS.iter().find(|(part, _)| line.contains(part)) {
        Some((_, way_out)) => format!("{line}; {way_out}"),
        None => line,
    }
}
