/* alloc.c - counted memory.
 *
 * Two kinds: control blocks from calloc with a header of 16 bytes in front, and buffers straight from mmap. Both pass
 * through admit(), where the fault hook, the freeze and the counters live; a failure of the system takes the bytes
 * back out. Counters are exact at every moment under one mutex, so a peak is the peak of the sum.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/cores.h"

#include <errno.h>
#include <linux/mman.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif
#ifdef ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(ptr, bytes) ((void)(ptr), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(ptr, bytes) ((void)(ptr), (void)(bytes))
#endif

#define HUGE_PAGE_BYTES (INT64_C(2) << 20)
#define BLOCK_MAGIC UINT32_C(0xD5CA110C)
#define BLOCK_FREED UINT32_C(0xD5CDEAD0)

struct dsc_alloc {
    pthread_mutex_t lock;
    dsc_alloc_stats stats;
    int64_t fail_at; /* 0: never */
    bool fail_persistent;
    bool frozen;
};

/* In front of every control block; 16 bytes keep the block aligned as malloc aligns. */
typedef struct block_header {
    int64_t bytes;
    uint32_t tag;
    uint32_t magic;
} block_header;
_Static_assert(sizeof(block_header) == 16, "control blocks stay 16-byte aligned");

const char *dsc_tag_text(dsc_tag tag)
{
    switch (tag) {
#define TAG_CASE(name, text) \
    case DSC_TAG_##name: return text;
        DSC_TAG_MAP(TAG_CASE)
#undef TAG_CASE
    case DSC_TAG_COUNT: break;
    }
    return "unknown";
}

const char *dsc_tier_text(dsc_tier tier)
{
    static const char *const texts[DSC_TIER_COUNT] = { "device", "host", "pinned", "nvme" };
    return (unsigned)tier < DSC_TIER_COUNT ? texts[tier] : "unknown";
}

dsc_status dsc_alloc_open(dsc_alloc **out, dsc_error *err)
{
    *out = NULL;
    dsc_alloc *alloc = calloc(1, sizeof *alloc);
    if (alloc == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of host memory: the allocator itself did not fit");
    if (pthread_mutex_init(&alloc->lock, NULL) != 0) {
        free(alloc);
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of host memory: no mutex for the allocator");
    }
    *out = alloc;
    return DSC_OK;
}

void dsc_alloc_close(dsc_alloc **alloc_ptr)
{
    dsc_alloc *alloc = *alloc_ptr;
    if (alloc == NULL)
        return;
    DSC_ASSERT(alloc->stats.live_count == 0);
    for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
        DSC_ASSERT(alloc->stats.tier_current_bytes[tier] == 0);
    pthread_mutex_destroy(&alloc->lock);
    free(alloc);
    *alloc_ptr = NULL;
}

static void lock(dsc_alloc *alloc)
{
    const int failed = pthread_mutex_lock(&alloc->lock);
    DSC_ASSERT(failed == 0);
}

static void unlock(dsc_alloc *alloc)
{
    const int failed = pthread_mutex_unlock(&alloc->lock);
    DSC_ASSERT(failed == 0);
}

void dsc_alloc_fail_at(dsc_alloc *alloc, int64_t n, bool persistent)
{
    DSC_ASSERT(n >= 0);
    lock(alloc);
    alloc->fail_at = n;
    alloc->fail_persistent = persistent;
    unlock(alloc);
}

void dsc_alloc_freeze(dsc_alloc *alloc, bool frozen)
{
    lock(alloc);
    alloc->frozen = frozen;
    unlock(alloc);
}

void dsc_alloc_stats_get(dsc_alloc *alloc, dsc_alloc_stats *stats)
{
    lock(alloc);
    *stats = alloc->stats;
    unlock(alloc);
}

/* Counts one allocation in, or says why it may not happen. */
static dsc_status admit(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT((unsigned)tag < DSC_TAG_COUNT);
    DSC_ASSERT((unsigned)tier < DSC_TIER_COUNT);
    DSC_ASSERT(bytes >= 0);
    lock(alloc);
    dsc_alloc_stats *stats = &alloc->stats;
    const int64_t call = ++stats->call_count;
    const bool frozen = alloc->frozen;
    const bool fault = alloc->fail_at != 0 &&
                       (alloc->fail_persistent ? call >= alloc->fail_at : call == alloc->fail_at);
    int64_t sum = 0;
    const bool overflow = !dsc_add_i64(stats->tier_current_bytes[tier], bytes, &sum);
    if (!frozen && !fault && !overflow) {
        dsc_alloc_count *count = &stats->count[tag][tier];
        count->current_bytes += bytes;
        count->peak_bytes = dsc_max_i64(count->peak_bytes, count->current_bytes);
        stats->tier_current_bytes[tier] = sum;
        stats->tier_peak_bytes[tier] = dsc_max_i64(stats->tier_peak_bytes[tier], sum);
        stats->live_count++;
    }
    unlock(alloc);
    if (frozen)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "%lld bytes of %s (%s) asked for after memory was frozen",
                        (long long)bytes, dsc_tag_text(tag), dsc_tier_text(tier));
    if (fault)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of %s memory: %lld bytes of %s (injected at allocation %lld)",
                        dsc_tier_text(tier), (long long)bytes, dsc_tag_text(tag), (long long)call);
    if (overflow)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of %s memory: %lld bytes of %s overflow the count",
                        dsc_tier_text(tier), (long long)bytes, dsc_tag_text(tag));
    return DSC_OK;
}

