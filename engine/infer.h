/* infer.h - a language model's forward pass alone: its weights and one call's buffers, no gradients, one process, CPU.
 *
 * A call computes the whole text again: nothing is kept from one to the next. The modules are described for the next
 * power of two of tokens, so that a short text does not pay for the model's longest.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_INFER_H
#define DSC_ENGINE_INFER_H

#include <dsc/model.h>

#include "base/alloc.h"

typedef struct dsc_infer dsc_infer;

typedef struct dsc_infer_options {
    dsc_alloc *alloc; /* borrowed until close */
    const char *model; /* a Hugging Face folder; borrowed until close */
    dsc_dtype dtype;   /* of weights and activations: F32 or BF16 */
    int32_t threads;   /* >= 1 */
} dsc_infer_options;

/* A model without weights on disk is DSC_ERR_INPUT. Owned. */
DSC_MUST_USE dsc_status dsc_infer_open(const dsc_infer_options *options, dsc_infer **out, dsc_error *err);
void dsc_infer_close(dsc_infer **infer); /* safe on NULL */
int64_t dsc_infer_vocab(const dsc_infer *infer);
int64_t dsc_infer_positions(const dsc_infer *infer); /* the longest text */
/* logits[vocab] behind the last of tokens[1..positions]; borrowed until the next call. */
DSC_MUST_USE dsc_status dsc_infer_logits(dsc_infer *infer, const int32_t *tokens, int64_t count, const float **logits,
                                         dsc_error *err);

#endif
