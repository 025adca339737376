//go:build ignore

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Counts, by CPU group, how long requests to block devices took, and whose requests the device did meanwhile. Nothing is
// sent for an event: user space reads the maps. docs/suspects.md tells what is counted; `make bpf` builds this file.
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
struct task_group {
	struct cgroup_subsys_state css;
};
struct task_struct {
	unsigned int flags;
	struct task_group *sched_task_group;
};
struct blkcg {
	struct cgroup_subsys_state css;
};
struct blkcg_gq {
	struct blkcg *blkcg;
};
struct bio {
	struct blkcg_gq *bi_blkg;
};
struct gendisk {
	int major;
	int first_minor;
};
struct request_queue {
	struct gendisk *disk; // 5.15
};
struct request {
	struct request_queue *q;
	u32 cmd_flags;
	u32 __data_len;
	struct bio *bio;
	struct gendisk *rq_disk; // before 5.17
	u64 start_time_ns;
};
enum req_flag_bits {
	__REQ_SYNC = 11,
};

#pragma clang attribute pop

#define PF_KTHREAD 0x00200000
#define OPERATION 0xff // in cmd_flags
#define READ 0
#define WRITE 1

#define REQUESTS_BITS 14
#define SEGMENTS 128 // a power of two
#define DEPTH 8      // how many directories above its own a thread's group is looked for

// What user space sets before the programs are loaded.
const volatile u32 slots = 16; // how many there are, of groups and the two below

// The slots that are no group's: threads outside of groups, and what the kernel's own threads write for nobody knows
// whom: page cache and journals. THE_SAME is the slot of whoever waits: the device did nothing for others.
#define OUTSIDE 0
#define WRITTEN_BACK 1
#define THE_SAME (~0u)

// A request, from when it is told to the device, or its scheduler, until it is done. Requests that share an entry, by
// their addresses, are not told apart: of the one that came first its bio tells the owner, if at all.
struct asked {
	u64 request; // 0: none
	u64 since;
	u32 slot;
	bool waits; // a thread of the group does: it asked itself, to read, or to write at once
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << REQUESTS_BITS);
	__type(key, u32);
	__type(value, struct asked);
} requests SEC(".maps");

// The slot of a group, by the number of a directory of it: in the hierarchy of the CPU controller, and in that of the
// block devices' one, in which bios have their owner.
struct directories {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); // set by user space
	__type(key, u64);
	__type(value, u32);
};
struct directories groups SEC(".maps");
struct directories owners SEC(".maps");

// For whom a device worked, one after the other: a ring. A device works for who is done next, from when that one asked
// or the one before was done. Neighbours that are of one group are one segment.
struct segment {
	u64 end;
	u64 slot;
};

struct device {
	struct bpf_spin_lock lock;
	u32 next; // where the next segment will be put
	struct segment ring[SEGMENTS];
};

// The devices that are counted, by their numbers: those that do what they are asked for themselves.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct device);
} devices SEC(".maps");

// What was counted of a slot. Times are in nanoseconds, of the requests that somebody waits for. waited = older + what
// blame has of it.
struct count {
	u64 waited;
	u64 older; // it waited before the oldest segment of the ring
	u64 done;  // requests, also those that nobody waits for
	u64 lost;  // of these those whose beginning was not seen
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // slots
	__type(key, u32);
	__type(value, struct count);
} counts SEC(".maps");

// For how many nanoseconds requests of a slot waited while devices worked for another one.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // slots * slots
	__type(key, u32);
	__type(value, u64);
} blame SEC(".maps");

// slot_of is the slot of the nearest group at or above a directory.
static __always_inline u32 slot_of(void *known, struct cgroup_subsys_state *css)
{
	int i;

	for (i = 0; i < DEPTH && css; i++) {
		u64 id = css->cgroup->kn->id;
		u32 *slot = bpf_map_lookup_elem(known, &id);

		if (slot)
			return *slot;
		css = css->parent;
	}
	return OUTSIDE;
}

// owner_of is the slot of whom the kernel itself works for.
static __always_inline u32 owner_of(struct request *rq)
{
	u32 slot = OUTSIDE;

	if (rq->bio && bpf_core_field_exists(rq->bio->bi_blkg) && rq->bio->bi_blkg)
		slot = slot_of(&owners, &rq->bio->bi_blkg->blkcg->css);
	if (slot == OUTSIDE && (rq->cmd_flags & OPERATION) == WRITE)
		return WRITTEN_BACK;
	return slot;
}

// number_of is a number that no other request has: its address, as far as the verifier lets calculate with that.
static __always_inline u64 number_of(struct request *rq)
{
	return (u64)rq - (u64)&slots;
}

