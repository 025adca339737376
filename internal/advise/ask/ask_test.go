package ask

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/dblogin"
)

// redis answers commands of one connection each, and notes what it was asked.
func redis(t *testing.T, answers map[string]string) (addr string, asked func() []string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	commands := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c, answers, commands)
		}
	}()
	return l.Addr().String(), func() (list []string) {
		for len(commands) > 0 {
			list = append(list, <-commands)
		}
		return list
	}
}

func serve(c net.Conn, answers map[string]string, commands chan<- string) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		var n int
		if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
			return
		}
		var words []string
		for range n {
			var length int
			if _, err := fmt.Fscanf(r, "$%d\r\n", &length); err != nil {
				return
			}
			word := make([]byte, length+2)
			for i := range word {
				word[i], _ = r.ReadByte()
			}
			words = append(words, string(word[:length]))
		}
		command := strings.ToLower(strings.Join(words, " "))
		answer, known := answers[command]
		if !known {
			answer = "-ERR unknown command"
		}
		commands <- command
		if _, err := c.Write([]byte(answer + "\r\n")); err != nil {
			return
		}
	}
}

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s", len(text), text) }

// Only what is named is asked for: a server keeps passwords among its settings.
func TestAskRedis(t *testing.T) {
	info := "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.0\r\ntcp_port:6379\r\nprocess_id:77\r\n"
	addr, asked := redis(t, map[string]string{"info server": bulk(info),
		"config get maxmemory": "*2\r\n$9\r\nmaxmemory\r\n$4\r\n1024", "config get gone": "*0"})
	l, err := dblogin.Parse("redis://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Settings(t.Context(), l, []string{"maxmemory", "gone"}, anybody)
	if err != nil {
		t.Fatal(err)
	}
	if a.Version != "8.1.0" || a.Port != 6379 || a.PID != 77 || a.Values["maxmemory"] != "1024" || len(a.Values) != 1 ||
		a.Place != addr {
		t.Errorf("%+v", a)
	}
	for _, command := range asked() {
		if strings.HasPrefix(command, "config") && command != "config get maxmemory" && command != "config get gone" {
			t.Errorf("it asked %q", command)
		}
	}
}

// Who refuses says so, without the password, even where the server repeats it.
func TestRefused(t *testing.T) {
	addr, _ := redis(t, map[string]string{"auth app geheim#1": "-WRONGPASS geheim#1 is no password"})
	l, err := dblogin.Parse("redis://app:geheim%231@" + addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Settings(t.Context(), l, nil, anybody); err == nil || strings.Contains(err.Error(), "geheim") ||
		!strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("%v", err)
	}
}

// A server that accepts and says nothing takes no longer than it may.
func TestSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, form := range []string{"mysql://u:geheim@%s/", "postgres://u:geheim@%s/db", "redis://u:geheim@%s"} {
		login, err := dblogin.Parse(fmt.Sprintf(form, l.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		done := make(chan error, 1)
		go func() { _, err := Settings(ctx, login, []string{"port"}, anybody); done <- err }()
		select {
		case err := <-done:
			if !errors.Is(err, ErrNoAnswer) {
				t.Errorf("%s: %v", form, err)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%s: it still waits", form)
		}
		cancel()
	}
}

func anybody(*Answer) error { return nil }
