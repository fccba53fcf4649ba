package kafka

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"github.com/IBM/sarama"
)

// scram is the client's side of SCRAM (RFC 5802) without channel binding, which sarama leaves to its user. One is made
// for every connection.
type scram struct {
	hash func() hash.Hash

	user, password string
	nonce          string
	first          string // client-first-message-bare
	signature      []byte // what the server has to prove that it knows
	step           int
}

func newSCRAM256() sarama.SCRAMClient { return &scram{hash: sha256.New} }
func newSCRAM512() sarama.SCRAMClient { return &scram{hash: sha512.New} }

// maxIterations bounds what a hostile server can make us compute; Kafka uses 4,096 to 16,384.
const maxIterations = 1 << 20

// Begin starts a conversation.
func (s *scram) Begin(user, password, _ string) error {
	s.user = strings.NewReplacer("=", "=3D", ",", "=2C").Replace(user)
	s.password = password
	s.nonce = rand.Text()
	s.step = 0
	return nil
}

// Done reports whether the server has proved that it knows the password too.
func (s *scram) Done() bool { return s.step == 3 }

// Step answers the server's message.
func (s *scram) Step(challenge string) (string, error) {
	s.step++
	switch s.step {
	case 1:
		s.first = "n=" + s.user + ",r=" + s.nonce
		return "n,," + s.first, nil
	case 2:
		return s.prove(challenge)
	case 3:
		return "", s.verify(challenge)
	default:
		s.step = 4
		return "", errors.New("scram: message after the end of the conversation")
	}
}

func (s *scram) prove(challenge string) (string, error) {
	fields := scramFields(challenge)
	nonce := fields["r"]
	salt, err := base64.StdEncoding.DecodeString(fields["s"])
	iterations, errIterations := strconv.Atoi(fields["i"])
	if err != nil || errIterations != nil || len(salt) == 0 || iterations < 1 || iterations > maxIterations ||
		!strings.HasPrefix(nonce, s.nonce) || nonce == s.nonce {
		return "", errors.New("scram: the server's challenge cannot be used")
	}
	salted, err := pbkdf2.Key(s.hash, s.password, salt, iterations, s.hash().Size())
	if err != nil {
		return "", fmt.Errorf("scram: %w", err)
	}
	final := "c=biws,r=" + nonce
	auth := s.first + "," + challenge + "," + final

	clientKey := s.mac(salted, "Client Key")
	stored := s.hash()
	stored.Write(clientKey)
	proof := make([]byte, len(clientKey))
	subtle.XORBytes(proof, clientKey, s.mac(stored.Sum(nil), auth))
	s.signature = s.mac(s.mac(salted, "Server Key"), auth)
	return final + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
}

func (s *scram) verify(answer string) error {
	fields := scramFields(answer)
	signature, err := base64.StdEncoding.DecodeString(fields["v"])
	if reason := fields["e"]; reason != "" {
		s.step = 4
		return fmt.Errorf("scram: refused by the server: %s", reason)
	}
	if err != nil || !hmac.Equal(signature, s.signature) || bytes.Equal(signature, nil) {
		s.step = 4
		return errors.New("scram: the server did not prove that it knows the password")
	}
	return nil
}

func (s *scram) mac(key []byte, text string) []byte {
	m := hmac.New(s.hash, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

func scramFields(text string) map[string]string {
	fields := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(part, "="); ok {
			fields[name] = value
		}
	}
	return fields
}
