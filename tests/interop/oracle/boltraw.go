package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// This file reads the bytes of a bbolt file directly, without the library:
// to refuse files that are too short before the library maps them, and to
// tell which shapes of page a generated file really contains.

const (
	metaMagic     = 0xED0CDAED
	metaVersion   = 2
	noFreelist    = ^uint64(0)
	flagBranch    = 0x01
	flagLeaf      = 0x02
	flagMeta      = 0x04
	flagFreelist  = 0x10
	pageHeaderLen = 16
)

// rawMeta is one meta page as stored.
type rawMeta struct {
	Valid    bool   `json:"valid"`
	PageSize uint32 `json:"page_size"`
	Root     uint64 `json:"root"`
	Sequence uint64 `json:"sequence"`
	Freelist string `json:"freelist"` // decimal page id, or "none"
	HighPage uint64 `json:"high_page"`
	Txid     uint64 `json:"txid"`
	freelist uint64
}

func parseMeta(page []byte) (m rawMeta) {
	if len(page) < 80 {
		return
	}
	le := binary.LittleEndian
	m.PageSize = le.Uint32(page[24:])
	m.Root = le.Uint64(page[32:])
	m.Sequence = le.Uint64(page[40:])
	m.freelist = le.Uint64(page[48:])
	m.HighPage = le.Uint64(page[56:])
	m.Txid = le.Uint64(page[64:])
	m.Freelist = "none"
	if m.freelist != noFreelist {
		m.Freelist = fmt.Sprint(m.freelist)
	}
	h := fnv.New64a()
	h.Write(page[16:72])
	m.Valid = le.Uint32(page[16:]) == metaMagic && le.Uint32(page[20:]) == metaVersion &&
		le.Uint64(page[72:]) == h.Sum64()
	return
}

// metas holds both meta pages of a file and the index of the one in force.
type metas struct {
	Meta     [2]rawMeta
	Chosen   int // -1: neither is valid
	PageSize int64
	FileSize int64
}

func readMetas(f *os.File) (metas, error) {
	var ms metas
	ms.Chosen = -1
	st, err := f.Stat()
	if err != nil {
		return ms, err
	}
	ms.FileSize = st.Size()
	if !st.Mode().IsRegular() {
		return ms, errors.New("not a regular file")
	}
	read := func(off int64) rawMeta {
		var buf [80]byte
		n, err := f.ReadAt(buf[:], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return rawMeta{}
		}
		return parseMeta(buf[:n])
	}
	ms.Meta[0] = read(0)
	if ms.Meta[0].Valid {
		ms.PageSize = int64(ms.Meta[0].PageSize)
	} else {
		for i := 0; i < 15; i++ {
			off := int64(1024) << i
			if off >= ms.FileSize-1024 {
				break
			}
			if m := read(off); m.Valid {
				ms.PageSize = int64(m.PageSize)
				break
			}
		}
	}
	if ms.PageSize <= 0 {
		return ms, nil
	}
	ms.Meta[1] = read(ms.PageSize)
	switch a, b := ms.Meta[0], ms.Meta[1]; {
	case a.Valid && (!b.Valid || a.Txid >= b.Txid):
		ms.Chosen = 0
	case b.Valid:
		ms.Chosen = 1
	}
	return ms, nil
}

// tooShort tells whether the file ends before the last page its meta counts.
func (ms metas) tooShort() bool {
	if ms.Chosen < 0 {
		return false
	}
	return ms.Meta[ms.Chosen].HighPage > uint64(ms.FileSize/ms.PageSize)
}

// shape counts what a file contains, by walking it from the root.
type shape struct {
	Depth             int    `json:"depth"` // most pages between a bucket's root and its leaf, both counted
	BucketDepth       int    `json:"bucket_depth"`
	BranchPages       int    `json:"branch_pages"`
	LeafPages         int    `json:"leaf_pages"`
	EmptyLeaves       int    `json:"empty_leaves"` // not counting empty buckets of one page
	EmptyRootLeaves   int    `json:"empty_root_leaves"`
	OneChildBranches  int    `json:"one_child_branches"`
	StaleBranchKeys   int    `json:"stale_branch_keys"` // branch keys below the first key of their child
	MultiPageNodes    int    `json:"multi_page_nodes"`
	LongestNodePages  uint64 `json:"longest_node_pages"`
	InlineBuckets     int    `json:"inline_buckets"`
	EmptyInline       int    `json:"empty_inline_buckets"`
	LongestKey        int    `json:"longest_key"`
	LongestValue      int    `json:"longest_value"`
	FreelistIDs       uint64 `json:"freelist_ids"`
	FreelistLongForm  bool   `json:"freelist_long_form"`
	FreelistPages     uint64 `json:"freelist_pages"`
	UnreachableBelow  uint64 `json:"unused_pages"` // below the high page and not reachable
	reachable         map[uint64]bool
	freelistPositions []uint64
}

