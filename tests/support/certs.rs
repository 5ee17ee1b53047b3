//! Certificates and keys for tests, made on the spot in a temporary folder, laid as kubeadm lays
//! them.
//!
//! ```ignore
//! let certs = Certs::new(); // etcd/ca.crt, etcd/{server,healthcheck-client}.{crt,key}
//! let fake = FakeEtcd::start_tls(Member::new("m1"), certs.server_config(&certs.server(), true));
//! sandbox.run(&format!("member list --endpoints {} {}", fake.endpoint(), certs.flags()));
//!
//! let old = certs.issue("old", &Issue::client("root").expired());
//! let flags = certs.flags_of(&old);           // --cacert CA --cert OLD --key OLD
//! let pkcs1 = certs.issue("rsa", &Issue::client("root").rsa()).key_as(KeyForm::Pkcs1);
//! let odd = certs.issue("odd", &Issue::server().names(&["other.example"])); // wrong names
//! let stranger = certs.issue("x", &Issue::client("root").stranger());       // unknown CA
//! let crl = certs.revoke("revoked", &[&old]); // --client-crl-file, in DER
//! ```
//!
//! Servers are named `localhost`, `127.0.0.1` and `::1` unless told otherwise. As with kubeadm, a
//! server's certificate serves as a client's too, since etcd's own gateway presents it.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData, RevokedCertParams, SerialNumber, date_time_ymd,
};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The last day of a certificate that has expired, as 00:00 UTC.
pub(crate) const EXPIRED: (i32, u8, u8) = (2021, 2, 3);
/// The first day of a certificate that is not valid yet, as 00:00 UTC.
pub(crate) const NOT_YET: (i32, u8, u8) = (2091, 2, 3);

/// A DER prefix of PKCS#8 before the key proper, for RSA of 2048 bits.
const RSA_PREFIX: usize = 26;
/// The same for P-256; the secret follows, then the public key.
const EC_PREFIX: usize = 36;

/// Which end a certificate may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Server,
    Client,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signer {
    Ca,
    Stranger,
    Itself,
}

/// What certificate to make.
#[derive(Clone, Debug)]
pub(crate) struct Issue {
    common_name: String,
    names: Vec<String>,
    purpose: Purpose,
    /// First and last moment.
    days: [(i32, u8, u8); 2],
    /// Ends so long after now, instead of at the last day.
    ends_in: Option<Duration>,
    signer: Signer,
    is_rsa: bool,
}

impl Issue {
    pub(crate) fn server() -> Self {
        Self {
            common_name: "m1".to_owned(),
            names: ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec(),
            purpose: Purpose::Both,
            days: [(2020, 1, 1), (2090, 1, 1)],
            ends_in: None,
            signer: Signer::Ca,
            is_rsa: false,
        }
    }

    /// A client; etcd takes the common name for the user where auth is on.
    pub(crate) fn client(common_name: &str) -> Self {
        let common_name = common_name.to_owned();
        let names = Vec::new();
        Self { common_name, names, purpose: Purpose::Client, ..Self::server() }
    }

