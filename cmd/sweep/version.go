package main

import (
	"context"
	"runtime"
	"runtime/debug"
)

type versionCmd struct{ jsonFlag }

type versionInfo struct {
	Version  string `json:"version"` // of the module; "(devel)" for a build from a work tree
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Schema   uint   `json:"schema"` // the newest version that this program installs
}

// versionFlag is the flag --version, which does what the command version does.
type versionFlag bool

// BeforeReset is called by kong before it demands a command and reads the environment:
// --version needs neither.
func (versionFlag) BeforeReset(a *app) error {
	if err := (&versionCmd{}).Run(context.Background(), a); err != nil {
		return err
	}
	return errShown
}

func (versionCmd) Help() string {
	return `Needs no database.

Examples:

    sweep version
    sweep version --json`
}

// Run prints the version.
func (c *versionCmd) Run(_ context.Context, a *app) error {
	info, err := readVersion()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(info)
	}
	revision := info.Revision
	if info.Modified {
		revision += " modified"
	}
	if revision != "" {
		revision = " (" + revision + ")"
	}
	return a.printf("sweep %s%s, schema %d, %s", info.Version, revision, info.Schema, info.Go)
}

// readVersion reads what the Go toolchain has written into the program.
func readVersion() (versionInfo, error) {
	info := versionInfo{Version: "unknown", Go: runtime.Version()}
	if build, ok := debug.ReadBuildInfo(); ok {
		if build.Main.Version != "" {
			info.Version = build.Main.Version
		}
		for _, s := range build.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Revision = s.Value
			case "vcs.modified":
				info.Modified = s.Value == "true"
			}
		}
	}
	var err error
	info.Schema, err = newestSchema()
	return info, err
}
