package client

import (
	"context"
	"fmt"

	"github.com/lightio/lightq/codec"
)

// AllPartitions stands for every partition of a topic in Purge.
const AllPartitions = -1

// TopicSettings are what a topic is created with; zero values ask for the broker's defaults.
type TopicSettings = codec.TopicSettings

// CreateReply tells what stands after CreateTopic.
type CreateReply = codec.CreateReply

// Description tells a topic's settings and the state of its partitions.
type Description = codec.Description

// TopicEntry is one topic of List.
type TopicEntry = codec.TopicEntry

// Stat is one figure of the broker.
type Stat = codec.Stat

// CreateTopic creates a topic. One that exists with the same settings is no error (Created is false then), with
// others it is codec.CodeTopicExists.
func (c *Client) CreateTopic(ctx context.Context, name string, s TopicSettings) (CreateReply, error) {
	header, _, err := c.call(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendCreate(dst, corr, codec.Create{Topic: name, Settings: s})
	})
	var m CreateReply
	if err == nil {
		m, err = codec.ParseCreateReply(header)
	}
	if err != nil {
		return CreateReply{}, fmt.Errorf("create topic %s: %w", name, err)
	}
	return m, nil
}

// Describe asks about a topic.
func (c *Client) Describe(ctx context.Context, topic string) (Description, error) {
	header, payload, err := c.ask(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendDescribe(dst, corr, topic)
	})
	var m Description
	if err == nil {
		m, err = codec.ParseDescription(header, payload)
	}
	if err != nil {
		return Description{}, fmt.Errorf("describe topic %s: %w", topic, err)
	}
	return m, nil
}

// List returns all topics in order of their names. It asks for one page after the other, each within the client's
// timeout unless ctx has a deadline; a topic created or deleted meanwhile may be among them or not.
func (c *Client) List(ctx context.Context) ([]TopicEntry, error) {
	var all []TopicEntry
	for after := ""; ; {
		m, err := c.listPage(ctx, after)
		if err != nil {
			return nil, fmt.Errorf("list topics: %w", err)
		}
		all = append(all, m.Topics...)
		if !m.More {
			return all, nil
		}
		after = m.Topics[len(m.Topics)-1].Name
	}
}

// listPage asks for the topics behind a name. It makes sure that a broker which says that there are more gets List
// further.
func (c *Client) listPage(ctx context.Context, after string) (codec.ListReply, error) {
	header, payload, err := c.ask(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendList(dst, corr, codec.List{After: after})
	})
	if err != nil {
		return codec.ListReply{}, err
	}
	m, err := codec.ParseListReply(header, payload)
	if err != nil {
		return codec.ListReply{}, err
	}
	for i := range m.Topics {
		if name := m.Topics[i].Name; name <= after {
			return codec.ListReply{}, codec.Errorf(codec.CodeMalformedFrame, "topic %q is listed behind %q", name, after)
		}
		after = m.Topics[i].Name
	}
	if m.More && len(m.Topics) == 0 {
		return codec.ListReply{}, codec.Errorf(codec.CodeMalformedFrame, "the broker has more topics and lists none")
	}
	return m, nil
}

// Alter changes a topic's settings and returns those in force now. Zero values stay as they are. The storage cannot be
// changed, the number of partitions only grow; producers and consumers that are open do not see the new ones.
func (c *Client) Alter(ctx context.Context, topic string, s TopicSettings) (TopicSettings, error) {
	header, _, err := c.call(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendAlter(dst, corr, codec.Create{Topic: topic, Settings: s})
	})
	var m CreateReply
	if err == nil {
		m, err = codec.ParseCreateReply(header)
	}
	if err != nil {
		return TopicSettings{}, fmt.Errorf("alter topic %s: %w", topic, err)
	}
	return m.Settings, nil
}

// Delete deletes a topic with all that it holds. Whoever publishes or consumes gets codec.CodeTopicDeleted.
func (c *Client) Delete(ctx context.Context, topic string) error {
	header, _, err := c.call(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendDelete(dst, corr, topic)
	})
	if err == nil {
		err = codec.ParseEmpty(codec.TypeDelete, header)
	}
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", topic, err)
	}
	return nil
}

// Purge drops the records that a partition of a topic, or AllPartitions, holds now, and returns how many they were.
// Offsets go on; a consumer that had not had the records is told the gap.
func (c *Client) Purge(ctx context.Context, topic string, partition int) (records uint64, err error) {
	number := uint32(codec.AllPartitions)
	if partition != AllPartitions {
		if partition < 0 || int64(partition) >= codec.AllPartitions {
			return 0, fmt.Errorf("purge topic %s: %w", topic,
				codec.Errorf(codec.CodeUnknownPartition, "there is no partition %d", partition))
		}
		number = uint32(partition)
	}
	header, _, err := c.call(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendPurge(dst, corr, codec.Purge{Topic: topic, Partition: number})
	})
	if err == nil {
		records, err = codec.ParsePurgeReply(header)
	}
	if err != nil {
		return 0, fmt.Errorf("purge topic %s: %w", topic, err)
	}
	return records, nil
}

// Stats returns the broker's figures. Their names are stable; docs/PROTOCOL.md lists them.
func (c *Client) Stats(ctx context.Context) ([]Stat, error) {
	header, payload, err := c.ask(ctx, codec.AppendStats)
	var stats []Stat
	if err == nil {
		stats, err = codec.ParseStatsReply(header, payload)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for stats: %w", err)
	}
	return stats, nil
}
