/* bench_io.c - reads or writes a whole file by our asynchronous engines whenever bench_io.py asks: bench_io FILE MIB
 *
 * Commands come line by line ("read io_uring 1024 32": direction, engine, KiB of a block, depth). While another
 * program has its turn, bench_io sleeps in read. The answer is "seconds cpu_seconds". Two operations of `depth` blocks
 * each take turns, as in a pipeline. Engine "swap" is swap space in the file's folder, by the engine of a run, with the
 * check of every block. Its direction may also be "both": one of two operations at once reads, the other writes. "move
 * swap 1024 32 READ WRITTEN" reads and writes these numbers of bytes at once, around the file again and again.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "offload/swap.h"

typedef struct command {
    char direction[16], engine[16];
    long long kib;
    int depth;
    long long moved[2]; /* bytes that "move" reads, and writes */
} command;

typedef struct bench {
    dsc_alloc *alloc;
    dsc_aio_file file;
    int64_t bytes;
    char folder[1024];
    dsc_swap *swap; /* opened at its first turn, and then kept with its engine and its shape */
    dsc_aio *swap_aio;
    command swap_shape;
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

static dsc_status open_engine(bench *b, const command *c, const char *engine, dsc_aio **aio, dsc_error *err)
{
    const dsc_aio_options options = { .alloc = b->alloc,
                                      .engine = engine,
                                      .block_bytes = c->kib << 10,
                                      .queue_depth = c->depth,
                                      .thread_count = 4,
                                      .overlap_events = true };
    return dsc_aio_open(&options, aio, err);
}

/* The direction whose share of its bytes is behind has the next turn. */
static dsc_status move_shares(bench *b, dsc_swap_op *const op[2], const long long total[2], char *buf, int64_t each,
                              dsc_error *err)
{
    int64_t done[2] = { 0, 0 }, at = 0;
    while (done[0] < total[0] || done[1] < total[1]) {
        const int writes =
            done[0] >= total[0] || (double)done[1] * (double)total[0] < (double)done[0] * (double)total[1];
        const int64_t left = dsc_align_up(total[writes] - done[writes], DSC_AIO_ALIGN);
        const int64_t bytes = dsc_min_i64(dsc_min_i64(each, left), b->bytes - at);
        DSC_TRY(dsc_swap_wait(op[writes], err));
        if (writes)
            dsc_swap_write(op[writes], buf + each, bytes, at);
        else
            dsc_swap_read(op[writes], buf, bytes, at);
        done[writes] += bytes;
        at = (at + bytes) % b->bytes;
    }
    DSC_TRY(dsc_swap_wait(op[0], err));
    return dsc_swap_wait(op[1], err);
}

static dsc_status move_once_round(bench *b, dsc_swap_op *const op[2], const char *direction, char *buf, int64_t each,
                                  dsc_error *err)
{
    dsc_status status = DSC_OK;
    int64_t i = 0;
    for (int64_t at = 0; at < b->bytes && status == DSC_OK; at += each, i++) {
        if (i >= 2)
            status = dsc_swap_wait(op[i % 2], err);
        if (status != DSC_OK)
            break;
        const int64_t bytes = dsc_min_i64(each, b->bytes - at);
        if (strcmp(direction, "write") == 0 || (strcmp(direction, "both") == 0 && i % 2 == 1))
            dsc_swap_write(op[i % 2], buf + i % 2 * each, bytes, at);
        else
            dsc_swap_read(op[i % 2], buf + i % 2 * each, bytes, at);
    }
    for (int64_t left = dsc_min_i64(2, i); left > 0 && status == DSC_OK; left--)
        status = dsc_swap_wait(op[(i - left) % 2], err);
    return status;
}

static dsc_status move_swap(bench *b, const command *c, char *buf, int64_t each, dsc_error *err)
{
    dsc_swap_op *op[2] = { NULL, NULL };
    dsc_status status = dsc_swap_op_open(b->swap, NULL, each, &op[0], err);
    if (status == DSC_OK)
        status = dsc_swap_op_open(b->swap, NULL, each, &op[1], err);
    if (status == DSC_OK && strcmp(c->direction, "move") == 0)
        status = move_shares(b, op, c->moved, buf, each, err);
    else if (status == DSC_OK)
        status = move_once_round(b, op, c->direction, buf, each, err);
    dsc_swap_op_close(&op[0]);
    dsc_swap_op_close(&op[1]);
    return status;
}

/* One shape for the whole run: its file and what was written there stay. */
static dsc_status open_swap(bench *b, const command *c, char *buf, int64_t each, dsc_error *err)
{
    const char *folders[] = { b->folder };
    const dsc_swap_options options = { .alloc = b->alloc, .aio = b->swap_aio, .tag = DSC_TAG_IO, .folders = folders,
                                       .folder_count = 1, .bytes = b->bytes };
    DSC_TRY(dsc_swap_open(&options, &b->swap, err));
    b->swap_shape = *c;
    const command first = { .direction = "write" };
    return move_swap(b, &first, buf, each, err); /* blocks that were never written cannot be read */
}

static dsc_status answer_swap(bench *b, const command *c, dsc_error *err)
{
    dsc_buf buf = { 0 };
    const int64_t each = (c->kib << 10) * c->depth;
    if (b->swap != NULL && (b->swap_shape.kib != c->kib || b->swap_shape.depth != c->depth))
        return DSC_FAIL(err, DSC_ERR_INPUT, "bench_io", "swap keeps its first shape");
    DSC_TRY(dsc_buf_open(b->alloc, DSC_TAG_IO, DSC_TIER_PINNED, 2 * each, &buf, err));
    fill(buf.ptr, 2 * each);
    dsc_status status = b->swap_aio == NULL ? open_engine(b, c, "auto", &b->swap_aio, err) : DSC_OK;
    if (status == DSC_OK && b->swap == NULL)
        status = open_swap(b, c, buf.ptr, each, err);
    const double cpu = cpu_seconds();
    const int64_t start = dsc_clock_ns();
    if (status == DSC_OK)
        status = move_swap(b, c, buf.ptr, each, err);
    if (status == DSC_OK)
        printf("%.9f %.9f\n", (double)(dsc_clock_ns() - start) * 1e-9, cpu_seconds() - cpu);
    dsc_buf_close(&buf);
    return status;
}

static dsc_status answer(bench *b, const command *c, dsc_error *err)
{
    dsc_aio *aio = NULL;
    dsc_buf buf = { 0 };
    const int64_t each = (c->kib << 10) * c->depth;
    DSC_TRY(open_engine(b, c, c->engine, &aio, err));
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
    while (fgets(line, sizeof line, stdin) != NULL) {
        const int words = sscanf(line, "%15s %15s %lld %d %lld %lld", c.direction, c.engine, &c.kib, &c.depth,
                                 &c.moved[0], &c.moved[1]);
        const bool moves = words == 6 && strcmp(c.direction, "move") == 0 && strcmp(c.engine, "swap") == 0;
        if (words != 4 && !moves)
            return DSC_OK;
        if (c.kib < 4 || c.kib > 1 << 20 || c.depth < 1 || c.depth > DSC_AIO_DEPTH_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, "bench_io", "cannot do \"%s\"", line);
        dsc_status status = strcmp(c.engine, "swap") == 0 ? answer_swap(b, &c, err) : answer(b, &c, err);
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
    const char *slash = strrchr(argv[1], '/');
    snprintf(b.folder, sizeof b.folder, "%.*s", slash != NULL ? (int)(slash - argv[1]) : 1,
             slash != NULL ? argv[1] : ".");
    if (status == DSC_OK)
        status = dsc_aio_file_open(argv[1], false, &b.file, &err);
    if (status == DSC_OK)
        status = serve(&b, &err);
    if (status != DSC_OK)
        fprintf(stderr, "bench_io: %s: %s\n", err.where, err.message);
    dsc_aio_close(&b.swap_aio);
    dsc_swap_close(&b.swap);
    dsc_aio_file_close(&b.file);
    dsc_alloc_close(&b.alloc);
    return status == DSC_OK ? 0 : 1;
}
