/* cpu_card.c - see cpu_card.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/cpu_card.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/formats/json.h"
#include "base/io.h"
#include "engine/machine.h"
#include "engine/planned.h"
#include "kernels/exact.h"

#define FILE_BYTES_MAX (INT64_C(4) << 20)
#define WARM_STEPS 3
#define STEPS 12
#define MOST_BYTES (INT64_C(4) << 20)    /* of a copy, and of the leaves of a fold */
#define REGION_BYTES (INT64_C(64) << 20) /* more than caches hold */
#define PULL_BYTES (INT64_C(256) << 10)  /* at once, of two ranks: comm/transports/shm.c */
#define ROUNDS 15

/* ---- measuring ---- */

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The engine's own part is what a step takes beside its launches. */
static dsc_status measure_steps(dsc_engine *engine, const void *const *batch, int64_t micro_steps,
                                dsc_launch_times *times, double *engine_s, dsc_error *err)
{
    double own[STEPS];
    for (int s = -WARM_STEPS; s < STEPS; s++) {
        times->measures = s >= 0;
        times->seconds = 0;
        times->launches = 0;
        const double start = thread_s();
        DSC_TRY(plan_card_step(engine, batch, micro_steps, err));
        if (s >= 0)
            own[s] = fmax(0, thread_s() - start - times->seconds) / (double)dsc_max_i64(1, times->launches);
    }
    times->measures = false;
    qsort(own, STEPS, sizeof own[0], compare);
    *engine_s = own[STEPS / 2];
    return DSC_OK;
}

/* Another core, whose thread writes what this one then reads: as far as a rank's memory is from its neighbour. */
typedef struct writer {
    pthread_t thread;
    pthread_barrier_t meet; /* before and after each write */
    char *at;
    int64_t bytes; /* 0: the end */
    int core;
} writer;

static void stay_on(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *write_on_request(void *user)
{
    writer *w = user;
    stay_on(w->core);
    for (int value = 1;; value = -value) {
        pthread_barrier_wait(&w->meet);
        if (w->bytes == 0)
            return NULL;
        for (int64_t i = 0; i < w->bytes / (int64_t)sizeof(float); i++)
            ((float *)(void *)w->at)[i] = (float)value;
        pthread_barrier_wait(&w->meet);
    }
}

static void have_written(writer *w, char *at, int64_t bytes)
{
    w->at = at;
    w->bytes = bytes;
    pthread_barrier_wait(&w->meet);
    if (bytes > 0)
        pthread_barrier_wait(&w->meet);
}

/* Copies and folds of these sizes, of memory that another core has just written: what exchanges between ranks of a host
 * are made of. Each one takes other memory. */
static dsc_status measure_copies(dsc_stream *stream, char *memory, writer *other, dsc_launch_times *times,
                                 dsc_error *err)
{
    int64_t used = 0;
    times->measures = true;
    for (int round = 0; round < ROUNDS; round++)
        for (int64_t bytes = INT64_C(16) << 10; bytes <= MOST_BYTES; bytes *= 4)
            for (int64_t parts = 1; parts <= 4; parts++, used += bytes) {
                char *from = memory + used % (REGION_BYTES - MOST_BYTES), *to = from + REGION_BYTES;
                const dsc_ordered_reduce_args fold = { .acc = (float *)(void *)to,
                                                       .leaf = from,
                                                       .leaf_stride_bytes = bytes / 4,
                                                       .grad_part_count = parts,
                                                       .count = bytes / 16,
                                                       .leaf_dtype = DSC_F32,
                                                       .wire_dtype = DSC_F32,
                                                       .overwrite = true };
                have_written(other, from, bytes);
                DSC_TRY(parts == 1 ? dsc_copy(stream, to, from, bytes, err)
                                   : DSC_RUN(stream, ORDERED_REDUCE, &fold, err));
            }
    times->measures = false;
    return DSC_OK;
}

/* As the transport shm reads a neighbour's memory: in pieces that stay in the cache. */
static dsc_status pull_all(pid_t neighbour, char *memory, dsc_launch_times *times, dsc_error *err)
{
    int64_t used = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int64_t bytes = INT64_C(16) << 10; bytes <= MOST_BYTES; bytes *= 4, used += bytes) {
            const int64_t shape[DSC_LAUNCH_SHAPE] = { bytes };
            char *from = memory + used % (REGION_BYTES - MOST_BYTES);
            const double start = thread_s();
            for (int64_t at = 0; at < bytes; at += PULL_BYTES) {
                const int64_t piece = dsc_min_i64(PULL_BYTES, bytes - at);
                const struct iovec to = { memory + REGION_BYTES, (size_t)piece }, remote = { from + at, (size_t)piece };
                if (process_vm_readv(neighbour, &to, 1, &remote, 1, 0) != (ssize_t)piece)
                    return DSC_FAIL(err, DSC_ERR_IO, "dsc simulate", "process_vm_readv: %s", strerror(errno));
            }
            dsc_launch_times_add(times, DSC_LAUNCH_PULL, shape, thread_s() - start);
        }
    return DSC_OK;
}

