/* squares.c - see squares.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/squares.h"

static dsc_status add(dsc_zero *zero, dsc_stream *stream, int32_t g, const float *x, int64_t count, dsc_error *err)
{
    const dsc_sumsq_args args = {
        .x = x, .count = count, .sum = zero->buf.sum.ptr, .round_dtype = dsc_zero_sum_rounding(zero, g)
    };
    DSC_ASSERT(count >= 0);
    return count > 0 ? DSC_RUN(stream, SUMSQ, &args, err) : DSC_OK;
}

/* Another tensor rank stands for some tensors of the group. */
static dsc_status add_counted(dsc_zero *zero, dsc_stream *stream, int32_t g, const float *x, int64_t first,
                              int64_t count, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    DSC_ASSERT(group->uncounted);
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        int64_t inside;
        const int64_t elements = dsc_layout_span(tensor, first, count, &inside);
        if (elements == 0 || tensor->uncounted)
            continue;
        const int64_t at = tensor->offset + inside;
        const int64_t head = dsc_min_i64(elements, dsc_align_up(at, DSC_SUMSQ_CHUNK) - at);
        DSC_TRY(add(zero, stream, g, x + (at - first), head, err));
        DSC_TRY(add(zero, stream, g, x + (at - first) + head, elements - head, err));
    }
    return DSC_OK;
}

dsc_status dsc_zero_add_squares(dsc_zero *zero, dsc_stream *stream, int32_t group, const float *x, int64_t first,
                                int64_t count, dsc_error *err)
{
    DSC_ASSERT(first >= 0 && first + count <= zero->o.layout->group[group].padded);
    return zero->o.layout->group[group].uncounted ? add_counted(zero, stream, group, x, first, count, err)
                                                  : add(zero, stream, group, x, count, err);
}
