// Package release_test tests the parts of a release as users get them: the module as a library and by go install, the
// manifests, the unit and the images.
package release_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "github.com/redrive-go/redrive"
	tag    = "v0.1.0" // of the release in these tests
	// trimpath: the build cache of these tests can be used, wherever the module cache is
	flags = "GOFLAGS=-modcacherw -trimpath"
)

// consumer is a user's machine: a directory, an empty module cache, and a module proxy with this checkout as a tagged
// release. Everything else comes from the module cache of these tests, or from the machine's own proxy.
type consumer struct {
	dir string
	env []string
}

func newConsumer(t *testing.T) consumer {
	t.Helper()
	proxy, cache, bin := t.TempDir(), t.TempDir(), t.TempDir()
	publish(t, proxy)
	return consumer{dir: t.TempDir(), env: append(os.Environ(), flags, "GOWORK=off", "GONOSUMDB="+module,
		"GOMODCACHE="+cache, "GOBIN="+bin,
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(goEnv(t, "GOMODCACHE"), "cache", "download")+","+
			goEnv(t, "GOPROXY"))}
}

// run runs a command there and returns its output.
func (c consumer) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.dir, c.env, &out, &out
	require.NoError(t, cmd.Run(), "%s %s\n%s", name, strings.Join(args, " "), &out)
	return out.String()
}

func (c consumer) bin(name string) string {
	for _, v := range c.env {
		if dir, ok := strings.CutPrefix(v, "GOBIN="); ok {
			return filepath.Join(dir, name)
		}
	}
	return name
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// publish writes the files of the checkout into a module proxy in the file system like a tag: tracked files without the
// folders that are separate modules.
func publish(t *testing.T, proxy string) {
	t.Helper()
	dir := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	require.NoError(t, os.MkdirAll(dir, 0o750))
	info, err := json.Marshal(map[string]any{"Version": tag, "Time": time.Now().UTC()})
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, path := range tracked(t) {
		content, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		file, err := w.Create(module + "@" + tag + "/" + path)
		require.NoError(t, err)
		_, err = file.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	for name, content := range map[string][]byte{
		"list": []byte(tag + "\n"), tag + ".info": info, tag + ".mod": mod, tag + ".zip": archive.Bytes(),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
}

// tracked returns the files of the root module.
func tracked(t *testing.T) (paths []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	files := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	nested := map[string]bool{}
	for _, path := range files {
		if dir, ok := strings.CutSuffix(path, "/go.mod"); ok {
			nested[dir] = true
		}
	}
files:
	for _, path := range files {
		for dir := range nested {
			if strings.HasPrefix(path, dir+"/") {
				continue files
			}
		}
		if _, err := os.Stat(filepath.Join(root, path)); err == nil { // skip uncommitted removals
			paths = append(paths, path)
		}
	}
	require.Greater(t, len(paths), 500)
	return paths
}
