//! Who the restored member is, and of which cluster.
//!
//! Order of sources, first one that speaks: explicit flags, the static-pod manifest, the
//! snapshot's own single member. Nothing is invented: etcdutl's silent
//! `default=http://localhost:2380` is never used.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;

use crate::etcd::members::{ClusterId, Member, MemberId};
use crate::etcd::peer_urls::{InitialCluster, PeerUrlError, parse_urls};
use crate::kube::manifest::EtcdManifest;
use crate::ops::{Error, shell_line};

/// What the caller says about identity.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// `--name`.
    pub name: Option<String>,
    /// `--initial-cluster`.
    pub initial_cluster: Option<String>,
    /// `--initial-cluster-token`.
    pub token: Option<String>,
    /// `--initial-advertise-peer-urls`, comma-separated.
    pub peer_urls: Option<String>,
    /// `--all-members`: every member is restored at once.
    pub all: bool,
}

/// The identity that a restore gives.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The member's name; empty when all are restored.
    pub name: String,
    /// All members by name.
    pub cluster: InitialCluster,
    /// The cluster's token.
    pub token: String,
    /// The token was made up here.
    pub token_is_fresh: bool,
    /// Where name and URLs come from, for people.
    pub source: String,
    /// This member's id; 0 when all are restored.
    pub member_id: MemberId,
    /// The cluster's id.
    pub cluster_id: ClusterId,
    /// All members, ascending by id.
    pub members: Vec<Member>,
}

impl Identity {
    /// A member's peer URLs, comma-separated.
    #[must_use]
    pub fn peer_urls(&self, name: &str) -> String {
        self.cluster.members.get(name).map(|urls| urls.join(",")).unwrap_or_default()
    }

    /// The members that a directory is made for, by name: this one, or all of them.
    #[must_use]
    pub fn locals(&self) -> Vec<(String, MemberId)> {
        let is_local = |member: &&Member| self.name.is_empty() || member.name == self.name;
        let members = self.members.iter().filter(is_local);
        let mut locals: Vec<_> = members.map(|member| (member.name.clone(), member.id)).collect();
        locals.sort();
        locals
    }
}