/* Counts one allocation out. */
static void retire(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes)
{
    DSC_ASSERT((unsigned)tag < DSC_TAG_COUNT);
    DSC_ASSERT((unsigned)tier < DSC_TIER_COUNT);
    lock(alloc);
    dsc_alloc_stats *stats = &alloc->stats;
    stats->count[tag][tier].current_bytes -= bytes;
    stats->tier_current_bytes[tier] -= bytes;
    stats->live_count--;
    const bool sane = stats->count[tag][tier].current_bytes >= 0 && stats->live_count >= 0;
    unlock(alloc);
    DSC_ASSERT(sane);
}

static dsc_status fail_system(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_error *err)
{
    retire(alloc, tag, tier, bytes);
    return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of %s memory: the system refused %lld bytes of %s",
                    dsc_tier_text(tier), (long long)bytes, dsc_tag_text(tag));
}

dsc_status dsc_alloc_zeroed(dsc_alloc *alloc, dsc_tag tag, int64_t count, int64_t bytes_each, void *out_ptr,
                            dsc_error *err)
{
    void *ptr = NULL;
    memcpy(out_ptr, &ptr, sizeof ptr);
    DSC_ASSERT(bytes_each >= 0);
    int64_t bytes = 0;
    int64_t total = 0;
    if (count < 0 || !dsc_mul_i64(count, bytes_each, &bytes) ||
        !dsc_add_i64(bytes, (int64_t)sizeof(block_header), &total))
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of host memory: %lld x %lld bytes of %s do not fit any memory",
                        (long long)count, (long long)bytes_each, dsc_tag_text(tag));
    DSC_TRY(admit(alloc, tag, DSC_TIER_HOST, bytes, err));
    block_header *header = calloc(1, (size_t)total);
    if (header == NULL)
        return fail_system(alloc, tag, DSC_TIER_HOST, bytes, err);
    header->bytes = bytes;
    header->tag = (uint32_t)tag;
    header->magic = BLOCK_MAGIC;
    ptr = header + 1;
    memcpy(out_ptr, &ptr, sizeof ptr);
    return DSC_OK;
}

void dsc_alloc_free(dsc_alloc *alloc, void *ptr)
{
    if (ptr == NULL)
        return;
    block_header *header = (block_header *)ptr - 1;
    DSC_ASSERT(header->magic == BLOCK_MAGIC); /* else: not ours, freed twice, or written before its start */
    header->magic = BLOCK_FREED;
    retire(alloc, (dsc_tag)header->tag, DSC_TIER_HOST, header->bytes);
    free(header);
}

dsc_status dsc_alloc_strdup(dsc_alloc *alloc, dsc_tag tag, const char *text, char **out, dsc_error *err)
{
    const size_t bytes = strlen(text) + 1;
    DSC_TRY(dsc_alloc_zeroed(alloc, tag, (int64_t)bytes, 1, out, err));
    memcpy(*out, text, bytes);
    return DSC_OK;
}

