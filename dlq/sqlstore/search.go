package sqlstore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq/wire"
)

// hasField is a jsonpath, whose lax mode searches arrays. An index as in the package's documentation supports it.
func (postgres) hasField(f wire.PayloadField, parameter func(any) string) string {
	var path strings.Builder
	path.WriteString("$")
	for _, name := range f.Path {
		path.WriteString("." + quote(name))
	}
	alternatives := f.Alternatives()
	for i, value := range alternatives {
		alternatives[i] = "@ == " + value
	}
	path.WriteString(" ? (" + strings.Join(alternatives, " || ") + ")")
	return "b.payload_json @? CAST(" + parameter(path.String()) + " AS jsonpath)"
}

// hasField compares with objects that only have the field: JSON_CONTAINS searches arrays anyway.
func (mysql) hasField(f wire.PayloadField, parameter func(any) string) string {
	var before, after strings.Builder
	for _, name := range f.Path {
		before.WriteString("{" + quote(name) + ":")
		after.WriteString("}")
	}
	var conditions []string
	for _, value := range f.Alternatives() {
		for _, spelling := range spellings(value) {
			conditions = append(conditions, "JSON_CONTAINS(CASE WHEN b.payload_json = 1 THEN CONVERT(b.payload USING utf8mb4) "+
				"COLLATE utf8mb4_bin END, "+
				parameter(before.String()+spelling+after.String())+")")
		}
	}
	return "(" + strings.Join(conditions, " OR ") + ")"
}

// spellings are the ways in which common JSON encoders write a scalar: MariaDB 10.11 compares strings as they are
// written, and does not find "4\u00e9" for "4é". They are the plain one, PHP's with and without its flags, Python's and
// Go's.
func spellings(value string) []string {
	var text string
	if json.Unmarshal([]byte(value), &text) != nil || value[0] != '"' {
		return []string{value}
	}
	var plain strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // cannot fail for a string
	var ascii strings.Builder
	written := strings.TrimSpace(plain.String())
	for _, r := range written {
		switch high, low := utf16.EncodeRune(r); {
		case r < utf8.RuneSelf:
			ascii.WriteRune(r)
		case high != utf8.RuneError:
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		}
	}
	slashes := strings.NewReplacer("/", `\/`)
	all := []string{written, slashes.Replace(written), ascii.String(), slashes.Replace(ascii.String()), value}
	slices.Sort(all)
	return slices.Compact(all)
}

// hasField reads the field by its path. Where there is an array on the path, it descends name by name: a value that is
// not an array is wrapped in one, so that each step is over the elements of an array. That takes five times as long.
func (sqlite) hasField(f wire.PayloadField, parameter func(any) string) string {
	inArray := func(kind, value string) string {
		return "json_each(CASE WHEN " + kind + " = 'array' THEN " + value + " ELSE '[' || (" + value + ") || ']' END) f"
	}
	payload := "(CASE WHEN b.payload_json = 1 THEN CAST(b.payload AS TEXT) END)"
	path := []string{"$"}
	at := func() string { return payload + ", " + parameter(strings.Join(path, ".")) }
	arrays := []string{"json_type(" + at() + ") = 'array'"}
	from := []string{inArray("json_type("+payload+")", payload) + "0"}
	for i, name := range f.Path {
		// Only for an object: a string is not JSON here, and reading it as such would fail the statement.
		object := fmt.Sprintf("(CASE WHEN f%d.type = 'object' THEN f%[1]d.value ELSE '{}' END)", i)
		step := parameter("$." + quote(name))
		from = append(from, inArray("json_type("+object+", "+step+")", object+" -> "+step)+strconv.Itoa(i+1))
		path = append(path, quote(name))
		arrays = append(arrays, "json_type("+at()+") = 'array'")
	}
	leaf := "f" + strconv.Itoa(len(f.Path))
	return "(" + isOneOf(f, "json_type("+at()+")", "json_extract("+at()+")", parameter) + " OR (" +
		strings.Join(arrays, " OR ") + ") AND EXISTS (SELECT 1 FROM " + strings.Join(from, ", ") + " WHERE " +
		isOneOf(f, leaf+".type", leaf+".atom", parameter) + "))"
}

// isOneOf is a condition that a value with this type, in SQLite, is one of those that the field may have.
func isOneOf(f wire.PayloadField, kind, atom string, parameter func(any) string) string {
	var conditions []string
	for _, value := range f.Alternatives() {
		switch value[0] {
		case 't', 'f', 'n':
			conditions = append(conditions, kind+" = '"+value+"'")
		case '"':
			var text string
			_ = json.Unmarshal([]byte(value), &text) // a JSON string
			conditions = append(conditions, kind+" = 'text' AND "+atom+" = "+parameter(text))
		default:
			conditions = append(conditions, kind+" IN ('integer', 'real') AND "+atom+" = "+parameter(number(value)))
		}
	}
	return "(" + strings.Join(conditions, " OR ") + ")"
}

