package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash"
	"os"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
)

func newFlags(name string) *flag.FlagSet { return flag.NewFlagSet(name, flag.ContinueOnError) }

// bucketLine describes one bucket; sha256 covers its own keys and values, not
// those of the buckets inside it.
type bucketLine struct {
	Path     []string `json:"path"`
	Sequence uint64   `json:"sequence"`
	Keys     int      `json:"keys"`
	SHA256   string   `json:"sha256"`
}

func hashPart(h hash.Hash, b []byte) {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(b)))
	h.Write(n[:])
	h.Write(b)
}

func openReadOnly(path string) (*bolt.DB, error) {
	return bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: 3 * time.Second})
}

func dumpFile(path string) (lines []bucketLine, err error) {
	debug.SetPanicOnFault(true)
	defer func() {
		if p := recover(); p != nil {
			lines, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	if err := refuseShort(path); err != nil {
		return nil, err
	}
	db, err := openReadOnly(path)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			return dumpBucket(b, [][]byte{name}, &lines)
		})
	})
	return lines, err
}

// dumpBucket adds a bucket and then, in key order, the buckets inside it.
func dumpBucket(b *bolt.Bucket, path [][]byte, lines *[]bucketLine) error {
	at := len(*lines)
	*lines = append(*lines, bucketLine{})
	h := sha256.New()
	keys := 0
	err := b.ForEach(func(k, v []byte) error {
		if v != nil {
			keys++
			hashPart(h, k)
			hashPart(h, v)
			return nil
		}
		sub := b.Bucket(k)
		if sub == nil {
			return fmt.Errorf("bucket %q is listed but cannot be opened", k)
		}
		return dumpBucket(sub, append(path[:len(path):len(path)], k), lines)
	})
	(*lines)[at] = bucketLine{hexPath(path), b.Sequence(), keys, hex.EncodeToString(h.Sum(nil))}
	return err
}

var errShort = errors.New("file is shorter than its meta page says")

func refuseShort(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	ms, err := readMetas(f)
	if err != nil {
		return err
	}
	if ms.FileSize < 80 || ms.tooShort() {
		return errShort
	}
	return nil
}

func runBoltdump(args []string) error {
	fs := newFlags("boltdump")
	timeout := fs.Duration("timeout", time.Minute, "give up after this long")
	files, err := parseFlags(fs, args, 1, 1)
	if err != nil {
		return err
	}
	time.AfterFunc(*timeout, func() {
		fmt.Fprintln(os.Stderr, "oracle boltdump: timed out")
		os.Exit(4)
	})
	lines, err := dumpFile(files[0])
	if err != nil {
		return err
	}
	for _, l := range lines {
		if err := printJSON(l); err != nil {
			return err
		}
	}
	return nil
}
