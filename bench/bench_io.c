/* bench_io.c - reads or writes a whole file by our asynchronous engines whenever bench_io.py asks: bench_io FILE MIB
 *
 * Commands come line by line ("read io_uring 1024 32": direction, engine, KiB of a block, depth); while another program
 * has its turn this one sleeps in read. The answer is "seconds cpu_seconds". Two operations of `depth` blocks each take
 * turns, as a pipeline's do. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "offload/aio.h"

typedef struct command {
    char direction[16], engine[16];
    long long kib;
    int depth;
} command;

typedef struct bench {
    dsc_alloc *alloc;
    dsc_aio_file file;
    int64_t bytes;
} bench;

/* Bytes that no disk can leave out or press together. */
static void fill(unsigned char *buf, int64_t bytes)
{
    uint64_t state = 88172645463325252u;
    for (int64_t at = 0; at < bytes; at += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(buf + at, &state, 8);
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + (double)t.tv_nsec * 1e-9 : 0;
}

static dsc_status move_file(bench *b, dsc_aio *aio, bool write, char *buf, int64_t each, dsc_error *err)
{
    dsc_aio_op ops[2] = { { .file = &b->file }, { .file = &b->file } };
    int64_t i = 0;
    for (int64_t at = 0; at < b->bytes; at += each, i++) {
        dsc_aio_op *op = &ops[i % 2];
        if (i >= 2)
            DSC_TRY(dsc_aio_wait(aio, op, err));
        op->write = write;
        op->buf = buf + i % 2 * each;
        op->bytes = dsc_min_i64(each, b->bytes - at);
        op->offset = at;
        dsc_aio_submit(aio, op);
    }
    for (int64_t left = dsc_min_i64(2, i); left > 0; left--)
        DSC_TRY(dsc_aio_wait(aio, &ops[(i - left) % 2], err));
    return DSC_OK;
}

static dsc_status answer(bench *b, const command *c, dsc_error *err)
{
    dsc_aio *aio = NULL;
    dsc_buf buf = { 0 };
    const int64_t each = (c->kib << 10) * c->depth;
    const dsc_aio_options options = { .alloc = b->alloc,
                                      .engine = c->engine,
                                      .block_bytes = c->kib << 10,
                                      .queue_depth = c->depth,
                                      .thread_count = 4,
                                      .overlap_events = true };
    DSC_TRY(dsc_aio_open(&options, &aio, err));
    dsc_status status = dsc_buf_open(b->alloc, DSC_TAG_IO, DSC_TIER_PINNED, 2 * each, &buf, err);
    if (status == DSC_OK) {
        fill(buf.ptr, 2 * each);
        status = dsc_aio_register(aio, buf.ptr, 2 * each, err);
    }
    const double cpu = cpu_seconds();
    const int64_t start = dsc_clock_ns();
    if (status == DSC_OK)
        status = move_file(b, aio, strcmp(c->direction, "write") == 0, buf.ptr, each, err);
    if (status == DSC_OK)
        printf("%.9f %.9f\n", (double)(dsc_clock_ns() - start) * 1e-9, cpu_seconds() - cpu);
    dsc_aio_close(&aio);
    dsc_buf_close(&buf);
    return status;
}

static dsc_status serve(bench *b, dsc_error *err)
{
    char line[128];
    command c;
    while (fgets(line, sizeof line, stdin) != NULL &&
           sscanf(line, "%15s %15s %lld %d", c.direction, c.engine, &c.kib, &c.depth) == 4) {
        if (c.kib < 4 || c.kib > 1 << 20 || c.depth < 1 || c.depth > DSC_AIO_DEPTH_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, "bench_io", "cannot do \"%s\"", line);
        dsc_status status = answer(b, &c, err);
        if (status == DSC_ERR_UNSUPPORTED) /* this engine is not here: the others are measured */
            printf("none\n");
        else
            DSC_TRY(status);
        fflush(stdout);
    }
    return DSC_OK;
}

int main(int argc, char **argv)
{
    dsc_error err = DSC_ERROR_INIT;
    bench b = { .file = DSC_AIO_FILE_INIT, .bytes = argc == 3 ? atoll(argv[2]) << 20 : 0 };
    if (b.bytes < 1) {
        fprintf(stderr, "bench_io FILE MIB\n");
        return 2;
    }
    dsc_status status = dsc_alloc_open(&b.alloc, &err);
    if (status == DSC_OK)
        status = dsc_aio_file_open(argv[1], false, &b.file, &err);
    if (status == DSC_OK)
        status = serve(&b, &err);
    if (status != DSC_OK)
        fprintf(stderr, "bench_io: %s: %s\n", err.where, err.message);
    dsc_aio_file_close(&b.file);
    dsc_alloc_close(&b.alloc);
    return status == DSC_OK ? 0 : 1;
}
