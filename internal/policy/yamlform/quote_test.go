package yamlform

import (
	"testing"

	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"
)

// Quoted text reads back as itself, as a value and as a key, in a block and between braces.
func TestQuote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.String(),
			rapid.SampledFrom([]string{"", "yes", "No", "null", "~", "3306", "0x1f", "1e3", "a: b", "#x", "it's",
				"a\nb", "-", "*", "<<", "mysql{port}", "a,b", "\u0085", "\ufeff", "\x7f"}),
		).Draw(t, "text")
		var got map[string][]map[string]string
		if err := yaml.Unmarshal([]byte("k: [{"+Quote(text)+": "+Quote(text)+"}]\n"), &got); err != nil {
			t.Fatalf("%s: %v", Quote(text), err)
		}
		if value, ok := got["k"][0][text]; !ok || value != text {
			t.Fatalf("%q is written %s, which reads %q", text, Quote(text), got)
		}
	})
}
