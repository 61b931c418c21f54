package connstring

import (
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// defaultUserTimeout is how long sent bytes may stay unacknowledged.
const defaultUserTimeout = 30 * time.Second

// ignored are parameters without a meaning here: those of pools and caches of other clients,
// and those of libpq for which Go has its own way. To ignore them does no harm.
var ignored = names("schema pgbouncer connection_limit pool_timeout socket_timeout statement_cache_size single_use_connections " + // Prisma
	"max_connection_lifetime max_idle_connection_lifetime supa workaround uselibpqcompat pool prepared_statements " +
	"gsslib sslcompression load_balance_hosts sslkeylogfile")

// refused are parameters that ask for something that cannot be done, or is written
// differently; with a hint each.
var refused = map[string]string{
	"hostaddr":         "Give the address as host.",
	"requiressl":       "Write sslmode=require in its place.",
	"requirepeer":      "The server's user is not checked here; use sslmode=verify-full over TCP.",
	"sslcrl":           "Lists of revoked certificates are not checked here.",
	"sslcrldir":        "Lists of revoked certificates are not checked here.",
	"sslaccept":        "The parameter is one of Prisma: write sslmode=require for accept_invalid_certs, sslmode=verify-full for strict.",
	"sslidentity":      "The parameter is one of Prisma: give certificate and key with sslcert and sslkey.",
	"replication":      "Sweep needs an ordinary connection.",
	"gssdelegation":    "Credentials are not delegated here.",
	"currentSchema":    "The parameter is one of JDBC. Leave it out: the outbox has a schema of its own.",
	"username":         "The keyword is user.",
	"Username":         "The keyword is user.",
	"hostname":         "The keyword is host.",
	"pass":             "The keyword is password.",
	"Host":             "Keywords are in lower case.",
	"Password":         "Keywords are in lower case.",
	"Database":         "Keywords are in lower case.",
	"Port":             "Keywords are in lower case.",
	"scram_client_key": "Give the password.",
	"scram_server_key": "Give the password.",
}

// shown are settings of the server that people put into connection strings: an error may
// repeat their names.
var shown = names("application_name client_encoding datestyle DateStyle default_transaction_isolation default_transaction_read_only " +
	"extra_float_digits idle_in_transaction_session_timeout intervalstyle lock_timeout options role search_path session_role " +
	"standard_conforming_strings statement_timeout timezone TimeZone work_mem")

func names(list string) map[string]bool {
	all := map[string]bool{}
	for _, name := range strings.Fields(list) {
		all[name] = true
	}
	return all
}

// Apply takes the parameters that pgx does not know out of the run-time parameters, which the
// server would refuse, and does what they ask for.
func Apply(config *pgx.ConnConfig) error {
	p := config.RuntimeParams
	for _, name := range slices.Sorted(maps.Keys(p)) {
		hint, isRefused := refused[name]
		switch {
		case !isName(name):
			return refuse("have a parameter whose name is not valid", forms)
		case isRefused:
			return refuse("have the parameter "+name+", which means nothing here", hint)
		case ignored[name], strings.HasPrefix(name, "pool_"): // the latter are pgxpool's, which has read them
			delete(p, name)
		}
	}
	if mode, ok := take(p, "gssencmode"); ok && mode == "require" {
		return refuse("have gssencmode=require, which sweep cannot do", "Use TLS: sslmode=verify-full.")
	}
	if name, ok := take(p, "fallback_application_name"); ok && p["application_name"] == "" {
		p["application_name"] = name
	}
	if err := applyTLS(config); err != nil {
		return err
	}
	return applyTCP(config)
}

func take(p map[string]string, name string) (value string, ok bool) {
	value, ok = p[name]
	delete(p, name)
	return value, ok
}

func applyTLS(config *pgx.ConnConfig) error {
	versions := map[string]uint16{"": 0, "TLSv1": tls.VersionTLS10, "TLSv1.1": tls.VersionTLS11, "TLSv1.2": tls.VersionTLS12, "TLSv1.3": tls.VersionTLS13}
	lowest, hasLowest := take(config.RuntimeParams, "ssl_min_protocol_version")
	highest, hasHighest := take(config.RuntimeParams, "ssl_max_protocol_version")
	low, ok1 := versions[lowest]
	high, ok2 := versions[highest]
	if !ok1 || !ok2 {
		return refuse("have an ssl_min_protocol_version or ssl_max_protocol_version that is not known", "Write TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3.")
	}
	all := []*tls.Config{config.TLSConfig}
	for _, f := range config.Fallbacks {
		all = append(all, f.TLSConfig)
	}
	for _, c := range all {
		if c != nil && hasLowest {
			c.MinVersion = low
		}
		if c != nil && hasHighest {
			c.MaxVersion = high
		}
	}
	return nil
}

// applyTCP sets the dialer. Numbers of 0 or less mean the system's default, as to libpq.
func applyTCP(config *pgx.ConnConfig) error {
	numbers := map[string]int{"keepalives": 1, "keepalives_idle": 0, "keepalives_interval": 0, "keepalives_count": 0, "tcp_user_timeout": int(defaultUserTimeout.Milliseconds())}
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		value, ok := take(config.RuntimeParams, name)
		if !ok || value == "" {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n > 1<<30 {
			return refuse("have a "+name+" that is not a whole number", "keepalives_idle and keepalives_interval are in seconds, tcp_user_timeout in milliseconds; keepalives is 1 or 0.")
		}
		numbers[name] = n
	}
	seconds := func(name string) time.Duration { return time.Duration(max(numbers[name], 0)) * time.Second }
	dialer := &net.Dialer{Timeout: config.ConnectTimeout}
	if numbers["keepalives"] == 0 {
		dialer.KeepAlive = -1
	} else {
		dialer.KeepAliveConfig = net.KeepAliveConfig{
			Enable: true, Idle: seconds("keepalives_idle"), Interval: seconds("keepalives_interval"), Count: max(numbers["keepalives_count"], 0),
		}
	}
	if ms := numbers["tcp_user_timeout"]; ms > 0 {
		dialer.Control = userTimeout(time.Duration(ms) * time.Millisecond)
	}
	config.DialFunc = dialer.DialContext
	return nil
}

// Hide replaces the names and values of parameters of the connection string in a text of the
// server.
func Hide(text string, params map[string]string) string {
	var pieces []string
	for name, value := range params {
		if !shown[name] {
			pieces = append(pieces, name)
		}
		pieces = append(pieces, value)
	}
	slices.SortFunc(pieces, func(a, b string) int { return len(b) - len(a) })
	for _, piece := range pieces {
		if len(piece) > 2 {
			text = strings.ReplaceAll(text, piece, "[hidden]")
		}
	}
	return text
}
