package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
)

// mayImport says which of the project's top folders a folder may import, beside its own subfolders and internal. The
// data path is a line, so that a newcomer can read it from either end and each layer can be tested without those above
// it.
var mayImport = map[string][]string{
	"codec":   nil, // pure functions on bytes
	"journal": {"codec"},
	"topic":   {"journal", "codec"},
	"loop":    {"topic", "journal", "codec"},
	"client":  {"codec"}, // a client must not carry the broker with it
	"cmd":     {"client", "loop", "topic", "journal", "codec"},
	"tools":   {"client", "loop", "topic", "journal", "codec"},
	"docs":    {"client", "loop", "codec"}, // example programs use what users use
}

// testsMayImport is what tests may import in addition.
var testsMayImport = map[string][]string{
	"client": {"loop", "topic", "journal"}, // a client is tested against a real broker in its own process
}

// mayImportInternal names the internal packages open to a folder that may not use all of them. Elsewhere an internal
// package may be imported by anyone, but what it imports counts as imported by its importer: internal is not a way
// around the direction.
var mayImportInternal = map[string][]string{
	"codec": {"internal/invariant"},
}

// restricted are packages from outside that only some of the code may touch.
var restricted = []restriction{
	{
		what:    "the network",
		paths:   []string{"net"},
		except:  []string{"net/netip", "net/url"}, // values, no sockets
		folders: []string{"loop", "client", "cmd", "tools", "docs"},
		tests:   true,
	},
	{
		what:    "files",
		paths:   []string{"os", "io/ioutil"},
		folders: []string{"journal", "cmd", "tools", "docs"},
		files: []string{
			"loop/acceptor*.go",  // a Unix socket is a file: it is given its mode, and a stale one is removed
			"loop/transport*.go", // the same
			"loop/memory_*.go",   // a control group's limit on memory is read from a file
		},
		names: map[string][]string{ // errors of sockets, and a poller's descriptor: no file is opened by them
			"loop":   {"ErrClosed", "ErrDeadlineExceeded", "NewSyscallError", "SyscallError", "NewFile", "File"},
			"client": {"ErrClosed", "ErrDeadlineExceeded", "SyscallError"},
		},
		tests: true,
	},
	{
		what:    "system calls",
		paths:   []string{"syscall", "golang.org/x/sys"},
		folders: []string{"loop", "journal", "client", "cmd", "tools"}, // not codec, not topic: they have no I/O
		tests:   true,
	},
	{
		what:    "gnet",
		paths:   []string{"github.com/panjf2000/gnet"},
		folders: []string{"tools"},                   // the bare relay that the benchmark compares with
		files:   []string{"loop/transport_gnet*.go"}, // the one transport that names it, and its tests
		tests:   false,                               // a session's test must run over any transport
	},
}

type restriction struct {
	what    string   // what these packages reach
	paths   []string // import paths; what is below them is meant too
	except  []string // paths below them that are free
	folders []string // top folders that may import them
	files   []string // patterns of further files that may
	tests   bool     // whether every test may

	// names says, by top folder, what of paths[0] may be used elsewhere too.
	names map[string][]string
}

func (r restriction) covers(importPath string) bool {
	under := func(p string) bool { return importPath == p || strings.HasPrefix(importPath, p+"/") }
	return slices.ContainsFunc(r.paths, under) && !slices.ContainsFunc(r.except, under)
}

func (r restriction) allows(f *goFile) bool {
	matches := func(pattern string) bool {
		ok, err := path.Match(pattern, f.path)
		if err != nil {
			panic(err)
		}
		return ok
	}
	return slices.Contains(r.folders, topFolder(f.path)) || r.tests && f.test || slices.ContainsFunc(r.files, matches)
}

// usesOtherThan returns the first name of an imported package that f uses and that is not one of names, as ".Name".
func (f *goFile) usesOtherThan(imported string, names []string) (other string) {
	pkg := f.importName(imported)
	ast.Inspect(f.File, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || other != "" {
			return other == ""
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg && !slices.Contains(names, sel.Sel.Name) {
			other = "." + sel.Sel.Name
		}
		return true
	})
	return other
}

// topFolder is the first element of a path, which decides what it may import.
func topFolder(p string) string {
	top, _, _ := strings.Cut(p, "/")
	return top
}

