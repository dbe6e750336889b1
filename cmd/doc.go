// Package cmd holds LightQ's four programs.
//
//	lightq-broker    serves topics
//	lightq-topic     creates and describes topics
//	lightq-producer  publishes lines, or generates load
//	lightq-consumer  prints records, or receives and measures
//
// Each main is one call into internal/program, so that the scripts in testdata/script can run the programs out of the test
// binary. Those scripts are the programs' specification: flags, answers, exit codes, usual mistakes.
package cmd
