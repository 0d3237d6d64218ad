/* compress.c - quantized transfers (kernels/quant.h): parameters to the windows of stage 3, which are ZeRO++'s
 * quantized weights, and gradient parts to their owners, its quantized gradients.
 *
 * Owners pack their slices, packed slices are gathered, and every rank unpacks all of them, its own too. So all ranks
 * compute with the same numbers. Gradient parts are packed by the rank that makes them, and are added in fp32 by their
 * owners, in rank order. Both pass in chunks through buffers of a bounded size, on GPUs through two of each, so that
 * packing and unpacking run beside exchanges (comm/pipeline.h). Blocks begin at fixed positions of a
 * group, and a single rank packs and unpacks as well, so neither depends on the world size. With grad_part_errors each
 * rank adds the rounding error of a part to the next part of that use. Sums then depend on which rank made which part.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/compress.h"
#include "zero/core/internal.h"
#include "zero/optimizer/power_sgd.h"
#include "zero/zero.h"

#define CHUNK_ELEMENTS (INT64_C(1) << 24) /* elements of all ranks: about 16 MiB in int8 */

/* Elements of each rank that pass at a time, at most `longest`. `most` limits those of all ranks; 0: no limit. */
static int64_t chunk_of(const dsc_zero *zero, int64_t longest, int64_t most)
{
    DSC_ASSERT(longest % DSC_QUANT_UNIT == 0);
    const int64_t all_ranks = most > 0 ? dsc_min_i64(most, CHUNK_ELEMENTS) : CHUNK_ELEMENTS;
    const int64_t even = all_ranks / zero->world_size / DSC_QUANT_UNIT * DSC_QUANT_UNIT;
    return dsc_min_i64(longest, dsc_max_i64(even, DSC_QUANT_UNIT));
}

/* Bytes of a chunk from every rank. */
static int64_t chunk_bytes(const dsc_zero *zero, dsc_quant quant, int64_t count)
{
    DSC_ASSERT(quant != DSC_QUANT_NONE);
    DSC_ASSERT(count % DSC_QUANT_UNIT == 0);
    return zero->world_size * dsc_quant_bytes(quant, count);
}

/* Buffers of each kind: two where a second stream packs and unpacks. */
static int32_t slots_of(const dsc_zero *zero)
{
    const bool beside = zero->world_size > 1 && zero->o.overlap && !dsc_device_host_visible(zero->o.device);
    DSC_ASSERT(zero->world_size >= 1);
    return beside ? DSC_PIPELINE_SLOTS : 1;
}

static void size_chunks(dsc_zero *zero, int64_t *gather_bytes, int64_t *grad_part_bytes)
{
    const dsc_layout *layout = zero->o.layout;
    int64_t params = 0, parts = 0;
    for (int32_t g = 0; g < layout->group_count; g++) {
        if (dsc_pack_of_params(zero, g) != DSC_QUANT_NONE)
            params = dsc_max_i64(params, layout->group[g].slice);
        if (layout->group[g].trainable && zero->o.quant_grad_parts != DSC_QUANT_NONE)
            parts = dsc_max_i64(parts, layout->group[g].slice);
    }
    zero->pack_chunk = chunk_of(zero, params, zero->o.packed_gather_elements);
    zero->pack_part_chunk = chunk_of(zero, parts, zero->o.packed_grad_part_elements);
    DSC_ASSERT(zero->pack_chunk <= params);
    DSC_ASSERT(zero->pack_part_chunk <= parts);
    *gather_bytes = params == 0 ? 0 : slots_of(zero) * chunk_bytes(zero, DSC_QUANT_INT8, zero->pack_chunk);
    *grad_part_bytes =
        parts == 0 ? 0 : slots_of(zero) * chunk_bytes(zero, zero->o.quant_grad_parts, zero->pack_part_chunk);
    if (zero->world_size > 1)
        *grad_part_bytes *= 2; /* one half is sent, one half arrives */
}

