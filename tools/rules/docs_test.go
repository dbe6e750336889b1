package rules

import (
	"cmp"
	"fmt"
	"go/ast"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// markdown yields the paths of the Markdown files, in order.
func (t *tree) markdown(yield func(string) bool) {
	for _, name := range slices.Sorted(maps.Keys(t.text)) {
		if path.Ext(name) == ".md" && !yield(name) {
			return
		}
	}
}

var (
	inlineCode  = regexp.MustCompile("`[^`]*`")
	inlineLink  = regexp.MustCompile(`\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)`)
	linkTarget  = regexp.MustCompile(`^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)`)
	withScheme  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*:`)
	headingLine = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
)

// lines yields the lines of a Markdown text that are not in a fenced code block, with their numbers from 1, or, with
// code set, those that are.
func lines(text string, code bool) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		fence := ""
		for i, line := range strings.Split(text, "\n") {
			trimmed := strings.TrimSpace(line)
			switch {
			case fence == "" && (strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")):
				fence = trimmed[:3]
				continue
			case fence != "" && strings.HasPrefix(trimmed, fence):
				fence = ""
				continue
			}
			if (fence != "") == code && !yield(i+1, line) {
				return
			}
		}
	}
}

// anchors returns the fragments that a Markdown text's headings can be linked by.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, line := range lines(text, false) {
		heading := headingLine.FindStringSubmatch(line)
		if heading == nil {
			continue
		}
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, heading[1])
		for unique, n := slug, 1; ; n++ {
			if !found[unique] {
				found[unique] = true
				break
			}
			unique = fmt.Sprintf("%s-%d", slug, n)
		}
	}
	return found
}

func checkLinks(t *tree) (findings []string) {
	for name := range t.markdown {
		for i, line := range lines(t.text[name], false) {
			line = inlineCode.ReplaceAllString(line, "code")
			targets := inlineLink.FindAllStringSubmatch(line, -1)
			targets = append(targets, linkTarget.FindAllStringSubmatch(line, -1)...)
			for _, target := range targets {
				if problem := t.linkProblem(name, target[1]); problem != "" {
					findings = append(findings, fmt.Sprintf("%s:%d: link %s: %s", name, i, target[1], problem))
				}
			}
		}
	}
	return findings
}

// linkProblem says what is wrong with a link in the Markdown file from, or "".
func (t *tree) linkProblem(from, link string) string {
	if withScheme.MatchString(link) {
		return ""
	}
	if strings.HasPrefix(link, "/") {
		return "it must be relative"
	}
	file, fragment, _ := strings.Cut(link, "#")
	target := from
	if file != "" {
		file, err := url.PathUnescape(file)
		if err != nil {
			return err.Error()
		}
		target = path.Join(path.Dir(from), file)
		if !t.exists[target] {
			return "there is no such file"
		}
	}
	if fragment != "" && path.Ext(target) == ".md" && !anchors(t.text[target])[fragment] {
		return "there is no such heading"
	}
	return ""
}

var (
	makeTarget = regexp.MustCompile(`^([a-z][a-z0-9-]*):([^=].*)?$`)
	makeInText = regexp.MustCompile("`make ([a-z][a-z0-9-]*)[^`]*`")
	makeInCode = regexp.MustCompile(`^\s*(?:\$ )?make ([a-z][a-z0-9-]*)`)
)

// checkMake keeps the menu that plain make prints complete, and the docs from naming targets that are gone.
func checkMake(t *tree) (findings []string) {
	targets := map[string]bool{}
	for i, line := range strings.Split(t.text["Makefile"], "\n") {
		target := makeTarget.FindStringSubmatch(line)
		if target == nil {
			continue
		}
		targets[target[1]] = true
		if !strings.Contains(line, "## ") {
			findings = append(findings, fmt.Sprintf("Makefile:%d: target %s has no line for the menu (## ...)", i+1, target[1]))
		}
	}
	for name := range t.markdown {
		report := func(i int, mentions [][]string) {
			for _, m := range mentions {
				if !targets[m[1]] {
					findings = append(findings, fmt.Sprintf("%s:%d: the Makefile has no target %s", name, i, m[1]))
				}
			}
		}
		for i, line := range lines(t.text[name], false) {
			report(i, makeInText.FindAllStringSubmatch(line, -1))
		}
		for i, line := range lines(t.text[name], true) {
			report(i, makeInCode.FindAllStringSubmatch(line, -1))
		}
	}
	return findings
}

// caseTable is where the table of field cases stands.
const caseTable = "docs/TESTING.md"

var (
	caseRow  = regexp.MustCompile(`^\|\s*(F\d{2,3})\s*\|([^|]*)\|`)
	caseID   = regexp.MustCompile(`\bF\d{2,3}\b`)
	testName = regexp.MustCompile(`\b(?:Test|Fuzz)\w+`)
)

// checkFieldCases compares the rows of the table with the case numbers in the comments of tests: each row must name
// tests that exist in a file that claims the case, and of each file that claims a case its row must name a test.
func checkFieldCases(t *tree) (findings []string) {
	type claim struct{ id, file string }
	claims := map[claim]string{}          // → where a test's comment first makes it
	tests := map[string]map[string]bool{} // test → the cases claimed in the files that declare it
	declared := map[string][]string{}     // file → its tests
	for f := range t.files {
		if !f.test {
			continue
		}
		inFile := map[string]bool{}
		for _, group := range f.Comments {
			for _, id := range caseID.FindAllString(group.Text(), -1) {
				inFile[id] = true
				if c := (claim{id, f.path}); claims[c] == "" {
					claims[c] = t.at(group.Pos())
				}
			}
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !testName.MatchString(fn.Name.Name) {
				continue
			}
			if tests[fn.Name.Name] == nil {
				tests[fn.Name.Name] = map[string]bool{}
			}
			maps.Copy(tests[fn.Name.Name], inFile)
			declared[f.path] = append(declared[f.path], fn.Name.Name)
		}
	}

	rows := map[string][]string{} // case → the tests that its row names
	for i, line := range lines(t.text[caseTable], false) {
		row := caseRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		report := func(format string, args ...any) {
			findings = append(findings, fmt.Sprintf("%s:%d: case %s %s", caseTable, i, row[1], fmt.Sprintf(format, args...)))
		}
		if rows[row[1]] != nil {
			report("has a row already")
		}
		named := testName.FindAllString(row[2], -1)
		rows[row[1]] = append([]string{}, named...)
		if len(named) == 0 {
			report("names no test")
		}
		for _, name := range named {
			switch {
			case tests[name] == nil:
				report("names %s, which does not exist", name)
			case !tests[name][row[1]]:
				report("names %s, but no comment beside that test names the case", name)
			}
		}
	}
	byPlace := func(a, b claim) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.file, b.file)) }
	for _, c := range slices.SortedFunc(maps.Keys(claims), byPlace) {
		named, ok := rows[c.id]
		switch {
		case !ok:
			findings = append(findings, fmt.Sprintf("%s: case %s has no row in %s", claims[c], c.id, caseTable))
		case !slices.ContainsFunc(named, func(name string) bool { return slices.Contains(declared[c.file], name) }):
			findings = append(findings, fmt.Sprintf("%s: the row of case %s in %s names no test of this file", claims[c], c.id, caseTable))
		}
	}
	return findings
}

