/* io.c - `dsc io bench DIR`: how fast each engine reads and writes files in DIR by block size and depth; the best
 * setting as the `aio` section of a config. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "offload/aio.h"
#include "tools/dsc/tool.h"

#define ROUNDS_MAX 100

typedef struct settings {
    const char *dir, *engine; /* engine NULL: all */
    int64_t mib, rounds;
    bool json;
} settings;

typedef struct result {
    const char *engine;
    int64_t block_kib;
    int32_t depth;
    double gb_per_s[2], least[2], most[2]; /* read, write */
    double cpu_s_per_gb[2];
    bool direct;
} result;

typedef struct bench {
    dsc_alloc *alloc;
    dsc_aio_file file;
    dsc_buf buf; /* the whole file's bytes */
    int64_t bytes;
} bench;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double cpu_seconds(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + (double)t.tv_nsec * 1e-9 : 0;
}

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

/* The file has no name once it is open: a bench that is killed leaves nothing. */
static dsc_status open_bench(const settings *s, bench *b, dsc_error *err)
{
    char path[1024], name[64];
    int64_t free_bytes = 0;
    b->bytes = s->mib << 20;
    if (dsc_io_kind(s->dir) != DSC_PATH_DIR)
        return DSC_FAIL(err, DSC_ERR_INPUT, s->dir, "is not a folder");
    DSC_TRY(dsc_io_free_bytes(s->dir, &free_bytes, err));
    if (free_bytes < b->bytes + (64 << 20))
        return DSC_FAIL(err, DSC_ERR_NOFIT, s->dir, "the bench writes %lld MiB, %lld are free; take fewer by --mib",
                        (long long)s->mib, (long long)(free_bytes >> 20));
    snprintf(name, sizeof name, ".dsc-io-bench-%d-%lld", (int)getpid(), (long long)dsc_clock_wall_ns());
    DSC_TRY(dsc_path_join(path, sizeof path, s->dir, name, err));
    DSC_TRY(dsc_aio_file_open(path, true, &b->file, err));
    DSC_TRY(dsc_io_unlink(NULL, path, err));
    snprintf(b->file.path, sizeof b->file.path, "a file in %.900s", s->dir);
    DSC_TRY(dsc_buf_open(b->alloc, DSC_TAG_IO, DSC_TIER_PINNED, b->bytes, &b->buf, err));
    fill(b->buf.ptr, b->bytes);
    return DSC_OK;
}

static void close_bench(bench *b)
{
    dsc_buf_close(&b->buf);
    dsc_aio_file_close(&b->file);
}

static dsc_status pass(dsc_aio *aio, bench *b, bool write, double *seconds, double *cpu, dsc_error *err)
{
    dsc_aio_op op = { .file = &b->file, .write = write, .buf = b->buf.ptr, .bytes = b->bytes };
    const double cpu_start = cpu_seconds();
    const int64_t start = dsc_clock_ns();
    dsc_aio_submit(aio, &op);
    DSC_TRY(dsc_aio_wait(aio, &op, err));
    *seconds = (double)(dsc_clock_ns() - start) * 1e-9;
    *cpu += cpu_seconds() - cpu_start;
    return DSC_OK;
}

static dsc_status measure(const settings *s, bench *b, dsc_aio *aio, result *r, dsc_error *err)
{
    const double size = (double)b->bytes * 1e-9;
    double seconds[2][ROUNDS_MAX], cpu[2] = { 0, 0 };
    DSC_TRY(dsc_aio_register(aio, b->buf.ptr, b->bytes, err));
    (void)dsc_aio_keep_file(aio, &b->file); /* false: by its descriptor */
    for (int64_t round = 0; round < s->rounds; round++)
        for (int write = 1; write >= 0; write--)
            DSC_TRY(pass(aio, b, write == 1, &seconds[write][round], &cpu[write], err));
    for (int write = 0; write < 2; write++) {
        qsort(seconds[write], (size_t)s->rounds, sizeof(double), compare);
        r->gb_per_s[write] = size / seconds[write][s->rounds / 2];
        r->most[write] = size / seconds[write][0];
        r->least[write] = size / seconds[write][s->rounds - 1];
        r->cpu_s_per_gb[write] = cpu[write] / (double)s->rounds / size;
    }
    r->direct = b->file.direct;
    return DSC_OK;
}

static void print_result(const settings *s, const result *r)
{
    if (s->json)
        printf("{\"engine\":\"%s\",\"block_size\":%lld,\"queue_depth\":%d,\"direct\":%s,\"read_gb_per_s\":%.3f,"
               "\"write_gb_per_s\":%.3f,\"read_cpu_s_per_gb\":%.4f,\"write_cpu_s_per_gb\":%.4f}\n",
               r->engine, (long long)r->block_kib << 10, (int)r->depth, r->direct ? "true" : "false", r->gb_per_s[0],
               r->gb_per_s[1], r->cpu_s_per_gb[0], r->cpu_s_per_gb[1]);
    else
        printf("  %-8s %6lld KiB  depth %3d   read %6.2f GB/s  %5.2f .. %5.2f   write %6.2f GB/s  %5.2f .. %5.2f   cpu "
               "%.3f / %.3f s a GB\n",
               r->engine, (long long)r->block_kib, (int)r->depth, r->gb_per_s[0], r->least[0], r->most[0],
               r->gb_per_s[1], r->least[1], r->most[1], r->cpu_s_per_gb[0], r->cpu_s_per_gb[1]);
    fflush(stdout);
}