/* Offsets of the errors of gradient parts, and the bytes of all errors. */
static int64_t place_errors(dsc_zero *zero)
{
    int64_t elements = 0;
    for (int32_t i = 0; i < zero->parts.count && zero->o.grad_part_errors; i++) {
        dsc_grad_part *part = &zero->parts.part[i];
        const dsc_grad_part *first = &zero->parts.part[zero->parts.of_use[part->use * zero->o.micro_batch_group]];
        DSC_ASSERT(first->mb == 0);
        DSC_ASSERT(first <= part); /* so its offset is set */
        part->error_at = part->mb == 0 ? elements : first->error_at;
        elements += part->mb == 0 ? zero->o.layout->group[part->group].padded : 0;
    }
    return elements * (int64_t)sizeof(float);
}

enum { NEEDS = 3 };
static void list_needs(dsc_zero *zero, int64_t gather_bytes, int64_t grad_part_bytes, int64_t error_bytes,
                       dsc_need out[NEEDS])
{
    out[0] = (dsc_need) { &zero->buf.pack, DSC_TAG_GATHER, DSC_TIER_DEVICE, gather_bytes, DSC_NEED_COMM };
    out[1] = (dsc_need) { &zero->buf.pack_part, DSC_TAG_LEAF, DSC_TIER_DEVICE, grad_part_bytes, DSC_NEED_DEVICE };
    out[2] = (dsc_need) { &zero->buf.error, DSC_TAG_LEAF, DSC_TIER_DEVICE, error_bytes, DSC_NEED_DEVICE };
}

static void size_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    int64_t gather_bytes, grad_part_bytes;
    size_chunks(zero, &gather_bytes, &grad_part_bytes);
    DSC_ASSERT(gather_bytes % zero->world_size == 0); /* a chunk of each rank */
    list_needs(zero, gather_bytes, grad_part_bytes, place_errors(zero), out);
}

void dsc_pack_plan(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    size_needs(zero, needs);
    dsc_zero_plan_needs(zero, needs, NEEDS);
}

dsc_status dsc_pack_open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    size_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    if (slots_of(zero) == 1)
        return DSC_OK;
    if (zero->buf.pack.bytes > 0)
        DSC_TRY(dsc_pipeline_open(&zero->pack_pipeline, zero->o.device, "packed parameters", err));
    return zero->buf.pack_part.bytes > 0
               ? dsc_pipeline_open(&zero->pack_part_pipeline, zero->o.device, "packed gradients", err)
               : DSC_OK;
}

