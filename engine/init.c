/* init.c - first values of the parameters: from the model's files or from its initialisation.
 *
 * Random values depend on (seed, tensor, element) only, so each rank makes just its own slices. Values that come from
 * the host (a file, a user's table) are rank 0's, broadcast in pieces, and each rank keeps what it owns.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/bf16.h"
#include "base/rng.h"
#include "engine/internal.h"

#define INIT_CHUNK 65536 /* elements that one thread makes at a time */

/* Writes elements [tensor_first, + count) of a tensor, given in fp32, to where they lie in the slice. */
static void put(const dsc_zero_slice *slice, const dsc_layout_tensor *tensor, int64_t tensor_first, int64_t count,
                const float *values, dsc_dtype dtype)
{
    const int64_t at = tensor->offset + tensor_first - slice->first;
    if (slice->master != NULL)
        memcpy(slice->master + at, values, (size_t)count * 4);
    else if (dtype == DSC_F32)
        memcpy((float *)slice->param + at, values, (size_t)count * 4);
    else
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)slice->param)[at + i] = dsc_bf16_from_f32(values[i]);
}

static void make_chunk(const dsc_engine *engine, int32_t t, const dsc_zero_slice *slice, int64_t tensor_first,
                       int64_t count, float *values)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    switch (tensor->spec->init) {
    case DSC_INIT_NORMAL:
        dsc_rng_normal((uint64_t)engine->config.seed, dsc_rng_stream(DSC_RNG_INIT, (uint32_t)t), tensor_first, count,
                       0.0f, tensor->spec->init_std, values);
        break;
    case DSC_INIT_ONES:
        for (int64_t i = 0; i < count; i++)
            values[i] = 1.0f;
        break;
    case DSC_INIT_ZEROS:
        memset(values, 0, (size_t)count * 4);
        break;
    }
    put(slice, tensor, tensor_first, count, values,
        engine->config.precision == DSC_PRECISION_BF16 ? DSC_BF16 : DSC_F32);
}

/* This rank's part of one tensor, from its initialisation, by all threads. */
static void init_random(dsc_engine *engine, int32_t t)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    dsc_zero_slice slice;
    dsc_zero_slice_get(engine->zero, tensor->group, &slice);
    int64_t first;
    const int64_t count = dsc_layout_span(tensor, slice.first, slice.count, &first);
    const int64_t room = engine->io_buf.bytes / 4;
    /* Each thread needs a chunk of its own in the buffer. */
    const int64_t chunk = dsc_min_i64(INIT_CHUNK, room / engine->threads);
    const int64_t chunks = dsc_div_ceil(count, chunk);
#pragma omp parallel for num_threads(engine->threads) schedule(static)
    for (int32_t thread = 0; thread < engine->threads; thread++) {
        float *values = (float *)engine->io_buf.ptr + thread * chunk;
        for (int64_t c = thread; c < chunks; c += engine->threads)
            make_chunk(engine, t, &slice, first + c * chunk, dsc_min_i64(chunk, count - c * chunk), values);
    }
}

/* Rank 0's values in pieces. *found is false, on all ranks alike, when the model has none for this tensor. */
static dsc_status init_loaded(dsc_engine *engine, int32_t t, bool *found, dsc_error *err)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    dsc_zero_slice slice;
    dsc_zero_slice_get(engine->zero, tensor->group, &slice);
    float *values = (float *)((char *)engine->io_buf.ptr + 256);
    const int64_t room = (engine->io_buf.bytes - 256) / 4;
    struct verdict { int32_t found; dsc_error error; } verdict;
    for (int64_t first = 0; first < tensor->count; first += room) {
        const int64_t count = dsc_min_i64(room, tensor->count - first);
        memset(&verdict, 0, sizeof verdict);
        if (engine->place.rank == 0) {
            bool here = false;
            (void)engine->model->load_param(engine->model, tensor->module, tensor->param, first, count, values, &here,
                                            &verdict.error);
            verdict.found = here;
        }
        DSC_TRY(dsc_comm_broadcast(engine->comm, DSC_CHANNEL_CONTROL, &verdict, (int64_t)sizeof verdict, 0,
                                   engine->compute, err));
        if (verdict.error.status != DSC_OK)
            return DSC_FAIL(err, verdict.error.status, verdict.error.where, "%s", verdict.error.message);
        *found = verdict.found != 0;
        if (!*found)
            return DSC_OK;
        DSC_TRY(dsc_comm_broadcast(engine->comm, DSC_CHANNEL_CONTROL, values, count * 4, 0, engine->compute, err));
        int64_t span_first;
        const int64_t begin = dsc_max_i64(slice.first, tensor->offset + first);
        const int64_t end = dsc_min_i64(slice.first + slice.count, tensor->offset + first + count);
        if (begin < end && dsc_layout_span(tensor, begin, end - begin, &span_first) > 0)
            put(&slice, tensor, span_first, end - begin, values + (span_first - first),
                engine->config.precision == DSC_PRECISION_BF16 ? DSC_BF16 : DSC_F32);
    }
    return DSC_OK;
}

dsc_status dsc_engine_init_params(dsc_engine *engine, dsc_error *err)
{
    for (int32_t t = 0; t < engine->layout.tensor_count; t++) {
        bool found = false;
        if (engine->model->load_param != NULL)
            DSC_TRY(init_loaded(engine, t, &found, err));
        if (!found)
            init_random(engine, t);
    }
    return dsc_zero_publish(engine->zero, err);
}