/* The neighbour is a copy of this process, which writes its own pages and waits. */
static dsc_status measure_pulls(char *memory, dsc_launch_times *times, dsc_error *err)
{
    int ready[2], end[2];
    char word = 0;
    if (pipe(ready) != 0 || pipe(end) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc simulate", "pipe: %s", strerror(errno));
    const pid_t neighbour = fork();
    if (neighbour == 0) {
        close(end[1]);
        memset(memory, 1, (size_t)REGION_BYTES);
        (void)!write(ready[1], &word, 1);
        (void)!read(end[0], &word, 1); /* until the parent closes it */
        _exit(0);
    }
    close(ready[1]);
    close(end[0]);
    dsc_status status = DSC_OK;
    if (neighbour < 0 || read(ready[0], &word, 1) != 1)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "dsc simulate", "the system starts no process");
    if (status == DSC_OK)
        status = pull_all(neighbour, memory, times, err);
    close(ready[0]);
    close(end[1]);
    if (neighbour > 0)
        (void)waitpid(neighbour, NULL, 0);
    return status;
}

static int core_of(const cpu_set_t *usable, int number)
{
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, usable) && number-- == 0)
            return core;
    return core_of(usable, 0); /* one core has to be both */
}

static dsc_status measure_memory(dsc_stream *stream, char *memory, dsc_launch_times *times, dsc_error *err)
{
    cpu_set_t usable;
    writer other = { .bytes = 1 };
    if (pthread_getaffinity_np(pthread_self(), sizeof usable, &usable) != 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc simulate", "the system names no core of this thread");
    other.core = core_of(&usable, 1);
    if (pthread_barrier_init(&other.meet, NULL, 2) != 0)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc simulate", "the system has no memory for a barrier");
    dsc_status status = DSC_OK;
    if (pthread_create(&other.thread, NULL, write_on_request, &other) != 0)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "dsc simulate", "the system starts no thread");
    if (status == DSC_OK) {
        stay_on(core_of(&usable, 0));
        status = measure_copies(stream, memory, &other, times, err);
        if (status == DSC_OK)
            status = measure_pulls(memory, times, err);
        have_written(&other, NULL, 0);
        pthread_join(other.thread, NULL);
        (void)pthread_setaffinity_np(pthread_self(), sizeof usable, &usable);
    }
    pthread_barrier_destroy(&other.meet);
    return status;
}

/* The median all-gather of 4 KiB between two ranks, by this program's own bench. */
static dsc_status measure_exchange(double *seconds, dsc_error *err)
{
    char command[192], line[512];
    snprintf(command, sizeof command, "/proc/%d/exe comm bench --ranks 2 --kib 4 --rounds 101 --json", (int)getpid());
    fflush(stdout);
    FILE *bench = popen(command, "r");
    *seconds = 0;
    while (bench != NULL && fgets(line, sizeof line, bench) != NULL) {
        const char *at = strstr(line, "\"all_gather\"") != NULL ? strstr(line, "\"us\":") : NULL;
        if (at != NULL)
            *seconds = strtod(at + strlen("\"us\":"), NULL) * 1e-6;
    }
    if (bench != NULL && pclose(bench) == 0 && *seconds > 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_STATE, "dsc simulate", "two ranks could not exchange data; try dsc comm bench");
}

/* Values that batch tensor i may have: targets of a model with labels are classes. */
static uint32_t value_count(const dsc_model *model, int32_t i)
{
    if (i != 1 || model->labels.kind == DSC_LABELS_NONE)
        return (uint32_t)model->vocab_size;
    return model->labels.kind == DSC_LABELS_CLASS ? (uint32_t)dsc_max_i64(1, model->labels.count) : 1;
}

