package integration

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// served are pages that a process serves.
type served struct {
	*sweepProcess
	url            string
	user, password string // of every request
}

// serveUI starts `sweep ui` at a free port, and waits until it listens.
func serveUI(t *testing.T, dsn string, args ...string) *served {
	t.Helper()
	return servePages(t, dsn, append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...)
}

// servePages starts a command that serves pages, and waits until it listens.
func servePages(t *testing.T, dsn string, args ...string) *served {
	t.Helper()
	s := &served{sweepProcess: &sweepProcess{name: "the pages", log: &lockedBuffer{}, done: make(chan struct{})}}
	s.cmd = sweepCall{dsn: dsn, args: args}.start(t)
	s.cmd.Stderr = io.MultiWriter(s.log, t.Output())
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
	})
	s.url = awaitPages(t, s.log)
	return s
}

// awaitPages is where a log says that pages are served.
func awaitPages(t *testing.T, log fmt.Stringer) string {
	t.Helper()
	at := regexp.MustCompile(`event=ui_listening url=(http://\S+)/ `)
	eventually(t, "pages are served", func() bool { return at.MatchString(log.String()) })
	return at.FindStringSubmatch(log.String())[1]
}

// send sends a request, and follows no redirect.
func (s *served) send(t *testing.T, method, path string, form url.Values, header http.Header) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, values := range header {
		request.Header[name] = values
		if name == "Host" {
			request.Host = values[0]
		}
	}
	if s.user != "" {
		request.SetBasicAuth(s.user, s.password)
	}
	client := http.Client{Timeout: patience(), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

// page is a page's text: without tags, with white space folded.
func (s *served) page(t *testing.T, path string) string {
	t.Helper()
	answer, body := s.send(t, http.MethodGet, path, nil, nil)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s answers %d: %s", path, answer.StatusCode, textOf(body))
	}
	return textOf(body)
}

var tags = regexp.MustCompile(`(?s)<[^>]*>`)

func textOf(body string) string {
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(body, " "))), " ")
}

// act posts a form that must be accepted, and returns what the page that it goes back to says.
func (s *served) act(t *testing.T, path string, pairs ...string) string {
	t.Helper()
	answer, body := s.send(t, http.MethodPost, path, formOf(pairs...), nil)
	if answer.StatusCode != http.StatusSeeOther {
		t.Fatalf("POST %s answers %d: %s", path, answer.StatusCode, textOf(body))
	}
	_, body = s.send(t, http.MethodGet, answer.Header.Get("Location"), nil, nil)
	done := regexp.MustCompile(`(?s)<div class="note done" role="status">(.*?)</div>`).FindStringSubmatch(body)
	if done == nil {
		t.Fatalf("after POST %s no message of what was done stands at %s:\n%s", path, answer.Header.Get("Location"), textOf(body))
	}
	return textOf(done[1])
}

func formOf(pairs ...string) url.Values {
	form := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form
}

// wantTexts fails unless all texts are there, in this order.
func wantTexts(t *testing.T, what, text string, wanted ...string) {
	t.Helper()
	rest := text
	for _, want := range wanted {
		at := strings.Index(rest, want)
		if at < 0 {
			t.Errorf("%s lacks %q (in this order: %q):\n%s", what, want, wanted, text)
			return
		}
		rest = rest[at+len(want):]
	}
}

func lacks(t *testing.T, what, text string, unwanted ...string) {
	t.Helper()
	for _, u := range unwanted {
		if strings.Contains(text, u) {
			t.Errorf("%s has %q:\n%s", what, u, text)
		}
	}
}
