/* init_packed.c - first values of frozen weights that are kept in 4 bits (kernels/nf4.h).
 *
 * Rank 0 has the values: numbers of a file or of the initialisation, which it packs, or codes and scales of a file that
 * is packed already, whose bits stay. With stages of a pipeline the first rank of each stage does the same for its own.
 * It makes the units of a group in order, a piece at a time, and broadcasts them; each rank keeps those of its slice.
 * Scales of a tensor depend on all of them, so numbers are read twice: for the scales, then for the codes. No more than
 * a piece is ever in memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/device.h"
#include "engine/init_values.h"
#include "engine/internal.h"
#include "engine/packed_hash.h"
#include "kernels/thread_pool.h"

#define PIECE_ELEMENTS_LEAST (INT64_C(1) << 18)
#define PACK_CHUNK 65536 /* elements that one thread packs at a time */

/* Parts of the buffer. A piece has units whose codes come from `values`, or straight from a file. */
typedef struct packed_parts {
    float *scales;        /* [blocks_most] of the tensor that is being packed */
    uint8_t *scale_codes; /* [blocks_most] and of nested ones the codes */
    float *tops;          /* [tops_most] */
    float *values;        /* [elements] */
    uint8_t *codes;       /* [elements / 2] */
    float *piece_scales;  /* [elements / DSC_NF4_BLOCK] */
    uint8_t *units;
    int64_t elements; /* of a piece, a multiple of DSC_NF4_UNIT */
} packed_parts;

typedef struct packed_job {
    dsc_engine *engine;
    packed_parts parts;
    int32_t tensor; /* whose scales are in the parts; -1: none */
    bool stored;    /* it is packed in its file */
    float offset;
    dsc_hash128 hash; /* the weights that rank 0 has packed so far */
} packed_job;

/* Outcome of rank 0, with the scale of scales of a tensor. */
typedef struct packed_verdict {
    dsc_error error;
    float offset;
} packed_verdict;

static int64_t align(int64_t bytes) { return dsc_align_up(bytes, 256); }

static int64_t blocks_most(const dsc_layout *layout)
{
    int64_t most = 0;
    for (int32_t t = 0; t < layout->tensor_count; t++)
        if (layout->group[layout->tensor[t].group].packed != DSC_NF4_NONE)
            most = dsc_max_i64(most, dsc_nf4_blocks(layout->tensor[t].count));
    return most;
}

static int64_t table_bytes(int64_t blocks)
{
    return align(blocks * 4) + align(blocks) + align(dsc_div_ceil(blocks, DSC_NF4_NESTED_BLOCK) * 4);
}

/* Of a piece: values, codes, scales and units. */
static int64_t piece_bytes(int64_t elements)
{
    return align(elements * 4) + align(elements / 2) + align(elements / DSC_NF4_BLOCK * 4) +
           align(dsc_nf4_bytes(DSC_NF4_PLAIN, elements));
}

int64_t dsc_engine_packed_io_bytes(const dsc_layout *layout)
{
    const int64_t blocks = blocks_most(layout);
    return blocks == 0 ? 0 : table_bytes(blocks) + piece_bytes(PIECE_ELEMENTS_LEAST);
}

static void cut_buffer(const dsc_engine *engine, packed_parts *out)
{
    const int64_t blocks = blocks_most(&engine->layout);
    char *at = engine->io_buf.ptr;
    DSC_ASSERT(engine->io_buf.bytes >= dsc_engine_packed_io_bytes(&engine->layout));
    out->elements = PIECE_ELEMENTS_LEAST;
    while (table_bytes(blocks) + piece_bytes(2 * out->elements) <= engine->io_buf.bytes)
        out->elements *= 2;
    out->scales = (float *)(void *)at;
    at += align(blocks * 4);
    out->scale_codes = (uint8_t *)at;
    at += align(blocks);
    out->tops = (float *)(void *)at;
    at += align(dsc_div_ceil(blocks, DSC_NF4_NESTED_BLOCK) * 4);
    out->values = (float *)(void *)at;
    at += align(out->elements * 4);
    out->codes = (uint8_t *)at;
    at += align(out->elements / 2);
    out->piece_scales = (float *)(void *)at;
    at += align(out->elements / DSC_NF4_BLOCK * 4);
    out->units = (uint8_t *)at;
    DSC_ASSERT((char *)out->units + dsc_nf4_bytes(DSC_NF4_PLAIN, out->elements) <=
               (char *)engine->io_buf.ptr + engine->io_buf.bytes);
}

