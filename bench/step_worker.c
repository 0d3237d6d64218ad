/* step_worker.c - our half of a paired bench of training steps: one rank that makes one optimizer step per line on
 * stdin.
 *
 *     step_worker CONFIG VOCAB SEQUENCE [PREDICTIONS]   or   step_worker CONFIG CLASSES SIDE pictures
 *                                            prints "ready" when open, then per step milliseconds, loss, peak KiB of
 *                                            the process, peak bytes of device memory that the engine counts, and the
 *                                            milliseconds of the step's forward and backward passes. PREDICTIONS: of
 *                                            each sample of a masked model
 * A line "run K" makes K steps behind one that is not timed, whose update may go on in the background; the milliseconds
 * are their mean. The answer comes when nothing is under way any more.
 * "steps K", "beside K DIR" (a save to DIR is written meanwhile, and its end waited for), "save DIR" and "load DIR" are
 * answered by the seconds that they took.
 * Tokens are a fixed pseudo-random sequence. Ranks come from the environment. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <dsc/dsc.h>

typedef struct tokens { int64_t vocab, sequence, predictions; } tokens;

/* Pictures of three planes and `sequence` pixels to a side, of `vocab` classes. */
static dsc_status fill_pictures(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    (void)first_sample, (void)err;
    const tokens *t = user;
    uint32_t state = 12345;
    for (int64_t i = 0; i < count * 3 * t->sequence * t->sequence; i++) {
        state = state * 1664525u + 1013904223u;
        ((float *)data[0])[i] = (float)(state >> 8) * 0x1p-23f - 1;
    }
    for (int64_t i = 0; i < count; i++)
        ((int32_t *)data[1])[i] = (int32_t)(i * 7919 % t->vocab);
    return DSC_OK;
}

/* Every step sees the same tokens, as the peers' do. */
static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    (void)first_sample, (void)err;
    const tokens *t = user;
    uint32_t state = 12345;
    for (int64_t i = 0; i < count * t->sequence; i++) {
        state = state * 1664525u + 1013904223u;
        ((int32_t *)data[0])[i] = (int32_t)((state >> 8) % (uint32_t)t->vocab);
        if (t->predictions == 0)
            ((int32_t *)data[1])[i] = (int32_t)((state >> 7) % (uint32_t)t->vocab);
    }
    for (int64_t i = 0; i < count * t->predictions; i++) {
        ((int32_t *)data[1])[i] = (int32_t)(i * 7919 % t->vocab);
        ((int32_t *)data[2])[i] = (int32_t)(i % t->predictions * (t->sequence / t->predictions));
    }
    return DSC_OK;
}

static int64_t device_bytes(const dsc_engine *engine)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < dsc_engine_plan_row_count(engine); i++) {
        dsc_plan_row row;
        if (dsc_engine_plan_row(engine, i, &row, NULL) == DSC_OK && strcmp(row.tier, "device") == 0)
            bytes += row.peak_bytes;
    }
    return bytes;
}

/* Reports one step; with `more` > 0, the mean of that many steps after one that is not timed. */
static dsc_status answer(dsc_engine *engine, long more, dsc_error *err)
{
    double step_ms = 0, passes_ms = 0;
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    for (long i = 0; i <= more; i++) {
        dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        dsc_engine_stats_get(engine, &stats);
        if (i == 0 && more > 0)
            continue;
        step_ms += (double)result.step_ns * 1e-6;
        passes_ms += (double)(stats.forward_ns + stats.backward_ns) * 1e-6;
    }
    if (more > 0)
        DSC_TRY(dsc_engine_barrier(engine, err));
    const double count = more > 0 ? (double)more : 1;
    struct rusage usage = { 0 };
    getrusage(RUSAGE_SELF, &usage);
    printf("%.3f %.6f %ld %lld %.3f\n", step_ms / count, result.loss, usage.ru_maxrss,
           (long long)device_bytes(engine), passes_ms / count);
    fflush(stdout);
    return DSC_OK;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One of "steps", "beside", "save" and "load"; *known = false: another line. */
static dsc_status timed(dsc_engine *engine, const char *line, bool *known, dsc_error *err)
{
    char word[16] = "", dir[1024] = "";
    long steps = 0;
    *known = sscanf(line, "steps %ld", &steps) == 1 || sscanf(line, "beside %ld %1023s", &steps, dir) == 2 ||
             sscanf(line, "%15s %1023s", word, dir) == 2;
    *known = *known && (word[0] == 0 || strcmp(word, "save") == 0 || strcmp(word, "load") == 0);
    if (!*known)
        return DSC_OK;
    const double start = now_s();
    if (strcmp(word, "save") == 0)
        DSC_TRY(dsc_engine_save(engine, dir, err));
    if (strcmp(word, "load") == 0)
        DSC_TRY(dsc_engine_load(engine, dir, err));
    if (word[0] == 0 && dir[0] != 0)
        DSC_TRY(dsc_engine_save_start(engine, dir, err));
    for (long i = 0; i < steps; i++)
        DSC_TRY(dsc_engine_train_batch(engine, NULL, err));
    DSC_TRY(dsc_engine_save_wait(engine, NULL, err));
    printf("%.6f\n", now_s() - start);
    fflush(stdout);
    return DSC_OK;
}

static dsc_status run(const char *config, tokens *t, bool pictures, dsc_error *err)
{
    char line[1100];
    dsc_engine *engine = NULL;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_path = config;
    options.data = (dsc_data_source) { pictures ? fill_pictures : fill, t, 0 };
    DSC_TRY(dsc_engine_open(&engine, &options, err));
    printf("ready\n");
    fflush(stdout);
    dsc_status status = DSC_OK;
    while (status == DSC_OK && fgets(line, sizeof line, stdin) != NULL) {
        long more = 0;
        bool known;
        status = timed(engine, line, &known, err);
        if (known || status != DSC_OK)
            continue;
        if (sscanf(line, "run %ld", &more) != 1)
            more = 0;
        status = answer(engine, more, err);
    }
    dsc_engine_close(&engine);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: %s CONFIG VOCAB SEQUENCE [PREDICTIONS|pictures]\n", argv[0]);
        return 2;
    }
    const bool pictures = argc == 5 && strcmp(argv[4], "pictures") == 0;
    tokens t = { atoll(argv[2]), atoll(argv[3]), argc == 5 && !pictures ? atoll(argv[4]) : 0 };
    dsc_error err = DSC_ERROR_INIT;
    char text[1024];
    const dsc_status status = run(argv[1], &t, pictures, &err);
    if (status != DSC_OK)
        fprintf(stderr, "step_worker: %s\n", dsc_error_format(&err, text, sizeof text));
    return dsc_status_exit_code(status);
}