/* The setting with the least time to read and write the same bytes: what an optimizer step in swap does. */
static bool is_better(const result *a, const result *b)
{
    return 1 / a->gb_per_s[0] + 1 / a->gb_per_s[1] < 1 / b->gb_per_s[0] + 1 / b->gb_per_s[1];
}

/* The run takes the first engine that works here, unless the config names one. */
static void print_engine(const char *first, const char *best)
{
    if (strcmp(first, best) != 0)
        printf("  \"dsc\": { \"aio\": \"%s\" }\n", best);
}

static void print_best(const settings *s, const char *first, const result *best)
{
    if (s->json)
        return;
    printf("best here, %s, %s:\n", best->engine,
           best->direct ? "O_DIRECT" : "buffered (this file system has no O_DIRECT)");
    printf("  \"aio\": { \"block_size\": %lld, \"queue_depth\": %d, \"thread_count\": %d, \"single_submit\": false, "
           "\"overlap_events\": true }\n",
           (long long)best->block_kib << 10, (int)best->depth, strcmp(best->engine, "threads") == 0 ? 4 : 1);
    print_engine(first, best->engine);
}

static dsc_status bench_all(const settings *s, bench *b, dsc_error *err)
{
    static const char *const engines[] = { "io_uring", "libaio", "threads" };
    static const struct {
        int64_t kib;
        int32_t depth;
    } shapes[] = { { 128, 32 }, { 1024, 8 }, { 1024, 32 }, { 4096, 8 } };
    result best = { 0 };
    const char *first = NULL;
    for (size_t e = 0; e < DSC_COUNT(engines); e++) {
        if (s->engine != NULL && strcmp(s->engine, engines[e]) != 0)
            continue;
        for (size_t i = 0; i < DSC_COUNT(shapes); i++) {
            dsc_error why = DSC_ERROR_INIT;
            dsc_aio *aio = NULL;
            result r = { .engine = engines[e], .block_kib = shapes[i].kib, .depth = shapes[i].depth };
            const dsc_aio_options options = { .alloc = b->alloc,
                                              .engine = engines[e],
                                              .block_bytes = shapes[i].kib << 10,
                                              .queue_depth = shapes[i].depth,
                                              .thread_count = 4,
                                              .overlap_events = true };
            dsc_status status = dsc_aio_open(&options, &aio, &why);
            if (status == DSC_ERR_UNSUPPORTED && s->engine == NULL) {
                if (!s->json)
                    printf("  %-8s is not here: %s\n", engines[e], why.message);
                break;
            }
            if (status != DSC_OK) {
                *err = why;
                return status;
            }
            status = measure(s, b, aio, &r, err);
            if (!s->json && i == 0 && dsc_aio_warning(aio)[0] != 0)
                printf("  %s\n", dsc_aio_warning(aio));
            dsc_aio_close(&aio);
            DSC_TRY(status);
            first = first == NULL ? engines[e] : first;
            print_result(s, &r);
            if (best.engine == NULL || is_better(&r, &best))
                best = r;
        }
    }
    print_best(s, first, &best);
    return DSC_OK;
}

#define AT(field) offsetof(settings, field)
static const char *const engine_choices[] = { "io_uring", "libaio", "threads", NULL };
static const dsc_flag rows[] = {
    { "--mib", NULL, "N", DSC_FLAG_INTEGER, AT(mib), .min = 1, .max = 1 << 16,
      .help = "size of the test file in MiB; default 256" },
    { "--rounds", NULL, "N", DSC_FLAG_INTEGER, AT(rounds), .min = 1, .max = ROUNDS_MAX,
      .help = "measurements of each setting, whose median is printed; default 5" },
    { "--engine", NULL, "NAME", DSC_FLAG_CHOICE, AT(engine), .choices = engine_choices,
      .help = "only this engine: io_uring, libaio or threads; default: all that work here" },
    { "--json", NULL, NULL, DSC_FLAG_BOOL, AT(json), .help = "print one JSON object a line" },
};
static const dsc_positional folders[] = {
    { "DIR", "folder on the disk to measure, such as the nvme_path of a config", "folder", AT(dir), 1, 1 },
};
static const dsc_flag_command page = {
    .name = "dsc io bench",
    .description = "Measures how fast each engine reads and writes files in DIR, by block size and depth. "
                   "Prints the best "
                   "setting as the aio section of a config, and removes its file.",
    .flags = rows, .flag_count = DSC_COUNT(rows), .positionals = folders, .positional_count = 1,
};

static int run_bench(int argc, char **argv)
{
    settings s = { .mib = 256, .rounds = 5 };
    const int code = dsc_tool_parse(&page, argc, argv, &s);
    if (code >= 0)
        return code;
    dsc_error err = DSC_ERROR_INIT;
    bench b = { .file = DSC_AIO_FILE_INIT };
    if (dsc_alloc_open(&b.alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    dsc_status status = open_bench(&s, &b, &err);
    if (status == DSC_OK && !s.json)
        printf("%s, %lld MiB, %s; median of %lld, slowest .. fastest\n", s.dir, (long long)s.mib,
               b.file.direct ? "O_DIRECT" : "buffered", (long long)s.rounds);
    if (status == DSC_OK)
        status = bench_all(&s, &b, &err);
    close_bench(&b);
    dsc_alloc_close(&b.alloc);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}

int dsc_cmd_io(int argc, char **argv)
{
    static const dsc_tool_verb verbs[] = { { &page, run_bench } };
    return dsc_tool_run_verb("dsc io", "Measures the disk.", verbs, (int32_t)DSC_COUNT(verbs), argc, argv);
}
