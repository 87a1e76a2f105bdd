package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/skeinmq/skein/internal/topology"
)

// TopicInfo is a topic as the broker lists it; Logs only where one topic is asked for. Config has what differs from the
// broker's defaults, Effective what holds.
type TopicInfo struct {
	topology.Topic
	Effective *topology.TopicConfig `json:"effectiveConfig,omitempty"`
	Logs      []LogInfo             `json:"logs,omitempty"`
}

// LogInfo is a partition of a topic. Records lie at the offsets [Start, HighWatermark).
type LogInfo struct {
	Partition     int           `json:"partition"`
	Token         string        `json:"token"`
	Leader        *int          `json:"leader"` // nil: none is known
	Generation    *int64        `json:"generation"`
	Start         int64         `json:"start"`
	End           int64         `json:"end"`
	HighWatermark int64         `json:"highWatermark"`
	Bytes         int64         `json:"bytes"`
	Segments      int           `json:"segments"`
	Damaged       []OffsetRange `json:"damaged,omitempty"`
}

// Topics lists the topics.
func (c *Client) Topics(ctx context.Context) ([]TopicInfo, json.RawMessage, error) {
	const path = "/v1/topics"
	var raw json.RawMessage
	if err := c.getJSON(ctx, path, &raw); err != nil {
		return nil, nil, err
	}
	var list struct {
		Topics []TopicInfo `json:"topics"`
	}
	err := decode(path, raw, &list)
	return list.Topics, raw, err
}

// Topic describes a topic: also the answer as it came, with fields this version does not know.
func (c *Client) Topic(ctx context.Context, name string) (TopicInfo, json.RawMessage, error) {
	path := "/v1/topics/" + url.PathEscape(name)
	var raw json.RawMessage
	if err := c.getJSON(ctx, path, &raw); err != nil {
		return TopicInfo{}, nil, err
	}
	var topic TopicInfo
	return topic, raw, decode(path, raw, &topic)
}

// NewTopic is a topic to create: Partitions 0 is the broker's default, Config nil too.
type NewTopic struct {
	Name       string         `json:"name"`
	Partitions int            `json:"partitions,omitempty"`
	Config     map[string]any `json:"config,omitempty"`
}

// CreateTopic creates a topic; created is false when it exists alike. Status 409: it exists with other settings.
func (c *Client) CreateTopic(ctx context.Context, t NewTopic) (topic TopicInfo, created bool, err error) {
	status, err := c.sendJSON(ctx, http.MethodPost, "/v1/topics", t, &topic)
	return topic, status == http.StatusCreated, err
}

// UpdateTopic changes settings of a topic; nil goes back to the broker's default.
func (c *Client) UpdateTopic(ctx context.Context, name string, config map[string]any) (topic TopicInfo, err error) {
	_, err = c.sendJSON(ctx, http.MethodPatch, "/v1/topics/"+url.PathEscape(name), map[string]any{"config": config}, &topic)
	return topic, err
}

// DeleteTopic deletes a topic with its records and positions.
func (c *Client) DeleteTopic(ctx context.Context, name string) error {
	_, err := c.sendJSON(ctx, http.MethodDelete, "/v1/topics/"+url.PathEscape(name), nil, nil)
	return err
}