    /// Names and addresses that it is valid for, instead of the loopback ones.
    pub(crate) fn names(mut self, names: &[&str]) -> Self {
        self.names = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    pub(crate) fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// Valid until [`EXPIRED`].
    pub(crate) fn expired(mut self) -> Self {
        self.days[1] = EXPIRED;
        self
    }

    /// Valid from [`NOT_YET`] on.
    pub(crate) fn not_yet(mut self) -> Self {
        self.days = [NOT_YET, (2092, 1, 1)];
        self
    }

    pub(crate) fn ends_in(mut self, time: Duration) -> Self {
        self.ends_in = Some(time);
        self
    }

    /// Signed by a CA that nobody here trusts.
    pub(crate) fn stranger(mut self) -> Self {
        self.signer = Signer::Stranger;
        self
    }

    /// Signed by its own key, without a CA.
    pub(crate) fn self_signed(mut self) -> Self {
        self.signer = Signer::Itself;
        self
    }

    /// With the RSA key of 2048 bits from the fixtures, the kind that kubeadm makes.
    pub(crate) fn rsa(mut self) -> Self {
        self.is_rsa = true;
        self
    }

    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::new(self.names.clone()).expect("names");
        params.distinguished_name = named(&self.common_name);
        let [(y, m, d), (y2, m2, d2)] = self.days;
        params.not_before = date_time_ymd(y, m, d);
        params.not_after = date_time_ymd(y2, m2, d2);
        if let Some(time) = self.ends_in {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
            params.not_after = date_time_ymd(1970, 1, 1) + now + time;
        }
        let (server, client) =
            (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        params.extended_key_usages = match self.purpose {
            Purpose::Server => vec![server],
            Purpose::Client => vec![client],
            Purpose::Both => vec![server, client],
        };
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = self.signer != Signer::Itself;
        params
    }
}

/// The serial number of the certificate of a key.
fn serial(key: &KeyPair) -> SerialNumber {
    let mut bytes = Sha256::digest(key.der_bytes())[..16].to_vec();
    // Positive, and as long as it looks.
    bytes[0] = bytes[0] & 0x3f | 0x40;
    SerialNumber::from(bytes)
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// A certificate file and its key file.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) cert: PathBuf,
    /// PKCS#8 unless [`Pair::key_as`] made it.
    pub(crate) key: PathBuf,
}

/// How a key file spells its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// `BEGIN PRIVATE KEY`
    Pkcs8,
    /// `BEGIN RSA PRIVATE KEY`, as kubeadm writes; of [`Issue::rsa`] only.
    Pkcs1,
    /// `BEGIN EC PRIVATE KEY`, as kubeadm writes with an ECDSA algorithm; not of RSA keys.
    Sec1,
}

impl Pair {
    /// The same certificate, with the key written in another form beside it.
    pub(crate) fn key_as(&self, form: KeyForm) -> Self {
        let der = PrivateKeyDer::from_pem_file(&self.key).expect("a key");
        let der = der.secret_der();
        let (label, bytes, suffix) = match form {
            KeyForm::Pkcs8 => ("PRIVATE KEY", der.to_vec(), "pkcs8"),
            KeyForm::Pkcs1 => {
                assert!(der.len() > 1000, "no RSA key: {}", self.key.display());
                ("RSA PRIVATE KEY", der[RSA_PREFIX..].to_vec(), "pkcs1")
            }
            KeyForm::Sec1 => ("EC PRIVATE KEY", sec1(der), "sec1"),
        };
        let key = self.key.with_extension(format!("{suffix}.key"));
        write(&key, &pem(label, &bytes), 0o600);
        Self { cert: self.cert.clone(), key }
    }
}

/// Writes a P-256 key as openssl and Go do: the curve's name stands inside.
fn sec1(pkcs8: &[u8]) -> Vec<u8> {
    assert_eq!((pkcs8.len(), pkcs8[EC_PREFIX - 1]), (138, 32), "no P-256 key");
    let (secret, public) = (&pkcs8[EC_PREFIX..EC_PREFIX + 32], &pkcs8[138 - 65..]);
    let mut der = vec![0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20];
    der.extend(secret);
    // [0] 1.2.840.10045.3.1.7
    der.extend([0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07]);
    der.extend([0xa1, 0x44, 0x03, 0x42, 0x00]);
    der.extend(public);
    der
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("ASCII")).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Writes as kubeadm does: certificates 0644, keys 0600.
fn write(path: &Path, text: &str, mode: u32) {
    use std::io::Write as _;
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
}

struct Ca {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

impl Ca {
    fn new(common_name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name = named(common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::CrlSign,
        ];
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2099, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { params, key, pem }
    }
}

/// A folder of certificates; it is removed when it is dropped.
pub(crate) struct Certs {
    dir: tempfile::TempDir,
    ca: Ca,
    stranger: Ca,
}

impl Certs {
    /// Makes a CA (`etcd-ca`), and another that nobody trusts; a server's certificate; and a
    /// client's (`kube-etcd-healthcheck-client`).
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(dir.path().join("etcd")).expect("a folder");
        let certs = Self { dir, ca: Ca::new("etcd-ca"), stranger: Ca::new("stranger-ca") };
        write(&certs.ca(), &certs.ca.pem, 0o644);
        write(&certs.stranger_ca(), &certs.stranger.pem, 0o644);
        certs.issue("server", &Issue::server());
        certs.issue("healthcheck-client", &Issue::client("kube-etcd-healthcheck-client"));
        certs
    }

