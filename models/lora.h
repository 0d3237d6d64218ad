/* lora.h - low-rank adapters on linear layers (Hu et al. 2021): y = x w + b + s (x A^T) B^T.
 *
 * A is [r,in], B [out,r], as PEFT's lora_A and lora_B; the layer's own weight is not trained. An adapter is two more
 * linear layers, whose products add to the output of the layer's own. The intermediate result, [R,r], is made again
 * by each pass in the call's `lora_work`. With dropout x is, in training, a copy of which elements are 0 at random.
 * They depend on seed, layer, sample and place in it alone, so that each pass makes the copy again.
 *
 * DoRA (Liu et al. 2024) gives each output a magnitude m: y = f (x w + s (x A^T) B^T) + b, f = m / |w + s B A|. The
 * norm is that of an output's weights and, as in PEFT, a constant in backward. Inside models/ only.
 * SPDX-License-Identifier: Apache-2.0 */
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
    bool magnitudes;      /* DoRA: behind B is the magnitude of each output */
    int64_t widest;       /* the most columns that an adapter's input has */
    int64_t widest_out;   /* and its output */
    int64_t first_param;  /* the module's first parameter among the model's: layers have random numbers of their own */
};

static inline bool dsc_lora_has(const dsc_lora *lora, int32_t weight)
{
    return lora->rank > 0 && lora->first[weight] > 0;
}

/* Byte offsets in a call's lora_work, 256-byte aligned. Before `wide` lies what the two products share, [R,r]. */
typedef struct dsc_lora_layout {
    int64_t wide;           /* with dropout: [R,widest] */
    int64_t outputs;        /* DoRA: [R,widest_out] */
    int64_t factors, norms; /* DoRA: [widest_out] fp32 each */
    int64_t bytes;
} dsc_lora_layout;

static inline dsc_lora_layout dsc_lora_layout_of(const dsc_lora *lora, int64_t rows, dsc_dtype dtype)
{
    const int64_t row_bytes = rows * (int64_t)dsc_dtype_bytes(dtype), narrow = row_bytes * lora->rank;
    dsc_lora_layout at = { .wide = dsc_align_up(narrow, 256), .bytes = narrow };
    if (lora->dropout > 0)
        at.bytes = at.wide + row_bytes * lora->widest;
    if (!lora->magnitudes)
        return at;
    at.outputs = dsc_align_up(at.bytes, 256);
    at.factors = dsc_align_up(at.outputs + row_bytes * lora->widest_out, 256);
    at.norms = dsc_align_up(at.factors + lora->widest_out * (int64_t)sizeof(float), 256);
    at.bytes = at.norms + lora->widest_out * (int64_t)sizeof(float);
    return at;
}

/* Size of a call's lora_work. */
static inline int64_t dsc_lora_work_bytes(const dsc_lora *lora, int64_t rows, dsc_dtype dtype)
{
    return dsc_lora_layout_of(lora, rows, dtype).bytes;
}

/* Additional steps of dsc_linear_plan and the others of linear.h for a layer with an adapter. */
DSC_MUST_USE dsc_status dsc_lora_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err);
DSC_MUST_USE dsc_status dsc_lora_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x);
DSC_MUST_USE dsc_status dsc_lora_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy);
DSC_MUST_USE dsc_status dsc_lora_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x,
                                           const void *dy);

/* dora.c: with magnitudes, in place of the steps of the layer without an adapter. */
DSC_MUST_USE dsc_status dsc_dora_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err);
DSC_MUST_USE dsc_status dsc_dora_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x, void *aux);
DSC_MUST_USE dsc_status dsc_dora_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy,
                                          void *aux);
DSC_MUST_USE dsc_status dsc_dora_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy);

#endif
