//go:build ignore

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Counts, by CPU group, how long threads that could run had no CPU, and who had it meanwhile. Nothing is sent for an
// event: user space reads the maps. docs/suspects.md tells what is counted; `make bpf` builds this file.

#include "kernel.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rq {
	u64 clock;
};
// Which of the times below there is depends on the kernel.
struct cfs_rq {
	struct rq *rq;
	u64 throttled_clock_self; // 6.6: since when it is held back
	u64 throttled_clock_self_time;
	u64 throttled_clock_pelt_time; // 5.19
	u64 throttled_clock_task_time; // before
};
struct sched_entity {
	struct cfs_rq *cfs_rq;
};
struct sched_info {
	unsigned long pcount;
	unsigned long long run_delay;
	unsigned long long last_arrival;
	unsigned long long last_queued;
};
struct thread_info {
	u32 cpu;
};
struct task_struct {
	struct thread_info thread_info;
	u32 cpu; // where thread_info has none
	int pid;
	int on_rq;
	unsigned int __state;
	struct sched_info sched_info; // CONFIG_SCHED_INFO
	struct task_group *sched_task_group;
	struct sched_entity se;
};
struct task_struct___old { // before 5.14
	long state;
};

#pragma clang attribute pop

#define TASK_ON_RQ_MIGRATING 2

#define THREADS 32768 // a power of two
#define SEGMENTS 64   // a power of two
#define FOUND 64      // a power of two
#define DEPTH 8       // how many directories above its own a thread's group is looked for

// What user space sets before the programs are loaded.
const volatile u32 slots = 16; // how many there are, of groups and the two below

// What was found out in an earlier generation is void: user space begins one when groups change.
volatile u32 generation = 1;

// The slots that are no group's: everything outside of groups, and a CPU that has nothing to run.
#define OUTSIDE 0
#define IDLE 1

// What a thread of a group had when it left its CPU, or was taken to another one. Threads whose numbers are equal modulo
// THREADS share an entry: it is known of the one that came last. Since when a thread waits, the kernel knows itself
// (sched_info.last_queued, by the clock of the run queue).
struct thread {
	u64 delay; // for how long it had waited, in all (sched_info.run_delay)
	u64 held;  // for how long limits had held back its group on its CPU
	u64 queue; // that of its group on its CPU
	u32 pid;   // 0: nobody
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THREADS);
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

// The slot of a group, by the number of a directory of it in the hierarchy of the CPU controller.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); // set by user space
	__type(key, u64);
	__type(value, u32);
} groups SEC(".maps");

// Who ran on a CPU, one after the other: a ring. Neighbours that are of one group are one segment.
struct segment {
	u64 end;
	u64 slot;
};

// Which slot a directory has, also one that is below a group's, or outside, as was found out on a CPU, and for how long
// limits have held it back there: a limit does so from when a thread of it leaves the CPU, or wakes up, until one comes
// back.
struct found {
	u64 id;
	u64 held;   // when a thread of it came or left last
	u64 before; // and before the last time that it was held back
	u64 back;   // when a thread came after that time; 0: none was seen yet
	u32 slot;
	u32 generation;
};

struct cpu {
	u64 first; // when the first switch was seen: nothing before it counts
	u64 since; // when what runs now began; 0: nothing was seen yet
	u64 id;    // the directory of what runs now
	u64 queue; // of its group on this CPU
	u32 slot;  // of what runs now
	u32 next;  // where the segment that runs now will be put
	struct segment ring[SEGMENTS];
	struct found found[FOUND];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // CPUs
	__type(key, u32);
	__type(value, struct cpu);
} cpu_state SEC(".maps");

// What was counted of a slot on a CPU, in nanoseconds. waited = limited + older + what blame has of it. All of a CPU's
// counts are written under the lock of its run queue.
struct count {
	u64 ran;
	u64 waited;
	u64 limited; // it was held back by a limit of its group, or of one above
	u64 older;   // it waited before the oldest segment of the ring
	u64 waits;
	u64 voluntary;
	u64 involuntary;
	u64 lost; // waits whose beginning is not known
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // CPUs * slots
	__type(key, u32);
	__type(value, struct count);
} counts SEC(".maps");

// For how many nanoseconds a slot waited on a CPU while another one ran there.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // CPUs * slots * slots
	__type(key, u32);
	__type(value, u64);
} blame SEC(".maps");

static __always_inline u32 cpu_of(struct task_struct *p)
{
	if (bpf_core_field_exists(p->thread_info.cpu))
		return p->thread_info.cpu;
	if (bpf_core_field_exists(p->cpu))
		return p->cpu;
	return bpf_get_smp_processor_id();
}

