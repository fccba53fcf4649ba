package release_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// systemd accepts every line of the unit, and its exposure level is low.
func TestSystemd_Unit(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if os.Getenv("REQUIRE_SERVICES") == "1" {
		require.NoError(t, err, "run integration/install.sh systemd")
	} else if err != nil {
		t.Skip("systemd-analyze is not installed: run integration/install.sh systemd")
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "systemd", "redrive.service"))
	require.NoError(t, err)
	program, err := os.Executable() // systemd-analyze looks for the package's binary
	require.NoError(t, err)
	unit := filepath.Join(t.TempDir(), "redrive.service")
	started := strings.Replace(string(text), "ExecStart=/usr/bin/redrive ", "ExecStart="+program+" ", 1)
	require.NoError(t, os.WriteFile(unit, []byte(started), 0o600))
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "redrive.service", "systemd does not know a line")

	out, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=yes", "--no-pager", unit).CombinedOutput()
	require.NoError(t, err, "%s", out)
	found := regexp.MustCompile(`Overall exposure level for redrive.service: ([\d.]+)`).FindSubmatch(out)
	require.NotNil(t, found, "%s", out)
	exposure, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(t, err)
	require.Less(t, exposure, 2.0, "of 10\n%s", out)
}

// instruction is a line of a Dockerfile.
type instruction struct{ name, rest string }

func dockerfile(t *testing.T, name string) (lines []instruction) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy", "docker", name))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			name, rest, _ := strings.Cut(line, " ")
			lines = append(lines, instruction{name, rest})
		}
	}
	return lines
}

// Both images have the same final stage: based on distroless, not as root, with only the binary and the server's
// directory, which its user may write to, and with the port and the configuration that the manifests use. The image
// from a checkout is built with a version of Go that go.mod allows, from an existing directory.
func TestDocker_Images(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Dockerfile", "Dockerfile.release"} {
		lines := dockerfile(t, name)
		last := 0
		for i, l := range lines {
			require.Contains(t, []string{"FROM", "ARG", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}, l.name,
				name)
			if l.name == "FROM" {
				last = i
			}
		}
		image, copied := map[string]string{}, []string{}
		for _, l := range lines[last:] {
			require.NotEqual(t, "RUN", l.name, "%s: distroless has no shell", name)
			switch l.name {
			case "COPY":
				copied = append(copied, l.rest)
			case "ARG":
			default:
				image[l.name] = l.rest
			}
		}
		require.Equal(t, map[string]string{
			"FROM": "gcr.io/distroless/static-debian12:nonroot", "USER": "nonroot:nonroot", "WORKDIR": "/var/lib/redrive",
			"EXPOSE":     "8321",
			"ENTRYPOINT": `["/usr/local/bin/redrive"]`, "CMD": `["serve", "--config", "/etc/redrive/redrive.yaml"]`,
		}, image, name)
		require.Len(t, copied, 2, name)
		require.Regexp(t, `/redrive /usr/local/bin/redrive$`, copied[0], name)
		require.Equal(t, "--from=build --chown=nonroot:nonroot /data /var/lib/redrive", copied[1], name)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	minor := regexp.MustCompile(`(?m)^go (1\.\d+)`).FindSubmatch(mod)
	require.Equal(t, "golang:"+string(minor[1])+" AS build", dockerfile(t, "Dockerfile")[0].rest)
}

// The packages install the files that the unit names: the binary, the configuration and its secrets.
func TestPackages_MatchTheUnit(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	require.NoError(t, err)
	var release struct {
		Builds []struct{ Binary, Main string }
		NFPMs  []struct {
			Contents []struct{ Source, Destination string }
		} `yaml:"nfpms"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(strings.NewReplacer("src:", "source:", "dst:",
		"destination:").Replace(string(text))), &release))
	require.Equal(t, "redrive", release.Builds[0].Binary)
	unit, err := os.ReadFile(filepath.Join(root, "deploy", "systemd", "redrive.service"))
	require.NoError(t, err)
	require.Contains(t, string(unit), "ExecStart=/usr/bin/redrive serve ", "where deb and rpm put binaries")
	installed := map[string]string{}
	for _, c := range release.NFPMs[0].Contents {
		installed[c.Destination] = c.Source
	}
	require.Equal(t, "deploy/systemd/redrive.service", installed["/usr/lib/systemd/system/redrive.service"])
	for _, path := range regexp.MustCompile(`/etc/redrive/[a-z.]+`).FindAllString(string(unit), -1) {
		require.Contains(t, installed, path)
	}
}
