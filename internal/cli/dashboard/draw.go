package dashboard

import (
	"fmt"
	"strings"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"bulkhead/internal/observe/top"
	"bulkhead/internal/terminal"
)

// style is how a line looks. What it says stands in its text, too.
type style int

const (
	plain style = iota
	bold
	chosen
	alarm
	faint
)

// codes are those of ECMA-48, of the terminal's own palette.
var codes = map[style]string{bold: "\x1b[1m", chosen: "\x1b[7m", alarm: "\x1b[31m", faint: "\x1b[2m"}

// line is one line of the screen.
type line struct {
	text  string
	style style
}

// leastTable are the lines of the table that stay when a panel is open: the heading, and groups around the chosen one.
const leastTable = 4

// View gives the screen.
func (m *Model) View() tea.View {
	var b strings.Builder
	for i, l := range m.draw(m.width, m.height) {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(l.styled())
	}
	v := tea.NewView(b.String())
	v.AltScreen = true
	return v
}

// draw gives the lines of a screen of this size; height 0 is as many as there are.
func (m *Model) draw(width, height int) (all []line) {
	if m.reel.Len() == 0 {
		return []line{{fit("bulkhead top  "+terminal.Printable(m.said), width), bold}, {},
			{fit("q quits", width), faint}}
	}
	s := m.reel.State(m.at)
	h := s.Host()
	all = append(all, line{fit(m.title(s), width), titleStyle(m)},
		line{fit(fmt.Sprintf("CPU %s of %s  load %s  wait cpu %s mem %s disk %s  mem %s of %s", h.Busy.Text,
			h.CPUs.Text, h.Load.Text, h.WaitCPU.Text, h.WaitMem.Text, h.WaitIO.Text, h.Used.Text,
			h.Memory.Text), width), plain})
	rows := m.table(s, width)
	panel := m.panelLines(s, width)
	if m.panel == help {
		rows = nil
	}
	if height > 0 {
		most := max(height-len(all)-1-min(leastTable, len(rows)), 1)
		if len(panel) > most {
			panel = append(panel[:most-1], line{fit("(there is more: a higher window shows it)", width), faint})
		}
		rows = m.scrolled(rows, height-len(all)-len(panel)-1)
	}
	all = append(all, rows...)
	for height > 0 && len(all)+len(panel)+1 < height {
		all = append(all, line{})
	}
	all = append(all, panel...)
	if height > 0 {
		all = append(all, line{fit(m.foot(), width), footStyle(m)})
	}
	return all
}

// title says what is shown, of which host, and of when.
func (m *Model) title(s *top.State) string {
	text := "bulkhead top  "
	if m.o.Of != "" {
		text += terminal.Printable(m.o.Of) + "  "
	}
	text += s.At.Local().Format("2006-01-02 15:04:05 MST") + "  "
	switch {
	case m.live && m.lost:
		return text + "OLD FIGURES"
	case m.live:
		return text + "live"
	case m.frozen:
		return text + "FROZEN: f goes on"
	case m.o.Live != nil:
		return text + "RECORDED: end goes back to now"
	}
	return text + "RECORDED"
}

func titleStyle(m *Model) style {
	if m.live && m.lost {
		return alarm
	}
	return bold
}

// foot is the last line: what is typed, what there is to say, or the keys.
func (m *Model) foot() string {
	switch {
	case m.typing:
		return "filter: " + terminal.Printable(m.view.Filter) + "_   enter: done   esc: all groups"
	case m.said != "":
		return "! " + terminal.Printable(m.said)
	}
	sorted := m.view.Sort
	if sorted == "" {
		sorted = "name"
	}
	text := "?:help w:why l:limits s:sort(" + sorted + ") /:filter f:freeze left,right:time q:quit"
	if m.view.Filter != "" {
		text = "FILTER " + terminal.Printable(m.view.Filter) + " (esc ends it)  " + text
	}
	return text
}

func footStyle(m *Model) style {
	switch {
	case m.typing:
		return plain
	case m.said != "" || m.view.Filter != "":
		return bold
	}
	return faint
}

// table gives the heading and a line for each group.
func (m *Model) table(s *top.State, width int) []line {
	columns := fitting(width)
	name := width - marks - 1 - trendWidth
	of := 0 // whose trend is shown
	for i, c := range columns {
		name -= 1 + c.Width
		if c.Name == m.view.Sort {
			of = i
		}
	}
	trend := trendWidth + min(max(name-mostName, 0), mostTrend-trendWidth)
	name -= trend - trendWidth
	var head strings.Builder
	for i, c := range columns {
		head.WriteString(" " + right(c.Title, c.Width))
		if i == of {
			head.WriteString(" " + pad("TREND", trend))
		}
	}
	m.rows = m.view.Rows(s, columns)
	title := "GROUP"
	lines := []line{{}}
	for i, r := range m.rows {
		lines = append(lines, m.row(r, columns, name, of, trend, i == m.chosen()))
		lines[i+1].text = fit(lines[i+1].text, width)
	}
	if len(m.rows) == 0 {
		text := "no group has figures"
		if m.view.Filter != "" {
			text = "no group has that in its name, role or engine"
		}
		lines = append(lines, line{fit(text, width), plain})
	}
	lines[0] = line{fit(pad(strings.Repeat(" ", marks)+title, marks+name)+head.String(), width), bold}
	return lines
}

