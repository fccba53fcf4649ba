package rest

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Match is the header that makes a change conditional on the version that the caller saw.
type Match struct {
	IfMatch string `header:"If-Match" doc:"The ETag that was read; the change is refused with 412 when it is not the latest. * is any."`
}

// version reads the header: 0 is any.
func (m *Match) version() (int64, error) {
	text := strings.TrimSpace(m.IfMatch)
	if text == "" || text == "*" {
		return 0, nil
	}
	quoted, ok := strings.CutPrefix(text, `"`)
	digits, closed := strings.CutSuffix(quoted, `"`)
	version, err := strconv.ParseInt(digits, 10, 64)
	if !ok || !closed || err != nil || version < 1 {
		return 0, huma.NewError(http.StatusBadRequest, `If-Match is an ETag as this server gives it, such as "7", or *`)
	}
	return version, nil
}

// etag is the ETag of a version.
func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// matches reports whether an If-None-Match names the ETag.
func matches(header, tag string) bool {
	for candidate := range strings.SplitSeq(header, ",") {
		if candidate = strings.TrimSpace(candidate); candidate == "*" || strings.TrimPrefix(candidate, "W/") == tag {
			return true
		}
	}
	return false
}
