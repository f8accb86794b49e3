package main

import (
	"context"
	"fmt"
	"time"

	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherpb "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
)

// Prints the status of the client that is this node as JSON, asked of a server of CSDS by a unary call and on a stream,
// which have to agree: ADDRESS NODE.
func clientStatus(args []string) error {
	connection, err := grpc.NewClient(args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	exact := &matcherpb.StringMatcher{MatchPattern: &matcherpb.StringMatcher_Exact{Exact: args[1]}}
	request := &statuspb.ClientStatusRequest{
		NodeMatchers:            []*matcherpb.NodeMatcher{{NodeId: exact}},
		ExcludeResourceContents: true,
	}
	client := statuspb.NewClientStatusDiscoveryServiceClient(connection)
	fetched, err := client.FetchClientStatus(ctx, request)
	if err != nil {
		return err
	}
	stream, err := client.StreamClientStatus(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(request); err != nil {
		return err
	}
	streamed, err := stream.Recv()
	if err != nil {
		return err
	}
	if len(streamed.Config) != len(fetched.Config) {
		return fmt.Errorf("%d clients on the stream, %d fetched", len(streamed.Config), len(fetched.Config))
	}
	text, err := protojson.Marshal(fetched)
	if err == nil {
		fmt.Println(string(text))
	}
	return err
}
