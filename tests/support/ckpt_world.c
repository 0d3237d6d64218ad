/* ckpt_world.c - see ckpt_world.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ckpt_world.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/hash.h"
#include "tests/support/probe.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/toy_model.h"

typedef struct cw_world {
    dsc_world *world;
    pthread_barrier_t barrier;
    pthread_mutex_t mutex;
    cw_script script;
    float *whole[64][3]; /* [tensor] weights or master, m, v */
    char hex[65];
} cw_world;

_Noreturn void cw_fail(const char *what, const char *file, int line, const char *why)
{
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, why);
    abort();
}

static void must(bool ok, const char *what)
{
    if (!ok)
        cw_fail(what, __FILE__, __LINE__, "");
}

/* ---- ranks ---- */

static void offload_text(const cw_options *o, char *out, size_t out_bytes)
{
    out[0] = 0;
    if (o->files == NULL)
        return;
    const int bytes = snprintf(out, out_bytes, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
                               "\"%.900s\"}", o->files);
    if (o->stage == 3)
        snprintf(out + bytes, out_bytes - (size_t)bytes, ", \"offload_param\": {\"device\": \"nvme\", "
                 "\"nvme_path\": \"%.900s\"}", o->files);
}

static void *run_rank(void *argument)
{
    cw_rank *rank = argument;
    const cw_options *o = rank->options;
    char config[4096], offload[2100];
    offload_text(o, offload, sizeof offload);
    const int batch = o->batch != 0 ? (int)o->batch : 12;
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d%s%s},"
             " \"dsc\": {\"threads\": 1, \"seed\": %lld, \"comm_timeout_s\": 30, \"save_async\": %s,"
             " \"aio\": \"%s\"%s%s%s}, \"checkpoint\": {\"use_node_local_storage\": %s}}",
             batch / (int)o->world, o->optimizer != NULL ? o->optimizer : "AdamW", o->bf16 ? "true" : "false",
             (int)o->stage, offload, o->zero != NULL ? o->zero : "",
             (long long)(o->seed != 0 ? o->seed : 5), o->async ? "true" : "false", o->aio != NULL ? o->aio : "auto",
             o->own_samples ? "" : ", \"reproducible\": \"world_size\"",
             o->bf16_moments ? ", \"moments\": \"bf16\"" : "", o->own != NULL ? o->own : "",
             o->node_local ? "true" : "false");
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = config;
    options.model = o->model;
    options.data = (o->model->vocab_size > 0 ? tiny_gpt_data : toy_data)(o->model, 1 << 20);
    options.world = rank->world->world;
    options.rank = rank->rank;
    options.log = o->log;
    options.flags = o->flags;
    options.cpu_caps_mask = o->caps_mask != 0 ? o->caps_mask : 0xffffffffu;
    rank->status = dsc_engine_open(&rank->engine, &options, &rank->error);
    must(rank->status == DSC_OK, rank->error.message);
    rank->status = rank->world->script(rank, &rank->error);
    dsc_engine_close(&rank->engine);
    return NULL;
}

void cw_run(const cw_options *options, cw_script script, void *user, cw_rank ranks[CW_RANKS_MAX])
{
    cw_world world = { .script = script };
    pthread_t threads[CW_RANKS_MAX];
    must(options->world <= CW_RANKS_MAX && (options->batch != 0 ? options->batch : 12) % options->world == 0,
         "world size");
    must(dsc_world_open(options->world, &world.world, NULL) == DSC_OK, "no world");
    pthread_mutex_init(&world.mutex, NULL);
    pthread_barrier_init(&world.barrier, NULL, (unsigned)options->world);
    for (int32_t r = 0; r < options->world; r++) {
        ranks[r] = (cw_rank){ .world = &world, .options = options, .rank = r, .user = user, .error = DSC_ERROR_INIT };
        must(pthread_create(&threads[r], NULL, run_rank, &ranks[r]) == 0, "no thread");
    }
    for (int32_t r = 0; r < options->world; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&world.barrier);
    pthread_mutex_destroy(&world.mutex);
    dsc_world_close(&world.world);
}

void cw_run_well(const cw_options *options, cw_script script, void *user)
{
    cw_rank ranks[CW_RANKS_MAX];
    cw_run(options, script, user, ranks);
    for (int32_t r = 0; r < options->world; r++)
        if (ranks[r].status != DSC_OK)
            cw_fail(ranks[r].error.where, __FILE__, __LINE__, ranks[r].error.message);
}

dsc_status cw_make_trip(cw_rank *rank, dsc_error *err)
{
    cw_trip *t = rank->user;
    char saved[65], end[65];
    if (t->load != NULL)
        DSC_TRY(dsc_engine_load(rank->engine, t->load, err));
    DSC_TRY(cw_train(rank, t->save_step, err));
    cw_hash(rank, saved);
    if (t->save != NULL)
        DSC_TRY(cw_save(rank, t->save, err));
    DSC_TRY(cw_train(rank, t->end_step, err));
    cw_hash(rank, end);
    if (rank->rank != 0)
        return DSC_OK;
    memcpy(t->saved_hash, saved, 65);
    memcpy(t->end_hash, end, 65);
    memcpy(t->loss, rank->loss, sizeof t->loss);
    return DSC_OK;
}

