/* run_world.c - see run_world.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/run_world.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/hash.h"
#include "tests/support/probe.h"

typedef struct world_job {
    const run_options *options;
    dsc_world *world;
    run_result *out;
    float **whole; /* [whole_count]: tensor * PLANES + plane, assembled from every rank's slices */
    int32_t whole_count;
    pthread_mutex_t mutex;
    pthread_barrier_t barrier;
} world_job;

typedef struct rank_job {
    world_job *job;
    int32_t rank;
} rank_job;

/* Moments in U8: the values of the codes in the last quarter of `place`. */
static void values_of_codes(dsc_engine *engine, int32_t group, dsc_plane plane, int64_t at, int64_t count, float *place)
{
    const int32_t moment = (int32_t)(plane - DSC_PLANE_MOMENT1);
    const size_t bytes = (size_t)dsc_div_ceil(count, DSC_Q8_BLOCK) * sizeof(float);
    const float *from = dsc_zero_absmax(dsc_probe_zero(engine), group, moment, at);
    float *absmax = malloc(bytes);
    if (absmax == NULL || dsc_copy(dsc_probe_compute_stream(engine), absmax, from, (int64_t)bytes, NULL) != DSC_OK ||
        dsc_stream_sync(dsc_probe_compute_stream(engine), NULL) != DSC_OK)
        abort();
    dsc_q8_values(moment, (const uint8_t *)place + 3 * count, absmax, count, place);
    free(absmax);
}

/* A state in fewer bytes lies in the last ones of its buffer first. */
static void fetch(dsc_engine *engine, int32_t group, dsc_plane plane, int64_t at, int64_t count, float *to)
{
    const int64_t each = (int64_t)dsc_dtype_bytes(dsc_zero_dtype(dsc_probe_zero(engine), plane));
    for (int64_t done = 0, now; done < count; done += now) {
        void *from;
        now = count - done;
        if (dsc_zero_view(dsc_probe_zero(engine), group, plane, at + done, &now, false, &from, NULL) != DSC_OK)
            abort();
        char *place = (char *)(to + done) + now * (4 - each);
        if (dsc_copy(dsc_probe_compute_stream(engine), place, from, now * each, NULL) != DSC_OK ||
            dsc_stream_sync(dsc_probe_compute_stream(engine), NULL) != DSC_OK)
            abort();
        if (each == 1)
            values_of_codes(engine, group, plane, at + done, now, to + done);
        for (int64_t i = 0; each == 2 && i < now; i++) {
            uint16_t half;
            memcpy(&half, place + 2 * i, 2);
            to[done + i] = dsc_f32_from_bf16(half);
        }
    }
}

/* Masters, moments, what a matrix's rows and columns have, and what a whole tensor has. */
enum { PLANE_ROWS = 1 + DSC_UPDATE_STATES_MAX, PLANE_COLS, PLANE_TENSOR, PLANES };

static int64_t plane_elements(const dsc_layout_tensor *tensor, int s)
{
    if (s == PLANE_TENSOR)
        return DSC_TENSOR_STATES;
    return s < PLANE_ROWS ? tensor->count : s == PLANE_ROWS ? dsc_layout_rows(tensor) : dsc_layout_cols(tensor);
}

/* Every rank has all of them, and the same. */
static void collect_shared(world_job *job, dsc_engine *engine, int32_t t, int s)
{
    float **whole = &job->whole[t * PLANES + s];
    const int32_t own = dsc_probe_own_tensor(engine, t);
    const size_t bytes = (size_t)plane_elements(&dsc_probe_layout(engine)->tensor[own], s) * sizeof **whole;
    const float *mine = s == PLANE_TENSOR ? dsc_zero_tensor_state(dsc_probe_zero(engine), own)
                                          : dsc_zero_adafactor_factors(dsc_probe_zero(engine), own, s == PLANE_COLS);
    if (*whole == NULL)
        *whole = memcpy(malloc(bytes), mine, bytes);
    DSC_ASSERT(memcmp(*whole, mine, bytes) == 0);
}

