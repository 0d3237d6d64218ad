/* lora.h - low-rank adapters on linear layers (Hu et al. 2021): y = x w + b + s (x A^T) B^T.
 *
 * A is [r,in], B [out,r], as PEFT's lora_A and lora_B; the layer's own weight is not trained. An adapter is two more
 * linear layers, whose products add to the output of the layer's own. The intermediate result, [R,r], is made again
 * by each pass in the call's `lora_work`. With dropout x is, in training, a copy of which elements are 0 at random.
 * They depend on seed, layer, sample and place in it alone, so that each pass makes the copy again. Inside models/
 * only. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_LORA_H
#define DSC_MODELS_LORA_H

#include "models/linear.h"

/* A module's adapters. */
struct dsc_lora {
    int64_t rank;         /* the largest r; 0: there are none */
    const int32_t *first; /* [parameters of the module but for these] A's number, with B behind it, of the layer that
                           * has this one for its weight; 0: no adapter */
    const int32_t *ranks; /* rank of each layer's adapter */
    const float *scales;  /* and s */
    double dropout;       /* probability */
    int64_t widest;       /* the most columns that an adapter's input has */
    int64_t first_param;  /* the module's first parameter among the model's: layers have random numbers of their own */
};

static inline bool dsc_lora_has(const dsc_lora *lora, int32_t weight)
{
    return lora->rank > 0 && lora->first[weight] > 0;
}

/* Size of a call's lora_work: [R,r] and with dropout, 256-byte aligned, [R,widest]. */
static inline int64_t dsc_lora_narrow_bytes(const dsc_lora *lora, int64_t rows, dsc_dtype dtype)
{
    return rows * lora->rank * (int64_t)dsc_dtype_bytes(dtype);
}
static inline int64_t dsc_lora_work_bytes(const dsc_lora *lora, int64_t rows, dsc_dtype dtype)
{
    const int64_t narrow = dsc_lora_narrow_bytes(lora, rows, dtype);
    if (!(lora->dropout > 0))
        return narrow;
    return dsc_align_up(narrow, 256) + rows * lora->widest * (int64_t)dsc_dtype_bytes(dtype);
}

/* Additional steps of dsc_linear_plan and the others of linear.h for a layer with an adapter. */
DSC_MUST_USE dsc_status dsc_lora_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err);
DSC_MUST_USE dsc_status dsc_lora_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x);
DSC_MUST_USE dsc_status dsc_lora_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy);
DSC_MUST_USE dsc_status dsc_lora_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x,
                                           const void *dy);

#endif
