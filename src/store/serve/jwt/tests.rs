use std::sync::Arc;

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

use super::*;
use crate::etcd::apply::Refusal;
use crate::etcd::request::Put;
use crate::store::engine::NewUser;
use crate::store::{Options, Store};

const RSA: &str = include_str!("../../../../fixtures/keys/rsa-2048.key");
const NOW_MS: u64 = 1_700_000_000_500;

fn file(text: &str) -> Option<File> {
    Some((text.as_bytes().to_vec(), "FILE".to_owned()))
}

/// The tokens of a pair of keys, valid for five seconds.
fn pair(method: &str, private: Option<&str>, public: Option<&str>) -> Result<Jwt, String> {
    let key = Pair::of(method, private.and_then(file), public.and_then(file))?;
    Ok(Jwt { method: method.into(), ttl: Duration::from_secs(5), key: Key::Pair(key) })
}

fn secret(method: &str, secret: &[u8]) -> Jwt {
    let key = Key::Secret(hmac::Key::new(hmac_of(method).unwrap(), secret));
    Jwt { method: method.into(), ttl: Duration::from_secs(5), key }
}

fn pem_of(kind: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n")
}

/// The public key of the fixture.
fn rsa_public() -> String {
    let private = pem::private_key(RSA.as_bytes(), "").unwrap();
    let private = signature::provider().key_provider.load_private_key(private).unwrap();
    pem_of("PUBLIC KEY", &private.public_key().unwrap())
}

fn ann() -> User {
    User { name: "ann \"x\"".into(), auth_revision: 7 }
}

/// A token with any header and claims, signed by a key.
fn forged(key: &Key, header: &str, claims: &str) -> String {
    let text = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let signature = key.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", BASE64.encode(signature))
}

#[test]
fn tokens_are_taken_until_their_time_is_over() {
    let rsa = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"];
    let mut all: Vec<Jwt> =
        rsa.iter().map(|method| pair(method, Some(RSA), Some(&rsa_public())).unwrap()).collect();
    for (method, kind) in [
        ("ES256", &PKCS_ECDSA_P256_SHA256),
        ("ES384", &PKCS_ECDSA_P384_SHA384),
        ("EdDSA", &PKCS_ED25519),
    ] {
        let key = KeyPair::generate_for(kind).unwrap();
        all.push(pair(method, Some(&key.serialize_pem()), Some(&key.public_key_pem())).unwrap());
    }
    let p521 = include_str!("../../../../fixtures/etcd-auto-tls/key.pem");
    let certificate = include_str!("../../../../fixtures/etcd-auto-tls/cert.pem");
    all.push(pair("ES512", Some(p521), Some(certificate)).unwrap());
    all.extend(["HS256", "HS384", "HS512"].map(|method| secret(method, b"not for others")));
    assert_eq!(all.len(), 13);
    for (at, jwt) in all.iter().enumerate() {
        // Numbers of some signatures begin with zeros.
        for turn in 0..if jwt.method == "ES256" { 300 } else { 2 } {
            let now = NOW_MS + turn;
            let token = jwt.sign(&ann(), now).unwrap();
            assert_eq!(jwt.verify(&token, now), Some(ann()), "{}", jwt.method);
            let end = (now / 1000 + 5) * 1000;
            assert_eq!(jwt.verify(&token, end - 1), Some(ann()));
            assert_eq!(jwt.verify(&token, end), None, "{}", jwt.method);
        }
        let token = jwt.sign(&ann(), NOW_MS).unwrap();
        for (other, other_jwt) in all.iter().enumerate() {
            assert_eq!(other_jwt.verify(&token, NOW_MS).is_some(), other == at);
        }
    }
    assert_eq!(format!("{:?}", all[0]), "Jwt { method: \"RS256\", .. }");
}

