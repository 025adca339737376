package settings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine"
)

// Large is memory that a server asks for in pages of a pool when it is told to use them.
type Large struct {
	Name  string // "innodb_buffer_pool_size"
	Bytes int64  // of one piece: each begins in a page of its own
	Times int64  // pieces
	From  string // where the setting was read
}

const mib = 1 << 20

// largeTable are the settings of a MySQL that are in sums of Large alone. Those with no default have one that others
// decide.
var largeTable = []setting{
	{"input.buffer", "innodb_buffer_pool_size", "128M", bytesForm},
	{"input.chunk", "innodb_buffer_pool_chunk_size", "0", bytesForm},
	{"input.pools", "innodb_buffer_pool_instances", "0", numberForm},
	{"input.most", "innodb_buffer_pool_size_max", "0", bytesForm},
	{"input.page", "innodb_page_size", "16K", bytesForm},
	{"input.keyblock", "key_cache_block_size", "1024", bytesForm},
	{"input.aria", "aria_pagecache_buffer_size", "128M", bytesForm},
}

// fewHave are those of them that not every version has.
var fewHave = []string{"input.chunk", "input.pools", "input.most"}

const (
	// leastPool is what a server takes for its buffer pool where it is told less.
	leastPool = 5 * mib
	// mostLarge is more than any server can have: 1 PiB, and so many pieces.
	mostLarge = 1 << 50
	// mostPools is how many pieces a server divides its buffer pool into at most.
	mostPools = 64
)

// Large gives what a MySQL takes of a pool of pages of a size with large_pages, after the source of each flavour. The
// error says which setting is not known. Other engines take none that their settings tell.
func (s Settings) Large(inst engine.Instance, page int64) (all []Large, err error) {
	if inst.Engine != engine.MySQL || s.get == nil {
		return nil, nil
	}
	values := fact.Values{}
	for _, one := range append(tableOf(inst), largeTable...) {
		values[one.fact] = one.value(s.get)
	}
	dedicated(s.get, values)
	if v := values["instance.buffer"]; v.Unknown != "" { // innodb_dedicated_server
		return nil, errors.New("innodb_buffer_pool_size: " + v.Unknown)
	}
	read := inputs{values: values, asked: s.version != ""}
	add := func(l Large) {
		if l.Bytes >= page { // what is smaller is asked for in the usual pages
			all = append(all, l)
		}
	}
	pool, poolFrom := read.number("input.buffer")
	key, keyFrom := read.number("input.key")
	chunk, _ := read.number("input.chunk")
	size, _ := read.number("input.page")
	if read.err != nil {
		return nil, read.err
	}
	pool = max(pool, leastPool)
	version := cmp.Or(s.version, inst.Version)
	if inst.Flavor != engine.MariaDB {
		pools, _ := read.number("input.pools")
		add(mysqlPool(pool, chunk, pools, size, version, poolFrom))
		if version != "" && !fact.Since(version, "8.0") {
			add(Large{"key_buffer_size", key, 1, keyFrom})
		}
		return all, read.err
	}
	most, _ := read.number("input.most")
	aria, ariaFrom := read.number("input.aria")
	log, logFrom := read.number("input.log")
	block, _ := read.number("input.keyblock")
	if read.err != nil {
		return nil, read.err
	}
	logs := Large{"innodb_log_buffer_size", log, 2, logFrom} // one is filled while the other is written
	for _, l := range mariaPool(pool, chunk, most, page, version, poolFrom) {
		add(l)
	}
	add(Large{"blocks of key_buffer_size", cacheBlocks(key, block, keyDescribed), 1, keyFrom})
	add(Large{"pages of aria_pagecache_buffer_size", cacheBlocks(aria, 8<<10, ariaDescribed), 1, ariaFrom})
	add(logs)
	return all, read.err
}

// inputs are settings that sums are made of.
type inputs struct {
	values fact.Values
	asked  bool  // a server does not tell what its version does not have
	err    error // of the first that is not known
}

// number gives one, with where it was read.
func (i *inputs) number(name string) (n int64, from string) {
	v := i.values[name]
	n, known := v.Is.(int64)
	switch {
	case i.err != nil:
	case !known && !(i.asked && slices.Contains(fewHave, name)):
		i.err = errors.New(v.Unknown)
	case n < 0 || n > mostLarge || n == 0 && name == "input.page":
		i.err = fmt.Errorf("%s is %d, with which no server runs", v.From, n)
	}
	return n, v.From
}