static __always_inline struct asked *entry_of(u64 number)
{
	u32 at = number * 0x9e3779b97f4a7c15ull >> (64 - REQUESTS_BITS);

	return bpf_map_lookup_elem(&requests, &at);
}

static __always_inline int begin(struct request *rq)
{
	struct task_struct *p = bpf_get_current_task_btf();
	u64 number = number_of(rq);
	struct asked *a = entry_of(number);
	u32 sync = 1 << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC);
	u64 since = rq->start_time_ns; // 0: the queue keeps no statistics

	if (!a || (a->request == number && (!since || a->since == since))) // it was put into a scheduler, or comes back
		return 0;
	if (p->flags & PF_KTHREAD) {
		a->slot = owner_of(rq);
		a->waits = 0;
	} else {
		u32 operation = rq->cmd_flags & OPERATION;

		a->slot = slot_of(&groups, &p->sched_task_group->css);
		a->waits = a->slot != OUTSIDE && (operation == READ || (operation == WRITE && rq->cmd_flags & sync));
	}
	a->since = since ? since : bpf_ktime_get_ns();
	a->request = number;
	return 0;
}

SEC("tp_btf/block_rq_insert")
int BPF_PROG(count_insert, struct request *rq)
{
	return begin(rq);
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(count_issue, struct request *rq)
{
	return begin(rq);
}

// put adds a segment. The lock of the device is held.
static __always_inline void put(struct device *d, u32 slot, u64 end)
{
	struct segment *last = &d->ring[(d->next - 1) & (SEGMENTS - 1)];

	if (last->end && last->slot == slot) {
		last->end = end;
		return;
	}
	last = &d->ring[d->next & (SEGMENTS - 1)];
	last->end = end;
	last->slot = slot;
	d->next++;
}

static __always_inline void add_blame(u32 waited, u32 worked, u64 ns)
{
	u32 at = waited * slots + worked;
	u64 *sum = bpf_map_lookup_elem(&blame, &at);

	if (sum)
		__sync_fetch_and_add(sum, ns);
}

// end adds up what a request of a slot has waited, where next is behind the last segment. Others may write the ring
// meanwhile: behind that, and long after it over the oldest.
static __always_inline void end(struct device *d, u32 next, u32 slot, struct count *n, u64 from, u64 until)
{
	u32 i;

	__sync_fetch_and_add(&n->waited, until - from);
	for (i = 1; i < SEGMENTS && until > from; i++) {
		struct segment *s = &d->ring[(next - i) & (SEGMENTS - 1)];
		u64 start = d->ring[(next - i - 1) & (SEGMENTS - 1)].end;
		u32 worked = s->slot;

		if (!start)
			break;
		if (start < from)
			start = from;
		if (start < until) {
			add_blame(slot, worked == THE_SAME ? slot : worked, until - start);
			until = start;
		}
	}
	if (until > from)
		__sync_fetch_and_add(&n->older, until - from);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(count_complete, struct request *rq, int error, unsigned int bytes)
{
	u64 now = bpf_ktime_get_ns(), since = 0, last, number = number_of(rq);
	struct asked *a = entry_of(number);
	struct gendisk *disk;
	struct device *d;
	struct count *n;
	u32 disk_number, slot, next;
	bool waits = 0, lost;

	if (!a || bytes < rq->__data_len) // the rest follows
		return 0;
	if (bpf_core_field_exists(rq->q->disk))
		disk = rq->q->disk;
	else
		disk = rq->rq_disk;
	disk_number = disk->major << 20 | disk->first_minor;
	d = bpf_map_lookup_elem(&devices, &disk_number);
	lost = a->request != number;
	if (!lost) {
		slot = a->slot;
		since = a->since;
		waits = a->waits;
		a->request = 0;
	}
	if (!d)
		return 0;
	if (lost) {
		slot = owner_of(rq);
		since = rq->start_time_ns;
	}
	n = bpf_map_lookup_elem(&counts, &slot);
	if (!n)
		return 0;
	__sync_fetch_and_add(&n->done, 1);
	if (lost)
		__sync_fetch_and_add(&n->lost, 1);
	bpf_spin_lock(&d->lock);
	last = d->ring[(d->next - 1) & (SEGMENTS - 1)].end;
	if (last && since > last && since < now)
		put(d, THE_SAME, since);
	if (now > last)
		put(d, slot, now);
	next = d->next;
	bpf_spin_unlock(&d->lock);
	if (waits && since < now)
		end(d, next, slot, n, since, now);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