/// Decides the identity. `commands` makes the restore's command line for one member, for the
/// refusal that names every host's command.
///
/// # Errors
/// Usage, where flags contradict each other; refused, where nothing says who the member is, or
/// where several members are named without a token.
pub fn decide(
    wanted: &Wanted,
    manifest: Option<&EtcdManifest>,
    inside: &[Member],
    commands: &dyn Fn(&Host<'_>) -> Vec<String>,
) -> Result<Identity, Error> {
    if wanted.token.as_ref().is_some_and(String::is_empty) {
        return Err(Error::usage("--initial-cluster-token is empty")
            .hint("leave it out for a fresh one, if this is a single member"));
    }
    if wanted.name.as_ref().is_some_and(|name| name.is_empty() || name.contains(['=', ','])) {
        return Err(Error::usage("--name is empty, or has = or , in it"));
    }
    if wanted.all {
        return decide_all(wanted, manifest, inside);
    }
    let (name, cluster, source) = name_and_cluster(wanted, manifest, inside, commands)?;
    let peer_urls = match (&wanted.peer_urls, manifest) {
        (Some(urls), _) => parse(urls)?,
        (None, Some(manifest)) if !manifest.initial_advertise_peer_urls.is_empty() => {
            let urls = &manifest.initial_advertise_peer_urls;
            parse_urls(urls).map_err(|error| usage(&error, "the manifest's peer URLs"))?
        }
        _ => cluster.members.get(&name).cloned().unwrap_or_default(),
    };
    cluster
        .check(&name, &peer_urls, &mut resolve)
        .map_err(|error| usage(&error, "--initial-cluster"))?;
    if cluster.members.len() > 1 && wanted.token.is_none() {
        let fresh = fresh_token();
        return Err(per_host(&cluster, &fresh, commands, "--initial-cluster names"));
    }
    let token_is_fresh = wanted.token.is_none();
    let token = wanted.token.clone().unwrap_or_else(fresh_token);
    let (cluster_id, members) =
        cluster.found(&token).map_err(|error| usage(&error, "--initial-cluster"))?;
    let own = members.iter().find(|member| member.name == name);
    let member_id = own.map_or(MemberId(0), |member| member.id);
    Ok(Identity { name, cluster, token, token_is_fresh, source, member_id, cluster_id, members })
}

/// Decides the identity of a cluster that is restored as a whole.
fn decide_all(
    wanted: &Wanted,
    manifest: Option<&EtcdManifest>,
    inside: &[Member],
) -> Result<Identity, Error> {
    let voters: Vec<&Member> = inside.iter().filter(|member| !member.is_learner).collect();
    let (cluster, source) = match (&wanted.initial_cluster, manifest) {
        (Some(text), _) => {
            let parsed = InitialCluster::parse(text);
            (parsed.map_err(|error| usage(&error, "--initial-cluster"))?, "the flags")
        }
        // A node that was first has a manifest that names it alone.
        (None, Some(manifest)) if manifest.initial_cluster.len() >= voters.len().max(1) => {
            (of_manifest(wanted, manifest)?.1, "the manifest")
        }
        _ => (of_members(&voters)?, "the snapshot's own members"),
    };
    if cluster.members.len() > HOSTS_MAX {
        return Err(Error::refused(format!(
            "{} members are no etcd cluster",
            cluster.members.len()
        ))
        .hint("check the snapshot and the flags"));
    }
    if let Some(name) = manifest.and_then(|manifest| manifest.name.as_ref())
        && !cluster.members.contains_key(name)
    {
        let message = format!("the manifest is that of {name}, which is none of the members");
        return Err(Error::refused(message)
            .hint(format!("the members, from {source}: {cluster}"))
            .hint("give the manifest of one of them, or none"));
    }
    for (name, urls) in &cluster.members {
        let is_plain = !name.contains(['/', '\0']) && ![".", ".."].contains(&name.as_str());
        if !is_plain || name.len() > 200 || name.starts_with('.') {
            return Err(Error::refused(format!("member name {name:?} cannot be a directory's"))
                .hint("restore that member on its own, with --name and --data-dir"));
        }
        cluster.check(name, urls, &mut resolve).map_err(|error| usage(&error, "the members"))?;
    }
    let token_is_fresh = wanted.token.is_none();
    let token = wanted.token.clone().unwrap_or_else(fresh_token);
    let (cluster_id, members) =
        cluster.found(&token).map_err(|error| usage(&error, "the members"))?;
    let (name, member_id) = (String::new(), MemberId(0));
    let source = source.to_owned();
    Ok(Identity { name, cluster, token, token_is_fresh, source, member_id, cluster_id, members })
}

fn of_members(voters: &[&Member]) -> Result<InitialCluster, Error> {
    let mut members = BTreeMap::new();
    for member in voters {
        if member.name.is_empty() || member.peer_urls.is_empty() {
            let message = format!("member {} in the snapshot has no name or no URL", member.id);
            return Err(Error::refused(message).hint("add --initial-cluster NAME=URL,NAME=URL"));
        }
        let urls = parse_urls(&member.peer_urls)
            .map_err(|error| usage(&error, "the peer URLs inside the snapshot"))?;
        if members.insert(member.name.clone(), urls).is_some() {
            let message = format!("two members in the snapshot are called {}", member.name);
            return Err(Error::refused(message).hint("add --initial-cluster NAME=URL,NAME=URL"));
        }
    }
    if members.is_empty() {
        return Err(Error::refused(
            "the snapshot names no member, so it does not say who they are",
        )
        .hint("add --initial-cluster NAME=URL,NAME=URL"));
    }
    Ok(InitialCluster { members })
}

/// Most members that commands are printed for: each names all of them.
const HOSTS_MAX: usize = 32;

/// Who names several members, where it is the snapshot itself.
const INSIDE: &str = "the snapshot holds";

/// One host of a cluster that is restored host by host.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// The member's name.
    pub name: &'a str,
    /// Its peer URLs, comma-separated.
    pub peer_urls: &'a str,
    /// All members, as `--initial-cluster` wants them.
    pub initial_cluster: &'a str,
    /// The token that all share.
    pub token: &'a str,
}

