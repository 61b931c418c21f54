package connstring

// Error is why a connection string is refused. Neither text repeats any of it.
type Error struct {
	Problem string // "the connection settings ..."
	Hint    string // what to do
}

func (e *Error) Error() string { return e.Problem }

func refuse(problem, hint string) error {
	return &Error{"the connection settings " + problem + " (they are not repeated here, a password may stand in them)", hint}
}

const (
	encode = "In a URL, percent-encode what is special in user and password: @ is %40, / is %2F, # is %23, ? is %3F, % is %25."
	forms  = "Give a postgres:// URL, or keyword=value pairs with spaces between them; a value with spaces stands in single quotes."
)

// isName reports whether a name can be that of a keyword or of a setting of the server.
func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i] | 0x20
		if !('a' <= c && c <= 'z' || s[i] == '_' || i > 0 && ('0' <= s[i] && s[i] <= '9' || s[i] == '.')) {
			return false
		}
	}
	return s != ""
}
