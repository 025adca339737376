package sysroot

import (
	"bytes"
	"iter"
)

// StatFields are the fields of the stat file of a process or a thread, by their numbers in proc_pid_stat(5). The first
// one is 3: the name before it may hold anything.
func StatFields(text []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		number := 3
		for field := range bytes.FieldsSeq(text[bytes.LastIndexByte(text, ')')+1:]) {
			if !yield(number, field) {
				return
			}
			number++
		}
	}
}