// ownFolder turns the import path of one of the project's packages into its folder.
func ownFolder(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

func checkImports(t *tree) (findings []string) {
	for f := range t.files {
		top := topFolder(f.path)
		if _, known := mayImport[top]; !known && top != "internal" {
			findings = append(findings, fmt.Sprintf("%s:1: folder %s has no place in the import order: add it to mayImport", f.path, path.Dir(f.path)))
			continue
		}
		for _, spec := range f.Imports {
			imported := unquote(spec.Path)
			if spec.Name != nil && spec.Name.Name == "." {
				findings = append(findings, fmt.Sprintf("%s: dot import of %s hides where names come from", t.at(spec.Pos()), imported))
			}
			for _, problem := range t.importProblems(f, imported, "", map[string]bool{}) {
				findings = append(findings, fmt.Sprintf("%s: %s", t.at(spec.Pos()), problem))
			}
		}
	}
	return findings
}

// importProblems says what is wrong with f importing a package, and, where that is an internal one, with what f
// imports through it. through names the internal packages passed on the way.
func (t *tree) importProblems(f *goFile, imported, through string, seen map[string]bool) (problems []string) {
	top := topFolder(f.path)
	for _, r := range restricted {
		// internal packages answer for nothing themselves: those that import them do.
		if !r.covers(imported) || r.allows(f) || top == "internal" && r.what != "gnet" {
			continue
		}
		which := ""
		if names := r.names[top]; names != nil && imported == r.paths[0] && through == "" {
			if which = f.usesOtherThan(imported, names); which == "" {
				continue
			}
		}
		problems = append(problems, fmt.Sprintf("%s imports %s%s%s: it must not touch %s", path.Dir(f.path), imported, which, through, r.what))
	}

	folder, own := ownFolder(imported)
	if !own || seen[folder] {
		return problems
	}
	seen[folder] = true
	target := topFolder(folder)
	if target != "internal" {
		allowed := target == top && top != "cmd" || slices.Contains(mayImport[top], target)
		if f.test {
			allowed = allowed || slices.Contains(testsMayImport[top], target)
		}
		if top == "internal" {
			allowed = target != "cmd" && target != "tools"
		}
		if !allowed {
			problems = append(problems, fmt.Sprintf("%s imports %s%s: against the import order", path.Dir(f.path), folder, through))
		}
		return problems
	}

	if open, limited := mayImportInternal[top]; limited && !f.test && !slices.Contains(open, folder) {
		problems = append(problems, fmt.Sprintf("%s imports %s%s: of internal it may import only %s",
			path.Dir(f.path), folder, through, strings.Join(open, ", ")))
	}
	if f.test || top == "internal" {
		return problems
	}
	next := map[string]bool{}
	for _, g := range t.packages[folder] {
		if !g.test {
			for _, spec := range g.Imports {
				next[unquote(spec.Path)] = true
			}
		}
	}
	if through == "" {
		through = " through " + folder
	} else {
		through += ", " + folder
	}
	for _, n := range slices.Sorted(maps.Keys(next)) {
		problems = append(problems, t.importProblems(f, n, through, seen)...)
	}
	return problems
}

// source is the text of a Go file that imports the given packages.
func source(pkg string, imports ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n", pkg)
	for _, p := range imports {
		if strings.HasPrefix(p, "./") {
			p = module + p[1:]
		}
		fmt.Fprintf(&b, "import %q\n", p)
	}
	return b.String()
}

var importCases = []ruleCase{
	{"imports", "the whole path is fine", map[string]string{
		"cmd/lightq-broker/main.go":   source("main", "./loop", "./internal/cli", "os", "net"),
		"cmd/lightq-topic/main.go":    source("main", "./client"),
		"loop/session.go":             source("loop", "./topic", "./codec", "net", "./internal/invariant"),
		"loop/kafka/server.go":        source("kafka", "./loop", "./topic"),
		"topic/topic.go":              source("topic", "./journal", "./codec", "time"),
		"journal/log.go":              source("journal", "./codec", "./journal/vfs", "os"),
		"codec/frame.go":              source("codec", "./internal/invariant", "hash/crc32"),
		"codec/frame_test.go":         source("codec", "os", "./internal/golden"),
		"client/client.go":            source("client", "./codec", "net"),
		"client/client_test.go":       source("client", "./loop", "os", "testing"),
		"internal/invariant/bug.go":   source("invariant", "fmt"),
		"internal/golden/golden.go":   source("golden", "os"),
		"internal/cli/cli.go":         source("cli", "./client", "os", "net"),
		"tools/bench/relay.go":        source("main", "github.com/panjf2000/gnet/v2", "./client", "net", "os"),
		"loop/transport_gnet.go":      source("loop", "github.com/panjf2000/gnet/v2", "os"),
		"loop/transport_gnet_test.go": source("loop", "github.com/panjf2000/gnet/v2/pkg/errors"),
		"loop/acceptor_unix.go":       source("loop", "os", "golang.org/x/sys/unix"),
	}, nil},
	{"imports", "upwards", map[string]string{
		"codec/frame.go":           source("codec", "./topic"),
		"journal/log.go":           source("journal", "./topic"),
		"topic/topic.go":           source("topic", "./loop"),
		"topic/topic_test.go":      source("topic_test", "./loop"),
		"loop/session.go":          source("loop", "./client"),
		"client/client.go":         source("client", "./topic"),
		"internal/broker/start.go": source("broker", "./cmd/lightq-broker"),
	}, []string{
		"client/client.go:2: client imports topic: against",
		"codec/frame.go:2: codec imports topic: against",
		"internal/broker/start.go:2: internal/broker imports cmd/lightq-broker: against",
		"journal/log.go:2: journal imports topic: against",
		"loop/session.go:2: loop imports client: against",
		"topic/topic.go:2: topic imports loop: against",
		"topic/topic_test.go:2: topic imports loop: against",
	}},
	{"imports", "nothing imports cmd", map[string]string{
		"tools/bench/main.go":      source("main", "./cmd/lightq-broker"),
		"cmd/lightq-topic/main.go": source("main", "./cmd/lightq-broker"),
	}, []string{
		"cmd/lightq-topic/main.go:2: cmd/lightq-topic imports cmd/lightq-broker",
		"tools/bench/main.go:2: tools/bench imports cmd/lightq-broker",
	}},
	{"imports", "around by internal", map[string]string{
		"client/client.go":      source("client", "./internal/dial"),
		"internal/dial/dial.go": source("dial", "./internal/more"),
		"internal/more/more.go": source("more", "./loop", "fmt", "./internal/dial"),
		"topic/topic.go":        source("topic", "./internal/disk"),
		"internal/disk/disk.go": source("disk", "os", "net/http"),
		"codec/frame.go":        source("codec", "./internal/pure"),
		"internal/pure/pure.go": source("pure"),
	}, []string{
		"client/client.go:2: client imports loop through internal/dial, internal/more: against",
		"codec/frame.go:2: codec imports internal/pure: of internal it may import only internal/invariant",
		"topic/topic.go:2: topic imports net/http through internal/disk: it must not touch the network",
		"topic/topic.go:2: topic imports os through internal/disk: it must not touch files",
	}},
	{"imports", "sockets, files, system calls", map[string]string{
		"codec/frame.go":   source("codec", "os", "net"),
		"topic/topic.go":   source("topic", "os/user", "net/http", "syscall", "golang.org/x/sys/unix", "net/netip"),
		"loop/session.go":  source("loop", "os") + "var f, e = os.Open(name)\n",
		"loop/poller.go":   source("loop", "os") + "var e = os.NewSyscallError(name, os.ErrClosed)\n",
		"client/dial.go":   "package client\nimport sys \"os\"\nvar e = sys.ErrDeadlineExceeded\n",
		"journal/log.go":   source("journal", "net"),
		"client/client.go": "package client\nimport sys \"os\"\nvar p = sys.Getenv(name)\n",
	}, []string{
		"client/client.go:2: client imports os.Getenv: it must not touch files",
		"codec/frame.go:2: codec imports os: it must not touch files",
		"codec/frame.go:3: codec imports net: it must not touch the network",
		"journal/log.go:2: journal imports net: it must not touch the network",
		"loop/session.go:2: loop imports os.Open: it must not touch files",
		"topic/topic.go:2: topic imports os/user: it must not touch files",
		"topic/topic.go:3: topic imports net/http: it must not touch the network",
		"topic/topic.go:4: topic imports syscall: it must not touch system calls",
		"topic/topic.go:5: topic imports golang.org/x/sys/unix: it must not touch system calls",
	}},
	{"imports", "gnet", map[string]string{
		"loop/session.go":        source("loop", "github.com/panjf2000/gnet/v2"),
		"loop/session_test.go":   source("loop", "github.com/panjf2000/gnet/v2"),
		"internal/gn/gn.go":      source("gn", "github.com/panjf2000/gnet/v2"),
		"cmd/lightq-broker/x.go": source("main", "github.com/panjf2000/gnet/v2/pkg/logging"),
	}, []string{
		"cmd/lightq-broker/x.go:2: cmd/lightq-broker imports github.com/panjf2000/gnet/v2/pkg/logging: it must not touch gnet",
		"internal/gn/gn.go:2: internal/gn imports github.com/panjf2000/gnet/v2: it must not touch gnet",
		"loop/session.go:2: loop imports github.com/panjf2000/gnet/v2: it must not touch gnet",
		"loop/session_test.go:2: loop imports github.com/panjf2000/gnet/v2: it must not touch gnet",
	}},
	{"imports", "a folder without a place, a dot import", map[string]string{
		"main.go":         source("main"),
		"server/start.go": source("server"),
		"codec/frame.go":  "package codec\n\nimport . \"fmt\"\n",
	}, []string{
		"main.go:1: folder . has no place",
		"codec/frame.go:3: dot import of fmt",
		"server/start.go:1: folder server has no place",
	}},
}
