package desired

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestShare(t *testing.T) {
	col := func(now, used int64) column { return column{ask: unlimited, now: now, used: used} }
	for _, test := range []struct {
		name    string
		columns []column
		shift   bool
		want    []int64
	}{
		{"one that has just come", []column{col(500, 0), col(500, 0), col(0, 0)}, true, []int64{334, 333, 333}},
		{"as it is", []column{col(700, 0), col(300, 0)}, false, []int64{700, 300}},
		{"too much", []column{col(701, 0), col(300, 0)}, false, []int64{500, 500}},
		{"one has gone", []column{col(500, 0), col(300, 0)}, false, []int64{500, 500}},
		{"below the floor", []column{col(900, 0), col(100, 0)}, false, []int64{500, 500}},
		{"one is hungry", []column{col(500, 490), col(500, 200)}, true, []int64{770, 230}},
		{"one is hungry, the other idle", []column{col(500, 500), col(500, 0)}, true, []int64{875, 125}},
		{"both are", []column{col(700, 700), col(300, 295)}, true, []int64{500, 500}},
		{"nobody is: evenly again", []column{col(875, 0), col(125, 0)}, true, []int64{500, 500}},
		{"not worth it", []column{col(500, 500), col(500, 430)}, true, []int64{500, 500}},
		{"less is asked", []column{{ask: unlimited, now: 500, used: 100}, {ask: 500, now: 500, used: 500}}, true,
			[]int64{500, 500}},
		{"more is asked than had", []column{{ask: unlimited, now: 700, used: 100}, {ask: 600, now: 300, used: 300}},
			true, []int64{400, 600}},
		{"too little to share", []column{col(5, 5), col(5, 0)}, true, []int64{500, 500}},
	} {
		t.Run(test.name, func(t *testing.T) {
			budget := int64(1000)
			if test.name == "too little to share" {
				budget, test.want = 10, []int64{5, 5}
			}
			if got := share(budget, test.columns, test.shift); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// However it was shared and whatever is used: never more than the budget, all of it as far as it is asked for, nobody
// above his ask or below his floor, and what was shared anew is sound.
func TestShareKeepsTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Int64Range(1, 1<<40).Draw(t, "budget")
		columns := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) column {
			return column{
				ask:  rapid.OneOf(rapid.Just(unlimited), rapid.Int64Range(1, 1<<40)).Draw(t, "ask"),
				now:  rapid.Int64Range(0, 1<<40).Draw(t, "now"),
				used: rapid.Int64Range(0, 1<<41).Draw(t, "used"),
			}
		}), 1, 8).Draw(t, "columns")
		shift := rapid.Bool().Draw(t, "shift")
		parts := share(budget, columns, shift)
		var sum, asked int64
		for i, part := range parts {
			sum += part
			asked += min(columns[i].ask, budget)
			if part > columns[i].ask || part < columns[i].floor(budget, len(columns)) {
				t.Fatalf("part %d is %d of %d", i, part, columns[i].ask)
			}
		}
		if whole := min(budget, asked); sum > budget || sum < whole-whole/1000-int64(len(columns)) {
			t.Fatalf("the parts %v add up to %d of %d", parts, sum, budget)
		}
		for i := range columns {
			columns[i].now = parts[i]
		}
		if slices.Min(parts) > 0 && !slices.Equal(share(budget, columns, false), parts) {
			t.Fatalf("%v is not kept", parts)
		}
	})
}

// Disks that are wanted unevenly come to parts that stay, and the load as a whole gets what it can.
func TestShareSettles(t *testing.T) {
	const budget = 50_000_000
	for _, demand := range [][]int64{{40e6, 15e6}, {60e6, 1e6, 1e6, 1e6}, {20e6, 20e6, 20e6, 20e6}, {30e6, 0},
		{0, 0, 0}, {45e6, 4e6, 0, 100e6}} {
		columns := make([]column, len(demand))
		for i, part := range fill(budget, slices.Repeat([]int64{unlimited}, len(demand))) {
			columns[i] = column{ask: unlimited, now: part}
		}
		changed := 0
		for round := range 10 {
			for i := range columns {
				columns[i].used = min(demand[i], columns[i].now)
			}
			parts := share(budget, columns, true)
			for i := range columns {
				if columns[i].now != parts[i] {
					changed = round + 1
				}
				columns[i].now = parts[i]
			}
		}
		var got, wanted int64
		for i, c := range columns {
			got += min(demand[i], c.now)
			wanted += demand[i]
		}
		if best := min(wanted, budget); changed > 3 || got < best*85/100 {
			t.Errorf("%v: still changing in round %d, %d of %d", demand, changed, got, best)
		}
	}
}

func TestFill(t *testing.T) {
	const all = unlimited
	for _, test := range []struct {
		budget int64
		asks   []int64
		want   []int64
	}{
		{100, []int64{all}, []int64{100}},
		{100, []int64{all, 30}, []int64{70, 30}},
		{100, []int64{all, 80}, []int64{50, 50}},
		{100, []int64{all, 10, 80}, []int64{45, 10, 45}},
		{100, []int64{all, all, all}, []int64{34, 33, 33}},
		{100, []int64{10, 20}, []int64{10, 20}},
		{2, []int64{all, 5, 5}, []int64{1, 1, 0}},
		{0, []int64{all, 5}, []int64{0, 0}},
		{100, nil, []int64{}},
	} {
		if got := fill(test.budget, test.asks); !slices.Equal(got, test.want) {
			t.Errorf("fill(%d, %v) = %v, want %v", test.budget, test.asks, got, test.want)
		}
	}
}

// The sum is the budget or all that is asked; nobody gets more than it asks; who gets less than it asks has no
// less than any other, but for the odd unit.
func TestFillIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Int64Range(0, 1<<40).Draw(t, "budget")
		asks := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 1<<40), rapid.Just(unlimited)), 1, 8).Draw(t, "asks")
		parts := fill(budget, asks)
		var sum, asked int64
		for i, part := range parts {
			sum += part
			if asked += asks[i]; asked < 0 || asks[i] == unlimited {
				asked = unlimited / 2
			}
			if part < 0 || part > asks[i] {
				t.Fatalf("part %d is %d of %d asked", i, part, asks[i])
			}
			if part < asks[i] && part+1 < slices.Max(parts) {
				t.Fatalf("part %d gets %d, another %d", i, part, slices.Max(parts))
			}
		}
		if sum != min(budget, asked) {
			t.Fatalf("the parts %v add up to %d of %d", parts, sum, budget)
		}
	})
}
