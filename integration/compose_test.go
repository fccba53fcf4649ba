package integration_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// composeFile is what docker-compose.yml may contain: any other key is a mistake or needs a test.
type composeFile struct {
	Name     string                    `yaml:"name"`
	Services map[string]composeService `yaml:"services"`
	Volumes  map[string]any            `yaml:"volumes"`
}

type composeService struct {
	Image       string            `yaml:"image"`
	Profiles    []string          `yaml:"profiles"`
	Hostname    string            `yaml:"hostname"`
	NetworkMode string            `yaml:"network_mode"`
	Command     []string          `yaml:"command"`
	Ports       []string          `yaml:"ports"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	Healthcheck struct {
		Test        []string `yaml:"test"`
		Interval    string   `yaml:"interval"`
		Timeout     string   `yaml:"timeout"`
		Retries     int      `yaml:"retries"`
		StartPeriod string   `yaml:"start_period"`
	} `yaml:"healthcheck"`
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	text, err := os.ReadFile("../docker-compose.yml")
	require.NoError(t, err)
	var file composeFile
	require.NoError(t, yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&file))
	require.NotEmpty(t, file.Services)
	return file
}

// These tests run without a Docker engine, so they check what running the file would show.
func TestCompose(t *testing.T) {
	var (
		file      = readCompose(t)
		pinned    = regexp.MustCompile(`^[a-z0-9/-]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?$`)
		hostPorts = make(map[string]string)
	)
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)

	for name, service := range file.Services {
		t.Run(name, func(t *testing.T) {
			require.Regexp(t, pinned, service.Image, "the image has an exact version")

			require.NotEmpty(t, service.Profiles, "nothing starts by default")
			for _, profile := range service.Profiles {
				require.Contains(t, string(makefile), "--profile "+profile, "make up starts it")
			}

			if service.NetworkMode == "host" {
				require.Empty(t, service.Ports)
				require.Contains(t, fmt.Sprint(service.Command, service.Environment), "127.0.0.1",
					"the server listens only on this machine")
			} else {
				require.NotEmpty(t, service.Ports)
			}
			for _, port := range service.Ports {
				parts := strings.Split(port, ":")
				require.Len(t, parts, 3, port)
				require.Equal(t, "127.0.0.1", parts[0], "the port is open only to this machine")
				require.Empty(t, hostPorts[parts[1]], "port %s is taken", parts[1])
				hostPorts[parts[1]] = name
			}

			for _, volume := range service.Volumes {
				source, _, _ := strings.Cut(volume, ":")
				if strings.HasPrefix(source, "./") {
					_, err := os.Stat("../" + source)
					require.NoError(t, err, "the file exists")
					require.True(t, strings.HasSuffix(volume, ":ro"), "files of the repository are mounted read-only")
					continue
				}
				require.Contains(t, file.Volumes, source, "the volume is declared")
			}

			health := service.Healthcheck
			require.GreaterOrEqual(t, len(health.Test), 2)
			require.Contains(t, []string{"CMD", "CMD-SHELL"}, health.Test[0])
			require.Positive(t, health.Retries)
			duration := func(text string) time.Duration {
				d, err := time.ParseDuration(text)
				require.NoError(t, err)
				require.Positive(t, d)
				return d
			}
			duration(health.Timeout)
			patience := duration(health.StartPeriod) + time.Duration(health.Retries)*duration(health.Interval)
			require.GreaterOrEqual(t, patience, time.Minute, "a slow machine gets a minute")
		})
	}
}

func TestCompose_KafkaIsTheOneWeTest(t *testing.T) {
	pom, err := os.ReadFile("kafka/pom.xml")
	require.NoError(t, err)
	kafka := readCompose(t).Services["kafka"]
	_, version, found := strings.Cut(kafka.Image, ":")
	require.True(t, found)
	require.Contains(t, string(pom), "<kafka.version>"+version+"</kafka.version>")

	// Clients connect to the advertised address, so it has to be the published one.
	require.Contains(t, kafka.Environment["KAFKA_ADVERTISED_LISTENERS"], "HOST://127.0.0.1:9092")
	require.Contains(t, kafka.Ports, "127.0.0.1:9092:9092")
}
