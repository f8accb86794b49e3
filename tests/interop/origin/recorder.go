package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc/peer"
)

// wildcard is how the recorder writes down both forms of a wildcard subscription: "*" and no name at all.
const wildcard = "*"

type report struct {
	Connections connectionCounts `json:"connections"`
	OpenStreams int              `json:"open_streams"`
	Streams     []*streamLog     `json:"streams"`
	// How often each name of each type was subscribed, over all streams ever.
	Subscribed map[string]map[string]int `json:"subscribed"`
	// How many streams ask for each name of each type at this moment.
	Wanted map[string]map[string]int `json:"wanted"`
}

type connectionCounts struct {
	Ever int `json:"ever"`
	Now  int `json:"now"`
}

type streamLog struct {
	ID string `json:"id"` // "delta/N" or "sotw/N"
	// The type of a per-type stream; empty for an aggregated one.
	Type     string       `json:"type"`
	Peer     string       `json:"peer"`
	Node     string       `json:"node"`
	Open     bool         `json:"open"`
	Requests []requestLog `json:"requests"`

	wanted map[string]map[string]struct{}
}

type requestLog struct {
	Type            string   `json:"type"`
	Subscribe       []string `json:"subscribe,omitempty"`
	Unsubscribe     []string `json:"unsubscribe,omitempty"`
	InitialVersions int      `json:"initial_versions,omitempty"`
	Version         string   `json:"version,omitempty"`
	Nonce           string   `json:"nonce,omitempty"`
	Error           string   `json:"error,omitempty"`
}

// recorder keeps what the xDS clients asked for.
type recorder struct {
	mu         sync.Mutex
	streams    []*streamLog
	byID       map[string]*streamLog
	subscribed map[string]map[string]int
}

func newRecorder() *recorder {
	return &recorder{byID: map[string]*streamLog{}, subscribed: map[string]map[string]int{}}
}

func (r *recorder) callbacks() server.Callbacks {
	return server.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, id int64, typeURL string) error {
			r.opened(ctx, sotwID(id), typeURL)
			return nil
		},
		StreamClosedFunc: func(id int64, _ *core.Node) { r.closed(sotwID(id)) },
		StreamRequestFunc: func(id int64, request *discovery.DiscoveryRequest) error {
			r.sotwRequest(sotwID(id), request)
			return nil
		},
		DeltaStreamOpenFunc: func(ctx context.Context, id int64, typeURL string) error {
			r.opened(ctx, deltaID(id), typeURL)
			return nil
		},
		DeltaStreamClosedFunc: func(id int64, _ *core.Node) { r.closed(deltaID(id)) },
		StreamDeltaRequestFunc: func(id int64, request *discovery.DeltaDiscoveryRequest) error {
			r.deltaRequest(deltaID(id), request)
			return nil
		},
	}
}

func sotwID(id int64) string  { return fmt.Sprintf("sotw/%d", id) }
func deltaID(id int64) string { return fmt.Sprintf("delta/%d", id) }

func (r *recorder) opened(ctx context.Context, id, typeURL string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stream := &streamLog{
		ID: id, Type: typeURL, Open: true, Requests: []requestLog{}, wanted: map[string]map[string]struct{}{},
	}
	if from, known := peer.FromContext(ctx); known {
		stream.Peer = from.Addr.String()
	}
	r.streams = append(r.streams, stream)
	r.byID[id] = stream
}

func (r *recorder) closed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[id].Open = false
}

func (r *recorder) deltaRequest(id string, request *discovery.DeltaDiscoveryRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stream := r.byID[id]
	entry := requestLog{
		Type:            typeOf(stream, request.GetTypeUrl()),
		Subscribe:       request.GetResourceNamesSubscribe(),
		Unsubscribe:     request.GetResourceNamesUnsubscribe(),
		InitialVersions: len(request.GetInitialResourceVersions()),
		Nonce:           request.GetResponseNonce(),
		Error:           request.GetErrorDetail().GetMessage(),
	}
	if _, seen := stream.wanted[entry.Type]; !seen && len(entry.Subscribe) == 0 {
		entry.Subscribe = []string{wildcard}
	}
	r.record(stream, entry, request.GetNode())
}

func (r *recorder) sotwRequest(id string, request *discovery.DiscoveryRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stream := r.byID[id]
	entry := requestLog{
		Type:    typeOf(stream, request.GetTypeUrl()),
		Version: request.GetVersionInfo(),
		Nonce:   request.GetResponseNonce(),
		Error:   request.GetErrorDetail().GetMessage(),
	}
	names := request.GetResourceNames()
	before, seen := stream.wanted[entry.Type]
	if _, all := before[wildcard]; len(names) == 0 && (!seen || all) {
		names = []string{wildcard}
	}
	for _, name := range names {
		if _, held := before[name]; !held {
			entry.Subscribe = append(entry.Subscribe, name)
		}
	}
	for name := range before {
		if !slices.Contains(names, name) {
			entry.Unsubscribe = append(entry.Unsubscribe, name)
		}
	}
	r.record(stream, entry, request.GetNode())
}

func (r *recorder) record(stream *streamLog, entry requestLog, node *core.Node) {
	if id := node.GetId(); id != "" {
		stream.Node = id
	}
	wanted := stream.wanted[entry.Type]
	if wanted == nil {
		wanted = map[string]struct{}{}
		stream.wanted[entry.Type] = wanted
	}
	for _, name := range entry.Subscribe {
		wanted[name] = struct{}{}
		count(r.subscribed, entry.Type, name)
	}
	for _, name := range entry.Unsubscribe {
		delete(wanted, name)
	}
	stream.Requests = append(stream.Requests, entry)
}

// report is encoded here, under the lock: it shares its parts with the recorder.
func (r *recorder) report(ever, now int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := report{
		Connections: connectionCounts{Ever: ever, Now: now},
		Streams:     r.streams,
		Subscribed:  r.subscribed,
		Wanted:      map[string]map[string]int{},
	}
	for _, stream := range r.streams {
		if !stream.Open {
			continue
		}
		out.OpenStreams++
		for typeURL, names := range stream.wanted {
			for name := range names {
				count(out.Wanted, typeURL, name)
			}
		}
	}
	return json.Marshal(out)
}

func typeOf(stream *streamLog, requested string) string {
	if requested == "" {
		return stream.Type
	}
	return requested
}

func count(counts map[string]map[string]int, typeURL, name string) {
	if counts[typeURL] == nil {
		counts[typeURL] = map[string]int{}
	}
	counts[typeURL][name]++
}
