/* init_params.c - first values of the parameters: from the model's files or from its initialisation.
 *
 * Random values depend on (seed, tensor, element) only, so each rank makes just its own slices. Values that come from
 * the host (a file, a user's table) are rank 0's, broadcast in pieces, and each rank keeps what it owns. Where the host
 * can use device memory, random values are made in place; else in the buffer, a piece at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/rng.h"
#include "engine/device.h"
#include "engine/init_values.h"
#include "engine/internal.h"
#include "engine/local_sgd.h"
#include "kernels/scalar.h"
#include "kernels/thread_pool.h"

#define INIT_CHUNK 65536 /* elements that one thread makes at a time */

/* Destination of a tensor's first values: the master weights, from which the parameters are converted. */
typedef struct target {
    int32_t group;
    dsc_plane plane;
    dsc_dtype dtype;
    int64_t at; /* element of this rank's slice */
} target;

static target target_of(const dsc_engine *engine, const dsc_layout_tensor *tensor, const dsc_zero_slice *slice,
                        int64_t tensor_first)
{
    return (target){ .group = tensor->group,
                     .plane = slice->trainable ? DSC_PLANE_MASTER : DSC_PLANE_PARAM,
                     .dtype = slice->trainable ? DSC_F32 : dsc_engine_dtype(engine),
                     .at = tensor->offset + tensor_first - slice->first };
}

static dsc_status view(dsc_engine *engine, const target *to, int64_t done, int64_t *count, void **ptr, dsc_error *err)
{
    return dsc_zero_view(engine->zero, to->group, to->plane, to->at + done, count, true, ptr, err);
}

/* Copies `count` elements, given in fp32, to the target, from its element `first` on. `values` is changed, and borrowed
 * until the compute stream passes. */
static dsc_status put(dsc_engine *engine, const target *to, int64_t first, int64_t count, float *values, dsc_error *err)
{
    const int64_t each = (int64_t)dsc_dtype_bytes(to->dtype);
    /* in place: element i is read before its bytes are written */
    for (int64_t i = 0; to->dtype != DSC_F32 && i < count; i++)
        dsc_put(values, i, to->dtype, values[i]);
    for (int64_t done = 0, now; done < count; done += now) {
        void *ptr;
        now = count - done;
        DSC_TRY(view(engine, to, first + done, &now, &ptr, err));
        DSC_TRY(dsc_copy(engine->compute, ptr, (const char *)values + done * each, now * each, err));
    }
    return DSC_OK;
}

/* Elements of the whole tensor, of which this rank may have a part. */
static void make_whole(const dsc_engine *engine, int32_t t, int64_t tensor_first, int64_t count, float *values)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    const uint64_t stream = dsc_rng_stream(DSC_RNG_INIT, (uint32_t)tensor->number);
    switch (tensor->spec->init) {
    case DSC_INIT_NORMAL:
        dsc_rng_normal((uint64_t)engine->config.seed, stream, tensor_first, count, 0.0f, tensor->spec->init_std,
                       values);
        break;
    case DSC_INIT_UNIFORM:
        dsc_rng_uniform((uint64_t)engine->config.seed, stream, tensor_first, count, tensor->spec->init_std, values);
        break;
    case DSC_INIT_ONES:
        for (int64_t i = 0; i < count; i++)
            values[i] = 1.0f;
        break;
    case DSC_INIT_ZEROS:
        memset(values, 0, (size_t)count * 4);
        break;
    case DSC_INIT_ROW_NORMS:
    case DSC_INIT_COLUMN_NORMS:
        DSC_ASSERT(false); /* dsc_engine_init_norms */
    }
}

void dsc_engine_init_values(const dsc_engine *engine, int32_t t, int64_t tensor_first, int64_t count, float *values)
{
    const dsc_param_spec *spec = engine->layout.tensor[t].spec;
    for (int64_t done = 0, now, whole; done < count; done += now) {
        now = dsc_param_whole_run(spec, tensor_first + done, count - done, &whole);
        make_whole(engine, t, whole, now, values + done);
    }
}

/* Elements of this rank's part from the model's files. */
static dsc_status load_part(const dsc_engine *engine, const dsc_layout_tensor *tensor, int64_t first, int64_t count,
                            float *values, bool *found, dsc_error *err)
{
    const dsc_model *model = engine->model;
    *found = true;
    for (int64_t done = 0, now, whole; done < count && *found; done += now) {
        now = dsc_param_whole_run(tensor->spec, first + done, count - done, &whole);
        DSC_TRY(model->load_param(model, tensor->module, tensor->param, whole, now, values + done, found, err));
    }
    return DSC_OK;
}

