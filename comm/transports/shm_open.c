/* shm_open.c - making, sharing, mapping and closing the memory of the transport shm.
 *
 * Rank 0 makes the segment and writes an empty barrier into it before anybody can see it; the rendezvous hands the
 * files around and lets everybody open or nobody. All memory files are sealed against shrinking, so no mapping can be
 * cut off under a reader. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/rendezvous/rendezvous.h"
#include "comm/transports/shm_internal.h"

#define PAGE INT64_C(4096)

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

typedef struct layout {
    int64_t half_bytes, staging_offset, segment_bytes, share_bytes;
} layout;

static layout layout_of(const dsc_comm_options *options)
{
    const int32_t size = options->rank_info.size, channels = options->channel_count;
    layout l;
    l.half_bytes = dsc_align_up(dsc_max_i64(options->staging_bytes / 2, size * DSC_SHM_PIECE_LEAST), PAGE);
    const int64_t board_share = dsc_align_up(dsc_div_ceil(dsc_shm_barrier_bytes(size, channels), size), PAGE);
    l.staging_offset = board_share * size;
    l.share_bytes = board_share + 2 * l.half_bytes * channels;
    l.segment_bytes = l.share_bytes * size;
    return l;
}

int dsc_shm_list_needs(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list)
{
    dsc_shm *shm = (dsc_shm *)transport;
    list[0] = (dsc_need) { shm != NULL ? &shm->noted_bytes : NULL, DSC_TAG_COMM, DSC_TIER_HOST,
                           layout_of(options).share_bytes, DSC_NEED_NOTED };
    return 1;
}

/* ---- files and mappings ------------------------------------------------------------------------------------------ */

static dsc_status file_open(const char *name, int64_t bytes, int *out, dsc_error *err)
{
    *out = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*out < 0)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc.comm", "no memory file for shm: %s", strerror(errno));
    int seals = F_SEAL_SHRINK;
    if (bytes > 0) {
        seals |= F_SEAL_GROW;
        if (ftruncate(*out, bytes) != 0)
            return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc.comm", "no memory file of %lld bytes for shm: %s",
                            (long long)bytes, strerror(errno));
    }
    if (fcntl(*out, F_ADD_SEALS, seals | F_SEAL_SEAL) != 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.comm", "memory files cannot be sealed here: %s",
                        strerror(errno));
    return DSC_OK;
}

static dsc_status segment_map(int fd, int64_t bytes, char **out, dsc_error *err)
{
    void *ptr = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ptr == MAP_FAILED)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc.comm", "cannot map %lld bytes of shared memory: %s", (long long)bytes,
                        strerror(errno));
    *out = ptr;
    return DSC_OK;
}

/* Files of a peer are checked: mapping a file that can shrink would let the peer crash this process. */
static dsc_status check_file(int fd, int64_t bytes, const char *what, dsc_error *err)
{
    struct stat info;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &info) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || info.st_size < bytes)
        return DSC_FAIL(err, DSC_ERR_COMM, "dsc.comm", "the received %s is not a sealed memory file of %lld bytes",
                        what, (long long)bytes);
    return DSC_OK;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

/* State that lives only while opening. */
typedef struct opening {
    const dsc_comm_ops *ops; /* shm's own */
    const dsc_comm_options *options;
    layout layout;
    int segment, heap;  /* own files */
    char *first_map;    /* rank 0's mapping from before the rendezvous */
    dsc_shm *shm;       /* made by map_all */
} opening;

static dsc_status make_files(opening *o, dsc_error *err)
{
    DSC_TRY(file_open("dsc-heap", 0, &o->heap, err));
    if (o->options->rank_info.rank != 0)
        return DSC_OK;
    DSC_TRY(file_open("dsc-segment", o->layout.segment_bytes, &o->segment, err));
    DSC_TRY(segment_map(o->segment, o->layout.segment_bytes, &o->first_map, err));
    dsc_shm_barrier_init(o->first_map, o->options->rank_info.size, o->options->channel_count);
    return DSC_OK;
}

static void shm_init(dsc_shm *shm, const opening *o)
{
    const dsc_comm_options *options = o->options;
    shm->base.ops = o->ops;
    shm->alloc = options->alloc;
    shm->rank = options->rank_info.rank;
    shm->size = options->rank_info.size;
    shm->channel_count = options->channel_count;
    shm->segment_bytes = o->layout.segment_bytes;
    shm->staging_offset = o->layout.staging_offset;
    shm->half_bytes = o->layout.half_bytes;
    pthread_mutex_init(&shm->lock, NULL);
    dsc_comm_math_init(&shm->math);
    for (int32_t r = 0; r < DSC_SHM_BARRIER_RANKS_MAX; r++)
        shm->peer[r].heap = shm->peer[r].pidfd = -1;
}

