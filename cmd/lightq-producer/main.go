// Command lightq-producer publishes lines, or generates load. Its flags: lightq-producer -help.
package main

import (
	"os"

	"github.com/lightio/lightq/internal/program"
)

func main() { os.Exit(program.Producer(os.Args[1:])) }