/* Tokens as varied as a text's: a step looks for equal ones. */
static void fill_tokens(const dsc_engine_planned *planned, void *const *batch)
{
    uint32_t state = 12345;
    for (int32_t i = 0; planned->model->vocab_size > 0 && i < planned->model->batch_count && i < 2; i++) {
        const dsc_batch_spec *spec = &planned->model->batch[i];
        const uint32_t values = value_count(planned->model, i);
        int64_t count = planned->config->train_micro_batch_size_per_gpu;
        for (int32_t d = 0; d < spec->dim_count; d++)
            count *= spec->dim[d];
        for (int64_t k = 0; spec->dtype == DSC_I32 && strcmp(spec->name, DSC_BATCH_PREDICTED) != 0 && k < count; k++) {
            state = state * 1664525u + 1013904223u;
            ((int32_t *)batch[i])[k] = (int32_t)((state >> 8) % values);
        }
    }
}

static dsc_status measure_open(dsc_engine *engine, dsc_alloc *alloc, dsc_launch_times *times, plan_card *card,
                               dsc_error *err)
{
    dsc_engine_planned planned;
    void *batch[PLAN_CARD_BATCH] = { NULL };
    dsc_buf memory = { 0 };
    dsc_engine_planned_get(engine, &planned);
    dsc_status status = plan_card_open_batch(alloc, &planned, batch, err);
    if (status == DSC_OK) {
        fill_tokens(&planned, batch);
        status = measure_steps(engine, (const void *const *)batch, planned.config->gradient_accumulation_steps, times,
                               &card->rates.launch_s, err);
    }
    if (status == DSC_OK)
        status = dsc_buf_open(alloc, DSC_TAG_SCRATCH, DSC_TIER_HOST, 2 * REGION_BYTES, &memory, err);
    if (status == DSC_OK)
        memset(memory.ptr, 0, (size_t)memory.bytes); /* the pages are there before the first timing */
    if (status == DSC_OK)
        status = measure_memory(planned.compute, memory.ptr, times, err);
    dsc_buf_close(&memory);
    for (int i = 0; i < PLAN_CARD_BATCH; i++)
        dsc_alloc_free(alloc, batch[i]);
    return status;
}

dsc_status cpu_card_measure(const dsc_engine_options *options, dsc_launch_times *times, plan_card *card, dsc_error *err)
{
    dsc_engine *engine = NULL;
    dsc_alloc *alloc = NULL;
    *card = (plan_card) { .measured = true };
    snprintf(card->rates.name, sizeof card->rates.name, "this CPU");
    card->rates.cores = dsc_machine_cores();
    card->rates.launches = times;
    DSC_TRY(measure_exchange(&card->rates.peer_s, err));
    DSC_TRY(dsc_alloc_open(&alloc, err));
    dsc_status status = dsc_engine_open_timed(&engine, options, times, err);
    if (status == DSC_OK)
        status = dsc_engine_peak_flops(engine, &card->peak_flops, err);
    if (status == DSC_OK)
        status = measure_open(engine, alloc, times, card, err);
    dsc_engine_close(&engine);
    dsc_alloc_close(&alloc);
    dsc_launch_times_settle(times);
    if (status == DSC_OK && times->full)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc simulate",
                        "a step has launches of more than %d shapes; measure a smaller model", DSC_LAUNCH_TIMES);
    return status;
}

/* ---- the file ---- */

static bool add_launch(cJSON *list, const dsc_launch_time *row)
{
    double shape[DSC_LAUNCH_SHAPE];
    for (int i = 0; i < DSC_LAUNCH_SHAPE; i++)
        shape[i] = (double)row->shape[i];
    cJSON *item = cJSON_CreateObject();
    return item != NULL && cJSON_AddItemToArray(list, item) &&
           cJSON_AddStringToObject(item, "kind", dsc_launch_kind_text(row->kind)) != NULL &&
           cJSON_AddItemToObject(item, "shape", cJSON_CreateDoubleArray(shape, DSC_LAUNCH_SHAPE)) &&
           cJSON_AddNumberToObject(item, "seconds", row->seconds) != NULL &&
           cJSON_AddNumberToObject(item, "count", (double)row->count) != NULL;
}

