package sqldb

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Param reads one parameter of a URL.
type Param func(value string) error

// ReadParams reads our own parameters, with or without a leading x-, from a URL's query, and returns the database
// driver's. native reports whether the driver knows a parameter; any other is refused.
func ReadParams(u *url.URL, own map[string]Param, native func(string) bool) (url.Values, error) {
	scheme := u.Scheme
	if scheme == "" {
		scheme = string(SQLite)
	}
	query, err := url.ParseQuery(rawQuery(u))
	if err != nil {
		return nil, fmt.Errorf("%s URL: parameters: a %% or ; that is not percent-encoded", scheme)
	}
	rest := url.Values{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(query)) {
		values := query[key]
		read := own[strings.TrimPrefix(key, "x-")]
		switch {
		case read != nil:
			if err := read(values[len(values)-1]); err != nil {
				errs = append(errs, fmt.Errorf("%s URL: parameter %s: %w", scheme, key, err))
			}
		case native(key):
			rest[key] = values
		default:
			errs = append(errs, fmt.Errorf("%s URL: unknown parameter %.40q; known are %s, each also with x- before it, and "+
				"the driver's own", scheme, key, strings.Join(slices.Sorted(maps.Keys(own)), ", ")))
		}
	}
	return rest, errors.Join(errs...)
}

// rawQuery is a URL's query. url.Parse does not split it off a path without a scheme.
func rawQuery(u *url.URL) string {
	if _, query, found := strings.Cut(u.Opaque, "?"); found {
		return query
	}
	return u.RawQuery
}

// Text accepts any text.
func Text(to *string) Param {
	return func(value string) error { *to = value; return nil }
}

// Integer accepts a number from low to high.
func Integer(to *int, low, high int) Param {
	return func(value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < low || n > high {
			return fmt.Errorf("must be a number from %d to %d", low, high)
		}
		*to = n
		return nil
	}
}

// Duration accepts a duration that is not negative.
func Duration(to *time.Duration) Param {
	return func(value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return errors.New("must be a duration such as 30m, not negative; 0 means no limit")
		}
		*to = d
		return nil
	}
}

// Boolean accepts true or false.
func Boolean(to *bool) Param {
	return func(value string) (err error) {
		if *to, err = strconv.ParseBool(value); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}
}