dsc_status cw_train(cw_rank *rank, int64_t until_step, dsc_error *err)
{
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    while (dsc_probe_step(rank->engine) < until_step) {
        DSC_TRY(dsc_engine_train_batch(rank->engine, &result, err));
        rank->loss[result.step] = result.loss;
    }
    return DSC_OK;
}

dsc_status cw_save(cw_rank *rank, const char *dir, dsc_error *err)
{
    if (!rank->options->async)
        return dsc_engine_save(rank->engine, dir, err);
    DSC_TRY(dsc_engine_save_start(rank->engine, dir, err));
    return dsc_engine_save_wait(rank->engine, NULL, err);
}

void cw_barrier(cw_rank *rank) { pthread_barrier_wait(&rank->world->barrier); }

/* ---- the hash of what is in memory ---- */

static void collect(cw_world *world, dsc_engine *engine)
{
    const dsc_layout *layout = dsc_probe_layout(engine);
    must(layout->tensor_count <= 64, "too many tensors");
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        dsc_zero_slice slice;
        dsc_zero_slice_get(dsc_probe_zero(engine), tensor->group, &slice);
        static const dsc_plane planes[3] = { DSC_PLANE_MASTER, DSC_PLANE_MOMENT1, DSC_PLANE_MOMENT2 };
        int64_t first;
        const int64_t count = dsc_layout_span(tensor, slice.first, slice.count, &first);
        for (int s = 0; s < (slice.trainable ? 3 : 1); s++) {
            float **whole = &world->whole[t][s];
            if (*whole == NULL)
                *whole = calloc((size_t)tensor->count, sizeof **whole);
            must(*whole != NULL, "no memory");
            const dsc_plane plane = slice.trainable ? planes[s] : DSC_PLANE_PARAM;
            const bool bf16 = dsc_zero_dtype(dsc_probe_zero(engine), plane) == DSC_BF16;
            for (int64_t done = 0, now; done < count; done += now) {
                void *from;
                now = count - done;
                must(dsc_zero_view(dsc_probe_zero(engine), tensor->group, plane,
                                   tensor->offset + first + done - slice.first, &now, false, &from, NULL) == DSC_OK,
                     "a view");
                if (dsc_zero_dtype(dsc_probe_zero(engine), plane) == DSC_U8) {
                    const int64_t at = tensor->offset + first + done - slice.first;
                    const float *absmax = dsc_zero_absmax(dsc_probe_zero(engine), tensor->group, s - 1, at);
                    dsc_q8_values(s - 1, from, absmax, now, *whole + first + done);
                    continue;
                }
                for (int64_t i = 0; i < now; i++)
                    (*whole)[first + done + i] =
                        bf16 ? dsc_f32_from_bf16(((const uint16_t *)from)[i]) : ((const float *)from)[i];
            }
        }
    }
}

static const dsc_layout *sort_layout; /* qsort has no context; one hash is made at a time, under the mutex */
static int by_name(const void *a, const void *b)
{
    return strcmp(sort_layout->tensor[*(const int32_t *)a].spec->name,
                  sort_layout->tensor[*(const int32_t *)b].spec->name);
}

static void hash_whole(cw_world *world, const dsc_engine *engine)
{
    static int32_t order[64];
    const dsc_layout *layout = dsc_probe_layout(engine);
    dsc_sha256 sha;
    uint8_t digest[32];
    const uint64_t step = (uint64_t)dsc_probe_step(engine);
    for (int32_t t = 0; t < layout->tensor_count; t++)
        order[t] = t;
    sort_layout = layout;
    qsort(order, (size_t)layout->tensor_count, sizeof *order, by_name);
    dsc_sha256_init(&sha);
    for (int32_t i = 0; i < layout->tensor_count; i++) {
        const int32_t t = order[i];
        const dsc_param_spec *spec = layout->tensor[t].spec;
        const uint32_t dims = (uint32_t)spec->dim_count;
        dsc_sha256_update(&sha, spec->name, strlen(spec->name) + 1);
        dsc_sha256_update(&sha, &dims, 4);
        dsc_sha256_update(&sha, spec->dim, dims * 8);
        for (int s = 0; s < 3; s++) {
            if (world->whole[t][s] != NULL)
                dsc_sha256_update(&sha, world->whole[t][s], (size_t)layout->tensor[t].count * 4);
            free(world->whole[t][s]);
            world->whole[t][s] = NULL;
        }
    }
    dsc_sha256_update(&sha, &step, 8);
    dsc_sha256_final(&sha, digest);
    dsc_hex(world->hex, digest, 32);
}

