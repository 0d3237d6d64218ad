/* reduce_math.c - the two kernels that transports need: the fold of leaves in rank order and the cast to the wire
 * dtype.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

void dsc_comm_math_init(dsc_comm_math *math)
{
    const uint32_t caps = dsc_cpu_caps();
    dsc_kernel_table table;
    dsc_exact_init(&table, caps);
    *math = (dsc_comm_math){ .fold = table.fn[DSC_KERNEL_ORDERED_REDUCE],
                             .cast = table.fn[DSC_KERNEL_CAST],
                             .team = { .threads = 1, .caps = caps, .gemm = NULL } };
}

dsc_status dsc_comm_cast(const dsc_comm_math *math, void *to, dsc_dtype to_dtype, const float *from, int64_t count,
                         dsc_stream *stream, dsc_error *err)
{
    return dsc_comm_cast_rows(math, to, to_dtype, from, 1, count, count, stream, err);
}

dsc_status dsc_comm_cast_rows(const dsc_comm_math *math, void *to, dsc_dtype to_dtype, const float *from, int64_t rows,
                              int64_t count, int64_t from_stride, dsc_stream *stream, dsc_error *err)
{
    const dsc_cast_args args = { .to = to,
                                 .from = from,
                                 .to_dtype = to_dtype,
                                 .from_dtype = DSC_F32,
                                 .count = count,
                                 .rows = rows,
                                 .from_stride = from_stride };
    return stream != NULL ? DSC_RUN(stream, CAST, &args, err) : math->cast(&args, &math->team, err);
}

static dsc_status fold(const dsc_comm_math *math, const dsc_ordered_reduce_args *args, dsc_stream *stream,
                       dsc_error *err)
{
    return stream != NULL ? DSC_RUN(stream, ORDERED_REDUCE, args, err) : math->fold(args, &math->team, err);
}

dsc_status dsc_comm_ordered_reduce(const dsc_comm_math *math, const dsc_reduce_scatter_args *args,
                                   const dsc_comm_parts *leaves, int64_t first, int64_t count, dsc_stream *stream,
                                   dsc_error *err)
{
    DSC_ASSERT(stream == NULL || leaves->each == NULL);
    dsc_ordered_reduce_args one = { .leaf = leaves->at,
                                    .leaf_ptr = leaves->each,
                                    .leaf_stride_bytes = leaves->stride_bytes,
                                    .grad_part_count = leaves->count,
                                    .count = count,
                                    .leaf_dtype = leaves->dtype,
                                    .wire_dtype = args->wire_dtype,
                                    .overwrite = args->overwrite };
    if (args->apart == NULL && args->quota == NULL) {
        one.acc = args->acc + first;
        return fold(math, &one, stream, err);
    }
    /* One leaf after the other: the same sum. A fold of one leaf with `overwrite` is that leaf, rounded. */
    one.grad_part_count = 1;
    one.leaf_ptr = NULL;
    for (int32_t r = 0; r < leaves->count; r++) {
        if (!dsc_reduce_scatter_has(args, r))
            continue;
        one.acc = (args->apart != NULL ? args->apart[r] : args->acc) + first;
        one.leaf = leaves->each == NULL ? (const char *)leaves->at + r * leaves->stride_bytes : leaves->each[r];
        one.overwrite = one.overwrite || args->apart != NULL;
        DSC_TRY(fold(math, &one, stream, err));
        one.overwrite = false;
    }
    return DSC_OK;
}
