package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"
)

// checkTests keeps out the two things that make a test suite lie: sleeps, which make it slow on a fast machine and
// flaky on a slow one, and skips, which make it green without having looked.
func checkTests(t *tree) (findings []string) {
	for f := range t.files {
		findings = append(findings, t.sleeps(f)...)
		findings = append(findings, t.skips(f)...)
	}
	return findings
}

func (t *tree) sleeps(f *goFile) (findings []string) {
	clock := f.importName("time")
	if !f.test || clock == "" {
		return nil
	}
	// Inside a synctest bubble time is virtual, and waiting for it is how a test moves the clock.
	virtual := f.importName("testing/synctest") != ""
	inSelect := map[ast.Stmt]bool{} // a deadline beside an event is what a test should have
	ast.Inspect(f.File, func(n ast.Node) bool {
		if clause, ok := n.(*ast.CommClause); ok {
			inSelect[clause.Comm] = true
		}
		if _, ok := isSelector(n, clock, "Sleep"); ok {
			findings = append(findings, t.at(n.Pos())+": a test must wait on an event with a deadline, not sleep"+
				" (in a synctest bubble: <-time.After)")
		}
		statement, ok := n.(*ast.ExprStmt)
		if !ok || virtual || inSelect[statement] {
			return true
		}
		receive, ok := statement.X.(*ast.UnaryExpr)
		if !ok || receive.Op != token.ARROW {
			return true
		}
		if call, ok := receive.X.(*ast.CallExpr); ok {
			if name, ok := isSelector(call.Fun, clock, "After", "Tick"); ok {
				findings = append(findings, fmt.Sprintf("%s: a test must wait on an event with a deadline: a lone <-time.%s is a sleep",
					t.at(n.Pos()), name))
			}
		}
		return true
	})
	return findings
}

// skips reports calls of Skip, Skipf and SkipNow on a test's handle that are unconditional or do not say why.
func (t *tree) skips(f *goFile) (findings []string) {
	handles := map[string]bool{}
	ast.Inspect(f.File, func(n ast.Node) bool {
		function, ok := n.(*ast.FuncType)
		if !ok {
			return true
		}
		for _, field := range function.Params.List {
			of := field.Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			_, isTesting := isSelector(of, f.importName("testing"), "T", "B", "F", "TB")
			_, isRapid := isSelector(of, f.importName("pgregory.net/rapid"), "T")
			if isTesting || isRapid {
				for _, name := range field.Names {
					handles[name.Name] = true
				}
			}
		}
		return true
	})

	conditional := 0
	var visit func(ast.Node) bool
	inspect := func(n ast.Node) {
		if n != nil {
			ast.Inspect(n, visit)
		}
	}
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			if n.Init != nil {
				inspect(n.Init)
			}
			inspect(n.Cond)
			conditional++
			inspect(n.Body)
			if n.Else != nil {
				inspect(n.Else)
			}
			conditional--
			return false
		case *ast.CaseClause:
			conditional++
			for _, statement := range n.Body {
				inspect(statement)
			}
			conditional--
			return false
		case *ast.FuncLit:
			outer := conditional
			conditional = 0
			inspect(n.Body)
			conditional = outer
			return false
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			handle, ok := sel.X.(*ast.Ident)
			if !ok || !handles[handle.Name] {
				return true
			}
			switch sel.Sel.Name {
			case "SkipNow":
				findings = append(findings, t.at(n.Pos())+": SkipNow gives no reason: use Skip")
			case "Skip", "Skipf":
				if conditional == 0 {
					findings = append(findings, t.at(n.Pos())+": a test that always skips is no test")
				}
				if !explains(n.Args) {
					findings = append(findings, t.at(n.Pos())+": a skip must say in words what is missing")
				}
			}
		}
		return true
	}
	ast.Inspect(f.File, visit)
	return findings
}

// explains reports whether the arguments of a skip begin with a text of at least two words.
func explains(args []ast.Expr) bool {
	if len(args) == 0 {
		return false
	}
	first := args[0]
	for {
		sum, ok := first.(*ast.BinaryExpr)
		if !ok {
			break
		}
		first = sum.X
	}
	text, ok := first.(*ast.BasicLit)
	return ok && text.Kind == token.STRING && len(strings.Fields(unquote(text))) >= 2
}

var testCases = []ruleCase{
	{"tests", "waits and explained skips", map[string]string{
		"loop/x_test.go": `package loop

import (
	"testing"
	"time"
)

func TestX(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 4 GiB: run without -short")
	}
	switch v := version(); v {
	case 1:
		t.Skipf("kernel %d has no such call", v)
	}
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("not done after 10 s")
	}
	r.Skip(4)
}
`,
		"loop/y_test.go": `package loop

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestY(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Hour)
	})
}
`,
		"loop/acceptor.go": "package loop\n\nimport \"time\"\n\nfunc backOff() { time.Sleep(1) }\n",
	}, nil},
	{"tests", "sleeps", map[string]string{
		"loop/x_test.go": `package loop

import (
	"testing"
	clock "time"
)

func TestX(t *testing.T) {
	clock.Sleep(clock.Millisecond)
	<-clock.After(clock.Millisecond)
}
`,
		"loop/y_test.go": `package loop

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestY(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { time.Sleep(time.Hour) })
}
`,
	}, []string{
		"loop/x_test.go:9: a test must wait",
		"loop/x_test.go:10: a test must wait on an event with a deadline: a lone <-time.After",
		"loop/y_test.go:10: a test must wait",
	}},
	{"tests", "skips", map[string]string{
		"loop/x_test.go": `package loop

import (
	"testing"

	"pgregory.net/rapid"
)

func TestX(t *testing.T) {
	t.Skip("not on this machine")
}

func BenchmarkX(b *testing.B) {
	if slow {
		b.SkipNow()
	}
	if fast {
		b.Run("x", func(b *testing.B) {
			b.Skipf("why, %s", "though?")
		})
	} else {
		b.Skip()
	}
}

func property(rt *rapid.T) {
	if odd {
		rt.Skip("odd")
	}
}
`,
		"internal/live/live.go": `package live

import "testing"

func Start(tb testing.TB) {
	tb.Skip("no broker here")
}
`,
	}, []string{
		"internal/live/live.go:6: a test that always skips",
		"loop/x_test.go:10: a test that always skips",
		"loop/x_test.go:15: SkipNow gives no reason",
		"loop/x_test.go:19: a test that always skips",
		"loop/x_test.go:22: a skip must say in words",
		"loop/x_test.go:28: a skip must say in words",
	}},
}
