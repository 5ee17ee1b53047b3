//! Changes of members, of what they say about themselves, and of the cluster's version.
//!
//! A change that is not valid any more has no effect; etcd hands raft a no-op for it.
//!
//! Source: etcd `membership.RaftCluster` (`ValidateConfigurationChange`, `AddMember`,
//! `PromoteMember`, `RemoveMember`, `UpdateRaftAttributes`, `UpdateAttributes`), 3.5.35 and 3.6.16;
//! `EtcdServer.applyConfChange`, `applierV2store.Put` and `v2ToV3Request`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Effect, Refusal, Rules, State, Stop, Warning};
use crate::etcd::members::{Member, MemberId, put_json_text};
use crate::etcd::request::{DowngradeInfo, V2};
use crate::etcd::schema::{self, Version};
use crate::format::wal::{ConfChange, change_kind};

/// Beginning of the path of a member in the v2 store.
const V2_MEMBERS: &str = "/0/members/";
/// Path of the cluster's version there.
const V2_VERSION: &[u8] = b"/0/version";

/// Text of etcd that should be UTF-8; what is not is replaced, as Go's JSON does.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

type Members = BTreeMap<MemberId, Member>;

fn members(state: &dyn State) -> Result<Members, Stop> {
    let (mut members, mut bad) = (Members::new(), None);
    state.each_row(schema::MEMBERS, &mut |key, value| match Member::decode(value) {
        Ok(row) if row.unknown_field.is_none() && row.member.row_key() == key => {
            members.insert(row.member.id, row.member);
        }
        Ok(_) => bad = Some(format!("the row of member {} is not understood", text(key))),
        Err(error) => bad = Some(error),
    })?;
    bad.map_or(Ok(members), |what| Err(Stop::Impossible(what)))
}

fn is_removed(state: &dyn State, id: MemberId) -> Result<bool, Stop> {
    Ok(state.row(schema::MEMBERS_REMOVED, id.to_string().as_bytes())?.is_some())
}

fn put_member(member: &Member, effect: &mut Effect<'_>) {
    effect.put_row(schema::MEMBERS, &member.row_key(), member.encode());
}

/// What stands in a change's context beside the member.
#[derive(Deserialize)]
struct Promotion {
    #[serde(rename = "isPromote", default)]
    is_promote: bool,
}

/// Reads the member in a change's context, and whether it is to be promoted.
fn decode_context(change: &ConfChange<'_>) -> Result<(Member, bool), Stop> {
    let impossible = |what: String| Stop::Impossible(format!("a change of members: {what}"));
    let row = Member::decode(change.context).map_err(impossible)?;
    let is_promote = serde_json::from_slice::<Promotion>(change.context)
        .map_err(|error| impossible(error.to_string()))?
        .is_promote;
    match row.unknown_field.as_deref() {
        None | Some("isPromote") => {}
        Some(name) => return Err(impossible(format!("field {name} is not known"))),
    }
    if row.member.id.0 != change.node_id {
        let ids = format!("member {} in it, {:x} around it", row.member.id, change.node_id);
        return Err(impossible(ids));
    }
    Ok((row.member, is_promote))
}

pub(super) fn apply_change(
    state: &dyn State,
    rules: &Rules,
    data: &[u8],
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let change = ConfChange::decode(data)
        .map_err(|error| Stop::Impossible(format!("a change of members: {error}")))?;
    if let Some(field) = change.unknown_field {
        let what = format!("a change of members with field {field}, which no known etcd writes");
        return Err(Stop::Impossible(what));
    }
    let mut members = members(state)?;
    let id = MemberId(change.node_id);
    if is_removed(state, id)? {
        return Err(Refusal::MemberRemoved.into());
    }
    match change.kind {
        change_kind::ADD_NODE | change_kind::ADD_LEARNER_NODE => {
            let (member, is_promote) = decode_context(&change)?;
            if is_promote {
                promote(&mut members, id, effect)?;
            } else {
                let as_learner = change.kind == change_kind::ADD_LEARNER_NODE;
                add(&mut members, member, as_learner, rules, effect)?;
            }
        }
        change_kind::REMOVE_NODE => {
            members.remove(&id).ok_or(Refusal::MemberNotFound)?;
            let key = id.to_string().into_bytes();
            effect.drop_row(schema::MEMBERS, &key);
            effect.put_row(schema::MEMBERS_REMOVED, &key, schema::REMOVED.to_vec());
        }
        change_kind::UPDATE_NODE => {
            // etcd looks for the member before it reads the context.
            if !members.contains_key(&id) {
                return Err(Refusal::MemberNotFound.into());
            }
            let (new, _) = decode_context(&change)?;
            if has_url(&members, id, &new.peer_urls) {
                return Err(Refusal::PeerUrlExists.into());
            }
            let member = members.get_mut(&id).ok_or(Refusal::MemberNotFound)?;
            member.peer_urls = new.peer_urls;
            put_member(member, effect);
        }
        kind => {
            let what = format!("a change of members of kind {kind}, which no known etcd writes");
            return Err(Stop::Impossible(what));
        }
    }
    if rules.writes_conf_state {
        effect.put_row(schema::META, schema::META_CONF_STATE, encode_conf_state(&members));
    }
    Ok(())
}

