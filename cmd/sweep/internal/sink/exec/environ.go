package exec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/stamp"
	"github.com/fairclaim/fairclaim/driver"
)

// maxVariable is the longest NAME=value that Linux accepts, in bytes: MAX_ARG_STRLEN less
// the closing NUL.
const maxVariable = 128<<10 - 1

// passedOn returns the variables of environ that a command may see: all but DATABASE_URL
// and libpq's PG*, which hold the credentials of the database, and FAIRCLAIM_* and SWEEP_*.
func passedOn(environ []string) []string {
	var kept []string
	for _, variable := range environ {
		name, _, _ := strings.Cut(strings.ToUpper(variable), "=")
		switch {
		case name == "DATABASE_URL",
			strings.HasPrefix(name, "PG"),
			strings.HasPrefix(name, "FAIRCLAIM_"),
			strings.HasPrefix(name, "SWEEP_"):
		default:
			kept = append(kept, variable)
		}
	}
	return kept
}

// facts returns the environment variables that describe a message. An error is final: the
// message does not fit into an environment.
func facts(m driver.Delivery) ([]string, error) {
	headers := []byte("{}")
	if len(m.Headers) > 0 {
		var err error
		if headers, err = json.Marshal(m.Headers); err != nil {
			return nil, fmt.Errorf("encode headers: %w", err)
		}
	}
	variables := []string{
		"FAIRCLAIM_ID=" + strconv.FormatInt(m.ID, 10),
		"FAIRCLAIM_NAMESPACE=" + m.Namespace,
		"FAIRCLAIM_TASK_QUEUE=" + m.TaskQueue,
		"FAIRCLAIM_DISPATCH_KEY=" + m.DispatchKey,
		"FAIRCLAIM_ATTEMPT=" + strconv.FormatInt(int64(m.Attempt), 10),
		"FAIRCLAIM_CREATED_AT=" + stamp.Text(m.CreatedAt),
		"FAIRCLAIM_DUE_AT=" + stamp.Text(m.DueAt),
		"FAIRCLAIM_CLAIMED_AT=" + stamp.Text(m.ClaimedAt),
		"FAIRCLAIM_CONTENT_TYPE=" + m.ContentType,
		"FAIRCLAIM_HEADERS=" + string(headers),
	}
	for _, v := range variables {
		name, _, _ := strings.Cut(v, "=")
		if len(v) > maxVariable {
			return nil, fmt.Errorf("%s would be %d bytes long, and the environment of a command takes %d", name, len(v), maxVariable)
		}
		if strings.ContainsRune(v, 0) {
			return nil, fmt.Errorf("%s would hold a NUL", name)
		}
	}
	return variables, nil
}
