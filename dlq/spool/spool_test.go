package spool_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/spool"
)

func openSpool(t testing.TB, cfg spool.Config) *spool.Spool {
	t.Helper()
	s, err := spool.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// drain returns what a new process would import from dir.
func drain(t testing.TB, s *spool.Spool) []string {
	t.Helper()
	var got []string
	require.NoError(t, s.Drain(t.Context(), func(_ context.Context, lines [][]byte) error {
		for _, line := range lines {
			got = append(got, string(line))
		}
		return nil
	}))
	return got
}

func files(t testing.TB, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	return found
}

func lines(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(`{"n":%d,"text":"%s"}`, i, strings.Repeat("x", i%7))
	}
	return list
}

func TestSpool_AppendDrain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSpool(t, spool.Config{Dir: dir})
	require.True(t, s.Empty())
	want := lines(10)
	for _, line := range want {
		require.NoError(t, s.Append(t.Context(), []byte(line)))
	}
	info, err := os.Stat(files(t, dir, "dlq-*.log")[0])
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "dead letters hold what messages hold")
	require.False(t, s.Empty())
	require.Equal(t, want, drain(t, s))
	require.True(t, s.Empty())
	require.Empty(t, files(t, dir, "dlq-*"))
	require.Empty(t, drain(t, s))
	require.Equal(t, []int64{10, 10, 0}, []int64{s.Stats().Appended, s.Stats().Imported, s.Stats().Bytes})
}

// While nothing is imported, the open file is the oldest that waits.
func TestSpool_OldestIsOpen(t *testing.T) {
	t.Parallel()
	s := openSpool(t, spool.Config{Dir: t.TempDir()})
	require.Zero(t, s.Stats().OldestSince)
	for range 2 {
		began := time.Now()
		require.NoError(t, s.Append(t.Context(), []byte(`{}`)))
		oldest := s.Stats().OldestSince
		require.WithinRange(t, oldest, began, time.Now())
		require.NoError(t, s.Append(t.Context(), []byte(`{}`)))
		require.Equal(t, oldest, s.Stats().OldestSince, "the first line")
		require.Len(t, drain(t, s), 2)
		require.Zero(t, s.Stats().OldestSince)
	}
}

func TestSpool_RefusesLineFeeds(t *testing.T) {
	t.Parallel()
	s := openSpool(t, spool.Config{Dir: t.TempDir()})
	require.Error(t, s.Append(t.Context(), []byte("a\nb")))
	require.True(t, s.Empty())
}

// One sync serves all waiting callers: every promised letter is there, in segments of bounded size.
func TestSpool_Concurrent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSpool(t, spool.Config{Dir: dir, SegmentBytes: 2000})
	const callers, each = 32, 20
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				assert.NoError(t, s.Append(t.Context(), fmt.Appendf(nil, `{"c":%d,"i":%d}`, c, i)))
			}
		})
	}
	wg.Wait()
	require.Greater(t, len(files(t, dir, "dlq-*.log")), 3)
	got := drain(t, s)
	require.Len(t, got, callers*each)
	seen := map[string]bool{}
	next := make([]int, callers)
	for _, line := range got {
		require.False(t, seen[line])
		seen[line] = true
		var c, i int
		_, err := fmt.Sscanf(line, `{"c":%d,"i":%d}`, &c, &i)
		require.NoError(t, err)
		require.Equal(t, next[c], i, "one caller's lines stay in order")
		next[c]++
	}
}

// A damaged line may hold millions of places where another line could begin. Few of those that look like the beginning
// of one are checked, because each check reads the rest of the line.
func TestSpool_DamagedLineOfBraces(t *testing.T) {
	t.Parallel()
	for _, text := range []string{" {", "00000000 {"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := openSpool(t, spool.Config{Dir: dir})
			require.NoError(t, s.Append(t.Context(), []byte(`{"data":"`+strings.Repeat(text, 2<<20)+`"}`)))
			require.NoError(t, s.Append(t.Context(), []byte(`{"n":2}`)))
			require.NoError(t, s.Close())
			file := files(t, dir, "dlq-*.log")[0]
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			raw[0] ^= 1
			require.NoError(t, os.WriteFile(file, raw, 0o600))
			require.Equal(t, []string{`{"n":2}`}, drain(t, openSpool(t, spool.Config{Dir: dir})))
		})
	}
}

