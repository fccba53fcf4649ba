package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/redrive-go/redrive/brokers"
)

// addresses reads the seed brokers of kafka://a:9092,b:9092.
func addresses(raw string) ([]string, *url.Userinfo, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, nil, errors.New("the URL cannot be read") // its own text may hold the password
	}
	if u.Path != "" && u.Path != "/" {
		return nil, nil, fmt.Errorf("the URL has a path %q: topics are named in Subscribe and Publish, not in the URL", u.Path)
	}
	var seeds []string
	for host := range strings.SplitSeq(u.Host, ",") {
		if host == "" {
			return nil, nil, errors.New("the URL has no broker; write kafka://host:9092,host2:9092")
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "9092")
		}
		seeds = append(seeds, host)
	}
	return seeds, u.User, nil
}

var unfitForClientID = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

func clientID(cfg brokers.Config) string { return unfitForClientID.ReplaceAllString(cfg.Name, "-") }

// clientConfig makes sarama's configuration. Every client gets one of its own: sarama keeps state in it.
func clientConfig(cfg brokers.Config, user *url.Userinfo) (*sarama.Config, error) {
	p := cfg.Params
	c := sarama.NewConfig()
	c.ClientID = clientID(cfg)
	version, err := sarama.ParseKafkaVersion(p.String("version"))
	if err != nil {
		return nil, fmt.Errorf("parameter version=%q: write a Kafka version such as 3.6.0", p.String("version"))
	}
	if !version.IsAtLeast(sarama.V2_4_0_0) {
		return nil, fmt.Errorf("parameter version=%s: Kafka 2.4.0 is the oldest that works", version)
	}
	c.Version = version
	c.Metadata.AllowAutoTopicCreation = false // a misspelt topic must not come into being
	c.Metadata.Retry.Max = 5
	c.Metadata.Retry.Backoff = 100 * time.Millisecond
	c.Net.DialTimeout = 10 * time.Second

	c.Consumer.Return.Errors = true
	c.Consumer.MaxWaitTime = 250 * time.Millisecond // a partition that is given up waits for the answer under way
	c.Consumer.Retry.Backoff = 100 * time.Millisecond
	c.Consumer.Offsets.AutoCommit.Enable = false // the committer does it, for main and retry topics alike
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	if p.String("offset") == "newest" {
		c.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Consumer.Group.ResetInvalidOffsets = true
	c.Consumer.Group.Session.Timeout = p.Duration("session-timeout")
	c.Consumer.Group.Heartbeat.Interval = p.Duration("session-timeout") / 10 // also how soon a rebalance is heard of
	c.Consumer.Group.Rebalance.Timeout = p.Duration("rebalance-timeout")
	c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{assignors[p.String("assignor")]()}

	faults := errors.Join(secure(c, p), authenticate(c, p, user))
	if faults != nil {
		return nil, faults
	}
	return c, c.Validate()
}

func secure(c *sarama.Config, p brokers.Params) (err error) {
	c.Net.TLS.Config, err = tlsConfig(p)
	c.Net.TLS.Enable = c.Net.TLS.Config != nil
	return err
}

// tlsConfig returns nil when the connection is not to be encrypted.
func tlsConfig(p brokers.Params) (*tls.Config, error) {
	ca, cert, key := p.String("tls-ca"), p.String("tls-cert"), p.String("tls-key")
	if !p.Bool("tls") {
		if ca+cert+key != "" {
			return nil, errors.New("tls-ca, tls-cert and tls-key need tls=true")
		}
		return nil, nil //nolint:nilnil // no encryption is no error
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("parameter tls-ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("parameter tls-ca: %s holds no PEM certificate", ca)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("parameters tls-cert and tls-key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func authenticate(c *sarama.Config, p brokers.Params, user *url.Userinfo) error {
	mechanism := p.String("sasl")
	if user == nil {
		if mechanism != "" {
			return fmt.Errorf("sasl=%s needs a user name and a password, in the URL or in Config.Username and Config.Password", mechanism)
		}
		return nil
	}
	c.Net.SASL.Enable = true
	c.Net.SASL.User = user.Username()
	c.Net.SASL.Password, _ = user.Password()
	switch mechanism {
	case "", "plain":
		c.Net.SASL.Mechanism = sarama.SASLTypePlaintext
	case "scram-sha-256":
		c.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA256
		c.Net.SASL.SCRAMClientGeneratorFunc = newSCRAM256
	case "scram-sha-512":
		c.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA512
		c.Net.SASL.SCRAMClientGeneratorFunc = newSCRAM512
	}
	return nil
}

// Cooperative assignors let a member keep its partitions, and go on with them, while others come and go. The eager ones
// are for groups whose other members cannot do that.
var assignors = map[string]func() sarama.BalanceStrategy{
	"cooperative-sticky": sarama.NewBalanceStrategyCooperativeSticky,
	"sticky":             sarama.NewBalanceStrategySticky,
	"range":              sarama.NewBalanceStrategyRange,
	"roundrobin":         sarama.NewBalanceStrategyRoundRobin,
}
