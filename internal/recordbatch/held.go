package recordbatch

import "unsafe"

// Held is about how many bytes of buffers d keeps between calls, for those who keep decoders: one large batch shall not
// hold memory for good.
func (d *Decoder) Held() int {
	return cap(d.raw) + cap(d.records)*int(unsafe.Sizeof(Record{})) + cap(d.headers)*int(unsafe.Sizeof(RecordHeader{}))
}