// Truncated anywhere, as by a crash or a full disk: exactly the complete records are there, and the next process
// continues.
func TestSpool_TruncatedAtEveryByte(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	s := openSpool(t, spool.Config{Dir: source})
	want := []string{`{"n":1}`, `{"n":22}`, `{}`}
	var ends []int
	for _, line := range want {
		require.NoError(t, s.Append(t.Context(), []byte(line)))
		info, err := os.Stat(files(t, source, "dlq-*.log")[0])
		require.NoError(t, err)
		ends = append(ends, int(info.Size()))
	}
	content, err := os.ReadFile(files(t, source, "dlq-*.log")[0])
	require.NoError(t, err)
	for cut := range len(content) + 1 {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "dlq-000001.log"), content[:cut], 0o600))
		whole := 0
		for whole < len(ends) && ends[whole]-1 <= cut { // all but the line feed is a whole record
			whole++
		}
		torn, err := spool.Open(spool.Config{Dir: dir})
		require.NoError(t, err)
		require.NoError(t, torn.Append(t.Context(), []byte(`{"after":1}`)))
		require.Equal(t, append(append([]string{}, want[:whole]...), `{"after":1}`), drain(t, torn), "cut at %d", cut)
		require.Zero(t, torn.Stats().Damaged, "no line of it was damaged")
		end := 0
		if whole > 0 {
			end = min(ends[whole-1], cut)
		}
		kept, err := os.ReadFile(filepath.Join(dir, "dlq-000001.torn.damaged"))
		if end == cut {
			require.ErrorIs(t, err, os.ErrNotExist)
			require.Zero(t, torn.Stats().Torn)
		} else {
			require.NoError(t, err)
			require.Equal(t, string(content[end:cut]), string(kept), "what is cut off is kept")
			require.Equal(t, int64(1), torn.Stats().Torn)
		}
		require.NoError(t, torn.Close())
	}
}

// Every single flipped bit is found; it costs at most its record, and the file is kept for a person.
func TestSpool_EveryBitFlip(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	s := openSpool(t, spool.Config{Dir: source})
	want := []string{`{"n":1}`, `{}`}
	for _, line := range want {
		require.NoError(t, s.Append(t.Context(), []byte(line)))
	}
	content, err := os.ReadFile(files(t, source, "dlq-*.log")[0])
	require.NoError(t, err)
	dir := t.TempDir()
	for bit := range len(content) * 8 {
		flipped := bytes.Clone(content)
		flipped[bit/8] ^= 1 << (bit % 8)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "dlq-000001.log"), flipped, 0o600))
		damaged, err := spool.Open(spool.Config{Dir: dir})
		require.NoError(t, err)
		got := drain(t, damaged)
		line := bytes.Count(content[:bit/8], []byte("\n"))
		if content[bit/8] == '\n' {
			require.Equal(t, want, got, "bit %d: a lost line feed loses no record", bit)
		} else {
			require.Equal(t, append(append([]string{}, want[:line]...), want[line+1:]...), got, "bit %d", bit)
		}
		require.NotZero(t, damaged.Stats().Damaged, "bit %d", bit)
		kept, err := os.ReadFile(filepath.Join(dir, "dlq-000001.damaged"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(flipped, kept))
		require.NoError(t, os.Remove(filepath.Join(dir, "dlq-000001.damaged")))
		require.NoError(t, damaged.Close())
	}
}

// The store fails in the middle: nothing is skipped, nothing is taken twice.
func TestSpool_DrainContinuesWhereItStopped(t *testing.T) {
	t.Parallel()
	s := openSpool(t, spool.Config{Dir: t.TempDir(), SegmentBytes: 40_000})
	want := lines(3000)
	var wg sync.WaitGroup
	for _, line := range want { // concurrently, which is faster by far; the order does not matter here
		wg.Go(func() { assert.NoError(t, s.Append(t.Context(), []byte(line))) })
	}
	wg.Wait()
	var got []string
	away := errors.New("away")
	calls := 0
	take := func(_ context.Context, batch [][]byte) error {
		calls++
		if calls%2 == 0 {
			return away
		}
		for _, line := range batch {
			got = append(got, string(line))
		}
		return nil
	}
	for {
		err := s.Drain(t.Context(), take)
		if err == nil {
			break
		}
		require.ErrorIs(t, err, away)
	}
	require.Greater(t, calls, 6)
	require.ElementsMatch(t, want, got)
}

