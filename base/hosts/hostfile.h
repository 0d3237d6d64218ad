/* hostfile.h - the hosts and slots that a job may use: hostfiles, `-H` lists, include and exclude filters.
 *
 * Pure: text in, a pool of hosts out; nothing is looked up or contacted. The text is hostile. Texts that DeepSpeed
 * accepts keep their meaning. Texts that it accepts by accident (slots=2.5, 4gpus, slots=0, a host that starts with
 * '-') are refused with their position.
 *
 *   hostfile := line*
 *   line     := blank | '#' anything | HOST blanks 'slots=' N [blanks 'max_slots=' M] ['#' anything]
 *   -H list  := HOST ':' N (',' HOST ':' N)*
 *   filter   := NODE ('@' NODE)*
 *   NODE     := HOST [':' SLOT (',' SLOT)*]
 *   SLOT     := N | N '-' N
 *   HOST     := [user '@'] (name | IPv4 | IPv6); an IPv6 address stands in brackets wherever a ':' may follow
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_HOSTS_HOSTFILE_H
#define DSC_BASE_HOSTS_HOSTFILE_H

#include "base/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DSC_HOST_NAME_BYTES = 320,   /* user (64) + '@' + a DNS name (253) + NUL */
    DSC_HOST_SLOTS_MAX = 1024,   /* of one host */
    DSC_HOST_COUNT_MAX = 16384,  /* of one pool */
    DSC_HOSTFILE_BYTES_MAX = 8 * 1024 * 1024,
};

typedef struct dsc_host {
    char name[DSC_HOST_NAME_BYTES]; /* [user@]host; an IPv6 address in its shortest form, without brackets */
    int32_t slot_count;             /* bits set in slot_bits */
    uint64_t slot_bits[DSC_HOST_SLOTS_MAX / 64];
} dsc_host;

/* Hosts in rank order, no name twice. Plain value; host[] is owned by the pool. */
typedef struct dsc_host_pool {
    dsc_host *host;
    int64_t count;
    int64_t capacity;
    uint32_t *index; /* hash table of host number + 1 by name */
    int64_t index_count;
    dsc_alloc *alloc;
} dsc_host_pool;
#define DSC_HOST_POOL_INIT { NULL, 0, 0, NULL, 0, NULL }

void dsc_host_pool_close(dsc_host_pool *pool); /* safe on a DSC_HOST_POOL_INIT; leaves one */
/* Copies *host to the end. The caller knows that the name is new and the pool not full. */
DSC_MUST_USE dsc_status dsc_host_pool_add(dsc_host_pool *pool, const dsc_host *host, dsc_error *err);

/* Each fills an empty pool (DSC_HOST_POOL_INIT) that the caller closes also after an error. */

/* A whole hostfile; `name` starts the `where` of every error ("hosts:3:7"). No host at all is an error. */
DSC_MUST_USE dsc_status dsc_hostfile_parse(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                                           dsc_host_pool *out, dsc_error *err);
/* Reads and parses the file. A file that is not there or cannot be read is DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_hostfile_read(dsc_alloc *alloc, const char *path, dsc_host_pool *out, dsc_error *err);
/* The argument of -H; `flag` starts the `where` ("-H:5"). */
DSC_MUST_USE dsc_status dsc_hostlist_parse(dsc_alloc *alloc, const char *flag, const char *text, dsc_host_pool *out,
                                           dsc_error *err);
/* One host with slots 0..slot_count-1. */
DSC_MUST_USE dsc_status dsc_host_pool_single(dsc_alloc *alloc, const char *name, int32_t slot_count, dsc_host_pool *out,
                                             dsc_error *err);

/* True when every comma-separated part has the form name:digits and no '/': then `-H` means a list, not a file. */
bool dsc_hostlist_looks_like_one(const char *text);

/* Keeps (exclude: drops) what the filter names, in the pool's order, and drops hosts without slots. Unknown hosts and
 * slots and an empty result are errors. After an error the pool is unchanged. */
DSC_MUST_USE dsc_status dsc_host_pool_filter(dsc_host_pool *pool, const char *flag, const char *text, bool exclude,
                                             dsc_error *err);

/* Keeps the first host_count hosts, and the first rank_count slots of those; at least one of each. */
void dsc_host_pool_keep(dsc_host_pool *pool, int64_t host_count, int64_t rank_count);

int64_t dsc_host_pool_find(const dsc_host_pool *pool, const char *name); /* -1: none. Host names ignore case. */
int64_t dsc_host_pool_slots(const dsc_host_pool *pool);                  /* of all hosts */

static inline bool dsc_host_has_slot(const dsc_host *host, int32_t slot)
{
    return ((host->slot_bits[slot / 64] >> (slot % 64)) & 1) != 0;
}
void dsc_host_set_slots(dsc_host *host, int32_t slot_count); /* slots 0..slot_count-1 */
void dsc_host_count_slots(dsc_host *host);                   /* slot_count from slot_bits */
void dsc_host_pool_drop_empty(dsc_host_pool *pool);          /* hosts without slots */

/* Checks text[0..bytes) as a HOST and writes its canonical form to out. On failure *why says what is wrong and *at is
 * the offset of the byte that is. */
bool dsc_host_name_scan(const char *text, size_t bytes, char out[DSC_HOST_NAME_BYTES], const char **why, size_t *at);

#ifdef __cplusplus
}
#endif
#endif
