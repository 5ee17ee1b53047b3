// Command oracle answers questions about etcd's files and servers with the
// published Go libraries, so that tests can compare our own answers to it.
// Every subcommand prints JSON on standard output; see ../README.md.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sort"
	"strings"
)

type command struct {
	usage string
	run   func(args []string) error
}

var commands map[string]command

func init() {
	commands = map[string]command{
		"boltgen":          {"boltgen [--only PART] DIR", runBoltgen},
		"boltdump":         {"boltdump [--timeout 60s] FILE", runBoltdump},
		"boltrewrite":      {"boltrewrite [--page-size N] [--freelist] [--churn N] SRC DST", runBoltrewrite},
		"boltshape":        {"boltshape FILE...", runBoltshape},
		"boltcheck":        {"boltcheck [--timeout 10s] FILE...   (FILE - reads names from standard input)", runBoltcheck},
		"boltcheck-worker": {"", runBoltcheckWorker},
		"fill":             {"fill --endpoint E --seed N --keys N [--ops N] [--big N] [--auth] [--no-compact] [--user NAME:PASSWORD]", runFill},
		"truth":            {"truth --endpoint E [--user NAME:PASSWORD]", runTruth},
		"watchprobe":       {"watchprobe --endpoint E --rev R --key K [--prefix] [--wait 5s] [--user NAME:PASSWORD]", runWatchprobe},
		"waldump":          {"waldump [--wal-dir DIR] MEMBERDIR", runWaldump},
		"walread":          {"walread WALDIR...   (changes them, as a server would)", runWalread},
	}
}

// errUsage marks a wrong call, which ends with status 2 instead of 1.
var errUsage = errors.New("wrong arguments")

func usage(w io.Writer) {
	names := make([]string, 0, len(commands))
	for name, c := range commands {
		if c.usage != "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	fmt.Fprintln(w, "usage:")
	for _, name := range names {
		fmt.Fprintln(w, "  oracle "+commands[name].usage)
	}
}

func main() {
	if len(os.Args) < 2 {
		usage(os.Stderr)
		os.Exit(2)
	}
	if a := os.Args[1]; a == "-h" || a == "--help" || a == "help" {
		usage(os.Stdout)
		return
	}
	c, ok := commands[os.Args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "oracle: unknown subcommand %q\n", os.Args[1])
		usage(os.Stderr)
		os.Exit(2)
	}
	if err := c.run(os.Args[2:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintf(os.Stderr, "oracle %s: %v\n", os.Args[1], err)
		if errors.Is(err, errUsage) {
			fmt.Fprintln(os.Stderr, "usage: oracle "+c.usage)
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// parseFlags reads the flags of one subcommand and insists on between least
// and most further arguments (most < 0: any number).
func parseFlags(fs *flag.FlagSet, args []string, least, most int) ([]string, error) {
	fs.SetOutput(os.Stderr)
	var rest []string
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, fmt.Errorf("%w: %v", errUsage, err)
		}
		// Flags may follow the other arguments too.
		args = fs.Args()
		if len(args) == 0 {
			break
		}
		rest = append(rest, args[0])
		args = args[1:]
	}
	if len(rest) < least || (most >= 0 && len(rest) > most) {
		return nil, fmt.Errorf("%w: got %q", errUsage, strings.Join(rest, " "))
	}
	return rest, nil
}

func printJSON(v any) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// moduleVersion tells which version of a module this program was built with.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, d := range info.Deps {
			if d.Path == path {
				return d.Version
			}
		}
	}
	return ""
}
