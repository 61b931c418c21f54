package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	alertRules = "../deploy/prometheus/fairclaim.yml"
	alertTests = "testdata/alerts.yml"
	dashboard  = "../deploy/grafana/fairclaim.json"
)

// ofPrometheus is a program of Debian's package prometheus. A machine that has none skips the test, but for CI.
func ofPrometheus(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("FAIRCLAIM_CI") == "" {
			t.Skipf("no %s found: apt-get install prometheus", name)
		}
		t.Fatal(err)
	}
	return path
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// alertNames are the alerts that there are, in the order of the file.
func alertNames(t *testing.T) (names []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^      - alert: (\w+)$`).FindAllStringSubmatch(readFile(t, alertRules), -1) {
		names = append(names, m[1])
	}
	if len(names) < 10 {
		t.Fatalf("%s has %v", alertRules, names)
	}
	return names
}

// promtool finds nothing wrong with the alert rules, and each alert fires once, on series made for it, and not
// where all is well.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool := ofPrometheus(t, "promtool")
	dir := t.TempDir()
	for _, path := range []string{alertRules, alertTests} {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), []byte(readFile(t, path)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", "fairclaim.yml"}, {"test", "rules", "alerts.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Each alert has a test in which it fires and one in which it does not, and a heading in the documentation that its
// annotation names; and there is no such heading without an alert.
func TestAlertsAreDocumented(t *testing.T) {
	t.Parallel()
	rules, tests, doc := readFile(t, alertRules), readFile(t, alertTests), section(t, "../docs/operations.md", "## Alerts")
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(doc, -1) {
		headings = append(headings, m[1])
	}
	sameNames(t, alertNames(t), headings)
	for _, name := range alertNames(t) {
		if link := "docs/operations.md#" + strings.ToLower(name) + "\n"; strings.Count(rules, link) != 1 {
			t.Errorf("%s has no annotation with %s", name, link)
		}
		fires := regexp.MustCompile(`alertname: ` + name + `\n +exp_alerts: \[\{`)
		if !fires.MatchString(tests) || !strings.Contains(tests, "{eval_time: 40m, alertname: "+name+"}") {
			t.Errorf("%s does not have %s fire, or not be silent", alertTests, name)
		}
	}
}

// panel is what the tests look at of a panel of Grafana.
type panel struct {
	ID          int
	Type, Title string
	Description string
	Datasource  struct{ Type, UID string }
	GridPos     struct{ H, W, X, Y int }
	Targets     []struct {
		Expr       string
		Datasource struct{ Type, UID string }
	}
}

func readDashboard(t *testing.T) (panels []panel) {
	t.Helper()
	var d struct {
		Title, UID    string
		SchemaVersion int
		Panels        []panel
		Templating    struct {
			List []struct{ Name, Type string }
		}
	}
	if err := json.Unmarshal([]byte(readFile(t, dashboard)), &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 39 || len(d.Templating.List) != 2 || d.Templating.List[0].Type != "datasource" {
		t.Errorf("the dashboard is %+v", d)
	}
	return d.Panels
}

// The dashboard is one that Grafana can load: panels have ids of their own and do not overlap, and each asks
// the data source that is chosen.
func TestDashboard(t *testing.T) {
	t.Parallel()
	ids, cells, rows := map[int]bool{}, map[[2]int]string{}, []string{}
	for _, p := range readDashboard(t) {
		if ids[p.ID] {
			t.Errorf("the id %d comes twice", p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Errorf("%q overlaps with %q, or with the margin", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Description == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%q is %+v", p.Title, p)
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" || !strings.Contains(target.Expr, `job=~"$job"`) {
				t.Errorf("%q asks %+v", p.Title, target)
			}
		}
	}
	if want := []string{"Is anybody waiting?", "Why?", "What do destinations do?", "Is the database well?"}; !slices.Equal(rows, want) {
		t.Errorf("the rows are %q, want %q", rows, want)
	}
}

// prometheus is a Prometheus that scrapes nodes each second.
type prometheus struct{ url string }

// scrapeWith starts a Prometheus with rules, that scrapes these nodes.
func scrapeWith(t *testing.T, rules string, nodes ...*monitored) *prometheus {
	t.Helper()
	program := ofPrometheus(t, "prometheus")
	dir := t.TempDir()
	var targets []string
	for _, n := range nodes {
		targets = append(targets, strconv.Quote(strings.TrimPrefix(n.url, "http://")))
	}
	config := fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
  - job_name: fairclaim
    static_configs: [{targets: [%s]}]
`, strings.Join(targets, ", "))
	for name, text := range map[string]string{"prometheus.yml": config, "rules.yml": rules} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 { // another process may take the port meanwhile
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := listener.Addr().String()
		listener.Close()
		cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
			"--web.listen-address="+address, "--log.level=warn")
		cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
		p := &prometheus{url: "http://" + address}
		for {
			select {
			case <-ended:
			case <-time.After(50 * time.Millisecond):
				if _, err := p.get(t, "/-/ready"); err != nil {
					continue
				}
				return p
			}
			break
		}
	}
	t.Fatal("prometheus does not start")
	return nil
}

