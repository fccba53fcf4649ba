package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal: what is written to the file, and a function that closes it and returns what stood on the screen.
func terminal(t *testing.T) (file *os.File, screen func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err, "this test needs pseudo terminals (/dev/ptmx)")
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	file, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	read := make(chan string, 1)
	go func() {
		var out bytes.Buffer
		_, _ = io.Copy(&out, master) // ends with an error when the other side is closed
		read <- out.String()
	}()
	return file, func() string {
		require.NoError(t, file.Close())
		text := <-read
		require.NoError(t, master.Close())
		return text
	}
}

// Long work shows people how far it is, with colours unless NO_COLOR says otherwise, and never where output is for programs.
func TestProgress(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	store, queue := filepath.Join(dir, "dead.db"), filepath.Join(dir, "queue.db")
	seed(t, store)
	seedQueue(t, queue)
	t.Setenv("TERM", "xterm")
	exported := filepath.Join(dir, "dead.jsonl")
	commands := [][]string{
		{"exporting", "dlq", "export", "--status", "any", "--file", exported},
		{"importing", "dlq", "import", exported},
		{"parked", "dlq", "park", "1-3"},
		{"restore", "dlq", "restore", "--status", "parked", "--yes"},
		{"completed, 0 died again", "dlq", "redrive", "--handler", "pay", "--yes", "--close-on-publish"},
	}
	for _, command := range commands {
		for _, noColor := range []string{"", "1"} {
			t.Setenv("NO_COLOR", noColor)
			if noColor != "" && command[2] == "export" {
				command[len(command)-1] += "2"
			}
			file, screen := terminal(t)
			var out bytes.Buffer
			args := append(command[1:len(command):len(command)], "--store", store, "--broker", "sqlite:"+queue)
			code := runContext(t.Context(), args, strings.NewReader(""), &out, file)
			text := screen()
			if noColor == "" {
				require.Equal(t, exitOK, code, text)
				require.Contains(t, text, command[0], command)
				require.Contains(t, text, "\x1b[9", "colours")
				require.NotContains(t, out.String(), "\x1b[")
			} else {
				require.NotRegexp(t, "\x1b\\[[0-9;]*m", text, "no colours: %v", command)
			}
		}
	}
	file, screen := terminal(t)
	require.Equal(t, exitOK, runContext(t.Context(), []string{"dlq", "export", "--quiet", "--store", store}, strings.NewReader(""), io.Discard, file))
	require.Empty(t, screen())
}
