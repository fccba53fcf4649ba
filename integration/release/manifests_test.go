package release_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// manifest reads a file of deploy/kubernetes as the API server would: an unknown or repeated field is an error.
func manifest[T any](t *testing.T, name, apiVersion, kind string) (object T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy", "kubernetes", name))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &object), name)
	var about struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
	}
	require.NoError(t, yaml.Unmarshal(text, &about))
	require.Equal(t, []string{apiVersion, kind, "redrive"}, []string{about.APIVersion, about.Kind, about.Metadata.Name},
		name)
	return object
}

// The manifests are valid, they fit together, and they run a restricted pod in the sense of Kubernetes' Pod Security
// Standards.
func TestKubernetes_Manifests(t *testing.T) {
	t.Parallel()
	deployment := manifest[apps.Deployment](t, "deployment.yaml", "apps/v1", "Deployment")
	service := manifest[core.Service](t, "service.yaml", "v1", "Service")
	configMap := manifest[core.ConfigMap](t, "configmap.yaml", "v1", "ConfigMap")
	budget := manifest[policy.PodDisruptionBudget](t, "poddisruptionbudget.yaml", "policy/v1", "PodDisruptionBudget")
	network := manifest[networking.NetworkPolicy](t, "networkpolicy.yaml", "networking.k8s.io/v1", "NetworkPolicy")
	files, err := filepath.Glob(filepath.Join(root, "deploy", "kubernetes", "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 6, "a new manifest belongs in this test; the sixth is the kustomization")

	labels := deployment.Spec.Template.Labels
	require.NotEmpty(t, labels)
	require.Equal(t, labels, deployment.Spec.Selector.MatchLabels)
	require.Equal(t, labels, service.Spec.Selector)
	require.Equal(t, labels, budget.Spec.Selector.MatchLabels)
	require.Equal(t, labels, network.Spec.PodSelector.MatchLabels)
	require.Less(t, budget.Spec.MinAvailable.IntVal, *deployment.Spec.Replicas, "otherwise no node could be drained")

	pod := deployment.Spec.Template.Spec
	require.Len(t, pod.Containers, 1)
	server := pod.Containers[0]
	require.Equal(t, []core.ContainerPort{{Name: "http", ContainerPort: 8321}}, server.Ports)
	require.Equal(t, "http", service.Spec.Ports[0].TargetPort.StrVal)
	require.Equal(t, "http", network.Spec.Ingress[0].Ports[0].Port.StrVal)
	require.Equal(t, "/livez", server.LivenessProbe.HTTPGet.Path)
	require.Equal(t, "/readyz", server.ReadinessProbe.HTTPGet.Path)

	require.Equal(t, configMap.Name, pod.Volumes[0].ConfigMap.Name)
	require.Contains(t, configMap.Data, filepath.Base(server.Args[2]))
	require.Equal(t, filepath.Dir(server.Args[2]), server.VolumeMounts[0].MountPath)
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range server.VolumeMounts {
		require.True(t, volumes[m.Name], m.Name)
	}

	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.Equal(t, core.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	require.False(t, *server.SecurityContext.AllowPrivilegeEscalation)
	require.True(t, *server.SecurityContext.ReadOnlyRootFilesystem)
	require.Equal(t, []core.Capability{"ALL"}, server.SecurityContext.Capabilities.Drop)
	require.Empty(t, server.SecurityContext.Capabilities.Add)
}