typedef struct make_job {
    const dsc_engine *engine;
    int32_t tensor;
    int64_t first, count;
    float *values;
} make_job;

static void make_chunks(void *ctx, int64_t first_chunk, int64_t last_chunk)
{
    const make_job *job = ctx;
    for (int64_t c = first_chunk; c < last_chunk; c++)
        dsc_engine_init_values(job->engine, job->tensor, job->first + c * INIT_CHUNK,
                               dsc_min_i64(INIT_CHUNK, job->count - c * INIT_CHUNK), job->values + c * INIT_CHUNK);
}

static void make_by_all(const dsc_engine *engine, int32_t t, int64_t tensor_first, int64_t count, float *values)
{
    const dsc_cpu_threads team = { .threads = engine->threads };
    make_job job = { engine, t, tensor_first, count, values };
    dsc_thread_pool_run(&team, dsc_div_ceil(count, INIT_CHUNK), make_chunks, &job);
}

/* This rank's part of one tensor, from its initialisation, by all threads. */
static dsc_status init_random(dsc_engine *engine, int32_t t, dsc_error *err)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    dsc_zero_slice slice;
    int64_t first;
    dsc_zero_slice_get(engine->zero, tensor->group, &slice);
    const int64_t count = dsc_layout_span(tensor, slice.first, slice.count, &first);
    const target to = target_of(engine, tensor, &slice, first);
    if (engine->host_visible && to.dtype == DSC_F32) {
        for (int64_t done = 0, now; done < count; done += now) {
            void *ptr;
            now = count - done;
            DSC_TRY(view(engine, &to, done, &now, &ptr, err));
            make_by_all(engine, t, first + done, now, ptr);
        }
        return DSC_OK;
    }
    const int64_t capacity = engine->io_buf.bytes / 4;
    for (int64_t done = 0; done < count; done += capacity) {
        const int64_t now = dsc_min_i64(capacity, count - done);
        float *values = engine->io_buf.ptr;
        DSC_TRY(dsc_stream_sync(engine->compute, err)); /* previous piece; generation takes far longer than the copy */
        make_by_all(engine, t, first + done, now, values);
        DSC_TRY(put(engine, &to, done, now, values, err));
    }
    return DSC_OK;
}

/* Values that the compute dtype does not hold would make each loss NaN, as values of a file that are not finite do. */
static dsc_status check_range(const dsc_engine *engine, int32_t t, int64_t first, int64_t count, const float *values,
                              dsc_error *err)
{
    const dsc_dtype dtype = dsc_engine_dtype(engine);
    const int64_t i = dsc_first_overflow(values, DSC_F32, dtype, count);
    if (i < 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, engine->config.own.model[0] != 0 ? engine->config.own.model : "the model",
                    "tensor \"%.200s\" has the value %g at element %lld, which is infinite in %s (at most %g); train "
                    "in %s", engine->layout.tensor[t].spec->name, (double)values[i], (long long)(first + i),
                    dsc_dtype_text(dtype), dsc_dtype_largest(dtype),
                    dtype == DSC_F16 ? "bf16 (bf16.enabled) or fp32" : "fp32");
}

static bool is_norms(const dsc_layout_tensor *tensor)
{
    return tensor->spec->init == DSC_INIT_ROW_NORMS || tensor->spec->init == DSC_INIT_COLUMN_NORMS;
}

/* Those of a file or, if there are none, norms. */
static dsc_status load_values(const dsc_engine *engine, int32_t t, int64_t first, int64_t count, float *values,
                              bool *found, dsc_error *err)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    const dsc_model *model = engine->model;
    *found = false;
    if (model->load_param != NULL)
        DSC_TRY(load_part(engine, tensor, first, count, values, found, err));
    if (*found || !is_norms(tensor))
        return DSC_OK;
    *found = true;
    return dsc_engine_init_norms(engine, t, first, count, values, err);
}

/* Ranks of several groups have other tensors. */
static bool has_groups(const dsc_engine *engine)
{
    return dsc_stages_are_used(&engine->stages) || dsc_tensor_is_shared_out(engine);
}

