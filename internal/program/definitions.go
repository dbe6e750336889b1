package program

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/journal/vfs"
	"github.com/lightio/lightq/topic"
	"github.com/spf13/cobra"
)

// Definitions are the topics of a broker without what they hold, as export writes them and import reads them.
type definitions struct {
	LightQ int          `json:"lightq_definitions"` // version of this form
	Topics []definition `json:"topics"`
}

type definition struct {
	Topic    string       `json:"topic"`
	Settings settingsJSON `json:"settings"`
}

const (
	definitionsVersion  = 1
	maxDefinitionsBytes = 64 << 20
)

func exportCommand() *cobra.Command {
	var f clientFlags
	var file string
	cmd := &cobra.Command{
		Use: "export", Short: "write the definitions of all topics to a file",
		Long: `Writes the names and settings of all topics, not their records and credentials, to a file or to standard output. lightq-topic
import makes them on another broker.`,
		Example: "  lightq-topic export -f topics.json\n  lightq-topic export -f - | lightq-topic import -f - -b other:5500",
		RunE: func(*cobra.Command, []string) error {
			return f.withClient(func(ctx context.Context, c *client.Client) error {
				topics, err := c.List(ctx)
				if err != nil {
					return err
				}
				d := definitions{LightQ: definitionsVersion, Topics: []definition{}}
				for _, t := range topics {
					d.Topics = append(d.Topics, definition{Topic: t.Name, Settings: settingsOf(t.Settings)})
				}
				text, err := json.MarshalIndent(d, "", "  ")
				if err != nil {
					return err
				}
				text = append(text, '\n')
				if file == "-" {
					_, err = os.Stdout.Write(text)
					return err
				}
				if err := os.WriteFile(file, text, 0o600); err != nil {
					return cli.Failf(cli.ExitFailure, "-f, --file: %v", err)
				}
				fmt.Fprintf(os.Stderr, "exported %s to %s\n", cli.Plural(int64(len(topics)), "topic"), file)
				return nil
			})
		},
	}
	f.addServer(cmd.Flags(), "lightq-topic")
	cli.Text(cmd.Flags(), &file, "file", "f", "-", "FILE", "where to, - for standard output")
	cli.LogLevel(cmd.Flags(), &f.level)
	return cmd
}

func importCommand() *cobra.Command {
	var f topicFlags
	var file string
	cmd := &cobra.Command{
		Use: "import", Short: "create the topics that a file defines",
		Long: `Creates the topics that lightq-topic export wrote. One that exists with the same settings stays as it is; one that exists with
others is an error, behind which the rest is created all the same.`,
		Example: "  lightq-topic import -f topics.json",
		RunE: func(*cobra.Command, []string) error {
			return f.withClient(func(ctx context.Context, c *client.Client) error {
				d, err := readDefinitions(file)
				if err != nil {
					return err
				}
				return f.importAll(ctx, c, d)
			})
		},
	}
	f.addServer(cmd.Flags(), "lightq-topic")
	cli.Text(cmd.Flags(), &file, "file", "f", "-", "FILE", "where from, - for standard input")
	f.clientFlags.addLast(cmd.Flags(), "created or exists, and the topic, of each")
	return cmd
}

func readDefinitions(file string) (d definitions, err error) {
	in := io.Reader(os.Stdin)
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return d, cli.Usagef("-f, --file: %v", err)
		}
		defer func() { _ = opened.Close() }() // it was only read
		in = opened
	}
	text, err := io.ReadAll(io.LimitReader(in, maxDefinitionsBytes+1))
	if err != nil {
		return d, cli.Failf(cli.ExitFailure, "-f, --file %s: %v", file, err)
	}
	if len(text) > maxDefinitionsBytes {
		return d, cli.Usagef("-f, --file %s has more than %s", file, cli.FormatSize(maxDefinitionsBytes))
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return d, cli.Usagef("-f, --file %s is not what export writes: %v", file, err)
	}
	if d.LightQ != definitionsVersion {
		return d, cli.Usagef("-f, --file %s has version %d of definitions, this program knows %d", file, d.LightQ, definitionsVersion)
	}
	for _, t := range d.Topics {
		if _, err := t.Settings.settings(); err != nil {
			return d, cli.Usagef("-f, --file %s: topic %s: %v", file, t.Topic, err)
		}
	}
	return d, nil
}

// settings is the inverse of settingsOf.
func (j *settingsJSON) settings() (s client.TopicSettings, err error) {
	var ok bool
	if s.Storage, ok = codec.ParseStorage(j.Storage); !ok {
		return s, fmt.Errorf("storage %q is unknown", j.Storage)
	}
	if s.Overflow, ok = codec.ParseOverflow(j.Overflow); !ok {
		return s, fmt.Errorf("overflow %q is unknown", j.Overflow)
	}
	s.Partitions, s.RingBytes, s.MaxBatchBytes = j.Partitions, j.RingBytes, j.MaxBatchBytes
	if d := j.DurableJSON; d != nil {
		if s.Sync, s.SyncMillis, err = parseSync(d.Sync); err != nil {
			return s, fmt.Errorf("sync %q: %w", d.Sync, err)
		}
		s.SegmentBytes, s.RetentionBytes, s.RetentionMillis = d.SegmentBytes, codec.RetentionUnlimited, codec.RetentionUnlimited
		if d.RetentionBytes != nil {
			s.RetentionBytes = *d.RetentionBytes
		}
		if d.RetentionMillis != nil {
			s.RetentionMillis = *d.RetentionMillis
		}
	}
	return s, nil
}

