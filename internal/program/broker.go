package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
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
func Broker(args []string) int { return cli.Run(brokerCommand(), args, os.Stdout, os.Stderr) }

func brokerCommand() *cobra.Command {
	var f brokerFlags
	root := &cobra.Command{
		Use:   "lightq-broker",
		Short: "Runs a LightQ broker.",
		Long: `Runs a LightQ broker until it is interrupted (SIGINT, SIGTERM), then drains and exits with 0. Without flags it serves
both loopbacks, 127.0.0.1 and ::1, on port 5500, keeps topics in the data directory, and needs no credentials.

With an admin password, create_topic of the JSON admin protocol has to bring it and the admin user. It guards nothing else in
this version: the native protocol, which the other programs speak, has no login yet. It comes from LIGHTQ_ADMIN_PASSWORD or
--admin-password-file; one on the command line can be seen by every user of the machine.

On standard output: one line that begins with "ready" once clients can connect, and the next commands to type. The log goes to
standard error.`,
		Example: `  lightq-broker
  lightq-broker -b 5600 -l debug
  lightq-broker -b 0                     # a free port; the ready line tells which
  lightq-broker -t ipc --bind /run/lightq.sock
  lightq-broker --admin-password-file /etc/lightq/admin
  lightq-broker --profile cpu --profile-dir /tmp/profiles
  lightq-broker healthcheck -b 5600`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve() },
	}
	f.add(root.Flags())
	serve := &cobra.Command{
		Use: "serve", Short: "run the broker (as without a verb)", Example: "  lightq-broker serve -b 5600",
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve() },
	}
	var onServe brokerFlags
	onServe.add(serve.Flags())
	serve.RunE = func(cmd *cobra.Command, _ []string) error { return onServe.serve() }
	root.AddCommand(serve, configCommand(), healthcheckCommand(), versionCommand(), adoptCommand(),
		cli.LaterVerb("debug", "profiles and bundles of a running broker"))
	return root
}

type brokerFlags struct {
	fs      *pflag.FlagSet
	config  string
	output  string
	door    door
	admin   admin
	dataDir string
	reserve uint64
	loops   int64
	memory  uint64
	level   slog.Level
	profile cli.Profile
}

func (f *brokerFlags) add(fs *pflag.FlagSet) { f.addTo(fs, "") }

// addTo adds the flags. plain is the plain form of what is printed, empty: there is none.
func (f *brokerFlags) addTo(fs *pflag.FlagSet, plain string) {
	f.fs = fs
	f.door.add(fs)
	cli.ConfigFile(fs, &f.config)
	cli.Text(fs, &f.dataDir, "data-dir", "", "", "DIR", "where topics are kept; none: in memory alone (default the system's place for the state of a user's programs)")
	cli.Size(fs, &f.reserve, "disk-reserve", 0, 1<<60, "free space of the disk below which publishes to files are refused (default the larger of 1GiB and 5%; 0: none)")
	cli.Off(fs, "admin-listen", "address of the admin interface")
	cli.Off(fs, "kafka-listen", "address for Kafka clients")
	f.admin.add(fs)
	cli.Int(fs, &f.loops, "loops", "", int64(loop.DefaultLoops()), 1, 256, "event loops")
	cli.Size(fs, &f.memory, "memory", loop.LeastMemoryBytes, 1<<50, "ceiling of the memory that batches take; default half of what the machine, or the control group, has")
	cli.LogLevel(fs, &f.level)
	f.profile.Flags(fs)
	cli.Output(fs, &f.output, plain)
}

// brokerKeys are those of the broker's configuration file.
func brokerKeys() (keys []string) {
	var f brokerFlags
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.add(fs)
	fs.VisitAll(func(f *pflag.Flag) { keys = append(keys, f.Name) })
	return keys
}

// A door is where a broker listens.
type door struct {
	fs        *pflag.FlagSet
	bind      string
	port      int64
	transport string
}

