package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

type walRead struct {
	Dir     string `json:"dir"`
	Outcome string `json:"outcome"` // as-is, after-repair, refused
	Error   string `json:"error,omitempty"`
	Start   uint64 `json:"start"` // index of the snapshot record that reading began at
	Entries int    `json:"entries"`
	Last    uint64 `json:"last"` // index of the last entry, 0 for none
	Term    uint64 `json:"term"`
	Commit  uint64 `json:"commit"`
	NodeID  string `json:"node_id"`
	Sum     string `json:"sha256"` // over the entries after the start
}

// runWalread opens each WAL directory for writing, as a server does, with the
// one repair that a server tries. It CHANGES the directories.
func runWalread(args []string) error {
	fs := newFlags("walread")
	dirs, err := parseFlags(fs, args, 1, -1)
	if err != nil {
		return err
	}
	// A prepared next segment of full size would be made for each of them.
	wal.SegmentSizeBytes = 4096
	out := json.NewEncoder(os.Stdout)
	for _, dir := range dirs {
		if err := out.Encode(readAsServer(dir)); err != nil {
			return err
		}
	}
	return nil
}

func readAsServer(dir string) (r walRead) {
	r.Dir, r.Outcome = dir, "as-is"
	defer func() {
		if p := recover(); p != nil {
			r.Outcome, r.Error = "refused", fmt.Sprintf("panic: %v", p)
		}
	}()
	lg := zap.NewNop()
	refuse := func(err error) walRead {
		r.Outcome, r.Error = "refused", err.Error()
		return r
	}
	snaps, err := wal.ValidSnapshotEntries(lg, dir)
	if err != nil {
		return refuse(err)
	}
	var start walpb.Snapshot
	if len(snaps) > 0 {
		start = walpb.Snapshot{Index: snaps[len(snaps)-1].Index, Term: snaps[len(snaps)-1].Term}
	}
	r.Start = start.Index
	for {
		meta, state, ents, err := openOnce(lg, dir, start)
		if err == nil || errors.Is(err, wal.ErrSnapshotNotFound) {
			return describeRead(r, meta, state, ents)
		}
		if r.Outcome == "after-repair" || !errors.Is(err, io.ErrUnexpectedEOF) || !wal.Repair(lg, dir) {
			return refuse(err)
		}
		r.Outcome = "after-repair"
	}
}

func openOnce(lg *zap.Logger, dir string, start walpb.Snapshot) ([]byte, raftpb.HardState, []raftpb.Entry, error) {
	w, err := wal.Open(lg, dir, start)
	if err != nil {
		return nil, raftpb.HardState{}, nil, err
	}
	defer w.Close()
	return w.ReadAll()
}

func describeRead(r walRead, meta []byte, state raftpb.HardState, ents []raftpb.Entry) walRead {
	var m pb.Metadata
	if err := m.Unmarshal(meta); err != nil {
		r.Outcome, r.Error = "refused", err.Error()
		return r
	}
	r.NodeID, r.Commit, r.Entries = hexID(m.NodeID), state.Commit, len(ents)
	sum := sha256.New()
	for _, e := range ents {
		r.Last, r.Term = e.Index, e.Term
		var head [32]byte
		binary.LittleEndian.PutUint64(head[0:], e.Index)
		binary.LittleEndian.PutUint64(head[8:], e.Term)
		binary.LittleEndian.PutUint64(head[16:], uint64(e.Type))
		binary.LittleEndian.PutUint64(head[24:], uint64(len(e.Data)))
		sum.Write(head[:])
		sum.Write(e.Data)
	}
	r.Sum = hex.EncodeToString(sum.Sum(nil))
	return r
}
