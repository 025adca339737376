//go:build browser

package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// chromium is a headless browser with one page, which is told what to do over a pipe (--remote-debugging-pipe): JSON
// with a NUL behind each message.
type chromium struct {
	t    *testing.T
	to   *os.File
	page string // its session

	mu      sync.Mutex
	n       int
	waiting map[int]chan reply
	// wrong are exceptions and messages of the browser that complain, and asked the addresses that it asked for.
	wrong, asked []string
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

func newChromium(t *testing.T) *chromium {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: `make page-test` installs it", err)
	}
	profile, err := os.MkdirTemp("", "bulkhead-page")
	if err != nil {
		t.Fatal(err)
	}
	read, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	theirIn, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, "--headless=new", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
		"--user-data-dir="+profile, "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = theirIn.Close(), theirOut.Close()
	c := &chromium{t: t, to: write, waiting: map[int]chan reply{}}
	go c.listen(read)
	t.Cleanup(func() {
		_ = write.Close() // it ends with its pipe
		late := time.AfterFunc(10*time.Second, cancel)
		defer late.Stop()
		_ = cmd.Wait()
		cancel()
		_ = os.RemoveAll(profile)
	})
	var target struct{ TargetID string }
	c.into(&target, c.do("Target.createTarget", map[string]any{"url": "about:blank"}))
	var session struct{ SessionID string }
	c.into(&session, c.do("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}))
	c.page = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		c.do(domain+".enable", nil)
	}
	return c
}

// listen takes in what the browser says until it ends.
func (c *chromium) listen(from *os.File) {
	messages := bufio.NewScanner(from)
	messages.Buffer(nil, 64<<20)
	messages.Split(func(data []byte, _ bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, 0); i >= 0 {
			return i + 1, data[:i], nil
		}
		return 0, nil, nil
	})
	for messages.Scan() {
		var m struct {
			reply

			ID     int
			Method string
			Params json.RawMessage
		}
		if json.Unmarshal(messages.Bytes(), &m) != nil {
			continue
		}
		c.mu.Lock()
		switch m.Method {
		case "Runtime.exceptionThrown":
			c.wrong = append(c.wrong, string(m.Params))
		case "Log.entryAdded":
			if strings.Contains(string(m.Params), `"level":"error"`) {
				c.wrong = append(c.wrong, string(m.Params))
			}
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			_ = json.Unmarshal(m.Params, &p)
			c.asked = append(c.asked, p.Request.URL)
		}
		if wait := c.waiting[m.ID]; wait != nil {
			wait <- m.reply
			delete(c.waiting, m.ID)
		}
		c.mu.Unlock()
	}
}

// do has the browser do something.
func (c *chromium) do(method string, params map[string]any) json.RawMessage {
	c.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	c.mu.Lock()
	c.n++
	wait := make(chan reply, 1)
	c.waiting[c.n] = wait
	message := map[string]any{"id": c.n, "method": method, "params": params}
	if c.page != "" {
		message["sessionId"] = c.page
	}
	text, err := json.Marshal(message)
	if err == nil {
		_, err = c.to.Write(append(text, 0))
	}
	c.mu.Unlock()
	if err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	select {
	case r := <-wait:
		if r.Error != nil {
			c.t.Fatalf("%s: %s", method, r.Error.Message)
		}
		return r.Result
	case <-time.After(2 * time.Minute):
		c.t.Fatalf("%s: the browser does not answer", method)
		return nil
	}
}

func (c *chromium) into(v any, text json.RawMessage) {
	c.t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		c.t.Fatalf("%v: %s", err, text)
	}
}

// eval gives the value of an expression, a promise's when it is one.
func (c *chromium) eval(expression string) any {
	c.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	c.into(&r, c.do("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true,
		"returnByValue": true}))
	if r.ExceptionDetails != nil {
		c.t.Fatalf("%.200s: %s", expression, r.ExceptionDetails.Exception.Description)
	}
	return r.Result.Value
}

// until waits until an expression is true.
func (c *chromium) until(expression string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); c.eval(expression) != true; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.shot("failed")
			c.t.Fatalf("waited in vain for %s; the page: %.2000v; wrong: %q", expression,
				c.eval("document.body.innerText"), c.wrong)
		}
	}
}

// open opens an address in a window of this size, and waits until the page has figures.
func (c *chromium) open(url string, width, height int, scheme string) {
	c.t.Helper()
	c.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1,
		"mobile": width < 500})
	c.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}}})
	c.do("Page.navigate", map[string]any{"url": url})
	c.until(`document.readyState === 'complete' && document.getElementById('time')?.textContent !== '' &&
		!document.body.classList.contains('loading') && !!document.querySelector('.plot canvas')`)
}

// press presses a key.
func (c *chromium) press(key string) {
	c.t.Helper()
	code := map[string]int{"Tab": 9, "Enter": 13, "ArrowLeft": 37}[key]
	text := map[string]string{"Enter": "\r"}[key]
	for _, what := range []string{"keyDown", "keyUp"} {
		c.do("Input.dispatchKeyEvent", map[string]any{"type": what, "key": key, "code": key, "text": text,
			"windowsVirtualKeyCode": code})
	}
}

// shot takes a picture of the whole page into the directory PAGE_PICTURES, where that is set.
func (c *chromium) shot(name string) {
	c.t.Helper()
	into := os.Getenv("PAGE_PICTURES")
	if into == "" {
		return
	}
	var r struct{ Data string }
	c.into(&r, c.do("Page.captureScreenshot", map[string]any{"captureBeyondViewport": os.Getenv("PAGE_WHOLE") != ""}))
	text, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(into, name+".png"), text, 0o600)
	}
	if err != nil {
		c.t.Error(err)
	}
}

// axe gives what axe-core, which AXE names, finds wrong with the page.
func (c *chromium) axe() []string {
	c.t.Helper()
	text, err := os.ReadFile(os.Getenv("AXE"))
	if err != nil {
		c.t.Fatalf("AXE has to name axe.min.js, as `make page-test` does: %v", err)
	}
	c.eval(string(text) + "; true")
	found, _ := c.eval(`axe.run().then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ': ' +
		n.html.slice(0, 200) + ' ' + n.failureSummary)))`).([]any)
	var all []string
	for _, f := range found {
		all = append(all, fmt.Sprint(f))
	}
	return all
}