var docCases = []ruleCase{
	{"links", "links that lead somewhere", map[string]string{
		"README.md": "# LightQ\n[a](docs/A.md) ![b](docs/b.png \"title\") [c](https://example.org/x) [d](#lightq)\n" +
			"`[not](a-link.md)`\n```\n[nor](this.md)\n```\n[e](docs) [ref][r]\n\n[r]: docs/A.md#what-make-runs-on-2-cores\n",
		"docs/A.md":  "# A\n## What `make` runs, on 2 cores\n## A\n[up](../README.md) [second](#a-1) [mail](mailto:x@y.z)\n",
		"docs/b.png": "",
	}, nil},
	{"links", "broken links", map[string]string{
		"README.md": "# LightQ\n[a](docs/GONE.md)\n[b](/docs/A.md)\n[c](#nowhere)\n",
		"docs/A.md": "# A\n[x](../../outside.md)\n\n[ref]: B.md\n[y](../README.md#a)\n",
	}, []string{
		"README.md:2: link docs/GONE.md: there is no such file",
		"README.md:3: link /docs/A.md: it must be relative",
		"README.md:4: link #nowhere: there is no such heading",
		"docs/A.md:2: link ../../outside.md: there is no such file",
		"docs/A.md:4: link B.md: there is no such file",
		"docs/A.md:5: link ../README.md#a: there is no such heading",
	}},
	{"make", "targets that exist", map[string]string{
		"Makefile":  "GO := go\nbench-smoke: build ## run\n\ttrue\nbuild: ## build\n\ttrue\n",
		"README.md": "Run `make bench-smoke PKG=./codec/`, or make do.\n```\n$ make build\nmake\n```\n",
	}, nil},
	{"make", "unlisted and unknown targets", map[string]string{
		"Makefile":  "build:\n\ttrue\ntest: build\n\ttrue\n",
		"README.md": "Run `make all`.\n```\nmake demo && make test\n```\n",
	}, []string{
		"Makefile:1: target build has no line",
		"Makefile:3: target test has no line",
		"README.md:1: the Makefile has no target all",
		"README.md:3: the Makefile has no target demo",
	}},
	{"cases", "table and tests agree", map[string]string{
		"docs/TESTING.md":    "| case | tests | what |\n|---|---|---|\n| F45 | `TestHalf`, `FuzzHalf` | F99 is text |\n",
		"loop/half_test.go":  "package loop\n\n// Case F45: half a frame.\nfunc TestHalf() {}\n\nvar s = \"F12\"\n",
		"loop/half2_test.go": "package loop\n\n// F45 too. 0xF46 is no case.\nfunc FuzzHalf() {}\n",
		"loop/session.go":    "package loop\n\n// F13 is no claim of a test.\n",
	}, nil},
	{"cases", "they differ", map[string]string{
		"docs/TESTING.md":    "| case | tests |\n|---|---|\n| F45 | `TestGone` |\n| F46 | `TestOther` |\n| F47 | |\n| F47 | `TestHalf` |\n",
		"loop/half_test.go":  "package loop\n\n// Cases F47 and F76.\nfunc TestHalf() {}\n",
		"loop/other_test.go": "package loop\n\nfunc TestOther() {}\n",
		"loop/third_test.go": "package loop\n\n// Case F47 again.\nfunc TestThird() {}\n",
	}, []string{
		"docs/TESTING.md:3: case F45 names TestGone, which does not exist",
		"docs/TESTING.md:4: case F46 names TestOther, but no comment",
		"docs/TESTING.md:5: case F47 names no test",
		"docs/TESTING.md:6: case F47 has a row already",
		"loop/third_test.go:3: the row of case F47 in docs/TESTING.md names no test of this file",
		"loop/half_test.go:3: case F76 has no row",
	}},
}
