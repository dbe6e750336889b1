# LightQ. Plain `make` prints the menu: the lines with two hashes below.
#
# Nothing is written outside bin/ (and Go's own caches), except by fmt, and by a fuzz run that finds a failing input:
# Go puts that into the package's testdata/fuzz, where it belongs.

GO        ?= go
PKG       ?= ./...
RUN       ?= .
BENCH     ?= .
FUZZTIME  ?= 3s
BENCHTIME ?= 1s

LINT_MOD := tools/lint/go.mod
TOOL     := $(GO) tool -modfile=$(LINT_MOD)
DARWIN   := GOOS=darwin GOARCH=arm64 CGO_ENABLED=0

# Cheap to dear: what most often fails, fails within seconds.
CI_STEPS := fmt-check tidy-check rules build vet staticcheck errcheck test benchsmoke fuzz race

# Minimizing an input that found new code stops after a second: it would otherwise take a minute, most of FUZZTIME's use.
FUZZ_ARGS = -fuzztime $(FUZZTIME) -fuzzminimizetime 1s

# A field case is a fault of another broker, as a test of ours: its name begins with the case's number.
SOAK_TESTS := ^Test(Soak|F[0-9])

.DEFAULT_GOAL := menu
.DELETE_ON_ERROR:
.PHONY: menu build demo test race fuzz bench benchsmoke soak \
	man lint fmt fmt-check tidy-check vet staticcheck errcheck rules ci clean

menu: ## print this menu
	@echo "LightQ: make TARGET [PKG=./codec/ RUN=TestName BENCH=Name FUZZTIME=1m BENCHTIME=1s]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the programs of cmd/ and tools/ into bin/
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -o bin/ ./cmd/...
	@set -e; programs=$$($(GO) list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' ./tools/...); \
	for p in $$programs; do \
		echo "CGO_ENABLED=0 $(GO) build -o bin/lightq-$${p##*/} $$p"; \
		CGO_ENABLED=0 $(GO) build -o "bin/lightq-$${p##*/}" "$$p"; \
	done

man: build ## write the manual pages into bin/man
	@mkdir -p bin/man/man1
	@set -e; for p in broker topic producer consumer; do bin/lightq-$$p man --dir bin/man/man1; done
	@echo "man -M bin/man lightq-broker"

demo: build ## ten million messages through a real broker, between real processes
	bin/lightq-bench demo

test: ## all tests
	$(GO) test -timeout 10m -run '$(RUN)' $(PKG)

race: ## all tests under the race detector, with invariants checked and released slabs mangled
	$(GO) test -race -timeout 15m -run '$(RUN)' $(PKG)

# One function at a time is all that go test -fuzz can do. Up to Go 1.26 the fuzzer may report its own time limit as a
# failure, with no failing input (golang/go#75804): only that is tried again, once.
fuzz: ## fuzz each Fuzz function for FUZZTIME
	@list=$$($(GO) test -list '^Fuzz' $(PKG)) || { echo "$$list"; exit 1; }; \
	functions=$$(echo "$$list" | awk '/^Fuzz/ { names[n++] = $$1 } \
		/^ok/ { for (i = 0; i < n; i++) print $$2 ":" names[i]; n = 0 }'); \
	[ -n "$$functions" ] || { echo "no Fuzz function in $(PKG)"; exit 1; }; \
	for f in $$functions; do \
		echo "$(GO) test -run '^$$' -fuzz '^$${f#*:}$$' $(FUZZ_ARGS) $${f%:*}"; \
		for try in 1 2; do \
			out=$$($(GO) test -run '^$$' -fuzz "^$${f#*:}$$" $(FUZZ_ARGS) "$${f%:*}" 2>&1) && rc=0 || rc=$$?; \
			echo "$$out"; \
			[ $$rc -ne 0 ] || break; \
			case "$$out" in \
				*"Failing input"* | *panic* | *"_test.go:"*) exit 1 ;; \
				*"    context deadline exceeded"*) [ $$try -eq 1 ] || exit 1 ;; \
				*) exit 1 ;; \
			esac; \
		done; \
	done

bench: ## Go benchmarks (compare two runs with: go tool -modfile=tools/lint/go.mod benchstat OLD NEW)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) $(PKG)

benchsmoke: ## each benchmark once, to see that it still runs
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 10m $(PKG)

soak: ## the failure tests at full scale (long)
	@list=$$($(GO) test -list '$(SOAK_TESTS)' $(PKG)) || { echo "$$list"; exit 1; }; \
	echo "$$list" | grep -q '^Test' || { echo "no test in $(PKG) is named $(SOAK_TESTS)"; exit 1; }
	LIGHTQ_SOAK=1 $(GO) test -p 1 -count 1 -timeout 2h -run '$(SOAK_TESTS)' -v $(PKG)

lint: fmt-check tidy-check rules vet staticcheck errcheck ## all that is checked without running the program

fmt: ## format the sources in place
	$(TOOL) gofumpt -w .

fmt-check: ## gofumpt would change nothing
	@out=$$($(TOOL) gofumpt -l .) || { echo "$$out"; exit 1; }; \
	[ -z "$$out" ] || { echo "not formatted (make fmt):"; echo "$$out"; exit 1; }

tidy-check: ## go mod tidy would change nothing
	$(GO) mod tidy -diff
	cd $(dir $(LINT_MOD)) && $(GO) mod tidy -diff

rules: ## the repository's own rules
	$(GO) test -count 1 ./tools/rules/

vet: ## go vet, tests included, and the build for macOS
	$(GO) vet ./...
	$(DARWIN) $(GO) build -o /dev/null ./...
	$(DARWIN) $(GO) vet ./...

staticcheck: ## staticcheck, tests included
	$(TOOL) staticcheck ./...

errcheck: ## errors that nobody looks at
	$(TOOL) errcheck -exclude tools/lint/errcheck.txt ./...

# The steps print what they always print; the list of times comes last. A step that leaves a file behind has failed
# on a machine that runs CI; elsewhere it may have been an editor.
ci: ## everything a change must pass, cheap to dear, with the time of each step
	@files() { git ls-files --others 2>/dev/null | grep -v '^bin/' || true; }; \
	before=$$(files); times=; started=$$(date +%s); \
	for step in $(CI_STEPS); do \
		echo; echo "== $$step"; t=$$(date +%s); \
		$(MAKE) --no-print-directory $$step && rc=0 || rc=$$?; \
		t=$$(($$(date +%s) - t)); times="$$times$$(printf '%6d s  %s' $$t $$step)\n"; \
		[ $$rc -eq 0 ] || { echo; printf "$$times"; echo "== ci: $$step failed"; exit 1; }; \
	done; \
	echo; printf "$$times"; printf '%6d s  in all\n' $$(($$(date +%s) - started)); \
	after=$$(files); \
	if [ "$$before" != "$$after" ]; then \
		echo "files before:"; echo "$$before"; echo "files after:"; echo "$$after"; \
		[ "$${CI:-}" != true ] || { echo "== ci: a step left files behind"; exit 1; }; \
	fi; \
	echo "== ci: ok"

clean: ## remove bin/
	rm -rf bin
