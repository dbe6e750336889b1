// Command lightq-topic creates and describes topics. Its flags: lightq-topic -help.
package main

import (
	"os"

	"github.com/lightio/lightq/internal/program"
)

func main() { os.Exit(program.Topic(os.Args[1:])) }
