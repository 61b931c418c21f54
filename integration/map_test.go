package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The map in doc.go has a line for the first word of each file's name, and no other line.
// A guarantee that a line names is cited in one of its files.
func TestMapNamesEveryFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	mapped := map[string][]string{} // guarantees, by first word
	var words []string
	for _, line := range regexp.MustCompile(`(?m)^//\t([a-z]+) +(?:\d+|-)  .*?((?:  [\d ]+)?)$`).FindAllStringSubmatch(string(text), -1) {
		words = append(words, line[1])
		mapped[line[1]] = strings.Fields(line[2])
	}
	if !slices.IsSorted(words) || len(words) != len(mapped) {
		t.Errorf("the words are not in order, or one stands twice: %v", words)
	}

	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	cited := map[string]map[string]bool{}
	for _, file := range files {
		word, _, _ := strings.Cut(strings.TrimSuffix(file, "_test.go"), "_")
		if cited[word] == nil {
			cited[word] = map[string]bool{}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`INV-(\d+)`).FindAllStringSubmatch(string(text), -1) {
			cited[word][m[1]] = true
		}
		if _, ok := mapped[word]; !ok {
			t.Errorf("doc.go has no line for %q, of %s", word, file)
			mapped[word] = nil
		}
	}
	for word, guarantees := range mapped {
		if cited[word] == nil {
			t.Errorf("doc.go has a line for %q, and no file begins so", word)
		}
		for _, n := range guarantees {
			if !cited[word][n] {
				t.Errorf("doc.go says that %s shows INV-%s, which no file of it cites", word, n)
			}
		}
	}
}
