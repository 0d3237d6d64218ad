/* aio_uring.c - the io_uring engine: one system call for a batch, buffers that the kernel keeps mapped.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "offload/aio.h"

enum { REGIONS = 64 };

struct dsc_aio_engine_state {
    dsc_alloc *alloc;
    struct io_uring ring;
    bool ring_open, has_table;
    int32_t region_count;
    bool poll;
};

static void close_uring(dsc_aio_engine_state *s)
{
    if (s->ring_open)
        io_uring_queue_exit(&s->ring);
    dsc_alloc_free(s->alloc, s);
}

static dsc_status open_ring(dsc_aio_engine_state *s, const dsc_aio_options *options, dsc_error *err)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    if (options->poll) {
        params.flags |= IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 50;
    }
    const int failed = io_uring_queue_init_params((unsigned)options->queue_depth, &s->ring, &params);
    if (failed != 0)
        return DSC_FAIL(err, failed == -ENOMEM ? DSC_ERR_NOMEM : DSC_ERR_UNSUPPORTED, "io_uring", "%s%s",
                        strerror(-failed),
                        failed == -EPERM ? " (kernel.io_uring_disabled, or a container's seccomp filter)" : "");
    s->ring_open = true;
    struct io_uring_probe *probe = io_uring_get_probe_ring(&s->ring);
    const bool fits = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                      io_uring_opcode_supported(probe, IORING_OP_WRITE_FIXED);
    if (probe != NULL)
        io_uring_free_probe(probe);
    if (!fits)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "io_uring", "this kernel's io_uring has no plain read and write");
    s->has_table = io_uring_register_buffers_sparse(&s->ring, REGIONS) == 0;
    return DSC_OK;
}

static dsc_status open_uring(const dsc_aio_options *options, dsc_aio_engine_state **out, dsc_error *err)
{
    dsc_aio_engine_state *s = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_IO, 1, sizeof *s, &s, err));
    s->alloc = options->alloc;
    s->poll = options->poll;
    const dsc_status status = open_ring(s, options, err);
    if (status != DSC_OK) {
        close_uring(s);
        return status;
    }
    *out = s;
    return DSC_OK;
}

static int submit(dsc_aio_engine_state *s, dsc_aio_piece *const *pieces, int count)
{
    int ready = 0;
    for (; ready < count; ready++) {
        struct io_uring_sqe *e = io_uring_get_sqe(&s->ring);
        dsc_aio_piece *p = pieces[ready];
        if (e == NULL)
            break;
        const unsigned bytes = (unsigned)p->bytes;
        const uint64_t at = (uint64_t)p->offset;
        if (p->region >= 0 && p->write)
            io_uring_prep_write_fixed(e, p->fd, p->buf, bytes, at, p->region);
        else if (p->region >= 0)
            io_uring_prep_read_fixed(e, p->fd, p->buf, bytes, at, p->region);
        else if (p->write)
            io_uring_prep_write(e, p->fd, p->buf, bytes, at);
        else
            io_uring_prep_read(e, p->fd, p->buf, bytes, at);
        io_uring_sqe_set_data(e, p);
    }
    /* Entries that are in the queue stay there when the call is interrupted: the next call hands them over, so they
     * count as taken. */
    int handed = 0;
    while (handed < ready) {
        const int n = io_uring_submit(&s->ring);
        if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY)
            return n;
        if (n < 0)
            break;
        handed += n;
        if (n == 0)
            break;
    }
    return ready;
}

static int reap(dsc_aio_engine_state *s, dsc_aio_piece **out, int most, int64_t timeout_ns)
{
    struct io_uring_cqe *list[64], *one = NULL;
    struct __kernel_timespec timeout = { timeout_ns / 1000000000, timeout_ns % 1000000000 };
    unsigned count = io_uring_peek_batch_cqe(&s->ring, list, most < 64 ? (unsigned)most : 64);
    if (count == 0) {
        if (io_uring_sq_ready(&s->ring) > 0)
            (void)io_uring_submit(&s->ring);
        if (timeout_ns == 0)
            return 0;
        const int failed = io_uring_wait_cqe_timeout(&s->ring, &one, &timeout);
        if (failed != 0)
            return failed == -ETIME || failed == -EINTR || failed == -EAGAIN ? 0 : failed;
        count = io_uring_peek_batch_cqe(&s->ring, list, most < 64 ? (unsigned)most : 64);
    }
    int given = 0;
    for (unsigned i = 0; i < count; i++) {
        dsc_aio_piece *p = io_uring_cqe_get_data(list[i]);
        if (p == NULL) /* the library's own timeout */
            continue;
        p->result = list[i]->res;
        out[given++] = p;
    }
    io_uring_cq_advance(&s->ring, count);
    return given;
}

static bool add_region(dsc_aio_engine_state *s, void *buf, int64_t bytes)
{
    if (!s->has_table || s->region_count == REGIONS || bytes > (int64_t)1 << 30)
        return false;
    const struct iovec one = { buf, (size_t)bytes };
    const __u64 tag = 0;
    if (io_uring_register_buffers_update_tag(&s->ring, (unsigned)s->region_count, &one, &tag, 1) != 1)
        return false; /* RLIMIT_MEMLOCK, most often */
    s->region_count++;
    return true;
}

const dsc_aio_engine_ops dsc_aio_uring = {
    .name = "io_uring", .open = open_uring, .close = close_uring, .submit = submit, .reap = reap,
    .add_region = add_region,
};
