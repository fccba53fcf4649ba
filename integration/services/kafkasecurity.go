package services

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// KafkaSecurity is a listener that wants TLS with a client certificate, and a user with a password over any of PLAIN,
// SCRAM-SHA-256 and SCRAM-SHA-512.
type KafkaSecurity struct {
	Addr           string // host:port
	User, Password string
	CA, Cert, Key  string // files in PEM: whom to trust, and who the client is
	keystore       string
}

// newKafkaSecurity writes certificates for the listener at addr into dir.
func newKafkaSecurity(dir, addr string) (*KafkaSecurity, error) {
	s := &KafkaSecurity{
		Addr: addr, User: "alice", Password: "s3cret of alice",
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client.key"),
		keystore: filepath.Join(dir, "broker.pem"),
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	issue := func(serial int64, name string, parent *x509.Certificate) (cert, key []byte, err error) {
		own, template := caKey, ca
		if parent != nil {
			if own, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
				return nil, nil, err
			}
			template = &x509.Certificate{
				SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: ca.NotBefore,
				NotAfter: ca.NotAfter,
				KeyUsage: x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			}
		}
		der, err := x509.CreateCertificate(rand.Reader, template, ca, own.Public(), caKey)
		if err != nil {
			return nil, nil, err
		}
		pkcs8, err := x509.MarshalPKCS8PrivateKey(own)
		if err != nil {
			return nil, nil, err
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
	}
	files := map[string][]byte{}
	if files[s.CA], _, err = issue(1, "", nil); err != nil {
		return nil, err
	}
	broker, brokerKey, err := issue(2, "broker", ca)
	if err != nil {
		return nil, err
	}
	files[s.keystore] = append(brokerKey, broker...) // the form that Kafka reads: key, then certificates
	if files[s.Cert], files[s.Key], err = issue(3, "client", ca); err != nil {
		return nil, err
	}
	for path, content := range files {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// listen adds the listener to a broker's settings.
func (s *KafkaSecurity) listen(settings map[string]string) {
	settings["listeners"] += ",SECURED://" + s.Addr
	settings["advertised.listeners"] += ",SECURED://" + s.Addr
	settings["listener.security.protocol.map"] += ",SECURED:SASL_SSL"
	const name = "listener.name.secured."
	settings[name+"ssl.keystore.type"] = "PEM"
	settings[name+"ssl.keystore.location"] = s.keystore
	settings[name+"ssl.truststore.type"] = "PEM"
	settings[name+"ssl.truststore.location"] = s.CA
	settings[name+"ssl.client.auth"] = "required"
	settings[name+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
	const module = "org.apache.kafka.common.security."
	settings[name+"plain.sasl.jaas.config"] = fmt.Sprintf(module+"plain.PlainLoginModule required user_%s=%q;", s.User,
		s.Password)
	settings[name+"scram-sha-256.sasl.jaas.config"] = module + "scram.ScramLoginModule required;"
	settings[name+"scram-sha-512.sasl.jaas.config"] = module + "scram.ScramLoginModule required;"
}

// users are the options that give a new cluster its users; none for a nil KafkaSecurity.
func (s *KafkaSecurity) users() (options []string) {
	if s == nil {
		return nil
	}
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		options = append(options, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, s.User, s.Password))
	}
	return options
}