dsc_nf4 dsc_engine_packed_kind(const dsc_engine *engine)
{
    const dsc_quantize_section *section = &engine->config.own.quantize;
    if (engine->model->adapter_json == NULL)
        return DSC_NF4_NONE;
    if (engine->model->packed_files != DSC_PACKED_NOT)
        return engine->model->packed_files == DSC_PACKED_DOUBLE ? DSC_NF4_NESTED : DSC_NF4_PLAIN;
    return !section->enabled ? DSC_NF4_NONE : section->double_quant ? DSC_NF4_NESTED : DSC_NF4_PLAIN;
}

dsc_status dsc_engine_check_packed(const dsc_engine *engine, dsc_error *err)
{
    if (!engine->config.own.quantize.enabled || engine->model->adapter_json != NULL)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.quantize_base",
                    "the model has no adapters, and weights in 4 bits are not trained; give dsc.lora too, or train "
                    "without dsc.quantize_base");
}

/* ---- the rank that has the values ---- */

static bool makes_values(const dsc_engine *engine) { return dsc_comm_rank(dsc_engine_values_comm(engine)) == 0; }

typedef struct pack_work {
    const float *values;
    int64_t count;
    uint8_t *codes;
    float *scales;
} pack_work;

static void pack_chunks(void *ctx, int64_t first, int64_t last)
{
    const pack_work *work = ctx;
    const int64_t begin = first * PACK_CHUNK, end = dsc_min_i64(last * PACK_CHUNK, work->count);
    dsc_nf4_pack(work->values + begin, end - begin, work->codes + begin / 2, work->scales + begin / DSC_NF4_BLOCK);
}

/* dsc_nf4_pack by all threads. */
static void pack_by_all(const packed_job *job, int64_t count, float *scales)
{
    const dsc_cpu_threads team = { .threads = job->engine->threads };
    pack_work work = { job->parts.values, count, job->parts.codes, scales };
    dsc_thread_pool_run(&team, dsc_div_ceil(count, PACK_CHUNK), pack_chunks, &work);
}

static dsc_status load_stored(const packed_job *job, dsc_packed_part part, int64_t first, int64_t bytes, void *out,
                              bool *found, dsc_error *err)
{
    const dsc_model *model = job->engine->model;
    const dsc_layout_tensor *tensor = &job->engine->layout.tensor[job->tensor];
    *found = false;
    if (model->load_packed == NULL)
        return DSC_OK;
    return model->load_packed(model, tensor->module, tensor->param, part, first, bytes, out, found, err);
}

/* Elements of the tensor, packed: codes, and scales that are not packed. */
static dsc_status pack_numbers(packed_job *job, int64_t first, int64_t count, float *scales, dsc_error *err)
{
    DSC_ASSERT(first % DSC_NF4_BLOCK == 0 && count <= job->parts.elements);
    DSC_TRY(dsc_engine_make_values(job->engine, job->tensor, first, count, job->parts.values, err));
    pack_by_all(job, count, scales);
    return DSC_OK;
}

/* Scales of the job's tensor, of whichever kind the run has, and where they come from. */
static dsc_status prepare_tensor(packed_job *job, dsc_nf4 kind, dsc_error *err)
{
    const int64_t count = job->engine->layout.tensor[job->tensor].count, blocks = dsc_nf4_blocks(count);
    packed_parts *p = &job->parts;
    const bool nested = kind == DSC_NF4_NESTED;
    DSC_TRY(load_stored(job, DSC_PACKED_SCALES, 0, blocks * dsc_nf4_scale_bytes(kind),
                        nested ? (void *)p->scale_codes : p->scales, &job->stored, err));
    if (job->stored) {
        bool found = true;
        if (nested)
            DSC_TRY(load_stored(job, DSC_PACKED_TOPS, 0, dsc_nf4_tops(count) * 4, p->tops, &found, err));
        if (nested)
            DSC_TRY(load_stored(job, DSC_PACKED_OFFSET, 0, 4, &job->offset, &found, err));
        DSC_ASSERT(found);
        return DSC_OK;
    }
    for (int64_t first = 0; first < count; first += p->elements)
        DSC_TRY(
            pack_numbers(job, first, dsc_min_i64(p->elements, count - first), p->scales + first / DSC_NF4_BLOCK, err));
    if (nested)
        dsc_nf4_pack_scales(p->scales, blocks, p->scale_codes, p->tops, &job->offset);
    return DSC_OK;
}

