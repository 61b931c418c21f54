package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// browser is a tab of a Chromium of its own.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	troubles []string // what the browser complains about: errors of scripts, what the policy refused
}

// findChromium is the path of a Chromium. A machine that has none skips the test, but for CI.
func findChromium(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const none = "no Chromium: install Debian's package chromium, or say where one is in CHROMIUM"
	if os.Getenv("FAIRCLAIM_CI") == "" {
		t.Skip(none)
	}
	t.Fatal(none)
	return ""
}

// oneBrowser keeps the tests that need a browser from starting several at a time.
var oneBrowser sync.Mutex

// openBrowser starts a browser that ends with the test.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path := findChromium(t)
	oneBrowser.Lock()
	t.Cleanup(oneBrowser.Unlock)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx)
		cancel()
	})
	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1200, 800)); err != nil { // a time limit on the first call would be one of the browser
		t.Fatal(err)
	}
	go func() {
		for message, err := range chromedp.Console(ctx) {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.troubles = append(b.troubles, fmt.Sprintf("%+v", message))
			b.mu.Unlock()
		}
	}()
	return b
}

// within gives an action patience.
func (b *browser) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, patience())
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("in the browser: %v", err)
	}
}

// eval evaluates JavaScript.
func eval[T any](b *browser, script string) T {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil && !errors.Is(err, chromedp.ErrJSUndefined) {
		b.t.Fatalf("%v in: %s", err, script)
	}
	return v
}

// open goes to a page.
func (b *browser) open(address string) {
	b.t.Helper()
	b.do(chromedp.Navigate(address))
}

// text is what the page shows.
func (b *browser) text() string {
	b.t.Helper()
	return strings.Join(strings.Fields(eval[string](b, "document.querySelector('main')?.innerText ?? ''")), " ")
}

// shows waits until the page shows all texts, in this order.
func (b *browser) shows(what string, wanted ...string) {
	b.t.Helper()
	var text string
	defer func() {
		if b.t.Failed() {
			b.t.Logf("%s, at the end: %s", what, text)
		}
	}()
	eventually(b.t, fmt.Sprintf("%s shows %q", what, wanted), func() bool {
		time.Sleep(50 * time.Millisecond)
		text = b.text()
		rest := strings.ToLower(text)
		for _, want := range wanted {
			_, after, found := strings.Cut(rest, strings.ToLower(want))
			if !found {
				return false
			}
			rest = after
		}
		return true
	})
}

// click clicks what the selector finds, and waits for the page that it leads to.
func (b *browser) click(selector string) {
	b.t.Helper()
	mark := fmt.Sprintf("mark%d", time.Now().UnixNano())
	eval[bool](b, "document.documentElement.dataset.mark = '"+mark+"', true")
	b.do(chromedp.Click(chromedp.CSS(selector)))
	eventually(b.t, selector+" leads to a page", func() bool {
		time.Sleep(20 * time.Millisecond)
		return eval[bool](b, "document.readyState === 'complete' && document.documentElement.dataset.mark !== '"+mark+"'")
	})
}

// fill writes into a field, in place of what is there.
func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SetValue(chromedp.CSS(selector), text))
}

// well fails for what the browser complained about.
func (b *browser) well() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, trouble := range b.troubles {
		b.t.Errorf("the browser complains: %s", trouble)
	}
}

// scheme has the browser prefer light or dark.
func (b *browser) scheme(name string) {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// noScript forbids scripts, or allows them again.
func (b *browser) noScript(off bool) {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	if _, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: off}); err != nil {
		b.t.Fatal(err)
	}
}