fn promote(members: &mut Members, id: MemberId, effect: &mut Effect<'_>) -> Result<(), Stop> {
    let member = members.get_mut(&id).ok_or(Refusal::MemberNotFound)?;
    if !member.is_learner {
        return Err(Refusal::MemberNotLearner.into());
    }
    member.is_learner = false;
    put_member(member, effect);
    Ok(())
}

fn add(
    members: &mut Members,
    member: Member,
    as_learner: bool,
    rules: &Rules,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    if members.contains_key(&member.id) {
        return Err(Refusal::MemberExists.into());
    }
    if has_url(members, member.id, &member.peer_urls) {
        return Err(Refusal::PeerUrlExists.into());
    }
    let learners = members.values().filter(|member| member.is_learner).count();
    if member.is_learner && as_learner && learners >= rules.learners_max {
        return Err(Refusal::TooManyLearners.into());
    }
    put_member(&member, effect);
    members.insert(member.id, member);
    Ok(())
}

/// Tells whether another member has one of the URLs.
fn has_url(members: &Members, id: MemberId, urls: &[String]) -> bool {
    let others = members.values().filter(|member| member.id != id);
    others.flat_map(|member| &member.peer_urls).any(|url| urls.contains(url))
}

/// Encodes raft's configuration as etcd's JSON, from who is a member.
fn encode_conf_state(members: &Members) -> Vec<u8> {
    let mut out = String::from("{");
    for (name, learners) in [("voters", false), ("learners", true)] {
        let ids = members.values().filter(|member| member.is_learner == learners);
        let ids: Vec<String> = ids.map(|member| member.id.0.to_string()).collect();
        if !ids.is_empty() {
            out.push_str(&format!("\"{name}\":[{}],", ids.join(",")));
        }
    }
    out.push_str("\"auto_leave\":false}");
    out.into_bytes()
}

pub(super) fn set_attributes(
    state: &dyn State,
    id: u64,
    name: String,
    client_urls: Vec<String>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let id = MemberId(id);
    match members(state)?.remove(&id) {
        Some(mut member) => {
            member.name = name;
            member.client_urls = client_urls;
            put_member(&member, effect);
        }
        None if is_removed(state, id)? => {}
        None => effect.warnings.push(Warning::MemberUnknown(id.0)),
    }
    Ok(())
}

pub(super) fn set_version(version: &[u8], effect: &mut Effect<'_>) -> Result<(), Stop> {
    if Version::parse(version).is_none() {
        let what = format!("a cluster version that is none: {}", text(version));
        return Err(Stop::Impossible(what));
    }
    effect.put_row(schema::CLUSTER, schema::CLUSTER_VERSION, version.to_vec());
    Ok(())
}

pub(super) fn set_downgrade(
    request: &DowngradeInfo<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let target = if request.enabled { text(request.version) } else { String::new() };
    let mut row = String::from("{\"target-version\":");
    put_json_text(&mut row, &target);
    row.push_str(&format!(",\"enabled\":{}}}", request.enabled));
    effect.put_row(schema::CLUSTER, schema::CLUSTER_DOWNGRADE, row.into_bytes());
    Ok(())
}

/// What a member says about itself in the v2 store.
#[derive(Deserialize)]
struct V2Attributes {
    #[serde(default)]
    name: Option<String>,
    #[serde(rename = "clientURLs", default)]
    client_urls: Option<Vec<String>>,
}

/// Does what 3.4 and 3.5 do to the database when they apply a v2 request.
pub(super) fn apply_v2(
    state: &dyn State,
    request: &V2<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let is_plain_put = request.method == b"PUT"
        && !request.previous_exists
        && request.previous_index == 0
        && request.previous_value.is_empty();
    if is_plain_put && request.path == V2_VERSION {
        return set_version(request.value, effect);
    }
    if let Some(id) = attributes_path(request.path).filter(|_| is_plain_put) {
        let attributes: V2Attributes = serde_json::from_slice(request.value).map_err(|error| {
            Stop::Impossible(format!("attributes of member {id} that are none: {error}"))
        })?;
        let name = attributes.name.unwrap_or_default();
        let urls = attributes.client_urls.unwrap_or_default();
        return set_attributes(state, id.0, name, urls, effect);
    }
    if request.method != b"SYNC" && request.method != b"QGET" {
        effect.warnings.push(Warning::V2Store);
    }
    Ok(())
}

fn attributes_path(path: &[u8]) -> Option<MemberId> {
    let id = path.strip_prefix(V2_MEMBERS.as_bytes())?.strip_suffix(b"/attributes")?;
    MemberId::parse(id)
}