/// Makes the refusal that prints one command a host, all with the same token and bump.
pub fn per_host(
    cluster: &InitialCluster,
    token: &str,
    commands: &dyn Fn(&Host<'_>) -> Vec<String>,
    who: &str,
) -> Error {
    let count = cluster.members.len();
    let message = format!(
        "{who} {count} members: each must be restored with the same token and the same revision, \
         or they form a cluster that looks healthy and is split for ever"
    );
    let mut error = Error::refused(message);
    if count > HOSTS_MAX {
        return error.hint("that many are no etcd cluster: check the snapshot and the flags");
    }
    let initial_cluster = cluster.to_string();
    for (number, (name, urls)) in cluster.members.iter().enumerate() {
        let peer_urls = urls.join(",");
        let host = Host { name, peer_urls: &peer_urls, initial_cluster: &initial_cluster, token };
        let command = commands(&host);
        if number == 0 {
            // The program, its two words and the file.
            let mut all: Vec<String> = command.iter().take(4).cloned().collect();
            all.extend(["--all-members".into(), "DIR".into()]);
            if who != INSIDE {
                all.extend(["--initial-cluster".into(), initial_cluster.clone()]);
            }
            // What is decided of the revision, and what was allowed, stands behind the token.
            let token = command.iter().position(|word| word == "--initial-cluster-token");
            all.extend(token.iter().flat_map(|at| command.iter().skip(at + 2).cloned()));
            error = error.hint(format!("all of them at once, here: {}", shell_line(&all)));
        }
        error = error.hint(format!("on the host of {name}: {}", shell_line(&command)));
    }
    error
}

fn name_and_cluster(
    wanted: &Wanted,
    manifest: Option<&EtcdManifest>,
    inside: &[Member],
    commands: &dyn Fn(&Host<'_>) -> Vec<String>,
) -> Result<(String, InitialCluster, String), Error> {
    if let Some(text) = &wanted.initial_cluster {
        let cluster =
            InitialCluster::parse(text).map_err(|error| usage(&error, "--initial-cluster"))?;
        let only = match cluster.members.len() {
            1 => cluster.members.keys().next().cloned(),
            _ => None,
        };
        let name = wanted.name.clone().or(manifest.and_then(|m| m.name.clone())).or(only);
        let name = name.ok_or_else(|| {
            Error::usage("--initial-cluster names several members, and --name does not say which")
                .hint("add --name NAME, one of those in --initial-cluster")
        })?;
        return Ok((name, cluster, "the flags".into()));
    }
    if let Some(urls) = &wanted.peer_urls {
        let name = wanted.name.clone().or(manifest.and_then(|m| m.name.clone()));
        let name = name.or_else(|| single(inside).map(|member| member.name.clone()));
        let name = name.filter(|name| !name.is_empty()).ok_or_else(|| {
            Error::usage("--initial-advertise-peer-urls is given, but no --name")
                .hint("add --name NAME")
        })?;
        let members = BTreeMap::from([(name.clone(), parse(urls)?)]);
        return Ok((name, InitialCluster { members }, "the flags".into()));
    }
    let voters: Vec<&Member> = inside.iter().filter(|member| !member.is_learner).collect();
    if let Some(manifest) = manifest {
        let decided = of_manifest(wanted, manifest)?;
        // A node that was first has a manifest that names it alone: what it is now, only the
        // snapshot knows.
        if voters.len() > 1 && decided.1.members.len() != voters.len() {
            let count = decided.1.members.len();
            return Err(several(wanted, inside, commands)
                .hint(format!("the manifest's own --initial-cluster names {count}")));
        }
        return Ok(decided);
    }
    match voters.as_slice() {
        [] => Err(Error::refused("the snapshot names no member, so it does not say who this is")
            .hint("add --name NAME --initial-advertise-peer-urls URL")),
        [member] => of_member(wanted, member),
        _ => Err(several(wanted, inside, commands)),
    }
}

fn of_manifest(
    wanted: &Wanted,
    manifest: &EtcdManifest,
) -> Result<(String, InitialCluster, String), Error> {
    let name = wanted.name.clone().or(manifest.name.clone()).ok_or_else(|| {
        Error::usage("the manifest has no --name, so it does not say who this is")
            .hint("add --name NAME")
    })?;
    let mut text: Vec<String> =
        manifest.initial_cluster.iter().map(|(name, url)| format!("{name}={url}")).collect();
    if text.is_empty() {
        let urls = &manifest.initial_advertise_peer_urls;
        text = urls.iter().map(|url| format!("{name}={url}")).collect();
    }
    if text.is_empty() {
        return Err(Error::usage("the manifest has neither --initial-cluster nor peer URLs")
            .hint("add --initial-advertise-peer-urls URL"));
    }
    let cluster = InitialCluster::parse(&text.join(","))
        .map_err(|error| usage(&error, "the manifest's --initial-cluster"))?;
    Ok((name, cluster, "the manifest".into()))
}

fn of_member(wanted: &Wanted, member: &Member) -> Result<(String, InitialCluster, String), Error> {
    let name = wanted.name.clone().unwrap_or_else(|| member.name.clone());
    if name.is_empty() {
        return Err(Error::refused("the snapshot's member has no name: it never started")
            .hint("add --name NAME"));
    }
    let urls = parse_urls(&member.peer_urls)
        .map_err(|error| usage(&error, "the peer URLs inside the snapshot"))?;
    if urls.is_empty() {
        return Err(Error::refused("the snapshot's member has no peer URL")
            .hint("add --initial-advertise-peer-urls URL"));
    }
    let members = BTreeMap::from([(name.clone(), urls)]);
    Ok((name, InitialCluster { members }, "the snapshot's own member".into()))
}

fn several(
    wanted: &Wanted,
    inside: &[Member],
    commands: &dyn Fn(&Host<'_>) -> Vec<String>,
) -> Error {
    let mut members = BTreeMap::new();
    for member in inside.iter().filter(|member| !member.is_learner) {
        let name = if member.name.is_empty() {
            format!("NAME-OF-{}", member.id)
        } else {
            member.name.clone()
        };
        members.insert(name, member.peer_urls.clone());
    }
    let cluster = InitialCluster { members };
    let token = wanted.token.clone().unwrap_or_else(fresh_token);
    let mut error = per_host(&cluster, &token, commands, INSIDE);
    for learner in inside.iter().filter(|member| member.is_learner) {
        error = error.hint(left_out(learner));
    }
    error.hint("for one member alone: add --name NAME --initial-advertise-peer-urls URL")
}

/// Says what becomes of a learner.
pub(super) fn left_out(learner: &Member) -> String {
    format!(
        "learner {} ({}) is left out: a restore makes voters only; add it again afterwards",
        learner.name, learner.id
    )
}

fn single(inside: &[Member]) -> Option<&Member> {
    let mut voters = inside.iter().filter(|member| !member.is_learner);
    match (voters.next(), voters.next()) {
        (Some(member), None) => Some(member),
        _ => None,
    }
}

fn parse(urls: &str) -> Result<Vec<String>, Error> {
    let urls: Vec<&str> = urls.split(',').filter(|url| !url.is_empty()).collect();
    parse_urls(&urls).map_err(|error| usage(&error, "--initial-advertise-peer-urls"))
}

fn usage(error: &PeerUrlError, of: &str) -> Error {
    Error::usage(format!("{of}: {error}"))
}

/// Resolves `host:port`; etcd does the same when URLs differ in their hosts only.
fn resolve(address: &str) -> Result<String, String> {
    let mut found = address.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().map(|found| found.to_string()).ok_or_else(|| "no address".into())
}

/// Makes a token that no cluster has had.
fn fresh_token() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Each RandomState is keyed by the operating system's randomness.
    let random = || RandomState::new().build_hasher().finish();
    format!("etcdkit-{:016x}", random() ^ random().rotate_left(32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::ExitCode;

    fn member(name: &str, url: &str) -> Member {
        let peer_urls = vec![url.to_owned()];
        Member { id: MemberId(7), name: name.into(), peer_urls, ..Member::default() }
    }

    fn commands(host: &Host<'_>) -> Vec<String> {
        vec!["restore".into(), host.name.into(), host.initial_cluster.into(), host.token.into()]
    }

    fn run(wanted: &Wanted, inside: &[Member]) -> Result<Identity, Error> {
        decide(wanted, None, inside, &commands)
    }

    #[test]
    fn explicit_flags_give_etcdutls_ids() {
        let wanted = Wanted {
            name: Some("a".into()),
            initial_cluster: Some(
                "a=http://127.0.0.1:23301,b=http://10.0.0.9:23303,\
                b=http://127.0.0.1:23303,c=http://127.0.0.1:23305"
                    .into(),
            ),
            token: Some("tok1".into()),
            peer_urls: Some("http://127.0.0.1:23301".into()),
            all: false,
        };
        let identity = run(&wanted, &[]).unwrap();
        assert_eq!(identity.member_id.to_string(), "18007bf61c84e324");
        assert_eq!(identity.cluster_id.to_string(), "29f33499c73fac99");
        let without = Wanted { token: None, ..wanted.clone() };
        let refused = run(&without, &[]).unwrap_err();
        assert_eq!((refused.code, refused.hints.len()), (ExitCode::Refused, 4));
        let all = "all of them at once, here: restore a";
        assert!(refused.hints[0].starts_with(all), "{:?}", refused.hints);
        let stranger = Wanted { name: Some("zz".into()), ..wanted };
        assert_eq!(run(&stranger, &[]).unwrap_err().code, ExitCode::Usage);
    }

    #[test]
    fn the_snapshots_single_member_is_taken() {
        let inside = [member("m1", "http://127.0.0.1:2380")];
        let identity = run(&Wanted::default(), &inside).unwrap();
        assert_eq!((identity.name.as_str(), identity.token_is_fresh), ("m1", true));
        assert_eq!(identity.peer_urls("m1"), "http://127.0.0.1:2380");
        let again = run(&Wanted::default(), &inside).unwrap();
        assert_ne!(identity.token, again.token);
        assert_ne!(identity.cluster_id, again.cluster_id);
    }

    #[test]
    fn several_members_get_a_command_each_and_learners_none() {
        let learner = Member { is_learner: true, ..member("l", "http://127.0.0.3:2380") };
        let inside =
            [member("m1", "http://127.0.0.1:2380"), member("m2", "http://127.0.0.2:2380"), learner];
        let error = run(&Wanted::default(), &inside).unwrap_err();
        assert_eq!(error.code, ExitCode::Refused);
        assert_eq!(error.hints.iter().filter(|hint| hint.starts_with("on the host")).count(), 2);
        assert!(error.hints.iter().any(|hint| hint.starts_with("learner l")));
    }

    #[test]
    fn all_members_share_one_fresh_token() {
        let learner = Member { is_learner: true, ..member("l", "http://127.0.0.3:2380") };
        let inside =
            [member("m1", "http://127.0.0.1:2380"), member("m2", "http://127.0.0.2:2380"), learner];
        let all = Wanted { all: true, ..Wanted::default() };
        let identity = run(&all, &inside).unwrap();
        assert!(identity.token_is_fresh);
        let locals: Vec<_> = identity.locals().into_iter().map(|(name, _)| name).collect();
        assert_eq!((locals.len(), identity.members.len()), (2, 2));
        let one = Wanted { name: Some("m1".into()), ..Wanted::default() };
        let one = Wanted { initial_cluster: Some(identity.cluster.to_string()), ..one };
        let one = Wanted { token: Some(identity.token.clone()), ..one };
        let one = run(&one, &inside).unwrap();
        assert_eq!(one.cluster_id, identity.cluster_id);
        assert!(identity.locals().contains(&(one.name.clone(), one.member_id)));
        for name in ["../up", ".", "", "a/b"] {
            let odd = [member(name, "http://127.0.0.1:2380")];
            assert_eq!(run(&all, &odd).unwrap_err().code, ExitCode::Refused, "{name}");
        }
        let twins = [member("m", "http://127.0.0.1:2380"), member("m", "http://127.0.0.2:2380")];
        assert_eq!(run(&all, &twins).unwrap_err().code, ExitCode::Refused);
    }

    #[test]
    fn a_first_nodes_manifest_does_not_hide_the_other_members() {
        let text = include_bytes!("../../../fixtures/kubernetes/manifests/ha-stacked-cp1.yaml");
        let manifest = crate::kube::manifest::parse(text).unwrap();
        assert_eq!(manifest.initial_cluster.len(), 1);
        let inside = [member("a", "http://127.0.0.1:2380"), member("b", "http://127.0.0.2:2380")];
        let run = |inside| decide(&Wanted::default(), Some(&manifest), inside, &commands);
        assert_eq!(run(&inside).unwrap_err().code, ExitCode::Refused);
        assert_eq!(run(&inside[..1]).unwrap().members.len(), 1);
    }

    #[test]
    fn nothing_is_invented() {
        assert_eq!(run(&Wanted::default(), &[]).unwrap_err().code, ExitCode::Refused);
        let urls = Wanted { peer_urls: Some("http://h:1".into()), ..Wanted::default() };
        assert_eq!(run(&urls, &[]).unwrap_err().code, ExitCode::Usage);
    }
}