// up is n rounded up to a multiple of step.
func up(n, step int64) int64 { return (n + step - 1) / step * step }

// described is what the caches of MariaDB take beside their blocks, in usual pages: for each block, and at all.
type described struct{ block, all int64 }

// A block of the key cache has a BLOCK_LINK of 112 bytes and two HASH_LINKs of 48, and there are two lists of changed
// blocks with 512 places each (init_simple_key_cache in mf_keycache.c). What a page of Aria's has is measured: with
// MariaDB 10.11 on x86-64, of 24 random sizes.
var (
	keyDescribed  = described{208, 8 << 10}
	ariaDescribed = described{368, 16 << 10}
)

// cacheBlocks is what of a cache are its blocks, after init_simple_key_cache and init_pagecache of MariaDB: beside them
// are their descriptions, and a table of places of 8 bytes, the power of two that is not below the number of blocks
// (next_power doubles it).
func cacheBlocks(cache, block int64, d described) int64 {
	const place = 8
	n := cache / max(block+d.block+place*5/4, 1)
	table := int64(1)
	for table < n {
		table *= 2
	}
	table *= 2
	return min(n, max(cache-place*table-d.all, 0)/max(block+d.block, 1)) * block
}

// mysqlPool is the buffer pool of MySQL and Percona Server: chunks of each of its instances, and in each the
// descriptions of its pages.
func mysqlPool(pool, chunk, pools, size int64, version, from string) Large {
	const gib = 1 << 30
	if chunk <= 0 {
		chunk = 128 * mib
	}
	if pools <= 0 {
		pools = 1
		if pool >= gib && (version == "" || !fact.Since(version, "8.4")) {
			pools = 8
		} else if pool > gib { // half of the chunks, at most a quarter of the CPUs; more pieces are no more memory
			pools = min(max(pool/chunk/2, 1), mostPools)
		}
	}
	pools = min(pools, mostPools)
	if chunk*pools > pool {
		chunk = up(pool/pools, mib)
	}
	const described = 400 // bytes at most for each page
	n := up(pool, chunk*pools) / chunk
	return Large{"innodb_buffer_pool_size", chunk + chunk/size*described, n, from}
}

// mariaPool is the buffer pool of MariaDB: chunks, and one piece since 10.11.12 and 11.4.6, which is to begin at a
// multiple of 8 MiB. To find such a place the server asks for up to 6 MiB more at its start. By where the kernel places
// that, it gives them back or keeps them: of 13 starts with the same settings it kept them in five.
func mariaPool(pool, chunk, most, page int64, version, from string) []Large {
	const extent = 8 * mib
	whole := version == "" || fact.Since(version, "11.4.6") ||
		fact.Since(version, "10.11.12") && !fact.Since(version, "11")
	if whole {
		list := []Large{{"innodb_buffer_pool_size", up(max(pool, most), extent), 1, from}}
		if more := extent/page - 1; more > 0 {
			list = append(list, Large{"to find a place for the buffer pool", page, more, "MariaDB since 10.11.12"})
		}
		return list
	}
	if chunk <= 0 {
		chunk = 128 * mib
		if fact.Since(version, "10.8") {
			chunk = max(up(pool/64, page), page)
		}
	}
	chunk = min(chunk, pool)
	return []Large{{"innodb_buffer_pool_size", chunk, up(pool, chunk) / chunk, from}}
}

// The settings of PostgreSQL about the size of huge pages, and how many of them its shared memory takes, which only the
// server tells (15).
var (
	hugePageSize = setting{"input.huge_page", "huge_page_size", "0", kilosForm}
	hugeNeeded   = setting{"input.huge_needed", "shared_memory_size_in_huge_pages", "", numberForm}
)

// Huge gives what a PostgreSQL says: the size of the huge pages that it asks for in bytes, 0 for the host's default,
// and how many it needs.
func (s Settings) Huge(inst engine.Instance) (size, needed fact.Value) {
	if inst.Engine != engine.PostgreSQL || s.get == nil {
		none := fact.Unknown("it is no PostgreSQL whose settings were read")
		return none, none
	}
	return hugePageSize.value(s.get), hugeNeeded.value(s.get)
}
