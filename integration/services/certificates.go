package services

import (
	"errors"
	"math/big"
	"os"
	"path/filepath"

	"github.com/madflojo/testcerts"
)

// Certificates are PEM files of an authority and of two certificates signed by it, which are valid for two hours.
type Certificates struct {
	CA                    string // the authority's certificate
	ServerCert, ServerKey string // for 127.0.0.1 and localhost
	ClientCert, ClientKey string
}

// NewCertificates creates an authority and its certificates in dir.
func NewCertificates(dir string) (*Certificates, error) {
	c := &Certificates{
		CA:         filepath.Join(dir, "ca.pem"),
		ServerCert: filepath.Join(dir, "server.pem"), ServerKey: filepath.Join(dir, "server-key.pem"),
		ClientCert: filepath.Join(dir, "client.pem"), ClientKey: filepath.Join(dir, "client-key.pem"),
	}
	authority := testcerts.NewCA()
	sign := func(name string, serial int64, certFile, keyFile string) error {
		pair, err := authority.NewKeyPairFromConfig(testcerts.KeyPairConfig{
			CommonName: name, SerialNumber: big.NewInt(serial),
			Domains: []string{"localhost"}, IPAddresses: []string{"127.0.0.1"},
		})
		if err != nil {
			return err
		}
		return pair.ToFile(certFile, keyFile)
	}
	return c, errors.Join(os.WriteFile(c.CA, authority.PublicKey(), 0o600),
		sign("server", 1, c.ServerCert, c.ServerKey), sign("client", 2, c.ClientCert, c.ClientKey))
}