/* Anonymous zeroed memory that starts on a 2 MiB boundary, so that the kernel can back it with huge pages. */
static void *map_huge_aligned(int64_t bytes)
{
    const size_t wide_bytes = (size_t)(bytes + HUGE_PAGE_BYTES);
    char *wide = mmap(NULL, wide_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (wide == MAP_FAILED)
        return NULL;
    const size_t head = (size_t)(-(uintptr_t)wide & (uintptr_t)(HUGE_PAGE_BYTES - 1));
    const size_t tail = wide_bytes - head - (size_t)bytes;
    if (head > 0)
        munmap(wide, head);
    if (tail > 0)
        munmap(wide + head + bytes, tail);
    madvise(wide + head, (size_t)bytes, MADV_HUGEPAGE); /* a hint: refused where huge pages are off */
    return wide + head;
}

/* Pages of the pool that the machine's owner set aside; NULL when there are not enough. They are touched here, where a
 * limit of a cgroup is an error; later it would be a SIGBUS. */
static void *map_reserved(int64_t bytes)
{
    void *ptr = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1, 0);
    if (ptr == MAP_FAILED)
        return NULL;
    if (madvise(ptr, (size_t)bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) /* EINVAL: a kernel before 5.14 */
        return ptr;
    munmap(ptr, (size_t)bytes);
    return NULL;
}

/* Maps buf->mapped_bytes, perhaps more; NULL when the system refuses. Files and devices transfer from PINNED memory,
 * and look up each of its pages when they do. */
static void *map_zeroed(dsc_buf *buf)
{
    const int64_t huge_bytes = dsc_align_up(buf->mapped_bytes, HUGE_PAGE_BYTES);
    void *ptr = buf->tier == DSC_TIER_PINNED && buf->mapped_bytes >= HUGE_PAGE_BYTES ? map_reserved(huge_bytes) : NULL;
    if (ptr != NULL) {
        buf->mapped_bytes = huge_bytes;
        buf->pages = DSC_PAGES_RESERVED;
        return ptr;
    }
    if (buf->mapped_bytes >= 2 * HUGE_PAGE_BYTES) {
        buf->pages = DSC_PAGES_ASKED;
        return map_huge_aligned(buf->mapped_bytes);
    }
    ptr = mmap(NULL, (size_t)buf->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return ptr != MAP_FAILED ? ptr : NULL;
}

int64_t dsc_buf_counted(int64_t bytes) { return dsc_align_up(bytes, 64); }

dsc_status dsc_buf_open(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    *out = (dsc_buf){ 0 };
    DSC_ASSERT(tier != DSC_TIER_NVME); /* files, not memory */
    const int64_t page = sysconf(_SC_PAGESIZE);
    DSC_ASSERT(page > 0);
    if (bytes < 0 || bytes > INT64_MAX / 4)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of %s memory: %lld bytes of %s do not fit any memory",
                        dsc_tier_text(tier), (long long)bytes, dsc_tag_text(tag));
    const int64_t counted = dsc_buf_counted(bytes);
    int64_t mapped = dsc_align_up(dsc_max_i64(counted, 1), page);
#ifdef ADDRESS_SANITIZER
    mapped += page; /* room for a red zone even when the last page is full */
#endif
    DSC_TRY(admit(alloc, tag, tier, counted, err));
    dsc_buf buf = { .bytes = bytes, .tag = tag, .tier = tier, .alloc = alloc, .mapped_bytes = mapped };
    buf.ptr = map_zeroed(&buf);
    if (buf.ptr == NULL)
        return fail_system(alloc, tag, tier, counted, err);
    ASAN_POISON_MEMORY_REGION((char *)buf.ptr + bytes, (size_t)(buf.mapped_bytes - bytes));
    *out = buf;
    return DSC_OK;
}

void dsc_buf_close(dsc_buf *buf)
{
    if (buf->ptr != NULL) {
        ASAN_UNPOISON_MEMORY_REGION(buf->ptr, (size_t)buf->mapped_bytes);
        const int failed = munmap(buf->ptr, (size_t)buf->mapped_bytes);
        DSC_ASSERT(failed == 0);
        retire(buf->alloc, buf->tag, buf->tier, dsc_align_up(buf->bytes, 64));
    }
    *buf = (dsc_buf){ 0 };
}

enum { POPULATE_THREADS = 16 };
#define POPULATE_BYTES (INT64_C(64) << 20) /* less is not worth a thread */

typedef struct populate_part { char *ptr; size_t bytes; bool done; pthread_t thread; } populate_part;

static void *populate_part_main(void *arg)
{
    populate_part *part = arg;
    part->done = madvise(part->ptr, part->bytes, MADV_POPULATE_WRITE) == 0;
    if (!part->done && errno == EINVAL) { /* a kernel before 5.14; nobody else has the memory yet, and it is zero */
        for (size_t at = 0; at < part->bytes; at += 4096)
            ((volatile char *)part->ptr)[at] = 0;
        part->done = true;
    }
    return NULL;
}

bool dsc_buf_populate(const dsc_buf *buf)
{
    populate_part part[POPULATE_THREADS];
    bool all = true;
    int count = 0, started = 0;
    if (buf->bytes == 0 || buf->pages == DSC_PAGES_RESERVED)
        return true;
    const int64_t most = dsc_min_i64(POPULATE_THREADS, dsc_max_i64(1, dsc_cores_usable()));
    const int64_t parts = dsc_max_i64(1, dsc_min_i64(most, buf->bytes / POPULATE_BYTES));
    const int64_t each = dsc_align_up(dsc_div_ceil(buf->bytes, parts), HUGE_PAGE_BYTES);
    for (int64_t at = 0; at < buf->bytes; at += each)
        part[count++] = (populate_part){ .ptr = (char *)buf->ptr + at,
                                         .bytes = (size_t)dsc_min_i64(each, buf->bytes - at) };
    while (started < count - 1 &&
           pthread_create(&part[started].thread, NULL, populate_part_main, &part[started]) == 0)
        started++;
    for (int i = started; i < count; i++)
        populate_part_main(&part[i]);
    for (int i = 0; i < started; i++)
        pthread_join(part[i].thread, NULL);
    for (int i = 0; i < count; i++)
        all = all && part[i].done;
    return all;
}

void dsc_locked_limit_text(char *out, size_t out_bytes)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    char size[32] = "unlimited";
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < 1 << 20)
        snprintf(size, sizeof size, "%lld KiB", (long long)(limit.rlim_cur >> 10));
    else if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(size, sizeof size, "%.1f MiB", (double)limit.rlim_cur / (1 << 20));
    snprintf(out, out_bytes, ": RLIMIT_MEMLOCK is %s; raise it (ulimit -l, LimitMEMLOCK of a service)", size);
}

