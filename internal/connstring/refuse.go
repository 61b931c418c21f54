package connstring

// Error is why a connection string is refused. Neither text repeats any of it.
type Error struct {
	Problem string // why, for example "the connection settings are not a valid URL ..."
	Hint    string // what to do
}

func (e *Error) Error() string { return e.Problem }

func refuse(problem, hint string) error {
	return &Error{"the connection settings " + problem + " (not shown here: they may hold a password)", hint}
}

const (
	encode = "In a URL, percent-encode special characters in user and password: @ is %40, / is %2F, # is %23, ? is %3F, % is %25."
	forms  = "Give a postgres:// URL, or keyword=value pairs separated by spaces; put a value with spaces into single quotes."
)

// isName reports whether s can be the name of a keyword or of a setting of the server.
func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i] | 0x20
		if !('a' <= c && c <= 'z' || s[i] == '_' || i > 0 && ('0' <= s[i] && s[i] <= '9' || s[i] == '.')) {
			return false
		}
	}
	return s != ""
}
