// This file is @generated from the protos.
use super::shape::{Kind, Message, Method, choice, list, one};

pub static MVCCPB_KEYVALUE: Message = Message { name: "mvccpb.KeyValue", fields: &[
    one(1, "key", "key", Kind::Bytes),
    one(2, "create_revision", "createRevision", Kind::Int64),
    one(3, "mod_revision", "modRevision", Kind::Int64),
    one(4, "version", "version", Kind::Int64),
    one(5, "value", "value", Kind::Bytes),
    one(6, "lease", "lease", Kind::Int64),
] };

pub static MVCCPB_EVENT: Message = Message { name: "mvccpb.Event", fields: &[
    one(1, "type", "type", Kind::Enum(MVCCPB_EVENT_EVENTTYPE)),
    one(2, "kv", "kv", Kind::Message(&MVCCPB_KEYVALUE)),
    one(3, "prev_kv", "prevKv", Kind::Message(&MVCCPB_KEYVALUE)),
] };

pub static MVCCPB_EVENT_EVENTTYPE: &[(i32, &str)] = &[(0, "PUT"), (1, "DELETE")];

pub static AUTHPB_USERADDOPTIONS: Message = Message { name: "authpb.UserAddOptions", fields: &[
    one(1, "no_password", "noPassword", Kind::Bool),
] };

pub static AUTHPB_USER: Message = Message { name: "authpb.User", fields: &[
    one(1, "name", "name", Kind::Bytes),
    one(2, "password", "password", Kind::Bytes),
    list(3, "roles", "roles", Kind::String),
    one(4, "options", "options", Kind::Message(&AUTHPB_USERADDOPTIONS)),
] };

pub static AUTHPB_PERMISSION: Message = Message { name: "authpb.Permission", fields: &[
    one(1, "permType", "permType", Kind::Enum(AUTHPB_PERMISSION_TYPE)),
    one(2, "key", "key", Kind::Bytes),
    one(3, "range_end", "rangeEnd", Kind::Bytes),
] };

pub static AUTHPB_PERMISSION_TYPE: &[(i32, &str)] = &[(0, "READ"), (1, "WRITE"), (2, "READWRITE")];

pub static AUTHPB_ROLE: Message = Message { name: "authpb.Role", fields: &[
    one(1, "name", "name", Kind::Bytes),
    list(2, "keyPermission", "keyPermission", Kind::Message(&AUTHPB_PERMISSION)),
] };

pub static ETCDSERVERPB_RESPONSEHEADER: Message = Message { name: "etcdserverpb.ResponseHeader", fields: &[
    one(1, "cluster_id", "clusterId", Kind::Uint64),
    one(2, "member_id", "memberId", Kind::Uint64),
    one(3, "revision", "revision", Kind::Int64),
    one(4, "raft_term", "raftTerm", Kind::Uint64),
] };

pub static ETCDSERVERPB_RANGEREQUEST: Message = Message { name: "etcdserverpb.RangeRequest", fields: &[
    one(1, "key", "key", Kind::Bytes),
    one(2, "range_end", "rangeEnd", Kind::Bytes),
    one(3, "limit", "limit", Kind::Int64),
    one(4, "revision", "revision", Kind::Int64),
    one(5, "sort_order", "sortOrder", Kind::Enum(ETCDSERVERPB_RANGEREQUEST_SORTORDER)),
    one(6, "sort_target", "sortTarget", Kind::Enum(ETCDSERVERPB_RANGEREQUEST_SORTTARGET)),
    one(7, "serializable", "serializable", Kind::Bool),
    one(8, "keys_only", "keysOnly", Kind::Bool),
    one(9, "count_only", "countOnly", Kind::Bool),
    one(10, "min_mod_revision", "minModRevision", Kind::Int64),
    one(11, "max_mod_revision", "maxModRevision", Kind::Int64),
    one(12, "min_create_revision", "minCreateRevision", Kind::Int64),
    one(13, "max_create_revision", "maxCreateRevision", Kind::Int64),
] };

pub static ETCDSERVERPB_RANGEREQUEST_SORTORDER: &[(i32, &str)] = &[(0, "NONE"), (1, "ASCEND"), (2, "DESCEND")];

pub static ETCDSERVERPB_RANGEREQUEST_SORTTARGET: &[(i32, &str)] = &[(0, "KEY"), (1, "VERSION"), (2, "CREATE"), (3, "MOD"), (4, "VALUE")];

pub static ETCDSERVERPB_RANGERESPONSE: Message = Message { name: "etcdserverpb.RangeResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "kvs", "kvs", Kind::Message(&MVCCPB_KEYVALUE)),
    one(3, "more", "more", Kind::Bool),
    one(4, "count", "count", Kind::Int64),
] };

pub static ETCDSERVERPB_PUTREQUEST: Message = Message { name: "etcdserverpb.PutRequest", fields: &[
    one(1, "key", "key", Kind::Bytes),
    one(2, "value", "value", Kind::Bytes),
    one(3, "lease", "lease", Kind::Int64),
    one(4, "prev_kv", "prevKv", Kind::Bool),
    one(5, "ignore_value", "ignoreValue", Kind::Bool),
    one(6, "ignore_lease", "ignoreLease", Kind::Bool),
] };

pub static ETCDSERVERPB_PUTRESPONSE: Message = Message { name: "etcdserverpb.PutResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "prev_kv", "prevKv", Kind::Message(&MVCCPB_KEYVALUE)),
] };

pub static ETCDSERVERPB_DELETERANGEREQUEST: Message = Message { name: "etcdserverpb.DeleteRangeRequest", fields: &[
    one(1, "key", "key", Kind::Bytes),
    one(2, "range_end", "rangeEnd", Kind::Bytes),
    one(3, "prev_kv", "prevKv", Kind::Bool),
] };