// A crash between the rename and the removal of an imported file does not import it again.
func TestSpool_DoneFilesAreNotImported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "dlq-000007.done"), []byte("whatever\n"), 0o600))
	s := openSpool(t, spool.Config{Dir: dir})
	require.Empty(t, drain(t, s))
	require.Empty(t, files(t, dir, "*.done"))
	require.NoError(t, s.Append(t.Context(), []byte("{}")))
	require.Equal(t, []string{filepath.Join(dir, "dlq-000008.log")}, files(t, dir, "dlq-*"), "numbers are not used twice")
}

// A file that is moved away neither stops those behind it nor is forgotten when it comes back.
func TestSpool_FileMoved(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "moved")
	s := openSpool(t, spool.Config{Dir: dir, SegmentBytes: 1})
	want := lines(3)
	for _, line := range want {
		require.NoError(t, s.Append(t.Context(), []byte(line)))
	}
	second := filepath.Join(dir, "dlq-000002.log")
	require.NoError(t, os.Rename(second, elsewhere))
	require.Equal(t, []string{want[0], want[2]}, drain(t, s))
	require.True(t, s.Empty())
	require.Equal(t, int64(1), s.Stats().Missing)
	require.Empty(t, drain(t, s))
	require.Equal(t, int64(1), s.Stats().Missing, "counted once")

	require.NoError(t, os.Rename(elsewhere, second))
	require.Equal(t, want[1:2], drain(t, s))
	require.True(t, s.Empty())
}

// The same while it is the file that is being written, and while its lines are being taken.
func TestSpool_OpenFileMoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSpool(t, spool.Config{Dir: dir})
	require.NoError(t, s.Append(t.Context(), []byte(`{"n":1}`)))
	require.NoError(t, os.Rename(filepath.Join(dir, "dlq-000001.log"), filepath.Join(t.TempDir(), "moved")))
	require.NoError(t, s.Append(t.Context(), []byte(`{"n":2}`)), "into the file, wherever it is")
	require.Empty(t, drain(t, s))
	require.Equal(t, int64(1), s.Stats().Missing)
	require.NoError(t, s.Append(t.Context(), []byte(`{"n":3}`)))
	var got []string
	require.NoError(t, s.Drain(t.Context(), func(_ context.Context, lines [][]byte) error {
		for _, line := range lines {
			got = append(got, string(line))
		}
		return os.Rename(filepath.Join(dir, "dlq-000002.log"), filepath.Join(t.TempDir(), "moved"))
	}))
	require.Equal(t, []string{`{"n":3}`}, got)
	require.True(t, s.Empty())
	require.Equal(t, int64(1), s.Stats().Missing, "all of it was taken")
}

// A file that cannot be read is an error that does not stop those behind it.
func TestSpool_FileUnreadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSpool(t, spool.Config{Dir: dir, SegmentBytes: 1})
	want := lines(3)
	for _, line := range want {
		require.NoError(t, s.Append(t.Context(), []byte(line)))
	}
	second := filepath.Join(dir, "dlq-000002.log")
	require.NoError(t, os.Remove(second))
	require.NoError(t, os.Mkdir(second, 0o700)) // reading it fails, even for root
	var got []string
	require.Error(t, s.Drain(t.Context(), func(_ context.Context, lines [][]byte) error {
		for _, line := range lines {
			got = append(got, string(line))
		}
		return nil
	}))
	require.Equal(t, []string{want[0], want[2]}, got)
	require.False(t, s.Empty(), "the file waits to be repaired")
}

// Lines that cannot be set aside, because the disk is full, do not stop the files behind theirs: what is imported from
// those makes room on the disk.
func TestSpool_LinesCannotBeSetAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSpool(t, spool.Config{Dir: dir, SegmentBytes: 1})
	want := lines(3)
	for _, line := range want {
		require.NoError(t, s.Append(t.Context(), []byte(line)))
	}
	require.NoError(t, os.Mkdir(s.RefusedFile(), 0o700)) // writing to it fails, even for root
	var got []string
	take := func(_ context.Context, batch [][]byte) error {
		if string(batch[0]) == want[0] {
			return s.Refuse(batch...)
		}
		for _, line := range batch {
			got = append(got, string(line))
		}
		return nil
	}
	require.Error(t, s.Drain(t.Context(), take))
	require.Equal(t, want[1:], got)
	require.NoError(t, os.Remove(s.RefusedFile()))
	require.NoError(t, s.Drain(t.Context(), take))
	require.True(t, s.Empty())
	require.Equal(t, int64(1), s.Stats().Refused)
}

