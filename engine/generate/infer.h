/* infer.h - the forward pass of a language model: weights, cache of keys and values, and the buffers of one call. One
 * process, one device, no gradients.
 *
 * Each token is computed once: modules keep keys and values of the text (dsc_module_ctx.cache). The model computes
 * parts of two lengths: long parts for a prompt, and single tokens. Two lengths make each buffer and product known at
 * open. A model that classifies texts computes each text as a whole, filled up to the shorter length or the longer one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_GENERATE_INFER_H
#define DSC_ENGINE_GENERATE_INFER_H

#include <dsc/model.h>

#include "base/alloc.h"

typedef struct dsc_infer dsc_infer;

typedef struct dsc_infer_options {
    dsc_alloc *alloc;   /* borrowed until close */
    const char *model;  /* a Hugging Face folder; borrowed until close */
    const char *device; /* "cpu", "cuda", or "auto": a GPU where one can be used */
    dsc_dtype dtype;    /* weights and activations: F32 or BF16 */
    int32_t threads;    /* >= 1 */
    bool labels;        /* the model classifies texts, else it continues them: another one is refused */
    bool vectors;       /* with labels: it makes a vector of each text, which are its scores */
    bool pictures;      /* with labels: it classifies pictures */
} dsc_infer_options;

/* Opens a model on its device; the caller owns *infer. DSC_ERR_INPUT: the model has no weights on disk. */
DSC_MUST_USE dsc_status dsc_infer_open(const dsc_infer_options *options, dsc_infer **out, dsc_error *err);
void dsc_infer_close(dsc_infer **infer); /* safe on NULL */
int64_t dsc_infer_vocab(const dsc_infer *infer);
int64_t dsc_infer_positions(const dsc_infer *infer);        /* the longest text; with labels the model's usual length */
const dsc_labels *dsc_infer_labels(const dsc_infer *infer); /* borrowed until close */

/* Bytes of a text's whole run, on the device and on the host. */
typedef struct dsc_infer_plan {
    int64_t weights, cache, buffers; /* on the device */
    int64_t staging;                 /* on the host */
} dsc_infer_plan;
/* Makes ready for texts of up to `tokens`: plans every byte, refuses what does not fit (DSC_ERR_NOFIT), takes it and
 * reads the weights. Once. `plan` may be NULL. */
DSC_MUST_USE dsc_status dsc_infer_start(dsc_infer *infer, int64_t tokens, dsc_infer_plan *plan, dsc_error *err);
/* logits[vocab] after the last of tokens[1..]; borrowed until the next call. Tokens shared with the last call's text
 * are not computed again. Allocates nothing. */
DSC_MUST_USE dsc_status dsc_infer_logits(dsc_infer *infer, const int32_t *tokens, int64_t count, const float **logits,
                                         dsc_error *err);
/* Scores of a picture, float[planes,height,width] as the model's first batch tensor is; borrowed until the next call.
 * Start with 1 token. */
DSC_MUST_USE dsc_status dsc_infer_picture(dsc_infer *infer, const float *pixels, const float **scores, dsc_error *err);
const dsc_model *dsc_infer_model(const dsc_infer *infer); /* borrowed until close */
/* scores[labels.count], the logits of a text; borrowed until the next call. Segments are types of its tokens. */
DSC_MUST_USE dsc_status dsc_infer_scores(dsc_infer *infer, const int32_t *tokens, const int32_t *segments,
                                         int64_t count, const float **scores, dsc_error *err);

#endif
