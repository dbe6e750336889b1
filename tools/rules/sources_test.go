package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

var unfinishedMark = regexp.MustCompile(`\b(TODO|FIXME)\b`)

// checkUnfinished looks at code and scripts, in comments and strings alike. Docs may speak of such marks; this package
// has to.
func checkUnfinished(t *tree) (findings []string) {
	for _, name := range slices.Sorted(maps.Keys(t.text)) {
		if path.Ext(name) == ".md" || path.Dir(name) == "tools/rules" {
			continue
		}
		for i, line := range strings.Split(t.text[name], "\n") {
			if mark := unfinishedMark.FindString(line); mark != "" {
				findings = append(findings, fmt.Sprintf("%s:%d: %s: finish it, or file an issue and say in words what is missing", name, i+1, mark))
			}
		}
	}
	return findings
}

// checkPanics allows panic in internal/invariant, in tests, in the programs under tools, and anywhere for a text that
// begins with "BUG: ".
func checkPanics(t *tree) (findings []string) {
	for f := range t.files {
		program := topFolder(f.path) == "tools" && f.Name.Name == "main"
		if f.test || program || path.Dir(f.path) == "internal/invariant" {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if fun, ok := call.Fun.(*ast.Ident); ok && fun.Name == "panic" && !saysBug(call.Args) {
				findings = append(findings, t.at(call.Pos())+": return an error; a bug goes through invariant.Bug or invariant.Check")
			}
			return true
		})
	}
	return findings
}

// saysBug reports whether the arguments of a panic are a text that begins with "BUG: ", plain, added to, or formatted.
func saysBug(args []ast.Expr) bool {
	if len(args) == 0 {
		return false
	}
	switch arg := args[0].(type) {
	case *ast.BasicLit:
		return arg.Kind == token.STRING && strings.HasPrefix(unquote(arg), "BUG: ")
	case *ast.BinaryExpr:
		return saysBug([]ast.Expr{arg.X})
	case *ast.CallExpr:
		_, formatted := isSelector(arg.Fun, "fmt", "Sprint", "Sprintf", "Errorf")
		return formatted && saysBug(arg.Args)
	}
	return false
}

var sourceCases = []ruleCase{
	{"unfinished", "finished", map[string]string{
		"codec/frame.go":       "package codec\n\n// TODOS is a word of its own.\nconst TODOS = 1\n",
		"docs/TESTING.md":      "No TODO stands in the code.\n",
		"tools/rules/x.go":     "package rules // TODO\n",
		"codec/testdata/a.txt": "TODO\n",
	}, nil},
	{"unfinished", "marks", map[string]string{
		"codec/frame.go": "package codec\n\n// TODO(me): later\nvar x = context.TODO()\n",
		"Makefile":       "all:\n\ttrue # FIXME\n",
		".ci/run":        "#!/bin/bash\n# TODO\n",
	}, []string{".ci/run:2: TODO", "Makefile:2: FIXME", "codec/frame.go:3: TODO", "codec/frame.go:4: TODO"}},
	{"panics", "bugs only", map[string]string{
		"codec/frame.go": `package codec

import "fmt"

func f(n int) {
	panic("BUG: plain")
	panic("BUG: " + fmt.Sprint(n))
	panic(fmt.Sprintf("BUG: %d", n))
	x.panic("a method")
}
`,
		"codec/frame_test.go":       "package codec\n\nfunc g() { panic(1) }\n",
		"tools/bench/main.go":       "package main\n\nfunc main() { panic(1) }\n",
		"internal/invariant/bug.go": "package invariant\n\nfunc Bug(s string) { panic(s) }\n",
	}, nil},
	{"panics", "others", map[string]string{
		"codec/frame.go":            "package codec\n\nfunc f() { panic(err) }\n",
		"loop/server.go":            "package loop\n\nfunc f() {\n\tgo func() { panic(\"bad\" + \"BUG: \") }()\n}\n",
		"topic/topic.go":            "package topic\n\nfunc f() { panic(fmt.Sprintf(\"no topic %d\", 1)) }\n",
		"cmd/lightq-broker/main.go": "package main\n\nfunc main() { panic(\"usage\") }\n",
		"tools/dump/read/read.go":   "package read\n\nfunc f() { panic(nil) }\n",
	}, []string{
		"cmd/lightq-broker/main.go:3: return an error",
		"codec/frame.go:3: return an error",
		"loop/server.go:4: return an error",
		"tools/dump/read/read.go:3: return an error",
		"topic/topic.go:3: return an error",
	}},
}
