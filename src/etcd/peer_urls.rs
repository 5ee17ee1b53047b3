//! Peer URLs and `--initial-cluster`: parsed, normalised and refused as etcd does.
//!
//! Ids are hashes of URL strings, so the strings must come out as etcd's do: scheme in lower case,
//! surrounding blanks gone, an empty fragment gone, odd bytes percent-encoded; host and port as
//! given.
//!
//! Source: etcd `types.NewURLs`, `types.NewURLsMap`, `config.ServerConfig.VerifyBootstrap`,
//! `netutil.URLStringsEqual`, `membership.NewClusterFromURLsMap`, 3.5.35 to 3.7.3; Go `net/url`.

mod url;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::url::{Url, quote, split_host_port};
use super::members::{ClusterId, Member, MemberId};

/// Why URLs or an initial cluster are refused; the texts are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerUrlError {
    /// An empty list.
    #[error("no valid URLs given")]
    NoUrls,
    /// Not a URL at all.
    #[error("parse {}: {what}", quote(url))]
    Syntax {
        /// The text.
        url: String,
        /// What is wrong with it.
        what: String,
    },
    /// No port, or not one.
    #[error("URL address does not have the form \"host:port\": {0}")]
    NotHostPort(String),
    /// Something follows host and port.
    #[error("URL must not contain a path: {0}")]
    HasPath(String),
    /// Another scheme, or none.
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    /// The local member is not in the initial cluster.
    #[error("couldn't find local name {} in the initial cluster configuration", quote(.0))]
    NameMissing(String),
    /// The initial cluster has URLs of the local member that it does not advertise.
    #[error(
        "--initial-cluster has {missing} but missing from \
         --initial-advertise-peer-urls={advertised} ({why})"
    )]
    NotAdvertised {
        /// `name=url` pairs, joined by commas.
        missing: String,
        /// What is advertised.
        advertised: String,
        /// How the comparison ended.
        why: String,
    },
    /// The local member advertises URLs that the initial cluster does not have.
    #[error(
        "--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={cluster}"
    )]
    NotInCluster {
        /// URLs, joined by commas.
        missing: String,
        /// The local member as `name=url` pairs.
        cluster: String,
    },
    /// Two members, or one twice, at the same URL.
    #[error("initial cluster {0} has duplicate url")]
    Duplicate(String),
    /// Two members with one id.
    #[error("member exists with identical ID {0}")]
    SameId(MemberId),
    /// A member whose id is the one that raft means nobody by.
    #[error("cannot use 0 as member id")]
    ZeroId,
}

/// Parses peer URLs and returns them normalised and sorted.
///
/// # Errors
///
/// The first URL that etcd refuses, or an empty list.
pub fn parse_urls<T: AsRef<str>>(texts: &[T]) -> Result<Vec<String>, PeerUrlError> {
    if texts.is_empty() {
        return Err(PeerUrlError::NoUrls);
    }
    let mut urls = Vec::with_capacity(texts.len());
    for text in texts {
        let text = text.as_ref().trim();
        let url = Url::parse(text).map_err(|(url, what)| PeerUrlError::Syntax { url, what })?;
        match url.scheme.as_str() {
            "http" | "https" if split_host_port(&url.host).is_none() => {
                return Err(PeerUrlError::NotHostPort(text.to_owned()));
            }
            "http" | "https" if !url.path.is_empty() => {
                return Err(PeerUrlError::HasPath(text.to_owned()));
            }
            "http" | "https" | "unix" | "unixs" => urls.push(url.text()),
            _ => return Err(PeerUrlError::Scheme(text.to_owned())),
        }
    }
    urls.sort_unstable();
    Ok(urls)
}

/// The members of a cluster that is to begin, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialCluster {
    /// Normalised peer URLs of each member, sorted.
    pub members: BTreeMap<String, Vec<String>>,
}

