package ui

import (
	"fmt"
	"strings"
	"time"
)

// Size of a line, in the units of its drawing.
const (
	lineWidth  = 100
	lineHeight = 22
)

// Line is a drawing of how long the oldest due message of a tenant has waited in the last minutes. It
// rises while nothing is served, and falls as soon as something is.
type Line struct {
	Points string // of an SVG polyline
	Label  string // in words
}

// drawn is the samples as a line that ends at now; nil where there is nothing to draw.
func (w waits) drawn(now time.Time, waited time.Duration) *Line {
	samples := append(w.line, sample{at: now.Unix(), waited: float32(waited.Seconds())})
	from := now.Add(-lineLength).Unix()
	for len(samples) > 1 && samples[0].at < from {
		samples = samples[1:]
	}
	most, least := float32(1), samples[0].waited
	for _, s := range samples {
		most, least = max(most, s.waited), min(least, s.waited)
	}
	if len(samples) < 2 || most <= 1 && waited < time.Second {
		return nil
	}
	points := make([]string, len(samples))
	for i, s := range samples {
		x := 1 + float64(max(s.at-from, 0))/lineLength.Seconds()*(lineWidth-2)
		y := lineHeight - 2 - float64(s.waited/most)*(lineHeight-4)
		points[i] = fmt.Sprintf("%.1f,%.1f", x, y)
	}
	length := span(time.Duration(now.Unix()-samples[0].at) * time.Second)
	seconds := func(s float32) string { return span(time.Duration(s) * time.Second) }
	return &Line{
		Points: strings.Join(points, " "),
		Label:  fmt.Sprintf("Wait over the last %s: between %s and %s, %s now.", length, seconds(least), seconds(most), span(waited)),
	}
}
