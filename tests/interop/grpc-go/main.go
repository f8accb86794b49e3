// A client of grpc-go that calls its target over and over, and prints each result as one line of JSON, as
// tests/interop/grpc_client.py does. Runs until stdin is closed. Or one that makes one request: see body and clientStatus.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds"
)

// No code is generated from a .proto: the messages are bytes.
type asIs struct{}

func (asIs) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (asIs) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (asIs) Name() string { return "as-is" }

type result struct {
	Answer  string `json:"answer,omitempty"`
	Error   string `json:"error,omitempty"`
	Details string `json:"details,omitempty"`
}

func call(connection *grpc.ClientConn) result {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var request, answer []byte
	if err := connection.Invoke(ctx, "/interop.Greeter/Greet", &request, &answer, grpc.ForceCodec(asIs{})); err != nil {
		return result{Error: status.Code(err).String(), Details: status.Convert(err).Message()}
	}
	return result{Answer: string(answer)}
}

func main() {
	if os.Args[1] == "body" {
		if err := body(os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	if os.Args[1] == "status" {
		if err := clientStatus(os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	lines := json.NewEncoder(os.Stdout)
	for {
		if err := lines.Encode(call(connection)); err != nil {
			log.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