// The file that Refuse writes may be a link to a disk that is not mounted. The lines are not missing: they wait.
func TestSpool_RefusedFileIsADeadLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSpool(t, spool.Config{Dir: dir})
	require.NoError(t, s.Append(t.Context(), []byte("line")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "unmounted", "refused"), s.RefusedFile()))
	take := func(_ context.Context, batch [][]byte) error { return s.Refuse(batch...) }
	require.ErrorIs(t, s.Drain(t.Context(), take), fs.ErrNotExist)
	require.Zero(t, s.Stats().Missing)
	require.False(t, s.Empty())
	require.NoError(t, os.Mkdir(filepath.Join(dir, "unmounted"), 0o700))
	require.NoError(t, s.Drain(t.Context(), take))
	require.Equal(t, int64(1), s.Stats().Refused)
}

// A spool that is closed during a Drain does not go through the rest of its files.
func TestSpool_ClosedWhileDraining(t *testing.T) {
	t.Parallel()
	s := openSpool(t, spool.Config{Dir: t.TempDir(), SegmentBytes: 1})
	for _, line := range lines(3) {
		require.NoError(t, s.Append(t.Context(), []byte(line)))
	}
	closed, calls := make(chan error, 1), 0
	require.ErrorIs(t, s.Drain(t.Context(), func(ctx context.Context, batch [][]byte) error {
		if calls++; calls == 1 {
			go func() { closed <- s.Close() }()
			for s.Append(ctx, []byte("another")) == nil { // until it is closed
			}
		}
		return s.Requeue(ctx, batch...)
	}), spool.ErrClosed)
	require.Equal(t, 1, calls)
	require.NoError(t, <-closed)
}

func TestSpool_SizeBound(t *testing.T) {
	t.Parallel()
	s := openSpool(t, spool.Config{Dir: t.TempDir(), MaxBytes: 100, SegmentBytes: 50})
	line := []byte(`{"0123456789":1}`) // 26 bytes as a line
	for range 3 {
		require.NoError(t, s.Append(t.Context(), line))
	}
	require.ErrorIs(t, s.Append(t.Context(), line), spool.ErrFull)
	first := true
	require.NoError(t, s.Drain(t.Context(), func(ctx context.Context, lines [][]byte) error {
		if first {
			first = false
			return s.Requeue(ctx, lines[0]) // which was in the spool before
		}
		return nil
	}))
	require.Equal(t, []int64{3, 3, 0}, []int64{s.Stats().Appended, s.Stats().Imported, s.Stats().Bytes})
	require.NoError(t, s.Append(t.Context(), line), "there is room again")
}

// A batch that is repeated counts once.
func TestSpool_TakeFailsAfterRequeue(t *testing.T) {
	t.Parallel()
	s := openSpool(t, spool.Config{Dir: t.TempDir()})
	require.NoError(t, s.Append(t.Context(), []byte("{}")))
	failing := errors.New("the disk fails meanwhile")
	for _, err := range []error{failing, nil} {
		calls := 0
		require.ErrorIs(t, s.Drain(t.Context(), func(ctx context.Context, lines [][]byte) error {
			if calls++; calls > 1 {
				return nil
			}
			return errors.Join(s.Requeue(ctx, lines...), err)
		}), err)
	}
	require.Equal(t, int64(2), s.Stats().Imported, "the line is there twice")
}

func TestSpool_Lock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := spool.Open(spool.Config{Dir: dir})
	require.NoError(t, err)
	_, err = spool.Open(spool.Config{Dir: dir})
	require.ErrorIs(t, err, spool.ErrLocked)
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	require.ErrorIs(t, first.Append(t.Context(), []byte("{}")), spool.ErrClosed)
	second := openSpool(t, spool.Config{Dir: dir})
	require.NoError(t, second.Append(t.Context(), []byte("{}")))
}

func TestSpool_BadConfig(t *testing.T) {
	t.Parallel()
	_, err := spool.Open(spool.Config{})
	require.ErrorIs(t, err, driver.ErrInvalid)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = spool.Open(spool.Config{Dir: filepath.Join(file, "spool")})
	require.ErrorContains(t, err, "choose a writable directory")
}

