// Command lightq-bench measures LightQ as its users run it: broker, producer and consumer are processes of their own on
// free loopback ports. Beside every figure stands the machine's own limit, measured in the same run: a bare relay that
// moves bytes between three processes and knows nothing of messages, and for topics in files a disk that appends and syncs.
//
//	lightq-bench          the sweep: sizes × storages, throughput, ratio to the relay, CPU, memory, latency
//	lightq-bench demo     ten million messages of 100 B through a topic in memory, and ten million through one in files
//	lightq-bench crowd    many producers and consumers on the partitions of one topic, beside one of each on one partition
//	lightq-bench relay    the limit alone
//
// # How a measurement is made
//
// Each run starts a fresh broker on a data directory of its own, creates the topic, starts the consumers, waits until they
// say that they are attached, starts the producers, and waits for all of them. The broker is then asked to stop and must end
// with exit code 0. CPU time and peak memory are those the kernel accounted to each process when it was reaped, start-up
// included. Throughput is what consumers received between their first and their last record. The runs of the relay stand
// between the runs of LightQ, so that both see the same machine; medians are compared.
//
// MB is 2^20 bytes, latency is in microseconds from the intended send time of a record to its arrival in the consumer. Its limit
// is the blocking relay again, which then carries single small messages on the schedule that LightQ's producer keeps.
//
// # Files
//
//	main.go      commands, flags, signals, exit codes
//	sweep.go     the sweep and the demo
//	measure.go   one measurement of LightQ
//	disk.go      the disk alone: 1 MiB after the other, and 4 KiB
//	crowd*.go    many clients on one topic: the parent's side, and its two processes
//	programs.go  where the four programs are, and the JSON their load generators print
//	relay*.go    the bare relay: the parent's side, its three roles, raw sockets, gnet, paced messages
//	process*.go  child processes: start, readiness, exit, rusage, cleanup
//	report.go    medians, table, JSON
//	figures.go   arithmetic and formats of figures
//	machine*.go  the line that names the machine
//
// # Threads and ownership
//
// One goroutine runs everything in order. Each child has one goroutine that reaps it, and os/exec's two that copy its output.
// A group owns the children of one measurement: when it is closed none of them is left, whatever happened before.
package main
