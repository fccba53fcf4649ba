package driver

import (
	"fmt"
	"strconv"
)

// FormatID formats an entry's id in decimal.
func FormatID(id int64) string { return strconv.FormatInt(id, 10) }

// ParseID reads an entry's id: a positive decimal number without sign or leading zero. The error wraps [ErrInvalid].
func ParseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 || FormatID(id) != text {
		return 0, fmt.Errorf("%w: %.40q is not the id of an entry: a number from 1", ErrInvalid, text)
	}
	return id, nil
}