pub static ETCDSERVERPB_DELETERANGERESPONSE: Message = Message { name: "etcdserverpb.DeleteRangeResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "deleted", "deleted", Kind::Int64),
    list(3, "prev_kvs", "prevKvs", Kind::Message(&MVCCPB_KEYVALUE)),
] };

pub static ETCDSERVERPB_REQUESTOP: Message = Message { name: "etcdserverpb.RequestOp", fields: &[
    choice("etcdserverpb.RequestOp.request", 1, "request_range", "requestRange", Kind::Message(&ETCDSERVERPB_RANGEREQUEST)),
    choice("etcdserverpb.RequestOp.request", 2, "request_put", "requestPut", Kind::Message(&ETCDSERVERPB_PUTREQUEST)),
    choice("etcdserverpb.RequestOp.request", 3, "request_delete_range", "requestDeleteRange", Kind::Message(&ETCDSERVERPB_DELETERANGEREQUEST)),
    choice("etcdserverpb.RequestOp.request", 4, "request_txn", "requestTxn", Kind::Message(&ETCDSERVERPB_TXNREQUEST)),
] };

pub static ETCDSERVERPB_RESPONSEOP: Message = Message { name: "etcdserverpb.ResponseOp", fields: &[
    choice("etcdserverpb.ResponseOp.response", 1, "response_range", "responseRange", Kind::Message(&ETCDSERVERPB_RANGERESPONSE)),
    choice("etcdserverpb.ResponseOp.response", 2, "response_put", "responsePut", Kind::Message(&ETCDSERVERPB_PUTRESPONSE)),
    choice("etcdserverpb.ResponseOp.response", 3, "response_delete_range", "responseDeleteRange", Kind::Message(&ETCDSERVERPB_DELETERANGERESPONSE)),
    choice("etcdserverpb.ResponseOp.response", 4, "response_txn", "responseTxn", Kind::Message(&ETCDSERVERPB_TXNRESPONSE)),
] };

pub static ETCDSERVERPB_COMPARE: Message = Message { name: "etcdserverpb.Compare", fields: &[
    one(1, "result", "result", Kind::Enum(ETCDSERVERPB_COMPARE_COMPARERESULT)),
    one(2, "target", "target", Kind::Enum(ETCDSERVERPB_COMPARE_COMPARETARGET)),
    one(3, "key", "key", Kind::Bytes),
    choice("etcdserverpb.Compare.target_union", 4, "version", "version", Kind::Int64),
    choice("etcdserverpb.Compare.target_union", 5, "create_revision", "createRevision", Kind::Int64),
    choice("etcdserverpb.Compare.target_union", 6, "mod_revision", "modRevision", Kind::Int64),
    choice("etcdserverpb.Compare.target_union", 7, "value", "value", Kind::Bytes),
    choice("etcdserverpb.Compare.target_union", 8, "lease", "lease", Kind::Int64),
    one(64, "range_end", "rangeEnd", Kind::Bytes),
] };

pub static ETCDSERVERPB_COMPARE_COMPARERESULT: &[(i32, &str)] = &[(0, "EQUAL"), (1, "GREATER"), (2, "LESS"), (3, "NOT_EQUAL")];

pub static ETCDSERVERPB_COMPARE_COMPARETARGET: &[(i32, &str)] = &[(0, "VERSION"), (1, "CREATE"), (2, "MOD"), (3, "VALUE"), (4, "LEASE")];

pub static ETCDSERVERPB_TXNREQUEST: Message = Message { name: "etcdserverpb.TxnRequest", fields: &[
    list(1, "compare", "compare", Kind::Message(&ETCDSERVERPB_COMPARE)),
    list(2, "success", "success", Kind::Message(&ETCDSERVERPB_REQUESTOP)),
    list(3, "failure", "failure", Kind::Message(&ETCDSERVERPB_REQUESTOP)),
] };

pub static ETCDSERVERPB_TXNRESPONSE: Message = Message { name: "etcdserverpb.TxnResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "succeeded", "succeeded", Kind::Bool),
    list(3, "responses", "responses", Kind::Message(&ETCDSERVERPB_RESPONSEOP)),
] };

pub static ETCDSERVERPB_COMPACTIONREQUEST: Message = Message { name: "etcdserverpb.CompactionRequest", fields: &[
    one(1, "revision", "revision", Kind::Int64),
    one(2, "physical", "physical", Kind::Bool),
] };

pub static ETCDSERVERPB_COMPACTIONRESPONSE: Message = Message { name: "etcdserverpb.CompactionResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_HASHREQUEST: Message = Message { name: "etcdserverpb.HashRequest", fields: &[
] };

pub static ETCDSERVERPB_HASHKVREQUEST: Message = Message { name: "etcdserverpb.HashKVRequest", fields: &[
    one(1, "revision", "revision", Kind::Int64),
] };

pub static ETCDSERVERPB_HASHKVRESPONSE: Message = Message { name: "etcdserverpb.HashKVResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "hash", "hash", Kind::Uint32),
    one(3, "compact_revision", "compactRevision", Kind::Int64),
    one(4, "hash_revision", "hashRevision", Kind::Int64),
] };

pub static ETCDSERVERPB_HASHRESPONSE: Message = Message { name: "etcdserverpb.HashResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "hash", "hash", Kind::Uint32),
] };

pub static ETCDSERVERPB_SNAPSHOTREQUEST: Message = Message { name: "etcdserverpb.SnapshotRequest", fields: &[
] };

