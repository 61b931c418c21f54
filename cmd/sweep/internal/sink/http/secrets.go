package http

import (
	"cmp"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
)

// minSecret is the length in bytes from which a piece of the URL is looked for in
// texts from outside: shorter ones stand everywhere, and hide nothing.
const minSecret = 4

// redactor returns a replacer that takes the URL's user, password, path and query values
// out of a text, in the forms in which servers send back what they got. Of the path it takes
// what stands between placeholders, as a whole and by segments: an incoming webhook's URL
// often is the secret itself.
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
