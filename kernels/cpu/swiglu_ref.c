/* swiglu_ref.c - gated activations in double, rounded once. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/scalar.h"

void dsc_swiglu_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_swiglu_fwd_args *a = args;
    for (int64_t block = first; block < last; block++) {
        const dsc_swiglu_piece p = dsc_swiglu_piece_of(block, a->cols, a->in_stride);
        for (int64_t i = 0; i < p.count; i++) {
            const double gate = (double)dsc_get(a->gate, p.at + i, a->dtype);
            const double up = (double)dsc_get(a->up, p.at + i, a->dtype);
            dsc_put(a->out, p.dense + i, a->dtype, (float)(dsc_activation_ref(a->kind, gate) * up));
        }
    }
}

void dsc_swiglu_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_swiglu_bwd_args *a = args;
    for (int64_t block = first; block < last; block++) {
        const dsc_swiglu_piece p = dsc_swiglu_piece_of(block, a->cols, a->in_stride);
        for (int64_t i = 0; i < p.count; i++) {
            const double gate = (double)dsc_get(a->gate, p.at + i, a->dtype);
            const double value = dsc_activation_ref(a->kind, gate), slope = dsc_activation_slope_ref(a->kind, gate);
            const double up = (double)dsc_get(a->up, p.at + i, a->dtype);
            const double d = (double)dsc_get(a->d_out, p.dense + i, a->dtype);
            dsc_put(a->d_gate, p.at + i, a->dtype, (float)(d * up * slope));
            dsc_put(a->d_up, p.at + i, a->dtype, (float)(d * value));
            if (a->out != NULL)
                dsc_put(a->out, p.dense + i, a->dtype, (float)(value * up));
        }
    }
}
