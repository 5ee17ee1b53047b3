package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

// runBoltrewrite copies a database through the library, in many commits, into
// a file of another page size. Rows that are there for a while and then deleted
// leave free pages between those that stay.
func runBoltrewrite(args []string) error {
	fs := newFlags("boltrewrite")
	pageSize := fs.Int("page-size", 4096, "page size of the new file")
	freelist := fs.Bool("freelist", false, "store the freelist in the file")
	churn := fs.Int("churn", 0, "rows that are put and deleted again in each bucket")
	files, err := parseFlags(fs, args, 2, 2)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(files[1]); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s exists", files[1])
	}
	if err := refuseShort(files[0]); err != nil {
		return err
	}
	src, err := openReadOnly(files[0])
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := bolt.Open(files[1], 0o600, &bolt.Options{PageSize: *pageSize, NoFreelistSync: !*freelist, NoSync: true})
	if err != nil {
		return err
	}
	err = src.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			return rewriteBucket(dst, b, [][]byte{name}, *churn)
		})
	})
	if err == nil {
		err = dst.Sync()
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		return err
	}
	return printJSON(describe(files[1]))
}

const rowsPerCommit = 200

// inBucket runs f on the bucket at path in a commit of its own.
func inBucket(db *bolt.DB, path [][]byte, f func(b *bolt.Bucket) error) error {
	return db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(path[0])
		for _, name := range path[1:] {
			if err == nil {
				b, err = b.CreateBucketIfNotExists(name)
			}
		}
		if err != nil {
			return err
		}
		return f(b)
	})
}

// transient is a key that stands among the bucket's own: a few bytes behind a
// row's key.
func transient(key []byte, n int) []byte {
	out := append([]byte(nil), key...)
	out = append(out, "\x00transient"...)
	return binary.BigEndian.AppendUint32(out, uint32(n))
}

func rewriteBucket(dst *bolt.DB, src *bolt.Bucket, path [][]byte, churn int) error {
	type row struct{ key, value []byte }
	var rows []row
	var inside [][]byte
	err := src.ForEach(func(k, v []byte) error {
		if v == nil {
			inside = append(inside, k)
		} else {
			rows = append(rows, row{k, v})
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := inBucket(dst, path, func(b *bolt.Bucket) error { return b.SetSequence(src.Sequence()) }); err != nil {
		return err
	}
	short := make([][]byte, churn)
	for n := range short {
		key := []byte(nil)
		if len(rows) > 0 {
			key = rows[n*len(rows)/churn].key
		}
		short[n] = transient(key, n)
	}
	filler := make([]byte, 300)
	for at := 0; at < max(len(rows), len(short)); at += rowsPerCommit {
		err := inBucket(dst, path, func(b *bolt.Bucket) error {
			for _, r := range rows[min(at, len(rows)):min(at+rowsPerCommit, len(rows))] {
				if err := b.Put(r.key, r.value); err != nil {
					return err
				}
			}
			for _, k := range short[min(at, len(short)):min(at+rowsPerCommit, len(short))] {
				if err := b.Put(k, filler); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for at := 0; at < len(short); at += rowsPerCommit {
		err := inBucket(dst, path, func(b *bolt.Bucket) error {
			for _, k := range short[at:min(at+rowsPerCommit, len(short))] {
				if err := b.Delete(k); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, name := range inside {
		if err := rewriteBucket(dst, src.Bucket(name), append(path[:len(path):len(path)], name), churn); err != nil {
			return err
		}
	}
	return nil
}
