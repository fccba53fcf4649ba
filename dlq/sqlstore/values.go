package sqlstore

import (
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// questionMarks is the VALUES list of rows with n columns.
func questionMarks(n, rows int) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?, ", n), ", ") + ")"
	return strings.TrimSuffix(strings.Repeat(row+", ", rows), ", ")
}

// null turns empty text into NULL.
func null(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// timeValue reads a time column of any dialect; NULL is the zero time.
type timeValue struct{ to *time.Time }

// Scan reads a time, or its text, from the driver.
func (v timeValue) Scan(src any) error {
	switch src := src.(type) {
	case nil:
		*v.to = time.Time{}
	case time.Time:
		*v.to = src.UTC()
	case string:
		return v.parse(src)
	case []byte:
		return v.parse(string(src))
	default:
		return fmt.Errorf("sqlstore: a time cannot be read from %T", src)
	}
	return nil
}

func (v timeValue) parse(text string) error {
	t, err := time.Parse(timeText, text)
	if err != nil { // written by hand, without the fraction or with a zone
		for _, layout := range []string{"2006-01-02 15:04:05", time.RFC3339Nano, "2006-01-02 15:04:05.999999999-07:00"} {
			if t, err = time.Parse(layout, text); err == nil {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("sqlstore: not a time: %w", err)
	}
	*v.to = t.UTC()
	return nil
}

// textValue reads a text column; NULL is empty text.
type textValue struct{ to *string }

// Scan reads a text or NULL.
func (v textValue) Scan(src any) error {
	var text sql.NullString
	if err := text.Scan(src); err != nil {
		return err
	}
	*v.to = text.String
	return nil
}