dsc_status cpu_card_write(const plan_card *card, const char *path, dsc_error *err)
{
    const dsc_launch_times *times = card->rates.launches;
    cJSON *root = cJSON_CreateObject();
    bool made = root != NULL && cJSON_AddStringToObject(root, "kind", "cpu") != NULL &&
                cJSON_AddNumberToObject(root, "cores", card->rates.cores) != NULL &&
                cJSON_AddNumberToObject(root, "peak_flops", card->peak_flops) != NULL &&
                cJSON_AddNumberToObject(root, "engine_s", card->rates.launch_s) != NULL &&
                cJSON_AddNumberToObject(root, "exchange_s", card->rates.peer_s) != NULL;
    cJSON *list = made ? cJSON_AddArrayToObject(root, "launches") : NULL;
    made = list != NULL;
    for (int32_t i = 0; made && i < times->count; i++)
        made = add_launch(list, &times->row[i]);
    char *text = made ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    if (text == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, path, "out of host memory: no card");
    const dsc_status status = dsc_io_write_all_atomic(NULL, path, text, (int64_t)strlen(text), err);
    cJSON_free(text);
    return status;
}

static bool number(const cJSON *object, const char *name, double low, double high, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    *out = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return *out >= low && *out <= high;
}

static int32_t kind_of(const char *text)
{
    for (int32_t kind = 0; kind < DSC_LAUNCH_KINDS; kind++)
        if (strcmp(dsc_launch_kind_text(kind), text) == 0)
            return kind;
    return -1;
}

/* Kernels of another version are left out: they are not launched here. `index`: in the file. */
static dsc_status read_launch(const char *path, const cJSON *item, int index, dsc_launch_times *times, dsc_error *err)
{
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(item, "kind");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    dsc_launch_time row = { .count = 1 };
    bool good = cJSON_IsString(kind) && cJSON_IsArray(shape) && cJSON_GetArraySize(shape) == DSC_LAUNCH_SHAPE &&
                number(item, "seconds", 0, 1e5, &row.seconds);
    for (int i = 0; good && i < DSC_LAUNCH_SHAPE; i++) {
        const cJSON *part = cJSON_GetArrayItem(shape, i);
        good = cJSON_IsNumber(part) && part->valuedouble >= 0 && part->valuedouble <= 0x1p62;
        row.shape[i] = good ? (int64_t)part->valuedouble : 0;
    }
    if (!good)
        return DSC_FAIL(
            err, DSC_ERR_INPUT, path,
            "launch %d has no kind, shape of %d numbers and seconds; measure again by dsc simulate --measure", index,
            DSC_LAUNCH_SHAPE);
    row.kind = kind_of(kind->valuestring);
    if (row.kind >= 0)
        times->row[times->count++] = row;
    return DSC_OK;
}

static dsc_status read_root(const char *path, const cJSON *root, dsc_launch_times *times, plan_card *card,
                            dsc_error *err)
{
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(root, "kind");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "launches"), *item;
    int index = 0;
    if (!cJSON_IsString(kind) || strcmp(kind->valuestring, "cpu") != 0 || !cJSON_IsArray(list) ||
        !number(root, "cores", 1, 65536, &card->rates.cores) ||
        !number(root, "peak_flops", 1, 1e18, &card->peak_flops) ||
        !number(root, "engine_s", 0, 1, &card->rates.launch_s) ||
        !number(root, "exchange_s", 0, 1, &card->rates.peer_s))
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "not the card of a CPU, which dsc simulate --measure FILE writes with the config to simulate");
    if (cJSON_GetArraySize(list) == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "no launches; measure again by dsc simulate --measure");
    if (cJSON_GetArraySize(list) > DSC_LAUNCH_TIMES)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "%d launches; expected at most %d", cJSON_GetArraySize(list),
                        DSC_LAUNCH_TIMES);
    cJSON_ArrayForEach(item, list) DSC_TRY(read_launch(path, item, index++, times, err));
    return DSC_OK;
}

dsc_status cpu_card_read(dsc_alloc *alloc, const char *path, dsc_launch_times *times, plan_card *card, dsc_error *err)
{
    static const dsc_json_limits limits = { FILE_BYTES_MAX, 8, 100000 };
    char *text = NULL;
    int64_t bytes;
    dsc_json *json = NULL;
    *card = (plan_card) { .measured = true };
    snprintf(card->rates.name, sizeof card->rates.name, "a measured CPU");
    card->rates.launches = times;
    DSC_TRY(dsc_io_read_all(NULL, alloc, path, FILE_BYTES_MAX, &text, &bytes, err));
    dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    if (status == DSC_OK)
        status = read_root(path, dsc_json_root(json), times, card, err);
    dsc_json_close(&json);
    dsc_alloc_free(alloc, text);
    return status;
}