pub static ETCDSERVERPB_SNAPSHOTRESPONSE: Message = Message { name: "etcdserverpb.SnapshotResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "remaining_bytes", "remainingBytes", Kind::Uint64),
    one(3, "blob", "blob", Kind::Bytes),
    one(4, "version", "version", Kind::String),
] };

pub static ETCDSERVERPB_WATCHREQUEST: Message = Message { name: "etcdserverpb.WatchRequest", fields: &[
    choice("etcdserverpb.WatchRequest.request_union", 1, "create_request", "createRequest", Kind::Message(&ETCDSERVERPB_WATCHCREATEREQUEST)),
    choice("etcdserverpb.WatchRequest.request_union", 2, "cancel_request", "cancelRequest", Kind::Message(&ETCDSERVERPB_WATCHCANCELREQUEST)),
    choice("etcdserverpb.WatchRequest.request_union", 3, "progress_request", "progressRequest", Kind::Message(&ETCDSERVERPB_WATCHPROGRESSREQUEST)),
] };

pub static ETCDSERVERPB_WATCHCREATEREQUEST: Message = Message { name: "etcdserverpb.WatchCreateRequest", fields: &[
    one(1, "key", "key", Kind::Bytes),
    one(2, "range_end", "rangeEnd", Kind::Bytes),
    one(3, "start_revision", "startRevision", Kind::Int64),
    one(4, "progress_notify", "progressNotify", Kind::Bool),
    list(5, "filters", "filters", Kind::Enum(ETCDSERVERPB_WATCHCREATEREQUEST_FILTERTYPE)),
    one(6, "prev_kv", "prevKv", Kind::Bool),
    one(7, "watch_id", "watchId", Kind::Int64),
    one(8, "fragment", "fragment", Kind::Bool),
] };

pub static ETCDSERVERPB_WATCHCREATEREQUEST_FILTERTYPE: &[(i32, &str)] = &[(0, "NOPUT"), (1, "NODELETE")];

pub static ETCDSERVERPB_WATCHCANCELREQUEST: Message = Message { name: "etcdserverpb.WatchCancelRequest", fields: &[
    one(1, "watch_id", "watchId", Kind::Int64),
] };

pub static ETCDSERVERPB_WATCHPROGRESSREQUEST: Message = Message { name: "etcdserverpb.WatchProgressRequest", fields: &[
] };

pub static ETCDSERVERPB_WATCHRESPONSE: Message = Message { name: "etcdserverpb.WatchResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "watch_id", "watchId", Kind::Int64),
    one(3, "created", "created", Kind::Bool),
    one(4, "canceled", "canceled", Kind::Bool),
    one(5, "compact_revision", "compactRevision", Kind::Int64),
    one(6, "cancel_reason", "cancelReason", Kind::String),
    one(7, "fragment", "fragment", Kind::Bool),
    list(11, "events", "events", Kind::Message(&MVCCPB_EVENT)),
] };

pub static ETCDSERVERPB_LEASEGRANTREQUEST: Message = Message { name: "etcdserverpb.LeaseGrantRequest", fields: &[
    one(1, "TTL", "TTL", Kind::Int64),
    one(2, "ID", "ID", Kind::Int64),
] };

pub static ETCDSERVERPB_LEASEGRANTRESPONSE: Message = Message { name: "etcdserverpb.LeaseGrantResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "ID", "ID", Kind::Int64),
    one(3, "TTL", "TTL", Kind::Int64),
    one(4, "error", "error", Kind::String),
] };

pub static ETCDSERVERPB_LEASEREVOKEREQUEST: Message = Message { name: "etcdserverpb.LeaseRevokeRequest", fields: &[
    one(1, "ID", "ID", Kind::Int64),
] };

pub static ETCDSERVERPB_LEASEREVOKERESPONSE: Message = Message { name: "etcdserverpb.LeaseRevokeResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_LEASECHECKPOINT: Message = Message { name: "etcdserverpb.LeaseCheckpoint", fields: &[
    one(1, "ID", "ID", Kind::Int64),
    one(2, "remaining_TTL", "remainingTTL", Kind::Int64),
] };

pub static ETCDSERVERPB_LEASECHECKPOINTREQUEST: Message = Message { name: "etcdserverpb.LeaseCheckpointRequest", fields: &[
    list(1, "checkpoints", "checkpoints", Kind::Message(&ETCDSERVERPB_LEASECHECKPOINT)),
] };

pub static ETCDSERVERPB_LEASECHECKPOINTRESPONSE: Message = Message { name: "etcdserverpb.LeaseCheckpointResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_LEASEKEEPALIVEREQUEST: Message = Message { name: "etcdserverpb.LeaseKeepAliveRequest", fields: &[
    one(1, "ID", "ID", Kind::Int64),
] };

pub static ETCDSERVERPB_LEASEKEEPALIVERESPONSE: Message = Message { name: "etcdserverpb.LeaseKeepAliveResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "ID", "ID", Kind::Int64),
    one(3, "TTL", "TTL", Kind::Int64),
] };

pub static ETCDSERVERPB_LEASETIMETOLIVEREQUEST: Message = Message { name: "etcdserverpb.LeaseTimeToLiveRequest", fields: &[
    one(1, "ID", "ID", Kind::Int64),
    one(2, "keys", "keys", Kind::Bool),
] };

pub static ETCDSERVERPB_LEASETIMETOLIVERESPONSE: Message = Message { name: "etcdserverpb.LeaseTimeToLiveResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "ID", "ID", Kind::Int64),
    one(3, "TTL", "TTL", Kind::Int64),
    one(4, "grantedTTL", "grantedTTL", Kind::Int64),
    list(5, "keys", "keys", Kind::Bytes),
] };

