package node

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// Only what certainly ran on this machine, in this container, and does no more, is gone.
func TestProcessGone(t *testing.T) {
	t.Parallel()
	self := thisProcess()
	if runtime.GOOS != "linux" {
		t.Skip("whether a process is gone is told on Linux alone")
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	other := process{host: self.host, pid: child.Process.Pid, scope: self.scope, start: processStart(child.Process.Pid)}
	alive := other.String()
	for name, tc := range map[string]struct {
		text string
		gone bool
	}{
		"itself":                       {self.String(), false},
		"another that runs":            {alive, false},
		"a number that is used again":  {strings.Replace(alive, "/"+other.start+"/", "/1/", 1), true},
		"a number that nobody has":     {process{self.host, 1 << 30, self.scope, "7"}.String(), true},
		"of another host":              {process{"elsewhere", 1 << 30, self.scope, "7"}.String(), false},
		"of a host of a longer name":   {process{self.host + "2", 1 << 30, self.scope, "7"}.String(), false},
		"of another container or boot": {process{self.host, 1 << 30, "00000000", "7"}.String(), false},
		"of an older release":          {fmt.Sprintf("%s pid %d ABCDEF", self.host, 1<<30), false},
		"nothing":                      {"", false},
		"a text of somebody's own":     {self.host + " pid x a/b/c", false},
	} {
		if got := self.gone(tc.text); got != tc.gone {
			t.Errorf("%s (%q): gone is %v", name, tc.text, got)
		}
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if !self.gone(alive) {
		t.Error("a killed one is not gone")
	}
}
