package testdoc

import (
	"fmt"
	"testing"
)

func TestBlocks(t *testing.T) {
	const document = "# One\n\n```sh\na\n```\n<!-- run: TestA TestB -->\n1. x\n   ```\n   b  # why\n\n" +
		"     c d\n   # e\n   ```\n<!-- illustration -->\n```yaml f.yaml\n# no heading\n```\n" +
		"```\ng\n```\n## Two\n```\nh\n```\n"
	var got []string
	for _, b := range Blocks(document) {
		got = append(got, fmt.Sprintf("%d %s %q %q %v %v", b.Line, b.Heading, b.Info, b.Text, b.Run, b.Illustration))
	}
	want := []string{
		`3 One "sh" "a\n" [] false`,
		`8 One "" "b  # why\n\n  c d\n# e\n" [TestA TestB] false`,
		`15 One "yaml f.yaml" "# no heading\n" [TestA TestB] true`,
		`18 One "" "g\n" [TestA TestB] false`,
		`22 Two "" "h\n" [] false`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	blocks := RunBy(document, "TestB")
	if len(blocks) != 2 || fmt.Sprint(blocks[0].Commands()) != "[b c d]" {
		t.Errorf("%+v", blocks)
	}
}