void cw_hash(cw_rank *rank, char hex[65])
{
    static pthread_mutex_t sorting = PTHREAD_MUTEX_INITIALIZER;
    cw_world *world = rank->world;
    must(dsc_zero_sync(dsc_probe_zero(rank->engine), NULL) == DSC_OK, "cannot wait for the streams");
    pthread_mutex_lock(&world->mutex);
    collect(world, rank->engine);
    pthread_mutex_unlock(&world->mutex);
    cw_barrier(rank);
    if (rank->rank == 0) {
        pthread_mutex_lock(&sorting);
        hash_whole(world, rank->engine);
        pthread_mutex_unlock(&sorting);
    }
    cw_barrier(rank);
    memcpy(hex, world->hex, 65);
    cw_barrier(rank);
}

/* ---- faults ---- */

static dsc_status before(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes, int *errno_value)
{
    (void)op, (void)path, (void)offset, (void)bytes;
    cw_fault *fault = user;
    const int64_t count = atomic_fetch_add(&fault->count, 1) + 1;
    const bool second = fault->again > 0 && count == fault->n + fault->again;
    if (fault->n == 0 || count < fault->n || (count > fault->n && !fault->persistent && !second))
        return DSC_OK;
    atomic_store(&fault->fired, true);
    *errno_value = fault->errno_value;
    return DSC_ERR_IO;
}

void cw_fault_arm(cw_rank *rank, cw_fault *fault)
{
    dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ fault != NULL ? before : NULL, fault });
}

/* ---- folders ---- */

static char *make_tmp(const char *parent)
{
    char *dir = malloc(4096);
    must(dir != NULL, "no memory");
    snprintf(dir, 4096, "%s/dsc-ckpt-XXXXXX", parent);
    must(mkdtemp(dir) != NULL, "no folder for the test");
    return dir;
}

char *cw_tmp_open(void)
{
    const char *parent = getenv("TMPDIR");
    return make_tmp(parent != NULL && parent[0] != 0 ? parent : "/tmp");
}

char *cw_memory_tmp_open(void)
{
    int64_t room = 0;
    const bool usable = access("/dev/shm", W_OK) == 0 && dsc_io_free_bytes("/dev/shm", &room, NULL) == DSC_OK;
    return usable && room >= 32 << 20 ? make_tmp("/dev/shm") : cw_tmp_open();
}

void cw_tmp_close(char *dir)
{
    cw_remove(dir);
    free(dir);
}

char *cw_path(const char *dir, const char *name)
{
    static _Thread_local char ring[16][4096];
    static _Thread_local int at;
    char *out = ring[at++ % 16];
    snprintf(out, sizeof ring[0], "%s/%s", dir, name);
    return out;
}

bool cw_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

void cw_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return;
    if (!S_ISDIR(st.st_mode)) {
        must(unlink(path) == 0, path);
        return;
    }
    DIR *dir = opendir(path);
    must(dir != NULL, path);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            char inside[4096];
            snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
            cw_remove(inside);
        }
    closedir(dir);
    must(rmdir(path) == 0, path);
}

char *cw_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    must(file != NULL && fseek(file, 0, SEEK_END) == 0, path);
    const long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    must(text != NULL && fread(text, 1, (size_t)size, file) == (size_t)size, path);
    fclose(file);
    text[size] = 0;
    *bytes = (size_t)size;
    return text;
}

void cw_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    must(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, path);
}

void cw_copy_dir(const char *from, const char *to)
{
    DIR *dir = opendir(from);
    cw_remove(to);
    must(dir != NULL && mkdir(to, 0755) == 0, to);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        size_t bytes;
        char *data = cw_read(cw_path(from, entry->d_name), &bytes);
        cw_write(cw_path(to, entry->d_name), data, bytes);
        free(data);
    }
    closedir(dir);
}

void cw_hash_of(const char *step_dir, char hex[65])
{
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    CW_OK(dsc_alloc_open(&alloc, &err), &err);
    CW_OK(dsc_ckpt_verify(NULL, alloc, step_dir, &err), &err);
    CW_OK(dsc_ckpt_hash(NULL, alloc, step_dir, hex, &err), &err);
    dsc_alloc_close(&alloc);
}

void cw_expect_checkpoint(const char *step_dir, const char hex[65])
{
    char found[65];
    cw_hash_of(step_dir, found);
    if (strcmp(hex, found) != 0)
        cw_fail("the hash", __FILE__, __LINE__, step_dir);
}

int64_t cw_latest(const char *dir)
{
    const char *path = cw_path(dir, "latest");
    size_t bytes;
    int end = 0;
    long long step = -1;
    if (!cw_exists(path))
        return -1;
    char *text = cw_read(path, &bytes);
    must(sscanf(text, "step-%lld\n%n", &step, &end) == 1 && (size_t)end == bytes, text);
    free(text);
    return step;
}