pub static ETCDSERVERPB_LEASELEASESREQUEST: Message = Message { name: "etcdserverpb.LeaseLeasesRequest", fields: &[
] };

pub static ETCDSERVERPB_LEASESTATUS: Message = Message { name: "etcdserverpb.LeaseStatus", fields: &[
    one(1, "ID", "ID", Kind::Int64),
] };

pub static ETCDSERVERPB_LEASELEASESRESPONSE: Message = Message { name: "etcdserverpb.LeaseLeasesResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "leases", "leases", Kind::Message(&ETCDSERVERPB_LEASESTATUS)),
] };

pub static ETCDSERVERPB_MEMBER: Message = Message { name: "etcdserverpb.Member", fields: &[
    one(1, "ID", "ID", Kind::Uint64),
    one(2, "name", "name", Kind::String),
    list(3, "peerURLs", "peerURLs", Kind::String),
    list(4, "clientURLs", "clientURLs", Kind::String),
    one(5, "isLearner", "isLearner", Kind::Bool),
] };

pub static ETCDSERVERPB_MEMBERADDREQUEST: Message = Message { name: "etcdserverpb.MemberAddRequest", fields: &[
    list(1, "peerURLs", "peerURLs", Kind::String),
    one(2, "isLearner", "isLearner", Kind::Bool),
] };

pub static ETCDSERVERPB_MEMBERADDRESPONSE: Message = Message { name: "etcdserverpb.MemberAddResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "member", "member", Kind::Message(&ETCDSERVERPB_MEMBER)),
    list(3, "members", "members", Kind::Message(&ETCDSERVERPB_MEMBER)),
] };

pub static ETCDSERVERPB_MEMBERREMOVEREQUEST: Message = Message { name: "etcdserverpb.MemberRemoveRequest", fields: &[
    one(1, "ID", "ID", Kind::Uint64),
] };

pub static ETCDSERVERPB_MEMBERREMOVERESPONSE: Message = Message { name: "etcdserverpb.MemberRemoveResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "members", "members", Kind::Message(&ETCDSERVERPB_MEMBER)),
] };

pub static ETCDSERVERPB_MEMBERUPDATEREQUEST: Message = Message { name: "etcdserverpb.MemberUpdateRequest", fields: &[
    one(1, "ID", "ID", Kind::Uint64),
    list(2, "peerURLs", "peerURLs", Kind::String),
] };

pub static ETCDSERVERPB_MEMBERUPDATERESPONSE: Message = Message { name: "etcdserverpb.MemberUpdateResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "members", "members", Kind::Message(&ETCDSERVERPB_MEMBER)),
] };

pub static ETCDSERVERPB_MEMBERLISTREQUEST: Message = Message { name: "etcdserverpb.MemberListRequest", fields: &[
    one(1, "linearizable", "linearizable", Kind::Bool),
] };

pub static ETCDSERVERPB_MEMBERLISTRESPONSE: Message = Message { name: "etcdserverpb.MemberListResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "members", "members", Kind::Message(&ETCDSERVERPB_MEMBER)),
] };

pub static ETCDSERVERPB_MEMBERPROMOTEREQUEST: Message = Message { name: "etcdserverpb.MemberPromoteRequest", fields: &[
    one(1, "ID", "ID", Kind::Uint64),
] };

pub static ETCDSERVERPB_MEMBERPROMOTERESPONSE: Message = Message { name: "etcdserverpb.MemberPromoteResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "members", "members", Kind::Message(&ETCDSERVERPB_MEMBER)),
] };

pub static ETCDSERVERPB_DEFRAGMENTREQUEST: Message = Message { name: "etcdserverpb.DefragmentRequest", fields: &[
] };

pub static ETCDSERVERPB_DEFRAGMENTRESPONSE: Message = Message { name: "etcdserverpb.DefragmentResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_MOVELEADERREQUEST: Message = Message { name: "etcdserverpb.MoveLeaderRequest", fields: &[
    one(1, "targetID", "targetID", Kind::Uint64),
] };

pub static ETCDSERVERPB_MOVELEADERRESPONSE: Message = Message { name: "etcdserverpb.MoveLeaderResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_ALARMREQUEST: Message = Message { name: "etcdserverpb.AlarmRequest", fields: &[
    one(1, "action", "action", Kind::Enum(ETCDSERVERPB_ALARMREQUEST_ALARMACTION)),
    one(2, "memberID", "memberID", Kind::Uint64),
    one(3, "alarm", "alarm", Kind::Enum(ETCDSERVERPB_ALARMTYPE)),
] };

pub static ETCDSERVERPB_ALARMREQUEST_ALARMACTION: &[(i32, &str)] = &[(0, "GET"), (1, "ACTIVATE"), (2, "DEACTIVATE")];

pub static ETCDSERVERPB_ALARMMEMBER: Message = Message { name: "etcdserverpb.AlarmMember", fields: &[
    one(1, "memberID", "memberID", Kind::Uint64),
    one(2, "alarm", "alarm", Kind::Enum(ETCDSERVERPB_ALARMTYPE)),
] };

pub static ETCDSERVERPB_ALARMRESPONSE: Message = Message { name: "etcdserverpb.AlarmResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "alarms", "alarms", Kind::Message(&ETCDSERVERPB_ALARMMEMBER)),
] };

pub static ETCDSERVERPB_DOWNGRADEREQUEST: Message = Message { name: "etcdserverpb.DowngradeRequest", fields: &[
    one(1, "action", "action", Kind::Enum(ETCDSERVERPB_DOWNGRADEREQUEST_DOWNGRADEACTION)),
    one(2, "version", "version", Kind::String),
] };

