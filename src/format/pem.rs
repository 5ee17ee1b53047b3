//! PEM of certificates, keys and revocation lists: what is wanted, or what is there instead.
//!
//! A reason is a noun phrase or a sentence without the file's name, which the caller has.

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Reads all certificates; there is at least one.
///
/// # Errors
///
/// The reason: no certificate, or damaged PEM.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(without(text, "certificate in PEM")),
        Err(error) => Err(format!("its PEM is damaged: {error}")),
    }
}

/// Reads the first private key; `name` is the file's, for a command.
///
/// # Errors
///
/// The reason: no key, or one that is encrypted.
pub(crate) fn private_key(text: &[u8], name: &str) -> Result<PrivateKeyDer<'static>, String> {
    let encrypted = text.windows(9).any(|nine| nine == b"ENCRYPTED");
    // A certificate's file may hold its key as well; an encrypted one is named as itself.
    match PrivateKeyDer::from_pem_slice(text) {
        Ok(private) if !encrypted => Ok(private),
        _ if encrypted => Err(format!(
            "the key is encrypted, and nobody can be asked for its passphrase here; openssl pkey \
             -in {name} -out NEW writes it without"
        )),
        _ => Err(without(text, "private key in PEM")),
    }
}

/// Reads revocation lists: one in DER, which is what etcd reads, or any number in PEM.
///
/// # Errors
///
/// The reason: nothing in either form, or damaged PEM.
pub(crate) fn revocation_lists(
    text: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    if looks_like_der(text) {
        return Ok(vec![text.to_vec().into()]);
    }
    let all: Result<Vec<_>, pem::Error> =
        CertificateRevocationListDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(without(text, "revocation list in DER or PEM")),
        Err(error) => Err(format!("its PEM is damaged: {error}")),
    }
}

/// Says what a file holds in which the wanted thing is not.
fn without(text: &[u8], wanted: &str) -> String {
    let holds = |mark: &[u8]| text.windows(mark.len()).any(|window| window == mark);
    let but = match () {
        () if text.is_empty() => ", it is empty",
        () if holds(b"PRIVATE KEY-----") => ", but a private key",
        () if holds(b"BEGIN CERTIFICATE-----") => ", but a certificate",
        () if looks_like_der(text) => {
            "; it looks like DER, and openssl x509 -inform der -in FILE -out NEW makes PEM of it"
        }
        () => "",
    };
    format!("it holds no {wanted}{but}")
}

/// The sequence that certificates, keys and lists are in DER.
fn looks_like_der(text: &[u8]) -> bool {
    text.starts_with(&[0x30])
}
