package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// module is the path that the project's own packages are imported by.
const module = "github.com/lightio/lightq"

// rules are applied to the repository by TestTree. Each has cases in TestRules, with at least one that it reports.
var rules = []rule{
	{"imports", checkImports},
	{"core", checkCore},
	{"names", checkNames},
	{"docs", checkPackageComments},
	{"tests", checkTests},
	{"unfinished", checkUnfinished},
	{"panics", checkPanics},
	{"links", checkLinks},
	{"make", checkMake},
	{"cases", checkFieldCases},
}

type rule struct {
	name  string
	check func(*tree) []string // findings, as "path:line: what is wrong"
}

func TestTree(t *testing.T) {
	tr, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(tr.text["go.mod"], "module "+module+"\n") || tr.packages["tools/rules"] == nil {
		t.Fatalf("../.. is not the root of %s: found %d packages there", module, len(tr.packages))
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, finding := range r.check(tr) {
				t.Error(finding)
			}
		})
	}
}

// ruleCase is a tree made of strings and what one rule must find in it.
type ruleCase struct {
	rule  string
	name  string
	files map[string]string
	want  []string // a part of each finding, in order; none: the rule must be content
}

func TestRules(t *testing.T) {
	cases := slices.Concat(importCases, coreCases, packageCases, testCases, sourceCases, docCases)
	for _, r := range rules {
		if !slices.ContainsFunc(cases, func(c ruleCase) bool { return c.rule == r.name && len(c.want) > 0 }) {
			t.Errorf("rule %s has no case in which it reports anything", r.name)
		}
	}
	for _, c := range cases {
		t.Run(c.rule+"/"+c.name, func(t *testing.T) {
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == c.rule })
			if i < 0 {
				t.Fatalf("there is no rule %q", c.rule)
			}
			fsys := fstest.MapFS{}
			for name, text := range c.files {
				fsys[name] = &fstest.MapFile{Data: []byte(text)}
			}
			tr, err := load(fsys)
			if err != nil {
				t.Fatal(err)
			}
			got := rules[i].check(tr)
			ok := len(got) == len(c.want)
			for j := 0; ok && j < len(got); j++ {
				ok = strings.Contains(got[j], c.want[j])
			}
			if !ok {
				t.Errorf("findings:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(c.want, "\n\t"))
			}
		})
	}
}

func TestLoadReportsWhatDoesNotParse(t *testing.T) {
	_, err := load(fstest.MapFS{"codec/frame.go": {Data: []byte("package codec\n\nfunc {")}})
	if err == nil || !strings.Contains(err.Error(), "codec/frame.go:3") {
		t.Fatalf("load of a file that does not parse: err = %v, want one that names codec/frame.go:3", err)
	}
}

// tree is what the rules look at: the sources of one repository, without its hidden and ignored folders.
type tree struct {
	fset     *token.FileSet
	exists   map[string]bool      // every file and folder, by slash-separated path from the root
	text     map[string]string    // the text of every file that can break a rule; testdata is not read
	packages map[string][]*goFile // by folder, in the order of file names
}

type goFile struct {
	path string
	test bool // its name ends in _test.go
	*ast.File
}

// load reads a repository. It fails on a Go file that does not parse, rather than leave it unchecked.
func load(fsys fs.FS) (*tree, error) {
	t := &tree{
		fset:     token.NewFileSet(),
		exists:   map[string]bool{},
		text:     map[string]string{},
		packages: map[string][]*goFile{},
	}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "bin" || name == "tmp" || strings.HasPrefix(name, ".") && name != "." && name != ".ci" {
				return fs.SkipDir
			}
			t.exists[name] = true
			return nil
		}
		t.exists[name] = true
		if strings.Contains("/"+name, "/testdata/") || !isText(name) {
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		t.text[name] = string(data)
		if path.Ext(name) != ".go" {
			return nil
		}
		file, err := parser.ParseFile(t.fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		t.packages[dir] = append(t.packages[dir], &goFile{name, strings.HasSuffix(name, "_test.go"), file})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}
	return t, nil
}

func isText(name string) bool {
	switch path.Ext(name) {
	case ".go", ".mod", ".md", ".sh", ".py", ".txt", ".toml", ".yml", ".yaml":
		return true
	}
	return name == "Makefile" || strings.HasPrefix(name, ".ci/")
}

// files yields every Go file, folder by folder in the order of their names.
func (t *tree) files(yield func(*goFile) bool) {
	for _, dir := range slices.Sorted(maps.Keys(t.packages)) {
		for _, f := range t.packages[dir] {
			if !yield(f) {
				return
			}
		}
	}
}

// at says where pos is, as "path:line".
func (t *tree) at(pos token.Pos) string {
	p := t.fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// importName is the name that the file calls the imported package path by, or "" if it does not import it.
func (f *goFile) importName(importPath string) string {
	for _, spec := range f.Imports {
		if unquote(spec.Path) != importPath {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(importPath)
	}
	return ""
}

// isSelector reports whether n is pkg.Name for one of names, and which.
func isSelector(n ast.Node, pkg string, names ...string) (string, bool) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok || pkg == "" {
		return "", false
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok || x.Name != pkg || !slices.Contains(names, sel.Sel.Name) {
		return "", false
	}
	return sel.Sel.Name, true
}

func unquote(lit *ast.BasicLit) string { return strings.Trim(lit.Value, "\"`") }