/* Codes and scales of elements [first, first + count) of the tensor to their units; `at` is the place of the first one
 * among the elements of the piece. */
static void fill_units(const packed_job *job, dsc_nf4 kind, int64_t first, int64_t count, int64_t at)
{
    const packed_parts *p = &job->parts;
    const int64_t unit_bytes = dsc_nf4_unit_bytes(kind), scale_bytes = dsc_nf4_scale_bytes(kind);
    DSC_ASSERT(first % DSC_NF4_BLOCK == 0 && at % DSC_NF4_BLOCK == 0);
    DSC_ASSERT(at + count <= p->elements);
    for (int64_t done = 0; done < count; done += DSC_NF4_BLOCK) {
        uint8_t *unit = p->units + (at + done) / DSC_NF4_UNIT * unit_bytes;
        const int64_t inside = (at + done) % DSC_NF4_UNIT, block = (first + done) / DSC_NF4_BLOCK;
        const int64_t codes = dsc_min_i64(DSC_NF4_BLOCK, count - done + 1) / 2;
        const void *scale = kind == DSC_NF4_NESTED ? (const void *)&p->scale_codes[block] : &p->scales[block];
        memcpy(unit + inside / 2, p->codes + done / 2, (size_t)codes);
        memcpy(unit + DSC_NF4_CODE_BYTES + inside / DSC_NF4_BLOCK * scale_bytes, scale, (size_t)scale_bytes);
    }
}

static const char *tensor_name(const packed_job *job) { return job->engine->layout.tensor[job->tensor].spec->name; }

static dsc_status pack_span(packed_job *job, dsc_nf4 kind, int64_t first, int64_t count, int64_t at, dsc_error *err)
{
    bool found = true;
    if (job->stored)
        DSC_TRY(load_stored(job, DSC_PACKED_CODES, first / 2, (count + 1) / 2, job->parts.codes, &found, err));
    else
        DSC_TRY(pack_numbers(job, first, count, job->parts.piece_scales, err));
    DSC_ASSERT(found);
    fill_units(job, kind, first, count, at);
    const packed_parts *p = &job->parts;
    const int64_t block = first / DSC_NF4_BLOCK;
    dsc_packed_hash_blocks(&job->hash, kind, tensor_name(job), block, count, p->codes,
                           kind == DSC_NF4_NESTED ? (const void *)&p->scale_codes[block] : &p->scales[block]);
    return DSC_OK;
}

/* ---- all ranks ---- */

static dsc_status agree(dsc_engine *engine, packed_verdict *verdict, dsc_error *err)
{
    DSC_TRY(dsc_comm_broadcast(dsc_engine_values_comm(engine), DSC_CHANNEL_CONTROL, verdict, (int64_t)sizeof *verdict,
                               0, NULL, err));
    if (verdict->error.status != DSC_OK)
        return DSC_FAIL(err, verdict->error.status, verdict->error.where, "%s", verdict->error.message);
    return DSC_OK;
}

/* A tensor begins in this piece. */
static dsc_status begin_tensor(packed_job *job, int32_t t, dsc_nf4 kind, dsc_error *err)
{
    dsc_engine *engine = job->engine;
    packed_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    job->tensor = t;
    DSC_TRY(dsc_stream_sync(engine->compute, err)); /* the tensor before has been copied */
    if (makes_values(engine))
        (void)!prepare_tensor(job, kind, &verdict.error);
    verdict.offset = job->offset;
    DSC_TRY(agree(engine, &verdict, err));
    if (makes_values(engine))
        dsc_packed_hash_tensor(&job->hash, kind, tensor_name(job), engine->layout.tensor[t].count, job->parts.tops,
                               job->offset);
    if (kind != DSC_NF4_NESTED)
        return DSC_OK;
    const int64_t tops = dsc_nf4_tops(engine->layout.tensor[t].count);
    DSC_TRY(dsc_comm_broadcast(dsc_engine_values_comm(engine), DSC_CHANNEL_CONTROL, job->parts.tops, tops * 4, 0, NULL,
                               err));
    return dsc_zero_set_packed_tops(engine->zero, t, job->parts.tops, tops, verdict.offset, err);
}