// row is the line of one group. What is marked by a colour has a mark in front, too.
func (m *Model) row(r top.Row, columns []top.Column, name, of, trend int, isChosen bool) line {
	var b strings.Builder
	folded := ""
	if r.Folded {
		folded = " +"
	}
	b.WriteString(pad(strings.Repeat("  ", r.Depth)+terminal.Printable(r.Title)+folded, name))
	l := line{style: plain}
	mark := [marks]byte{' ', ' '}
	if m.interactive && isChosen {
		mark[0] = '>'
	}
	for j, c := range r.Cells {
		b.WriteString(" " + right(c.Text, columns[j].Width))
		if j == of {
			values := m.reel.Trend(m.at, &columns[j], r.Name, trend)
			b.WriteString(" " + strings.Repeat(" ", trend-len(values)) + top.Bars(values, columns[j].Least, m.o.ASCII))
		}
	}
	if r.Alarm {
		l.style, mark[1] = alarm, '!'
	}
	if mark[0] == '>' {
		l.style = chosen
	}
	l.text = string(mark[:]) + b.String()
	return l
}

// scrolled keeps the heading and as many lines as there is room for, around the chosen one. The heading then says which
// these are.
func (m *Model) scrolled(rows []line, height int) []line {
	height = max(height, 2)
	if len(rows) <= height {
		return rows
	}
	first := min(max(m.chosen()+1-height/2, 1), len(rows)-height+1)
	shown := append([]line{}, rows[0])
	where := fmt.Sprintf("%d-%d of %d", first, first+height-2, len(rows)-1)
	if head := []rune(shown[0].text); len(head) > marks+leastName {
		shown[0].text = pad(strings.Repeat(" ", marks)+where, marks+leastName) + string(head[marks+leastName:])
	}
	return append(shown, rows[first:first+height-1]...)
}

// panelLines are those of the open panel.
func (m *Model) panelLines(s *top.State, width int) (all []line) {
	say := func(look style, text string) {
		for _, one := range wrap(terminal.Printable(text), width) {
			all = append(all, line{one, look})
		}
	}
	group := m.group()
	switch {
	case m.panel == help:
		for _, text := range helpLines() {
			say(plain, text)
		}
	case group == "":
	case m.panel == why:
		say(bold, "Why does "+group+" wait?")
		for _, text := range s.Why(group) {
			say(plain, text)
		}
	case m.panel == limits:
		m.limitLines(s, group, say)
	}
	return all
}

func (m *Model) limitLines(s *top.State, group string, say func(style, string)) {
	all := s.Limits(group)
	say(bold, "Limits of "+group+", those that bite first")
	if len(all) == 0 {
		say(plain, "It has none.")
		return
	}
	key := 0
	for i := range all {
		key = max(key, utf8.RuneCountInString(all[i].Name()))
	}
	say(plain, fmt.Sprintf("%s %8s %8s %8s", pad("", key), "ASKED", "HELD", "USED"))
	for _, l := range all {
		text := fmt.Sprintf("%s %8s %8s %8s", pad(l.Name(), key), l.Asked, l.Held, l.Used)
		switch {
		case l.Bites:
			say(alarm, text+"  BITES: "+l.How)
			say(plain, "  half as much again for an hour:")
			say(plain, "  "+l.Command)
		case l.Differs:
			say(alarm, text+"  DIFFERS")
		default:
			say(plain, text)
		}
	}
	if text := s.NotInForce(group); text != "" {
		say(plain, text)
	}
}

// helpLines say what the keys and the columns are.
func helpLines() []string {
	all := []string{
		"up down pgup pgdn: choose a group   enter: fold it   w: why it waits   l: limits",
		"s S: sort by the next, or last column, which has the trend   r: turn it round",
		"/: filter   f: freeze, and go on   esc: close, or end the filter   q: quit",
		"left right: one sample back, on   [ ]: a minute   { }: an hour   end: now",
		"> is chosen   ! waits or is held back a tenth of the time, has a limit that is",
		"  not in force, or lost processes for want of memory",
	}
	for i := range top.Columns {
		all = append(all, fmt.Sprintf("%-6s %s", top.Columns[i].Title, top.Columns[i].Help))
	}
	return all
}

func pad(text string, width int) string {
	text = fit(text, width)
	return text + strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
}

func right(text string, width int) string {
	return strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0)) + text
}

// fit cuts a text that is too long.
func fit(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width-1, 0)]) + "~"
}

// leastWrap is the shortest line that a text is broken into.
const leastWrap = 8

// wrap breaks a text at blanks, and words that are longer than a line. What goes on is indented by two.
func wrap(text string, width int) (lines []string) {
	width = max(width, leastWrap)
	indent := ""
	for utf8.RuneCountInString(indent+text) > width {
		room := width - len(indent)
		head := string([]rune(text)[:room+1])
		at := strings.LastIndexByte(head, ' ')
		if strings.TrimSpace(head[:max(at, 0)]) == "" {
			at = len(string([]rune(text)[:room]))
		}
		lines = append(lines, indent+strings.TrimRight(text[:at], " "))
		text, indent = strings.TrimLeft(text[at:], " "), "  "
	}
	return append(lines, indent+text)
}

// styled is a line as the terminal gets it.
func (l line) styled() string {
	if code := codes[l.style]; code != "" {
		return code + l.text + "\x1b[m"
	}
	return l.text
}