type importedJSON struct {
	Program string          `json:"program"`
	Topics  []importedTopic `json:"topics"`
}

type importedTopic struct {
	Topic   string `json:"topic"`
	Created bool   `json:"created"`
	Error   string `json:"error,omitempty"`
}

func (f *topicFlags) importAll(ctx context.Context, c *client.Client, d definitions) error {
	all := importedJSON{Program: f.program, Topics: []importedTopic{}}
	res := cli.Result{Lines: []any{}}
	var lines []string
	var failed error
	for _, t := range d.Topics {
		s, err := t.Settings.settings()
		if err != nil {
			return err
		}
		one := importedTopic{Topic: t.Topic}
		reply, err := c.CreateTopic(ctx, t.Topic, s)
		var wire *codec.WireError
		word := "exists"
		switch {
		case err == nil:
			if one.Created = reply.Created; reply.Created {
				word = "created"
			}
			lines = append(lines, word+" "+t.Topic)
		case errors.As(err, &wire):
			word, one.Error = "failed", wire.Error()
			lines = append(lines, "failed "+t.Topic+": "+wire.Detail)
			failed = errors.Join(failed, err)
		default:
			return err
		}
		all.Topics = append(all.Topics, one)
		res.Lines = append(res.Lines, one)
		res.Plain = append(res.Plain, []string{word, t.Topic})
	}
	res.JSON, res.Table = all, cli.Line(lines...)
	if err := res.Print(f.output); err != nil {
		return err
	}
	if failed != nil {
		return cli.Failf(cli.ExitFailure, "not all topics could be created")
	}
	return nil
}

func adoptCommand() *cobra.Command {
	var dataDir, id, name, storage string
	var level slog.Level
	cmd := &cobra.Command{
		Use: "adopt", Short: "serve a topic again whose entry in the data directory was lost",
		Long: `Gives a topic that a broker has set aside, because its entry in the data directory is lost or damaged, a new entry, made from
its own files. The broker must not run. Without --id it lists the topics that are set aside.`,
		Example: "  lightq-broker adopt\n  lightq-broker adopt --id 4c510001020304050607080900010203 -t orders",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := resolveDataDir(dataDir)
			if err != nil {
				return err
			}
			if dir == "" {
				return cli.Usagef("--data-dir none: there is nothing to adopt in memory")
			}
			logger := cli.NewLogger(os.Stderr, level)
			if id == "" {
				return listAside(dir, func() ([]topic.Aside, error) { return topic.SetAside(vfs.OS{}, dir, logger) })
			}
			var topicID codec.TopicID
			if n, err := hex.Decode(topicID[:], []byte(id)); err != nil || n != len(topicID) || len(id) != 2*len(topicID) {
				return cli.Usagef("--id %q: it must be the 32 hex digits of the topic's directory", id)
			}
			if !cli.Given(cmd.Flags(), "topic") {
				return cli.Usagef("adopt needs -t: the name that the topic is to have")
			}
			s := codec.TopicSettings{}
			s.Storage, _ = codec.ParseStorage(storage)
			adopted, err := topic.Adopt(vfs.OS{}, dir, logger, topicID, name, s)
			if err != nil {
				return explainDataDir(err, dir)
			}
			_, err = fmt.Printf("adopted %s: %s\n", name, settingsText(adopted, false))
			return err
		},
	}
	fs := cmd.Flags()
	cli.Text(fs, &dataDir, "data-dir", "", "", "DIR", "the data directory (default as for serve)")
	cli.Text(fs, &id, "id", "", "", "HEX", "the topic's id: the name of its directory")
	cli.Text(fs, &name, "topic", "t", "", "NAME", "the name that it is to have")
	cli.Choose(fs, &storage, "storage", "s", "", cli.Choice{Names: []string{"queue", "file", "direct", "queue_file"}}, "KIND",
		"its storage, where that is lost (default file)")
	cli.LogLevel(fs, &level)
	cli.LineOnly(fs, "id", "topic", "storage")
	return cmd
}

func listAside(dir string, list func() ([]topic.Aside, error)) error {
	aside, err := list()
	if err != nil {
		return explainDataDir(err, dir)
	}
	if len(aside) == 0 {
		fmt.Fprintln(os.Stderr, "no topic is set aside in "+dir)
		return nil
	}
	for _, a := range aside {
		name := a.Name
		if name == "" {
			name = "(name lost)"
		}
		if _, err := fmt.Printf("%x %s: %s; %s\n", a.ID, name, a.Reason, cli.Plural(int64(len(a.Partitions)), "partition")); err != nil {
			return err
		}
	}
	return nil
}
