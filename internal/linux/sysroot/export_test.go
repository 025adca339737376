package sysroot

// MaskSecrets is for the fuzz test, which needs fixtures.
var MaskSecrets = maskSecrets
