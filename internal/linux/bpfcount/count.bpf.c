//go:build ignore

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Counts, by CPU group, how long threads that could run had no CPU, and who had it meanwhile. Nothing is sent for an
// event: user space reads the maps. docs/suspects.md tells what is counted; `make bpf` builds this file.
//
// The types below are those parts of the kernel's that are used. Offsets are taken from the BTF of the kernel that
// runs (CO-RE), so one object fits all kernels.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

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
struct rq {
	u64 clock;
};
struct cfs_rq;
struct task_group {
	struct cgroup_subsys_state css;
	struct cfs_rq **cfs_rq; // by CPU
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
struct thread_info {
	u32 cpu;
};
struct task_struct {
	struct thread_info thread_info;
	u32 cpu; // where thread_info has none
	int pid;
	int on_cpu;
	unsigned int __state;
	struct task_group *sched_task_group;
	struct sched_entity se;
};
struct task_struct___old { // before 5.14
	long state;
};

#pragma clang attribute pop

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

// A thread that waits since a time on its CPU. Threads whose numbers are equal modulo THREADS share an entry: of two that
// wait at a time only the later one is counted. Written under the lock of the run queue that the thread is on.
struct waiter {
	u64 since;
	u64 held; // for how long limits had held back its group on its CPU
	u32 pid;  // 0: nobody
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THREADS);
	__type(key, u32);
	__type(value, struct waiter);
} waiters SEC(".maps");

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

// Which slot a directory has, also one that is below a group's, or outside, as was found out on a CPU.
struct found {
	u64 id;
	u32 slot;
	u32 generation;
};

struct cpu {
	u64 since; // when what runs now began; 0: nothing was seen yet
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
	u64 lost; // waits whose beginning was not seen
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

// slot_of is the slot of the nearest group at or above the directory of a thread. The lock of the CPU's run queue is
// held.
static __always_inline u32 slot_of(struct task_struct *p, struct cpu *c)
{
	struct cgroup_subsys_state *css = &p->sched_task_group->css;
	u64 id = css->cgroup->kn->id;
	struct found *f = &c->found[id % FOUND];
	u32 now = generation, slot = OUTSIDE;
	int i;

	if (f->id == id && f->generation == now)
		return f->slot;
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
	f->slot = slot;
	f->generation = now;
	return slot;
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

// begin notes that a thread waits from now on. One that is woken up may wait already: it was about to sleep and had to
// leave its CPU before that.
static __always_inline void begin(struct task_struct *p, u64 now, u64 held, bool woken)
{
	u32 pid = p->pid, at = pid % THREADS;
	struct waiter *w = bpf_map_lookup_elem(&waiters, &at);

	if (!w || (woken && w->pid == pid))
		return;
	w->since = now;
	w->held = held;
	w->pid = pid;
}

// end adds up what a thread of a slot has waited on a CPU, whose ring goes as far as now.
static __always_inline void end(struct waiter *w, u64 held, struct cpu *c, u32 id, u32 slot, u64 now)
{
	struct count *n = count_of(id, slot);
	u64 waited = now - w->since, limited = held - w->held, from, until = now;
	u32 i, last = c->next - 1;

	w->pid = 0;
	if (!n || (long long)waited < 0)
		return;
	if ((long long)limited < 0)
		limited = 0;
	// Before 6.6 the time is that of a clock which may run slower: the limit has all of such a wait.
	if (limited > waited || (limited && !bpf_core_field_exists(((struct cfs_rq *)0)->throttled_clock_self_time)))
		limited = waited;
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

SEC("tp_btf/sched_switch")
int BPF_PROG(count_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now = clock_of(prev);
	u32 id = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpu_state, &id);
	struct count *n;
	struct waiter *w;
	u32 pid, at, slot;
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
		}
	}
	if (prev->pid && (preempt || !state))
		begin(prev, now, THROTTLED(DIRECT, prev->se.cfs_rq), 0);
	c->since = now;
	if (!next->pid) {
		c->slot = IDLE;
		return 0;
	}
	slot = c->slot = slot_of(next, c);
	pid = next->pid;
	at = pid % THREADS;
	w = bpf_map_lookup_elem(&waiters, &at);
	if (!w)
		return 0;
	if (w->pid == pid) {
		if (slot == OUTSIDE)
			w->pid = 0;
		else
			end(w, THROTTLED(DIRECT, next->se.cfs_rq), c, id, slot, now);
	} else {
		n = count_of(id, slot);
		if (n)
			n->lost++;
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(count_wakeup, struct task_struct *p)
{
	if (!p->on_cpu) // else it runs, and only its state changes
		begin(p, clock_of(p), THROTTLED(DIRECT, p->se.cfs_rq), 1);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(count_wakeup_new, struct task_struct *p)
{
	begin(p, clock_of(p), THROTTLED(DIRECT, p->se.cfs_rq), 1);
	return 0;
}

// A thread goes to another CPU. When it waits, the lock of the run queue that it leaves is held; when it does not, it
// has no entry.
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(count_migrate, struct task_struct *p, int to)
{
	u32 pid = p->pid, at = pid % THREADS, id = cpu_of(p), slot;
	struct waiter *w = bpf_map_lookup_elem(&waiters, &at);
	struct cpu *c = bpf_map_lookup_elem(&cpu_state, &id);
	struct cfs_rq **all, *q = 0;
	u64 now;

	if (!w || !c || w->pid != pid)
		return 0;
	now = clock_of(p);
	slot = slot_of(p, c);
	if (slot != OUTSIDE) {
		if (c->since) {
			struct count *n = count_of(id, c->slot);

			if (n && now > c->since)
				n->ran += now - c->since;
			close(c, now);
			c->since = now;
		}
		end(w, THROTTLED(DIRECT, p->se.cfs_rq), c, id, slot, now);
	}
	all = p->sched_task_group->cfs_rq;
	bpf_probe_read_kernel(&q, sizeof(q), all + to);
	begin(p, now, THROTTLED(ANY, q), 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
