package spool

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A spool line is the CRC-32C of the data in 8 lower-case hex digits, a space, the data, and a line feed. The data
// contains no line feed (it is JSON), so that a torn or corrupted line affects no other.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const linePrefix = 8 + 1

var (
	errLineFeed = errors.New("spool: the data has a line feed in it")
	errBadLine  = errors.New("spool: damaged line")
)

// encodeLine makes a line of data.
func encodeLine(data []byte) ([]byte, error) {
	if bytes.IndexByte(data, '\n') >= 0 {
		return nil, errLineFeed
	}
	line := make([]byte, 0, linePrefix+len(data)+1)
	line = append(line, checksum(data)...)
	line = append(line, ' ')
	line = append(line, data...)
	return append(line, '\n'), nil
}

func checksum(data []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli)) }

// isChecksum reports whether b has only lower-case hex digits.
func isChecksum(b []byte) bool { return len(bytes.Trim(b, "0123456789abcdef")) == 0 }

// decodeLine checks a line without its line feed and returns its data. Every bit is checked, including the separator.
func decodeLine(line []byte) ([]byte, error) {
	if len(line) < linePrefix || line[linePrefix-1] != ' ' {
		return nil, errBadLine
	}
	data := line[linePrefix:]
	if string(line[:linePrefix-1]) != checksum(data) {
		return nil, errBadLine
	}
	return data, nil
}

// decodeLines checks a line and, if it is damaged, looks for intact lines in it: the damage may have been a line feed.
// It returns their data, and whether the whole line was intact.
func decodeLines(line []byte) (data [][]byte, good bool) {
	if whole, err := decodeLine(line); err == nil {
		return [][]byte{whole}, true
	}
	start := 0
	for i := 1; i+linePrefix < len(line); i++ {
		if line[i+linePrefix-1] != ' ' || line[i+linePrefix] != '{' || !isChecksum(line[i:i+linePrefix-1]) {
			continue // before the checks of both parts, which read all of them
		}
		// A line may begin at i. The one before it ends one byte earlier, where its line feed was.
		if head, err := decodeLine(line[start : i-1]); err == nil {
			data = append(data, head)
			start = i
		} else if tail, err := decodeLine(line[i:]); err == nil {
			return append(data, tail), false
		}
	}
	if start > 0 {
		if tail, err := decodeLine(line[start:]); err == nil {
			data = append(data, tail)
		}
	}
	return data, false
}

// lineReader reads a spool file line by line.
type lineReader struct {
	read func() ([]byte, error) // up to and with a line feed, as bufio.Reader.ReadBytes
	// bad counts damaged lines that ended in a line feed; torn is the end of the file when that is not a line.
	bad  int
	torn []byte
}

// next returns the data of the next line or lines, or io.EOF.
func (r *lineReader) next() ([][]byte, error) {
	for {
		line, err := r.read()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		whole := bytes.HasSuffix(line, []byte{'\n'})
		if len(line) == 0 {
			return nil, io.EOF
		}
		data, good := decodeLines(bytes.TrimSuffix(line, []byte{'\n'}))
		if !whole && !good {
			// It may be a whole line at the end of the file whose line feed was damaged.
			if last, err := decodeLine(line[:len(line)-1]); err == nil {
				data, whole = [][]byte{last}, true
			}
		}
		switch {
		case !whole && !good:
			// The end of a write that never returned, so Append has not accepted it, or a line whose end the disk has lost.
			r.torn = line
		case !good:
			r.bad++
		}
		if len(data) > 0 {
			return data, nil
		}
	}
}
