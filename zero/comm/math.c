/* math.c - the two kernels that transports need: the fold of leaves in rank order and the cast to the wire dtype.
 *
 * One thread: a collective runs beside the compute team, which has the other cores.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/comm/comm_internal.h"

void dsc_comm_math_init(dsc_comm_math *math)
{
    const uint32_t caps = dsc_cpu_caps();
    dsc_kernel_table table;
    dsc_exact_init(&table, caps);
    *math = (dsc_comm_math){ .fold = table.fn[DSC_KERNEL_FOLD],
                             .cast = table.fn[DSC_KERNEL_CAST],
                             .team = { .threads = 1, .caps = caps, .gemm = NULL } };
}

void dsc_comm_cast(const dsc_comm_math *math, void *to, dsc_dtype to_dtype, const float *from, int64_t count)
{
    const dsc_cast_args args = { .to = to, .from = from, .to_dtype = to_dtype, .from_dtype = DSC_F32, .count = count };
    const dsc_status status = math->cast(&args, &math->team, NULL);
    DSC_ASSERT(status == DSC_OK); /* the front has checked the dtypes */
}

void dsc_comm_fold(const dsc_comm_math *math, const dsc_reduce_scatter_args *args, const void *const *leaf,
                   dsc_dtype leaf_dtype, int32_t size, int64_t first, int64_t count)
{
    dsc_fold_args fold = { .leaf_ptr = leaf,
                           .leaf_count = size,
                           .count = count,
                           .leaf_dtype = leaf_dtype,
                           .wire_dtype = args->wire_dtype,
                           .overwrite = args->overwrite };
    if (args->apart == NULL) {
        fold.acc = args->acc + first;
        const dsc_status status = math->fold(&fold, &math->team, NULL);
        DSC_ASSERT(status == DSC_OK);
        return;
    }
    /* A fold of one leaf with `overwrite` is that leaf, rounded. */
    fold.leaf_count = 1;
    fold.overwrite = true;
    for (int32_t r = 0; r < size; r++) {
        fold.acc = args->apart[r] + first;
        fold.leaf_ptr = &leaf[r];
        const dsc_status status = math->fold(&fold, &math->team, NULL);
        DSC_ASSERT(status == DSC_OK);
    }
}
