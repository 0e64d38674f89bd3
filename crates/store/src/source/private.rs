//! Privacy between two sides that know one secret: TLS 1.3 without certificates.
//!
//! Both make the same key pair (Ed25519) of the secret. Who answers shows as a raw public key (RFC 7250) that it has it, and who asks takes no other. So there is no authority to trust, no name
//! to check and no date, and nobody who doesn't know the secret can be in the middle. The keys of a connection are new each time, so who hears the secret later can't read what was sent before. Who asks is told by its [`seal`](super::seal),
//! as without TLS.

use crate::{Error, ErrorKind, Result};
use ring::hmac;
use std::sync::Arc;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::ring::{default_provider, sign};
use tokio_rustls::rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use tokio_rustls::rustls::server::AlwaysResolvesServerRawPublicKeys;
use tokio_rustls::rustls::sign::{CertifiedKey, SigningKey};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as Tls, ServerConfig, SignatureScheme,
};

/// What the key is made of, besides the secret.
const PURPOSE: &[u8] = b"foreload tls 1";
/// What comes before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410).
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The key pair of a secret.
fn key_of(secret: &str) -> Result<Arc<dyn SigningKey>> {
    let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), PURPOSE);
    let der = [&PKCS8, seed.as_ref()].concat();
    sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der)).map_err(unusable)
}

fn unusable(error: Tls) -> Error {
    Error::new(ErrorKind::Bug, "TLS cannot be set up").with_source(error)
}

fn public_of(key: &dyn SigningKey) -> Result<Vec<u8>> {
    let public = key.public_key().map(|public| public.as_ref().to_vec());
    public.ok_or_else(|| Error::new(ErrorKind::Bug, "a key pair without a public key"))
}

/// How to answer whoever knows a secret.
///
/// # Errors
/// `bug`: the library refuses its own key.
pub fn answering(secret: &str) -> Result<Arc<ServerConfig>> {
    let key = key_of(secret)?;
    let shown = CertificateDer::from(public_of(&*key)?);
    let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::new(CertifiedKey::new(vec![shown], key)));
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    Ok(Arc::new(config))
}

/// How to ask whoever knows a secret.
///
/// # Errors
/// As [`answering`].
pub(crate) fn asking(secret: &str) -> Result<ClientConfig> {
    let provider = default_provider();
    let known = Known::of(secret, &provider)?;
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(known))
        .with_no_client_auth();
    Ok(config)
}

/// The one side that is asked: whose public key is the secret's.
#[derive(Debug)]
struct Known {
    public: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Known {
    fn of(secret: &str, provider: &CryptoProvider) -> Result<Self> {
        Ok(Known {
            public: public_of(&*key_of(secret)?)?,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Tls> {
        match shown.as_ref() == self.public {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Tls> {
        Err(Tls::General("nothing older than TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Tls> {
        let public = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &public, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    const SECRET: &str = "known to these nodes only";

    /// What one side hears of the other, each with a secret of its own; how the one that asks is refused.
    async fn talk(answers: Arc<ServerConfig>, asks: ClientConfig) -> std::result::Result<Vec<u8>, String> {
        let (near, far) = duplex(1 << 16);
        let server = tokio::spawn(async move {
            let mut stream = TlsAcceptor::from(answers).accept(far).await?;
            stream.write_all(b"hello").await?;
            stream.shutdown().await
        });
        let name = ServerName::try_from("10.0.0.7").expect("a name");
        let connected = TlsConnector::from(Arc::new(asks)).connect(name, near).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        let mut heard = Vec::new();
        stream
            .read_to_end(&mut heard)
            .await
            .map_err(|error| error.to_string())?;
        server.await.expect("no panic").map_err(|error| error.to_string())?;
        Ok(heard)
    }

    #[tokio::test]
    async fn two_who_know_a_secret_talk_whatever_their_names_and_addresses() {
        let heard = talk(answering(SECRET).expect("usable"), asking(SECRET).expect("usable")).await;
        assert_eq!(heard.as_deref(), Ok(&b"hello"[..]));
    }

    #[tokio::test]
    async fn who_knows_another_secret_is_not_taken_for_the_other_side() {
        let other = answering("known to somebody else only").expect("usable");
        let refused = talk(other, asking(SECRET).expect("usable"))
            .await
            .expect_err("another key");
        assert!(refused.contains("certificate"), "{refused}");
    }

    #[tokio::test]
    async fn who_shows_the_right_key_without_having_it_is_not_the_other_side() {
        // A liar has heard the public key, and signs with one of its own.
        let (public, own) = (
            public_of(&*key_of(SECRET).expect("a key")).expect("public"),
            key_of("a liar's own"),
        );
        let shown = CertifiedKey::new(vec![CertificateDer::from(public)], own.expect("a key"));
        let liar = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .expect("usable")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(shown))));
        let refused = talk(Arc::new(liar), asking(SECRET).expect("usable")).await;
        assert!(refused.expect_err("no key").contains("BadSignature"));
    }

    #[test]
    fn a_secret_has_one_key_and_another_secret_another() {
        let public = |secret: &str| public_of(&*key_of(secret).expect("a key")).expect("public");
        assert_eq!(public(SECRET), public(SECRET));
        assert_ne!(public(SECRET), public("known to these nodes onlz"));
        assert_eq!(public(SECRET).len(), 44, "SPKI of 32 bytes");
    }
}