pub static ETCDSERVERPB_DOWNGRADEREQUEST_DOWNGRADEACTION: &[(i32, &str)] = &[(0, "VALIDATE"), (1, "ENABLE"), (2, "CANCEL")];

pub static ETCDSERVERPB_DOWNGRADERESPONSE: Message = Message { name: "etcdserverpb.DowngradeResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "version", "version", Kind::String),
] };

pub static ETCDSERVERPB_DOWNGRADEVERSIONTESTREQUEST: Message = Message { name: "etcdserverpb.DowngradeVersionTestRequest", fields: &[
    one(1, "ver", "ver", Kind::String),
] };

pub static ETCDSERVERPB_STATUSREQUEST: Message = Message { name: "etcdserverpb.StatusRequest", fields: &[
] };

pub static ETCDSERVERPB_STATUSRESPONSE: Message = Message { name: "etcdserverpb.StatusResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "version", "version", Kind::String),
    one(3, "dbSize", "dbSize", Kind::Int64),
    one(4, "leader", "leader", Kind::Uint64),
    one(5, "raftIndex", "raftIndex", Kind::Uint64),
    one(6, "raftTerm", "raftTerm", Kind::Uint64),
    one(7, "raftAppliedIndex", "raftAppliedIndex", Kind::Uint64),
    list(8, "errors", "errors", Kind::String),
    one(9, "dbSizeInUse", "dbSizeInUse", Kind::Int64),
    one(10, "isLearner", "isLearner", Kind::Bool),
    one(11, "storageVersion", "storageVersion", Kind::String),
    one(12, "dbSizeQuota", "dbSizeQuota", Kind::Int64),
    one(13, "downgradeInfo", "downgradeInfo", Kind::Message(&ETCDSERVERPB_DOWNGRADEINFO)),
] };

pub static ETCDSERVERPB_DOWNGRADEINFO: Message = Message { name: "etcdserverpb.DowngradeInfo", fields: &[
    one(1, "enabled", "enabled", Kind::Bool),
    one(2, "targetVersion", "targetVersion", Kind::String),
] };

pub static ETCDSERVERPB_AUTHENABLEREQUEST: Message = Message { name: "etcdserverpb.AuthEnableRequest", fields: &[
] };

pub static ETCDSERVERPB_AUTHDISABLEREQUEST: Message = Message { name: "etcdserverpb.AuthDisableRequest", fields: &[
] };

pub static ETCDSERVERPB_AUTHSTATUSREQUEST: Message = Message { name: "etcdserverpb.AuthStatusRequest", fields: &[
] };

