package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// genSeed is fixed: the same keys and values come out of every run. Page ids
// may differ between runs where one commit changes several buckets, because
// the library walks Go maps then.
const genSeed = 20240607

// gen builds one file.
type gen struct {
	path string
	rng  *rand.Rand
	opt  bolt.Options
	db   *bolt.DB
}

func (g *gen) open() error {
	opt := g.opt
	opt.Timeout = 5 * time.Second
	opt.NoSync, opt.NoGrowSync = true, true
	db, err := bolt.Open(g.path, 0o600, &opt)
	g.db = db
	return err
}

func (g *gen) close() error {
	if g.db == nil {
		return nil
	}
	err := g.db.Close()
	g.db = nil
	return err
}

func (g *gen) bytes(n int) []byte {
	b := make([]byte, n)
	g.rng.Read(b)
	return b
}

// text gives a key of readable letters and a length between least and most.
func (g *gen) text(least, most int) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789/-_."
	b := make([]byte, least+g.rng.Intn(most-least+1))
	for i := range b {
		b[i] = letters[g.rng.Intn(len(letters))]
	}
	return b
}

func number(n uint64) []byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return b[:]
}

// bucket finds or makes the bucket at a path.
func bucket(tx *bolt.Tx, path ...string) (*bolt.Bucket, error) {
	b, err := tx.CreateBucketIfNotExists([]byte(path[0]))
	for _, p := range path[1:] {
		if err != nil {
			return nil, err
		}
		b, err = b.CreateBucketIfNotExists([]byte(p))
	}
	return b, err
}

