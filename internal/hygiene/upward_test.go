package hygiene

import (
	"errors"
	"flag"
	"go/ast"
	"go/types"
	"maps"
	"path"
	"slices"
	"testing"
)

// Arrows between the files of a package.
//
// An arrow runs from file A to file B when code in A names something that B declares at package level: a type,
// function, method, field, variable or constant. However often A names things of B, it is one arrow. Tests are left
// out.
//
// A reader wants to read a package from the top file down. So the files are put into the order in which the fewest
// arrows run upwards, against that order, and the share is upward arrows / all arrows. Files A and B that name each
// other cost one upward arrow of two in every order. The search starts greedily and then moves single files as long
// as that helps. It may miss the best order, so the share can be too high but never too low. The result does not
// depend on the order of the input.
//
// go/types resolves the names. It does not need the imported packages for that: with them the counts are the same.
//
// go test ./internal/hygiene -run TestArrowsInsidePackages -v -arrows prints the order and the upward arrows of
// every package.

var printArrows = flag.Bool("arrows", false, "print the order of files and the upward arrows of every package")

// maxUpward is the share of arrows that may run upwards, in percent.
const maxUpward = 15

// noImports lets go/types go on without the imported packages.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) {
	return nil, errors.New("imports are not read")
}

// fileArrows are the arrows between files: from, to, and a name that the arrow stands for.
type fileArrows map[string]map[string]string

func (a fileArrows) count() int {
	n := 0
	for _, to := range a {
		n += len(to)
	}
	return n
}

// balance is 1 for an arrow from one file to another, -1 for one back, and 0 for both or neither.
func (a fileArrows) balance(from, to string) int {
	n := 0
	if _, ok := a[from][to]; ok {
		n++
	}
	if _, ok := a[to][from]; ok {
		n--
	}
	return n
}

// findArrows finds the arrows between the files of one package.
func findArrows(files []source) fileArrows {
	fset, parsed := files[0].fset, []*ast.File{}
	for _, s := range files {
		parsed = append(parsed, s.file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: noImports{}, Error: func(error) {}}
	pkg, _ := config.Check(files[0].dir, fset, parsed, info) // fails, as no import is known
	found := fileArrows{}
	for ident, obj := range info.Uses {
		if obj.Pkg() != pkg || !ofPackage(obj) {
			continue
		}
		from, to := fset.Position(ident.Pos()).Filename, fset.Position(obj.Pos()).Filename
		if from == to {
			continue
		}
		if found[from] == nil {
			found[from] = map[string]string{}
		}
		if old, ok := found[from][to]; !ok || obj.Name() < old {
			found[from][to] = obj.Name()
		}
	}
	return found
}

// ofPackage says whether the object is declared at package level, as a method, or as a field.
func ofPackage(obj types.Object) bool {
	switch o := obj.(type) {
	case *types.Func:
		return true
	case *types.Var:
		return o.IsField() || o.Parent() == o.Pkg().Scope()
	case *types.TypeName, *types.Const:
		return o.Parent() == o.Pkg().Scope()
	}
	return false
}

// layer orders the files of a package so that few arrows run upwards, the top file first, and returns these arrows.
func layer(a fileArrows) (order []string, upward [][2]string) {
	names := map[string]bool{}
	for from, to := range a {
		names[from] = true
		for other := range to {
			names[other] = true
		}
	}
	// Greedily: next comes the file with the most arrows to those that are left, less the arrows from them.
	left := slices.Sorted(maps.Keys(names))
	for len(left) > 0 {
		best, most := 0, -len(names)-1
		for i, f := range left {
			n := 0
			for _, other := range left {
				n += a.balance(f, other)
			}
			if n > most {
				best, most = i, n
			}
		}
		order = append(order, left[best])
		left = slices.Delete(left, best, best+1)
	}
	for improved := true; improved; {
		improved = false
		for i, f := range order {
			if at := bestPlace(a, order, i); at != i {
				order = slices.Insert(slices.Delete(order, i, i+1), at, f)
				improved = true
			}
		}
	}
	for i, f := range order {
		for _, above := range order[:i] {
			if _, ok := a[f][above]; ok {
				upward = append(upward, [2]string{f, above})
			}
		}
	}
	return order, upward
}

// bestPlace returns where file i of the order causes the fewest upward arrows; i if nothing is better.
func bestPlace(a fileArrows, order []string, i int) int {
	at, most := i, 0
	for _, step := range []int{-1, 1} {
		gain := 0
		for j := i + step; j >= 0 && j < len(order); j += step {
			// The file passes order[j]: the arrows between the two change their direction.
			gain -= step * a.balance(order[i], order[j])
			if gain > most {
				at, most = j, gain
			}
		}
	}
	return at
}

// upwardArrows counts, for each package, the upward arrows beyond the share that is allowed.
func upwardArrows(all []source) map[string]int {
	found := map[string]int{}
	for dir, files := range packages(all) {
		a := findArrows(files)
		_, upward := layer(a)
		if more := len(upward) - maxUpward*a.count()/100; more > 0 {
			found[dir] = more
		}
	}
	return found
}

func TestArrowsInsidePackages(t *testing.T) {
	a := findArrows([]source{
		parse(t, "internal/x/top.go", `package x; import "os"; func top() { var m middle; m.do(); os.Exit(bottom) }`),
		parse(t, "internal/x/middle.go", `package x; type middle struct{}; func (middle) do() { _ = bottom }`),
		parse(t, "internal/x/bottom.go",
			`package x; const bottom = 1; func up() { top(); var bottom, do int; _, _ = bottom, do }`),
	})
	order, upward := layer(a)
	if want := []string{"internal/x/top.go", "internal/x/middle.go", "internal/x/bottom.go"}; !slices.Equal(order,
		want) {
		t.Errorf("the order is %q, want %q", order, want)
	}
	if want := [][2]string{{"internal/x/bottom.go", "internal/x/top.go"}}; !slices.Equal(upward, want) ||
		a.count() != 4 {
		t.Errorf("%d arrows, of which %q run upwards, want 4 and %q", a.count(), upward, want)
	}
	if !*printArrows {
		return
	}
	all := packages(sources(t))
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		a := findArrows(all[dir])
		order, upward := layer(a)
		t.Logf("%s: %d of %d arrows run upwards", dir, len(upward), a.count())
		for i, f := range order {
			order[i] = path.Base(f)
		}
		t.Logf("    order: %v", order)
		for _, u := range upward {
			t.Logf("    up: %s to %s, for example %s", path.Base(u[0]), path.Base(u[1]), a[u[0]][u[1]])
		}
	}
}
