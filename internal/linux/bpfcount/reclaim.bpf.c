//go:build ignore

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Counts, by CPU group, for how long threads that want memory had to take it from others first (reclaim), and why: a
// limit, or a host that is short of it. Nothing is sent for an event: user space reads the maps. docs/suspects.md tells
// what is counted; `make bpf` builds this file.

#include "kernel.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct {
	int pid;
	struct task_group *sched_task_group;
};

#pragma clang attribute pop

#define THREADS 32768  // a power of two
#define DEPTH 8        // how many directories above its own a thread's group is looked for
#define EPOCH_SHIFT 35 // an epoch has 34 s

// Why a thread is in reclaim: a limit on memory of its group, or of one above; or the host has too little that is free.
#define LIMIT 0
#define HOST 1

// The slot that is no group's: threads outside of groups.
#define OUTSIDE 0

// A thread that is in reclaim. Threads whose numbers are equal modulo THREADS share an entry: of two that are in reclaim
// at a time only the earlier one is counted.
struct inside {
	u32 pid; // 0: nobody
	u32 slot;
	u32 why;
	u32 epoch;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THREADS);
	__type(key, u32);
	__type(value, struct inside);
} threads SEC(".maps");

// The slot of a group, by the number of a directory of it in the hierarchy of the CPU controller.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); // set by user space
	__type(key, u64);
	__type(value, u32);
} groups SEC(".maps");

// What was counted of a slot, up to a time. Of threads that began in an epoch before the last one it is not known
// whether they are still in reclaim: they are forgotten, so that one whose end was not seen does not count for ever.
struct stalls {
	struct bpf_spin_lock lock;
	u32 epoch;
	u64 at;
	u32 in[2][2];   // how many threads are in reclaim, by the epoch in which they began and why
	u64 some[2];    // nanoseconds for which at least one was, by why; of both at a time each has its threads' part
	u64 threads[2]; // the same, summed over threads
	u64 ended[2];   // how often a thread was
	u64 lost;       // how often that was not counted
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // slots
	__type(key, u32);
	__type(value, struct stalls);
} stalls SEC(".maps");

// slot_of is the slot of the nearest group at or above the directory of a thread.
static __always_inline u32 slot_of(struct task_struct *p)
{
	struct cgroup_subsys_state *css = &p->sched_task_group->css;
	int i;

	for (i = 0; i < DEPTH && css; i++) {
		u64 id = css->cgroup->kn->id;
		u32 *slot = bpf_map_lookup_elem(&groups, &id);

		if (slot)
			return *slot;
		css = css->parent;
	}
	return OUTSIDE;
}

// pass adds the time until another one. The lock of the slot is held, here and below.
static __always_inline void pass(struct stalls *s, u64 to)
{
	u64 limit = s->in[0][LIMIT] + s->in[1][LIMIT], host = s->in[0][HOST] + s->in[1][HOST], ns = to - s->at;

	if ((long long)ns <= 0) // another CPU is ahead
		return;
	s->at = to;
	if (limit + host) {
		u64 part = ns * limit / (limit + host);

		s->some[LIMIT] += part;
		s->some[HOST] += ns - part;
		s->threads[LIMIT] += ns * limit;
		s->threads[HOST] += ns * host;
	}
}

// advance does so up to now, from epoch to epoch. reclaim.go has the same, for threads that are in reclaim while it is
// read what was counted.
static __always_inline void advance(struct stalls *s, u64 now)
{
	u32 epoch = now >> EPOCH_SHIFT;
	int i;

	for (i = 0; i < 2 && (int)(epoch - s->epoch) > 0; i++) {
		s->epoch++;
		pass(s, (u64)s->epoch << EPOCH_SHIFT);
		s->in[s->epoch & 1][LIMIT] = 0;
		s->in[s->epoch & 1][HOST] = 0;
	}
	if ((int)(epoch - s->epoch) > 0) // nobody is left
		s->epoch = epoch;
	pass(s, now);
}

// leave ends what is known of a thread.
static __always_inline void leave(struct inside *t, u64 now, bool lost)
{
	u32 slot = t->slot, why = t->why & 1;
	struct stalls *s = bpf_map_lookup_elem(&stalls, &slot);

	t->pid = 0;
	if (!s)
		return;
	bpf_spin_lock(&s->lock);
	advance(s, now);
	if (s->epoch - t->epoch < 2)
		s->in[t->epoch & 1][why]--;
	else
		lost = 1;
	if (lost)
		s->lost++;
	else
		s->ended[why]++;
	bpf_spin_unlock(&s->lock);
}

static __always_inline int begin(u32 why)
{
	struct task_struct *p = bpf_get_current_task_btf();
	u32 pid = p->pid, at = pid % THREADS, slot = slot_of(p);
	struct inside *t = bpf_map_lookup_elem(&threads, &at);
	u64 now = bpf_ktime_get_ns();
	struct stalls *s;

	if (!t || slot == OUTSIDE)
		return 0;
	if (t->pid == pid)
		leave(t, now, 1);
	else if (t->pid && (u32)(now >> EPOCH_SHIFT) - t->epoch < 2)
		return 0;
	s = bpf_map_lookup_elem(&stalls, &slot);
	if (!s)
		return 0;
	t->slot = slot;
	t->why = why;
	bpf_spin_lock(&s->lock);
	advance(s, now);
	t->epoch = s->epoch;
	s->in[t->epoch & 1][why]++;
	bpf_spin_unlock(&s->lock);
	t->pid = pid;
	return 0;
}

static __always_inline int end(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	u32 pid = p->pid, at = pid % THREADS, slot;
	struct inside *t = bpf_map_lookup_elem(&threads, &at);
	struct stalls *s;

	if (!t)
		return 0;
	if (t->pid == pid) {
		leave(t, bpf_ktime_get_ns(), 0);
		return 0;
	}
	slot = slot_of(p);
	s = bpf_map_lookup_elem(&stalls, &slot);
	if (!s || slot == OUTSIDE)
		return 0;
	bpf_spin_lock(&s->lock);
	s->lost++;
	bpf_spin_unlock(&s->lock);
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int count_limit_end(void *ctx)
{
	return end();
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int count_host_end(void *ctx)
{
	return end();
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int count_limit(void *ctx)
{
	return begin(LIMIT);
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int count_host(void *ctx)
{
	return begin(HOST);
}

char LICENSE[] SEC("license") = "GPL";
