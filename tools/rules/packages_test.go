package rules

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// emptyNames say nothing about what may live in a package, so everything ends up there.
var emptyNames = []string{
	"base", "common", "commons", "helper", "helpers", "misc", "shared", "type", "types", "util", "utils",
}

func checkNames(t *tree) (findings []string) {
	for _, dir := range slices.Sorted(maps.Keys(t.packages)) {
		for _, f := range t.packages[dir] {
			name := strings.TrimSuffix(f.Name.Name, "_test")
			if slices.Contains(emptyNames, name) {
				findings = append(findings, fmt.Sprintf("%s: package name %s does not say what it is for", t.at(f.Name.Pos()), name))
			}
		}
		for _, element := range strings.Split(dir, "/") {
			if slices.Contains(emptyNames, element) {
				findings = append(findings, fmt.Sprintf("%s:1: folder name %s does not say what it is for", dir, element))
			}
		}
	}
	return findings
}

func checkPackageComments(t *tree) (findings []string) {
	for _, dir := range slices.Sorted(maps.Keys(t.packages)) {
		documented := slices.ContainsFunc(t.packages[dir], func(f *goFile) bool {
			return strings.TrimSpace(f.Doc.Text()) != ""
		})
		if !documented {
			findings = append(findings, fmt.Sprintf("%s:1: no file has a package comment", dir))
		}
		doc := path.Join(dir, "doc.go")
		for _, f := range t.packages[dir] {
			if f.path == doc && documented && strings.TrimSpace(f.Doc.Text()) == "" {
				findings = append(findings, fmt.Sprintf("%s:1: it has no package comment, another file has", doc))
			}
		}
	}
	return findings
}

var packageCases = []ruleCase{
	{"names", "telling names", map[string]string{
		"codec/frame.go":              "package codec\n",
		"codec/frame_test.go":         "package codec_test\n",
		"internal/basecamp/base.go":   "package basecamp\n",
		"cmd/lightq-broker/common.go": "package main\n",
	}, nil},
	{"names", "empty names", map[string]string{
		"internal/util/util.go":      "package util\n",
		"loop/x_test.go":             "package common_test\n",
		"topic/types/kinds/kinds.go": "package kinds\n",
	}, []string{
		"internal/util/util.go:1: package name util",
		"internal/util:1: folder name util",
		"loop/x_test.go:1: package name common",
		"topic/types/kinds:1: folder name types",
	}},
	{"docs", "a doc.go, or a comment elsewhere", map[string]string{
		"codec/doc.go":              "// Package codec is pure.\npackage codec\n",
		"codec/frame.go":            "package codec\n",
		"cmd/lightq-broker/main.go": "// Command lightq-broker serves.\npackage main\n",
	}, nil},
	{"docs", "no comment", map[string]string{
		"codec/frame.go":       "package codec\n\n// Frame is one.\ntype Frame struct{}\n",
		"loop/acceptor.go":     "//go:build linux\n\npackage loop\n",
		"topic/doc.go":         "package topic\n",
		"topic/topic.go":       "// Package topic is here instead.\npackage topic\n",
		"journal/copyright.go": "// A licence, detached from the clause.\n\npackage journal\n",
	}, []string{
		"codec:1: no file has a package comment",
		"journal:1: no file has a package comment",
		"loop:1: no file has a package comment",
		"topic/doc.go:1: it has no package comment",
	}},
}