/* The rendezvous calls this when everybody is here: every failure reaches all ranks before anybody has opened. */
static dsc_status map_all(void *user, uint64_t epoch, const int *file, dsc_error *err)
{
    opening *o = user;
    const dsc_comm_options *options = o->options;
    if (options->rank_info.rank != 0)
        DSC_TRY(check_file(file[0], o->layout.segment_bytes, "segment of rank 0", err));
    for (int32_t r = 0; r < options->rank_info.size; r++)
        DSC_TRY(check_file(file[1 + r], 0, "heap of a rank", err));
    dsc_shm *shm = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *shm, &shm, err));
    shm_init(shm, o);
    o->shm = shm;
    shm->memory.count = dsc_shm_list_needs(options, &shm->base, shm->memory.need);
    DSC_TRY(dsc_comm_memory_open(&shm->memory, options, err));
    DSC_ASSERT(shm->noted_bytes == o->layout.share_bytes);
    if (o->first_map != NULL) {
        shm->segment = o->first_map;
        o->first_map = NULL;
    } else {
        DSC_TRY(segment_map(file[0], o->layout.segment_bytes, &shm->segment, err));
    }
    dsc_shm_barrier_attach(&shm->barrier, shm->segment, shm->rank, true, dsc_comm_timeout_ns(options));
    dsc_shm_sign_in(shm);
    return DSC_OK;
}

static void waits(void *user, const char *text)
{
    const opening *o = user;
    dsc_comm_log_wait(o->options, text);
}

static dsc_status meet_all(opening *o, int *file, dsc_error *err)
{
    const dsc_comm_options *options = o->options;
    const dsc_rank_info *info = &options->rank_info;
    if (info->size == 1) {
        file[0] = fcntl(o->segment, F_DUPFD_CLOEXEC, 0);
        file[1] = fcntl(o->heap, F_DUPFD_CLOEXEC, 0);
        return map_all(o, 0, file, err);
    }
    dsc_rdv_job job = { .self = { .rank = info->rank,
                                  .size = info->size,
                                  .pid = (int32_t)getpid(),
                                  .agree = { options->channel_count, o->layout.segment_bytes },
                                  .agree_name = { "channels of the communicator", "bytes of the shared segment" },
                                  .timeout_ns = dsc_comm_open_timeout_ns(options) },
                        .waits = waits,
                        .token = info->job_token != NULL ? info->job_token : "",
                        .host = info->master_addr,
                        .port = info->master_port };
    snprintf(job.self.build, sizeof job.self.build, "dsc %s", DSC_VERSION_TEXT);
    return dsc_rdv_run(&job, o->segment, o->heap, map_all, o, file, err);
}

static void close_files(const int *file, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (file[i] >= 0)
            close(file[i]);
}

dsc_status dsc_shm_open(const dsc_comm_ops *ops, dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    const dsc_rank_info *info = &options->rank_info;
    if (info->local_size != info->size)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.comm", "\"shm\" is for ranks of one host; %d of %d are here",
                        info->local_size, info->size);
    if (info->size > DSC_SHM_BARRIER_RANKS_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.comm",
                        "%d ranks of one host; \"shm\" takes at most %d: give \"tcp\", or start fewer ranks",
                        info->size, DSC_SHM_BARRIER_RANKS_MAX);
    opening o = { .ops = ops, .options = options, .layout = layout_of(options), .segment = -1, .heap = -1 };
    int file[1 + DSC_SHM_BARRIER_RANKS_MAX];
    for (int32_t i = 0; i <= info->size; i++)
        file[i] = -1;
    dsc_status status = make_files(&o, err);
    if (status == DSC_OK)
        status = meet_all(&o, file, err);
    close_files(&o.segment, 1);
    close_files(&o.heap, 1);
    close_files(&file[0], 1); /* mapped */
    if (o.first_map != NULL)
        munmap(o.first_map, (size_t)o.layout.segment_bytes);
    if (o.shm == NULL) {
        DSC_ASSERT(status != DSC_OK);
        return status;
    }
    for (int32_t r = 0; r < info->size && status == DSC_OK; r++)
        o.shm->peer[r].heap = file[1 + r];
    if (status == DSC_OK)
        status = dsc_shm_watch_peers(o.shm, err);
    if (status == DSC_OK)
        status = dsc_shm_probe(o.shm, err);
    if (status != DSC_OK) {
        dsc_shm_close(&o.shm->base);
        return status;
    }
    *out = &o.shm->base;
    return DSC_OK;
}

void dsc_shm_close(dsc_transport *transport)
{
    dsc_shm *shm = (dsc_shm *)transport;
    if (shm->barrier.header != NULL)
        dsc_shm_barrier_leave(&shm->barrier);
    dsc_shm_heap_close(shm);
    dsc_shm_unwatch_peers(shm);
    for (int32_t r = 0; r < shm->size; r++)
        close_files(&shm->peer[r].heap, 1);
    if (shm->segment != NULL)
        munmap(shm->segment, (size_t)shm->segment_bytes);
    dsc_comm_memory_close(&shm->memory);
    pthread_mutex_destroy(&shm->lock);
    dsc_alloc_free(shm->alloc, shm);
}
