package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// target says which server to talk to.
type target struct {
	endpoint *string
	user     *string
}

func targetFlags(fs *flag.FlagSet) target {
	return target{
		endpoint: fs.String("endpoint", "", "address of the server, host:port or URL"),
		user:     fs.String("user", "", "NAME:PASSWORD"),
	}
}

func (t target) dial() (*clientv3.Client, error) {
	if *t.endpoint == "" {
		return nil, fmt.Errorf("%w: --endpoint is missing", errUsage)
	}
	name, password, _ := strings.Cut(*t.user, ":")
	cli, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{*t.endpoint},
		Username:    name,
		Password:    password,
		DialTimeout: 10 * time.Second,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	// The client would keep trying for ever; find out now.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := cli.Status(ctx, *t.endpoint); err != nil && ctx.Err() != nil {
		_ = cli.Close()
		return nil, fmt.Errorf("no answer from %s: %w", *t.endpoint, err)
	}
	return cli, nil
}

func runFill(args []string) error {
	fs := newFlags("fill")
	tgt := targetFlags(fs)
	seed := fs.Int64("seed", 1, "seed of all choices")
	keys := fs.Int("keys", 100, "size of the pool of key names")
	ops := fs.Int("ops", 0, "operations after the first put of every key (default: 3 times --keys)")
	big := fs.Int("big", 0, "number of big values, up to about 1 MB each")
	auth := fs.Bool("auth", false, "also make users and roles (authentication stays off)")
	noCompact := fs.Bool("no-compact", false, "leave compactions out")
	timeout := fs.Duration("timeout", 5*time.Minute, "give up after this long")
	if _, err := parseFlags(fs, args, 0, 0); err != nil {
		return err
	}
	if *keys < 1 {
		return fmt.Errorf("%w: --keys must be at least 1", errUsage)
	}
	if *ops == 0 {
		*ops = 3 * *keys
	}
	cli, err := tgt.dial()
	if err != nil {
		return err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	f := &filler{ctx: ctx, cli: cli, rng: rand.New(rand.NewSource(*seed)), compact: !*noCompact}
	for i := 0; i < *keys; i++ {
		f.names = append(f.names, f.name(i))
	}
	if err := f.run(*ops, *big); err != nil {
		return err
	}
	if *auth {
		if err := f.auth(); err != nil {
			return err
		}
	}
	return printJSON(map[string]int64{"revision": f.revision})
}

type filler struct {
	ctx      context.Context
	cli      *clientv3.Client
	rng      *rand.Rand
	names    []string
	leases   []int64
	compact  bool
	revision int64
}

// name makes the i-th key name: mostly paths, some binary, none alike.
func (f *filler) name(i int) string {
	switch f.rng.Intn(8) {
	case 0:
		b := make([]byte, 1+f.rng.Intn(12))
		f.rng.Read(b)
		return fmt.Sprintf("%s\x00%d", b, i)
	case 1:
		return fmt.Sprintf("/registry/pods/ns-%d/pod-%d", f.rng.Intn(5), i)
	case 2:
		return strings.Repeat("long/", 1+f.rng.Intn(60)) + strconv.Itoa(i)
	case 3:
		return fmt.Sprintf("\xff%d", i)
	default:
		return fmt.Sprintf("/app/%c/%d", 'a'+rune(f.rng.Intn(6)), i)
	}
}

func (f *filler) pick() string { return f.names[f.rng.Intn(len(f.names))] }

func (f *filler) value() string {
	n := f.rng.Intn(200)
	switch f.rng.Intn(10) {
	case 0:
		return ""
	case 1:
		n = f.rng.Intn(5000)
	case 2:
		return fmt.Sprintf(`{"n":%d,"name":"value %d"}`, f.rng.Int63(), n)
	}
	b := make([]byte, n)
	f.rng.Read(b)
	return string(b)
}

func (f *filler) saw(h *pb.ResponseHeader) {
	f.revision = max(f.revision, h.GetRevision())
}

func (f *filler) put(key, value string, lease int64) error {
	r, err := f.cli.Put(f.ctx, key, value, clientv3.WithLease(clientv3.LeaseID(lease)))
	if err != nil {
		return err
	}
	f.saw(r.Header)
	return nil
}

// grant chooses the lease's id itself, so that it comes from the seed.
func (f *filler) grant() (int64, error) {
	id := f.rng.Int63()&^(1<<62) | 1
	r, err := pb.NewLeaseClient(f.cli.ActiveConnection()).LeaseGrant(f.ctx,
		&pb.LeaseGrantRequest{ID: id, TTL: 3600 + int64(f.rng.Intn(100000))})
	if err != nil {
		return 0, err
	}
	f.leases = append(f.leases, r.ID)
	return r.ID, nil
}

func (f *filler) txn() error {
	n := 1 + f.rng.Intn(5)
	var then, otherwise []clientv3.Op
	for _, i := range f.rng.Perm(len(f.names))[:min(n, len(f.names))] {
		k := f.names[i]
		if f.rng.Intn(4) == 0 {
			then = append(then, clientv3.OpDelete(k))
		} else {
			then = append(then, clientv3.OpPut(k, f.value()))
		}
		otherwise = append(otherwise, clientv3.OpGet(k))
	}
	otherwise = append(otherwise, clientv3.OpPut(f.pick(), "else"))
	k := f.pick()
	cmp := clientv3.Compare(clientv3.Version(k), ">", f.rng.Intn(3))
	r, err := f.cli.Txn(f.ctx).If(cmp).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return err
	}
	f.saw(r.Header)
	return nil
}

