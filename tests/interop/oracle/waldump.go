package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"unicode/utf8"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

type walEntry struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	Type  string `json:"type"` // EntryNormal, EntryConfChange, EntryConfChangeV2
	Len   int    `json:"data_len"`
	Sum   string `json:"data_sha256"`
	// Of normal entries: "noop", "v2", "undecodable", or the request's fields,
	// as put, txn, lease_grant; joined with "+" should there be several.
	Kind       string      `json:"kind,omitempty"`
	RequestID  uint64      `json:"request_id,omitempty"`
	Username   string      `json:"username,omitempty"`
	V2         *walV2      `json:"v2,omitempty"`
	ConfChange *walConf    `json:"conf_change,omitempty"`
	ChangesV2  []walConfV2 `json:"conf_changes_v2,omitempty"`
}

type walV2 struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Val    string `json:"val"`
}

type walConf struct {
	ID      uint64 `json:"id"`
	Type    string `json:"type"`
	NodeID  string `json:"node_id"`
	Context any    `json:"context"`
}

type walConfV2 struct {
	Type   string `json:"type"`
	NodeID string `json:"node_id"`
}

type walConfState struct {
	Voters    []string `json:"voters"`
	Learners  []string `json:"learners"`
	Outgoing  []string `json:"voters_outgoing"`
	Next      []string `json:"learners_next"`
	AutoLeave bool     `json:"auto_leave"`
}

type walSnapRecord struct {
	Index     uint64        `json:"index"`
	Term      uint64        `json:"term"`
	ConfState *walConfState `json:"conf_state"`
}

type walSnapFile struct {
	File      string       `json:"file"`
	Index     uint64       `json:"index"`
	Term      uint64       `json:"term"`
	ConfState walConfState `json:"conf_state"`
	Data      any          `json:"data"` // JSON as it is, anything else as base64 text
}

type walDump struct {
	Files     []string        `json:"wal_files"`
	NodeID    string          `json:"node_id"`
	ClusterID string          `json:"cluster_id"`
	HardState *walHardState   `json:"hard_state"`
	Snapshots []walSnapRecord `json:"snapshots"`     // the valid ones
	After     uint64          `json:"entries_after"` // entries up to this index were not read
	Entries   []walEntry      `json:"entries"`
	Error     string          `json:"error,omitempty"` // why reading ended before the end
	SnapFile  *walSnapFile    `json:"snap,omitempty"`  // the newest readable one
}

type walHardState struct {
	Term   uint64 `json:"term"`
	Vote   string `json:"vote"`
	Commit uint64 `json:"commit"`
}

func hexIDs(ids []uint64) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = hexID(id)
	}
	return out
}

func confState(c *raftpb.ConfState) walConfState {
	return walConfState{hexIDs(c.Voters), hexIDs(c.Learners), hexIDs(c.VotersOutgoing), hexIDs(c.LearnersNext), c.AutoLeave}
}

