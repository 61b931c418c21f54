package http

import (
	"net/url"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

func TestRender(t *testing.T) {
	for _, c := range []struct{ template, namespace, queue, want string }{
		{"http://h", "n", "q", "http://h"},
		{"http://h/", "n", "q", "http://h/"},
		{"HTTPS://H:8443/a", "n", "q", "https://H:8443/a"},
		{"http://h?x=1", "n", "q", "http://h?x=1"},
		{"http://user:pass@h/", "n", "q", "http://h/"},
		{"http://[::1]:80/{namespace}", "n", "q", "http://[::1]:80/n"},
		{"http://bücher.example/{namespace}", "n", "q", "http://b%C3%BCcher.example/n"},
		{"http://[fe80::1%25eth0]/{namespace}", "n", "q", "http://[fe80::1%25eth0]/n"},
		{"http://h/{namespace}/{task_queue}", "acme", "mail", "http://h/acme/mail"},
		{"http://h/v1-{namespace}.json?q={task_queue}&q2={task_queue}", "a", "b c&d=e", "http://h/v1-a.json?q=b+c%26d%3De&q2=b+c%26d%3De"},
		{"http://h/a%2Fb/{namespace}", "c/d", "q", "http://h/a%2Fb/c%2Fd"},
		{"http://h/%7Bid%7D/{namespace}", "n", "q", "http://h/%7Bid%7D/n"},
		{"http://h/{namespace}", "{task_queue}", "q", "http://h/%7Btask_queue%7D"},
		{"http://h/{namespace}", "?a=b#c;d", "q", "http://h/%3Fa=b%23c%3Bd"},
		{"http://h/{namespace}", "%2e%2e%2f", "q", "http://h/%252e%252e%252f"},
		{"http://h/{namespace}", "a\r\nHost: evil", "q", "http://h/a%0D%0AHost:%20evil"},
		{"http://h/{namespace}", "🦉 שלום", "q", "http://h/%F0%9F%A6%89%20%D7%A9%D7%9C%D7%95%D7%9D"},
		{"http://h/{namespace}", "@evil.com", "q", "http://h/@evil.com"},
		{"http://h/{namespace}", "...", "q", "http://h/..."},
		{"http://h/a;v=(2)/{namespace}?b[]=3", "n", "q", "http://h/a;v=(2)/n?b[]=3"},
	} {
		tmpl, err := parseTemplate(c.template)
		if err != nil {
			t.Errorf("%s: %v", c.template, err)
			continue
		}
		u, err := tmpl.render(driver.Delivery{Namespace: c.namespace, TaskQueue: c.queue})
		if err != nil || u.String() != c.want {
			t.Errorf("%s with %q, %q = %v, %v, want %s", c.template, c.namespace, c.queue, u, err, c.want)
		}
	}
}

func TestRenderRefusesDotSegments(t *testing.T) {
	for _, c := range []struct{ template, namespace string }{
		{"http://h/hooks/{namespace}", ".."},
		{"http://h/hooks/{namespace}", "."},
		{"http://h/hooks/{namespace}/in", ".."},
		{"http://h/hooks/{namespace}", "../admin"},
		{"http://h/hooks/{namespace}", "a/../../admin"},
		{"http://h/hooks/{namespace}", `..\admin`},
		{"http://h/hooks/{namespace}", "..;/admin"},
		{"http://h/hooks/.{namespace}", "."},
		{"http://h/hooks/%2E{namespace}", "."},
	} {
		tmpl, err := parseTemplate(c.template)
		if err != nil {
			t.Fatalf("%s: %v", c.template, err)
		}
		if u, err := tmpl.render(driver.Delivery{Namespace: c.namespace}); err == nil {
			t.Errorf("%s with %q = %s, want an error", c.template, c.namespace, u)
		}
		inQuery, err := parseTemplate("http://h/hooks?n={namespace}")
		if err != nil {
			t.Fatal(err)
		}
		u, err := inQuery.render(driver.Delivery{Namespace: c.namespace})
		if err != nil || u.Query().Get("n") != c.namespace {
			t.Errorf("in the query %q comes out as %v, %v", c.namespace, u, err)
		}
	}
}

func TestParseTemplateRefuses(t *testing.T) {
	for _, c := range []struct{ raw, says string }{
		{"", "begins with http"},
		{"host/path", "begins with http"},
		{"ftp://h/", "begins with http"},
		{"http:/h/", "begins with http"},
		{"javascript://h/", "begins with http"},
		{"http://", "host or port"},
		{"http:///path", "host or port"},
		{"http://:80/", "host or port"},
		{"http://user:hunter2@/", "host or port"},
		{"http://h:/", "host or port"},
		{"http://h:0/", "host or port"},
		{"http://h:65536/", "host or port"},
		{"http://h:http/", "host or port"},
		{"http://user:hun%ter2@h/", "host or port"},
		{"http://user:hunter2/@h/", "host or port"},
		{"http://h\\@evil/", "host or port"},
		{"http://h ost/", "host or port"},
		{"http://h<script>/", "host or port"},
		{"http://[::1%25\xff]/", "host or port"},
		{"http://h\r\nost/", "host or port"},
		{"http://{namespace}/", "placeholder in its host"},
		{"http://h.{task_queue}:80/", "placeholder in its host"},
		{"http://{namespace}@h/", "placeholder in its host"},
		{"http://h/#hunter2", "'#'"},
		{"http://user:hunter2#@h/", "'#'"},
		{"http://h/{name}", "neither {namespace} nor {task_queue}"},
		{"http://h/{namespace", "neither"},
		{"http://h/{{namespace}}", "neither"},
		{"http://h/?token=hunter2&n={Namespace}", "neither"},
		{"http://h/namespace}", "write it as %7D"},
		{"http://h/a b", "write it as %20"},
		{"http://h/a?b=hunter2\n", "write it as %0A"},
		{"http://h/ü", "write it as %C3"},
		{"http://h/100%", "write it as %25"},
		{"http://h/%zz", "write it as %25"},
		{"http://h/%4{namespace}", "write it as %25"},
		{"http://h/a[1]", "write it as %5B"},
		{"http://h/a\\b", "write it as %5C"},
		{"http://h/a/../b", `".."`},
		{"http://h/%2e%2e/{namespace}", `".."`},
		{"http://h/./{namespace}", `".."`},
	} {
		tmpl, err := parseTemplate(c.raw)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("parseTemplate(%q) = %v, %v, want an error with %q", c.raw, tmpl, err, c.says)
			continue
		}
		for _, secret := range []string{"hunter2", "hun%ter2", "user"} {
			if strings.Contains(strings.ReplaceAll(err.Error(), "in user and password", ""), secret) {
				t.Errorf("parseTemplate(%q) shows a secret: %v", c.raw, err)
			}
		}
	}
}