impl InitialCluster {
    /// Parses `name=url,name=url,..`; a name that stands twice has both URLs.
    ///
    /// # Errors
    ///
    /// A URL that etcd refuses; a name without `=` has an empty one.
    pub fn parse(text: &str) -> Result<Self, PeerUrlError> {
        let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, url) = pair.split_once('=').unwrap_or((pair, ""));
            texts.entry(name.to_owned()).or_default().push(url);
        }
        let members = texts
            .into_iter()
            .map(|(name, urls)| parse_urls(&urls).map(|urls| (name, urls)))
            .collect::<Result<_, _>>()?;
        Ok(Self { members })
    }

    /// Checks what etcd checks before it begins a cluster with a local member.
    ///
    /// `advertised` are normalised URLs. Where they differ from the initial cluster's only in
    /// their hosts, `resolve` is asked for the address of each `host:port`, and answers with
    /// `address:port` or with why it could not; pass a closure that fails to compare text only.
    ///
    /// # Errors
    ///
    /// The local name or one of its URLs is missing on one side, or a URL stands twice.
    pub fn check(
        &self,
        name: &str,
        advertised: &[String],
        resolve: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<(), PeerUrlError> {
        let urls =
            self.members.get(name).ok_or_else(|| PeerUrlError::NameMissing(name.to_owned()))?;
        let mut advertised = advertised.to_vec();
        advertised.sort_unstable();
        if let Err(why) = check_same(&advertised, urls, resolve) {
            return Err(mismatch(name, &advertised, urls, why));
        }
        let mut seen = BTreeSet::new();
        if self.members.values().flatten().all(|url| seen.insert(url)) {
            Ok(())
        } else {
            Err(PeerUrlError::Duplicate(self.to_string()))
        }
    }

    /// Makes the members, ascending by id, and the id of their cluster.
    ///
    /// # Errors
    ///
    /// Two members with one id, or an id of 0.
    pub fn found(&self, token: &str) -> Result<(ClusterId, Vec<Member>), PeerUrlError> {
        let mut members = BTreeMap::new();
        for (name, urls) in &self.members {
            let id = MemberId::of_new_cluster(urls, token);
            let member =
                Member { id, peer_urls: urls.clone(), name: name.clone(), ..Member::default() };
            if id.0 == 0 {
                return Err(PeerUrlError::ZeroId);
            }
            if members.insert(id, member).is_some() {
                return Err(PeerUrlError::SameId(id));
            }
        }
        let ids: Vec<MemberId> = members.keys().copied().collect();
        Ok((ClusterId::of_members(&ids), members.into_values().collect()))
    }
}

impl fmt::Display for InitialCluster {
    /// Writes `name=url` pairs, sorted, joined by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all: Vec<String> = Vec::new();
        for (name, urls) in &self.members {
            all.extend(pairs(name, urls));
        }
        all.sort_unstable();
        f.write_str(&all.join(","))
    }
}

fn pairs(name: &str, urls: &[String]) -> Vec<String> {
    let mut pairs: Vec<String> = urls.iter().map(|url| format!("{name}={url}")).collect();
    pairs.sort_unstable();
    pairs
}

fn mismatch(name: &str, advertised: &[String], urls: &[String], why: String) -> PeerUrlError {
    let only_in = |these: &[String], others: &[String]| -> Vec<String> {
        these.iter().filter(|url| !others.contains(url)).cloned().collect()
    };
    let missing = only_in(urls, advertised);
    if missing.is_empty() {
        PeerUrlError::NotInCluster {
            missing: only_in(advertised, urls).join(","),
            cluster: pairs(name, advertised).join(","),
        }
    } else {
        PeerUrlError::NotAdvertised {
            missing: pairs(name, &missing).join(","),
            advertised: advertised.join(","),
            why,
        }
    }
}

