// Package program is what the four programs do. Each exported function takes the arguments behind the program's name, uses
// the process's standard files and signals, and returns the exit code.
package program