bool dsc_buf_lock(const dsc_buf *buf, char *word, size_t word_bytes)
{
    char limit[128], reason[96];
    if (buf->bytes == 0 || mlock(buf->ptr, (size_t)buf->bytes) == 0)
        return true;
    const int failed = errno;
    dsc_locked_limit_text(limit, sizeof limit);
    snprintf(word, word_bytes, "%.1f MiB of %s are not locked in memory (%s)%s", (double)buf->bytes / (1 << 20),
             dsc_tag_text(buf->tag), strerror_r(failed, reason, sizeof reason), limit);
    return false;
}

dsc_status dsc_alloc_note(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_error *err)
{
    return admit(alloc, tag, tier, bytes, err);
}

void dsc_alloc_unnote(dsc_alloc *alloc, dsc_tag tag, dsc_tier tier, int64_t bytes)
{
    retire(alloc, tag, tier, bytes);
}

void dsc_alloc_retag(dsc_alloc *alloc, dsc_tag from, dsc_tag to, dsc_tier tier, int64_t bytes)
{
    lock(alloc);
    dsc_alloc_count *a = &alloc->stats.count[from][tier], *b = &alloc->stats.count[to][tier];
    if (a->peak_bytes == a->current_bytes)
        a->peak_bytes -= bytes;
    a->current_bytes -= bytes;
    b->current_bytes += bytes;
    b->peak_bytes = dsc_max_i64(b->peak_bytes, b->current_bytes);
    const bool sane = a->current_bytes >= 0;
    unlock(alloc);
    DSC_ASSERT(sane);
}
