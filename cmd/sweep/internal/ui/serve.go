package ui

import (
	"context"
	"embed"
	"errors"
	"net"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed files
var files embed.FS

// policy is the Content-Security-Policy: nothing but the server's own style sheet, script and icon.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// handler is what answers. Outermost first: headers, hosts, passwords, a slot, origins, pages. Passwords come before
// the slot: whoever has none takes none from those who have.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux() // a pattern with GET also takes HEAD
	for name, kind := range map[string]string{"style.css": "text/css", "script.js": "text/javascript", "icon.svg": "image/svg+xml"} {
		mux.Handle("GET /"+name, asset(name, kind))
	}
	for pattern, show := range map[string]func(*http.Request) (*page, error){
		"GET /{$}":            s.tenants,
		"GET /tenant":         s.tenant,
		"GET /failed":         s.failed,
		"GET /failed/redrive": s.confirmRedrive,
		"GET /message":        s.message,
		"GET /nodes":          s.nodes,
	} {
		mux.Handle(pattern, s.show(show))
	}
	for pattern, a := range s.actions() {
		mux.Handle("POST "+pattern, s.act(a))
	}
	mux.Handle("/", s.show(func(r *http.Request) (*page, error) {
		return nil, &problem{status: http.StatusNotFound, Title: "No such page", Text: "There is no page at this address."}
	}))
	var h http.Handler = mux
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(s.show(func(*http.Request) (*page, error) {
		return nil, &problem{
			status: http.StatusForbidden, Title: "Refused",
			Text: "The request came from another site. A proxy in front must pass on the Host header as it is.",
		}
	}))
	h = origins.Handler(h)
	h = s.limit(h)
	h = s.authenticate(h)
	h = s.hosts(h)
	return headers(h)
}

// headers has browsers keep nothing, guess nothing, and load nothing from elsewhere.
func headers(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy":      policy,
			"X-Content-Type-Options":       "nosniff",
			"Cache-Control":                "no-store",
			"Referrer-Policy":              "no-referrer",
			"X-Frame-Options":              "DENY",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Cross-Origin-Opener-Policy":   "same-origin",
		} {
			w.Header().Set(name, value)
		}
		h.ServeHTTP(w, r)
	})
}

// limit answers so many requests at a time, and turns away whoever would wait for long.
func (s *Server) limit(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wait := time.NewTimer(5 * time.Second)
		defer wait.Stop()
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
			h.ServeHTTP(w, r)
		case <-wait.C:
			busy(w, "Too many requests at a time: try again.")
		case <-r.Context().Done():
		}
	})
}

func busy(w http.ResponseWriter, text string) {
	w.Header().Set("Retry-After", "5")
	http.Error(w, text, http.StatusServiceUnavailable)
}

// hosts refuses, where no password is asked for, names that are not of this machine: a page from
// elsewhere could have its own name lead here, and read and act as whoever has it open.
func (s *Server) hosts(h http.Handler) http.Handler {
	if s.Users != nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		if ip := net.ParseIP(host); !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "Without --users these pages answer to localhost and 127.0.0.1 only.", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

type userKey struct{}

// user is who asks; empty where nobody is asked for a password.
func user(r *http.Request) string {
	name, _ := r.Context().Value(userKey{}).(string)
	return name
}

// authenticate asks for a name and a password.
func (s *Server) authenticate(h http.Handler) http.Handler {
	if s.Users == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, given := r.BasicAuth()
		if given {
			ok, err := s.Users.allow(r.Context(), name, password)
			switch {
			case ok:
				h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, name)))
				return
			case errors.Is(err, errBusy):
				busy(w, "Too many passwords are to be compared at a time: try again.")
				return
			case err != nil:
				s.Log.Error("the file of users cannot be used, nobody is let in", "event", "ui_users_unreadable", "error", err.Error())
			}
			s.Log.Warn("wrong name or password", "event", "ui_denied", "user", cut(name, 64), "from", r.RemoteAddr)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="fairclaim", charset="UTF-8"`)
		http.Error(w, "A name and a password are needed.", http.StatusUnauthorized)
	})
}

func asset(name, kind string) http.Handler {
	content, err := files.ReadFile(path.Join("files", name))
	if err != nil {
		panic(err) // it is embedded
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		_, _ = w.Write(content)
	})
}
