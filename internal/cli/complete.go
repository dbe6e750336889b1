package cli

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Complete makes the shell complete a flag's value with what list returns. It is called with the flags that were typed so far
// and the environment applied. It has to be quick, and returns nothing where it finds nothing.
func Complete(fs *pflag.FlagSet, name string, list func() []string) {
	fs.Lookup(name).Value.(*value).complete = list
}

// prepareCompletion says how the shell completes the values of a command's flags: with a list, with files, with folders, or not
// at all. The commands take no arguments.
func prepareCompletion(cmd *cobra.Command, completing bool) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		v, ok := f.Value.(*value)
		if ok {
			v.lenient = completing
		}
		if !ok || f.NoOptDefVal != "" {
			return
		}
		complete := cobra.NoFileCompletions
		switch {
		case v.complete != nil:
			complete = func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
				if applyEnvironment(cmd.Flags(), io.Discard) != nil {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				list := slices.DeleteFunc(v.complete(), func(s string) bool { return !strings.HasPrefix(s, begun) })
				return list, cobra.ShellCompDirectiveNoFileComp
			}
		case v.words != nil:
			complete = cobra.FixedCompletions(v.words, cobra.ShellCompDirectiveNoFileComp)
		case v.kind == "FILE":
			return // which is what shells do
		case v.kind == "DIR":
			complete = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
			panic("BUG: " + err.Error()) // the flag is not there, or registered twice
		}
	})
}
