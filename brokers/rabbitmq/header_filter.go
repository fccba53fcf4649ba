package rabbitmq

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync/atomic"
)

// keyUndecoded is the header that holds the raw header bytes of a message whose headers amqp091-go cannot decode.
const keyUndecoded = "x-undecoded-headers"

// Limits of amqp091-go (v1.16.0, read.go): it ends the connection when a header table exceeds them.
const (
	maxFieldDepth = 32
	maxElements   = 8192
)

// AMQP frames: type, channel (2), size (4), payload, end.
const (
	frameHead     = 7
	frameEnd      = 1
	contentHeader = 2
	tlsAlert      = 21 // first byte of a TLS server's answer to a client that does not use TLS
)

// leastBad is the shortest content header that amqp091-go may be unable to decode: 33 nested arrays.
const leastBad = 14 + 4 + 5*maxFieldDepth

// headerFilter is a connection whose input amqp091-go can always decode. RabbitMQ accepts messages whose headers nest
// deeper, or have more entries, than the client allows. The client reacts by ending the connection; RabbitMQ then
// redelivers that message first, along with the prefetched ones, forever. The headerFilter replaces such headers by one
// that holds their bytes, so that the message arrives and can be dead-lettered.
type headerFilter struct {
	net.Conn
	in      *bufio.Reader
	out     []byte // a changed frame, or one to be passed on whole
	through int64  // bytes to pass on unchanged

	first bool        // nothing has been read yet
	alert atomic.Bool // the first byte was that of a TLS alert
}

func filterHeaders(conn net.Conn) *headerFilter {
	return &headerFilter{Conn: conn, in: bufio.NewReaderSize(conn, 64<<10), first: true}
}

// Read implements net.Conn. It returns bytes of one frame at most.
func (s *headerFilter) Read(p []byte) (int, error) {
	if len(s.out) == 0 && s.through == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	if len(s.out) > 0 {
		n := copy(p, s.out)
		s.out = s.out[n:]
		return n, nil
	}
	n, err := s.in.Read(p[:min(int64(len(p)), s.through)])
	s.through -= int64(n)
	return n, err
}

// next inspects the frame that begins here.
func (s *headerFilter) next() error {
	head, err := s.in.Peek(frameHead)
	if len(head) > 0 && s.first {
		s.first = false
		s.alert.Store(head[0] == tlsAlert)
	}
	if len(head) < frameHead {
		if len(head) == 0 {
			return err
		}
		s.through = int64(len(head)) // the connection ended within a frame: the client should see its start
		return nil
	}
	size := binary.BigEndian.Uint32(head[3:])
	if head[0] != contentHeader || size < leastBad || size > 1<<20 {
		s.through = frameHead + int64(size) + frameEnd
		return nil
	}
	frame := make([]byte, frameHead+int(size)+frameEnd)
	n, err := io.ReadFull(s.in, frame)
	if err != nil {
		s.out = frame[:n]
		return nil //nolint:nilerr // the next read repeats it
	}
	s.out = readable(frame)
	return nil
}

// readable returns frame, or one with the same properties and readable headers instead.
func readable(frame []byte) []byte {
	payload := frame[frameHead : len(frame)-frameEnd]
	begin, end, ok := headersIn(payload)
	if !ok || decodable(kindTable, payload[begin+4:end], 0) {
		return frame
	}
	name := append([]byte{byte(len(keyUndecoded))}, keyUndecoded...)
	raw := payload[begin+4 : end]
	raw = raw[:min(len(raw), maxUndecoded-len(name)-5)] // its kind and length
	header := slices.Concat(name, []byte{kindBytes}, withLength(raw))
	payload = slices.Concat(payload[:begin], withLength(header), payload[end:])
	return slices.Concat(frame[:3], withLength(payload), frame[len(frame)-frameEnd:])
}

func withLength(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) //nolint:gosec // less than a frame
}

// maxUndecoded bounds the kept bytes of undecodable headers, so that they fit into one frame along with the headers of
// a dead letter.
const maxUndecoded = 96 << 10

// headersIn finds the header table, with its length, in the payload of a content header.
func headersIn(payload []byte) (begin, end int, ok bool) {
	const flagsAt = 2 + 2 + 8 // class, weight, size of the body
	if len(payload) < flagsAt+2 {
		return 0, 0, false
	}
	flags := binary.BigEndian.Uint16(payload[flagsAt:])
	begin = flagsAt + 2
	for _, bit := range []uint16{1 << 15, 1 << 14} { // content type, content encoding
		if flags&bit != 0 {
			if begin >= len(payload) {
				return 0, 0, false
			}
			begin += 1 + int(payload[begin])
		}
	}
	if flags&(1<<13) == 0 || begin+4 > len(payload) {
		return 0, 0, false
	}
	end = begin + 4 + int(binary.BigEndian.Uint32(payload[begin:]))
	return begin, end, end <= len(payload)
}

// decodable reports whether amqp091-go can decode the entries of a table, or the items of an array, that is nested
// depth levels deep.
func decodable(kind byte, entries []byte, depth int) bool {
	if depth > maxFieldDepth {
		return false
	}
	for n := 0; len(entries) > 0; n++ {
		key := 0
		if kind == kindTable {
			key = 1 + int(entries[0])
		}
		if n == maxElements || key >= len(entries) {
			return false
		}
		length := fieldLength(entries[key:], depth)
		if length < 0 {
			return false
		}
		entries = entries[key+length:]
	}
	return true
}

// fieldLength returns the length of the field that begins here, with its type, or -1 for one that cannot be decoded.
func fieldLength(field []byte, depth int) int {
	n := 1
	switch field[0] {
	case kindVoid:
	case kindBool, kindInt8, kindUint8:
		n++
	case kindInt16, kindUint16:
		n += 2
	case kindInt32, kindUint32, kindFloat32:
		n += 4
	case kindDecimal:
		n += 5
	case kindInt64, kindFloat64, kindTimestamp:
		n += 8
	case kindString, kindBytes, kindArray, kindTable:
		if len(field) < 5 {
			return -1
		}
		n += 4 + int(binary.BigEndian.Uint32(field[1:]))
		nested := field[0] == kindArray || field[0] == kindTable
		if n > len(field) || nested && !decodable(field[0], field[5:n], depth+1) {
			return -1
		}
	default:
		return -1
	}
	if n > len(field) {
		return -1
	}
	return n
}
