package sqlstore

import (
	"strings"
	"unicode"
)

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