type rawFile struct {
	f  *os.File
	ms metas
	sh shape
}

func (r *rawFile) page(id uint64) ([]byte, error) {
	ps := r.ms.PageSize
	hdr := make([]byte, pageHeaderLen)
	if _, err := r.f.ReadAt(hdr, int64(id)*ps); err != nil {
		return nil, err
	}
	if got := binary.LittleEndian.Uint64(hdr); got != id {
		return nil, fmt.Errorf("page %d says it is %d", id, got)
	}
	over := uint64(binary.LittleEndian.Uint32(hdr[12:]))
	if id+over >= r.ms.Meta[r.ms.Chosen].HighPage {
		return nil, fmt.Errorf("page %d runs past the high page", id)
	}
	buf := make([]byte, int64(over+1)*ps)
	if _, err := r.f.ReadAt(buf, int64(id)*ps); err != nil {
		return nil, err
	}
	for i := id; i <= id+over; i++ {
		if r.sh.reachable[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		r.sh.reachable[i] = true
	}
	return buf, nil
}

func elem(page []byte, i int) (flags uint32, pgid uint64, key, val []byte, err error) {
	le := binary.LittleEndian
	at := pageHeaderLen + 16*i
	if at+16 > len(page) {
		return 0, 0, nil, nil, errors.New("element past the end of its page")
	}
	e := page[at:]
	var pos, ks, vs uint32
	if le.Uint16(page[8:])&flagLeaf != 0 {
		flags, pos, ks, vs = le.Uint32(e), le.Uint32(e[4:]), le.Uint32(e[8:]), le.Uint32(e[12:])
	} else {
		pos, ks, pgid = le.Uint32(e), le.Uint32(e[4:]), le.Uint64(e[8:])
	}
	from := uint64(at) + uint64(pos)
	if from+uint64(ks)+uint64(vs) > uint64(len(page)) {
		return 0, 0, nil, nil, errors.New("element data past the end of its page")
	}
	key = page[from : from+uint64(ks)]
	val = page[from+uint64(ks) : from+uint64(ks)+uint64(vs)]
	return
}

// walk visits a page and returns the smallest key at or below it.
func (r *rawFile) walk(id uint64, depth, bucketDepth int) ([]byte, error) {
	p, err := r.page(id)
	if err != nil {
		return nil, err
	}
	sh := &r.sh
	pages := uint64(len(p)) / uint64(r.ms.PageSize)
	if pages > 1 {
		sh.MultiPageNodes++
	}
	sh.LongestNodePages = max(sh.LongestNodePages, pages)
	sh.Depth = max(sh.Depth, depth)
	switch binary.LittleEndian.Uint16(p[8:]) {
	case flagLeaf:
		sh.LeafPages++
		if n := binary.LittleEndian.Uint16(p[10:]); n == 0 {
			if depth == 1 {
				sh.EmptyRootLeaves++
			} else {
				sh.EmptyLeaves++
			}
		}
		return r.leaf(p, bucketDepth)
	case flagBranch:
		sh.BranchPages++
		n := int(binary.LittleEndian.Uint16(p[10:]))
		if n == 1 {
			sh.OneChildBranches++
		}
		var first []byte
		for i := 0; i < n; i++ {
			_, child, key, _, err := elem(p, i)
			if err != nil {
				return nil, fmt.Errorf("page %d: %w", id, err)
			}
			sh.LongestKey = max(sh.LongestKey, len(key))
			low, err := r.walk(child, depth+1, bucketDepth)
			if err != nil {
				return nil, err
			}
			if low != nil && bytes.Compare(key, low) < 0 {
				sh.StaleBranchKeys++
			}
			if first == nil {
				first = low
			}
		}
		return first, nil
	}
	return nil, fmt.Errorf("page %d is neither branch nor leaf", id)
}

func (r *rawFile) leaf(p []byte, bucketDepth int) ([]byte, error) {
	sh := &r.sh
	sh.BucketDepth = max(sh.BucketDepth, bucketDepth)
	n := int(binary.LittleEndian.Uint16(p[10:]))
	var first []byte
	for i := 0; i < n; i++ {
		flags, _, key, val, err := elem(p, i)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			first = bytes.Clone(key)
		}
		sh.LongestKey = max(sh.LongestKey, len(key))
		if flags&1 == 0 {
			sh.LongestValue = max(sh.LongestValue, len(val))
			continue
		}
		if len(val) < 16 {
			return nil, fmt.Errorf("bucket entry of %d bytes", len(val))
		}
		if root := binary.LittleEndian.Uint64(val); root != 0 {
			if _, err := r.walk(root, 1, bucketDepth+1); err != nil {
				return nil, err
			}
			continue
		}
		sh.InlineBuckets++
		if len(val) < 32 {
			return nil, fmt.Errorf("inline bucket of %d bytes", len(val))
		}
		if binary.LittleEndian.Uint16(val[26:]) == 0 {
			sh.EmptyInline++
		}
		if _, err := r.leaf(val[16:], bucketDepth+1); err != nil {
			return nil, err
		}
	}
	return first, nil
}

