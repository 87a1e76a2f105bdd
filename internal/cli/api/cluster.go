package api

import (
	"context"
	"encoding/json"
)

// Cluster is the state of the cluster as one broker sees it.
type Cluster struct {
	ID          string            `json:"clusterId"`
	Size        int               `json:"size"`
	Epoch       int64             `json:"epoch"`
	Brokers     []Broker          `json:"brokers"`
	Generations []json.RawMessage `json:"generations"`
	Storage     Storage           `json:"storage"`
}

// Broker is one broker of a Cluster.
type Broker struct {
	Ordinal int            `json:"ordinal"`
	Host    string         `json:"host"`
	Ready   bool           `json:"ready"`
	Reasons []string       `json:"reasons"`
	Version string         `json:"version"`
	Disk    string         `json:"disk"`
	Run     string         `json:"run"`
	Started string         `json:"started"`
	Ports   map[string]int `json:"ports"`
}

// Storage is the disk of the broker that answered; sizes in bytes.
type Storage struct {
	Dir     string `json:"dir"`
	Bytes   int64  `json:"bytes"`
	Free    int64  `json:"free"`
	Reserve int64  `json:"reserve"`
	Full    bool   `json:"full"`
	Flush   string `json:"flush"`
}

// Cluster asks for the state of the cluster, also as it came.
func (c *Client) Cluster(ctx context.Context) (Cluster, json.RawMessage, error) {
	const path = "/v1/cluster"
	var raw json.RawMessage
	if err := c.getJSON(ctx, path, &raw); err != nil {
		return Cluster{}, nil, err
	}
	var out Cluster
	return out, raw, decode(path, raw, &out)
}

// Discovery is the answer of docs/wire.md 2.1.
type Discovery struct {
	Length             int      `json:"length"`
	Names              []string `json:"names"`
	BaseName           string   `json:"baseName"`
	ServiceName        string   `json:"serviceName"`
	ProducerPort       int      `json:"producerPort"`
	ProducerBinaryPort int      `json:"producerBinaryPort"`
	ConsumerPort       int      `json:"consumerPort"`
}

// Discover asks which brokers there are and which ports they have.
func (c *Client) Discover(ctx context.Context) (Discovery, error) {
	var d Discovery
	return d, c.getJSON(ctx, "/v1/brokers", &d)
}