/* This rank's units of those of elements [first, first + count) of a group. */
static dsc_status keep_units(packed_job *job, int32_t g, int64_t first, int64_t count, dsc_error *err)
{
    dsc_engine *engine = job->engine;
    dsc_zero_slice slice;
    dsc_zero_slice_get(engine->zero, g, &slice);
    const int64_t each = (int64_t)dsc_dtype_bytes(dsc_engine_dtype(engine));
    const int64_t begin = dsc_max_i64(first, slice.first), end = dsc_min_i64(first + count, slice.first + slice.count);
    if (begin >= end)
        return DSC_OK;
    const char *from = (const char *)job->parts.units + dsc_nf4_bytes(slice.packed, begin - first);
    const int64_t at = dsc_nf4_bytes(slice.packed, begin - slice.first) / each;
    const int64_t total = dsc_nf4_bytes(slice.packed, end - begin) / each;
    for (int64_t done = 0, now; done < total; done += now) {
        void *ptr;
        now = total - done;
        DSC_TRY(dsc_zero_view(engine->zero, g, DSC_PLANE_PARAM, at + done, &now, true, &ptr, err));
        DSC_TRY(dsc_copy(engine->compute, ptr, from + done * each, now * each, err));
    }
    return dsc_stream_sync(engine->compute, err);
}

static dsc_status init_piece(packed_job *job, int32_t g, int64_t first, int64_t count, dsc_error *err)
{
    dsc_engine *engine = job->engine;
    const dsc_layout_group *group = &engine->layout.group[g];
    packed_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    memset(job->parts.units, 0, (size_t)dsc_nf4_bytes(group->packed, count));
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
        int64_t inside;
        const int64_t span = dsc_layout_span(tensor, first, count, &inside);
        if (span == 0)
            continue;
        if (inside == 0)
            DSC_TRY(begin_tensor(job, t, group->packed, err));
        DSC_ASSERT(job->tensor == t);
        if (makes_values(engine) && verdict.error.status == DSC_OK)
            (void)!pack_span(job, group->packed, inside, span, tensor->offset + inside - first, &verdict.error);
    }
    DSC_TRY(agree(engine, &verdict, err));
    DSC_TRY(dsc_comm_broadcast(dsc_engine_values_comm(engine), DSC_CHANNEL_CONTROL, job->parts.units,
                               dsc_nf4_bytes(group->packed, count), 0, NULL, err));
    return keep_units(job, g, first, count, err);
}

/* The hash of the weights of all stages: each stage's ranks have hashed those of its own. */
static dsc_status hash_all(dsc_engine *engine, dsc_hash128 own, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    dsc_hash128 *const all = engine->io_buf.ptr;
    dsc_hash128 sum = { 0 };
    DSC_ASSERT(engine->io_buf.bytes >= engine->place.size * (int64_t)sizeof own);
    DSC_TRY(dsc_stream_sync(engine->compute, err)); /* the buffer */
    DSC_TRY(
        dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, all, &own, (int64_t)sizeof own, DSC_U8, NULL, err));
    for (int32_t s = 0; s < stages->grid.pipeline; s++)
        dsc_packed_hash_add(&sum, all[s * stages->grid.data]);
    dsc_packed_hash_text(sum, engine->packed_hash);
    return DSC_OK;
}

dsc_status dsc_engine_init_packed(dsc_engine *engine, dsc_error *err)
{
    packed_job job = { .engine = engine, .tensor = -1 };
    if (blocks_most(dsc_stages_whole_layout(engine)) == 0)
        return DSC_OK;
    DSC_TRY(dsc_stream_sync(engine->compute, err)); /* the buffer */
    if (blocks_most(&engine->layout) > 0)           /* a stage may have no such weight */
        cut_buffer(engine, &job.parts);
    for (int32_t g = 0; g < engine->layout.group_count; g++) {
        const dsc_layout_group *group = &engine->layout.group[g];
        if (group->packed == DSC_NF4_NONE)
            continue;
        const int64_t elements = dsc_align_up(group->elements, DSC_NF4_UNIT);
        DSC_ASSERT(elements <= group->padded);
        for (int64_t first = 0; first < elements; first += job.parts.elements)
            DSC_TRY(init_piece(&job, g, first, dsc_min_i64(job.parts.elements, elements - first), err));
    }
    return hash_all(engine, job.hash, err);
}
