package zfsclone

import (
	"context"
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/treecopy"
)

// prepare changes the files of a copy so that a server of its own can run on them, and writes its option file. Whoever
// has the rights of the server's user could put links there meanwhile: every file is opened below its data set.
func (m *Maker) prepare(ctx context.Context, p *Plan) error {
	m.say("preparing the files of %s", p.Name)
	uid, gid, err := owner(p)
	if err != nil {
		return err
	}
	if uid == 0 {
		return refuse("", "the data directory %s is root's", p.DataDir)
	}
	for _, point := range p.Points() {
		if err := p.links(ctx, point); err != nil {
			return err
		}
	}
	m.at("rewrote links")
	files := []file{}
	if p.Engine == engine.PostgreSQL {
		files, err = m.preparePostgreSQL(ctx, p)
	} else if err = p.prepareMySQL(); err == nil {
		files, err = p.mysqlFiles(true)
	}
	if err != nil {
		return err
	}
	m.at("prepared the data")
	for _, f := range append(files, file{name: p.StartLog(), mode: 0o600}) {
		if err := f.write(gid); err != nil {
			return err
		}
	}
	m.at("wrote " + p.OptionFile())
	if err := os.Mkdir(p.Run(), 0o755); err != nil { //nolint:gosec // who may connect gets to the socket
		return err
	}
	if err := errors.Join(os.Chown(p.Run(), uid, gid), os.Chmod(p.Run(), 0o755)); err != nil { //nolint:gosec // so
		return err
	}
	m.at("made " + p.Run())
	return nil
}

// owner is whom the data belongs to, and the group by which the server reads what is root's: that of its account. The
// data directory may have another one, as mariadb-install-db leaves it.
func owner(p *Plan) (uid, gid int, err error) {
	uid, gid, err = treecopy.Owner(p.DataDir)
	if err != nil {
		return uid, gid, err
	}
	if account, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		if n, err := strconv.Atoi(account.Gid); err == nil {
			gid = n
		}
	}
	return uid, gid, nil
}

// settle takes away what only the first start needed.
func (m *Maker) settle(p *Plan) error {
	if p.Engine == engine.PostgreSQL {
		return nil
	}
	_, gid, err := owner(p)
	if err != nil {
		return err
	}
	files, err := p.mysqlFiles(false)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := f.write(gid); err != nil {
			return err
		}
	}
	m.at("wrote " + p.OptionFile() + " again")
	return gone(initFile(p))
}

// files are those that a copy may have beside its data.
func (p *Plan) files() []string {
	if p.Engine == engine.PostgreSQL {
		return []string{p.OptionFile(), hbaFile(p), identFile(p)}
	}
	return []string{p.OptionFile(), initFile(p)}
}

// logged is the end of what a server that did not start had to say.
func logged(p *Plan) string {
	text := ""
	for _, name := range []string{p.StartLog(), filepath.Join(p.Run(), errorLog)} {
		if data := tail(name, 1500); data != "" {
			text = ". The end of its log:\n" + data
		}
	}
	return text
}