// found_of is what is known of the directory of a thread, with the slot of the nearest group at or above it. Where that
// is only found out now, no thread of it was seen. The lock of the CPU's run queue is held.
static __always_inline struct found *found_of(struct task_struct *p, struct cpu *c)
{
	struct cgroup_subsys_state *css = &p->sched_task_group->css;
	u64 id = css->cgroup->kn->id;
	struct found *f = &c->found[id % FOUND];
	u32 now = generation, slot = OUTSIDE;
	int i;

	if (f->id == id && f->generation == now)
		return f;
	f->id = id;
	for (i = 0; i < DEPTH && css; i++) {
		u32 *known = bpf_map_lookup_elem(&groups, &id);

		if (known) {
			slot = *known;
			break;
		}
		css = css->parent;
		id = css->cgroup->kn->id;
	}
	f->back = 0;
	f->slot = slot;
	f->generation = now;
	return f;
}

// THROTTLED is for how long limits have held back a group on a CPU, by the clock of its run queue. Two ways to read the
// same: by a pointer whose type the verifier knows, and by any.
#define DIRECT(q, field) ((q)->field)
#define ANY(q, field) BPF_CORE_READ(q, field)
#define THROTTLED(read, q) ({                                                              \
	u64 time = 0;                                                                      \
	if (bpf_core_field_exists((q)->throttled_clock_self_time)) {                       \
		u64 start = read(q, throttled_clock_self);                                 \
		time = read(q, throttled_clock_self_time);                                 \
		if (start) {                                                               \
			struct rq *rq = read(q, rq);                                       \
			u64 clock = read(rq, clock);                                       \
			if (clock > start)                                                 \
				time += clock - start;                                     \
		}                                                                          \
	} else if (bpf_core_field_exists((q)->throttled_clock_pelt_time)) {                \
		time = read(q, throttled_clock_pelt_time);                                 \
	} else if (bpf_core_field_exists((q)->throttled_clock_task_time)) {                \
		time = read(q, throttled_clock_task_time);                                 \
	}                                                                                  \
	time;                                                                              \
})

// clock_of is the time by the clock of the run queue that a thread is on, which the scheduler has just read: to ask for
// the time costs more. What is waited for on a CPU goes by one clock; those of two CPUs may differ where the kernel has
// none that is the same on all.
static __always_inline u64 clock_of(struct task_struct *p)
{
	return p->se.cfs_rq->rq->clock;
}

static __always_inline struct count *count_of(u32 cpu, u32 slot)
{
	u32 at = cpu * slots + slot;

	return bpf_map_lookup_elem(&counts, &at);
}

static __always_inline void add_blame(u32 cpu, u32 waited, u32 ran, u64 ns)
{
	u32 at = (cpu * slots + waited) * slots + ran;
	u64 *sum = bpf_map_lookup_elem(&blame, &at);

	if (sum)
		*sum += ns;
}

static __always_inline struct thread *thread_of(u32 pid)
{
	u32 at = pid % THREADS;

	return bpf_map_lookup_elem(&threads, &at);
}

// limited_of is for how much of a wait on a CPU limits held back the group of a thread, by what they had when it began:
// either they have held it back but once since then, or it is known of the thread. What they had at its end is held. Of
// a thread that woke up meanwhile it may be too much: what came between the end of that and the first thread of its
// group that ran, and what was before it woke up, at most until that one ran.
static __always_inline u64 limited_of(struct task_struct *p, struct found *f, u64 held, u64 now, u64 waited)
{
	u64 since = now - waited, had = f->held, limited, most = waited;
	struct thread *t;

	if (!f->back) // no thread of it was seen here
		return 0;
	if (since < f->back) {
		t = thread_of(p->pid);
		had = t && t->pid == p->pid && t->queue == (u64)p->se.cfs_rq ? t->held : f->before;
		most = f->back - since + held - f->held;
	}
	limited = held - had;
	if (limited > most)
		limited = most;
	if ((long long)limited <= 0)
		return 0;
	// Before 6.6 the time is that of a clock which may run slower: the limit has all of such a wait.
	if (limited > waited || !bpf_core_field_exists(((struct cfs_rq *)0)->throttled_clock_self_time))
		return waited;
	return limited;
}

// note notes what limits have had by now.
static __always_inline void note(struct found *f, u64 held, u64 now)
{
	if (f->back && held == f->held)
		return;
	f->before = f->back ? f->held : held;
	f->held = held;
	f->back = now;
}

// end adds up what a thread of a group has waited on a CPU, whose ring goes as far as now.
static __always_inline void end(struct count *n, u64 waited, u64 limited, struct cpu *c, u32 id, u32 slot, u64 now)
{
	u64 from, until = now;
	u32 i, last = c->next - 1;

	n->waits++;
	n->waited += waited;
	n->limited += limited;
	from = now - waited + limited; // first it was held back, then others ran
	for (i = 0; i < SEGMENTS - 1 && until > from; i++) {
		struct segment *s = &c->ring[(last - i) & (SEGMENTS - 1)];
		u64 start = c->ring[(last - i - 1) & (SEGMENTS - 1)].end;

		if (!start)
			break;
		if (start < from)
			start = from;
		if (start < until) {
			add_blame(id, slot, s->slot, until - start);
			until = start;
		}
	}
	if (until > from)
		n->older += until - from;
}