func (d *door) add(fs *pflag.FlagSet) {
	d.fs = fs
	cli.Text(fs, &d.bind, "bind", "i", "127.0.0.1", "ADDR", "address to listen on; unset: both loopbacks. With -t ipc the path of the socket")
	cli.Int(fs, &d.port, "port", "b", cli.DefaultPort, 0, 65535, "port; 0: a free one")
	cli.Choose(fs, &d.transport, "transport", "t", "tcp", cli.Choice{Names: []string{"tcp", "ipc", "inproc"}, Reason: map[string]*cli.Error{
		"inproc": {Exit: cli.ExitUsage, Text: "-t inproc connects inside one process, and this process has no clients", Fix: "use tcp, or embed the broker in your program"},
	}}, "KIND", "transport: tcp or ipc (a unix socket); inproc is for brokers inside a program")
}

// ipc reports whether the door is a unix socket, and returns its address, of an absolute path.
func (d *door) ipc() (addr string, ok bool, err error) {
	path, named := strings.CutPrefix(d.bind, unixScheme)
	if d.transport != "ipc" {
		if named || filepath.IsAbs(d.bind) {
			return "", false, &cli.Error{
				Exit: cli.ExitUsage, Text: fmt.Sprintf("-i, --bind %q is the path of a socket, and the transport is tcp", d.bind), Fix: "add -t ipc",
			}
		}
		return "", false, nil
	}
	const example = "lightq-broker -t ipc --bind /run/lightq.sock"
	switch {
	case !cli.Given(d.fs, "bind"):
		return "", false, &cli.Error{Exit: cli.ExitUsage, Text: "-t ipc needs the path of its socket", Fix: example}
	case cli.Given(d.fs, "port"):
		return "", false, &cli.Error{Exit: cli.ExitUsage, Text: "-b is a port, and -t ipc has none", Fix: example}
	case path == "" || net.ParseIP(path) != nil:
		return "", false, &cli.Error{Exit: cli.ExitUsage, Text: fmt.Sprintf("-i, --bind %q is not the path of a socket", d.bind), Fix: example}
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return "", false, cli.Failf(cli.ExitFailure, "-i, --bind %q: %v", d.bind, err)
	}
	// The system keeps the path, and a zero behind it, in the socket's address.
	if longest := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > longest {
		return "", false, cli.Usagef("-i, --bind: %s has %d bytes, and the path of a socket may have %d", path, len(path), longest)
	}
	return unixScheme + path, true, nil
}

const unixScheme = "unix://"

// An admin is the user whom create_topic of the JSON admin protocol needs. Zero: none.
type admin struct {
	fs       *pflag.FlagSet
	user     string
	password string
	file     string
}

const adminPasswordVariable = "LIGHTQ_ADMIN_PASSWORD"

func (a *admin) add(fs *pflag.FlagSet) {
	a.fs = fs
	cli.Text(fs, &a.user, "admin-user", "u", "lightq_admin", "NAME", "user who may create topics by the JSON protocol, where there is a password")
	cli.Secret(fs, &a.password, "admin-password", "p", "password of the admin user, - to be asked for it; "+adminPasswordVariable+" and --admin-password-file do not show it to others")
	cli.Text(fs, &a.file, "admin-password-file", "", "", "FILE", "file that holds the password of the admin user")
}

// load finds the password: where it comes from several sources the command line goes before the environment, and that before
// the configuration file.
func (a *admin) load() error {
	inText, inFile := cli.SourceOf(a.fs, "admin-password"), cli.SourceOf(a.fs, "admin-password-file")
	switch {
	case inText.Level != cli.FromDefault && inText.Level == inFile.Level:
		return cli.Usagef("-p, --admin-password and --admin-password-file both give the password: use one of them")
	case inFile.Level > inText.Level:
		var err error
		if a.password, err = cli.ReadSecret("--admin-password-file", a.file); err != nil {
			return err
		}
	case inText.Level == cli.FromLine && a.password == "-":
		var err error
		if a.password, err = cli.AskSecret(os.Stderr, os.Stdin, "password of "+a.user+": "); err != nil {
			return err
		}
	case inText.Level == cli.FromLine:
		fmt.Fprintf(os.Stderr, "warning: every user of this machine can see the password on the command line: %s and --admin-password-file hide it\n",
			adminPasswordVariable)
	}
	if a.password == "" && cli.Given(a.fs, "admin-user") {
		return &cli.Error{
			Exit: cli.ExitUsage, Text: "-u, --admin-user without a password guards nothing",
			Fix: "set " + adminPasswordVariable + ", or give --admin-password-file",
		}
	}
	return nil
}

