package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

type checkResult struct {
	File      string   `json:"file"`
	OK        bool     `json:"ok"`
	Errors    []string `json:"errors"`
	Panic     string   `json:"panic,omitempty"`
	OpenError string   `json:"open_error,omitempty"`
	Short     bool     `json:"short,omitempty"`
	Timeout   bool     `json:"timeout,omitempty"`
}

// A damaged file can give thousands of complaints; the first ones are enough.
const maxCheckErrors = 200

func checkFile(path string) (res checkResult) {
	res.File = path
	res.Errors = []string{}
	debug.SetPanicOnFault(true)
	defer func() {
		if p := recover(); p != nil {
			res.OK = false
			res.Panic = fmt.Sprint(p)
		}
	}()
	switch err := refuseShort(path); {
	case errors.Is(err, errShort):
		res.Short = true
		return
	case err != nil:
		res.OpenError = err.Error()
		return
	}
	db, err := openReadOnly(path)
	if err != nil {
		res.OpenError = err.Error()
		return
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		for e := range tx.Check() {
			if strings.HasSuffix(fmt.Sprintf("%T", e), ".panicked") {
				res.Panic = strings.TrimPrefix(e.Error(), "panic: ")
				continue
			}
			if len(res.Errors) == maxCheckErrors {
				// With a loop among the pages the check may never end. Its
				// goroutine stays behind, waiting to send.
				res.Errors = append(res.Errors, "and more")
				break
			}
			res.Errors = append(res.Errors, e.Error())
		}
		return nil
	})
	if err != nil {
		res.OpenError = err.Error()
	}
	res.OK = err == nil && len(res.Errors) == 0 && res.Panic == ""
	return
}

// runBoltcheckWorker checks the files named on standard input, one JSON string
// a line. The library does part of its work in goroutines of its own, where a
// fault or a deep recursion ends the process: hence the separate process.
func runBoltcheckWorker([]string) error {
	// A crafted length must not eat the memory of the machine.
	const limit = 6 << 30
	_ = syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: limit, Max: limit})
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	debug.SetMaxStack(64 << 20)
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var path string
		if err := json.Unmarshal(line, &path); err != nil {
			return err
		}
		if err := printJSON(checkFile(path)); err != nil {
			return err
		}
	}
}

// lastWords keeps the first part of a worker's standard error, where the Go
// runtime says what ended it.
type lastWords struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := 16<<10 - len(l.buf); room > 0 {
		l.buf = append(l.buf, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (l *lastWords) reason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range strings.Split(string(l.buf), "\n") {
		for _, start := range []string{"panic: ", "fatal error: ", "unexpected fault address", "runtime: goroutine stack exceeds"} {
			if strings.HasPrefix(line, start) {
				return strings.TrimPrefix(line, "panic: ")
			}
		}
	}
	return "the checking process ended early"
}

type worker struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan []byte
	words *lastWords
}

func startWorker() (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(self, "boltcheck-worker"), lines: make(chan []byte), words: &lastWords{}}
	w.cmd.Stderr = w.words
	w.cmd.Env = append(os.Environ(), "GOTRACEBACK=single")
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(w.lines)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			w.lines <- line
		}
	}()
	return w, nil
}

// stop ends the worker and waits for it, so that its last words are complete.
func (w *worker) stop() {
	_ = w.in.Close()
	_ = w.cmd.Process.Kill()
	for range w.lines {
	}
	_ = w.cmd.Wait()
}

// check gives one file to the worker. A worker that died or hung is no longer
// usable: the second result is then false.
func (w *worker) check(path string, timeout time.Duration) (checkResult, bool) {
	name, _ := json.Marshal(path)
	_, _ = w.in.Write(append(name, '\n'))
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	failed := checkResult{File: path, Errors: []string{}}
	select {
	case line, open := <-w.lines:
		var res checkResult
		if open && json.Unmarshal(line, &res) == nil {
			return res, true
		}
		// Let it finish its message before ending it.
		done := make(chan struct{})
		go func() { _ = w.cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(2 * time.Second):
			_ = w.cmd.Process.Kill()
			<-done
		}
		failed.Panic = w.words.reason()
	case <-timer.C:
		w.stop()
		failed.Timeout = true
	}
	return failed, false
}

func runBoltcheck(args []string) error {
	fs := newFlags("boltcheck")
	timeout := fs.Duration("timeout", 10*time.Second, "longest time for one file")
	files, err := parseFlags(fs, args, 1, -1)
	if err != nil {
		return err
	}
	if len(files) == 1 && files[0] == "-" {
		files = nil
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			if in.Text() != "" {
				files = append(files, in.Text())
			}
		}
		if err := in.Err(); err != nil {
			return err
		}
	}
	var w *worker
	for _, path := range files {
		if w == nil {
			if w, err = startWorker(); err != nil {
				return err
			}
		}
		res, usable := w.check(path, *timeout)
		if usable && !res.OK {
			// A goroutine of the library may still be at work on the damaged
			// file, and its panic would be taken for the next file's.
			w.stop()
			usable = false
		}
		if !usable {
			w = nil
		}
		if err := printJSON(res); err != nil {
			return err
		}
	}
	if w != nil {
		w.stop()
	}
	return nil
}
