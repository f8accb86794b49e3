// Runs all of h2spec, the strict cases included, against a server of cleartext HTTP/2 on a loopback port.
//
//	h2spec PORT PATH
//
// Every request is a GET of PATH without the end of its body at first, so a path is needed whose answer waits for that:
// what arrives behind an early answer is to be ignored (RFC 9113, section 5.1), and h2spec would wait for a fault.
package main

import (
	"fmt"
	"os"
	"strconv"
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
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: h2spec PORT PATH")
	}
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	passed, err := h2spec.Run(&config.Config{
		Host:         "127.0.0.1",
		Port:         port,
		Path:         os.Args[2],
		Timeout:      2 * time.Second,
		MaxHeaderLen: 4000,
		Strict:       true,
	})
	if err == nil && !passed {
		err = fmt.Errorf("a case failed")
	}
	return err
}