// processorsBesideLoops is how many processors the runtime gets beside one for each event loop. A loop holds its processor
// while it waits in epoll or kqueue; partitions' writers and everything else run on the others.
const processorsBesideLoops = 2

// check is all that can be wrong before anything is done. It finds the passwords, and the address of a unix socket.
func (f *brokerFlags) check() (socket string, ipc bool, err error) {
	if socket, ipc, err = f.door.ipc(); err != nil {
		return "", false, err
	}
	if !ipc {
		if err := checkBind(f.door.bind); err != nil {
			return "", false, err
		}
	}
	warnUnknownVariables(os.Stderr)
	return socket, ipc, f.admin.load()
}

func (f *brokerFlags) serve() error {
	socket, ipc, err := f.check()
	if err != nil {
		return err
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(int(f.loops) + processorsBesideLoops)
	}
	logger := cli.NewLogger(os.Stderr, f.level)
	defer outlive(logger)()
	dataDir, err := resolveDataDir(f.dataDir)
	if err != nil {
		return err
	}
	cfg := loop.Config{Bind: socket, Loops: int(f.loops), Logger: logger, Limits: loop.Limits{MemoryBytes: int64(f.memory)}}
	if !ipc {
		cfg.Bind, cfg.Port, cfg.BothLoopbacks = f.door.bind, int(f.door.port), !cli.Given(f.fs, "bind")
	}
	if f.admin.password != "" {
		cfg.AdminUser, cfg.AdminPassword = f.admin.user, f.admin.password
	}
	cfg.DataDir = dataDir
	if cli.Given(f.fs, "disk-reserve") {
		if cfg.DiskReserve = int64(f.reserve); f.reserve == 0 {
			cfg.DiskReserve = -1
		}
	}
	b, err := loop.NewBroker(cfg)
	if err != nil {
		if dataDir != "" && !errors.Is(err, loop.ErrBind) && !errors.Is(err, loop.ErrExposed) {
			return explainDataDir(err, dataDir)
		}
		return f.door.explain(err, socket)
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
	if err := readyOf(b.Addrs(), cfg.AdminPassword != "", dataDir).result().Print(f.output); err != nil {
		return err
	}
	if err := b.Serve(ctx); err != nil {
		return cli.Failf(cli.ExitFailure, "serve: %v", err)
	}
	return nil
}

// outlive keeps the process alive when its terminal goes (SIGHUP), and when nobody reads what it prints any more (SIGPIPE): topics
// do not depend on either. The function that it returns ends that.
func outlive(logger *slog.Logger) func() {
	signal.Ignore(syscall.SIGPIPE)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for range hangups {
			logger.Log(context.Background(), cli.LevelEvent, "SIGHUP: nothing changes, since a reload of the configuration is not built yet")
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		signal.Reset(syscall.SIGPIPE)
	}
}

// A ready is what a broker says once clients can connect.
type ready struct {
	Program string   `json:"program"`
	Ready   bool     `json:"ready"`
	Native  []string `json:"native"` // addresses of the native protocol
	Admin   string   `json:"admin"`
	Kafka   string   `json:"kafka"`
	Data    string   `json:"data"`
	Auth    string   `json:"auth"`
	Reach   string   `json:"reach"`
}

func readyOf(addrs []net.Addr, admin bool, dataDir string) ready {
	r := ready{Program: "lightq-broker", Ready: true, Admin: "off", Kafka: "off", Data: "memory", Auth: "none", Reach: "loopback only"}
	for _, a := range addrs {
		scheme := "tcp://"
		if a.Network() == "unix" {
			scheme, r.Reach = unixScheme, "this machine only"
		}
		r.Native = append(r.Native, scheme+a.String())
	}
	if dataDir != "" {
		r.Data = dataDir
	}
	if admin {
		r.Auth = "json-create-topic"
	}
	return r
}

// result is the ready line and the next two commands to type, or an object.
func (r ready) result() cli.Result {
	line := "ready native=" + r.Native[0]
	for _, also := range r.Native[1:] {
		line += " also=" + strings.TrimPrefix(also, "tcp://")
	}
	line += fmt.Sprintf(" admin=%s kafka=%s data=%s auth=%s (%s)", r.Admin, r.Kafka, r.Data, r.Auth, r.Reach)
	server := cli.ServerFlag(r.Native[0])
	return cli.Result{JSON: r, Table: cli.Line(line,
		"# create a topic:       lightq-topic -t orders -n 1"+server,
		"# publish to it:        echo hello | lightq-producer -t orders -f -"+server)}
}

// anotherPort is the one behind a port that is taken.
func anotherPort(port int64) int64 {
	if port == 65535 {
		return cli.DefaultPort
	}
	return port + 1
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

// explain says why the broker cannot listen. socket is the address of a unix socket, empty where the door is a port.
func (d *door) explain(err error, socket string) error {
	e := &cli.Error{Exit: cli.ExitFailure, Text: err.Error(), Err: err}
	if socket != "" {
		e.Fix = "choose another path with --bind"
		switch {
		case errors.Is(err, syscall.EACCES):
			e.Exit = cli.ExitNotAllowed
		case errors.Is(err, syscall.ENOENT):
			e.Fix = "make the directory first"
		}
		return e
	}
	addr := "tcp://" + net.JoinHostPort(d.bind, strconv.FormatInt(d.port, 10))
	switch {
	case errors.Is(err, loop.ErrExposed):
		e.Exit = cli.ExitNotAllowed
	case errors.Is(err, syscall.EADDRINUSE):
		e.Text = addr + " is taken (" + syscall.EADDRINUSE.Error() + ")"
		e.Fix = "stop the other broker, or choose another port: lightq-broker -b " + strconv.FormatInt(anotherPort(d.port), 10)
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
	var d door
	var timeout time.Duration
	var config, output string
	cmd := &cobra.Command{
		Use: "healthcheck", Short: "say hello to a running broker: exit 0 if it answers, 3 if not",
		Example: "  lightq-broker healthcheck\n  lightq-broker healthcheck -b 5600 --timeout 1s\n  lightq-broker healthcheck --config /etc/lightq/lightq.toml\n  lightq-broker healthcheck -t ipc --bind /run/lightq.sock",
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, ipc, err := d.ipc()
			if err != nil {
				return err
			}
			if !ipc {
				if d.port == 0 {
					return &cli.Error{
						Exit: cli.ExitUsage, Text: `-b, --port "0": it must be the port of a broker, from 1 to 65535`,
						Fix: "a broker that chose a free port says in its ready line which",
					}
				}
				host := d.bind
				if host == "*" {
					host = "127.0.0.1"
				}
				server = "tcp://" + net.JoinHostPort(host, strconv.FormatInt(d.port, 10))
			}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			c, err := client.Dial(ctx, server, client.WithName(clientName("lightq-broker healthcheck")))
			if err != nil {
				return cli.Explain(err, server, "")
			}
			defer hangUp(c)
			return cli.Result{
				JSON:  healthJSON{Program: "lightq-broker", OK: true, Server: server},
				Plain: [][]string{{"ok", server}},
				Table: cli.Line("ok " + server),
			}.Print(output)
		},
	}
	d.add(cmd.Flags())
	cli.ConfigFile(cmd.Flags(), &config, brokerKeys()...)
	cli.Duration(cmd.Flags(), &timeout, "timeout", 2*time.Second, "give up after this long")
	cli.Output(cmd.Flags(), &output, "ok and the address")
	return cmd
}

type healthJSON struct {
	Program string `json:"program"`
	OK      bool   `json:"ok"`
	Server  string `json:"server"`
}

func versionCommand() *cobra.Command {
	var asJSON bool
	var output string
	cmd := &cobra.Command{
		Use: "version", Short: "print what this program was built from",
		Example: "  lightq-broker version\n  lightq-broker version --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := cli.BuildOf("lightq-broker")
			if asJSON {
				output = "json"
			}
			return cli.Result{
				JSON:  b,
				Plain: [][]string{{"version", b.Version}, {"revision", b.Revision}, {"go", b.Go}, {"os", b.OS}, {"arch", b.Arch}},
				Table: cli.Line(b.String()),
			}.Print(output)
		},
	}
	cli.Bool(cmd.Flags(), &asJSON, "json", "", "print it as JSON, as --output json does")
	cli.Output(cmd.Flags(), &output, "a name and a value on each line")
	return cmd
}

// clientName is what a program calls itself in the hello.
func clientName(program string) string { return strings.TrimSpace(program + " " + cli.Version()) }
