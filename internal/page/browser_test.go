//go:build browser

package page

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/observe"
)

// setBack is by how many seconds the clock of the host was set back.
var setBack atomic.Int64

// host is a server with fifteen minutes of record until now, and a sample each second from then on.
func host(t *testing.T) string {
	t.Helper()
	before := begin
	begin = time.Now().Add(-180 * 5 * time.Second)
	t.Cleanup(func() { begin = before })
	o := past(t, 120)
	o.Live = func(ctx context.Context, _ time.Time) (*observe.Sample, error) {
		select {
		case <-time.After(time.Second):
			return sampleAt(t, (time.Since(begin).Seconds()-float64(setBack.Load()))/5), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	server := httptest.NewServer(New(o))
	t.Cleanup(server.Close)
	return server.URL
}

var sizes = [][2]int{{1440, 900}, {1024, 768}, {390, 844}}

// At three sizes, light and dark, axe finds nothing wrong with either view, nothing is wider than the window, and the
// browser complains about nothing and asks for nothing elsewhere.
func TestLooks(t *testing.T) {
	base, c := host(t), newChromium(t)
	for _, size := range sizes {
		for _, scheme := range []string{"light", "dark"} {
			for name, query := range map[string]string{"all": "", "group": "?group=mysql3306",
				"past": "?from=" + stamp(begin) + "&to=" + stamp(begin.Add(15*time.Minute)) + "&at=" +
					stamp(begin.Add(5*time.Minute))} {
				of := fmt.Sprintf("%s-%d-%s", name, size[0], scheme)
				c.open(base+"/"+query, size[0], size[1], scheme)
				c.shot(of)
				for _, found := range c.axe() {
					t.Errorf("%s: axe: %s", of, found)
				}
				if wide := c.eval("document.documentElement.scrollWidth - innerWidth"); wide.(float64) > 0 {
					t.Errorf("%s: it is %v pixels wider than the window", of, wide)
				}
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wrong) > 0 {
		t.Errorf("the browser complains: %q", c.wrong)
	}
	for _, address := range c.asked {
		if !strings.HasPrefix(address, base+"/") && !strings.HasPrefix(address, "data:") && address != "about:blank" {
			t.Errorf("the page asks for %s", address)
		}
	}
}

func stamp(t time.Time) string { return url.QueryEscape(t.UTC().Format(time.RFC3339)) }

// The page has the texts of `top`, as they come, and a hostile name is a text.
func TestTexts(t *testing.T) {
	base, c := host(t), newChromium(t)
	c.open(base+"/", 1440, 900, "light")
	c.until(`[...document.querySelectorAll('table.groups tbody th a')].some(a => a.title.startsWith('</script><img'))`)
	if c.eval(`document.querySelector('main img') === null && document.title.startsWith('db7')`) != true {
		t.Error("a name became HTML")
	}
	if c.eval(`(() => { const s = document.createElement('script'); s.textContent = 'globalThis.ran = 1';
		document.body.append(s); return globalThis.ran === undefined; })()`) != true {
		t.Error("a script in the page ran")
	}
	// The figures are those of the answer about the moment that the page shows.
	c.eval(`history.pushState(null, '', '?from=` + stamp(begin) + `&to=` + stamp(begin.Add(14*time.Minute)) + `&at=` +
		stamp(begin.Add(7*time.Minute)) + `'); dispatchEvent(new PopStateEvent('popstate'))`)
	c.until(`document.getElementById('mode').textContent === 'Recorded' &&
		!document.body.classList.contains('loading')`)
	differ := c.eval(`fetch('api/at?at=' + Date.parse('` + begin.Add(7*time.Minute).UTC().Format(time.RFC3339) + `'))
		.then(r => r.json()).then(v => v.groups.flatMap(g => {
			const row = [...document.querySelectorAll('table.groups tbody tr')].find(r =>
				r.querySelector('a').title === g.group);
			const text = row.textContent;
			return [g.verdict.text, g.shown.cpu, g.shown.memory, g.shown.wait, g.shown.held, g.shown.read,
				g.shown.tasks].filter(s => s !== undefined && !text.includes(s)).map(s =>
					g.group + ' lacks ' + s + ' in ' + text);
		}).join('; '))`)
	if differ != "" {
		t.Errorf("the page shows other figures than there are: %v", differ)
	}
}

// The memory of a group by node and page size stands in the page as the answer has it, with a bar for each node whose
// parts are as long as their amounts say, also for a moment of the past.
func TestNodesOfMemory(t *testing.T) {
	base, c := host(t), newChromium(t)
	for _, query := range []string{"?group=mysql3306", "?group=mysql3306&from=" + stamp(begin) + "&to=" +
		stamp(begin.Add(14*time.Minute)) + "&at=" + stamp(begin.Add(7*time.Minute))} {
		c.open(base+"/"+query, 1440, 900, "light")
		c.until(`document.querySelectorAll('.nodes .stack').length === 2`)
		texts := c.eval(`[...document.querySelectorAll('table[aria-labelledby=nodes] tr')].map(r =>
			[...r.children].map(c => c.textContent).join('|')).join('\n')`)
		const want = "Node|All|Share|usual pages|transparent huge pages|pool, pages of 64 KiB|pool, pages of 2 MiB|" +
			"pool, pages of 32 MiB|pool, pages of 1 GiB|page cache|The node has|Free there\n" +
			"0|6.9G|67%|922M|307M|0|5.2G|0|0|512M|32.0G|9.0G\n1|3.4G|33%|461M|154M|0|2.6G|0|0|256M|32.0G|9.0G"
		if texts != want {
			t.Errorf("the table says\n%v\nwant\n%s", texts, want)
		}
		wide := c.eval(`[...document.querySelectorAll('.nodes .stack')].map(s => [...s.children].map(p =>
			Math.round(100 * p.getBoundingClientRect().width / s.clientWidth)).join(' ')).join('|')`)
		if wide != "13 4 75 7|7 2 38 4" {
			t.Errorf("parts of the bars are %v percent wide", wide)
		}
		patterns := c.eval(`new Set([...document.querySelectorAll('.nodes ~ .key i')].map(i =>
			getComputedStyle(i).background)).size`)
		if patterns != 7.0 {
			t.Errorf("7 kinds of pages have %v patterns", patterns)
		}
	}
	c.open(base+"/?group=reports0", 1440, 900, "light")
	if c.eval(`document.getElementById('nodes').parentNode.hidden`) != true {
		t.Error("there is a picture of a group of which nothing is known")
	}
}

// A sample that comes is shown, in the table and in the charts, and who has the focus keeps it; after the clock was set
// back, too.
func TestLive(t *testing.T) {
	base, c := host(t), newChromium(t)
	c.open(base+"/", 1440, 900, "light")
	c.until(`document.getElementById('mode').textContent === 'Live'`)
	c.eval(`document.querySelector('table.groups tbody a').focus();
		globalThis.was = document.getElementById('time').textContent;
		globalThis.drawn = document.querySelector('.plot').getAttribute('aria-valuetext')`)
	c.until(`document.getElementById('time').textContent !== was && document.activeElement?.closest('tbody') !== null &&
		document.querySelector('.plot').getAttribute('aria-valuetext') !== drawn`)
	defer setBack.Store(0)
	setBack.Store(90)
	c.until(`document.getElementById('time').textContent < was && document.querySelector('.plot').
		getAttribute('aria-valuetext').startsWith(document.getElementById('time').textContent)`)
}

// With a keyboard alone one goes to a group, to a moment of the past, and back to now; each view has its address.
func TestKeyboard(t *testing.T) {
	base, c := host(t), newChromium(t)
	c.open(base+"/", 1440, 900, "light")
	tab := func(to string) {
		t.Helper()
		for range 120 {
			c.press("Tab")
			if c.eval(`!!document.activeElement?.matches('`+to+`')`) == true {
				return
			}
		}
		t.Fatalf("the tabulator does not come to %s", to)
	}
	tab("tbody a[title=mysql3306]")
	c.press("Enter")
	c.until(`location.search === '?group=mysql3306' &&
		document.querySelector('.answers .answer')?.textContent.includes('cpu.limit')`)
	c.until(`!!document.querySelector('.plot canvas') && !document.body.classList.contains('loading')`)
	tab(".plot")
	before := c.eval("document.activeElement.getAttribute('aria-valuetext')")
	for range 5 {
		c.press("ArrowLeft")
	}
	if after := c.eval("document.activeElement.getAttribute('aria-valuetext')"); after == before {
		t.Errorf("the arrow key does not move in time: %v", after)
	}
	c.press("Enter")
	c.until(`/group=mysql3306&from=.*&to=.*&at=/.test(location.search) &&
		document.getElementById('mode').textContent === 'Recorded' && !document.body.classList.contains('loading')`)
	shown := `document.querySelector('main .group').innerText`
	first := c.eval(shown)
	c.open(c.eval("location.href").(string), 1440, 900, "light")
	if again := c.eval(shown); again != first {
		t.Errorf("the same address shows\n%v\nand then\n%v", first, again)
	}
	tab("#live")
	c.press("Enter")
	c.until(`location.search === '?group=mysql3306' && document.getElementById('mode').textContent === 'Live'`)
}
