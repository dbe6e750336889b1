package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Run runs a program with the arguments behind its name and returns its exit code. The command's functions return an Error,
// or an error that Explain turned into one; Run prints it.
func Run(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	cobra.EnableCommandSorting = false
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = Version()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetHelpFunc(help)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return flagError(cmd, err) })
	root.InitDefaultCompletionCmd()
	root.AddCommand(manCommand(root))
	root.SetHelpCommand(helpCommand(root))
	completing := len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
	prepare(root, completing)

	args = append([]string(nil), args...)
	for i, a := range args {
		if a == "--" {
			break
		}
		if a == "-help" { // as the original's programs had it; the parser would read -h -e -l -p
			args[i] = "--help"
		}
	}
	root.SetArgs(args)
	var err error
	if !completing {
		err = dashedTopic(root, args)
	}
	if err == nil {
		err = root.Execute()
	}
	if err == nil {
		return int(ExitDone)
	}
	var e *Error
	if !errors.As(err, &e) {
		// What is left are the parser's own complaints.
		e = &Error{Exit: ExitUsage, Text: oneLine(err.Error()), Fix: "see " + root.Name() + " -help"}
	}
	if e.Exit != ExitInterrupted {
		fmt.Fprintln(stderr, e.Error())
	}
	if jsonWanted(args) && !errors.Is(err, errReported) {
		WriteJSON(stdout, failure{root.Name(), FailureOf(e)})
	}
	return int(e.Exit)
}

// dashedTopic refuses -t with a value that looks like a flag: in "lightq-topic -t -n 4" the name was forgotten. A topic whose
// name does begin with a dash is named with --topic=-name.
func dashedTopic(root *cobra.Command, args []string) error {
	if root.Flags().Lookup("topic") == nil {
		return nil
	}
	for i, a := range args {
		if a == "--" {
			return nil
		}
		if (a == "-t" || a == "--topic") && i+1 < len(args) && strings.HasPrefix(args[i+1], "-") {
			return &Error{
				Exit: ExitUsage, Text: "-t, --topic needs a value, and " + args[i+1] + " looks like a flag",
				Fix: "if it is the name of a topic, write --topic=" + args[i+1],
			}
		}
	}
	return nil
}

// prepare makes every command of a program alike: flags in the order in which they were added, and no arguments where the
// command has no rule of its own.
func prepare(cmd *cobra.Command, completing bool) {
	cmd.Flags().SortFlags = false
	if cmd.Name() == "completion" {
		cmd.Short = "print a completion script for bash, zsh, fish or powershell"
		program := cmd.Root().Name()
		cmd.Example = fmt.Sprintf("  source <(%s completion bash)\n  %s completion bash > /etc/bash_completion.d/%s", program, program, program)
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		for _, shell := range cmd.Commands() {
			shell.Args = nil
		}
		cmd.Args = nil
	}
	if cmd.Args == nil {
		cmd.Args = NoArgs
	}
	if cmd.Name() != "completion" && !cmd.DisableFlagParsing {
		prepareCompletion(cmd, completing)
	}
	if run := cmd.RunE; run != nil && !cmd.DisableFlagParsing {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := applySources(cmd); err != nil {
				return err
			}
			return nameSources(cmd.Flags(), run(cmd, args))
		}
	}
	for _, c := range cmd.Commands() {
		prepare(c, completing)
	}
}

// applySources gives the flags that are not on the command line their values from the environment and from a file.
func applySources(cmd *cobra.Command) error {
	fs := cmd.Flags()
	if err := applyEnvironment(fs, cmd.ErrOrStderr()); err != nil {
		return err
	}
	f := fs.Lookup(ConfigFlag)
	if f == nil || !f.Changed {
		return nil
	}
	if v, ok := f.Value.(*value); !ok || v.answer != nil {
		return nil
	}
	if err := applyFile(fs, f.Value.String()); err != nil {
		return err
	}
	return errors.Join(applyEnvironment(fs, io.Discard), applyLine(fs))
}

