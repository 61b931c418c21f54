package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: ${enum}."`
}

func (completionCmd) Help() string {
	return `Prints a script that makes the shell complete commands, flags, and values that are one of a few. It is made from the command line's own definitions. Needs no database.

Examples:

    sweep completion bash > /etc/bash_completion.d/sweep
    source <(sweep completion bash)
    sweep completion zsh > "${fpath[1]}/_sweep"
    sweep completion fish > ~/.config/fish/completions/sweep.fish`
}

// Run prints the script.
func (c *completionCmd) Run(parser *kong.Kong, a *app) error {
	places := completionPlaces(parser.Model.Node, "")
	script := map[string]func([]completionPlace) string{
		"bash": completionBash, "zsh": completionZsh, "fish": completionFish,
	}[c.Shell]
	return a.printf("%s", strings.TrimRight(script(places), "\n"))
}

// completionPlace is a command, and what may follow it.
type completionPlace struct {
	path     string // "/migrate/up"; "" for sweep itself
	commands []completionWord
	flags    []completionWord
}

// completionWord is a command or a flag, with its dashes.
type completionWord struct {
	word, help string
	takesValue bool
	values     []string // that it takes, where they are few
}

// completionPlaces are a command and all below it.
func completionPlaces(node *kong.Node, path string) []completionPlace {
	place := completionPlace{path: path}
	for _, group := range node.AllFlags(true) {
		for _, flag := range group {
			w := completionWord{word: "--" + flag.Name, help: firstSentence(flag.Help), takesValue: !flag.IsBool() && !flag.IsCounter()}
			if flag.Enum != "" {
				w.values = strings.Split(flag.Enum, ",")
			}
			place.flags = append(place.flags, w)
		}
	}
	var below []completionPlace
	for _, child := range node.Children {
		if child.Hidden {
			continue
		}
		place.commands = append(place.commands, completionWord{word: child.Name, help: firstSentence(child.Help)})
		below = append(below, completionPlaces(child, path+"/"+child.Name)...)
	}
	for _, arg := range node.Positional {
		if arg.Enum != "" {
			for _, value := range strings.Split(arg.Enum, ",") {
				place.commands = append(place.commands, completionWord{word: value})
			}
		}
	}
	slices.SortFunc(place.flags, func(a, b completionWord) int { return strings.Compare(a.word, b.word) })
	return append([]completionPlace{place}, below...)
}

// firstSentence is the beginning of a help text, without its period.
func firstSentence(text string) string {
	if before, _, ok := strings.Cut(text, ". "); ok {
		text = before
	}
	return strings.TrimSuffix(text, ".")
}

func completionWords(words []completionWord) string {
	var out []string
	for _, w := range words {
		out = append(out, w.word)
	}
	return strings.Join(out, " ")
}

// completionValues gives the flags that take a value: those with a few values, each with
// them, and the rest.
func completionValues(places []completionPlace) (few []completionWord, rest []string) {
	seen := map[string]bool{}
	for _, p := range places {
		for _, f := range p.flags {
			switch {
			case seen[f.word] || !f.takesValue:
				continue
			case f.values != nil:
				few = append(few, f)
			default:
				rest = append(rest, f.word)
			}
			seen[f.word] = true
		}
	}
	slices.Sort(rest)
	return few, rest
}

// completionWalk is the part of the scripts for bash and zsh that goes over the words before
// the cursor and finds which command they are: $at is "/migrate/up" then. Names are such that
// neither shell gives them a meaning.
func completionWalk(places []completionPlace) string {
	few, rest := completionValues(places)
	for _, f := range few {
		rest = append(rest, f.word)
	}
	var paths []string
	for _, p := range places[1:] {
		paths = append(paths, p.path)
	}
	return fmt.Sprintf(`    case "$word" in
      %s) skip=1; continue ;;
    esac
    case "$at/$word" in
      %s) at="$at/$word" ;;
    esac
`, strings.Join(rest, "|"), strings.Join(paths, "|"))
}

