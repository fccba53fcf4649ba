package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

const (
	segmentPrefix = "dlq-"
	segmentSuffix = ".log"
	doneSuffix    = ".done"
	damagedSuffix = ".damaged"
	tornSuffix    = ".torn" + damagedSuffix
	refusedName   = "refused" + damagedSuffix
	lockName      = "lock"
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
	path string
	size int64
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
			waiting = append(waiting, &segment{path: path, size: info.Size()})
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

// keepTorn keeps the torn end of a segment in a file next to it, for a person.
func keepTorn(dir, segmentPath string, torn []byte) error {
	path := strings.TrimSuffix(segmentPath, segmentSuffix) + tornSuffix
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	_, err = f.Write(torn)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close(), syncDir(dir)); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}
