// A peer of the fan-out bench: go-control-plane's LinearCache of one type behind its own server, filled as the
// bench's origin fills the relay. "change VERSION INDEX..." on stdin changes resources; the end of stdin ends it.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"math"
	"net"
	"os"
	"strconv"
	"strings"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: linear TYPE_URL COUNT BYTES")
	}
	typeURL := os.Args[1]
	count, bytes := number(os.Args[2]), number(os.Args[3])
	linear := cache.NewLinearCache(typeURL)
	all := make(map[string]types.Resource, count)
	for at := range count {
		all[name(at)] = body(typeURL, at, 1, bytes)
	}
	linear.SetResources(all)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxConcurrentStreams(math.MaxUint32))
	discovery.RegisterAggregatedDiscoveryServiceServer(s, server.NewServer(context.Background(), linear, nil))
	go func() { log.Fatal(s.Serve(listener)) }()
	fmt.Println("listening", listener.Addr())

	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 3 || words[0] != "change" {
			log.Fatalf("no command: %q", lines.Text())
		}
		version := number(words[1])
		changed := make(map[string]types.Resource, len(words)-2)
		for _, word := range words[2:] {
			at := number(word)
			changed[name(at)] = body(typeURL, at, version, bytes)
		}
		if err := linear.UpdateResources(changed, nil); err != nil {
			log.Fatal(err)
		}
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func name(at int) string { return fmt.Sprintf("resource-%06d", at) }

// body is a resource of about so many bytes that differs from version to version.
func body(typeURL string, at, version, bytes int) types.Resource {
	filler := fmt.Sprintf("%d-%s", version, strings.Repeat("x", max(0, bytes-40)))
	if typeURL == resource.ClusterType {
		return &cluster.Cluster{Name: name(at), AltStatName: filler}
	}
	return &endpoint.ClusterLoadAssignment{
		ClusterName: name(at),
		Endpoints:   []*endpoint.LocalityLbEndpoints{{LbEndpoints: []*endpoint.LbEndpoint{{HostIdentifier: &endpoint.LbEndpoint_EndpointName{EndpointName: filler}}}}},
	}
}
