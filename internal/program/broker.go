package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/loop"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Broker runs lightq-broker.
func Broker(args []string) int {
	var f brokerFlags
	root := &cobra.Command{
		Use:   "lightq-broker",
		Short: "Runs a LightQ broker.",
		Long: `Runs a LightQ broker until it is interrupted (SIGINT, SIGTERM), then drains and exits with 0. Without flags it serves
both loopbacks, 127.0.0.1 and ::1, on port 5500, keeps topics in memory, and needs no credentials.

On standard output: one line that begins with "ready" once clients can connect, and the next commands to type. The log goes to
standard error.`,
		Example: `  lightq-broker
  lightq-broker -b 5600 -l debug
  lightq-broker -b 0                     # a free port; the ready line tells which
  lightq-broker --profile cpu --profile-dir /tmp/profiles
  lightq-broker healthcheck -b 5600`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve() },
	}
	f.add(root.Flags())
	serve := &cobra.Command{
		Use: "serve", Short: "run the broker (as without a verb)",
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve() },
	}
	var onServe brokerFlags
	onServe.add(serve.Flags())
	serve.RunE = func(cmd *cobra.Command, _ []string) error { return onServe.serve() }
	root.AddCommand(serve, healthcheckCommand(), versionCommand(),
		cli.LaterVerb("config", "check and show the configuration"),
		cli.LaterVerb("debug", "profiles and bundles of a running broker"))
	return cli.Run(root, args, os.Stdout, os.Stderr)
}

type brokerFlags struct {
	fs      *pflag.FlagSet
	bind    string
	port    int64
	dataDir string
	loops   int64
	level   slog.Level
	profile cli.Profile
	unused  string
}

func (f *brokerFlags) add(fs *pflag.FlagSet) {
	f.fs = fs
	addBind(fs, &f.bind, &f.port, 0)
	cli.Choose(fs, &f.unused, "transport", "t", "tcp", cli.Choice{Names: []string{"tcp", "ipc", "inproc"}, Reason: map[string]*cli.Error{
		"ipc":    cli.NotYet("-t ipc (a unix socket) is not in this version: tcp is"),
		"inproc": {Exit: cli.ExitUsage, Text: "-t inproc connects inside one process, and this process has no clients", Fix: "use tcp, or embed the broker in your program"},
	}}, "KIND", "transport: tcp, ipc or inproc")
	cli.Text(fs, &f.dataDir, "data-dir", "", "", "DIR", "where files go; nothing is written yet")
	cli.Off(fs, "admin-listen", "address of the admin interface")
	cli.Off(fs, "kafka-listen", "address for Kafka clients")
	cli.Later(fs, "config", "", "FILE", "configuration file")
	cli.Later(fs, "admin-user", "u", "NAME", "user who may create topics")
	cli.Later(fs, "admin-password", "p", "TEXT", "password of the admin user")
	cli.Int(fs, &f.loops, "loops", "", int64(loop.DefaultLoops()), 1, 256, "event loops")
	cli.LogLevel(fs, &f.level)
	f.profile.Flags(fs)
}

func addBind(fs *pflag.FlagSet, bind *string, port *int64, lowest int64) {
	cli.Text(fs, bind, "bind", "i", "127.0.0.1", "IP", "address to listen on; unset: both loopbacks")
	cli.Int(fs, port, "port", "b", cli.DefaultPort, lowest, 65535, "port; 0: a free one")
}

// processorsBesideLoops is how many processors the runtime gets beside one for each event loop. A loop holds its processor
// while it waits in epoll or kqueue; partitions' writers and everything else run on the others.
const processorsBesideLoops = 2

func (f *brokerFlags) serve() error {
	if err := checkBind(f.bind); err != nil {
		return err
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(int(f.loops) + processorsBesideLoops)
	}
	logger := cli.NewLogger(os.Stderr, f.level)
	b, err := loop.NewBroker(loop.Config{
		Bind: f.bind, Port: int(f.port), BothLoopbacks: !cli.Given(f.fs, "bind"), Loops: int(f.loops), Logger: logger,
	})
	if err != nil {
		return explainBind(err, f.bind, f.port)
	}
	// From here on a signal means: drain.
	ctx, stop := cli.Interruptible(context.Background())
	defer stop()
	context.AfterFunc(ctx, func() { logger.Log(context.Background(), cli.LevelEvent, "draining; a second signal ends at once") })

	stopProfile, err := f.profile.Start()
	if err != nil {
		return cli.Failf(cli.ExitFailure, "%v", err)
	}
	defer stopProfile()
	if f.dataDir != "" {
		fmt.Fprintf(os.Stderr, "--data-dir %s: nothing is written yet, topics are kept in memory\n", f.dataDir)
	}
	fmt.Print(readyText(b.Addrs()))
	if err := b.Serve(ctx); err != nil {
		return cli.Failf(cli.ExitFailure, "serve: %v", err)
	}
	return nil
}

