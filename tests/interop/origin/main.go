// The origin is the control plane of the interop tests: go-control-plane's own servers on one of its caches,
// filled over a small HTTP control API, which also tells what its xDS clients have asked for. It compiles against
// several versions of go-control-plane: go.mod has the newest, go.VERSION.mod the older ones.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address of the xDS server")
	control := flag.String("control", "127.0.0.1:0", "address of the HTTP control API")
	paused := flag.Bool("paused", false, "do not accept xDS connections before POST /resume, so that a restarted "+
		"origin can be filled before anyone takes its emptiness for the truth")
	secure := flag.String("tls", "", "directory of cert.pem, key.pem and ca.pem: clients connect over TLS, with a "+
		"certificate of that authority; read again for each connection")
	kind := flag.String("cache", "mux", "where resources are kept: mux (a MuxCache over one LinearCache per type), "+
		"linear (a LinearCache of clusters), snapshot (a SnapshotCache) or fleets (a SnapshotCache by node id)")
	node := flag.String("node", "", "id of the only node that the SnapshotCache has a snapshot for; all nodes if empty")
	ads := flag.Bool("ads", false, "the SnapshotCache is for ADS: it answers a state-of-the-world list only if the list "+
		"has all names of the snapshot")
	flag.Parse()
	store, err := newStore(*kind, *node, *ads)
	if err == nil {
		err = run(*listen, *control, *paused, *secure, store)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(listen, control string, paused bool, secure string, store store) error {
	recorder := newRecorder()
	xds := newXdsServer(server.NewServer(context.Background(), store, recorder.callbacks()), transport(secure))
	gate, err := newGate(listen, xds, paused)
	if err != nil {
		return err
	}
	controlListener, err := net.Listen("tcp", control)
	if err != nil {
		return err
	}
	go exitWithParent()

	announcement := map[string]string{
		"xds": gate.address, "control": controlListener.Addr().String(), "version": version(),
	}
	if err := json.NewEncoder(os.Stdout).Encode(announcement); err != nil {
		return err
	}
	return http.Serve(controlListener, newControl(store, recorder, gate))
}

func newXdsServer(handlers server.Server, transport grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(transport, grpc.MaxConcurrentStreams(1_000_000), grpc.MaxRecvMsgSize(64<<20))
	discovery.RegisterAggregatedDiscoveryServiceServer(s, handlers)
	clusterservice.RegisterClusterDiscoveryServiceServer(s, handlers)
	endpointservice.RegisterEndpointDiscoveryServiceServer(s, handlers)
	listenerservice.RegisterListenerDiscoveryServiceServer(s, handlers)
	routeservice.RegisterRouteDiscoveryServiceServer(s, handlers)
	routeservice.RegisterScopedRoutesDiscoveryServiceServer(s, handlers)
	routeservice.RegisterVirtualHostDiscoveryServiceServer(s, handlers)
	secretservice.RegisterSecretDiscoveryServiceServer(s, handlers)
	runtimeservice.RegisterRuntimeDiscoveryServiceServer(s, handlers)
	extensionservice.RegisterExtensionConfigDiscoveryServiceServer(s, handlers)
	return s
}

// version is that of the go-control-plane that this program was built with.
func version() string {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if module.Path == "github.com/envoyproxy/go-control-plane" {
			if module.Replace != nil {
				module = module.Replace
			}
			return module.Version
		}
	}
	return ""
}

// exitWithParent leaves no orphan behind: whoever started the origin holds the other end of its stdin.
func exitWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}
