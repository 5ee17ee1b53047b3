//! Signatures that are understood: ring's, and those of the curve P-521.
//!
//! etcd makes its own certificates with that curve (`--auto-tls`; etcd client/pkg/transport,
//! `SelfCert`, checked at 3.7.3), and ring does not know it.

use std::sync::LazyLock;

use p521::ecdsa::signature::Verifier;
use p521::ecdsa::{DerSignature, VerifyingKey};
use rustls::SignatureScheme;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::crypto::ring;
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id,
};

type Algorithm = &'static dyn SignatureVerificationAlgorithm;

/// What ring understands, and P-521.
pub(super) static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
    let known = ring::default_provider().signature_verification_algorithms;
    let all: Vec<Algorithm> = known.all.iter().copied().chain([P521]).collect();
    let ours = (SignatureScheme::ECDSA_NISTP521_SHA512, &[P521][..]);
    let mapping: Vec<_> = known.mapping.iter().copied().chain([ours]).collect();
    // Made once, and wanted for as long as the program runs.
    WebPkiSupportedAlgorithms { all: all.leak(), mapping: mapping.leak() }
});

/// ECDSA over P-521 with SHA-512.
const P521: Algorithm = &EcdsaP521;

#[derive(Debug)]
struct EcdsaP521;

impl SignatureVerificationAlgorithm for EcdsaP521 {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = DerSignature::from_bytes(signature).map_err(|_| InvalidSignature)?;
        key.verify(message, &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_and_signatures_are_refused() {
        for key in [&b""[..], b"\x04", &[4; 133], &[0; 133]] {
            for signature in [&b""[..], b"\x30\x06\x02\x01\x01\x02\x01\x01", &[0x30; 200]] {
                assert!(EcdsaP521.verify_signature(key, b"text", signature).is_err());
            }
        }
    }
}
