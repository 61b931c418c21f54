package shards_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want []int32
		err  string // part of the error, "" for none
	}{
		{text: "0", want: []int32{0}},
		{text: "0-7,12", want: []int32{0, 1, 2, 3, 4, 5, 6, 7, 12}},
		{text: " 3 - 4 , 1", want: []int32{1, 3, 4}},
		{text: "5,5,4-6", want: []int32{4, 5, 6}},
		{text: "1023", want: []int32{1023}},
		{text: "007", want: []int32{7}},
		{text: "", err: `"" is not a number`},
		{text: ",", err: `"" is not a number`},
		{text: "1,,2", err: `"" is not a number`},
		{text: "1-", err: `"" is not a number`},
		{text: "-1", err: `"" is not a number`},
		{text: "1-2-3", err: `"2-3" is not a number`},
		{text: "+1", err: `"+1" is not a number`},
		{text: "1.5", err: `"1.5" is not a number`},
		{text: "all", err: `"all" is not a number`},
		{text: "7-3", err: "7-3 runs backwards"},
		{text: "1024", err: "1024 is outside 0 to 1023"},
		{text: "0-2000000000", err: "2000000000 is outside"},
		{text: "99999999999", err: "is not a number"},
	} {
		got, err := shards.Parse(tt.text)
		switch {
		case tt.err == "" && (err != nil || !slices.Equal(got, tt.want)):
			t.Errorf("Parse(%q) = %v, %v; want %v", tt.text, got, err, tt.want)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("Parse(%q) = %v, %v; want an error with %q", tt.text, got, err, tt.err)
		}
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		shards []int32
		want   string
	}{
		{nil, ""},
		{[]int32{4}, "4"},
		{[]int32{12, 1, 0, 2, 1}, "0-2,12"},
		{[]int32{1, 2, 4, 6, 7}, "1-2,4,6-7"},
	} {
		if got := shards.Format(tt.shards); got != tt.want {
			t.Errorf("Format(%v) = %q, want %q", tt.shards, got, tt.want)
		}
	}
}

func TestChoice(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]shards.Choice{
		"auto": {Auto: true}, " all ": {}, "3,1-2": {List: []int32{1, 2, 3}},
	} {
		got := shards.Choice{Auto: true, List: []int32{9}} // what a default may have left
		if err := got.UnmarshalText([]byte(text)); err != nil || got.Auto != want.Auto || !slices.Equal(got.List, want.List) {
			t.Errorf("%q is read as %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "Auto", "auto,1", "none"} {
		if err := new(shards.Choice).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as shards", text)
		}
	}
}

// Whatever Parse takes is sorted, without repeats, in bounds, and comes back from
// Format unchanged.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"0-7,12", "1023", " 5 , 3-4", "7-3", "", "-", "0-1023", "1,1", "1024", "0-", "00012", "0x1", "2147483648", "٣"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := shards.Parse(text)
		if err != nil {
			if got != nil {
				t.Errorf("Parse(%q) gives %v beside an error", text, got)
			}
			return
		}
		if len(got) == 0 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) ||
			got[0] < 0 || got[len(got)-1] >= shards.Max {
			t.Errorf("Parse(%q) = %v", text, got)
		}
		again, err := shards.Parse(shards.Format(got))
		if err != nil || !slices.Equal(again, got) {
			t.Errorf("Parse(Format(%v)) = %v, %v", got, again, err)
		}
	})
}
