package services

import (
	"fmt"
	"os"
	"path/filepath"
)

// KafkaSecurity is a listener that requires TLS with a client certificate, and a user with a password over any of
// PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
type KafkaSecurity struct {
	Addr           string // host:port
	User, Password string
	CA, Cert, Key  string // PEM files: the trusted authority, and the client's certificate and key
	keystore       string
}

// newKafkaSecurity writes certificates for the listener at addr to dir.
func newKafkaSecurity(dir, addr string) (*KafkaSecurity, error) {
	c, err := NewCertificates(dir)
	if err != nil {
		return nil, err
	}
	var keystore []byte // the format that Kafka reads: key, then certificate
	for _, file := range []string{c.ServerKey, c.ServerCert} {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		keystore = append(keystore, content...)
	}
	s := &KafkaSecurity{
		Addr: addr, User: "alice", Password: "s3cret of alice",
		CA: c.CA, Cert: c.ClientCert, Key: c.ClientKey, keystore: filepath.Join(dir, "broker.pem"),
	}
	return s, os.WriteFile(s.keystore, keystore, 0o600)
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

// users returns the options that create the users of a new cluster; none for a nil KafkaSecurity.
func (s *KafkaSecurity) users() (options []string) {
	if s == nil {
		return nil
	}
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		options = append(options, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, s.User, s.Password))
	}
	return options
}
