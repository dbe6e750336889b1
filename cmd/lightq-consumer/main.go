// Command lightq-consumer prints records, or receives and measures. Its flags: lightq-consumer -help.
package main

import (
	"os"

	"github.com/lightio/lightq/internal/program"
)

func main() { os.Exit(program.Consumer(os.Args[1:])) }