// number is a JSON number as SQLite reads it.
func number(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	n, _ := strconv.ParseFloat(text, 64) // too large is infinite, which no JSON number is
	return n
}

// quote returns a name as a JSON string. It has no quotes and no control characters: see [wire.ParsePayloadField].
func quote(name string) string { return `"` + name + `"` }

// A search for "Zurich" finds "Zürich", and vice versa. PostgreSQL's unaccent is an extension that not every server
// has, and neither its ILIKE nor SQLite's LIKE ignores accents: each letter of the text becomes a class of letters in a
// pattern. That needs no extra column or index, works on rows of any age, takes a regular expression as long as ILIKE,
// and can use an index of trigrams. MySQL's collation does it already.

// accents maps letters, in lower case, to the letter that they are searched as.
var accents = map[rune]string{
	'a': "àáâãäåāăąǎạảấầẩẫậắằẳẵặ", 'c': "çćĉċč", 'd': "ď", 'e': "èéêëēĕėęěẹẻẽếềểễệ", 'g': "ĝğġģ", 'h': "ĥ",
	'i': "ìíîïĩīĭįǐỉị",
	'j': "ĵ", 'k': "ķ", 'l': "ĺļľ", 'n': "ñńņň", 'o': "òóôõöōŏőǒọỏốồổỗộơớờởỡợ", 'r': "ŕŗř", 's': "śŝşšș", 't': "ţťț",
	'u': "ùúûüũūŭůűųǔụủưứừửữự", 'w': "ŵ", 'y': "ýÿŷỳỵỷỹ", 'z': "źżž",
}

// plainLetters is the reverse of accents.
var plainLetters = func() map[rune]rune {
	letters := map[rune]rune{}
	for plain, accented := range accents {
		for _, r := range accented {
			letters[r] = plain
		}
	}
	return letters
}()

// maxFolded is how many characters of a text are searched without regard to accents: the rest only narrows the search,
// and patterns have a limit.
const maxFolded = 100

// pattern writes a text with a class in place of each letter. special writes a character that may have a meaning in a
// pattern.
func pattern(text string, special func(b *strings.Builder, r rune)) string {
	var b strings.Builder
	n := 0
	for _, r := range withoutMarks(text) {
		n++
		letters := sameLetters(r, n <= maxFolded)
		if letters == "" {
			special(&b, r)
			continue
		}
		b.WriteString("[" + letters + "]")
	}
	return b.String()
}

// sameLetters are the letters that a letter is searched as, including itself; none for one without other forms.
func sameLetters(r rune, folded bool) string {
	lower := unicode.ToLower(r)
	if plain, ok := plainLetters[lower]; ok && folded {
		lower = plain
	}
	if accented := accents[lower]; accented != "" && folded {
		return string(lower) + accented + strings.ToUpper(string(lower)+accented)
	}
	if !unicode.IsLetter(r) || unicode.SimpleFold(r) == r {
		return ""
	}
	letters := []rune{r}
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		letters = append(letters, other)
	}
	return string(letters)
}

// withoutMarks drops accents that are separate characters, as some keyboards and file systems write them.
func withoutMarks(text string) string {
	plain := strings.Map(func(r rune) rune {
		if r >= 0x300 && r <= 0x36f {
			return -1
		}
		return r
	}, text)
	if plain == "" {
		return text
	}
	return plain
}

// regularExpression matches a column of PostgreSQL that contains the text.
func regularExpression(text string) string {
	return pattern(text, func(b *strings.Builder, r rune) {
		if r < unicode.MaxASCII && unicode.In(r, unicode.Punct, unicode.Symbol) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	})
}

// globPattern matches a column of SQLite that contains the text.
func globPattern(text string) string {
	return "*" + pattern(text, func(b *strings.Builder, r rune) {
		if strings.ContainsRune("*?[", r) {
			b.WriteString("[" + string(r) + "]")
			return
		}
		b.WriteRune(r)
	}) + "*"
}

// outline is a LIKE pattern, with ! as its escape character, for whatever globPattern matches, and more: any character
// matches a letter that has other forms than its two cases in ASCII.
func outline(text string) string {
	return strings.ReplaceAll(likePattern(strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || accents[unicode.ToLower(r)] != "" {
			return 0 // not in any text
		}
		return r
	}, withoutMarks(text))), "\x00", "_")
}