// Whatever a name holds, the server finds it whole where the template has it, and
// nothing else has changed.
func FuzzRender(f *testing.F) {
	for _, name := range sinktest.Awkward() {
		f.Add(name, "q")
		f.Add("n", name)
	}
	tmpl, err := parseTemplate("https://user:pass@host.example:8443/v1/x-{namespace}.d/{task_queue}?fixed=1&n={namespace}&q={task_queue}")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, namespace, queue string) {
		u, err := tmpl.render(driver.Delivery{Namespace: namespace, TaskQueue: queue})
		if err != nil {
			if !strings.Contains("/"+namespace+"/"+queue, ".") {
				t.Fatalf("refused without a dot: %v", err)
			}
			return
		}
		got, err := url.Parse(u.String())
		if err != nil {
			t.Fatal(err)
		}
		if got.Scheme != "https" || got.Host != "host.example:8443" || got.User != nil || got.Fragment != "" {
			t.Fatalf("%q, %q changed the origin: %s", namespace, queue, u)
		}
		segments := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
		if len(segments) != 3 || segments[0] != "v1" {
			t.Fatalf("%q, %q changed the path: %s", namespace, queue, u)
		}
		if s, err := url.PathUnescape(segments[1]); err != nil || s != "x-"+namespace+".d" {
			t.Fatalf("namespace %q came out as %q, %v", namespace, s, err)
		}
		if s, err := url.PathUnescape(segments[2]); err != nil || s != queue {
			t.Fatalf("queue %q came out as %q, %v", queue, s, err)
		}
		query, err := url.ParseQuery(got.RawQuery)
		if err != nil || len(query) != 3 || query.Get("fixed") != "1" || query.Get("n") != namespace || query.Get("q") != queue {
			t.Fatalf("%q, %q changed the query: %s", namespace, queue, u)
		}
		for i := range len(u.String()) {
			if c := u.String()[i]; c <= ' ' || c >= 0x7f {
				t.Fatalf("byte %q in %q", c, u)
			}
		}
	})
}

// A template that is taken always gives a URL with the host that it was parsed
// with, and one that is refused shows no secret.
func FuzzParseTemplate(f *testing.F) {
	for _, raw := range []string{
		"http://h/{namespace}", "https://u:hunter2@h:1/?a={task_queue}", "http://h/%2e/{namespace}", "http://[::1%25a]/",
		"http://h\\@e", "http://h?{namespace}", "HTTP://u:hunter2{@h",
	} {
		f.Add(raw, "..")
	}
	f.Fuzz(func(t *testing.T, raw, name string) {
		tmpl, err := parseTemplate(raw)
		if err != nil {
			if strings.Contains(raw, "hunter2") && strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("shows a secret: %v", err)
			}
			return
		}
		u, err := tmpl.render(driver.Delivery{Namespace: name, TaskQueue: name})
		if err != nil {
			return
		}
		if u.Host != tmpl.origin.Host || u.Scheme != tmpl.origin.Scheme || u.User != nil || u.EscapedPath() != u.RawPath && u.RawPath != "" {
			t.Fatalf("%q with %q became %q", raw, name, u)
		}
		if _, err := url.Parse(u.String()); err != nil {
			t.Fatal(err)
		}
	})
}

// Whatever user, password, path and query values a URL has, none of 4 bytes or more is left in
// a text that went through the redactor, in the forms in which a server may repeat them.
func FuzzRedactor(f *testing.F) {
	f.Add("user", "hunter2", "T0B0/s3cret", "sesame", "401: {} is wrong, {}")
	f.Add("u", "päss wörd", "a b/ü", "a+b", "{}")
	f.Add("aaaa", "aaaaaaaa", "aaaaa", "aaaaaa", "{}{}{}")
	f.Fuzz(func(t *testing.T, user, password, path, key, text string) {
		raw := "https://" + url.UserPassword(user, password).String() + "@h.example/" + url.PathEscape(path) + "?key=" + url.QueryEscape(key)
		tmpl, err := parseTemplate(raw)
		if err != nil {
			return
		}
		for _, secret := range []string{password, url.QueryEscape(password), strings.Trim(path, "/"), url.PathEscape(path), key, url.QueryEscape(key)} {
			if len(secret) < minSecret || strings.Contains("[hidden]", secret) {
				continue
			}
			// Texts around it that make no secret of their own with it.
			got := tmpl.redactor().Replace("\x00" + secret + "\x00" + strings.ReplaceAll(text, "{}", "\x00"+secret+"\x00"))
			if first := strings.SplitN(got, "\x00", 3); len(first) == 3 && strings.Contains(first[1], secret) {
				t.Fatalf("%q: %q is left in %q", raw, secret, got)
			}
		}
	})
}
