// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// What the BPF programs here have in common: parts of the kernel's types, by which they find the group of a thread.
// Offsets are taken from the BTF of the kernel that runs (CO-RE), so one object fits all kernels.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef _Bool bool;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id;
};
struct cgroup {
	struct kernfs_node *kn;
};
struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};
struct cfs_rq;
struct task_group {
	struct cgroup_subsys_state css;
	struct cfs_rq **cfs_rq; // by CPU
};

#pragma clang attribute pop
