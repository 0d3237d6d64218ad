/* aio_uring.c - the io_uring engine: one system call for a batch, buffers that the kernel keeps mapped.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "base/tsan.h"
#include "offload/aio.h"

enum { REGIONS = 64, FILES = 64 };

struct dsc_aio_engine_state {
    dsc_alloc *alloc;
    struct io_uring ring;
    bool ring_open, has_regions, has_files, poll;
    int32_t region_count;
    dsc_aio_piece **refused; /* [queue_depth], the first refused_count: never handed over; reap reports them */
    int32_t refused_count;
};

/* liburing maps rings by system calls that ThreadSanitizer does not see: where one was, another thread's comes. */
static const char mapped_rings;

static void close_uring(dsc_aio_engine_state *s)
{
    if (s->ring_open) {
        DSC_TSAN_RELEASE(&mapped_rings);
        io_uring_queue_exit(&s->ring);
    }
    dsc_alloc_free(s->alloc, s->refused);
    dsc_alloc_free(s->alloc, s);
}

static dsc_status open_ring(dsc_aio_engine_state *s, const dsc_aio_options *options, dsc_error *err)
{
    DSC_ASSERT(!s->ring_open);
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    if (options->poll) {
        params.flags |= IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 50;
    }
    const int failed = io_uring_queue_init_params((unsigned)options->queue_depth, &s->ring, &params);
    if (failed != 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "io_uring", "%s%s", strerror(-failed),
                        failed == -EPERM    ? " (kernel.io_uring_disabled, or a container's seccomp filter)"
                        : failed == -ENOMEM ? " (RLIMIT_MEMLOCK is too small for its rings: ulimit -l)"
                                            : "");
    s->ring_open = true;
    DSC_TSAN_ACQUIRE(&mapped_rings);
    struct io_uring_probe *probe = io_uring_get_probe_ring(&s->ring);
    const bool fits = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                      io_uring_opcode_supported(probe, IORING_OP_WRITE_FIXED);
    if (probe != NULL)
        io_uring_free_probe(probe);
    if (!fits)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "io_uring", "this kernel's io_uring has no plain read and write");
    s->has_regions = io_uring_register_buffers_sparse(&s->ring, REGIONS) == 0;
    s->has_files = io_uring_register_files_sparse(&s->ring, FILES) == 0;
    return DSC_OK;
}

static dsc_status open_uring(const dsc_aio_options *options, dsc_aio_engine_state **out, dsc_error *err)
{
    dsc_aio_engine_state *s = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_IO, 1, sizeof *s, &s, err));
    s->alloc = options->alloc;
    s->poll = options->poll;
    dsc_status status = dsc_alloc_zeroed(s->alloc, DSC_TAG_IO, options->queue_depth, sizeof(dsc_aio_piece *),
                                         &s->refused, err);
    if (status == DSC_OK)
        status = open_ring(s, options, err);
    if (status != DSC_OK) {
        close_uring(s);
        return status;
    }
    DSC_ASSERT(s->ring_open);
    *out = s;
    return DSC_OK;
}

