package users

import (
	"testing"
)

func TestParseNames(t *testing.T) {
	n := parseNames([]byte("root:x:0:0::/:\nroot2:x:0:0::/:\n# comment:x:5:\n+::::\nbad:x:y:\nmysql:x:27:27::/:\n"))
	if n.byID[0] != "root" || n.byName["root2"] != 0 || n.byID[27] != "mysql" || len(n.byID) != 2 ||
		len(n.byName) != 3 {
		t.Errorf("got %v, %v", n.byID, n.byName)
	}
}