// NoArgs refuses what stands on a command line beside flags and verbs, and says what may have been meant. It is the rule of every
// command that has none of its own.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	first, _ := utf8.DecodeRuneInString(args[0])
	e := Usagef("unexpected argument %q", args[0])
	topic := ""
	if cmd.Flags().Lookup("topic") != nil && first != '-' {
		topic = "a topic is named with -t " + args[0]
	}
	switch {
	case first != '-' && unicode.Is(unicode.Pd, first):
		e.Fix = "it begins with a dash that is not the minus of the keyboard"
	case cmd.HasAvailableSubCommands():
		var verbs, now []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				verbs = append(verbs, c.Name())
				if !isLaterVerb(c) {
					now = append(now, c.Name())
				}
			}
		}
		e.Fix = "verbs are " + strings.Join(now, " ")
		if near := Nearest(args[0], verbs); near != "" {
			e.Fix = "did you mean " + near + "?"
		} else if cmd.Flags().Lookup(args[0]) != nil {
			e.Fix = "did you mean --" + args[0] + "?"
		} else if topic != "" {
			e.Fix += ", and " + topic
		}
	case topic != "":
		e.Fix = topic
	default:
		e.Fix = "see " + cmd.CommandPath() + " -help"
	}
	return e
}

// laterMark stands behind the help of what this version does not have yet.
const laterMark = " (not yet)"

// isLaterVerb reports whether a command was made by LaterVerb.
func isLaterVerb(cmd *cobra.Command) bool {
	return cmd.DisableFlagParsing && strings.HasSuffix(cmd.Short, laterMark)
}

// LaterVerb returns a verb that this version knows and does not have yet.
func LaterVerb(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short + laterMark,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error {
			return NotYet("the verb %s (%s) is not in this version", name, short)
		},
	}
}

// helpCommand is the verb help, which shows the help of the verbs that it is given. It is not listed: -help is.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help", Short: "show the help of a verb", Hidden: true, Args: cobra.ArbitraryArgs,
		Example: "  " + root.Name() + " help\n  " + root.Name() + " help completion bash",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err == nil {
				err = cmd.Args(cmd, rest)
			}
			if err != nil {
				return err
			}
			return cmd.Help()
		},
	}
}

// helpWidth is how wide help is at most.
const helpWidth = 120

// help prints examples first, then verbs, flags, what is not there yet, and exit codes.
func help(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	text := cmd.Long
	if text == "" {
		text = sentence(cmd.Short)
	}
	fmt.Fprintf(w, "%s\n", strings.TrimSpace(text))
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	fmt.Fprintf(w, "\nUsage:\n  %s [flags]\n", cmd.CommandPath())
	var verbs, laterVerbs strings.Builder
	for _, c := range cmd.Commands() {
		line := fmt.Sprintf("  %-12s %s\n", c.Name(), c.Short)
		switch {
		case isLaterVerb(c):
			laterVerbs.WriteString(line)
		case c.IsAvailableCommand():
			verbs.WriteString(line)
		}
	}
	if verbs.Len() > 0 {
		fmt.Fprintf(w, "  %s VERB [flags]\n\nVerbs:\n%s", cmd.CommandPath(), verbs.String())
	}
	now, later := splitFlags(cmd.Flags())
	fmt.Fprintf(w, "\nFlags:\n%s", now.FlagUsagesWrapped(helpWidth))
	if laterVerbs.Len() > 0 || later.HasFlags() {
		fmt.Fprintf(w, "\nNot yet:\n%s%s", laterVerbs.String(), later.FlagUsagesWrapped(helpWidth))
	}
	if now.HasFlags() {
		fmt.Fprint(w, "\nEnvironment:\n  LIGHTQ_ and a flag's name give it a value where the command line does not: LIGHTQ_LOG_LEVEL=debug\n")
	}
	fmt.Fprint(w, "\nExit codes:\n")
	for _, m := range exitMeanings {
		fmt.Fprintf(w, "  %-3d  %s\n", int(m.code), m.meaning)
	}
}

// sentence makes a short help text one.
func sentence(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(s[size:], ".") + "."
}

// splitFlags parts the flags that are there from those for later, in the order in which they were added.
func splitFlags(fs *pflag.FlagSet) (now, later *pflag.FlagSet) {
	now, later = pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	now.SortFlags, later.SortFlags = false, false
	fs.VisitAll(func(f *pflag.Flag) {
		if v, ok := f.Value.(*value); ok && v.answer != nil && v.answer.Exit == ExitNotYet {
			later.AddFlag(f)
		} else {
			now.AddFlag(f)
		}
	})
	return now, later
}

// Interruptible returns a context that ends with the first SIGINT or SIGTERM. A second one ends the process at once.
func Interruptible(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Stoppable returns a context that one of the signals cancels, with ErrInterrupted as its cause; a second one changes nothing. It is for
// programs that have to clean up behind them, such as those that have started others.
func Stoppable(parent context.Context, signals ...os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, signals...)
	go func() {
		select {
		case <-caught:
			cancel(ErrInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(caught)
		cancel(nil)
	}
}
