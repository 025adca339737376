package blockdev

// ASMGroup reads the start of a disk.
var ASMGroup = asmGroup