// readShape walks a whole, sound file.
func readShape(path string) (metas, shape, error) {
	f, err := os.Open(path)
	if err != nil {
		return metas{}, shape{}, err
	}
	defer f.Close()
	r := rawFile{f: f}
	r.sh.reachable = map[uint64]bool{0: true, 1: true}
	if r.ms, err = readMetas(f); err != nil {
		return r.ms, r.sh, err
	}
	if r.ms.Chosen < 0 {
		return r.ms, r.sh, errors.New("no valid meta page")
	}
	if r.ms.tooShort() {
		return r.ms, r.sh, errors.New("file is shorter than its meta says")
	}
	m := r.ms.Meta[r.ms.Chosen]
	if m.freelist != noFreelist {
		p, err := r.page(m.freelist)
		if err != nil {
			return r.ms, r.sh, err
		}
		n, at := uint64(binary.LittleEndian.Uint16(p[10:])), uint64(pageHeaderLen)
		if n == 0xFFFF {
			n, at, r.sh.FreelistLongForm = binary.LittleEndian.Uint64(p[16:]), 24, true
		}
		if n > (uint64(len(p))-at)/8 {
			return r.ms, r.sh, errors.New("freelist runs past its page")
		}
		r.sh.FreelistIDs = n
		r.sh.FreelistPages = uint64(len(p)) / uint64(r.ms.PageSize)
		for i := uint64(0); i < n; i++ {
			r.sh.freelistPositions = append(r.sh.freelistPositions, binary.LittleEndian.Uint64(p[at+8*i:]))
		}
	}
	if _, err := r.walk(m.Root, 1, 0); err != nil {
		return r.ms, r.sh, err
	}
	for i := uint64(2); i < m.HighPage; i++ {
		if !r.sh.reachable[i] {
			r.sh.UnreachableBelow++
		}
	}
	return r.ms, r.sh, nil
}

type shapeLine struct {
	File     string     `json:"file"`
	FileSize int64      `json:"file_size"`
	PageSize int64      `json:"page_size"`
	Metas    [2]rawMeta `json:"metas"`
	Chosen   int        `json:"chosen_meta"`
	Shape    *shape     `json:"shape,omitempty"`
	Error    string     `json:"error,omitempty"`
}

func describe(path string) shapeLine {
	ms, sh, err := readShape(path)
	line := shapeLine{File: path, FileSize: ms.FileSize, PageSize: ms.PageSize, Metas: ms.Meta, Chosen: ms.Chosen}
	if err != nil {
		line.Error = err.Error()
	} else {
		line.Shape = &sh
	}
	return line
}

func runBoltshape(args []string) error {
	files, err := parseFlags(newFlags("boltshape"), args, 1, -1)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := printJSON(describe(f)); err != nil {
			return err
		}
	}
	return nil
}

func hexPath(path [][]byte) []string {
	out := make([]string, len(path))
	for i, p := range path {
		out[i] = hex.EncodeToString(p)
	}
	return out
}
