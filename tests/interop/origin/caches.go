package main

import (
	"errors"
	"fmt"

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

// caches is one LinearCache per type: it gives delta clients content hashes as versions, so they stay the
// same over a restart of the origin.
type caches struct {
	byType map[resource.Type]*cache.LinearCache
	mux    *cache.MuxCache
}

func newCaches() *caches {
	c := &caches{
		byType: map[resource.Type]*cache.LinearCache{},
		mux: &cache.MuxCache{
			Classify:      func(request *cache.Request) string { return request.GetTypeUrl() },
			ClassifyDelta: func(request *cache.DeltaRequest) string { return request.GetTypeUrl() },
			Caches:        map[string]cache.Cache{},
		},
	}
	for _, typeURL := range servedTypes {
		linear := cache.NewLinearCache(typeURL)
		c.byType[typeURL] = linear
		c.mux.Caches[typeURL] = linear
	}
	return c
}

// put sets the resource that the proto3 JSON of an Any holds.
func (c *caches) put(body []byte) error {
	var packed anypb.Any
	if err := protojson.Unmarshal(body, &packed); err != nil {
		return err
	}
	message, err := packed.UnmarshalNew()
	if err != nil {
		return err
	}
	linear, err := c.of(packed.GetTypeUrl())
	if err != nil {
		return err
	}
	unpacked := types.Resource(message)
	name := cache.GetResourceName(unpacked)
	if name == "" {
		return errors.New("the resource has no name")
	}
	return linear.UpdateResource(name, unpacked)
}

func (c *caches) remove(typeURL, name string) error {
	linear, err := c.of(typeURL)
	if err != nil {
		return err
	}
	return linear.DeleteResource(name)
}

func (c *caches) of(typeURL string) (*cache.LinearCache, error) {
	linear, found := c.byType[typeURL]
	if !found {
		return nil, fmt.Errorf("type %q is not served here", typeURL)
	}
	return linear, nil
}
