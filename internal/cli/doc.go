// Package cli is what the four programs share at the command line: exit codes, errors that end in the command that fixes
// them, flags that refuse what they do not understand, log levels, help, numbers for people, and the progress line.
//
// Standard output is for data and results, standard error for everything else. An error is one line: the thing, the reason,
// the remedy. With --output json an error is also one JSON object on standard output.
//
// Nothing here talks to a broker. Explain turns what the client package returns into an Error.
package cli