func (f *filler) deleteRange() error {
	from := f.pick()
	end := clientv3.GetPrefixRangeEnd(from[:max(1, len(from)-1)])
	r, err := f.cli.Delete(f.ctx, from, clientv3.WithRange(end))
	if err != nil {
		return err
	}
	f.saw(r.Header)
	return nil
}

func (f *filler) revoke() error {
	if len(f.leases) < 3 {
		return nil
	}
	i := f.rng.Intn(len(f.leases))
	r, err := f.cli.Revoke(f.ctx, clientv3.LeaseID(f.leases[i]))
	if err != nil {
		return err
	}
	f.leases = append(f.leases[:i], f.leases[i+1:]...)
	f.saw(r.Header)
	return nil
}

func (f *filler) compaction() error {
	if !f.compact || f.revision < 10 {
		return nil
	}
	at := f.revision - int64(f.rng.Intn(int(min(f.revision-5, 40))))
	_, err := f.cli.Compact(f.ctx, at, clientv3.WithCompactPhysical())
	if err != nil && strings.Contains(err.Error(), "compacted") {
		return nil // an earlier one went further
	}
	return err
}

func (f *filler) run(ops, big int) error {
	for range 4 {
		if _, err := f.grant(); err != nil {
			return err
		}
	}
	for _, k := range f.names {
		if err := f.put(k, f.value(), 0); err != nil {
			return err
		}
	}
	compactEvery := max(ops/4, 20)
	for i := 0; i < ops; i++ {
		var err error
		switch n := f.rng.Intn(100); {
		case n < 45:
			err = f.put(f.pick(), f.value(), 0)
		case n < 58:
			err = f.put(f.pick(), f.value(), f.leases[f.rng.Intn(len(f.leases))])
		case n < 73:
			var r *clientv3.DeleteResponse
			if r, err = f.cli.Delete(f.ctx, f.pick()); err == nil {
				f.saw(r.Header)
			}
		case n < 77:
			err = f.deleteRange()
		case n < 94:
			err = f.txn()
		case n < 97:
			_, err = f.grant()
		default:
			err = f.revoke()
		}
		if err == nil && i%compactEvery == compactEvery-1 {
			err = f.compaction()
		}
		if err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	for i := 0; i < big; i++ {
		b := make([]byte, 200_000+f.rng.Intn(800_000))
		f.rng.Read(b)
		if err := f.put(fmt.Sprintf("/big/%d", i), string(b), 0); err != nil {
			return err
		}
	}
	// Something always hangs on a lease at the end.
	for _, id := range f.leases[:min(2, len(f.leases))] {
		if err := f.put(fmt.Sprintf("/leased/%x", id), "x", id); err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) auth() error {
	roles := []struct {
		name, key, end string
		perm           clientv3.PermissionType
	}{
		{"reader", "/app/", clientv3.GetPrefixRangeEnd("/app/"), clientv3.PermissionType(clientv3.PermRead)},
		{"writer", "/app/a/", clientv3.GetPrefixRangeEnd("/app/a/"), clientv3.PermissionType(clientv3.PermReadWrite)},
		{"dropbox", "/in", "", clientv3.PermissionType(clientv3.PermWrite)},
		{"rest", "/registry/", "\x00", clientv3.PermissionType(clientv3.PermReadWrite)},
	}
	for _, r := range append(roles, roles[0]) {
		if _, err := f.cli.RoleAdd(f.ctx, r.name); err != nil && !strings.Contains(err.Error(), "already exists") {
			return err
		}
		if _, err := f.cli.RoleGrantPermission(f.ctx, r.name, r.key, r.end, r.perm); err != nil {
			return err
		}
	}
	if _, err := f.cli.RoleAdd(f.ctx, "root"); err != nil && !strings.Contains(err.Error(), "already exists") {
		return err
	}
	users := []truthUser{{"alice", []string{"reader", "writer"}}, {"bob", []string{"dropbox"}}, {"root", []string{"root"}}, {"nobody", nil}}
	for _, u := range users {
		if _, err := f.cli.UserAdd(f.ctx, u.Name, u.Name+"-password"); err != nil && !strings.Contains(err.Error(), "already exists") {
			return err
		}
		for _, r := range u.Roles {
			if _, err := f.cli.UserGrantRole(f.ctx, u.Name, r); err != nil {
				return err
			}
		}
	}
	_, err := f.cli.UserAddWithOptions(f.ctx, "certificate", "", &clientv3.UserAddOptions{NoPassword: true})
	if err != nil && strings.Contains(err.Error(), "already exists") {
		err = nil
	}
	return err
}

type truthKey struct {
	Key     string `json:"key_hex"`
	Create  int64  `json:"create_revision"`
	Mod     int64  `json:"mod_revision"`
	Version int64  `json:"version"`
	Lease   int64  `json:"lease"`
	SHA256  string `json:"value_sha256"`
}

type truthLease struct {
	ID   int64    `json:"id"`
	TTL  int64    `json:"granted_ttl"`
	Keys []string `json:"keys"`
}

type truthUser struct {
	Name  string   `json:"name"`
	Roles []string `json:"roles"`
}

type truthPermission struct {
	Type string `json:"type"`
	Key  string `json:"key_hex"`
	End  string `json:"range_end_hex"`
}

type truthRole struct {
	Name        string            `json:"name"`
	Permissions []truthPermission `json:"permissions"`
}

type truthMember struct {
	ID         string   `json:"id"`
	Name       string   `json:"name"`
	PeerURLs   []string `json:"peer_urls"`
	ClientURLs []string `json:"client_urls"`
	IsLearner  bool     `json:"is_learner"`
}

type truthAlarm struct {
	MemberID string `json:"member_id"`
	Alarm    string `json:"alarm"`
}

type truthHash struct {
	Hash            uint32 `json:"hash"`
	Revision        int64  `json:"revision"`
	CompactRevision int64  `json:"compact_revision"`
}

type truthStatus struct {
	Version        string `json:"version"`
	StorageVersion string `json:"storage_version"`
	DBSize         int64  `json:"db_size"`
	DBSizeInUse    int64  `json:"db_size_in_use"`
	RaftTerm       uint64 `json:"raft_term"`
	RaftIndex      uint64 `json:"raft_index"`
	Leader         string `json:"leader"`
}

type truth struct {
	Revision  int64         `json:"revision"`
	Keys      []truthKey    `json:"keys"`
	Leases    []truthLease  `json:"leases"`
	Users     []truthUser   `json:"users,omitempty"`
	Roles     []truthRole   `json:"roles,omitempty"`
	Members   []truthMember `json:"members"`
	Alarms    []truthAlarm  `json:"alarms"`
	ClusterID string        `json:"cluster_id"`
	MemberID  string        `json:"member_id"`
	HashKV    truthHash     `json:"hashkv"`
	Status    truthStatus   `json:"status"`
}

func hexID(id uint64) string { return strconv.FormatUint(id, 16) }

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func runTruth(args []string) error {
	fs := newFlags("truth")
	tgt := targetFlags(fs)
	timeout := fs.Duration("timeout", time.Minute, "give up after this long")
	if _, err := parseFlags(fs, args, 0, 0); err != nil {
		return err
	}
	cli, err := tgt.dial()
	if err != nil {
		return err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	t := truth{Keys: []truthKey{}, Leases: []truthLease{}, Members: []truthMember{}, Alarms: []truthAlarm{}}
	for _, step := range []func(context.Context, *clientv3.Client, string) error{t.readKeys, t.readLeases, t.readAuth, t.readCluster} {
		if err := step(ctx, cli, *tgt.endpoint); err != nil {
			return err
		}
	}
	return printJSON(t)
}

func (t *truth) readKeys(ctx context.Context, cli *clientv3.Client, _ string) error {
	from := "\x00"
	opts := []clientv3.OpOption{clientv3.WithFromKey(), clientv3.WithLimit(200), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)}
	for {
		// All pages come from one revision: that of the first.
		r, err := cli.Get(ctx, from, append(opts, clientv3.WithRev(t.Revision))...)
		if err != nil {
			return err
		}
		if t.Revision == 0 {
			t.Revision = r.Header.Revision
			t.ClusterID, t.MemberID = hexID(r.Header.ClusterId), hexID(r.Header.MemberId)
		}
		for _, kv := range r.Kvs {
			sum := sha256.Sum256(kv.Value)
			t.Keys = append(t.Keys, truthKey{hex.EncodeToString(kv.Key), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease, hex.EncodeToString(sum[:])})
		}
		if !r.More || len(r.Kvs) == 0 {
			return nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

func (t *truth) readLeases(ctx context.Context, cli *clientv3.Client, _ string) error {
	r, err := cli.Leases(ctx)
	if err != nil {
		return err
	}
	for _, l := range r.Leases {
		ttl, err := cli.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			return err
		}
		lease := truthLease{ID: int64(l.ID), TTL: ttl.GrantedTTL, Keys: []string{}}
		for _, k := range ttl.Keys {
			lease.Keys = append(lease.Keys, hex.EncodeToString(k))
		}
		sort.Strings(lease.Keys)
		t.Leases = append(t.Leases, lease)
	}
	sort.Slice(t.Leases, func(i, j int) bool { return t.Leases[i].ID < t.Leases[j].ID })
	return nil
}

// readAuth leaves users and roles out when the server does not let us list
// them.
func (t *truth) readAuth(ctx context.Context, cli *clientv3.Client, _ string) error {
	users, err := cli.UserList(ctx)
	if err != nil {
		return nil
	}
	for _, name := range users.Users {
		u, err := cli.UserGet(ctx, name)
		if err != nil {
			return nil
		}
		t.Users = append(t.Users, truthUser{name, orEmpty(u.Roles)})
	}
	sort.Slice(t.Users, func(i, j int) bool { return t.Users[i].Name < t.Users[j].Name })
	roles, err := cli.RoleList(ctx)
	if err != nil {
		return nil
	}
	for _, name := range roles.Roles {
		r, err := cli.RoleGet(ctx, name)
		if err != nil {
			return nil
		}
		role := truthRole{Name: name, Permissions: []truthPermission{}}
		for _, p := range r.Perm {
			role.Permissions = append(role.Permissions, truthPermission{
				authpb.Permission_Type_name[int32(p.PermType)], hex.EncodeToString(p.Key), hex.EncodeToString(p.RangeEnd)})
		}
		t.Roles = append(t.Roles, role)
	}
	sort.Slice(t.Roles, func(i, j int) bool { return t.Roles[i].Name < t.Roles[j].Name })
	return nil
}

func (t *truth) readCluster(ctx context.Context, cli *clientv3.Client, endpoint string) error {
	members, err := cli.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range members.Members {
		t.Members = append(t.Members, truthMember{hexID(m.ID), m.Name, orEmpty(m.PeerURLs), orEmpty(m.ClientURLs), m.IsLearner})
	}
	sort.Slice(t.Members, func(i, j int) bool { return t.Members[i].ID < t.Members[j].ID })
	alarms, err := cli.AlarmList(ctx)
	if err != nil {
		return err
	}
	for _, a := range alarms.Alarms {
		t.Alarms = append(t.Alarms, truthAlarm{hexID(a.MemberID), a.Alarm.String()})
	}
	sort.Slice(t.Alarms, func(i, j int) bool {
		a, b := t.Alarms[i], t.Alarms[j]
		return a.MemberID < b.MemberID || a.MemberID == b.MemberID && a.Alarm < b.Alarm
	})
	st, err := cli.Status(ctx, endpoint)
	if err != nil {
		return err
	}
	t.Status = truthStatus{st.Version, st.StorageVersion, st.DbSize, st.DbSizeInUse, st.RaftTerm, st.RaftIndex, hexID(st.Leader)}
	// The hash is taken at the revision the keys were read at. Servers before
	// 3.6 do not send the revision back.
	h, err := cli.HashKV(ctx, endpoint, t.Revision)
	if err != nil {
		return err
	}
	t.HashKV = truthHash{h.Hash, h.HashRevision, h.CompactRevision}
	if t.HashKV.Revision == 0 {
		t.HashKV.Revision = t.Revision
	}
	return nil
}

type probe struct {
	Canceled        bool   `json:"canceled"`
	CompactRevision int64  `json:"compact_revision"`
	Reason          string `json:"reason"`
	Events          int    `json:"events"`
	FirstRevision   int64  `json:"first_revision"` // mod revision of the first and the last event
	LastRevision    int64  `json:"last_revision"`
}

func runWatchprobe(args []string) error {
	fs := newFlags("watchprobe")
	tgt := targetFlags(fs)
	rev := fs.Int64("rev", 0, "revision to watch from")
	key := fs.String("key", "", "key to watch")
	prefix := fs.Bool("prefix", false, "watch every key that starts with --key (an empty one: all keys)")
	wait := fs.Duration("wait", 5*time.Second, "longest time to wait")
	quiet := fs.Duration("quiet", time.Second, "stop early when events came and then nothing for this long")
	if _, err := parseFlags(fs, args, 0, 0); err != nil {
		return err
	}
	if *key == "" && !*prefix {
		return fmt.Errorf("%w: --key is missing", errUsage)
	}
	cli, err := tgt.dial()
	if err != nil {
		return err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), *wait)
	defer cancel()
	opts := []clientv3.OpOption{clientv3.WithRev(*rev)}
	if *prefix {
		opts = append(opts, clientv3.WithPrefix())
	}
	var p probe
	ch := cli.Watch(ctx, *key, opts...)
	idle := time.NewTimer(*wait)
	defer idle.Stop()
	for {
		select {
		case r, open := <-ch:
			if !open {
				return printJSON(p)
			}
			for _, e := range r.Events {
				if p.Events == 0 {
					p.FirstRevision = e.Kv.ModRevision
				}
				p.LastRevision = e.Kv.ModRevision
				p.Events++
			}
			if r.Canceled && ctx.Err() == nil {
				p.Canceled = true
				p.CompactRevision = r.CompactRevision
				if err := r.Err(); err != nil {
					p.Reason = err.Error()
				}
				return printJSON(p)
			}
			idle.Reset(*quiet)
		case <-idle.C:
			return printJSON(p)
		case <-ctx.Done():
			return printJSON(p)
		}
	}
}
