package http

import (
	"cmp"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
)

// minSecret is the length in bytes of the shortest piece of the URL that is replaced: shorter
// ones are in every text, and are no secrets.
const minSecret = 4

// redactor returns a replacer that hides the user, the password, the path and the values of
// the query of the URL in a text of a server, in each form in which servers repeat them. Of
// the path it hides the literal parts, as a whole and by segment: the URL of an incoming
// webhook often is the secret itself.
func (t *template) redactor() *strings.Replacer {
	var secrets []string
	if t.user != nil {
		name := t.user.Username()
		password, _ := t.user.Password()
		secrets = append(secrets, name, url.QueryEscape(name), password, url.QueryEscape(password))
		secrets = append(secrets, strings.Split(t.user.String(), ":")...)
		secrets = append(secrets, base64.StdEncoding.EncodeToString([]byte(name+":"+password)))
	}
	for _, p := range t.path {
		whole := strings.Trim(p.literal, "/")
		for _, secret := range append(strings.Split(whole, "/"), whole) {
			secrets = append(secrets, secret)
			if plain, err := url.PathUnescape(secret); err == nil {
				secrets = append(secrets, plain)
			}
		}
	}
	for _, p := range t.query {
		for pair := range strings.SplitSeq(p.literal, "&") {
			_, value, ok := strings.Cut(pair, "=")
			if !ok {
				value = pair
			}
			secrets = append(secrets, value)
			if plain, err := url.QueryUnescape(value); err == nil {
				secrets = append(secrets, plain)
			}
		}
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < minSecret })
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) }) // the longest match wins
	var pairs []string
	for _, s := range secrets {
		pairs = append(pairs, s, "[hidden]")
	}
	return strings.NewReplacer(pairs...)
}
