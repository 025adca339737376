package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed assets
var assets embed.FS

// asset answers with a file of the page.
func asset(name string) http.Handler {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // it is in this program
	}
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	kind := map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript",
		".svg": "image/svg+xml"}[path.Ext(name)]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(text)))
	})
}
