// Command lightq-broker serves topics. Its flags: lightq-broker -help.
package main

import (
	"os"

	"github.com/lightio/lightq/internal/program"
)

func main() { os.Exit(program.Broker(os.Args[1:])) }