/// Compares two sorted lists, by text, by address, and by what the hosts resolve to.
fn check_same(
    a: &[String],
    b: &[String],
    resolve: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<(), String> {
    if a.len() != b.len() {
        let list = |urls: &[String]| {
            let quoted: Vec<String> = urls.iter().map(|url| quote(url)).collect();
            quoted.join(" ")
        };
        return Err(format!("len([{}]) != len([{}])", list(a), list(b)));
    }
    let parts = |urls: &[String]| -> Vec<Url> {
        urls.iter().filter_map(|url| Url::parse(url).ok()).collect()
    };
    let (mut a, mut b) = (parts(a), parts(b));
    if a.iter().zip(&b).all(|(a, b)| a.is_same(b)) {
        return Ok(());
    }
    for url in a.iter_mut().chain(&mut b) {
        let is_local = split_host_port(&url.host).is_some_and(|(host, _)| host == "localhost");
        if url.scheme.starts_with("http") && !is_local {
            url.host = resolve(&url.host)
                .map_err(|why| format!("failed to resolve {} ({why})", quote(&url.text())))?;
        }
    }
    a.sort_unstable_by_key(Url::text);
    b.sort_unstable_by_key(Url::text);
    match a.iter().zip(&b).find(|(a, b)| !a.is_same(b)) {
        None => Ok(()),
        Some((a, b)) => Err(format!("resolved urls: {} != {}", quote(&a.text()), quote(&b.text()))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse_one(text: &str) -> Result<String, String> {
        parse_urls(&[text]).map(|urls| urls.concat()).map_err(|error| error.to_string())
    }

    fn no_dns(host: &str) -> Result<String, String> {
        Err(format!("no such host {host}"))
    }

    #[test]
    fn urls_come_out_as_etcds() {
        let same = [
            "http://localhost:2380",
            "https://[::1]:2380",
            "http://:2380",
            "http://localhost:",
            "http://HOST:1?a=b",
            "http://a:1?",
            "https://[fe80::1%25en0]:2380",
            "unix://localhost:1234",
            "unix:///run/etcd/peer.sock",
            "unix:/run/a",
            "unix:opaque",
        ];
        for text in same {
            assert_eq!(parse_one(text).unwrap(), text);
        }
        let changed = [
            (" HTTP://a:1\n", "http://a:1"),
            ("http://a:1#", "http://a:1"),
            ("http://\u{e9}:1", "http://%C3%A9:1"),
            ("unix:///a b", "unix:///a%20b"),
            ("unix://", "unix:"),
        ];
        for (text, want) in changed {
            assert_eq!(parse_one(text).unwrap(), want);
        }
        let sorted = parse_urls(&["http://b:1", "http://a:1"]).unwrap();
        assert_eq!(sorted, ["http://a:1", "http://b:1"]);
    }

    #[test]
    fn urls_are_refused_as_by_etcd() {
        let host_port = "URL address does not have the form \"host:port\": ";
        let scheme = "URL scheme must be http, https, unix, or unixs: ";
        let cases = [
            ("http://localhost", format!("{host_port}http://localhost")),
            ("http:localhost:1", format!("{host_port}http:localhost:1")),
            ("http://[::1]", format!("{host_port}http://[::1]")),
            ("http://a:1/", "URL must not contain a path: http://a:1/".into()),
            ("", scheme.into()),
            ("localhost:2380", format!("{scheme}localhost:2380")),
            ("ftp://a:1", format!("{scheme}ftp://a:1")),
            (
                "127.0.0.1:2380",
                "parse \"127.0.0.1:2380\": first path segment in URL cannot contain colon".into(),
            ),
            (":1", "parse \":1\": missing protocol scheme".into()),
            ("http://a:b", "parse \"http://a:b\": invalid port \":b\" after host".into()),
            ("http://[::1", "parse \"http://[::1\": missing ']' in host".into()),
            ("http://a b:1", "parse \"http://a b:1\": invalid character \" \" in host name".into()),
            ("http://%zz:1", "parse \"http://%zz:1\": invalid URL escape \"%zz\"".into()),
            ("http://%41:1", "parse \"http://%41:1\": invalid URL escape \"%41\"".into()),
        ];
        for (text, want) in cases {
            assert_eq!(parse_one(text).unwrap_err(), want);
        }
        assert_eq!(parse_urls::<&str>(&[]), Err(PeerUrlError::NoUrls));
    }

    #[test]
    fn clusters_are_founded_as_by_etcd() {
        let text = "b=http://127.0.0.1:23303,a=http://127.0.0.1:23301,,b=http://10.0.0.9:23303,\
                    c=http://127.0.0.1:23305";
        let cluster = InitialCluster::parse(text).unwrap();
        let (id, members) = cluster.found("tok1").unwrap();
        assert_eq!(id, ClusterId(0x29f3_3499_c73f_ac99));
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "b"]);
        assert!(members.is_sorted_by_key(|member| member.id));
        assert_eq!(
            InitialCluster::parse(&cluster.to_string()).unwrap(),
            cluster,
            "what is written is read"
        );
        let odd = InitialCluster::parse("name").unwrap_err();
        assert_eq!(odd, PeerUrlError::Scheme(String::new()));
    }

    #[test]
    fn the_local_member_must_match() {
        let cluster = InitialCluster::parse("m=http://10.0.0.1:1,n=http://10.0.0.2:1").unwrap();
        let check = |name: &str, urls: &[&str]| {
            let urls = parse_urls(urls).unwrap();
            cluster.check(name, &urls, &mut no_dns).map_err(|error| error.to_string())
        };
        assert_eq!(check("m", &["http://10.0.0.1:1"]), Ok(()));
        assert_eq!(
            check("zz", &["http://10.0.0.1:1"]).unwrap_err(),
            "couldn't find local name \"zz\" in the initial cluster configuration"
        );
        let error = check("m", &["http://10.0.0.1:1", "http://10.0.0.3:1"]).unwrap_err();
        assert_eq!(
            error,
            "--initial-advertise-peer-urls has http://10.0.0.3:1 but missing from \
             --initial-cluster=m=http://10.0.0.1:1,m=http://10.0.0.3:1"
        );
        let error = check("m", &["http://10.0.0.9:1"]).unwrap_err();
        assert!(error.starts_with(
            "--initial-cluster has m=http://10.0.0.1:1 but missing from \
             --initial-advertise-peer-urls=http://10.0.0.9:1 ("
        ));
        let twice = InitialCluster::parse("m=http://a:1,n=http://a:1").unwrap();
        let error = twice.check("m", &["http://a:1".into()], &mut no_dns).unwrap_err();
        assert_eq!(
            error.to_string(),
            "initial cluster m=http://a:1,n=http://a:1 has duplicate url"
        );
    }

    #[test]
    fn names_match_by_what_they_resolve_to() {
        let mut dns = |host: &str| match host {
            "node1:1" | "10.0.0.1:1" => Ok("10.0.0.1:1".to_owned()),
            other => no_dns(other),
        };
        let cluster = InitialCluster::parse("m=http://node1:1").unwrap();
        assert_eq!(cluster.check("m", &["http://10.0.0.1:1".into()], &mut dns), Ok(()));
        assert!(cluster.check("m", &["http://node2:1".into()], &mut dns).is_err());
        let cluster = InitialCluster::parse("m=http://[0:0::1]:1").unwrap();
        assert_eq!(cluster.check("m", &["http://[::1]:1".into()], &mut no_dns), Ok(()));
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "\\PC*", cluster in "[a-c=,:/.\\[\\]%0-2 @#?]*") {
            let _ = parse_one(&text).is_ok();
            let _ = InitialCluster::parse(&cluster).is_ok();
            let _ = parse_one(&format!("http://{cluster}")).is_ok();
        }

        #[test]
        fn a_normal_form_stays(text in "(http|unix)://[a-z0-9:/ %\u{e9}@.]{0,12}") {
            if let Ok(once) = parse_one(&text) {
                prop_assert_eq!(parse_one(&once), Ok(once.clone()));
            }
        }
    }
}
