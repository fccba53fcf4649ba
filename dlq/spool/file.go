package spool

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	segmentPrefix = "dlq-"
	segmentSuffix = ".log"
	doneSuffix    = ".done"
	damagedSuffix = ".damaged"
	tornSuffix    = ".torn" + damagedSuffix
	refusedName   = "refused" + damagedSuffix
	lockName      = "lock"
	ownerName     = "store"
)

func segmentName(n int) string { return fmt.Sprintf("%s%06d%s", segmentPrefix, n, segmentSuffix) }

// segmentNumber reads the number in a segment's name, in whatever state the segment is.
func segmentNumber(name string) (n int, ok bool) {
	rest, ok := strings.CutPrefix(name, segmentPrefix)
	if !ok {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(digits)
	return n, err == nil && n > 0
}

// segment is one file of the spool.
type segment struct {
	path  string
	size  int64
	since time.Time // when its first line was written; of a file found at the start, its last
	// imported is how far this process has imported it.
	imported int64
	// damaged counts its unreadable lines.
	damaged int
	// torn is set when its end was not a complete line, and was kept in another file.
	torn bool
}

// readDir lists the segments that wait for import, oldest first, and the highest number ever used here. Segments that
// were imported just before a crash are removed.
func readDir(dir string) (waiting []*segment, highest int, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("spool: %w", err)
	}
	for _, file := range files {
		n, ok := segmentNumber(file.Name())
		if !ok {
			continue
		}
		highest = max(highest, n)
		path := filepath.Join(dir, file.Name())
		switch {
		case strings.HasSuffix(file.Name(), doneSuffix):
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, 0, fmt.Errorf("spool: %w", err)
			}
		case strings.HasSuffix(file.Name(), segmentSuffix):
			info, err := file.Info()
			if err != nil {
				return nil, 0, fmt.Errorf("spool: %w", err)
			}
			waiting = append(waiting, &segment{path: path, size: info.Size(), since: info.ModTime()})
		}
	}
	slices.SortFunc(waiting, func(a, b *segment) int {
		x, _ := segmentNumber(filepath.Base(a.path))
		y, _ := segmentNumber(filepath.Base(b.path))
		return x - y
	})
	return waiting, highest, nil
}

// createSegment makes a new file that only this user may read, because dead letters contain messages.
func createSegment(dir string, n int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, segmentName(n)), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	// Without this the file's name may not survive a power loss, and everything synced into it would be lost.
	if err := syncDir(dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there; NTFS journals names itself
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("spool: sync %s: %w", dir, err)
	}
	return nil
}

// writeFile durably writes to a file that only this user may read.
func writeFile(path string, flag int, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o600)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close(), syncDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// A spool line is the CRC-32C of the data in 8 lower-case hex digits, a space, the data, and a line feed. The data
// contains no line feed (it is JSON), so that a torn or corrupted line affects no other.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	linePrefix = 8 + 1
	maxTries   = 100 // to find a line in a damaged one
)

var (
	errLineFeed = errors.New("spool: the data has a line feed in it")
	errBadLine  = errors.New("spool: damaged line")
)

// encodeLines makes a line of each.
func encodeLines(all [][]byte) (lines []byte, err error) {
	for _, data := range all {
		if bytes.IndexByte(data, '\n') >= 0 {
			return nil, errLineFeed
		}
		lines = slices.Grow(lines, linePrefix+len(data)+1)
		lines = append(lines, checksum(data)...)
		lines = append(lines, ' ')
		lines = append(lines, data...)
		lines = append(lines, '\n')
	}
	return lines, nil
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
// It returns their data, and whether the whole line was intact. It tries few places, since a payload may have a million
// of them, and a damaged line is kept for a person anyway.
func decodeLines(line []byte) (data [][]byte, good bool) {
	if whole, err := decodeLine(line); err == nil {
		return [][]byte{whole}, true
	}
	start := 0
	for i, tries := 1, 0; i+linePrefix < len(line) && tries < maxTries; i++ {
		if line[i+linePrefix-1] != ' ' || line[i+linePrefix] != '{' || !isChecksum(line[i:i+linePrefix-1]) {
			continue // before the checks of both parts, which read all of them
		}
		tries++
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
