package docstest

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/config"
)

// The server accepts the configurations in deploy, and each file is valid YAML.
func TestDeploy_ConfigurationsAreValid(t *testing.T) {
	for name, value := range map[string]string{
		"STORE_URL": "sqlite:dead.db", "BROKER_URL": "amqp://localhost", "TOKEN_HASH": "sha256:" + strings.Repeat("0", 64),
		"METRICS_TOKEN_HASH": "sha256:" + strings.Repeat("1", 64),
	} {
		t.Setenv(name, value)
	}
	_, err := config.Load(filepath.Join(root, "deploy", "systemd", "redrive.yaml"))
	require.NoError(t, err)

	var configMap struct {
		Data map[string]string `yaml:"data"`
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "kubernetes", "configmap.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &configMap))
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	require.NoError(t, os.WriteFile(file, []byte(configMap.Data["redrive.yaml"]), 0o600))
	cfg, err := config.Load(file)
	require.NoError(t, err)
	require.Equal(t, "0.0.0.0:8321", cfg.Server.Address)

	files := 0
	for _, dir := range []string{"deploy/kubernetes", ".github"} {
		require.NoError(t, fs.WalkDir(os.DirFS(root), dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(filepath.Join(root, path))
			require.NoError(t, err)
			var content map[string]any
			require.NoError(t, yaml.Unmarshal(text, &content), path)
			files++
			return nil
		}))
	}
	require.Greater(t, files, 8)
}

// The files that the packages and the kustomization name exist.
func TestDeploy_FilesAreThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	require.NoError(t, err)
	var release struct {
		NFPMs []struct {
			Contents []struct {
				Source string `yaml:"src"`
			} `yaml:"contents"`
		} `yaml:"nfpms"`
		Docker []struct {
			Dockerfile string `yaml:"dockerfile"`
		} `yaml:"dockers_v2"`
	}
	require.NoError(t, yaml.Unmarshal(text, &release))
	require.FileExists(t, filepath.Join(root, release.Docker[0].Dockerfile))
	for _, c := range release.NFPMs[0].Contents {
		require.FileExists(t, filepath.Join(root, c.Source))
	}
	var kustomization struct {
		Resources []string `yaml:"resources"`
	}
	text, err = os.ReadFile(filepath.Join(root, "deploy", "kubernetes", "kustomization.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &kustomization))
	for _, name := range kustomization.Resources {
		require.FileExists(t, filepath.Join(root, "deploy", "kubernetes", name))
	}
}

// The bill of materials of a program names its modules, and a release makes one of each binary.
func TestDeploy_BillOfMaterials(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	require.NoError(t, err)
	var release struct {
		SBOMs []struct {
			Artifacts string   `yaml:"artifacts"`
			Command   string   `yaml:"cmd"`
			Arguments []string `yaml:"args"`
		} `yaml:"sboms"`
	}
	require.NoError(t, yaml.Unmarshal(text, &release))
	require.Len(t, release.SBOMs, 1)
	bill := release.SBOMs[0]
	require.Equal(t, []string{"binary", "go", "run"}, []string{bill.Artifacts, bill.Command, bill.Arguments[0]})
	require.Equal(t, []string{"$artifact", "$document"}, bill.Arguments[2:])

	document := filepath.Join(t.TempDir(), "program.cdx.json")
	// goreleaser starts it in dist
	cmd := exec.CommandContext(t.Context(), "go", "run", bill.Arguments[1], built(t), document)
	cmd.Dir = filepath.Join(root, "docs")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err = os.ReadFile(document)
	require.NoError(t, err)
	var materials struct {
		Format     string `json:"bomFormat"`
		Components []struct {
			Name, PURL string
		} `json:"components"`
	}
	require.NoError(t, json.Unmarshal(text, &materials))
	require.Equal(t, "CycloneDX", materials.Format)
	found := map[string]string{}
	for _, c := range materials.Components {
		found[c.Name] = c.PURL
	}
	require.Contains(t, found, "std")
	require.Regexp(t, `^pkg:golang/modernc\.org/sqlite@v1\.`, found["modernc.org/sqlite"])
}