#[test]
fn examples_of_the_standards_are_verified() {
    // RFC 7515, A.1 and A.3; RFC 8037, A.4.
    let claims = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxl\
                  LmNvbS9pc19yb290Ijp0cnVlfQ";
    let decode = |text: &str| BASE64.decode(text).unwrap();
    let key = decode(
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
    );
    let check = |key: &Key, text: String, signature: &str| {
        let signature = decode(signature);
        let mut other = signature.clone();
        other[9] ^= 1;
        assert!(key.verify(text.as_bytes(), &signature).is_some(), "{text}");
        assert!(key.verify(text.as_bytes(), &other).is_none(), "{text}");
        assert!(key.verify(text.as_bytes(), &[&signature[..], &[0]].concat()).is_none());
        assert!(key.verify(text.as_bytes(), &signature[1..]).is_none());
        assert!(key.verify(text.as_bytes(), b"").is_none());
    };
    check(
        &secret("HS256", &key).key,
        format!("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{claims}"),
        "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    );
    let public = |method: &str, key: Vec<u8>| {
        let (kind, ..) = method_of(method).unwrap();
        let key = rustls::sign::public_key_to_spki(&kind, &key);
        pair(method, None, Some(&pem_of("PUBLIC KEY", &key))).unwrap().key
    };
    let point = [
        vec![4],
        decode("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"),
        decode("x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"),
    ];
    check(
        &public("ES256", point.concat()),
        format!("eyJhbGciOiJFUzI1NiJ9.{claims}"),
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    );
    check(
        &public("EdDSA", decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")),
        "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc".into(),
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
    );
}

#[test]
fn other_methods_keys_and_texts_are_refused() {
    let jwt = pair("RS256", Some(RSA), None).unwrap();
    let good = jwt.sign(&ann(), NOW_MS).unwrap();
    let claims = r#"{"username":"root","revision":7}"#;
    assert!(jwt.verify(&forged(&jwt.key, r#"{"alg":"RS256"}"#, claims), NOW_MS).is_some());

    // No signature; the public key's text as a secret; the right key by another method.
    let bare = |alg: &str| {
        let header = format!(r#"{{"alg":"{alg}"}}"#);
        format!("{}.{}.", BASE64.encode(header), BASE64.encode(claims))
    };
    for alg in ["none", "None", "", "RS256"] {
        assert_eq!(jwt.verify(&bare(alg), NOW_MS), None, "{alg}");
    }
    let public = rsa_public();
    for known in [public.as_bytes(), public.trim().as_bytes(), b""] {
        let key = secret("HS256", known).key;
        for alg in ["HS256", "RS256"] {
            let token = forged(&key, &format!(r#"{{"alg":"{alg}"}}"#), claims);
            assert_eq!(jwt.verify(&token, NOW_MS), None);
        }
    }
    let other = pair("RS512", Some(RSA), None).unwrap();
    for alg in ["RS512", "RS256", "rs256"] {
        let token = forged(&other.key, &format!(r#"{{"alg":"{alg}"}}"#), claims);
        assert_eq!(jwt.verify(&token, NOW_MS), None, "{alg}");
    }
    // Another key of the same kind.
    let [one, two] = [(); 2].map(|()| {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap().serialize_pem();
        pair("EdDSA", Some(&key), None).unwrap()
    });
    let token = one.sign(&ann(), NOW_MS).unwrap();
    assert_eq!((one.verify(&token, NOW_MS), two.verify(&token, NOW_MS)), (Some(ann()), None));

    // Every character counts, and nothing else is a token.
    for at in 0..good.len() {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert_eq!(jwt.verify(&String::from_utf8(bytes).unwrap(), NOW_MS), None, "{at}");
        assert_eq!(jwt.verify(good.get(..at).unwrap(), NOW_MS), None);
    }
    let [head, body, tail] = *good.split('.').collect::<Vec<_>>() else { panic!() };
    for text in [
        String::new(),
        ".".into(),
        "..".into(),
        "abcdefghijklmnop.7".into(),
        format!("{good}."),
        format!("{good}="),
        format!(" {good}"),
        format!("{head}..{tail}"),
        format!("{body}.{head}.{tail}"),
        format!("{head}.{body}.{tail}.{tail}"),
        format!("{head}.{body}.{tail}{}", "A".repeat(TOKEN_BYTES_MAX)),
        "\u{fffd}.\u{fffd}.\u{fffd}".into(),
    ] {
        assert_eq!(jwt.verify(&text, NOW_MS), None, "{text}");
    }
}

#[test]
fn claims_are_read_as_etcd_reads_them() {
    let jwt = secret("HS256", b"s");
    let ask = |claims: &str| {
        let user = jwt.verify(&forged(&jwt.key, r#"{"alg":"HS256"}"#, claims), NOW_MS)?;
        Some((user.name, user.auth_revision))
    };
    let ann = |revision| Some(("ann".to_owned(), revision));
    let now = NOW_MS / 1000;
    assert_eq!(ask(r#"{"username":"ann","revision":3}"#), ann(3), "without an end");
    assert_eq!(ask(r#"{"username":"ann","revision":3.9,"iat":"x","aud":[1]}"#), ann(3));
    assert_eq!(ask(r#"{"username":"ann","revision":1e300}"#), ann(u64::MAX));
    for (claim, is_valid) in [
        (format!(r#""exp":{now}"#), false),
        (format!(r#""exp":{}"#, now + 1), true),
        (format!(r#""exp":{now}.9e0"#), false),
        (r#""exp":1e300"#.into(), true),
        (r#""exp":0"#.into(), false),
        (r#""exp":-1"#.into(), false),
        (r#""exp":"2100""#.into(), false),
        (format!(r#""nbf":{now}"#), true),
        (format!(r#""nbf":{}"#, now + 1), false),
    ] {
        let claims = format!(r#"{{"username":"ann","revision":3,{claim}}}"#);
        assert_eq!(ask(&claims), ann(3).filter(|_| is_valid), "{claims}");
    }
    for claims in [
        "",
        "{}",
        "null",
        "7",
        r#"{"username":"ann"}"#,
        r#"{"revision":3}"#,
        r#"{"username":7,"revision":3}"#,
        r#"{"username":"ann","revision":"3"}"#,
        r#"{"username":"ann","revision":-1}"#,
        r#"{"username":"ann","revision":3}x"#,
    ] {
        assert_eq!(ask(claims), None, "{claims}");
    }
    let deep = "[".repeat(8000);
    assert_eq!(ask(&deep), None);
    assert_eq!(jwt.verify(&forged(&jwt.key, &deep, ""), NOW_MS), None);
}

#[test]
fn keys_that_do_not_fit_are_refused_with_the_reason() {
    let p256 = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let (private, public) = (p256.serialize_pem(), p256.public_key_pem());
    let rsa_public = rsa_public();
    let why = |method: &str, private: Option<&str>, public: Option<&str>| {
        pair(method, private, public).unwrap_err()
    };
    let missing = "auth: missing key data: priv-key or pub-key is wanted";
    assert_eq!(why("RS256", None, None), missing);
    let mismatch = "auth: public and private keys don't match";
    let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap().public_key_pem();
    assert_eq!(why("ES256", Some(&private), Some(&other)), mismatch);
    assert_eq!(why("ES384", Some(&private), None), "FILE is no key for ES384");
    assert_eq!(why("ES384", None, Some(&public)), "FILE is no key for ES384");
    assert_eq!(why("EdDSA", Some(RSA), None), "FILE is no key for EdDSA");
    assert_eq!(why("RS256", Some(RSA), Some(&public)), "FILE is no key for RS256");
    assert_eq!(why("ES256", None, Some(&rsa_public)), "FILE is no key for ES256");
    let none = "FILE: it holds no public key in PEM (BEGIN PUBLIC KEY), and no certificate";
    assert_eq!(why("RS256", None, Some(RSA)), none);
    assert!(why("RS256", Some(&rsa_public), None).starts_with("FILE: it holds no private key"));
    for method in ["", "none", "rs256", "HS1", "ES256K"] {
        let why = why(method, Some(RSA), None);
        assert!(why.starts_with("auth: invalid auth options: sign-method="), "{why}");
    }

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let settings = |method: &str, private: bool| Settings {
        method: method.into(),
        private_key: private.then(|| path.clone()),
        ..Settings::default()
    };
    let missing = "auth: missing key data: priv-key is the secret";
    assert_eq!(Jwt::open(&settings("HS256", false)).unwrap_err(), missing);
    let why = Jwt::open(&settings("HS256", true)).unwrap_err();
    assert_eq!(why, format!("{}: No such file or directory (os error 2)", path.display()));
    fs::write(&path, b"").unwrap();
    assert_eq!(Jwt::open(&settings("HS256", true)).unwrap_err(), missing);
    fs::write(&path, b"secret").unwrap();
    let token = Jwt::open(&settings("HS256", true)).unwrap().sign(&ann(), NOW_MS).unwrap();
    let own = Jwt { ttl: Duration::from_secs(5), ..secret("HS256", b"secret") };
    assert_eq!(own.verify(&token, NOW_MS), None, "made for no time");
    assert_eq!(own.verify(&token, NOW_MS - 1000), Some(ann()));
    fs::write(&path, vec![b'x'; 2 << 20]).unwrap();
    let why = Jwt::open(&settings("HS256", true)).unwrap_err();
    assert_eq!(why, format!("{}: 2097152 bytes are no key", path.display()));

    // The public key alone takes tokens and makes none.
    let reader = pair("ES256", None, Some(&public)).unwrap();
    let writer = pair("ES256", Some(&private), None).unwrap();
    let token = writer.sign(&ann(), NOW_MS).unwrap();
    assert_eq!(reader.verify(&token, NOW_MS), Some(ann()));
    assert_eq!(reader.sign(&ann(), NOW_MS), Err(Error::VerifyOnly));
}

#[test]
fn damaged_der_is_refused() {
    let made = ecdsa::apart(&[0xff; 132], 66).unwrap();
    assert_eq!(ecdsa::joined(&made, 66).unwrap(), [0xff; 132]);
    for at in 0..made.len() {
        assert_eq!(ecdsa::joined(&made[..at], 66), None);
    }
    assert_eq!(ecdsa::joined(&made, 65), None);
    assert_eq!((ecdsa::apart(&[1; 63], 32), ecdsa::apart(&[1; 65], 32)), (None, None));
    let zeros = ecdsa::apart(&[0; 64], 32).unwrap();
    assert_eq!(zeros, b"\x30\x06\x02\x01\x00\x02\x01\x00");
    for bytes in [&b""[..], b"\x30", b"\x30\x80", b"\x30\x83\0\0\0", b"\x30\x82\x01", b"\x31\0"] {
        assert_eq!(der::element(bytes, der::SEQUENCE), None);
    }
}

#[test]
fn a_store_gives_and_takes_them() {
    let dir = tempfile::tempdir().unwrap();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let (private, public) = (key.serialize_pem(), key.public_key_pem());
    let open = |private: Option<&str>| {
        let key = Pair::of("ES256", private.and_then(file), file(&public)).unwrap();
        let ttl = Duration::from_secs(3600);
        let jwt = Jwt { method: "ES256".into(), ttl, key: Key::Pair(key) };
        let options = Options::default().bcrypt_cost(4_u32);
        let options = options.signed_tokens(Some(Arc::new(jwt) as Arc<_>));
        Store::open(&dir.path().join("data"), options).unwrap()
    };
    let store = open(Some(&private));
    let nobody = store.caller(None).unwrap();
    store.user_add(&nobody, NewUser::with_password("root", "p")).unwrap();
    store.role_add(&nobody, "root").unwrap();
    store.user_grant_role(&nobody, "root", "root").unwrap();
    store.auth_enable(&nobody).unwrap();
    let token = store.authenticate("root", "p").unwrap().body;
    assert_eq!(store.authenticate("root", "q").unwrap_err(), Refusal::AuthFailed.into());
    let revision = store.auth_status().unwrap().revision;
    let root = store.caller(Some(&token)).unwrap();
    let user = User { name: "root".into(), auth_revision: revision };
    assert_eq!(root.user, Some(user.clone()));
    assert_eq!(store.caller(Some("x")), Err(Error::InvalidToken));
    // Who is nobody is not told of a lease either.
    for keys in [false, true] {
        let refused = store.lease_time_to_live(&nobody, 1, keys).unwrap_err();
        assert_eq!(refused, Refusal::UserEmpty.into());
        assert_eq!(store.lease_time_to_live(&root, 1, keys).unwrap().body.ttl_s, -1);
    }
    assert_eq!(store.user_list(&root).unwrap(), ["root"]);
    store.close().unwrap();

    // Valid after a start, and where none are made; too old when the rules have changed.
    let store = open(None);
    let root = store.caller(Some(&token)).unwrap();
    assert_eq!(root.user, Some(user));
    assert_eq!(store.authenticate("root", "q").unwrap_err(), Refusal::AuthFailed.into());
    assert_eq!(store.authenticate("root", "p").unwrap_err(), Error::VerifyOnly);
    let put = Put { key: b"k", value: b"v", ..Put::default() };
    assert!(store.put(&root, put.clone()).is_ok());
    store.role_add(&root, "r").unwrap();
    store.user_grant_role(&root, "root", "r").unwrap();
    let root = store.caller(Some(&token)).unwrap();
    // As in etcd, root's own calls do not look at the age.
    assert_eq!(store.user_list(&root).unwrap(), ["root"]);
    let refused = store.put(&root, put).map(|answer| answer.revision);
    assert_eq!(refused, Err(Refusal::AuthOldRevision.into()));
    store.close().unwrap();
}