    /// The folder that stands for `/etc/kubernetes/pki`; all files are in `etcd` below it.
    pub(crate) fn pki(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.pki().join("etcd/ca.crt")
    }

    /// The certificate of the CA that nobody trusts.
    pub(crate) fn stranger_ca(&self) -> PathBuf {
        self.pki().join("etcd/stranger-ca.crt")
    }

    pub(crate) fn server(&self) -> Pair {
        self.pair("server")
    }

    /// The client that kubeadm makes for etcd's health check.
    pub(crate) fn client(&self) -> Pair {
        self.pair("healthcheck-client")
    }

    fn pair(&self, stem: &str) -> Pair {
        let file = |extension| self.pki().join(format!("etcd/{stem}.{extension}"));
        Pair { cert: file("crt"), key: file("key") }
    }

    /// Makes `etcd/STEM.crt` and `etcd/STEM.key`.
    pub(crate) fn issue(&self, stem: &str, issue: &Issue) -> Pair {
        let key = if issue.is_rsa {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/keys/rsa-2048.key");
            let text = fs::read_to_string(path).expect("the fixture");
            KeyPair::from_pem(&text).expect("a key")
        } else {
            KeyPair::generate().expect("a key")
        };
        let mut params = issue.params();
        params.serial_number = Some(serial(&key));
        let signed = |ca: &Ca| params.signed_by(&key, &Issuer::from_params(&ca.params, &ca.key));
        let cert = match issue.signer {
            Signer::Ca => signed(&self.ca),
            Signer::Stranger => signed(&self.stranger),
            Signer::Itself => params.self_signed(&key),
        };
        let pair = self.pair(stem);
        write(&pair.cert, &cert.expect("a certificate").pem(), 0o644);
        write(&pair.key, &key.serialize_pem(), 0o600);
        pair
    }

    /// Makes `etcd/STEM.crl`, the CA's list of certificates that are revoked, in DER.
    pub(crate) fn revoke(&self, stem: &str, pairs: &[&Pair]) -> PathBuf {
        let revoked = pairs.iter().map(|pair| {
            let key = fs::read_to_string(&pair.key).expect("a key's file");
            RevokedCertParams {
                serial_number: serial(&KeyPair::from_pem(&key).expect("a key")),
                revocation_time: date_time_ymd(2020, 2, 1),
                reason_code: None,
                invalidity_date: None,
            }
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 2, 1),
            // Over: neither etcd nor we look at it.
            next_update: date_time_ymd(2020, 3, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&Issuer::from_params(&self.ca.params, &self.ca.key));
        let path = self.pki().join(format!("etcd/{stem}.crl"));
        fs::write(&path, list.expect("a list").der()).expect("a file");
        path
    }

    /// `--cacert CA --cert CERT --key KEY` of the health check's client. No blanks are in them.
    pub(crate) fn flags(&self) -> String {
        self.flags_of(&self.client())
    }

    /// The same of another client.
    pub(crate) fn flags_of(&self, pair: &Pair) -> String {
        let (ca, cert, key) = (self.ca(), &pair.cert, &pair.key);
        format!("--cacert {} --cert {} --key {}", ca.display(), cert.display(), key.display())
    }

    /// A fake etcd's TLS: its certificate, and whether it wants one of the client.
    pub(crate) fn server_config(&self, pair: &Pair, wants_client: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().expect("TLS");
        let builder = if wants_client {
            let mut roots = RootCertStore::empty();
            let ca = CertificateDer::from_pem_file(self.ca()).expect("a certificate");
            roots.add(ca).expect("a CA");
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.expect("a verifier"))
        } else {
            builder.with_no_client_auth()
        };
        let chain = CertificateDer::pem_file_iter(&pair.cert).expect("a file");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(&pair.key).expect("a key");
        let mut config = builder.with_single_cert(chain, key).expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}