static void collect(world_job *job, dsc_engine *engine)
{
    const dsc_layout *layout = dsc_probe_layout(engine);
    const int32_t tensors = dsc_probe_whole_layout(engine)->tensor_count;
    pthread_mutex_lock(&job->mutex);
    job->whole_count = tensors * PLANES;
    if (job->whole == NULL)
        job->whole = calloc((size_t)job->whole_count, sizeof *job->whole);
    for (int32_t t = 0; t < tensors; t++) {
        const int32_t own = dsc_probe_own_tensor(engine, t);
        if (own < 0) /* another stage's */
            continue;
        const dsc_layout_tensor *tensor = &layout->tensor[own];
        dsc_zero_slice slice;
        dsc_zero_slice_get(dsc_probe_zero(engine), tensor->group, &slice);
        static const dsc_plane planes[] = { DSC_PLANE_MASTER, DSC_PLANE_MOMENT1, DSC_PLANE_MOMENT2,
                                            DSC_PLANE_MOMENT3 };
        int64_t first;
        const int64_t count = dsc_layout_span(tensor, slice.first, slice.count, &first);
        const dsc_recipe recipe = dsc_layout_recipe(layout, tensor->group, dsc_probe_config(engine)->optimizer.recipe);
        for (int s = 0; s < 1 + dsc_recipes[recipe].state_count && slice.trainable; s++) {
            float **whole = &job->whole[t * PLANES + s];
            if (*whole == NULL)
                *whole = calloc((size_t)tensor->count, sizeof **whole);
            if (count > 0) /* else `first` is not an element */
                fetch(engine, tensor->group, planes[s], tensor->offset + first - slice.first, count, *whole + first);
        }
        for (int s = PLANE_ROWS; s <= PLANE_COLS && slice.trainable; s++)
            if ((dsc_recipes[recipe].needs & DSC_NEEDS_ROW_COL_STATS) != 0)
                collect_shared(job, engine, t, s);
        if (dsc_recipes[recipe].tensor_state != NULL && slice.trainable)
            collect_shared(job, engine, t, PLANE_TENSOR);
    }
    pthread_mutex_unlock(&job->mutex);
}

static void keep_states(world_job *job, const dsc_layout *layout)
{
    run_result *out = job->out;
    for (int32_t t = 0; t < layout->tensor_count; t++)
        for (int s = 0; s < PLANES; s++)
            out->state_count += job->whole[t * PLANES + s] != NULL ? plane_elements(&layout->tensor[t], s) : 0;
    out->state = calloc((size_t)out->state_count, sizeof *out->state);
    float *to = out->state;
    for (int32_t t = 0; t < layout->tensor_count; t++)
        for (int s = 0; s < PLANES; s++)
            if (job->whole[t * PLANES + s] != NULL) {
                memcpy(to, job->whole[t * PLANES + s], (size_t)plane_elements(&layout->tensor[t], s) * sizeof *to);
                to += plane_elements(&layout->tensor[t], s);
            }
}

/* Groups lie in another order where stage 3 gathers some in fp8; numbers do not depend on that. */
static int32_t numbered(const dsc_layout *layout, int32_t number)
{
    int32_t t = 0;
    while (layout->tensor[t].number != number)
        t++;
    return t;
}

static void hash_whole(world_job *job, const dsc_layout *layout)
{
    if (job->options->take_states)
        keep_states(job, layout);
    dsc_sha256 sha;
    uint8_t digest[32];
    dsc_sha256_init(&sha);
    for (int32_t n = 0; n < layout->tensor_count; n++)
        for (int s = 0, t = numbered(layout, n); s < PLANES; s++)
            if (job->whole[t * PLANES + s] != NULL)
                dsc_sha256_update(&sha, job->whole[t * PLANES + s], (size_t)plane_elements(&layout->tensor[t], s) * 4);
    dsc_sha256_final(&sha, digest);
    dsc_hex(job->out->hash, digest, sizeof digest);
}

/* All that other ranks have sent for parameters and gradients, and little else. On a CPU device the last gathers are
 * awaited here. Ranks on GPUs leave them to the next step, because a simulated GPU works only while its rank waits. */
static dsc_status received(dsc_engine *engine, int64_t *bytes, dsc_error *err)
{
    dsc_comm *const comms[] = { dsc_probe_device_comm(engine, DSC_PROBE_COMM_ALL),
                                dsc_probe_device_comm(engine, DSC_PROBE_COMM_NEIGHBOURS),
                                dsc_probe_device_comm(engine, DSC_PROBE_COMM_REPLICAS) };
    if (dsc_probe_host_visible(engine))
        DSC_TRY(dsc_probe_settle(engine, err));
    *bytes = 0;
    for (size_t c = 0; c < DSC_COUNT(comms); c++) {
        dsc_comm_stats stats = { 0 };
        if (comms[c] != NULL)
            dsc_comm_stats_get(comms[c], &stats);
        for (int op = 0; op < DSC_COMM_OP_COUNT; op++)
            *bytes += stats.bytes[op];
    }
    return DSC_OK;
}

static dsc_status train(rank_job *rank, dsc_engine *engine, dsc_error *err)
{
    int64_t before = 0;
    run_result *out = rank->job->out;
    if (rank->rank == 0)
        DSC_TRY(received(engine, &before, err));
    for (int64_t s = 0; s < rank->job->options->steps; s++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        dsc_engine_stats_get(engine, &stats);
        if (rank->rank != 0)
            continue;
        out->loss[s] = result.loss;
        out->norm[s] = result.grad_norm;
        out->steps = s + 1;
        out->alloc_calls_at_end = stats.alloc_calls;
        if (s == 0)
            out->alloc_calls_after_first = stats.alloc_calls;
    }
    if (rank->rank != 0)
        return DSC_OK;
    DSC_TRY(received(engine, &out->wire_bytes, err));
    out->wire_bytes = (out->wire_bytes - before) / rank->job->options->steps;
    return DSC_OK;
}

