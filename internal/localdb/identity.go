package localdb

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
)

// schema is the version of the layout of the folder. A layout that older versions cannot read takes the next number.
const schema = 1

const schemaFormat = "skein local database, schema %d\n"

// checkSchema refuses a folder of a newer layout, before anything in it is touched, and marks a new one.
func checkSchema(dir string) error {
	path := filepath.Join(dir, "SCHEMA")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return writeFile(path, fmt.Appendf(nil, schemaFormat, schema))
	}
	if err != nil {
		return err
	}
	var found int
	if _, err := fmt.Sscanf(string(text), schemaFormat, &found); err != nil {
		return fmt.Errorf("%w: %s holds %q", ErrDamaged, path, text[:min(len(text), 60)])
	}
	if found > schema {
		return fmt.Errorf("%w: %s has schema %d, this version reads up to %d; start the newer version", ErrNewer, dir, found, schema)
	}
	return nil
}

// writeFile writes a small file durably.
func writeFile(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path)
		return diskFull(err, "write "+path)
	}
	return syncDir(filepath.Dir(path))
}

var identityKey = []byte("m/identity")

// begin reads or makes the identity, counts the start, and makes both durable.
func (db *DB) begin(ordinal topology.Ordinal) error {
	text, err := db.get(identityKey)
	if err != nil {
		return err
	}
	id := Identity{Ordinal: ordinal, Schema: schema}
	if text == nil {
		id.Disk = uuid.New()
	} else if err := json.Unmarshal(text, &id); err != nil {
		return fmt.Errorf("%w: identity %q: %w", ErrDamaged, text, err)
	}
	if id.Ordinal != ordinal {
		return fmt.Errorf("%w: %s is of ordinal %d, this broker is %d; give it its own folder", ErrOtherOrdinal, db.dir, id.Ordinal, ordinal)
	}
	id.Start++
	return db.setIdentity(id)
}

// Identity is that of this open database.
func (db *DB) Identity() Identity { return *db.identity.Load() }

// RenewDisk gives the folder a new disk id, durably, and returns it: to those who know the old one, this counts as a
// replica that has lost its disk (P5).
func (db *DB) RenewDisk() (uuid.UUID, error) {
	if err := db.enter(); err != nil {
		return uuid.Nil, err
	}
	defer db.leave()
	id := db.Identity()
	id.Disk = uuid.New()
	if err := db.setIdentity(id); err != nil {
		return uuid.Nil, fmt.Errorf("local database: renew disk id: %w", err)
	}
	return id.Disk, nil
}

func (db *DB) setIdentity(id Identity) error {
	text, err := json.Marshal(id)
	if err != nil {
		return err
	}
	if err := db.update(true, &batch{ops: []op{{key: identityKey, value: text}}}); err != nil {
		return err
	}
	db.identity.Store(&id)
	return nil
}
