//go:build ignore

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Counts, by CPU group, how long requests to block devices took, and whose requests the device had meanwhile. Nothing is
// sent for an event: user space reads the maps. docs/suspects.md tells what is counted; `make bpf` builds this file.

#include "kernel.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

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
#define MOST_SLOTS 128
#define DEPTH 8         // how many directories above its own a thread's group is looked for
#define EPOCH_SHIFT 28  // an epoch has 0.27 s
#define COST (128 << 10) // so many bytes cost a device as much as one request more
#define SHARE_SHIFT 16

// What user space sets before the programs are loaded.
const volatile u32 slots = 16; // how many there are, of groups and the two below

// The slots that are no group's: threads outside of groups, and what the kernel's own threads write for nobody knows
// whom: page cache and journals.
#define OUTSIDE 0
#define WRITTEN_BACK 1

// What is drawn in place of a slot where there is no other request.
#define NOBODY MOST_SLOTS

// A request, from when it is told to the device, or its scheduler, until it is done. Of requests that share an entry, by
// their addresses, only the one that came first is known.
struct asked {
	u64 request; // 0: none
	u64 since;
	u64 share; // of the device, then
	u32 slot;
	u32 cost;
	u32 epoch;
	u16 suspect; // the slot of one of the other requests that the device had then, or NOBODY
	u16 waits;   // a thread of the group does: it asked itself, to read, or to write at once
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

// What a device has to do: by slot what its requests cost, of this epoch and of the one before. What began earlier is
// forgotten: the kernel does not run the programs for each end of a request, and what has ended unseen must not be blamed
// for long: a request that is in fact alone would wait for it. An epoch is longer than a request takes most disks.
struct device {
	struct bpf_spin_lock lock;
	u32 epoch;
	u64 at;    // until when share goes
	u64 share; // for how long it did what a request of cost 1 wants of it, in 1 / 2^SHARE_SHIFT ns
	u32 cost[2][MOST_SLOTS];
	u32 all[2]; // the sum of that
	u32 done;   // the slot of the request that was done last
	u32 pad;
};

// The devices that are counted, by their numbers: those that do what they are asked for themselves.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct device);
} devices SEC(".maps");

// What was counted of a slot. waited = service + what blame has of it.
struct count {
	u64 waited;  // in nanoseconds, of the requests that somebody waits for
	u64 done;    // requests, also those that nobody waits for
	u64 lost;    // those of which only the beginning was seen, or only the end
	u64 service; // the part of waited in which the device did the request itself
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // slots
	__type(key, u32);
	__type(value, struct count);
} counts SEC(".maps");

// For how many nanoseconds requests of a slot waited while devices had those of another one, or others of the same.
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

static __always_inline struct device *device_of(struct request *rq)
{
	struct gendisk *disk;
	u32 number;

	if (bpf_core_field_exists(rq->q->disk))
		disk = rq->q->disk;
	else
		disk = rq->rq_disk;
	number = disk->major << 20 | disk->first_minor;
	return bpf_map_lookup_elem(&devices, &number);
}

// turn begins another epoch, where it is time to. The lock of the device is held, here and below.
static __always_inline void turn(struct device *d, u32 epoch)
{
	u32 i, gone = epoch - d->epoch;

	if (!gone || gone >> 31) // or another CPU is ahead
		return;
	for (i = 0; i < MOST_SLOTS; i++) {
		d->cost[epoch & 1][i] = 0;
		if (gone > 1)
			d->cost[(epoch - 1) & 1][i] = 0;
	}
	d->all[epoch & 1] = 0;
	if (gone > 1)
		d->all[(epoch - 1) & 1] = 0;
	d->epoch = epoch;
}

// add adds a request, or takes it off.
static __always_inline void add(struct device *d, struct asked *a, int sign)
{
	if (d->epoch - a->epoch < 2) {
		d->cost[a->epoch & 1][a->slot & (MOST_SLOTS - 1)] += sign * a->cost;
		d->all[a->epoch & 1] += sign * a->cost;
	}
}

// advance adds up to a time what each request has had of the device: its part of the cost of all, of the time. A request
// that is alone has all of it.
static __always_inline void advance(struct device *d, u64 now)
{
	u32 all = d->all[0] + d->all[1];

	if ((long long)(now - d->at) <= 0)
		return;
	if (all)
		d->share += ((now - d->at) << SHARE_SHIFT) / all;
	d->at = now;
}

