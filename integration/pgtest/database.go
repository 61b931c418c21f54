package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Database is a database on a [Server] and how to reach it. Both strings hold a password.
type Database struct {
	Name     string
	Owner    string // the role that owns it; no superuser
	DSN      string // for the owner
	AdminDSN string // for the superuser (on an existing server, the given role)
}

// role is a login role and its password.
type role struct{ Name, password string }

// CreateDatabase makes a database in UTF-8 that belongs to the server's owner
// role, as a copy of template or, where that is "", an empty one. Within it
// plpgsql.extra_errors is 'all', so that a doubtful function fails its test.
func (s *Server) CreateDatabase(ctx context.Context, name, template string) (Database, error) {
	db := Database{
		Name:     name,
		Owner:    s.owner.Name,
		DSN:      rewrite(s.AdminDSN(), name, s.owner),
		AdminDSN: rewrite(s.AdminDSN(), name, role{}),
	}
	source := "template template0 encoding 'UTF8'"
	if template != "" {
		source = "template " + ident(template)
	}
	err := s.admin(ctx,
		fmt.Sprintf("create database %s owner %s %s", ident(name), ident(db.Owner), source),
		// Loads the language: only a setting that is known can be changed without being a superuser.
		"do $$ begin end $$",
		fmt.Sprintf("alter database %s set plpgsql.extra_errors = 'all'", ident(name)))
	if err != nil {
		return Database{}, fmt.Errorf("create database %s: %w", name, err)
	}
	return db, nil
}

// DropDatabase drops the database if it exists, and ends the sessions on it.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	if err := s.admin(ctx, fmt.Sprintf("drop database if exists %s with (force)", ident(name))); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// admin runs statements in a session of their own, as the administrator.
func (s *Server) admin(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.AdminDSN())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// createRole makes a login role with a random password and the given settings,
// each the end of an `alter role` statement.
func (s *Server) createRole(ctx context.Context, conn *pgx.Conn, name string, settings ...string) (role, error) {
	r := role{Name: name, password: randomHex(16)}
	statements := []string{fmt.Sprintf("create role %s login password '%s'", ident(name), r.password)}
	if !s.super {
		// Whoever is no superuser must be a member to give the role a database and to end its sessions.
		statements = append(statements, fmt.Sprintf("grant %s to current_user", ident(name)))
	}
	for _, setting := range settings {
		statements = append(statements, fmt.Sprintf("alter role %s %s", ident(name), setting))
	}
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return role{}, fmt.Errorf("create role %s: %w", name, err)
		}
	}
	return r, nil
}

// dropRole drops a role that owns nothing any more.
func (s *Server) dropRole(ctx context.Context, name string) error {
	if err := s.admin(ctx, "drop role if exists "+ident(name)); err != nil {
		return fmt.Errorf("drop role %s: %w", name, err)
	}
	return nil
}

// rewrite returns dsn, a URL or key=value words, for another database and, if
// as has a name, another role.
func rewrite(dsn, database string, as role) string {
	if strings.Contains(dsn, "://") {
		return rewriteURL(dsn, database, as)
	}
	words := []string{dsn, "dbname=" + word(database)} // the last word of a name counts
	if as.Name != "" {
		words = append(words, "user="+word(as.Name), "password="+word(as.password))
	}
	return strings.Join(words, " ")
}

func rewriteURL(dsn, database string, as role) string {
	u, err := url.Parse(dsn)
	if err != nil { // an escaped socket directory for a host, say; what comes last in the query wins
		settings := url.Values{"dbname": {database}}
		if as.Name != "" {
			settings.Set("user", as.Name)
			settings.Set("password", as.password)
		}
		separator := "?"
		if strings.Contains(dsn, "?") {
			separator = "&"
		}
		return dsn + separator + settings.Encode()
	}
	query := u.Query()
	query.Del("dbname") // would win over the path
	u.Path = "/" + database
	if as.Name != "" {
		query.Del("user")
		query.Del("password")
		u.User = url.UserPassword(as.Name, as.password)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// word quotes a value of a key=value connection string.
func word(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

func ident(name string) string { return pgx.Identifier{name}.Sanitize() }

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b) //nolint:errcheck // crypto/rand.Read never fails
	return hex.EncodeToString(b)
}
