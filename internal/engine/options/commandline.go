package options

import (
	"slices"
	"strings"
)

// LongOptions reads a command line of options: "--name=value", "--name value", "-name value" as Go's flag
// package has it, and the short ones named. A name that is followed by another option, or by nothing, has
// the value "". Underscores in names read as dashes. The last one of a name wins.
func LongOptions(args []string, short map[string]string) map[string]string {
	opts := make(map[string]string)
	if len(args) == 0 {
		return opts
	}
	rest := args[1:]
	for i := 0; i < len(rest); i++ {
		name, value, given := strings.Cut(rest[i], "=")
		long, known := short[name]
		switch {
		case known:
			name = long
		case strings.HasPrefix(name, "--") && len(name) > 2:
			name = name[2:]
		case !strings.HasPrefix(name, "-") || len(name) < 2:
			continue
		default:
			if long, known = short[name[:2]]; known && !given { // "-p3306"
				opts[long] = name[2:]
				continue
			}
			name = name[1:]
		}
		if !given && i+1 < len(rest) && !strings.HasPrefix(rest[i+1], "-") {
			value = rest[i+1] // and may be an operand of its own: it is looked at again
		}
		opts[strings.ReplaceAll(name, "_", "-")] = value
	}
	return opts
}

// Operands are the arguments that are no options; the value of an option is among them where nothing tells
// that it is one.
func Operands(args []string) []string {
	var all []string
	for i, arg := range args {
		if i > 0 && !strings.HasPrefix(arg, "-") {
			all = append(all, arg)
		}
	}
	return all
}

// JavaOptions reads the system properties and the class path of a Java virtual machine.
func JavaOptions(args []string) (props map[string]string, classpath string) {
	props = make(map[string]string)
	for i, arg := range args {
		if def, ok := strings.CutPrefix(arg, "-D"); ok {
			name, value, _ := strings.Cut(def, "=")
			props[name] = value
		}
		if (arg == "-cp" || arg == "-classpath" || arg == "--class-path") && i+1 < len(args) {
			classpath = args[i+1]
		}
	}
	return props, classpath
}

// HasOption says whether one of the options stands among the arguments.
func HasOption(args []string, any ...string) bool {
	return len(args) > 1 && slices.ContainsFunc(args[1:], func(a string) bool { return slices.Contains(any, a) })
}