// commits runs n write transactions over one bucket.
func (g *gen) commits(n int, path []string, f func(i int, b *bolt.Bucket) error) error {
	for i := 0; i < n; i++ {
		err := g.db.Update(func(tx *bolt.Tx) error {
			b, err := bucket(tx, path...)
			if err != nil {
				return err
			}
			return f(i, b)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mixed is a bit of everything: plain and numbered keys, nested and inline
// buckets, sequences, overwrites and deletes, over several commits.
func (g *gen) mixed(keys int) error {
	var known [][]byte
	err := g.commits(4, []string{"plain"}, func(_ int, b *bolt.Bucket) error {
		for j := 0; j < keys; j++ {
			k := g.text(1, 40)
			known = append(known, k)
			if err := b.Put(k, g.bytes(g.rng.Intn(200))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = g.commits(3, []string{"numbered"}, func(i int, b *bolt.Bucket) error {
		b.FillPercent = 0.9
		for j := 0; j < keys; j++ {
			if err := b.Put(number(uint64(i*keys+j)), g.text(0, 64)); err != nil {
				return err
			}
		}
		return b.SetSequence(uint64((i + 1) * keys))
	})
	if err != nil {
		return err
	}
	for _, path := range [][]string{{"nest"}, {"nest", "one"}, {"nest", "one", "two"}, {"nest", "one", "three"}, {"nest", "empty"}} {
		err = g.commits(2, path, func(i int, b *bolt.Bucket) error {
			if path[len(path)-1] == "empty" {
				return nil
			}
			for j := 0; j < 8; j++ {
				if err := b.Put(g.text(3, 12), g.bytes(g.rng.Intn(60))); err != nil {
					return err
				}
			}
			_, err := b.NextSequence()
			return err
		})
		if err != nil {
			return err
		}
	}
	return g.commits(5, []string{"plain"}, func(_ int, b *bolt.Bucket) error {
		for j := 0; j < keys/5; j++ {
			k := known[g.rng.Intn(len(known))]
			var err error
			if j%2 == 0 {
				err = b.Delete(k)
			} else {
				err = b.Put(k, g.bytes(g.rng.Intn(300)))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// genFile says how to make one file. after runs when the library has closed
// it, so it may change bytes.
type genFile struct {
	name     string
	note     string
	pageSize int
	noSync   bool // leave the freelist out of the file
	mapType  bool
	edited   bool // bytes were changed by hand afterwards
	zeroFree bool // fill unused pages with zeros, to keep big files sparse
	build    func(g *gen) error
	after    func(g *gen) error
}

func genFiles() []genFile {
	var files []genFile
	add := func(f genFile) { files = append(files, f) }

	add(genFile{name: "fresh", note: "created and closed, nothing written", pageSize: 4096,
		build: func(*gen) error { return nil }})
	add(genFile{name: "fresh-no-freelist", note: "created and closed without freelist sync: the first freelist is still there", pageSize: 4096, noSync: true,
		build: func(*gen) error { return nil }})
	oneKey := func(commits int) func(*gen) error {
		return func(g *gen) error {
			return g.commits(commits, []string{"b"}, func(i int, b *bolt.Bucket) error {
				return b.Put([]byte("k"), []byte(fmt.Sprint("commit ", i)))
			})
		}
	}
	add(genFile{name: "meta0-newest", note: "an even number of the last transaction: page 0 is in force", pageSize: 4096, build: oneKey(3)})
	add(genFile{name: "meta1-newest", note: "an odd number of the last transaction: page 1 is in force", pageSize: 4096, build: oneKey(4)})

	for _, ps := range []int{1024, 2048, 4096, 8192, 16384, 65536} {
		for _, noSync := range []bool{false, true} {
			name, note := fmt.Sprintf("page-%d", ps), "a bit of everything"
			if noSync {
				name, note = name+"-no-freelist", note+", no freelist in the file"
			}
			add(genFile{name: name, note: note, pageSize: ps, noSync: noSync, build: func(g *gen) error { return g.mixed(400) }})
		}
	}
	add(genFile{name: "page-16m", note: "16 MiB pages; sparse on disk", pageSize: 16 << 20, zeroFree: true,
		build: func(g *gen) error {
			if err := oneKey(2)(g); err != nil {
				return err
			}
			return g.commits(1, []string{"other"}, func(_ int, b *bolt.Bucket) error { return b.Put([]byte("x"), g.bytes(5<<20)) })
		}})
	add(genFile{name: "freelist-map", note: "a bit of everything, allocated with the map freelist", pageSize: 4096, mapType: true,
		build: func(g *gen) error { return g.mixed(300) }})

	someCommits := func(g *gen, n int) error {
		for i := 0; i < n; i++ {
			path := []string{fmt.Sprintf("bucket-%d", i%5)}
			err := g.commits(1, path, func(_ int, b *bolt.Bucket) error {
				for j := 0; j < 6; j++ {
					if err := b.Put(g.text(1, 3), g.bytes(g.rng.Intn(900))); err != nil {
						return err
					}
				}
				return b.Delete(g.text(1, 2))
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	manyCommits := func(g *gen) error { return someCommits(g, 300) }
	add(genFile{name: "many-commits", note: "300 small commits over 5 buckets", pageSize: 4096, build: manyCommits})
	add(genFile{name: "many-commits-no-freelist", note: "300 small commits over 5 buckets, no freelist in the file", pageSize: 4096, noSync: true, build: manyCommits})
	add(genFile{name: "reader-open", note: "written while a reader held old pages: the freelist has pages that are waiting", pageSize: 4096,
		build: func(g *gen) error {
			if err := oneKey(3)(g); err != nil {
				return err
			}
			// A file that has to be mapped anew would wait for the reader.
			if err := g.close(); err != nil {
				return err
			}
			g.opt.InitialMmapSize = 64 << 20
			if err := g.open(); err != nil {
				return err
			}
			tx, err := g.db.Begin(false)
			if err != nil {
				return err
			}
			if err := someCommits(g, 80); err != nil {
				return err
			}
			return tx.Rollback()
		}})
	add(genFile{name: "freelist-regained", note: "written without a freelist, then opened once with one: the library adds it in an extra commit", pageSize: 4096, noSync: true,
		build: func(g *gen) error {
			if err := manyCommits(g); err != nil {
				return err
			}
			if err := g.close(); err != nil {
				return err
			}
			g.opt.NoFreelistSync = false
			return g.open()
		}})

	// Metas. The damage is one flipped bit in the checksummed part.
	breakMeta := func(which int) func(*gen) error {
		return func(g *gen) error {
			return patch(g.path, func(f *os.File, ms metas) error {
				return flipByte(f, int64(which)*ms.PageSize+65)
			})
		}
	}
	for _, ps := range []int{1024, 4096, 65536} {
		add(genFile{name: fmt.Sprintf("meta0-broken-page-%d", ps), note: "page 0 is damaged and was the older meta: the page size must be found through page 1", pageSize: ps, edited: true, build: oneKey(4), after: breakMeta(0)})
		add(genFile{name: fmt.Sprintf("meta0-broken-newer-page-%d", ps), note: "page 0 is damaged and was the newer meta: the state is one commit older", pageSize: ps, edited: true, build: oneKey(5), after: breakMeta(0)})
	}
	add(genFile{name: "meta1-broken", note: "page 1 is damaged and was the newer meta: the state is one commit older", pageSize: 4096, edited: true, build: oneKey(4), after: breakMeta(1)})
	add(genFile{name: "meta1-broken-older", note: "page 1 is damaged and was the older meta", pageSize: 4096, edited: true, build: oneKey(5), after: breakMeta(1)})
	add(genFile{name: "meta-broken-no-freelist", note: "the newer meta is damaged; many commits, no freelist in the file", pageSize: 4096, noSync: true, edited: true,
		build: func(g *gen) error {
			if err := manyCommits(g); err != nil {
				return err
			}
			return oneKey(1)(g)
		},
		after: func(g *gen) error {
			return patch(g.path, func(f *os.File, ms metas) error {
				return flipByte(f, int64(ms.Chosen)*ms.PageSize+65)
			})
		}})
	add(genFile{name: "meta-same-txid", note: "both metas carry the same transaction id: page 0 is in force", pageSize: 4096, edited: true, build: oneKey(4),
		after: func(g *gen) error { return patch(g.path, equalTxids) }})

	// Copies.
	add(genFile{name: "streamed-copy", note: "copied out of a read transaction, as a snapshot is", pageSize: 4096, build: manyCommits, after: func(g *gen) error { return streamCopy(g, false) }})
	add(genFile{name: "snapshot-trailer", note: "a streamed copy followed by its 32-byte sha256", pageSize: 4096, noSync: true, build: manyCommits, after: func(g *gen) error { return streamCopy(g, true) }})
	add(genFile{name: "exact-length", note: "cut to the high page times the page size", pageSize: 4096, noSync: true, edited: true, build: manyCommits,
		after: func(g *gen) error {
			return patch(g.path, func(f *os.File, ms metas) error {
				return f.Truncate(int64(ms.Meta[ms.Chosen].HighPage) * ms.PageSize)
			})
		}})
	add(genFile{name: "compacted", note: "the library's Compact of a file with a bit of everything", pageSize: 4096, build: func(g *gen) error { return g.mixed(600) },
		after: func(g *gen) error {
			src, err := openReadOnly(g.path)
			if err != nil {
				return err
			}
			defer src.Close()
			to := g.path + ".new"
			dst, err := bolt.Open(to, 0o600, &bolt.Options{NoSync: true, PageSize: 4096})
			if err != nil {
				return err
			}
			if err := bolt.Compact(dst, src, 65536); err != nil {
				_ = dst.Close()
				return err
			}
			if err := dst.Close(); err != nil {
				return err
			}
			return os.Rename(to, g.path)
		}})

	// Buckets.
	add(genFile{name: "nested-deep", note: "buckets 3 and 24 levels deep, big and inline ones, with sequences", pageSize: 4096,
		build: func(g *gen) error {
			var deep []string
			for i := 0; i < 24; i++ {
				deep = append(deep, fmt.Sprintf("level-%02d", i))
				err := g.commits(1, deep, func(_ int, b *bolt.Bucket) error {
					if err := b.SetSequence(uint64(i * i)); err != nil {
						return err
					}
					return b.Put([]byte("here"), number(uint64(i)))
				})
				if err != nil {
					return err
				}
			}
			for _, path := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}, {"a", "b", "d"}, {"a", "z"}} {
				err := g.commits(2, path, func(_ int, b *bolt.Bucket) error {
					for j := 0; j < 300; j++ {
						if err := b.Put(g.text(2, 20), g.bytes(g.rng.Intn(50))); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		}})
	add(genFile{name: "inline", note: "buckets around the limit for being stored inline, at the top and nested", pageSize: 4096,
		build: func(g *gen) error {
			for size := 0; size <= 1200; size += 20 {
				for _, path := range [][]string{{fmt.Sprintf("top-%04d", size)}, {"in", fmt.Sprintf("sub-%04d", size)}} {
					err := g.commits(1, path, func(_ int, b *bolt.Bucket) error {
						if size == 0 {
							return nil
						}
						return b.Put([]byte{'k'}, g.bytes(size))
					})
					if err != nil {
						return err
					}
				}
			}
			for _, size := range []int{990, 991, 992, 1006, 1007, 1008, 1009} {
				err := g.commits(1, []string{fmt.Sprintf("edge-%04d", size)}, func(_ int, b *bolt.Bucket) error {
					return b.Put([]byte{'k'}, g.bytes(size))
				})
				if err != nil {
					return err
				}
			}
			return nil
		}})
	add(genFile{name: "inline-64k", note: "inline buckets of up to 16 KiB on 64 KiB pages", pageSize: 65536,
		build: func(g *gen) error {
			for i := 0; i < 12; i++ {
				err := g.commits(1, []string{"in", fmt.Sprint("sub-", i)}, func(_ int, b *bolt.Bucket) error {
					for j := 0; j < i*25; j++ {
						if err := b.Put(g.text(5, 20), g.bytes(20)); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		}})
	add(genFile{name: "empty-buckets", note: "200 buckets with nothing in them, some with a sequence, some emptied again", pageSize: 4096,
		build: func(g *gen) error {
			for i := 0; i < 200; i++ {
				err := g.commits(1, []string{fmt.Sprintf("empty-%03d", i)}, func(_ int, b *bolt.Bucket) error {
					if i%3 == 0 {
						return b.SetSequence(uint64(i) << 40)
					}
					if i%7 == 0 {
						for j := 0; j < 100; j++ {
							if err := b.Put(number(uint64(j)), g.bytes(50)); err != nil {
								return err
							}
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			for i := 0; i < 200; i += 7 {
				err := g.commits(1, []string{fmt.Sprintf("empty-%03d", i)}, deleteAll)
				if err != nil {
					return err
				}
			}
			return nil
		}})
	add(genFile{name: "all-buckets-deleted", note: "everything was deleted again: the root is one empty leaf", pageSize: 4096,
		build: func(g *gen) error {
			if err := g.mixed(200); err != nil {
				return err
			}
			return g.db.Update(func(tx *bolt.Tx) error {
				for _, name := range []string{"plain", "numbered", "nest"} {
					if err := tx.DeleteBucket([]byte(name)); err != nil {
						return err
					}
				}
				return nil
			})
		}})
	add(genFile{name: "sequences", note: "sequences of many sizes, on inline and other buckets", pageSize: 4096,
		build: func(g *gen) error {
			for i, s := range []uint64{0, 1, 255, 256, 1 << 31, 1 << 32, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64} {
				for _, keys := range []int{0, 3, 300} {
					err := g.commits(1, []string{fmt.Sprintf("seq-%d-%d", i, keys)}, func(_ int, b *bolt.Bucket) error {
						for j := 0; j < keys; j++ {
							if err := b.Put(number(uint64(j)), g.bytes(10)); err != nil {
								return err
							}
						}
						return b.SetSequence(s)
					})
					if err != nil {
						return err
					}
				}
			}
			return nil
		}})
	add(genFile{name: "wide-root", note: "3000 top-level buckets: the root bucket has branch pages", pageSize: 4096,
		build: func(g *gen) error {
			return g.db.Update(func(tx *bolt.Tx) error {
				for i := 0; i < 3000; i++ {
					b, err := bucket(tx, string(g.text(10, 30)))
					if err != nil {
						return err
					}
					if err := b.Put([]byte("n"), number(uint64(i))); err != nil {
						return err
					}
				}
				return nil
			})
		}})
	add(genFile{name: "bucket-beside-key", note: "keys and buckets side by side in one bucket, names with every byte", pageSize: 1024,
		build: func(g *gen) error {
			return g.commits(1, []string{"m"}, func(_ int, b *bolt.Bucket) error {
				for i := 0; i < 256; i++ {
					if err := b.Put([]byte{byte(i), 'k'}, g.bytes(i)); err != nil {
						return err
					}
					sub, err := b.CreateBucket([]byte{byte(i)})
					if err != nil {
						return err
					}
					for j := 0; j < i%40; j++ {
						if err := sub.Put(append([]byte{byte(j)}, g.bytes(8)...), []byte{byte(i)}); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}})

	// Keys and values.
	add(genFile{name: "big-values", note: "values of 0 bytes to 3 MB, many right at page limits", pageSize: 4096,
		build: func(g *gen) error {
			sizes := []int{0, 1, 4000, 4046, 4047, 4048, 4060, 4061, 4063, 4064, 4065, 4080, 4096, 8191, 8192, 65535, 65536, 300000, 1 << 20, 3_000_000}
			return g.commits(2, []string{"big"}, func(i int, b *bolt.Bucket) error {
				for j, n := range sizes {
					if i == 1 && j%3 != 0 {
						continue
					}
					if err := b.Put([]byte(fmt.Sprintf("v%07d", n)), g.bytes(n)); err != nil {
						return err
					}
				}
				return nil
			})
		}})
	for _, ps := range []int{1024, 4096} {
		add(genFile{name: fmt.Sprintf("big-keys-page-%d", ps), note: "keys of up to 32768 bytes, so branch pages overflow too", pageSize: ps,
			build: func(g *gen) error {
				return g.commits(2, []string{"keys"}, func(i int, b *bolt.Bucket) error {
					for _, n := range []int{1, 2, 500, 1000, 5000, 20000, 32767, 32768, 32768, 32768, 32768, 32768, 32768, 32768, 32768} {
						if err := b.Put(g.bytes(n), g.bytes(i*7)); err != nil {
							return err
						}
					}
					return nil
				})
			}})
	}
	add(genFile{name: "deep-tree", note: "long keys on 1 KiB pages: a tall tree", pageSize: 1024,
		build: func(g *gen) error {
			return g.commits(5, []string{"tall"}, func(_ int, b *bolt.Bucket) error {
				for j := 0; j < 500; j++ {
					if err := b.Put(g.text(180, 420), g.bytes(8)); err != nil {
						return err
					}
				}
				return nil
			})
		}})
	add(genFile{name: "prefix-keys", note: "keys that are prefixes of each other, zero and 0xff bytes", pageSize: 1024,
		build: func(g *gen) error {
			return g.commits(1, []string{"p"}, func(_ int, b *bolt.Bucket) error {
				for _, c := range []byte{0, 1, 'a', 0x7f, 0x80, 0xfe, 0xff} {
					for n := 1; n <= 60; n++ {
						k := []byte(strings.Repeat(string([]byte{c}), n))
						if err := b.Put(k, []byte{c, byte(n)}); err != nil {
							return err
						}
						if err := b.Put(append(k, 0), nil); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}})
	add(genFile{name: "large", note: "100000 keys in order, pages filled to 90 %", pageSize: 4096, noSync: true,
		build: func(g *gen) error {
			return g.commits(10, []string{"key"}, func(i int, b *bolt.Bucket) error {
				b.FillPercent = 0.9
				for j := 0; j < 10000; j++ {
					k := append(append(number(uint64(i*10000+j+2)), '_'), number(0)...)
					if err := b.Put(k, g.bytes(20+g.rng.Intn(30))); err != nil {
						return err
					}
				}
				return nil
			})
		}})
	for _, fill := range []float64{0.1, 1.0} {
		add(genFile{name: fmt.Sprintf("fill-%d", int(fill*100)), note: "an unusual fill of the pages", pageSize: 4096,
			build: func(g *gen) error {
				return g.commits(3, []string{"f"}, func(_ int, b *bolt.Bucket) error {
					b.FillPercent = fill
					for j := 0; j < 700; j++ {
						if err := b.Put(g.text(6, 18), g.bytes(g.rng.Intn(40))); err != nil {
							return err
						}
					}
					return nil
				})
			}})
	}

	// Deletes.
	numbered := func(g *gen, n int) error {
		return g.commits(1, []string{"d"}, func(_ int, b *bolt.Bucket) error {
			for j := 0; j < n; j++ {
				if err := b.Put(number(uint64(j)), g.bytes(60)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	deletes := func(name, note string, gone func(g *gen, j int) bool, perCommit int) {
		const n = 4000
		add(genFile{name: "deletes-" + name, note: note, pageSize: 1024,
			build: func(g *gen) error {
				if err := numbered(g, n); err != nil {
					return err
				}
				for at := 0; at < n; at += perCommit {
					err := g.commits(1, []string{"d"}, func(_ int, b *bolt.Bucket) error {
						for j := at; j < min(at+perCommit, n); j++ {
							if gone(g, j) {
								if err := b.Delete(number(uint64(j))); err != nil {
									return err
								}
							}
						}
						return nil
					})
					if err != nil {
						return err
					}
				}
				return nil
			}})
	}
	deletes("front", "the first half was deleted in order", func(_ *gen, j int) bool { return j < 2000 }, 150)
	deletes("first-of-each", "one key in seven was deleted, first keys of pages among them", func(_ *gen, j int) bool { return j%7 == 0 }, 500)
	deletes("random", "a random 70 % was deleted over many commits", func(g *gen, _ int) bool { return g.rng.Intn(10) < 7 }, 40)
	deletes("sparse-left", "all but one key in 90 was deleted", func(_ *gen, j int) bool { return j%90 != 0 }, 1000)
	deletes("at-once", "all but three keys were deleted in one commit", func(_ *gen, j int) bool { return j != 5 && j != 2222 && j != 3999 }, 4000)
	deletes("all", "every key was deleted, a few at a time", func(*gen, int) bool { return true }, 130)
	add(genFile{name: "deletes-cursor", note: "every second key was deleted through a cursor, then some came back", pageSize: 1024,
		build: func(g *gen) error {
			if err := numbered(g, 3000); err != nil {
				return err
			}
			err := g.commits(1, []string{"d"}, func(_ int, b *bolt.Bucket) error {
				var doomed [][]byte
				i := 0
				if err := b.ForEach(func(k, _ []byte) error {
					if i++; i%2 == 0 {
						doomed = append(doomed, append([]byte(nil), k...))
					}
					return nil
				}); err != nil {
					return err
				}
				c := b.Cursor()
				for _, k := range doomed {
					if got, _ := c.Seek(k); string(got) != string(k) {
						return errors.New("the cursor lost its key")
					}
					if err := c.Delete(); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			return g.commits(3, []string{"d"}, func(i int, b *bolt.Bucket) error {
				for j := 0; j < 100; j++ {
					if err := b.Put(number(uint64(g.rng.Intn(3000))), []byte{byte(i)}); err != nil {
						return err
					}
				}
				return nil
			})
		}})
	add(genFile{name: "odd-pages", note: "written page by page: empty leaves, branches with one child, branch keys below their child's first key", pageSize: 4096, noSync: true, edited: true,
		build: func(*gen) error { return nil },
		after: func(g *gen) error { return writeOddPages(g.path, 4096) }})

	// Long freelists. 65535 is the first count that needs the long form.
	for _, target := range []uint64{65534, 65535, 70000} {
		add(genFile{name: fmt.Sprintf("freelist-%d", target), note: fmt.Sprintf("exactly %d ids in the freelist; sparse on disk", target), pageSize: 1024, zeroFree: true,
			build: func(g *gen) error { return freelistOf(g, target) }})
	}
	return files
}

func deleteAll(_ int, b *bolt.Bucket) error {
	var keys [][]byte
	if err := b.ForEach(func(k, _ []byte) error {
		keys = append(keys, append([]byte(nil), k...))
		return nil
	}); err != nil {
		return err
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// freelistOf leaves a file whose freelist has exactly target ids. How many
// pages the last freelist itself takes part of the count, so it is found by
// trying.
func freelistOf(g *gen, target uint64) error {
	pad := 1
	for try := 0; try < 12; try++ {
		if err := g.close(); err != nil {
			return err
		}
		if err := os.Remove(g.path); err != nil {
			return err
		}
		if err := g.open(); err != nil {
			return err
		}
		steps := []func(*bolt.Tx) error{
			func(tx *bolt.Tx) error {
				b, err := bucket(tx, "gone")
				for i := 0; i < 63 && err == nil; i++ {
					err = b.Put(number(uint64(i)), make([]byte, 1000*1024))
				}
				return err
			},
			func(tx *bolt.Tx) error {
				b, err := bucket(tx, "kept")
				for i := 0; i < 50 && err == nil; i++ {
					err = b.Put(number(uint64(i)), []byte("kept"))
				}
				return err
			},
			func(tx *bolt.Tx) error {
				b, err := bucket(tx, "pad")
				if err != nil {
					return err
				}
				return b.Put([]byte("p"), make([]byte, pad*1024-64))
			},
			func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("gone")) },
			func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("pad")) },
			func(tx *bolt.Tx) error { _, err := bucket(tx, "last"); return err },
		}
		for _, f := range steps {
			if err := g.db.Update(f); err != nil {
				return err
			}
		}
		if err := g.close(); err != nil {
			return err
		}
		_, sh, err := readShape(g.path)
		if err != nil {
			return err
		}
		if sh.FreelistIDs == target {
			return nil
		}
		pad += int(target) - int(sh.FreelistIDs)
		if pad < 1 {
			return fmt.Errorf("cannot reach %d free pages", target)
		}
	}
	return fmt.Errorf("did not arrive at %d free pages", target)
}

func flipByte(f *os.File, off int64) error {
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		return err
	}
	b[0] ^= 0x10
	_, err := f.WriteAt(b[:], off)
	return err
}

func patch(path string, edit func(f *os.File, ms metas) error) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	ms, err := readMetas(f)
	if err == nil {
		err = edit(f, ms)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

func sealMeta(page []byte) {
	h := fnv.New64a()
	h.Write(page[16:72])
	binary.LittleEndian.PutUint64(page[72:], h.Sum64())
}

// equalTxids gives the older meta the transaction id of the newer one.
func equalTxids(f *os.File, ms metas) error {
	older := 1 - ms.Chosen
	buf := make([]byte, 80)
	at := int64(older) * ms.PageSize
	if _, err := f.ReadAt(buf, at); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(buf[64:], ms.Meta[ms.Chosen].Txid)
	sealMeta(buf)
	_, err := f.WriteAt(buf, at)
	return err
}

func streamCopy(g *gen, trailer bool) error {
	src, err := openReadOnly(g.path)
	if err != nil {
		return err
	}
	defer src.Close()
	to := g.path + ".new"
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	h := sha256.New()
	err = src.View(func(tx *bolt.Tx) error {
		_, err := tx.WriteTo(io.MultiWriter(out, h))
		return err
	})
	if err == nil && trailer {
		_, err = out.Write(h.Sum(nil))
	}
	if e := out.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(to, g.path)
}

type rawKV struct {
	key, val string
	bucket   bool
}

type rawChild struct {
	key  string
	page uint64
}

func rawPage(ps int, id uint64, flags uint16, count int) []byte {
	p := make([]byte, ps)
	le := binary.LittleEndian
	le.PutUint64(p, id)
	le.PutUint16(p[8:], flags)
	le.PutUint16(p[10:], uint16(count))
	return p
}

func rawLeaf(ps int, id uint64, kvs ...rawKV) []byte {
	p := rawPage(ps, id, flagLeaf, len(kvs))
	le := binary.LittleEndian
	at := pageHeaderLen + 16*len(kvs)
	for i, kv := range kvs {
		e := pageHeaderLen + 16*i
		if kv.bucket {
			le.PutUint32(p[e:], 1)
		}
		le.PutUint32(p[e+4:], uint32(at-e))
		le.PutUint32(p[e+8:], uint32(len(kv.key)))
		le.PutUint32(p[e+12:], uint32(len(kv.val)))
		at += copy(p[at:], kv.key)
		at += copy(p[at:], kv.val)
	}
	return p
}

func rawBranch(ps int, id uint64, children ...rawChild) []byte {
	p := rawPage(ps, id, flagBranch, len(children))
	le := binary.LittleEndian
	at := pageHeaderLen + 16*len(children)
	for i, c := range children {
		e := pageHeaderLen + 16*i
		le.PutUint32(p[e:], uint32(at-e))
		le.PutUint32(p[e+4:], uint32(len(c.key)))
		le.PutUint64(p[e+8:], c.page)
		at += copy(p[at:], c.key)
	}
	return p
}

// writeOddPages writes a whole file whose pages the library accepts but does
// not normally leave behind.
func writeOddPages(path string, ps int) error {
	le := binary.LittleEndian
	bucketAt := func(root, seq uint64) string {
		var b [16]byte
		le.PutUint64(b[:], root)
		le.PutUint64(b[8:], seq)
		return string(b[:])
	}
	kv := func(k, v string) rawKV { return rawKV{key: k, val: v} }
	pages := [][]byte{
		nil, nil,
		// 2: the root bucket, itself a branch with one child
		rawBranch(ps, 2, rawChild{"a", 3}),
		rawLeaf(ps, 3,
			rawKV{"empty-tree", bucketAt(11, 0), true},
			rawKV{"odd", bucketAt(4, 77), true},
			rawKV{"one-empty-leaf", bucketAt(14, 5), true}),
		// 4: bucket "odd"
		rawBranch(ps, 4, rawChild{"a", 5}, rawChild{"m", 6}, rawChild{"y", 7}),
		rawBranch(ps, 5, rawChild{"b", 8}),                    // one child, key below it
		rawBranch(ps, 6, rawChild{"m", 9}, rawChild{"o", 10}), // an empty leaf, then data
		rawBranch(ps, 7, rawChild{"z", 15}),                   // one child, and that is empty
		rawLeaf(ps, 8, kv("c", "see"), kv("d", ""), kv("e", strings.Repeat("e", 500))),
		rawLeaf(ps, 9),
		rawLeaf(ps, 10, kv("p", "pee"), kv("q", "queue")),
		// 11: bucket "empty-tree", two empty leaves under a branch
		rawBranch(ps, 11, rawChild{"g", 12}, rawChild{"h", 13}),
		rawLeaf(ps, 12),
		rawLeaf(ps, 13),
		// 14: bucket "one-empty-leaf", not inline although empty
		rawLeaf(ps, 14),
		rawLeaf(ps, 15),
	}
	for i := range 2 {
		p := rawPage(ps, uint64(i), flagMeta, 0)
		le.PutUint32(p[16:], metaMagic)
		le.PutUint32(p[20:], metaVersion)
		le.PutUint32(p[24:], uint32(ps))
		le.PutUint64(p[32:], 2)
		le.PutUint64(p[48:], noFreelist)
		le.PutUint64(p[56:], uint64(len(pages)))
		le.PutUint64(p[64:], uint64(8+i))
		sealMeta(p)
		pages[i] = p
	}
	var all []byte
	for _, p := range pages {
		all = append(all, p...)
	}
	return os.WriteFile(path, all, 0o600)
}

// zeroUnused overwrites every page that nothing refers to.
func zeroUnused(path string) error {
	ms, sh, err := readShape(path)
	if err != nil {
		return err
	}
	return patch(path, func(f *os.File, _ metas) error {
		zero := make([]byte, ms.PageSize)
		for id := uint64(2); id < ms.Meta[ms.Chosen].HighPage; id++ {
			if !sh.reachable[id] {
				if _, err := f.WriteAt(zero, int64(id)*ms.PageSize); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// sparsify rewrites a file with holes where it has zeros.
func sparsify(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = out.Truncate(st.Size())
	const block = 4096
	buf := make([]byte, 256*block)
	for off := int64(0); err == nil && off < st.Size(); {
		var n int
		n, err = in.ReadAt(buf, off)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		for at := 0; err == nil && at < n; at += block {
			part := buf[at:min(at+block, n)]
			for _, c := range part {
				if c != 0 {
					_, err = out.WriteAt(part, off+int64(at))
					break
				}
			}
		}
		off += int64(n)
	}
	if e := out.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

type indexEntry struct {
	File           string       `json:"file"`
	Note           string       `json:"note"`
	Edited         bool         `json:"edited"`
	CheckOK        bool         `json:"check_ok"`
	FileSize       int64        `json:"file_size"`
	PageSize       int64        `json:"page_size"`
	FreelistSynced bool         `json:"freelist_synced"`
	Metas          [2]rawMeta   `json:"metas"`
	Chosen         int          `json:"chosen_meta"`
	Shape          shape        `json:"shape"`
	Buckets        []bucketLine `json:"buckets"`
}

type genIndex struct {
	Seed  int64        `json:"seed"`
	Bbolt string       `json:"bbolt"`
	Files []indexEntry `json:"files"`
}

func generate(dir string, f genFile) (entry indexEntry, err error) {
	h := fnv.New64a()
	h.Write([]byte(f.name))
	g := &gen{
		path: filepath.Join(dir, f.name+".db"),
		rng:  rand.New(rand.NewSource(genSeed ^ int64(h.Sum64()>>1))),
		opt:  bolt.Options{PageSize: f.pageSize, NoFreelistSync: f.noSync, FreelistType: bolt.FreelistArrayType},
	}
	if f.mapType {
		g.opt.FreelistType = bolt.FreelistMapType
	}
	if err := os.Remove(g.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return entry, err
	}
	if err := g.open(); err != nil {
		return entry, err
	}
	err = f.build(g)
	if e := g.close(); err == nil {
		err = e
	}
	if err == nil && f.after != nil {
		err = f.after(g)
	}
	if err == nil && f.zeroFree {
		err = zeroUnused(g.path)
	}
	if err == nil {
		err = sparsify(g.path)
	}
	if err != nil {
		return entry, err
	}
	ms, sh, err := readShape(g.path)
	if err != nil {
		return entry, err
	}
	lines, err := dumpFile(g.path)
	if err != nil {
		return entry, err
	}
	if lines == nil {
		lines = []bucketLine{}
	}
	check := checkFile(g.path)
	if !check.OK {
		return entry, fmt.Errorf("the library finds fault with it: %+v", check)
	}
	return indexEntry{
		File: f.name + ".db", Note: f.note, Edited: f.edited, CheckOK: check.OK,
		FileSize: ms.FileSize, PageSize: ms.PageSize,
		FreelistSynced: ms.Meta[ms.Chosen].freelist != noFreelist,
		Metas:          ms.Meta, Chosen: ms.Chosen, Shape: sh, Buckets: lines,
	}, nil
}

func runBoltgen(args []string) error {
	fs := newFlags("boltgen")
	only := fs.String("only", "", "make only the files whose name contains this")
	rest, err := parseFlags(fs, args, 1, 1)
	if err != nil {
		return err
	}
	dir := rest[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	index := genIndex{Seed: genSeed, Bbolt: moduleVersion("go.etcd.io/bbolt")}
	for _, f := range genFiles() {
		if !strings.Contains(f.name, *only) {
			continue
		}
		entry, err := generate(dir, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		index.Files = append(index.Files, entry)
	}
	out, err := json.MarshalIndent(index, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), append(out, '\n'), 0o644); err != nil {
		return err
	}
	return printJSON(map[string]any{"dir": dir, "files": len(index.Files)})
}
