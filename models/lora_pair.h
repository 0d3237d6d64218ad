/* lora_pair.h - the two products of an adapter, which lora.c has and dora.c uses. Between these two alone.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_LORA_PAIR_H
#define DSC_MODELS_LORA_PAIR_H

#include "models/lora.h"

/* The adapter's two layers: x to [R,r], and from there to what the layer has written. */
typedef struct dsc_lora_pair {
    dsc_linear_layer a, b;
    float scale;
    uint32_t layer; /* the number of its weight among the model's parameters */
    double dropout;
} dsc_lora_pair;
dsc_lora_pair dsc_lora_pair_of(const dsc_lora *lora, dsc_linear_layer layer);

/* out = dropped x, or with `add` out + dropped x; of elements of the adapter's input. */
DSC_MUST_USE dsc_status dsc_lora_drop(const dsc_call *call, const dsc_lora_pair *pair, void *out, const void *x,
                                      bool add);
/* *out <- the input of the adapter: x, or in training its copy with dropout, at `wide` of the work. */
DSC_MUST_USE dsc_status dsc_lora_input(const dsc_call *call, const dsc_lora_pair *pair, const void *x,
                                       const void **out);
/* lora_work = s x A^T */
DSC_MUST_USE dsc_status dsc_lora_down(const dsc_call *call, const dsc_lora_pair *pair, const void *x);
/* lora_work = s dy B */
DSC_MUST_USE dsc_status dsc_lora_up_backward(const dsc_call *call, const dsc_lora_pair *pair, const void *dy);

#endif
