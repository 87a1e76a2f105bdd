package token

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// Token is a position on the ring, the whole of int64.
type Token int64

// Min is the first position of the ring; the token of ordinal 0.
const Min Token = math.MinInt64

const (
	c1 = 0x87c37b91114253d5
	c2 = 0x4cf5ad432745937f
)

// Of is the token of a key: h1 of Murmur3 x64 128 with seed 0 in the variant that published clients compute
// (WIRE.md 6.1): the bytes of the tail, the last len mod 16, are sign-extended before they are mixed. Keys whose tail
// is ASCII hash as in standard Murmur3. The libraries in reach implement the standard only, hence this one.
func Of(key []byte) Token {
	var h1, h2 uint64
	n := len(key)
	b := key
	for len(b) >= 16 {
		k1 := binary.LittleEndian.Uint64(b)
		k2 := binary.LittleEndian.Uint64(b[8:])
		b = b[16:]

		h1 ^= mix1(k1)
		h1 = bits.RotateLeft64(h1, 27) + h2
		h1 = h1*5 + 0x52dce729
		h2 ^= mix2(k2)
		h2 = bits.RotateLeft64(h2, 31) + h1
		h2 = h2*5 + 0x38495ab5
	}

	var k1, k2 uint64
	for i := len(b) - 1; i >= 8; i-- {
		k2 ^= uint64(int64(int8(b[i]))) << (8 * (i - 8))
	}
	for i := min(len(b), 8) - 1; i >= 0; i-- {
		k1 ^= uint64(int64(int8(b[i]))) << (8 * i)
	}
	if len(b) > 8 {
		h2 ^= mix2(k2)
	}
	if len(b) > 0 {
		h1 ^= mix1(k1)
	}

	h1 ^= uint64(n)
	h2 ^= uint64(n)
	h1 += h2
	h2 += h1
	h1 = finalize(h1)
	h2 = finalize(h2)
	return Token(h1 + h2)
}

// OfString is Of for a string key.
func OfString(key string) Token { return Of([]byte(key)) }

func mix1(k uint64) uint64 { return bits.RotateLeft64(k*c1, 31) * c2 }

func mix2(k uint64) uint64 { return bits.RotateLeft64(k*c2, 33) * c1 }

func finalize(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