func completionBash(places []completionPlace) string {
	var b strings.Builder
	b.WriteString(`# Completion of sweep for bash, made by: sweep completion bash
_sweep() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" at="" skip="" word list=""
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [ -z "$skip" ] || { [ "$word" = "=" ] || skip=""; continue; }
` + completionWalk(places) + `  done
  if [ "$prev" = "=" ]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi
  if [ "$cur" = "=" ]; then cur=""; fi
  case "$prev" in
`)
	few, rest := completionValues(places)
	for _, f := range few {
		fmt.Fprintf(&b, "    %s) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n", f.word, strings.Join(f.values, " "))
	}
	fmt.Fprintf(&b, "    %s) COMPREPLY=(); return ;;\n  esac\n  case \"$at\" in\n", strings.Join(rest, "|"))
	for _, p := range places {
		fmt.Fprintf(&b, "    %q) list=%q; [[ \"$cur\" != -* ]] || list=%q ;;\n", p.path, completionWords(p.commands), completionWords(p.flags))
	}
	b.WriteString(`  esac
  COMPREPLY=($(compgen -W "$list" -- "$cur"))
}
complete -o default -F _sweep sweep
`)
	return b.String()
}

func completionZsh(places []completionPlace) string {
	describe := func(words []completionWord) string {
		var out []string
		for _, w := range words {
			out = append(out, "'"+strings.NewReplacer("'", `'\''`, ":", `\:`).Replace(w.word)+":"+strings.ReplaceAll(w.help, "'", `'\''`)+"'")
		}
		return strings.Join(out, " ")
	}
	var b strings.Builder
	b.WriteString(`#compdef sweep
# Completion of sweep for zsh, made by: sweep completion zsh
_sweep() {
  local at="" skip="" word
  local -a subs opts
  for word in "${(@)words[2,CURRENT-1]}"; do
    if [[ -n $skip ]]; then skip=""; continue; fi
` + completionWalk(places) + `  done
  case "${words[CURRENT-1]}" in
`)
	few, rest := completionValues(places)
	for _, f := range few {
		fmt.Fprintf(&b, "    %s) compadd -- %s; return ;;\n", f.word, strings.Join(f.values, " "))
	}
	fmt.Fprintf(&b, "    %s) _files; return ;;\n  esac\n  case \"$at\" in\n", strings.Join(rest, "|"))
	for _, p := range places {
		fmt.Fprintf(&b, "    %q) subs=(%s); opts=(%s) ;;\n", p.path, describe(p.commands), describe(p.flags))
	}
	b.WriteString(`  esac
  if [[ $PREFIX == -* ]]; then
    _describe -o flag opts
  elif (( $#subs )); then
    _describe command subs
  else
    _files
  fi
}
if [[ $funcstack[1] == _sweep ]]; then _sweep "$@"; else compdef _sweep sweep; fi
`)
	return b.String()
}

func completionFish(places []completionPlace) string {
	quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'" }
	var b strings.Builder
	b.WriteString("# Completion of sweep for fish, made by: sweep completion fish\ncomplete -c sweep -f\n")
	for _, p := range places {
		when := "__fish_use_subcommand"
		if p.path != "" {
			var parts []string
			for _, name := range strings.Split(p.path[1:], "/") {
				parts = append(parts, "__fish_seen_subcommand_from "+name)
			}
			when = strings.Join(parts, "; and ")
		}
		for _, w := range p.commands {
			here := when
			if p.path != "" {
				here += "; and not __fish_seen_subcommand_from " + completionWords(p.commands)
			}
			fmt.Fprintf(&b, "complete -c sweep -n %s -a %s -d %s\n", quote(here), w.word, quote(w.help))
		}
		for _, f := range p.flags {
			value := ""
			switch {
			case f.values != nil:
				value = " -x -a " + quote(strings.Join(f.values, " "))
			case f.takesValue:
				value = " -r"
			}
			fmt.Fprintf(&b, "complete -c sweep -n %s -l %s%s -d %s\n", quote(when), strings.TrimPrefix(f.word, "--"), value, quote(f.help))
		}
	}
	return b.String()
}