// jsonOrBase64 passes JSON on and wraps everything else.
func jsonOrBase64(b []byte) any {
	switch {
	case len(b) == 0:
		return nil
	case json.Valid(b):
		return json.RawMessage(b)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// requestKind names the fields of a request that are set, by the names they
// have in etcd's protocol files.
func requestKind(r *pb.InternalRaftRequest) string {
	v := reflect.ValueOf(r).Elem()
	var kinds []string
	for i := 0; i < v.NumField(); i++ {
		f := v.Type().Field(i)
		if f.Name == "Header" || v.Field(i).Kind() != reflect.Pointer || v.Field(i).IsNil() {
			continue
		}
		for _, part := range strings.Split(f.Tag.Get("protobuf"), ",") {
			if name, ok := strings.CutPrefix(part, "name="); ok {
				kinds = append(kinds, name)
			}
		}
	}
	if len(kinds) == 0 {
		return "empty"
	}
	return strings.Join(kinds, "+")
}

func describeEntry(e raftpb.Entry) walEntry {
	sum := sha256.Sum256(e.Data)
	w := walEntry{Index: e.Index, Term: e.Term, Type: e.Type.String(), Len: len(e.Data), Sum: hex.EncodeToString(sum[:])}
	switch e.Type {
	case raftpb.EntryConfChange:
		var cc raftpb.ConfChange
		if err := cc.Unmarshal(e.Data); err != nil {
			w.Kind = "undecodable"
			break
		}
		w.ConfChange = &walConf{cc.ID, cc.Type.String(), hexID(cc.NodeID), jsonOrBase64(cc.Context)}
	case raftpb.EntryConfChangeV2:
		var cc raftpb.ConfChangeV2
		if err := cc.Unmarshal(e.Data); err != nil {
			w.Kind = "undecodable"
			break
		}
		for _, c := range cc.Changes {
			w.ChangesV2 = append(w.ChangesV2, walConfV2{c.Type.String(), hexID(c.NodeID)})
		}
	default:
		if len(e.Data) == 0 {
			w.Kind = "noop"
			break
		}
		var r pb.InternalRaftRequest
		if err := r.Unmarshal(e.Data); err == nil {
			w.Kind, w.RequestID = requestKind(&r), r.ID
			if r.Header != nil {
				w.RequestID, w.Username = r.Header.ID, r.Header.Username
			}
			break
		}
		var v2 pb.Request
		if err := v2.Unmarshal(e.Data); err == nil && utf8.ValidString(v2.Path) {
			w.Kind, w.RequestID, w.V2 = "v2", v2.ID, &walV2{v2.Method, v2.Path, v2.Val}
			break
		}
		w.Kind = "undecodable"
	}
	return w
}

func runWaldump(args []string) error {
	fs := newFlags("waldump")
	walDir := fs.String("wal-dir", "", "where the WAL is, when not in MEMBERDIR/wal")
	rest, err := parseFlags(fs, args, 1, 1)
	if err != nil {
		return err
	}
	dir := rest[0]
	// Allow the data directory itself, too.
	if st, err := os.Stat(filepath.Join(dir, "member")); err == nil && st.IsDir() {
		dir = filepath.Join(dir, "member")
	}
	if *walDir == "" {
		*walDir = filepath.Join(dir, "wal")
	}
	d, err := dumpWAL(*walDir)
	if err != nil {
		return err
	}
	if d.SnapFile, err = newestSnap(filepath.Join(dir, "snap")); err != nil {
		return err
	}
	return printJSON(d)
}

func dumpWAL(dir string) (*walDump, error) {
	lg := zap.NewNop()
	found, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no .wal file in %s", dir)
	}
	sort.Strings(found)
	d := &walDump{Snapshots: []walSnapRecord{}, Entries: []walEntry{}}
	for _, f := range found {
		d.Files = append(d.Files, filepath.Base(f))
	}
	// Old segments may be gone: start where the first one left does. The name
	// holds the index of its first entry, and reading starts after an index, so
	// that one entry is not shown then.
	var seq, first uint64
	if _, err := fmt.Sscanf(d.Files[0], "%016x-%016x.wal", &seq, &first); err != nil {
		return nil, fmt.Errorf("odd file name %s", d.Files[0])
	}
	start := walpb.Snapshot{Index: first}
	d.After = first
	w, err := wal.OpenForRead(lg, dir, start)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	meta, hs, ents, err := w.ReadAll()
	// Without a matching snapshot record everything is still read.
	if err != nil && !errors.Is(err, wal.ErrSnapshotNotFound) {
		d.Error = err.Error()
	}
	var m pb.Metadata
	if err := m.Unmarshal(meta); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	d.NodeID, d.ClusterID = hexID(m.NodeID), hexID(m.ClusterID)
	d.HardState = &walHardState{hs.Term, hexID(hs.Vote), hs.Commit}
	for _, e := range ents {
		d.Entries = append(d.Entries, describeEntry(e))
	}
	snaps, err := wal.ValidSnapshotEntries(lg, dir)
	if err != nil && d.Error == "" {
		d.Error = err.Error()
	}
	for _, s := range snaps {
		r := walSnapRecord{Index: s.Index, Term: s.Term}
		if s.ConfState != nil {
			c := confState(s.ConfState)
			r.ConfState = &c
		}
		d.Snapshots = append(d.Snapshots, r)
	}
	return d, nil
}

func newestSnap(dir string) (*walSnapFile, error) {
	found, err := filepath.Glob(filepath.Join(dir, "*.snap"))
	if err != nil {
		return nil, err
	}
	sort.Sort(sort.Reverse(sort.StringSlice(found)))
	for _, path := range found {
		s, err := snap.Read(zap.NewNop(), path)
		if err != nil {
			continue
		}
		return &walSnapFile{filepath.Base(path), s.Metadata.Index, s.Metadata.Term, confState(&s.Metadata.ConfState), jsonOrBase64(s.Data)}, nil
	}
	return nil, nil
}
