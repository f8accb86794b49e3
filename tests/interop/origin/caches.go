package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	// Types that resources embed as Any: protojson has to know them to read them.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
)

var servedTypes = []resource.Type{
	resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType,
	resource.ScopedRouteType, resource.VirtualHostType, resource.SecretType, resource.RuntimeType,
	resource.ExtensionConfigType,
}

// store is a cache of go-control-plane and how it is filled.
type store interface {
	cache.Cache
	set(typeURL, name string, resource types.Resource) error
	remove(typeURL, name string) error
}

// newStore returns the cache of this kind. Delta clients get content hashes as versions from each of them, so
// versions stay the same over a restart of the origin.
func newStore(kind, node string, ads bool) (store, error) {
	switch kind {
	case "mux":
		return newMuxed(), nil
	case "linear":
		return bare{cache.NewLinearCache(resource.ClusterType)}, nil
	case "snapshot":
		return newSnapshots(node, ads)
	case "fleets":
		return newFleets(), nil
	}
	return nil, fmt.Errorf("no cache is called %q", kind)
}

// put sets the resource that the proto3 JSON of an Any holds.
func put(store store, body []byte) error {
	var packed anypb.Any
	if err := protojson.Unmarshal(body, &packed); err != nil {
		return err
	}
	message, err := packed.UnmarshalNew()
	if err != nil {
		return err
	}
	unpacked := types.Resource(message)
	name := cache.GetResourceName(unpacked)
	if name == "" {
		return errors.New("the resource has no name")
	}
	return store.set(packed.GetTypeUrl(), name, unpacked)
}

// muxed is one LinearCache per type behind a MuxCache.
type muxed struct {
	cache.MuxCache
	byType map[resource.Type]*cache.LinearCache
}

func newMuxed() *muxed {
	m := &muxed{
		MuxCache: cache.MuxCache{
			Classify:      func(request *cache.Request) string { return request.GetTypeUrl() },
			ClassifyDelta: func(request *cache.DeltaRequest) string { return request.GetTypeUrl() },
			Caches:        map[string]cache.Cache{},
		},
		byType: map[resource.Type]*cache.LinearCache{},
	}
	for _, typeURL := range servedTypes {
		linear := cache.NewLinearCache(typeURL)
		m.byType[typeURL] = linear
		m.Caches[typeURL] = linear
	}
	return m
}

func (m *muxed) set(typeURL, name string, resource types.Resource) error {
	linear, found := m.byType[typeURL]
	if !found {
		return notServed(typeURL)
	}
	return linear.UpdateResource(name, resource)
}

func (m *muxed) remove(typeURL, name string) error {
	linear, found := m.byType[typeURL]
	if !found {
		return notServed(typeURL)
	}
	return linear.DeleteResource(name)
}

// bare is a LinearCache by itself: it has clusters and nothing else.
type bare struct{ *cache.LinearCache }

func (b bare) set(typeURL, name string, unpacked types.Resource) error {
	if typeURL != resource.ClusterType {
		return notServed(typeURL)
	}
	return b.UpdateResource(name, unpacked)
}

func (b bare) remove(typeURL, name string) error {
	if typeURL != resource.ClusterType {
		return notServed(typeURL)
	}
	return b.DeleteResource(name)
}

// snapshots is a SnapshotCache with one snapshot: of one node, or of all where that is empty.
type snapshots struct {
	cache.SnapshotCache
	node string

	mu        sync.Mutex
	resources map[resource.Type]map[string]types.Resource
	version   int
}

// everyNode hashes all nodes to one, whose id is empty.
type everyNode struct{}

func (everyNode) ID(*core.Node) string { return "" }

func newSnapshots(node string, ads bool) (*snapshots, error) {
	var hash cache.NodeHash = everyNode{}
	if node != "" {
		hash = cache.IDHash{}
	}
	s := &snapshots{
		SnapshotCache: cache.NewSnapshotCache(ads, hash, nil),
		node:          node,
		resources:     map[resource.Type]map[string]types.Resource{},
	}
	return s, s.publish()
}

func (s *snapshots) set(typeURL, name string, resource types.Resource) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resources[typeURL] == nil {
		s.resources[typeURL] = map[string]types.Resource{}
	}
	s.resources[typeURL][name] = resource
	return s.publish()
}

func (s *snapshots) remove(typeURL, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.resources[typeURL], name)
	return s.publish()
}

func (s *snapshots) publish() error {
	s.version++
	all := map[resource.Type][]types.Resource{}
	for typeURL, byName := range s.resources {
		for _, resource := range byName {
			all[typeURL] = append(all[typeURL], resource)
		}
	}
	snapshot, err := cache.NewSnapshot(strconv.Itoa(s.version), all)
	if err != nil {
		return err
	}
	return s.SetSnapshot(context.Background(), s.node, snapshot)
}

// fleets is a SnapshotCache that keys on the id of the node, with a snapshot for each node that was given resources.
type fleets struct {
	cache.SnapshotCache

	mu     sync.Mutex
	byNode map[string]*snapshots
}

func newFleets() *fleets {
	return &fleets{
		SnapshotCache: cache.NewSnapshotCache(false, cache.IDHash{}, nil),
		byNode:        map[string]*snapshots{},
	}
}

// of returns the snapshot of a node.
func (f *fleets) of(node string) *snapshots {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byNode[node] == nil {
		f.byNode[node] = &snapshots{
			SnapshotCache: f.SnapshotCache,
			node:          node,
			resources:     map[resource.Type]map[string]types.Resource{},
		}
	}
	return f.byNode[node]
}

func (f *fleets) set(string, string, types.Resource) error {
	return errors.New("say for which node")
}

func (f *fleets) remove(string, string) error {
	return errors.New("say for which node")
}

// storeOf returns the part of a store that is for a node; all of it for an empty one.
func storeOf(all store, node string) (store, error) {
	if node == "" {
		return all, nil
	}
	if f, is := all.(*fleets); is {
		return f.of(node), nil
	}
	return nil, errors.New("this cache does not tell nodes apart")
}

func notServed(typeURL string) error {
	return fmt.Errorf("type %q is not served here", typeURL)
}
