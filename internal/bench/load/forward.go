package load

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
)

// Forwarding is how a program that takes a password from its command line alone, which everybody may read, is let into
// a Redis: it connects to a socket of ours, and we log in for it.
type Forwarding struct {
	Network, Address string // the server's: "tcp" or "unix", as net.Dial takes them
	Account          string // a file of two lines, user and password
	Socket           string // where to listen; it is gone afterwards
}

// Forward runs a command, and its connections to the socket, until it ends. The error is the command's own, or that
// there was no logging in.
func Forward(ctx context.Context, f Forwarding, command []string) error {
	text, err := os.ReadFile(f.Account)
	if err != nil {
		return fmt.Errorf("read the account: %w", err)
	}
	user, password, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n")
	if err := os.Remove(f.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("listen for the command: %w", err)
	}
	l, err := net.Listen("unix", f.Socket)
	if err != nil {
		return fmt.Errorf("listen for the command: %w", err)
	}
	defer l.Close()
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed: the command has ended
			}
			go f.carry(ctx, client, login(user, password))
		}
	}()
	n := process.NewSupervisor()
	defer n.Close()
	err = n.Run(ctx, process.Spec{Args: command, Stdout: os.Stdout, Stderr: os.Stderr})
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	return err
}

// login is the command that logs in, as Redis's protocol writes it.
func login(user, password string) string {
	words := []string{"AUTH", password}
	if user != "" {
		words = []string{"AUTH", user, password}
	}
	var b strings.Builder
	b.WriteString("*" + strconv.Itoa(len(words)) + "\r\n")
	for _, w := range words {
		b.WriteString("$" + strconv.Itoa(len(w)) + "\r\n" + w + "\r\n")
	}
	return b.String()
}

// carry logs in and carries one connection across, until either side ends. A client whose login failed is hung up on,
// which it reports.
func (f Forwarding) carry(ctx context.Context, client net.Conn, login string) {
	defer client.Close()
	d := net.Dialer{Timeout: database.LoginTime}
	server, err := d.DialContext(ctx, f.Network, f.Address)
	if err != nil {
		fmt.Fprintln(os.Stderr, "forward to Redis:", err)
		return
	}
	defer server.Close()
	_ = server.SetDeadline(time.Now().Add(database.LoginTime)) // never fails on a socket
	if _, err := io.WriteString(server, login); err != nil {
		fmt.Fprintln(os.Stderr, "log in to Redis:", err)
		return
	}
	answers := bufio.NewReader(server)
	if line, err := answers.ReadString('\n'); err != nil || line != "+OK\r\n" {
		fmt.Fprintln(os.Stderr, "log in to Redis:", cmp.Or(strings.TrimSpace(line), "no answer"))
		return
	}
	_ = server.SetDeadline(time.Time{})
	go func() {
		_, _ = io.Copy(server, client) // the client has ended, or the server has: the other copy says so
		server.Close()
	}()
	_, _ = io.Copy(client, answers)
}
