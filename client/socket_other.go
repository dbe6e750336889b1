//go:build !linux || 386 || s390x

package client

import (
	"io"
	"net"
)

// socketOf returns conn.
func socketOf(conn net.Conn) io.ReadWriter { return conn }
