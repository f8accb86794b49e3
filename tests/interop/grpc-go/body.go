package main

import (
	"context"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// body opens a stream: the request is what stdin holds, the first response goes to stdout.
//
//	grpc-go body ADDRESS METHOD WINDOW
func body(args []string) error {
	address, method := args[0], args[1]
	window, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	request, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(int32(window)),
		grpc.WithInitialConnWindowSize(int32(window)+3),
	)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method,
		grpc.ForceCodec(asIs{}), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&request); err != nil {
		return err
	}
	var response []byte
	if err := stream.RecvMsg(&response); err != nil {
		return err
	}
	_, err = os.Stdout.Write(response)
	return err
}
