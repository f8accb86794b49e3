package main

import (
	"net"
	"sync"

	"google.golang.org/grpc"
)

// gate owns the xDS port: it counts the connections, can drop them, and can stop and start listening on the
// same address while the server behind it lives on.
type gate struct {
	address string
	server  *grpc.Server

	mu          sync.Mutex
	listener    net.Listener
	connections map[net.Conn]struct{}
	ever        int
}

// newGate binds address, and serves on it unless it starts paused: then nobody gets through before resume.
func newGate(address string, server *grpc.Server, paused bool) (*gate, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	g := &gate{
		address:     listener.Addr().String(),
		server:      server,
		connections: map[net.Conn]struct{}{},
	}
	if paused {
		return g, listener.Close()
	}
	g.serve(listener)
	return g, nil
}

func (g *gate) serve(listener net.Listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener = listener
	go func() {
		// Serve ends when pause closes the listener; connections that it has accepted live on.
		_ = g.server.Serve(countingListener{listener, g})
	}()
}

func (g *gate) pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		_ = g.listener.Close()
		g.listener = nil
	}
}

func (g *gate) resume() error {
	g.mu.Lock()
	listening := g.listener != nil
	g.mu.Unlock()
	if listening {
		return nil
	}
	listener, err := net.Listen("tcp", g.address)
	if err != nil {
		return err
	}
	g.serve(listener)
	return nil
}

// dropAll closes the sockets under the streams, the way a crash or a broken network does.
func (g *gate) dropAll() {
	g.mu.Lock()
	open := make([]net.Conn, 0, len(g.connections))
	for conn := range g.connections {
		open = append(open, conn)
	}
	g.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close()
	}
}

func (g *gate) counts() (ever, now int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ever, len(g.connections)
}

type countingListener struct {
	net.Listener
	gate *gate
}

func (l countingListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &countedConn{Conn: accepted, gate: l.gate}
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	l.gate.ever++
	l.gate.connections[conn] = struct{}{}
	return conn, nil
}

type countedConn struct {
	net.Conn
	gate *gate
}

func (c *countedConn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.connections, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
