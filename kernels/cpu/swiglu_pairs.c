/* swiglu_pairs.c - plain C for every CPU: in double, rounded once. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/kernels.h"

/* A pair after the clamp; NaN stays NaN. */
typedef struct pair {
    double gate, up, sigmoid;
    bool gate_passes, up_passes;
} pair;

static inline pair pair_at(const void *in, int64_t i, dsc_dtype dtype, const dsc_swiglu_clamp *clamp)
{
    const double gate = (double)dsc_get(in, 2 * i, dtype), up = (double)dsc_get(in, 2 * i + 1, dtype);
    const double limit = (double)clamp->limit;
    pair p = { gate > limit ? limit : gate,
               up > limit    ? limit
               : up < -limit ? -limit
                             : up,
               0, gate <= limit, up >= -limit && up <= limit };
    p.sigmoid = 1 / (1 + exp(-(double)clamp->alpha * p.gate));
    return p;
}

/* Far below 0 the sigmoid is 0, and its product with an infinite gate would be NaN. */
static inline double gate_times_sigmoid(const pair *p) { return p->sigmoid == 0 ? -0.0 : p->gate * p->sigmoid; }

/* Block: a row. */
static void fwd_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_swiglu_pairs_fwd_args *a = args;
    for (int64_t i = first * a->cols; i < last * a->cols; i++) {
        const pair p = pair_at(a->in, i, a->dtype, &a->clamp);
        dsc_put(a->out, i, a->dtype, (float)((p.up + 1) * gate_times_sigmoid(&p)));
    }
}

static void bwd_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_swiglu_pairs_bwd_args *a = args;
    for (int64_t i = first * a->cols; i < last * a->cols; i++) {
        const pair p = pair_at(a->in, i, a->dtype, &a->clamp);
        const double d = (double)dsc_get(a->d_out, i, a->dtype), value = gate_times_sigmoid(&p);
        const double slope = p.sigmoid + (double)a->clamp.alpha * value * (1 - p.sigmoid);
        dsc_put(a->d_in, 2 * i, a->dtype, p.gate_passes ? (float)(d * (p.up + 1) * slope) : 0);
        dsc_put(a->d_in, 2 * i + 1, a->dtype, p.up_passes ? (float)(d * value) : 0);
    }
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_swiglu_pairs_fwd_args *a = args;
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->cols >= 1);
    DSC_ASSERT(a->clamp.limit > 0);
    DSC_TRY(dsc_range_dtype_check("SWIGLU_PAIRS_FWD", a->dtype, err));
    dsc_range_run(pool, a->rows, fwd_rows, a);
    return DSC_OK;
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_swiglu_pairs_bwd_args *a = args;
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->cols >= 1);
    DSC_ASSERT(a->clamp.limit > 0);
    DSC_TRY(dsc_range_dtype_check("SWIGLU_PAIRS_BWD", a->dtype, err));
    dsc_range_run(pool, a->rows, bwd_rows, a);
    return DSC_OK;
}

void dsc_swiglu_pairs_init(dsc_kernel_table *table, uint32_t caps)
{
    table->fn[DSC_KERNEL_SWIGLU_PAIRS_FWD] = forward;
    table->fn[DSC_KERNEL_SWIGLU_PAIRS_BWD] = backward;
}
