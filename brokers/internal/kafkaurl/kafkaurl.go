// Package kafkaurl parses the URLs of the drivers for Kafka, kafka:// and watermill+kafka://, and names their clients.
package kafkaurl

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
)

// Parse returns the addresses of the seed brokers of kafka://a:9092,b:9092, and the user.
func Parse(raw string) (seeds []string, user *url.Userinfo, err error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, nil, errors.New("the URL cannot be read") // its own text may hold the password
	}
	if u.Path != "" && u.Path != "/" {
		return nil, nil, fmt.Errorf("the URL has a path %q: topics are named in Subscribe and Publish, not in the URL",
			u.Path)
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if host == "" {
			return nil, nil, fmt.Errorf("the URL has no broker; write %s://host:9092,host2:9092", u.Scheme)
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "9092")
		}
		seeds = append(seeds, host)
	}
	return seeds, u.User, nil
}

// ClientID replaces what not every version of Kafka accepts.
func ClientID(name string) string {
	return regexp.MustCompile(`[^a-zA-Z0-9._-]+`).ReplaceAllString(name, "-")
}
