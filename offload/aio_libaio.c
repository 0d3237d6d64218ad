/* aio_libaio.c - the engine of Linux's older interface, by libaio, which is opened at run time.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <libaio.h>
#include <string.h>
#include <time.h>

#include "offload/aio.h"

struct dsc_aio_engine_state {
    dsc_alloc *alloc;
    void *library;
    int (*setup)(int depth, io_context_t *context);
    int (*destroy)(io_context_t context);
    int (*submit)(io_context_t context, long count, struct iocb *list[]);
    int (*getevents)(io_context_t context, long least, long most, struct io_event *events, struct timespec *timeout);
    io_context_t context;
    bool context_open;
    struct iocb *blocks;  /* [capacity] */
    struct iocb **unused; /* [capacity], the first unused_count */
    int32_t capacity, unused_count;
};

static void close_libaio(dsc_aio_engine_state *s)
{
    DSC_ASSERT(!s->context_open || s->library != NULL); /* io_destroy is the library's */
    if (s->context_open)
        (void)s->destroy(s->context); /* waits for what is under way */
    if (s->library != NULL)
        (void)dlclose(s->library);
    dsc_alloc_free(s->alloc, s->unused);
    dsc_alloc_free(s->alloc, s->blocks);
    dsc_alloc_free(s->alloc, s);
}

static dsc_status find_library(dsc_aio_engine_state *s, dsc_error *err)
{
    DSC_ASSERT(s->library == NULL);
    s->library = dlopen("libaio.so.1", RTLD_NOW | RTLD_LOCAL);
    if (s->library == NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "libaio", "libaio.so.1 is not installed");
    /* POSIX's way to read a function's address */
    *(void **)&s->setup = dlsym(s->library, "io_setup");
    *(void **)&s->destroy = dlsym(s->library, "io_destroy");
    *(void **)&s->submit = dlsym(s->library, "io_submit");
    *(void **)&s->getevents = dlvsym(s->library, "io_getevents", "LIBAIO_0.4");
    if (s->setup == NULL || s->destroy == NULL || s->submit == NULL || s->getevents == NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "libaio", "libaio.so.1 lacks io_setup, io_submit or io_getevents");
    return DSC_OK;
}

static dsc_status open_parts(dsc_aio_engine_state *s, dsc_error *err)
{
    DSC_TRY(find_library(s, err));
    DSC_TRY(dsc_alloc_zeroed(s->alloc, DSC_TAG_IO, s->capacity, sizeof *s->blocks, &s->blocks, err));
    DSC_TRY(dsc_alloc_zeroed(s->alloc, DSC_TAG_IO, s->capacity, sizeof *s->unused, &s->unused, err));
    for (int32_t i = 0; i < s->capacity; i++)
        s->unused[s->unused_count++] = &s->blocks[i];
    DSC_ASSERT(s->unused_count == s->capacity);
    const int failed = s->setup(s->capacity, &s->context);
    if (failed != 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "libaio", "io_setup for %d operations: %s (see fs.aio-max-nr)",
                        (int)s->capacity, strerror(-failed));
    s->context_open = true;
    return DSC_OK;
}

static dsc_status open_libaio(const dsc_aio_options *options, dsc_aio_engine_state **out, dsc_error *err)
{
    dsc_aio_engine_state *s = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_IO, 1, sizeof *s, &s, err));
    s->alloc = options->alloc;
    s->capacity = options->queue_depth;
    const dsc_status status = open_parts(s, err);
    if (status != DSC_OK) {
        close_libaio(s);
        return status;
    }
    DSC_ASSERT(s->context_open);
    *out = s;
    return DSC_OK;
}

static int submit(dsc_aio_engine_state *s, dsc_aio_piece *const *pieces, int count)
{
    struct iocb *list[256];
    int ready = 0;
    DSC_ASSERT(count > 0);
    for (; ready < count && ready < 256 && ready < s->unused_count; ready++) {
        struct iocb *b = s->unused[s->unused_count - 1 - ready];
        const dsc_aio_piece *p = pieces[ready];
        if (p->write)
            io_prep_pwrite(b, p->fd, p->buf, (size_t)p->bytes, p->offset);
        else
            io_prep_pread(b, p->fd, p->buf, (size_t)p->bytes, p->offset);
        b->data = pieces[ready];
        list[ready] = b;
    }
    if (ready == 0)
        return 0;
    const int taken = s->submit(s->context, ready, list);
    DSC_ASSERT(taken <= ready);
    if (taken > 0)
        s->unused_count -= taken;
    return taken;
}

static int reap(dsc_aio_engine_state *s, dsc_aio_piece **out, int most, int64_t timeout_ns)
{
    struct io_event events[64];
    struct timespec timeout = { (time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000) };
    const int count = s->getevents(s->context, timeout_ns > 0 ? 1 : 0, most < 64 ? most : 64, events, &timeout);
    if (count == -EINTR)
        return 0;
    for (int i = 0; i < count; i++) {
        out[i] = events[i].data;
        out[i]->result = (int64_t)(long)events[i].res;
        DSC_ASSERT(s->unused_count < s->capacity); /* the block was under way */
        s->unused[s->unused_count++] = events[i].obj;
    }
    return count;
}

const dsc_aio_engine_ops dsc_aio_libaio = {
    .name = "libaio", .open = open_libaio, .close = close_libaio, .submit = submit, .reap = reap,
};