// close ends the segment that runs on a CPU.
static __always_inline void close(struct cpu *c, u64 now)
{
	struct segment *last = &c->ring[(c->next - 1) & (SEGMENTS - 1)];

	if (last->end && last->slot == c->slot) {
		last->end = now;
		return;
	}
	if (!last->end) { // the first one: it is known since when it runs, and nothing of before
		last->end = c->since;
		last->slot = ~0ULL;
	}
	last = &c->ring[c->next & (SEGMENTS - 1)];
	last->end = now;
	last->slot = c->slot;
	c->next++;
}

// leave notes what a thread of a group has that leaves its CPU.
static __always_inline void leave(struct task_struct *p, struct cpu *c)
{
	u64 held = THROTTLED(DIRECT, p->se.cfs_rq);
	struct found *f = &c->found[c->id % FOUND];
	struct thread *t = thread_of(p->pid);

	if (f->id == c->id && c->queue == (u64)p->se.cfs_rq) // else it has gone to another group since it came
		f->held = held;
	if (!t)
		return;
	t->delay = p->sched_info.run_delay;
	t->held = held;
	t->queue = (u64)p->se.cfs_rq;
	t->pid = p->pid;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(count_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now = clock_of(prev), since, held, waited;
	u32 id = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpu_state, &id);
	struct found *f;
	struct count *n;
	long state;

	if (!c)
		return 0;
	if (bpf_core_field_exists(prev->__state))
		state = prev->__state;
	else
		state = ((struct task_struct___old *)prev)->state;
	if (c->since) {
		close(c, now);
		n = count_of(id, c->slot);
		if (n && now > c->since)
			n->ran += now - c->since;
		if (n && prev->pid) {
			if (preempt || !state)
				n->involuntary++;
			else
				n->voluntary++;
			if (c->slot != OUTSIDE)
				leave(prev, c);
		}
	} else {
		c->first = now;
	}
	c->since = now;
	if (!next->pid) {
		c->slot = IDLE;
		return 0;
	}
	f = found_of(next, c);
	c->slot = f->slot;
	c->id = f->id;
	c->queue = (u64)next->se.cfs_rq;
	if (f->slot == OUTSIDE)
		return 0;
	n = count_of(id, f->slot);
	if (!n)
		return 0;
	held = THROTTLED(DIRECT, next->se.cfs_rq);
	since = next->sched_info.last_queued;
	waited = now - (since && since < c->first ? c->first : since);
	if (!since || (long long)waited < 0) // it had to leave when it was about to sleep
		n->lost++;
	else
		end(n, waited, limited_of(next, f, held, now, waited), c, id, f->slot, now);
	note(f, held, now);
	return 0;
}

// A thread goes to another CPU. When it waits, the lock of the run queue that it leaves is held, and the kernel has just
// added up what it has waited there.
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(count_migrate, struct task_struct *p, int to)
{
	struct thread *t = thread_of(p->pid);
	struct cfs_rq **all, *q = 0;
	bool known;

	if (!t)
		return 0;
	known = t->pid == p->pid && t->delay <= p->sched_info.run_delay; // else it is of one that had its number
	if (p->on_rq == TASK_ON_RQ_MIGRATING) {
		u64 now = clock_of(p), waited = p->sched_info.run_delay;
		u32 id = cpu_of(p);
		struct cpu *c = bpf_map_lookup_elem(&cpu_state, &id);
		struct found *f;
		struct count *n;

		if (!c)
			return 0;
		f = found_of(p, c);
		if (f->slot == OUTSIDE)
			return 0;
		n = count_of(id, f->slot);
		if (!n)
			return 0;
		if (known)
			waited -= t->delay;
		// More than it had time for is of before it was in a group.
		if (p->sched_info.pcount && (!known || waited > now - p->sched_info.last_arrival)) {
			n->lost++;
		} else if (waited && c->since) {
			struct count *running = count_of(id, c->slot);
			u64 held = THROTTLED(DIRECT, p->se.cfs_rq);

			if (running && now > c->since)
				running->ran += now - c->since;
			close(c, now);
			c->since = now;
			if (waited > now - c->first)
				waited = now - c->first;
			end(n, waited, limited_of(p, f, held, now, waited), c, id, f->slot, now);
			note(f, held, now);
		}
	} else if (!known) { // it sleeps, and is of no group, or was not seen
		return 0;
	}
	all = p->sched_task_group->cfs_rq;
	bpf_probe_read_kernel(&q, sizeof(q), all + to);
	t->delay = p->sched_info.run_delay;
	t->held = THROTTLED(ANY, q);
	t->queue = (u64)q;
	t->pid = p->pid;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
