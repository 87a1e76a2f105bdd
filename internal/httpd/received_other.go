//go:build !linux

package httpd

// received tells whether the client has not cut the connection: more is not to be known here.
func (c *countedConn) received() bool { return !c.cut.Load() }
