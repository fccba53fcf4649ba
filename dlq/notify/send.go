package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// The headers of a signed webhook.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

// StatusError is the error for a receiver's response that is not a success.
type StatusError struct {
	Receiver string
	Status   int
	Header   http.Header
}

// Error names the receiver and the status, and nothing of the response.
func (e *StatusError) Error() string {
	return fmt.Sprintf("notify: receiver %q answered with status %d", e.Receiver, e.Status)
}

// HTTPStatusCode lets pipelines decide whether another attempt makes sense.
func (e *StatusError) HTTPStatusCode() int { return e.Status }

// sign is the signature of a webhook.
func sign(secret []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// responseBytes is how much of a response is read, so that the connection can be reused.
const responseBytes = 4096

// post sends a notice to its receiver.
func (n *Notifier) post(ctx context.Context, to *Receiver, notice *wire.Notice, body []byte) error {
	if to.Slack {
		var err error
		if body, err = json.Marshal(map[string]string{"text": slackText(notice)}); err != nil {
			return fmt.Errorf("notify: %w", err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("notify: receiver %q: its URL cannot be read", to.Name)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "redrive")
	if !to.Slack {
		secret, err := key(to.Secret)
		if err != nil {
			return fmt.Errorf("notify: receiver %q: secret: %w", to.Name, err)
		}
		at := strconv.FormatInt(time.Now().Unix(), 10)
		r.Header.Set(HeaderID, notice.ID)
		r.Header.Set(HeaderTimestamp, at)
		r.Header.Set(HeaderSignature, sign(secret, notice.ID, at, body))
	}
	response, err := n.cfg.Client.Do(r)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // without the URL, which is a secret with Slack
		}
		return fmt.Errorf("notify: receiver %q: %w", to.Name, err)
	}
	defer func() { _ = response.Body.Close() }() // the receiver has answered
	_, _ = io.CopyN(io.Discard, response.Body, responseBytes)
	if response.StatusCode >= http.StatusMultipleChoices {
		return &StatusError{Receiver: to.Name, Status: response.StatusCode, Header: response.Header}
	}
	return nil
}

var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// slackText is the notice for Slack. Texts from messages in it cannot make a link or mention people.
func slackText(notice *wire.Notice) string {
	text := slackEscapes.Replace(notice.Text)
	if notice.Link != "" {
		text += "\n<" + slackEscapes.Replace(notice.Link) + "|Open in Redrive>"
	}
	return text
}