pub static ETCDSERVERPB_AUTHENTICATEREQUEST: Message = Message { name: "etcdserverpb.AuthenticateRequest", fields: &[
    one(1, "name", "name", Kind::String),
    one(2, "password", "password", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERADDREQUEST: Message = Message { name: "etcdserverpb.AuthUserAddRequest", fields: &[
    one(1, "name", "name", Kind::String),
    one(2, "password", "password", Kind::String),
    one(3, "options", "options", Kind::Message(&AUTHPB_USERADDOPTIONS)),
    one(4, "hashedPassword", "hashedPassword", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERGETREQUEST: Message = Message { name: "etcdserverpb.AuthUserGetRequest", fields: &[
    one(1, "name", "name", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERDELETEREQUEST: Message = Message { name: "etcdserverpb.AuthUserDeleteRequest", fields: &[
    one(1, "name", "name", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERCHANGEPASSWORDREQUEST: Message = Message { name: "etcdserverpb.AuthUserChangePasswordRequest", fields: &[
    one(1, "name", "name", Kind::String),
    one(2, "password", "password", Kind::String),
    one(3, "hashedPassword", "hashedPassword", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERGRANTROLEREQUEST: Message = Message { name: "etcdserverpb.AuthUserGrantRoleRequest", fields: &[
    one(1, "user", "user", Kind::String),
    one(2, "role", "role", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERREVOKEROLEREQUEST: Message = Message { name: "etcdserverpb.AuthUserRevokeRoleRequest", fields: &[
    one(1, "name", "name", Kind::String),
    one(2, "role", "role", Kind::String),
] };

pub static ETCDSERVERPB_AUTHROLEADDREQUEST: Message = Message { name: "etcdserverpb.AuthRoleAddRequest", fields: &[
    one(1, "name", "name", Kind::String),
] };

pub static ETCDSERVERPB_AUTHROLEGETREQUEST: Message = Message { name: "etcdserverpb.AuthRoleGetRequest", fields: &[
    one(1, "role", "role", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERLISTREQUEST: Message = Message { name: "etcdserverpb.AuthUserListRequest", fields: &[
] };

pub static ETCDSERVERPB_AUTHROLELISTREQUEST: Message = Message { name: "etcdserverpb.AuthRoleListRequest", fields: &[
] };

pub static ETCDSERVERPB_AUTHROLEDELETEREQUEST: Message = Message { name: "etcdserverpb.AuthRoleDeleteRequest", fields: &[
    one(1, "role", "role", Kind::String),
] };

pub static ETCDSERVERPB_AUTHROLEGRANTPERMISSIONREQUEST: Message = Message { name: "etcdserverpb.AuthRoleGrantPermissionRequest", fields: &[
    one(1, "name", "name", Kind::String),
    one(2, "perm", "perm", Kind::Message(&AUTHPB_PERMISSION)),
] };

pub static ETCDSERVERPB_AUTHROLEREVOKEPERMISSIONREQUEST: Message = Message { name: "etcdserverpb.AuthRoleRevokePermissionRequest", fields: &[
    one(1, "role", "role", Kind::String),
    one(2, "key", "key", Kind::Bytes),
    one(3, "range_end", "rangeEnd", Kind::Bytes),
] };

pub static ETCDSERVERPB_AUTHENABLERESPONSE: Message = Message { name: "etcdserverpb.AuthEnableResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHDISABLERESPONSE: Message = Message { name: "etcdserverpb.AuthDisableResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHSTATUSRESPONSE: Message = Message { name: "etcdserverpb.AuthStatusResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "enabled", "enabled", Kind::Bool),
    one(3, "authRevision", "authRevision", Kind::Uint64),
] };

pub static ETCDSERVERPB_AUTHENTICATERESPONSE: Message = Message { name: "etcdserverpb.AuthenticateResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "token", "token", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERADDRESPONSE: Message = Message { name: "etcdserverpb.AuthUserAddResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHUSERGETRESPONSE: Message = Message { name: "etcdserverpb.AuthUserGetResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "roles", "roles", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERDELETERESPONSE: Message = Message { name: "etcdserverpb.AuthUserDeleteResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHUSERCHANGEPASSWORDRESPONSE: Message = Message { name: "etcdserverpb.AuthUserChangePasswordResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHUSERGRANTROLERESPONSE: Message = Message { name: "etcdserverpb.AuthUserGrantRoleResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHUSERREVOKEROLERESPONSE: Message = Message { name: "etcdserverpb.AuthUserRevokeRoleResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHROLEADDRESPONSE: Message = Message { name: "etcdserverpb.AuthRoleAddResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHROLEGETRESPONSE: Message = Message { name: "etcdserverpb.AuthRoleGetResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "perm", "perm", Kind::Message(&AUTHPB_PERMISSION)),
] };

pub static ETCDSERVERPB_AUTHROLELISTRESPONSE: Message = Message { name: "etcdserverpb.AuthRoleListResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "roles", "roles", Kind::String),
] };

pub static ETCDSERVERPB_AUTHUSERLISTRESPONSE: Message = Message { name: "etcdserverpb.AuthUserListResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    list(2, "users", "users", Kind::String),
] };

pub static ETCDSERVERPB_AUTHROLEDELETERESPONSE: Message = Message { name: "etcdserverpb.AuthRoleDeleteResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHROLEGRANTPERMISSIONRESPONSE: Message = Message { name: "etcdserverpb.AuthRoleGrantPermissionResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_AUTHROLEREVOKEPERMISSIONRESPONSE: Message = Message { name: "etcdserverpb.AuthRoleRevokePermissionResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static ETCDSERVERPB_RANGESTREAMRESPONSE: Message = Message { name: "etcdserverpb.RangeStreamResponse", fields: &[
    one(1, "range_response", "rangeResponse", Kind::Message(&ETCDSERVERPB_RANGERESPONSE)),
] };

pub static ETCDSERVERPB_ALARMTYPE: &[(i32, &str)] = &[(0, "NONE"), (1, "NOSPACE"), (2, "CORRUPT")];

pub static GRPC_HEALTH_V1_HEALTHCHECKREQUEST: Message = Message { name: "grpc.health.v1.HealthCheckRequest", fields: &[
    one(1, "service", "service", Kind::String),
] };

pub static GRPC_HEALTH_V1_HEALTHCHECKRESPONSE: Message = Message { name: "grpc.health.v1.HealthCheckResponse", fields: &[
    one(1, "status", "status", Kind::Enum(GRPC_HEALTH_V1_HEALTHCHECKRESPONSE_SERVINGSTATUS)),
] };

pub static GRPC_HEALTH_V1_HEALTHCHECKRESPONSE_SERVINGSTATUS: &[(i32, &str)] = &[(0, "UNKNOWN"), (1, "SERVING"), (2, "NOT_SERVING"), (3, "SERVICE_UNKNOWN")];

pub static GRPC_HEALTH_V1_HEALTHLISTREQUEST: Message = Message { name: "grpc.health.v1.HealthListRequest", fields: &[
] };

pub static GRPC_HEALTH_V1_HEALTHLISTRESPONSE: Message = Message { name: "grpc.health.v1.HealthListResponse", fields: &[
    list(1, "statuses", "statuses", Kind::Message(&GRPC_HEALTH_V1_HEALTHLISTRESPONSE_STATUSESENTRY)),
] };

pub static GRPC_HEALTH_V1_HEALTHLISTRESPONSE_STATUSESENTRY: Message = Message { name: "grpc.health.v1.HealthListResponse.StatusesEntry", fields: &[
    one(1, "key", "key", Kind::String),
    one(2, "value", "value", Kind::Message(&GRPC_HEALTH_V1_HEALTHCHECKRESPONSE)),
] };

pub static V3ELECTIONPB_CAMPAIGNREQUEST: Message = Message { name: "v3electionpb.CampaignRequest", fields: &[
    one(1, "name", "name", Kind::Bytes),
    one(2, "lease", "lease", Kind::Int64),
    one(3, "value", "value", Kind::Bytes),
] };

pub static V3ELECTIONPB_CAMPAIGNRESPONSE: Message = Message { name: "v3electionpb.CampaignResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "leader", "leader", Kind::Message(&V3ELECTIONPB_LEADERKEY)),
] };

pub static V3ELECTIONPB_LEADERKEY: Message = Message { name: "v3electionpb.LeaderKey", fields: &[
    one(1, "name", "name", Kind::Bytes),
    one(2, "key", "key", Kind::Bytes),
    one(3, "rev", "rev", Kind::Int64),
    one(4, "lease", "lease", Kind::Int64),
] };

pub static V3ELECTIONPB_LEADERREQUEST: Message = Message { name: "v3electionpb.LeaderRequest", fields: &[
    one(1, "name", "name", Kind::Bytes),
] };

pub static V3ELECTIONPB_LEADERRESPONSE: Message = Message { name: "v3electionpb.LeaderResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "kv", "kv", Kind::Message(&MVCCPB_KEYVALUE)),
] };

pub static V3ELECTIONPB_RESIGNREQUEST: Message = Message { name: "v3electionpb.ResignRequest", fields: &[
    one(1, "leader", "leader", Kind::Message(&V3ELECTIONPB_LEADERKEY)),
] };

pub static V3ELECTIONPB_RESIGNRESPONSE: Message = Message { name: "v3electionpb.ResignResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static V3ELECTIONPB_PROCLAIMREQUEST: Message = Message { name: "v3electionpb.ProclaimRequest", fields: &[
    one(1, "leader", "leader", Kind::Message(&V3ELECTIONPB_LEADERKEY)),
    one(2, "value", "value", Kind::Bytes),
] };

pub static V3ELECTIONPB_PROCLAIMRESPONSE: Message = Message { name: "v3electionpb.ProclaimResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static V3LOCKPB_LOCKREQUEST: Message = Message { name: "v3lockpb.LockRequest", fields: &[
    one(1, "name", "name", Kind::Bytes),
    one(2, "lease", "lease", Kind::Int64),
] };

pub static V3LOCKPB_LOCKRESPONSE: Message = Message { name: "v3lockpb.LockResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
    one(2, "key", "key", Kind::Bytes),
] };

pub static V3LOCKPB_UNLOCKREQUEST: Message = Message { name: "v3lockpb.UnlockRequest", fields: &[
    one(1, "key", "key", Kind::Bytes),
] };

pub static V3LOCKPB_UNLOCKRESPONSE: Message = Message { name: "v3lockpb.UnlockResponse", fields: &[
    one(1, "header", "header", Kind::Message(&ETCDSERVERPB_RESPONSEHEADER)),
] };

pub static METHODS: &[Method] = &[
    Method { path: "/etcdserverpb.KV/Range", input: &ETCDSERVERPB_RANGEREQUEST, output: &ETCDSERVERPB_RANGERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.KV/RangeStream", input: &ETCDSERVERPB_RANGEREQUEST, output: &ETCDSERVERPB_RANGESTREAMRESPONSE, takes_many: false, gives_many: true },
    Method { path: "/etcdserverpb.KV/Put", input: &ETCDSERVERPB_PUTREQUEST, output: &ETCDSERVERPB_PUTRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.KV/DeleteRange", input: &ETCDSERVERPB_DELETERANGEREQUEST, output: &ETCDSERVERPB_DELETERANGERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.KV/Txn", input: &ETCDSERVERPB_TXNREQUEST, output: &ETCDSERVERPB_TXNRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.KV/Compact", input: &ETCDSERVERPB_COMPACTIONREQUEST, output: &ETCDSERVERPB_COMPACTIONRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Watch/Watch", input: &ETCDSERVERPB_WATCHREQUEST, output: &ETCDSERVERPB_WATCHRESPONSE, takes_many: true, gives_many: true },
    Method { path: "/etcdserverpb.Lease/LeaseGrant", input: &ETCDSERVERPB_LEASEGRANTREQUEST, output: &ETCDSERVERPB_LEASEGRANTRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Lease/LeaseRevoke", input: &ETCDSERVERPB_LEASEREVOKEREQUEST, output: &ETCDSERVERPB_LEASEREVOKERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Lease/LeaseKeepAlive", input: &ETCDSERVERPB_LEASEKEEPALIVEREQUEST, output: &ETCDSERVERPB_LEASEKEEPALIVERESPONSE, takes_many: true, gives_many: true },
    Method { path: "/etcdserverpb.Lease/LeaseTimeToLive", input: &ETCDSERVERPB_LEASETIMETOLIVEREQUEST, output: &ETCDSERVERPB_LEASETIMETOLIVERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Lease/LeaseLeases", input: &ETCDSERVERPB_LEASELEASESREQUEST, output: &ETCDSERVERPB_LEASELEASESRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Cluster/MemberAdd", input: &ETCDSERVERPB_MEMBERADDREQUEST, output: &ETCDSERVERPB_MEMBERADDRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Cluster/MemberRemove", input: &ETCDSERVERPB_MEMBERREMOVEREQUEST, output: &ETCDSERVERPB_MEMBERREMOVERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Cluster/MemberUpdate", input: &ETCDSERVERPB_MEMBERUPDATEREQUEST, output: &ETCDSERVERPB_MEMBERUPDATERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Cluster/MemberList", input: &ETCDSERVERPB_MEMBERLISTREQUEST, output: &ETCDSERVERPB_MEMBERLISTRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Cluster/MemberPromote", input: &ETCDSERVERPB_MEMBERPROMOTEREQUEST, output: &ETCDSERVERPB_MEMBERPROMOTERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Maintenance/Alarm", input: &ETCDSERVERPB_ALARMREQUEST, output: &ETCDSERVERPB_ALARMRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Maintenance/Status", input: &ETCDSERVERPB_STATUSREQUEST, output: &ETCDSERVERPB_STATUSRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Maintenance/Defragment", input: &ETCDSERVERPB_DEFRAGMENTREQUEST, output: &ETCDSERVERPB_DEFRAGMENTRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Maintenance/Hash", input: &ETCDSERVERPB_HASHREQUEST, output: &ETCDSERVERPB_HASHRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Maintenance/HashKV", input: &ETCDSERVERPB_HASHKVREQUEST, output: &ETCDSERVERPB_HASHKVRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Maintenance/Snapshot", input: &ETCDSERVERPB_SNAPSHOTREQUEST, output: &ETCDSERVERPB_SNAPSHOTRESPONSE, takes_many: false, gives_many: true },
    Method { path: "/etcdserverpb.Maintenance/MoveLeader", input: &ETCDSERVERPB_MOVELEADERREQUEST, output: &ETCDSERVERPB_MOVELEADERRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Maintenance/Downgrade", input: &ETCDSERVERPB_DOWNGRADEREQUEST, output: &ETCDSERVERPB_DOWNGRADERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/AuthEnable", input: &ETCDSERVERPB_AUTHENABLEREQUEST, output: &ETCDSERVERPB_AUTHENABLERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/AuthDisable", input: &ETCDSERVERPB_AUTHDISABLEREQUEST, output: &ETCDSERVERPB_AUTHDISABLERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/AuthStatus", input: &ETCDSERVERPB_AUTHSTATUSREQUEST, output: &ETCDSERVERPB_AUTHSTATUSRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/Authenticate", input: &ETCDSERVERPB_AUTHENTICATEREQUEST, output: &ETCDSERVERPB_AUTHENTICATERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/UserAdd", input: &ETCDSERVERPB_AUTHUSERADDREQUEST, output: &ETCDSERVERPB_AUTHUSERADDRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/UserGet", input: &ETCDSERVERPB_AUTHUSERGETREQUEST, output: &ETCDSERVERPB_AUTHUSERGETRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/UserList", input: &ETCDSERVERPB_AUTHUSERLISTREQUEST, output: &ETCDSERVERPB_AUTHUSERLISTRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/UserDelete", input: &ETCDSERVERPB_AUTHUSERDELETEREQUEST, output: &ETCDSERVERPB_AUTHUSERDELETERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/UserChangePassword", input: &ETCDSERVERPB_AUTHUSERCHANGEPASSWORDREQUEST, output: &ETCDSERVERPB_AUTHUSERCHANGEPASSWORDRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/UserGrantRole", input: &ETCDSERVERPB_AUTHUSERGRANTROLEREQUEST, output: &ETCDSERVERPB_AUTHUSERGRANTROLERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/UserRevokeRole", input: &ETCDSERVERPB_AUTHUSERREVOKEROLEREQUEST, output: &ETCDSERVERPB_AUTHUSERREVOKEROLERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/RoleAdd", input: &ETCDSERVERPB_AUTHROLEADDREQUEST, output: &ETCDSERVERPB_AUTHROLEADDRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/RoleGet", input: &ETCDSERVERPB_AUTHROLEGETREQUEST, output: &ETCDSERVERPB_AUTHROLEGETRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/RoleList", input: &ETCDSERVERPB_AUTHROLELISTREQUEST, output: &ETCDSERVERPB_AUTHROLELISTRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/RoleDelete", input: &ETCDSERVERPB_AUTHROLEDELETEREQUEST, output: &ETCDSERVERPB_AUTHROLEDELETERESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/RoleGrantPermission", input: &ETCDSERVERPB_AUTHROLEGRANTPERMISSIONREQUEST, output: &ETCDSERVERPB_AUTHROLEGRANTPERMISSIONRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/etcdserverpb.Auth/RoleRevokePermission", input: &ETCDSERVERPB_AUTHROLEREVOKEPERMISSIONREQUEST, output: &ETCDSERVERPB_AUTHROLEREVOKEPERMISSIONRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/grpc.health.v1.Health/Check", input: &GRPC_HEALTH_V1_HEALTHCHECKREQUEST, output: &GRPC_HEALTH_V1_HEALTHCHECKRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/grpc.health.v1.Health/List", input: &GRPC_HEALTH_V1_HEALTHLISTREQUEST, output: &GRPC_HEALTH_V1_HEALTHLISTRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/grpc.health.v1.Health/Watch", input: &GRPC_HEALTH_V1_HEALTHCHECKREQUEST, output: &GRPC_HEALTH_V1_HEALTHCHECKRESPONSE, takes_many: false, gives_many: true },
    Method { path: "/v3electionpb.Election/Campaign", input: &V3ELECTIONPB_CAMPAIGNREQUEST, output: &V3ELECTIONPB_CAMPAIGNRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/v3electionpb.Election/Proclaim", input: &V3ELECTIONPB_PROCLAIMREQUEST, output: &V3ELECTIONPB_PROCLAIMRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/v3electionpb.Election/Leader", input: &V3ELECTIONPB_LEADERREQUEST, output: &V3ELECTIONPB_LEADERRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/v3electionpb.Election/Observe", input: &V3ELECTIONPB_LEADERREQUEST, output: &V3ELECTIONPB_LEADERRESPONSE, takes_many: false, gives_many: true },
    Method { path: "/v3electionpb.Election/Resign", input: &V3ELECTIONPB_RESIGNREQUEST, output: &V3ELECTIONPB_RESIGNRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/v3lockpb.Lock/Lock", input: &V3LOCKPB_LOCKREQUEST, output: &V3LOCKPB_LOCKRESPONSE, takes_many: false, gives_many: false },
    Method { path: "/v3lockpb.Lock/Unlock", input: &V3LOCKPB_UNLOCKREQUEST, output: &V3LOCKPB_UNLOCKRESPONSE, takes_many: false, gives_many: false },
];