void dsc_pack_close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    dsc_pipeline_close(&zero->pack_part_pipeline);
    dsc_pipeline_close(&zero->pack_pipeline);
    list_needs(zero, 0, 0, 0, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

/* Chunks of one transfer. Chunk i has elements [i * each, ...) of every rank's slice. */
typedef struct packed_gather {
    dsc_zero *zero;
    char *window;
    const char *mine;
    int64_t slice, each;
    dsc_quant quant;
} packed_gather;

static int64_t gather_count(const packed_gather *g, int64_t chunk)
{
    DSC_ASSERT(chunk * g->each < g->slice);
    return dsc_min_i64(g->each, g->slice - chunk * g->each);
}

/* Packed slices of all ranks. */
static char *gather_slot(const packed_gather *g, int32_t slot)
{
    const int64_t bytes = chunk_bytes(g->zero, g->quant, g->each);
    DSC_ASSERT((slot + 1) * bytes <= g->zero->buf.pack.bytes);
    return (char *)g->zero->buf.pack.ptr + slot * bytes;
}

static dsc_status pack_params(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    const packed_gather *g = user;
    const int64_t count = gather_count(g, chunk);
    const dsc_quantize_args pack = { .to = gather_slot(g, slot) + g->zero->o.rank * dsc_quant_bytes(g->quant, count),
                                     .from = g->mine + chunk * g->each * g->zero->param_bytes_each,
                                     .count = count,
                                     .pieces = 1,
                                     .from_dtype = g->zero->o.compute_dtype,
                                     .quant = g->quant };
    DSC_ASSERT(count > 0);
    return DSC_RUN(stream, QUANTIZE, &pack, err);
}

static dsc_status exchange_params(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    const packed_gather *g = user;
    const int64_t bytes = dsc_quant_bytes(g->quant, gather_count(g, chunk));
    char *packed = gather_slot(g, slot);
    DSC_ASSERT(bytes > 0);
    return g->zero->world_size == 1 ? DSC_OK
                                    : dsc_comm_all_gather(g->zero->o.comm, DSC_CHANNEL_GATHER, packed,
                                                          packed + g->zero->o.rank * bytes, bytes, DSC_U8, stream, err);
}

static dsc_status unpack_params(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    const packed_gather *g = user;
    const int64_t count = gather_count(g, chunk);
    const dsc_dequantize_args unpack = { .to = g->window + chunk * g->each * g->zero->param_bytes_each,
                                         .from = gather_slot(g, slot),
                                         .count = count,
                                         .pieces = g->zero->world_size,
                                         .to_stride = g->slice,
                                         .from_stride_bytes = dsc_quant_bytes(g->quant, count),
                                         .to_dtype = g->zero->o.compute_dtype,
                                         .quant = g->quant };
    DSC_ASSERT(count > 0);
    return DSC_RUN(stream, DEQUANTIZE, &unpack, err);
}

dsc_status dsc_pack_gather(dsc_zero *zero, int32_t group, char *window, const char *mine, dsc_error *err)
{
    packed_gather g = { .zero = zero,
                        .window = window,
                        .mine = mine,
                        .slice = zero->o.layout->group[group].slice,
                        .each = zero->pack_chunk,
                        .quant = dsc_pack_of_params(zero, group) };
    DSC_ASSERT(g.quant != DSC_QUANT_NONE);
    DSC_ASSERT(g.slice % DSC_QUANT_UNIT == 0);
    const dsc_pipeline_work work = { .user = &g,
                                     .chunks = dsc_div_ceil(g.slice, g.each),
                                     .pack = pack_params,
                                     .exchange = exchange_params,
                                     .unpack = unpack_params };
    return g.slice == 0 ? DSC_OK : dsc_pipeline_run(&zero->pack_pipeline, &work, zero->stream.gather, err);
}

/* Adds packed parts of all ranks, `bytes` each, to the sum, or unpacks them separately; from element `first` of args
 * on. */
static dsc_status reduce_packed(dsc_zero *zero, const dsc_reduce_scatter_args *args, const char *parts, int64_t bytes,
                                int64_t first, int64_t count, dsc_stream *stream, dsc_error *err)
{
    const dsc_quant quant = zero->o.quant_grad_parts;
    DSC_ASSERT(first + count <= args->count);
    DSC_ASSERT(bytes == dsc_quant_bytes(quant, count));
    for (int32_t r = 0; r < zero->world_size && args->apart != NULL; r++) {
        if (!dsc_reduce_scatter_has(args, r))
            continue;
        const dsc_dequantize_args apart = { .to = args->apart[r] + first,
                                            .from = parts + r * bytes,
                                            .count = count,
                                            .pieces = 1,
                                            .to_dtype = DSC_F32,
                                            .quant = quant };
        DSC_TRY(DSC_RUN(stream, DEQUANTIZE, &apart, err));
    }
    if (args->apart != NULL)
        return DSC_OK;
    dsc_ordered_reduce_quantized_args fold = { .acc = args->acc + first,
                                               .leaf = parts,
                                               .leaf_stride_bytes = bytes,
                                               .grad_part_count = zero->world_size,
                                               .count = count,
                                               .quant = quant,
                                               .overwrite = args->overwrite };
    if (args->quota == NULL)
        return DSC_RUN(stream, ORDERED_REDUCE_QUANTIZED, &fold, err);
    fold.grad_part_count = 1;
    for (int32_t r = 0; r < zero->world_size; r++) {
        if (!dsc_reduce_scatter_has(args, r))
            continue;
        fold.leaf = parts + r * bytes;
        DSC_TRY(DSC_RUN(stream, ORDERED_REDUCE_QUANTIZED, &fold, err));
        fold.overwrite = false;
    }
    return DSC_OK;
}

/* Rounding errors of the part's elements from `from` on. */
static float *errors_of(const dsc_zero *zero, const dsc_grad_part *part, const float *from)
{
    const char *base = (const char *)dsc_grad_part_base(zero, part, zero->pass);
    if (!zero->o.grad_part_errors)
        return NULL;
    DSC_ASSERT(from >= (const float *)(const void *)base);
    DSC_ASSERT(from < (const float *)(const void *)base + zero->o.layout->group[part->group].padded);
    return (float *)zero->buf.error.ptr + part->error_at + (from - (const float *)(const void *)base);
}

dsc_status dsc_zero_forget_errors(dsc_zero *zero, dsc_error *err)
{
    DSC_TRY(dsc_power_sgd_forget(zero, err));
    if (!zero->o.grad_part_errors)
        return DSC_OK;
    DSC_ASSERT(zero->o.quant_grad_parts != DSC_QUANT_NONE);
    return dsc_fill_zero(zero->stream.reduce, zero->buf.error.ptr, zero->buf.error.bytes, err);
}

typedef struct packed_reduce {
    dsc_zero *zero;
    const dsc_grad_part *part;
    const dsc_reduce_scatter_args *args;
    int64_t each;
    dsc_quant quant;
} packed_reduce;

static int64_t reduce_count(const packed_reduce *r, int64_t chunk)
{
    DSC_ASSERT(chunk * r->each < r->args->count);
    return dsc_min_i64(r->each, r->args->count - chunk * r->each);
}

/* Pieces that are sent, and those that arrive; a single rank has one buffer for both. */
static void reduce_slot(const packed_reduce *r, int32_t slot, char **out, char **in)
{
    const int64_t bytes = chunk_bytes(r->zero, r->quant, r->each), buffers = r->zero->world_size > 1 ? 2 : 1;
    DSC_ASSERT((slot + 1) * buffers * bytes <= r->zero->buf.pack_part.bytes);
    *out = (char *)r->zero->buf.pack_part.ptr + slot * buffers * bytes;
    *in = *out + (buffers - 1) * bytes;
}

static dsc_status pack_part(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    const packed_reduce *r = user;
    const int64_t count = reduce_count(r, chunk);
    const float *from = r->args->leaf + chunk * r->each;
    char *out, *in;
    reduce_slot(r, slot, &out, &in);
    const dsc_quantize_args pack = { .to = out,
                                     .from = from,
                                     .error = dsc_reduce_scatter_has(r->args, r->zero->o.rank)
                                                  ? errors_of(r->zero, r->part, from)
                                                  : NULL,
                                     .count = count,
                                     .pieces = r->zero->world_size,
                                     .from_stride = r->args->leaf_stride,
                                     .to_stride_bytes = dsc_quant_bytes(r->quant, count),
                                     .from_dtype = DSC_F32,
                                     .quant = r->quant };
    DSC_ASSERT(count > 0);
    return DSC_RUN(stream, QUANTIZE, &pack, err);
}

static dsc_status exchange_part(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    const packed_reduce *r = user;
    const int64_t bytes = dsc_quant_bytes(r->quant, reduce_count(r, chunk));
    char *out, *in;
    reduce_slot(r, slot, &out, &in);
    DSC_ASSERT(bytes > 0);
    return r->zero->world_size == 1
               ? DSC_OK
               : dsc_comm_all_to_all(r->zero->o.comm, DSC_CHANNEL_REDUCE, in, out, bytes, stream, err);
}

static dsc_status fold_part(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    const packed_reduce *r = user;
    const int64_t count = reduce_count(r, chunk);
    char *out, *in;
    reduce_slot(r, slot, &out, &in);
    DSC_ASSERT(count > 0);
    return reduce_packed(r->zero, r->args, in, dsc_quant_bytes(r->quant, count), chunk * r->each, count, stream, err);
}

dsc_status dsc_pack_reduce(dsc_zero *zero, const dsc_grad_part *part, const dsc_reduce_scatter_args *args,
                           dsc_error *err)
{
    DSC_ASSERT(args->leaf_stride == zero->o.layout->group[part->group].slice);
    DSC_ASSERT(args->count <= args->leaf_stride);
    if (zero->o.quant_grad_parts == DSC_QUANT_NONE)
        return dsc_comm_reduce_scatter(zero->o.comm, DSC_CHANNEL_REDUCE, args, zero->stream.reduce, err);
    packed_reduce r = {
        .zero = zero, .part = part, .args = args, .each = zero->pack_part_chunk, .quant = zero->o.quant_grad_parts
    };
    const dsc_pipeline_work work = { .user = &r,
                                     .chunks = dsc_div_ceil(args->count, r.each),
                                     .pack = pack_part,
                                     .exchange = exchange_part,
                                     .unpack = fold_part };
    return args->count == 0 ? DSC_OK : dsc_pipeline_run(&zero->pack_part_pipeline, &work, zero->stream.reduce, err);
}