static void measure(dsc_engine *engine, run_result *out)
{
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_stats_get(engine, &stats);
    out->tracked_peak = stats.tracked_peak_bytes;
    out->planned = stats.planned_bytes;
    out->wire_planned = dsc_probe_plan(engine)->traffic.wire_bytes;
    out->wire_scalars = dsc_probe_scalar_bytes(engine);
    out->pass_reads_planned = dsc_probe_plan(engine)->traffic.pass_read_bytes;
    for (int32_t i = 0; i < dsc_engine_plan_row_count(engine); i++) {
        static const char *const states[4] = { "params", "grads", "master", "moments" };
        dsc_plan_row row;
        if (dsc_engine_plan_row(engine, i, &row, NULL) != DSC_OK ||
            strcmp(row.tier, dsc_tier_text(DSC_TIER_NVME)) == 0)
            continue;
        for (int s = 0; s < 4; s++)
            out->state_bytes[s] += strcmp(row.tag, states[s]) == 0 ? row.peak_bytes : 0;
        if (strcmp(row.tier, dsc_tier_text(DSC_TIER_DEVICE)) == 0) {
            out->device_planned += row.planned_bytes;
            out->device_peak += row.peak_bytes;
        }
    }
}

static void *run_rank(void *argument)
{
    rank_job *rank = argument;
    world_job *job = rank->job;
    const run_options *o = job->options;
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = o->config;
    options.model = o->model;
    options.data = o->data;
    options.world = job->world;
    options.rank = rank->rank;
    if (rank->rank == 0)
        options.log = o->log;
    options.cpu_caps_mask = o->caps_mask != 0 ? o->caps_mask : 0xffffffffu;
    if (rank->rank == o->fault_rank) {
        options.fail_alloc_at = o->fail_alloc_at;
        options.fail_comm_at = o->fail_comm_at;
        options.io = o->io;
    }
    dsc_status status = dsc_engine_open(&engine, &options, &err);
    if (status == DSC_OK && o->before != NULL)
        status = o->before(engine, rank->rank, o->user, &err);
    if (status == DSC_OK)
        status = train(rank, engine, &err);
    if (status == DSC_OK && o->after != NULL)
        status = o->after(engine, rank->rank, o->user, &err);
    if (status == DSC_OK)
        status = dsc_zero_sync(dsc_probe_zero(engine), &err); /* all ranks together: views are of an idle engine */
    if (status == DSC_OK) {
        collect(job, engine);
        if (rank->rank == 0)
            measure(engine, job->out);
    } else {
        pthread_mutex_lock(&job->mutex);
        job->out->ranks[rank->rank] = err;
        /* The rank that failed of itself is the one to report. */
        if (job->out->status == DSC_OK || job->out->status == DSC_ERR_PEER) {
            job->out->status = status;
            job->out->error = err;
        }
        pthread_mutex_unlock(&job->mutex);
    }
    if (status != DSC_OK)
        dsc_engine_close(&engine); /* its peers learn of it */
    pthread_barrier_wait(&job->barrier);
    if (rank->rank == 0 && job->out->status == DSC_OK)
        hash_whole(job, dsc_probe_whole_layout(engine));
    dsc_engine_close(&engine);
    return NULL;
}

void run_world(const run_options *options, run_result *out)
{
    world_job job = { .options = options, .out = out };
    pthread_t threads[RUN_RANKS_MAX];
    rank_job ranks[RUN_RANKS_MAX];
    memset(out, 0, sizeof *out);
    if (options->world > RUN_RANKS_MAX || dsc_world_open(options->world, &job.world, NULL) != DSC_OK)
        abort();
    pthread_mutex_init(&job.mutex, NULL);
    pthread_barrier_init(&job.barrier, NULL, (unsigned)options->world);
    for (int32_t r = 0; r < options->world; r++) {
        ranks[r] = (rank_job){ &job, r };
        if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0)
            abort();
    }
    for (int32_t r = 0; r < options->world; r++)
        pthread_join(threads[r], NULL);
    for (int32_t i = 0; i < job.whole_count; i++) /* also when only some ranks came so far */
        free(job.whole[i]);
    free(job.whole);
    pthread_barrier_destroy(&job.barrier);
    pthread_mutex_destroy(&job.mutex);
    dsc_world_close(&job.world);
}

void run_model(const dsc_model *model, dsc_data_source data, int32_t world, const char *config, const run_options *more,
               run_result *out)
{
    run_options options = *more;
    options.world = world;
    options.model = model;
    options.config = config;
    options.data = data;
    options.fault_rank = -1;
    run_world(&options, out);
}

dsc_status run_save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    return dsc_engine_save(engine, user, err);
}

dsc_status run_load(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    return dsc_engine_load(engine, user, err);
}

dsc_status run_steps(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    for (int64_t s = 0; s < *(const int64_t *)user; s++)
        DSC_TRY(dsc_engine_train_batch(engine, NULL, err));
    return DSC_OK;
}

dsc_status run_steps_and_save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    run_trip *trip = user;
    DSC_TRY(run_steps(engine, rank, &trip->steps, err));
    return run_save(engine, rank, trip->dir, err);
}