dsc_comm *dsc_engine_values_comm(const dsc_engine *engine)
{
    return has_groups(engine) ? dsc_engine_shards(engine) : engine->comms.all;
}

/* Rank 0's values in pieces. *found is false, on all ranks alike, when the model has none for this tensor. */
static dsc_status init_loaded(dsc_engine *engine, int32_t t, bool *found, dsc_error *err)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    dsc_comm *const comm = dsc_engine_values_comm(engine);
    dsc_zero_slice slice;
    dsc_zero_slice_get(engine->zero, tensor->group, &slice);
    float *values = (float *)((char *)engine->io_buf.ptr + 256);
    const int64_t capacity = (engine->io_buf.bytes - 256) / 4;
    struct verdict { int32_t found; dsc_error error; } verdict;
    DSC_TRY(dsc_stream_sync(engine->compute, err)); /* previous tensor */
    for (int64_t first = 0; first < tensor->count; first += capacity) {
        const int64_t count = dsc_min_i64(capacity, tensor->count - first);
        memset(&verdict, 0, sizeof verdict);
        if (dsc_comm_rank(comm) == 0) {
            bool here = false;
            const dsc_status status = load_values(engine, t, first, count, values, &here, &verdict.error);
            if (status == DSC_OK && here)
                (void)!check_range(engine, t, first, count, values, &verdict.error);
            verdict.found = here;
        }
        DSC_TRY(dsc_comm_broadcast(comm, DSC_CHANNEL_CONTROL, &verdict, (int64_t)sizeof verdict, 0, NULL, err));
        if (verdict.error.status != DSC_OK)
            return DSC_FAIL(err, verdict.error.status, verdict.error.where, "%s", verdict.error.message);
        *found = verdict.found != 0;
        if (!*found)
            return DSC_OK;
        DSC_TRY(dsc_comm_broadcast(comm, DSC_CHANNEL_CONTROL, values, count * 4, 0, NULL, err));
        int64_t span_first;
        const int64_t begin = dsc_max_i64(slice.first, tensor->offset + first);
        const int64_t end = dsc_min_i64(slice.first + slice.count, tensor->offset + first + count);
        if (begin < end && dsc_layout_span(tensor, begin, end - begin, &span_first) > 0) {
            const target to = target_of(engine, tensor, &slice, span_first);
            DSC_TRY(put(engine, &to, 0, end - begin, values + (span_first - first), err));
        }
        DSC_TRY(dsc_stream_sync(engine->compute, err));
    }
    return DSC_OK;
}

dsc_status dsc_engine_make_values(const dsc_engine *engine, int32_t t, int64_t first, int64_t count, float *values,
                                  dsc_error *err)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    bool found = false;
    DSC_ASSERT(dsc_comm_rank(dsc_engine_values_comm(engine)) == 0);
    if (engine->model->load_param != NULL)
        DSC_TRY(load_part(engine, tensor, first, count, values, &found, err));
    if (!found)
        make_by_all(engine, t, first, count, values);
    return found ? check_range(engine, t, first, count, values, err) : DSC_OK;
}

dsc_status dsc_engine_init_params(dsc_engine *engine, dsc_error *err)
{
    for (int32_t t = 0; t < engine->layout.tensor_count; t++) {
        bool found = false;
        if (engine->layout.group[engine->layout.tensor[t].group].packed != DSC_NF4_NONE ||
            dsc_stages_is_copy(engine, t))
            continue;
        if (engine->model->load_param != NULL || is_norms(&engine->layout.tensor[t]))
            DSC_TRY(init_loaded(engine, t, &found, err));
        if (!found)
            DSC_TRY(init_random(engine, t, err));
    }
    DSC_TRY(dsc_engine_init_packed(engine, err));
    DSC_TRY(dsc_engine_init_buffers(engine, err));
    DSC_TRY(dsc_zero_publish(engine->zero, err));
    DSC_TRY(dsc_local_sgd_start(engine, err));
    return dsc_stages_share_tied(engine, err);
}

dsc_status dsc_engine_need_values(dsc_engine *engine, dsc_error *err)
{
    if (!engine->values_due)
        return DSC_OK;
    DSC_TRY(dsc_engine_fail(engine, dsc_engine_init_params(engine, err), err));
    engine->values_due = false;
    return dsc_engine_fail(engine, dsc_engine_need_references(engine, err), err);
}