// draw gives the slot of one of the requests that a device has, each as likely as its part of the cost of all is.
static __always_inline u32 draw(struct device *d, u32 random)
{
	u32 i, sum = 0, at = (u64)(d->all[0] + d->all[1]) * random >> 32;

	for (i = 0; i < MOST_SLOTS && i < slots; i++) {
		sum += d->cost[0][i] + d->cost[1][i];
		if (sum > at)
			return i;
	}
	return NOBODY;
}

static __always_inline int begin(struct request *rq)
{
	u64 number = number_of(rq), since = rq->start_time_ns; // 0: the queue keeps no statistics
	u32 sync = 1 << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC);
	u32 operation = rq->cmd_flags & OPERATION, random;
	struct asked *a = entry_of(number), old;
	struct task_struct *p;
	struct device *d;
	struct count *n;
	bool same;

	if (!a)
		return 0;
	same = a->request == number;
	if (same && (!since || a->since == since)) // it was put into a scheduler, or comes back
		return 0;
	if (!since)
		since = bpf_ktime_get_ns();
	if (!same && a->request && (u32)(since >> EPOCH_SHIFT) - a->epoch + 1 < 3) // or one that began before it
		return 0;
	d = device_of(rq);
	if (!d)
		return 0;
	p = bpf_get_current_task_btf();
	random = bpf_get_prandom_u32();
	old = *a;
	if (same) {
		n = bpf_map_lookup_elem(&counts, &old.slot);
		if (n)
			__sync_fetch_and_add(&n->lost, 1);
	}
	a->request = 0;
	a->waits = 0;
	if (p->flags & PF_KTHREAD) {
		a->slot = owner_of(rq);
	} else {
		a->slot = slot_of(&groups, &p->sched_task_group->css);
		a->waits = a->slot != OUTSIDE && (operation == READ || (operation == WRITE && rq->cmd_flags & sync));
	}
	a->since = since;
	a->epoch = since >> EPOCH_SHIFT;
	a->cost = (COST + rq->__data_len) >> 10;
	bpf_spin_lock(&d->lock);
	advance(d, since);
	turn(d, a->epoch);
	if (same)
		add(d, &old, -1);
	a->share = d->share;
	a->suspect = draw(d, random);
	add(d, a, 1);
	bpf_spin_unlock(&d->lock);
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

static __always_inline void add_blame(u32 waited, u32 had, u64 ns)
{
	u32 at = waited * slots + had;
	u64 *sum = bpf_map_lookup_elem(&blame, &at);

	if (sum)
		__sync_fetch_and_add(sum, ns);
}

// What a request waited is the device's own time as far as the device did it. Half of the rest is blamed on one of
// those that the device had when it came, half on one of those that it has when it is done: over many requests everybody
// has his part of what the device had meanwhile. Where there was nobody at either moment, others came and went between.
SEC("tp_btf/block_rq_complete")
int BPF_PROG(count_complete, struct request *rq, int error, unsigned int bytes)
{
	u64 now = bpf_ktime_get_ns(), number = number_of(rq), waited, service;
	u32 random = bpf_get_prandom_u32(), first, last, slot;
	struct asked *a = entry_of(number);
	struct device *d;
	struct count *n;
	bool lost;

	if (!a || bytes < rq->__data_len) // the rest follows
		return 0;
	d = device_of(rq);
	if (!d)
		return 0;
	lost = a->request != number;
	slot = lost ? owner_of(rq) : a->slot;
	n = bpf_map_lookup_elem(&counts, &slot);
	if (!n)
		return 0;
	__sync_fetch_and_add(&n->done, 1);
	if (lost) {
		__sync_fetch_and_add(&n->lost, 1);
		return 0;
	}
	bpf_spin_lock(&d->lock);
	advance(d, now);
	service = (d->share - a->share) * a->cost >> SHARE_SHIFT;
	add(d, a, -1);
	last = draw(d, random);
	if (last == NOBODY)
		last = a->suspect;
	if (last == NOBODY)
		last = d->done;
	d->done = slot;
	bpf_spin_unlock(&d->lock);
	first = a->suspect;
	waited = a->waits && now > a->since ? now - a->since : 0;
	a->request = 0;
	if (!waited)
		return 0;
	if (first == NOBODY)
		first = last;
	if (service > waited)
		service = waited;
	__sync_fetch_and_add(&n->waited, waited);
	__sync_fetch_and_add(&n->service, service);
	waited -= service;
	add_blame(slot, first, waited / 2);
	add_blame(slot, last, waited - waited / 2);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
