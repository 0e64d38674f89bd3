//! A certificate for loopback, made at start and trusted by nobody else; and how to trust it.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// What can go wrong with certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The certificate can't be made.
    #[error("the certificate can't be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The certificate can't be used.
    #[error("the certificate can't be used: {0}")]
    Use(#[from] rustls::Error),
    /// A PEM file can't be read.
    #[error("the PEM file can't be read: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
}

/// A self-signed certificate with its key.
pub struct Identity {
    certificate: rcgen::Certificate,
    key: rcgen::KeyPair,
    pem: String,
}

impl Identity {
    /// Makes a certificate for the address, `localhost` and its subdomains.
    ///
    /// # Errors
    ///
    /// [`Error::Make`].
    pub fn new(address: &SocketAddr) -> Result<Self, Error> {
        // Clients want an authority to trust, and some refuse an authority as a leaf: rustls
        // takes a self-signed end certificate as a root, and so does OpenSSL.
        Self::make(address, rcgen::IsCa::NoCa)
    }

    /// The same as `openssl req -x509` makes it: an authority's own.
    ///
    /// # Errors
    ///
    /// [`Error::Make`].
    pub fn of_an_authority(address: &SocketAddr) -> Result<Self, Error> {
        Self::make(address, rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained))
    }

    fn make(address: &SocketAddr, is_ca: rcgen::IsCa) -> Result<Self, Error> {
        let names = vec![address.ip().to_string(), "localhost".into(), "*.localhost".into()];
        let key = rcgen::KeyPair::generate()?;
        let mut parameters = rcgen::CertificateParams::new(names)?;
        parameters.is_ca = is_ca;
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, "foreload test bucket");
        let certificate = parameters.self_signed(&key)?;
        let pem = certificate.pem();
        Ok(Self { certificate, key, pem })
    }

    /// The certificate to trust, as PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.pem
    }

    /// What accepts TLS connections with it.
    ///
    /// # Errors
    ///
    /// [`Error::Use`].
    pub fn acceptor(self) -> Result<tokio_rustls::TlsAcceptor, Error> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.der().clone()], key)?;
        Ok(tokio_rustls::TlsAcceptor::from(Arc::new(config)))
    }
}

/// What makes TLS connections to a server whose certificate is in this PEM text.
///
/// # Errors
///
/// [`Error::Pem`] or [`Error::Use`].
pub fn connector(ca_pem: &str) -> Result<tokio_rustls::TlsConnector, Error> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tokio_rustls::TlsConnector::from(Arc::new(config)))
}
