// Runs all of h2spec, the strict cases included, against a server of HTTP/2 on a loopback port.
//
//	h2spec PORT PATH cleartext|tls GET|POST
//
// Every request is without the end of its body at first, so a path is needed whose answer waits for that: what arrives
// behind an early answer is to be ignored (RFC 9113, section 5.1), and h2spec would wait for a fault. h2spec knows GET
// only; for POST its requests go through a proxy that changes this one byte of them.
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "h2spec:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 5 {
		return fmt.Errorf("usage: h2spec PORT PATH cleartext|tls GET|POST")
	}
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	if os.Args[4] == "POST" {
		if port, err = posting(port); err != nil {
			return err
		}
	}
	passed, err := h2spec.Run(&config.Config{
		Host:         "127.0.0.1",
		Port:         port,
		Path:         os.Args[2],
		Timeout:      2 * time.Second,
		MaxHeaderLen: 4000,
		Strict:       true,
		TLS:          os.Args[3] == "tls",
		// The identity of the server is not in question here.
		Insecure: true,
	})
	if err == nil && !passed {
		err = fmt.Errorf("a case failed")
	}
	if err == nil && os.Args[4] == "POST" && changed.Load() == 0 {
		err = fmt.Errorf("no request was changed into a POST")
	}
	return err
}

// changed counts requests.
var changed atomic.Int64

// posting starts the proxy, and returns its port.
func posting(server int) (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go proxy(client.(*net.TCPConn), server)
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func proxy(client *net.TCPConn, port int) {
	defer client.Close()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer server.CloseWrite()
		var sent poster
		buffer := make([]byte, 64<<10)
		for {
			n, err := client.Read(buffer)
			for i := range buffer[:n] {
				sent.change(&buffer[i])
			}
			// A server that is gone reads no more.
			_, _ = server.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if _, failed := client.Write(buffer[:n]); failed != nil || err != nil {
			break
		}
	}
	// Closing a socket with unread input discards the bytes that the client has not read yet.
	_ = client.CloseWrite()
	_ = client.SetReadDeadline(time.Now().Add(2 * time.Second))
	<-gone
}

const (
	preface = 24
	head    = 9

	headers  = 1
	padded   = 0x08
	priority = 0x20

	// Fields of the static table: `:method: GET` and `:method: POST`.
	get  = 0x82
	post = 0x83
)

// poster follows the frames of a client, byte by byte.
type poster struct {
	prefaced int
	head     []byte
	// Bytes of the payload that are to come, and those before the block of headers.
	left, before int
}

func (p *poster) change(b *byte) {
	if p.prefaced < preface {
		p.prefaced++
		return
	}
	if p.left > 0 {
		if p.head[3] == headers && p.before == 0 && *b == get {
			*b = post
			changed.Add(1)
		}
		p.left--
		p.before--
		return
	}
	if len(p.head) == head {
		p.head = p.head[:0]
	}
	p.head = append(p.head, *b)
	if len(p.head) == head {
		p.left = int(p.head[0])<<16 | int(p.head[1])<<8 | int(p.head[2])
		p.before = 0
		if p.head[4]&padded != 0 {
			p.before++
		}
		if p.head[4]&priority != 0 {
			p.before += 5
		}
	}
}
