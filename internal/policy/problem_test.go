package policy

import "testing"

func TestProblemString(t *testing.T) {
	tests := []struct {
		name    string
		problem Problem
		want    string
	}{
		{"all", Problem{Pos{"p.yaml", 3, 5}, "what", "do", "abc: de", []Pos{{"q.yaml", 1, 2}}},
			"p.yaml:3:5: what\n    abc: de\n        ^\n  see also q.yaml:1:2\nhint: do"},
		{"bare", Problem{Msg: "what"}, "what"},
		{"file only", Problem{Pos: Pos{File: "p"}, Msg: "what"}, "p: what"},
		{"tab", Problem{Pos: Pos{"p", 1, 4}, Msg: "m", Source: "\ta\tb"}, "p:1:4: m\n    \ta\tb\n    \t \t^"},
		{"wide", Problem{Pos: Pos{"p", 1, 5}, Msg: "m", Source: "日本: x"}, "p:1:5: m\n    日本: x\n          ^"},
		{"combining", Problem{Pos: Pos{"p", 1, 3}, Msg: "m", Source: "e\u0301x"}, "p:1:3: m\n    e\u0301x\n     ^"},
		{"carriage return", Problem{Pos: Pos{"p", 1, 1}, Msg: "m", Source: "x\r"}, "p:1:1: m\n    x\n    ^"},
		{"beyond the end", Problem{Pos: Pos{"p", 1, 99}, Msg: "m", Source: "ab"}, "p:1:99: m\n    ab\n      ^"},
		{"steering", Problem{Pos: Pos{"p", 1, 3}, Msg: "m \x1b[2J", Source: "\x1b\u202ex"},
			"p:1:3: m \ufffd[2J\n    \ufffd\ufffdx\n      ^"},
	}
	for _, test := range tests {
		if got := test.problem.String(); got != test.want {
			t.Errorf("%s:\n%s\nwant:\n%s", test.name, got, test.want)
		}
	}
}
