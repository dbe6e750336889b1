package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// coreFiles are the partition core: a step function of its arguments, so that a test can drive it through any
// interleaving, and a model can be compared with it step by step.
var coreFiles = []string{
	"topic/partition.go",
	"topic/fifo.go",
	"topic/ring.go",
	"topic/group.go",
	"topic/idempotence/state.go",
	"topic/idempotence/snapshot.go",
}

// coreMustNotImport are packages, with all below them, that would make a step depend on more than its arguments, or
// reach outside.
var coreMustNotImport = []string{
	"context", "crypto/rand", "log", "math/rand", "net", "os", "runtime", "sync", "syscall", "unsafe",
}

// clockNames are what package time offers beside values such as Duration.
var clockNames = []string{
	"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Ticker", "Timer", "Until",
}

func checkCore(t *tree) (findings []string) {
	for f := range t.files {
		if !slices.Contains(coreFiles, f.path) {
			continue
		}
		report := func(pos token.Pos, format string, args ...any) {
			findings = append(findings, fmt.Sprintf("%s: the partition core must not %s", t.at(pos), fmt.Sprintf(format, args...)))
		}
		for _, spec := range f.Imports {
			imported := unquote(spec.Path)
			if slices.ContainsFunc(coreMustNotImport, func(p string) bool {
				return imported == p || strings.HasPrefix(imported, p+"/")
			}) {
				report(spec.Pos(), "import %s", imported)
			}
		}
		clock, format := f.importName("time"), f.importName("fmt")
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				report(n.Pos(), "start a goroutine")
			case *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				report(n.Pos(), "use a channel")
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					report(n.Pos(), "use a channel")
				}
			case *ast.SelectorExpr:
				if name, ok := isSelector(n, clock, clockNames...); ok {
					report(n.Pos(), "use time.%s", name)
				}
				if name, ok := isSelector(n, format, "Print", "Printf", "Println"); ok {
					report(n.Pos(), "use fmt.%s", name)
				}
			}
			return true
		})
	}
	return findings
}

var coreCases = []ruleCase{
	{"core", "pure", map[string]string{
		"topic/partition.go": `package topic

import (
	"fmt"
	"time"
)

type step struct{ now time.Time; limit time.Duration }

func (s step) late(t time.Time) bool { return s.now.Sub(t) > s.limit }

func (s step) String() string { return fmt.Sprintf("%v", s.now) }
`,
		"topic/writer.go": "package topic\n\nimport \"sync\"\n\nvar mu sync.Mutex\n\nfunc run(c chan int) { go func() { c <- 1 }() }\n",
	}, nil},
	{"core", "goroutine and channels", map[string]string{
		"topic/ring.go": `package topic

func (r *ring) run(
	wake chan struct{},
) {
	go r.step()
	wake <- struct{}{}
	<-wake
	select {
	default:
	}
}
`,
	}, []string{
		"topic/ring.go:4: the partition core must not use a channel",
		"topic/ring.go:6: the partition core must not start a goroutine",
		"topic/ring.go:7: the partition core must not use a channel",
		"topic/ring.go:8: the partition core must not use a channel",
		"topic/ring.go:9: the partition core must not use a channel",
	}},
	{"core", "clocks, also renamed", map[string]string{
		"topic/group.go": `package topic

import clock "time"

func age(t clock.Time) clock.Duration {
	_ = clock.Since(t)
	clock.AfterFunc(0, nil)
	now := clock.Now
	return now().Sub(t)
}
`,
	}, []string{
		"topic/group.go:6: the partition core must not use time.Since",
		"topic/group.go:7: the partition core must not use time.AfterFunc",
		"topic/group.go:8: the partition core must not use time.Now",
	}},
	{"core", "locks, I/O, chance", map[string]string{
		"topic/partition.go": source("topic", "sync", "sync/atomic", "os", "net", "log/slog", "math/rand/v2", "sort"),
		"topic/ring.go":      "package topic\n\nimport \"fmt\"\n\nfunc show() { fmt.Println() }\n",
	}, []string{
		"partition.go:2: the partition core must not import sync",
		"partition.go:3: the partition core must not import sync/atomic",
		"partition.go:4: the partition core must not import os",
		"partition.go:5: the partition core must not import net",
		"partition.go:6: the partition core must not import log/slog",
		"partition.go:7: the partition core must not import math/rand/v2",
		"ring.go:5: the partition core must not use fmt.Println",
	}},
}