static void prepare(struct io_uring_sqe *e, dsc_aio_piece *p)
{
    const unsigned bytes = (unsigned)p->bytes;
    const uint64_t at = (uint64_t)p->offset;
    const int file = p->place >= 0 ? p->place : p->fd;
    DSC_ASSERT(p->bytes > 0);
    DSC_ASSERT(p->region < REGIONS);
    DSC_ASSERT(p->place < FILES);
    if (p->region >= 0 && p->write)
        io_uring_prep_write_fixed(e, file, p->buf, bytes, at, p->region);
    else if (p->region >= 0)
        io_uring_prep_read_fixed(e, file, p->buf, bytes, at, p->region);
    else if (p->write)
        io_uring_prep_write(e, file, p->buf, bytes, at);
    else
        io_uring_prep_read(e, file, p->buf, bytes, at);
    if (p->place >= 0)
        io_uring_sqe_set_flags(e, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(e, p);
}

/* The piece of a ring entry, NULL when it is the library's timeout or our cancelling. */
static dsc_aio_piece *piece_of(uint64_t user_data)
{
    return user_data == LIBURING_UDATA_TIMEOUT ? NULL : (dsc_aio_piece *)(uintptr_t)user_data;
}

/* Removes the entries that the kernel has not consumed from the ring. A later call would submit them, when their
 * buffers belong to the caller again. */
static void withdraw(dsc_aio_engine_state *s, int failed)
{
    DSC_ASSERT(failed < 0);
    struct io_uring_sq *sq = &s->ring.sq;
    const unsigned head = io_uring_smp_load_acquire(sq->khead);
    for (unsigned i = head; i != sq->sqe_tail; i++) {
        dsc_aio_piece *p = piece_of(sq->sqes[i & *sq->kring_mask].user_data);
        if (p == NULL)
            continue;
        p->result = failed;
        s->refused[s->refused_count++] = p;
    }
    sq->sqe_head = sq->sqe_tail = head;
    io_uring_smp_store_release(sq->ktail, head);
}

/* Hands over what is in the ring. When the kernel is short of something or interrupted, entries stay there for the next
 * call. With its own thread it may be taking them at any moment, so they are taken back only when that thread is
 * dead. */
static void hand_over(dsc_aio_engine_state *s)
{
    DSC_ASSERT(s->ring_open);
    while (io_uring_sq_ready(&s->ring) > 0) {
        const int n = io_uring_submit(&s->ring);
        if (n == -EINTR || n == -EAGAIN || n == -EBUSY || n == 0)
            return;
        if (n < 0 && (!s->poll || n == -EOWNERDEAD))
            withdraw(s, n);
        if (n < 0 || s->poll)
            return;
    }
}

static int submit(dsc_aio_engine_state *s, dsc_aio_piece *const *pieces, int count)
{
    int ready = 0;
    DSC_ASSERT(count > 0);
    for (; ready < count; ready++) {
        struct io_uring_sqe *e = io_uring_get_sqe(&s->ring);
        if (e == NULL)
            break;
        prepare(e, pieces[ready]);
    }
    hand_over(s);
    return ready;
}

static int take_refused(dsc_aio_engine_state *s, dsc_aio_piece **out, int most)
{
    DSC_ASSERT(most >= 0);
    int given = 0;
    while (given < most && s->refused_count > 0)
        out[given++] = s->refused[--s->refused_count];
    return given;
}

static int reap(dsc_aio_engine_state *s, dsc_aio_piece **out, int most, int64_t timeout_ns)
{
    struct io_uring_cqe *list[64], *one = NULL;
    struct __kernel_timespec timeout = { timeout_ns / 1000000000, timeout_ns % 1000000000 };
    const unsigned capacity = most < 64 ? (unsigned)most : 64;
    DSC_ASSERT(most > 0);
    unsigned count = io_uring_peek_batch_cqe(&s->ring, list, capacity);
    if (count == 0) {
        hand_over(s);
        if (s->refused_count > 0 || timeout_ns == 0)
            return take_refused(s, out, most);
        const int failed = io_uring_wait_cqe_timeout(&s->ring, &one, &timeout);
        if (failed != 0)
            return failed == -ETIME || failed == -EINTR || failed == -EAGAIN || failed == -EBUSY ? 0 : failed;
        count = io_uring_peek_batch_cqe(&s->ring, list, capacity);
    }
    int given = 0;
    for (unsigned i = 0; i < count; i++) {
        dsc_aio_piece *p = piece_of(list[i]->user_data);
        if (p == NULL)
            continue;
        p->result = list[i]->res;
        out[given++] = p;
    }
    DSC_ASSERT(given <= most);
    io_uring_cq_advance(&s->ring, count);
    return given + take_refused(s, out + given, most - given);
}

static int add_region(dsc_aio_engine_state *s, void *buf, int64_t bytes)
{
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(s->region_count <= REGIONS);
    const struct iovec one = { buf, (size_t)bytes };
    const __u64 tag = 0;
    if (!s->has_regions)
        return -ENOSYS;
    if (s->region_count == REGIONS)
        return -ENOSPC;
    const int done = io_uring_register_buffers_update_tag(&s->ring, (unsigned)s->region_count, &one, &tag, 1);
    if (done != 1)
        return done < 0 ? done : -ENOMEM;
    s->region_count++;
    return 0;
}

static bool set_file(dsc_aio_engine_state *s, int32_t place, int fd)
{
    DSC_ASSERT(place >= 0);
    DSC_ASSERT(place < FILES);
    return s->has_files && io_uring_register_files_update(&s->ring, (unsigned)place, &fd, 1) == 1;
}

static void cancel(dsc_aio_engine_state *s)
{
    DSC_ASSERT(s->ring_open);
    struct io_uring_sqe *e = io_uring_get_sqe(&s->ring);
    if (e == NULL)
        return;
    io_uring_prep_cancel(e, NULL, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
    io_uring_sqe_set_data(e, NULL);
    hand_over(s);
}

const dsc_aio_engine_ops dsc_aio_uring = {
    .name = "io_uring", .open = open_uring, .close = close_uring, .submit = submit, .reap = reap,
    .add_region = add_region, .set_file = set_file, .cancel = cancel,
};
