package main

import "fmt"

const horizonRows = 5

// horizonAge is how long something has kept dead rows alive; empty where that is not known.
func horizonAge(seconds *int64) string {
	if seconds == nil {
		return ""
	}
	return fmt.Sprintf("%ds", *seconds)
}
