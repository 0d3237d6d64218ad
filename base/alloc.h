/* alloc.h - every byte has a tag and a tier, is counted, can be made to fail, and stops moving after step 1.
 *
 * One dsc_alloc per engine (never global). Small control structures come from dsc_alloc_zeroed, planned buffers from
 * dsc_buf_open; both count into the same table. Thread-safe. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_ALLOC_H
#define DSC_BASE_ALLOC_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Model states first (PARAM..MOMENT), then working memory. The text is what the plan table prints. */
#define DSC_TAG_MAP(X)                                  \
    X(PARAM, "params")         /* bf16 or fp32 weights the compute reads */ \
    X(GRAD, "grads")           /* accumulated gradients */                  \
    X(MASTER, "master")        /* fp32 master weights */                    \
    X(MOMENT, "moments")       /* optimizer state */                        \
    X(BUFFER, "buffers")       /* values of buffers, and their statistics of a step */ \
    X(ACTIVATION, "activations")                        \
    X(LEAF, "leaf grads")      /* one micro-batch's gradient before its reduction */ \
    X(GATHER, "gathered")      /* stage 3 parameter windows */              \
    X(COMM, "comm")            /* wire staging and transport segments */    \
    X(SCRATCH, "scratch")      /* kernel work space */                      \
    X(DATA, "data")            /* token batches in flight */                \
    X(IO, "io buffers")        /* checkpoint and file buffers */            \
    X(MIRROR, "mirrors")       /* copies of states for the loss of a rank */ \
    X(LIBRARY, "library")      /* scratch handed to libraries */            \
    X(CONTROL, "control")      /* everything small */

typedef enum dsc_tag {
#define DSC_TAG_ENUM(name, text) DSC_TAG_##name,
    DSC_TAG_MAP(DSC_TAG_ENUM)
#undef DSC_TAG_ENUM
    DSC_TAG_COUNT
} dsc_tag;

typedef enum dsc_tier { DSC_TIER_DEVICE, DSC_TIER_HOST, DSC_TIER_PINNED, DSC_TIER_NVME, DSC_TIER_COUNT } dsc_tier;

const char *dsc_tag_text(dsc_tag tag);   /* "params" */
const char *dsc_tier_text(dsc_tier tier); /* "device", "host", "pinned", "nvme" */

typedef struct dsc_alloc_count {
    int64_t current_bytes;
    int64_t peak_bytes; /* peak of this tag in this tier */
} dsc_alloc_count;

typedef struct dsc_alloc_stats {
    dsc_alloc_count count[DSC_TAG_COUNT][DSC_TIER_COUNT];
    int64_t tier_current_bytes[DSC_TIER_COUNT];
    int64_t tier_peak_bytes[DSC_TIER_COUNT]; /* peak of the sum, not sum of peaks */
    int64_t live_count;                      /* allocations not yet freed */
    int64_t call_count;                      /* allocations asked for since open */
} dsc_alloc_stats;

typedef struct dsc_alloc dsc_alloc;

/* Owned by the caller; close asserts that nothing is live. */
DSC_MUST_USE dsc_status dsc_alloc_open(dsc_alloc **out, dsc_error *err);
void dsc_alloc_close(dsc_alloc **alloc); /* safe on NULL */

/* Fault hook: the call with 1-based number n since open (stats.call_count) fails with DSC_ERR_NOMEM (0: none);
 * `persistent`: all from n on fail. */
void dsc_alloc_fail_at(dsc_alloc *alloc, int64_t n, bool persistent);
/* From now on any allocation fails with DSC_ERR_INTERNAL that names the tag. Unfreeze for save, load and close. */
void dsc_alloc_freeze(dsc_alloc *alloc, bool frozen);
void dsc_alloc_stats_get(dsc_alloc *alloc, dsc_alloc_stats *stats);

/* Zeroed control memory, count * bytes_each with overflow check, host tier; 16-byte aligned.
 * Freed with dsc_alloc_free (NULL is allowed). count = 0 gives a valid pointer. */
DSC_MUST_USE dsc_status dsc_alloc_zeroed(dsc_alloc *alloc, dsc_tag tag, int64_t count, int64_t bytes_each,
                                         void *out_ptr, dsc_error *err);
void dsc_alloc_free(dsc_alloc *alloc, void *ptr);
DSC_MUST_USE dsc_status dsc_alloc_strdup(dsc_alloc *alloc, dsc_tag tag, const char *text, char **out, dsc_error *err);

/* How the system backs a buffer. */
typedef enum dsc_pages {
    DSC_PAGES_PLAIN,   /* pages of 4 KiB, or somebody else's memory */
    DSC_PAGES_ASKED,   /* 2 MiB pages were asked for (madvise) */
    DSC_PAGES_RESERVED /* 2 MiB pages out of those that the machine's owner set aside (vm.nr_hugepages) */
} dsc_pages;

/* A planned buffer: page-aligned anonymous memory, zero, in 2 MiB pages where the system gives them. Bytes are counted
 * as asked for, rounded up to 64. Plain value; buf.ptr is borrowed until dsc_buf_close. */
typedef struct dsc_buf {
    void *ptr;
    int64_t bytes;
    dsc_tag tag;
    dsc_tier tier;
    dsc_alloc *alloc;
    int64_t mapped_bytes;
    dsc_pages pages;
} dsc_buf;

/* Counted bytes of a buffer of `bytes` bytes, on every device: whole cache lines. */
int64_t dsc_buf_counted(int64_t bytes);
DSC_MUST_USE dsc_status dsc_buf_open(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                                     dsc_error *err);
void dsc_buf_close(dsc_buf *buf); /* safe on a zeroed struct; zeroes it */
/* Populates all of its pages now, by several threads if they are many. The system clears each page, and one thread
 * alone would take 10 s for a large model's states. False: the system does not have enough pages. */
bool dsc_buf_populate(const dsc_buf *buf);
/* The system never moves its bytes to its own swap. False: it may not, and `word` says what to raise, in one line. */
bool dsc_buf_lock(const dsc_buf *buf, char *word, size_t word_bytes);
/* RLIMIT_MEMLOCK and how to raise it: ": RLIMIT_MEMLOCK is 8.0 MiB; raise it (...)". For those words. */
void dsc_locked_limit_text(char *out, size_t out_bytes);

/* For memory that somebody else mapped (shared segments, library scratchpads): counts it like our own and obeys the
 * fault hook and the freeze. */
DSC_MUST_USE dsc_status dsc_alloc_note(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_error *err);
void dsc_alloc_unnote(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes);

/* Counts `bytes` of live memory under another tag: part of a buffer serves another purpose. A peak that the bytes had
 * just made goes with them. */
void dsc_alloc_retag(dsc_alloc *alloc, dsc_tag from, dsc_tag to, dsc_tier tier, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