// TestSpool_Child is not a test: it is the process that the tests below start and kill.
func TestSpool_Child(t *testing.T) {
	dir := os.Getenv("REDRIVE_SPOOL_CHILD")
	if dir == "" {
		t.Skip("runs as a child process of the other tests: REDRIVE_SPOOL_CHILD is not set")
	}
	if limit := os.Getenv("REDRIVE_FILE_LIMIT"); limit != "" {
		limitFileSize(t, limit)
	}
	s, err := spool.Open(spool.Config{Dir: dir, SegmentBytes: 4000})
	require.NoError(t, err)
	var mu sync.Mutex
	var wg sync.WaitGroup
	round := os.Getenv("REDRIVE_ROUND")
	for c := range 8 {
		wg.Go(func() {
			for i := range 100_000 {
				line := fmt.Sprintf(`{"id":"%s-%d-%d"}`, round, c, i)
				err := s.Append(context.Background(), []byte(line))
				mu.Lock()
				if err == nil {
					fmt.Println("promised", line)
				} else {
					fmt.Println("refused", line, err)
				}
				mu.Unlock()
				if os.Getenv("REDRIVE_FILE_LIMIT") != "" && i >= 50 {
					return
				}
			}
		})
	}
	wg.Wait()
	if os.Getenv("REDRIVE_FILE_LIMIT") != "" {
		long := `{"long":"` + strings.Repeat("x", 5000) + `"}`
		fmt.Println("refused", s.Append(context.Background(), []byte(long)))
	}
}

// child runs TestSpool_Child and gives each line of its output to see, until that returns false: then the child is
// killed with SIGKILL. What it had printed by then is seen, too.
func child(t *testing.T, dir, round string, env []string, see func(line string) bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSpool_Child$", "-test.v")
	cmd.Env = append(os.Environ(), append(env, "REDRIVE_SPOOL_CHILD="+dir, "REDRIVE_ROUND="+round)...)
	cmd.Stderr = io.Discard
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	killed := false
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		if !see(scanner.Text()) && !killed {
			killed = true
			require.NoError(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait() // it was killed
}

// kill -9 of the writer, again and again, in the same spool: every promised letter is there.
func TestSpool_KilledWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	promised := map[string]bool{}
	const rounds = 12
	for round := range rounds {
		seen := 0
		child(t, dir, strconv.Itoa(round), nil, func(line string) bool {
			if line, ok := strings.CutPrefix(line, "promised "); ok && strings.HasSuffix(line, "}") {
				promised[line] = true
				seen++
			}
			return seen < 20+17*round
		})
	}
	require.Greater(t, len(promised), rounds*20)
	s := openSpool(t, spool.Config{Dir: dir})
	got := map[string]int{}
	for _, line := range drain(t, s) {
		got[line]++
	}
	for line := range promised {
		require.Equal(t, 1, got[line], "promised: %s", line)
	}
	require.Zero(t, s.Stats().Damaged)
	t.Logf("%d kills, %d promised, %d found", rounds, len(promised), len(got))
}

// A full disk: every letter that was promised is there, and no other is promised.
func TestSpool_FileSizeLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	promised, refused := map[string]bool{}, ""
	const patience = 2 * time.Minute // for a line
	deadline := time.AfterFunc(patience, func() { panic("the child does not end") })
	defer deadline.Stop()
	child(t, dir, "limit", []string{"REDRIVE_FILE_LIMIT=1000"}, func(line string) bool {
		deadline.Reset(patience)
		if line, ok := strings.CutPrefix(line, "promised "); ok {
			promised[line] = true
		} else if strings.HasPrefix(line, "refused ") {
			refused = line
		}
		return true
	})
	require.NotEmpty(t, promised)
	s := openSpool(t, spool.Config{Dir: dir})
	got := map[string]bool{}
	for _, line := range drain(t, s) {
		got[line] = true
	}
	for line := range promised {
		require.True(t, got[line], "promised: %s", line)
	}
	require.Contains(t, refused, "file too large")
	require.Zero(t, s.Stats().Damaged)
	t.Logf("%d promised, %d found", len(promised), len(got))
}

func BenchmarkSpool(b *testing.B) {
	line := []byte(`{"payload":"` + strings.Repeat("x", 500) + `"}`)
	b.Run("one caller", func(b *testing.B) {
		s := openSpool(b, spool.Config{Dir: b.TempDir()})
		for b.Loop() {
			require.NoError(b, s.Append(b.Context(), line))
		}
	})
	b.Run("64 callers", func(b *testing.B) {
		s := openSpool(b, spool.Config{Dir: b.TempDir()})
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := s.Append(b.Context(), line); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
