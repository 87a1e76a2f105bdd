package httpd

import "golang.org/x/sys/unix"

// received tells whether the machine of the client has confirmed all that was written and the client has not cut the
// connection. A process that ends with unread bytes cuts it.
func (c *countedConn) received() bool {
	if c.cut.Load() {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var all bool
	err = raw.Control(func(fd uintptr) {
		// This takes the error off the socket, so it is noted.
		if code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
			c.cut.Store(true)
			return
		}
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		all = err == nil && info.Unacked == 0 && info.Notsent_bytes == 0
	})
	if err != nil { // closed
		return !c.cut.Load() && !c.lost.Load()
	}
	return all
}
