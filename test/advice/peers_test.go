package advice

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

var update = flag.Bool("update", false, "write the tables of docs/advise-peers.md and docs/advise.md anew")

// peerTable is what other programs say on the machine with the planted faults: words of their output.
type peerTable struct {
	Record string // what the machine said on one day, below docs/lab
	Peers  []struct{ Name, Version, Runs string }
	Faults []struct {
		Fault string
		Rule  string
		Named map[string]string // by peer: the words that say that something is wrong
		Shown map[string]string // by peer: the words that print the value, and leave it to the reader
	}
	Wrong []struct{ Peer, Says, Today string }
}

// Marks in what the machine says: of a planted fault that is found, and around what a peer prints.
const (
	foundMark = "found:"
	peerMark  = "peer"
	endMark   = "end of peer"
)

var (
	foundLine  = regexp.MustCompile(`_test\.go:\d+: ` + foundMark + ` (.*?) \| `)
	peerOutput = regexp.MustCompile(`(?s)_test\.go:\d+: ` + peerMark + ` (\S+ \S+):\n(.*?)` + endMark)
)

// words gives a text with one blank between words.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

func readPeers(t *testing.T) peerTable {
	t.Helper()
	text, err := os.ReadFile("testdata/peers.yaml")
	var table peerTable
	if err == nil {
		err = yaml.Unmarshal(text, &table)
	}
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// recorded takes apart what the machine said: the faults that were found, and what each peer printed, by its name with
// its version.
func recorded(text string) (found []string, said map[string]string) {
	said = map[string]string{}
	for _, m := range foundLine.FindAllStringSubmatch(text, -1) {
		found = append(found, words(m[1]))
	}
	for _, m := range peerOutput.FindAllStringSubmatch(text, -1) {
		said[m[1]] = words(m[2])
	}
	return found, said
}

// hold holds the table to what the peers said.
func (table peerTable) hold(t *testing.T, said map[string]string) {
	t.Helper()
	at := map[string]string{}
	for _, p := range table.Peers {
		out, ran := said[p.Name+" "+p.Version]
		if !ran {
			t.Errorf("nothing is known of %s %s", p.Name, p.Version)
		}
		at[p.Name] = out
	}
	for _, row := range table.Faults {
		for _, list := range []map[string]string{row.Named, row.Shown} {
			for name, line := range list {
				if !strings.Contains(at[name], words(line)) {
					t.Errorf("%s: %s does not say %q", row.Fault, name, line)
				}
			}
		}
	}
	for _, row := range table.Wrong {
		if !strings.Contains(at[row.Peer], words(row.Says)) {
			t.Errorf("%s does not say %q", row.Peer, row.Says)
		}
	}
}

// The page is what the table says, and the table is what the machine said on the day of its record.
func TestPeersPage(t *testing.T) {
	const page = "../../docs/advise-peers.md"
	table := readPeers(t)
	record, err := os.ReadFile(filepath.Join("../../docs/lab", table.Record))
	if err != nil {
		t.Fatal(err)
	}
	found, said := recorded(string(record))
	table.hold(t, said)
	for _, row := range table.Faults {
		if !slices.Contains(found, row.Fault) {
			t.Errorf("%s does not say that %q was found", table.Record, row.Fault)
		}
	}
	if len(found) != len(table.Faults) {
		t.Errorf("%d faults were found, and the table has %d", len(found), len(table.Faults))
	}
	drawn(t, page, "table", table.draw())
}

// drawn holds the part of a page between two marks, "<!-- MARK -->" and "<!-- /MARK -->", to a text.
func drawn(t *testing.T, page, mark, body string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+mark+" -->\n", "<!-- /"+mark+" -->"
	head, rest, opened := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !opened || !closed {
		t.Fatalf("%s lacks the marks %s of its table", page, mark)
	}
	want := head + begin + body + end + tail
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not what testdata says: go test ./test/advice -update", page)
	}
}

// code writes words of an output.
func code(text string) string { return "`" + strings.ReplaceAll(text, "|", "\\|") + "`" }

func (table peerTable) draw() string {
	var b strings.Builder
	named, shown := map[string]int{}, map[string]int{}
	b.WriteString("| planted | bulkhead |")
	for _, p := range table.Peers {
		fmt.Fprintf(&b, " %s |", p.Name)
	}
	b.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(table.Peers)) + "\n")
	for _, row := range table.Faults {
		fmt.Fprintf(&b, "| %s | [%s](rules.md#%s) |", row.Fault, row.Rule, strings.ToLower(row.Rule))
		for _, p := range table.Peers {
			switch text, value := row.Named[p.Name], row.Shown[p.Name]; {
			case text != "":
				named[p.Name]++
				fmt.Fprintf(&b, " **%s** |", code(text))
			case value != "":
				shown[p.Name]++
				fmt.Fprintf(&b, " %s |", code(value))
			default:
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "| **found, of %d** | **%d** |", len(table.Faults), len(table.Faults))
	for _, p := range table.Peers {
		fmt.Fprintf(&b, " **%d** |", named[p.Name])
	}
	b.WriteString("\n| value printed, no more | |")
	for _, p := range table.Peers {
		fmt.Fprintf(&b, " %d |", shown[p.Name])
	}
	b.WriteString("\n\n| who | says there | but |\n| --- | --- | --- |\n")
	for _, row := range table.Wrong {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row.Peer, code(row.Says), row.Today)
	}
	return b.String()
}
