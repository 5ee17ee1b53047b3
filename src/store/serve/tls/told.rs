//! Why a handshake failed, in the words of Go's crypto/tls, which operators search for.
//!
//! Source: Go 1.26 crypto/tls (`alertText`, `handshakeServer`), crypto/x509 (error texts).

use std::io;

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

use super::client::NotAllowed;

/// Says why a handshake failed.
pub(super) fn failure(error: io::Error) -> io::Error {
    let text = match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => words(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => return error,
    };
    io::Error::new(error.kind(), text)
}

fn words(error: &Error) -> String {
    match error {
        Error::AlertReceived(alert) => format!("remote error: tls: {}", alert_text(*alert)),
        Error::InvalidMessage(_) => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        Error::NoCertificatesPresented => "tls: client didn't provide a certificate".to_owned(),
        Error::InvalidCertificate(error) => {
            if let CertificateError::Other(other) = error
                && other.0.downcast_ref::<NotAllowed>().is_some()
            {
                return other.to_string();
            }
            format!("tls: failed to verify certificate: x509: {}", why(error))
        }
        Error::NoApplicationProtocol => {
            "tls: client requested unsupported application protocols".to_owned()
        }
        Error::PeerIncompatible(what) => incompatible(what),
        error => format!("tls: {error}"),
    }
}

fn incompatible(what: &PeerIncompatible) -> String {
    use PeerIncompatible as P;
    match what {
        P::ServerDoesNotSupportTls12Or13
        | P::ServerTlsVersionIsDisabledByOurConfig
        | P::SupportedVersionsExtensionRequired
        | P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled
        | P::Tls13RequiredForQuic
        // Clients name what signatures they know since TLS 1.2.
        | P::SignatureAlgorithmsExtensionRequired => {
            "tls: client offered only unsupported versions".to_owned()
        }
        P::NoCipherSuitesInCommon => {
            "tls: no cipher suite supported by both client and server".to_owned()
        }
        P::NoSignatureSchemesInCommon => {
            "tls: peer doesn't support any of the certificate's signature algorithms".to_owned()
        }
        what => format!("tls: client is not compatible: {what:?}"),
    }
}

fn why(error: &CertificateError) -> String {
    use CertificateError as E;
    let words = match error {
        E::Expired | E::ExpiredContext { .. } | E::NotValidYet | E::NotValidYetContext { .. } => {
            "certificate has expired or is not yet valid"
        }
        E::UnknownIssuer => "certificate signed by unknown authority",
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "certificate specifies an incompatible key usage"
        }
        E::Revoked => "certificate is revoked",
        other => return other.to_string(),
    };
    words.to_owned()
}

fn alert_text(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let words = match alert {
        A::CloseNotify => "close notify",
        A::UnexpectedMessage => "unexpected message",
        A::BadRecordMac => "bad record MAC",
        A::HandshakeFailure => "handshake failure",
        A::BadCertificate => "bad certificate",
        A::UnsupportedCertificate => "unsupported certificate",
        A::CertificateRevoked => "revoked certificate",
        A::CertificateExpired => "expired certificate",
        A::CertificateUnknown => "unknown certificate",
        A::IllegalParameter => "illegal parameter",
        A::UnknownCA => "unknown certificate authority",
        A::AccessDenied => "access denied",
        A::DecodeError => "error decoding message",
        A::DecryptError => "error decrypting message",
        A::ProtocolVersion => "protocol version not supported",
        A::InsufficientSecurity => "insufficient security level",
        A::InternalError => "internal error",
        A::UserCanceled => "user canceled",
        A::UnrecognisedName => "unrecognized name",
        A::CertificateRequired => "certificate required",
        A::NoApplicationProtocol => "no application protocol",
        other => return format!("alert({})", u8::from(other)),
    };
    words.to_owned()
}