// readyText is the ready line and the next two commands to type.
func readyText(addrs []net.Addr) string {
	native := "tcp://" + addrs[0].String()
	line := "ready native=" + native
	for _, also := range addrs[1:] {
		line += " also=" + also.String()
	}
	line += " admin=off kafka=off data=memory auth=none (loopback only)\n"
	server := cli.ServerFlag(native)
	return line +
		"# create a topic:       lightq-topic -t orders -n 1" + server + "\n" +
		"# publish to it:        echo hello | lightq-producer -t orders -f -" + server + "\n"
}

// checkBind refuses what is not an address, and what is reachable from elsewhere.
func checkBind(bind string) error {
	exposed := &cli.Error{
		Exit: cli.ExitNotAllowed, Err: loop.ErrExposed,
		Text: fmt.Sprintf("-i, --bind %q listens beyond loopback, which needs credentials, and this version has none", bind),
		Fix:  "leave -i out, or use -i 127.0.0.1",
	}
	if bind == "*" {
		exposed.Text = `-i, --bind "*" means every interface, which needs credentials, and this version has none`
		return exposed
	}
	if bind == "localhost" {
		return nil
	}
	switch ip := net.ParseIP(bind); {
	case ip == nil:
		return cli.Usagef("-i, --bind %q: it must be an IP address such as 127.0.0.1 or ::1, or * for every interface", bind)
	case !ip.IsLoopback():
		return exposed
	}
	return nil
}

func explainBind(err error, bind string, port int64) error {
	e := &cli.Error{Exit: cli.ExitFailure, Text: err.Error(), Err: err}
	addr := "tcp://" + net.JoinHostPort(bind, strconv.FormatInt(port, 10))
	switch {
	case errors.Is(err, loop.ErrExposed):
		e.Exit = cli.ExitNotAllowed
	case errors.Is(err, syscall.EADDRINUSE):
		e.Text = addr + " is taken (" + syscall.EADDRINUSE.Error() + ")"
		e.Fix = "stop the other broker, or choose another port with -b"
	case errors.Is(err, syscall.EACCES):
		e.Exit = cli.ExitNotAllowed
		e.Text = addr + " is refused by the system (" + syscall.EACCES.Error() + ")"
		e.Fix = "choose a port above 1023 with -b"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Text = addr + " is not an address of this machine (" + syscall.EADDRNOTAVAIL.Error() + ")"
		e.Fix = "leave -i out, or use -i 127.0.0.1"
	}
	return e
}

func healthcheckCommand() *cobra.Command {
	var bind string
	var port int64
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "healthcheck", Short: "say hello to a running broker: exit 0 if it answers, 3 if not",
		Example: "  lightq-broker healthcheck\n  lightq-broker healthcheck -b 5600 --timeout 1s",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if bind == "*" {
				bind = "127.0.0.1"
			}
			server := "tcp://" + net.JoinHostPort(bind, strconv.FormatInt(port, 10))
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			c, err := client.Dial(ctx, server, client.WithName(clientName("lightq-broker healthcheck")))
			if err != nil {
				return cli.Explain(err, server, "")
			}
			defer hangUp(c)
			fmt.Println("ok", server)
			return nil
		},
	}
	addBind(cmd.Flags(), &bind, &port, 1)
	cli.Duration(cmd.Flags(), &timeout, "timeout", 2*time.Second, "give up after this long")
	return cmd
}

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "print what this program was built from",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := cli.BuildOf("lightq-broker")
			if !asJSON {
				fmt.Println(b)
				return nil
			}
			return json.NewEncoder(os.Stdout).Encode(b)
		},
	}
	cli.Bool(cmd.Flags(), &asJSON, "json", "", "print it as JSON")
	return cmd
}

// clientName is what a program calls itself in the hello.
func clientName(program string) string { return strings.TrimSpace(program + " " + cli.Version()) }
