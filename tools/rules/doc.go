// Package rules holds the repository's own rules as tests: what a reviewer would otherwise have to look for in every
// change, and what no general linter knows.
//
//	imports    one direction only: cmd → loop → topic → journal → codec; who may touch sockets, files, gnet
//	core       the partition core has no goroutine, channel, lock, clock or I/O
//	names      no package called util, common, types, base or helpers
//	docs       every package says what it is for
//	tests      no sleep, no skip without an explained condition
//	unfinished no to-do marks
//	panics     only bugs panic, through internal/invariant
//	links      relative links in Markdown lead somewhere
//	make       the Makefile's menu is complete, and docs name only targets that exist
//	cases      the table of field cases in docs/TESTING.md and the tests that claim to cover them agree
//
// Beside the rules, [TestReadmeCommands] and [TestReadmeProgram] run what README.md tells its reader to type, so that it
// cannot go stale.
//
// A rule is a function from a [tree] to its findings. [TestTree] applies all of them to the repository; [TestRules]
// applies each to small trees made of strings, where the findings are known, so that no rule passes for having looked
// at nothing. What a rule allows is data at the top of its file, with the reason beside it.
//
// The files are read, not built: all platforms and build tags are checked at once, and a package that does not compile
// is still checked as long as it parses. A file that a rule names and that does not exist is not checked.
package rules