// get asks Prometheus, and returns what it answers with 200.
func (p *prometheus) get(t *testing.T, path string) ([]byte, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return text, err
}

// query returns how many series a query gives.
func (p *prometheus) query(t *testing.T, expr string) (series int, err error) {
	t.Helper()
	text, err := p.get(t, "/api/v1/query?query="+url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	err = json.Unmarshal(text, &answer)
	return len(answer.Data.Result), err
}

// firing are the alerts that fire.
func (p *prometheus) firing(t *testing.T) (names []string) {
	t.Helper()
	text, err := p.get(t, "/api/v1/alerts")
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatal(err)
	}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels["alertname"])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// A real Prometheus that scrapes real nodes answers every query of the dashboard with values, and has the
// main alerts fire: of shards without an owner, messages that wait on them, dead letters, a destination that
// is held, deliveries that fail, and a transaction that holds vacuum back. (Without the times that rules wait
// for, and with a second in place of the hour of that transaction.)
func TestPrometheusOfRealNodes(t *testing.T) {
	t.Parallel()
	ofPrometheus(t, "prometheus")
	db := pg.New(t)
	url, _ := answering(t)
	for namespace, n := range map[string]int{"200": 200, "400": 30, "503": 30, "wait": 10, "paused": 5} {
		fill(t, db.Pool, namespace, "q"+namespace, n, 100)
	}
	run(t, db.Pool, `select outbox.pause('paused')`)
	run(t, db.Pool, `select outbox.enqueue('later', 'q', 'later', '', delay => '1 day')`)
	run(t, db.Pool, `update outbox.pending set visible_after = now() - interval '10 min' where shard >= 8 and namespace = '200'`)
	holder := begin(t, db.Connect(t))
	run(t, holder, "select txid_current()")
	args := []string{"--sink", url + "/{namespace}", "--survey-every", "500ms", "--check-every", "2s"}
	nodes := []*monitored{
		monitor(t, db.DSN, append(args, "--node", "first", "--shards", "0-3")...),
		monitor(t, db.DSN, append(args, "--node", "second", "--shards", "4-7")...),
	}
	rules := regexp.MustCompile(`(?m)^        for: .*\n`).ReplaceAllString(readFile(t, alertRules), "")
	rules = strings.Replace(rules, "horizon_age_seconds) > 3600", "horizon_age_seconds) > 1", 1)
	p := scrapeWith(t, rules, nodes...)
	// What a series begins with is no increase.
	eventually(t, "dead letters have been scraped", func() bool {
		n, err := p.query(t, `fairclaim_messages_failed_total{task_queue="q400"} > 0`)
		return err == nil && n == 2
	})
	run(t, db.Pool, `select outbox.enqueue('400', 'q400', 'again ' || n, '') from generate_series(1, 30) as n`)

	want := []string{"FairclaimDeadLetters", "FairclaimDeliveriesFail", "FairclaimDestinationHeld", "FairclaimHorizonHeld", "FairclaimMessagesWait", "FairclaimShardsUnowned"}
	var fire []string
	defer func() { t.Logf("of the alerts, %q fire", fire) }()
	eventually(t, fmt.Sprintf("of the alerts, %q fire", want), func() bool {
		fire = p.firing(t)
		return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(fire, name) })
	})
	for _, name := range []string{"FairclaimNoSurvey", "FairclaimViolation", "FairclaimNodeHangs", "FairclaimNodeFails", "FairclaimExpiredLeases", "FairclaimSinkStuck"} {
		if slices.Contains(fire, name) {
			t.Errorf("%s fires", name)
		}
	}
	grafana := strings.NewReplacer("$__rate_interval", "1m", "$job", "fairclaim")
	queries := 0
	for _, panel := range readDashboard(t) {
		for _, target := range panel.Targets {
			queries++
			expr := grafana.Replace(target.Expr)
			eventually(t, fmt.Sprintf("%q has values: %s", panel.Title, expr), func() bool {
				n, err := p.query(t, expr)
				if err != nil {
					t.Fatalf("%q asks %s: %v", panel.Title, expr, err)
				}
				return n > 0
			})
		}
	}
	if queries < 30 {
		t.Errorf("the dashboard has %d queries", queries)
	}
	for _, m := range regexp.MustCompile(`(?m)expr: (?:>-\n(?: {10}.*\n)+|.*\n)`).FindAllString(rules, -1) {
		expr := strings.Join(strings.Fields(strings.TrimPrefix(strings.TrimPrefix(m, "expr: "), ">-")), " ")
		// What is compared must be there, whether or not it is above the limit.
		for _, name := range regexp.MustCompile(`fairclaim_\w+(?:\{[^}]*\})?`).FindAllString(expr, -1) {
			if n, err := p.query(t, name); err != nil || n == 0 {
				t.Errorf("an alert asks for %s, of which there are %d series, %v", name, n, err)
			}
		}
	}
}
