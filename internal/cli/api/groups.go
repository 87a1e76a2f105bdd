package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/skeinmq/skein/internal/topology"
)

// Groups lists the groups, also as they came.
func (c *Client) Groups(ctx context.Context) ([]topology.GroupSummary, json.RawMessage, error) {
	const path = "/v1/groups"
	var raw json.RawMessage
	if err := c.getJSON(ctx, path, &raw); err != nil {
		return nil, nil, err
	}
	var list struct {
		Groups []topology.GroupSummary `json:"groups"`
	}
	err := decode(path, raw, &list)
	return list.Groups, raw, err
}

// Group describes a group, also as it came.
func (c *Client) Group(ctx context.Context, name string) (topology.GroupDetail, json.RawMessage, error) {
	path := "/v1/groups/" + url.PathEscape(name)
	var raw json.RawMessage
	if err := c.getJSON(ctx, path, &raw); err != nil {
		return topology.GroupDetail{}, nil, err
	}
	var group topology.GroupDetail
	return group, raw, decode(path, raw, &group)
}

// Seek moves a group. Status 409: members are live, and Force is not set.
func (c *Client) Seek(ctx context.Context, group string, r topology.SeekRequest) ([]topology.PositionChange, error) {
	var out struct {
		Positions []topology.PositionChange `json:"positions"`
	}
	_, err := c.sendJSON(ctx, http.MethodPost, "/v1/groups/"+url.PathEscape(group)+"/seek", r, &out)
	return out.Positions, err
}

// DeleteGroup forgets a group with its positions. Status 409: members are live.
func (c *Client) DeleteGroup(ctx context.Context, group string) error {
	_, err := c.sendJSON(ctx, http.MethodDelete, "/v1/groups/"+url.PathEscape(group), nil, nil)
	return err
}
