/* sample.h - chooses the next token from logits. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_GENERATE_SAMPLE_H
#define DSC_ENGINE_GENERATE_SAMPLE_H

#include "base/base.h"

typedef struct dsc_sample_options {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* sample from the k most likely tokens; 0: all */
    double top_p;       /* sample from the smallest set of most likely tokens with at least this probability; 1: all */
} dsc_sample_options;

/* A candidate; who gives top_k or top_p gives room for `count` of them. */
typedef struct dsc_sample_work {
    float logit;
    int32_t id;
} dsc_sample_work;

/* `uniform` is in [0, 1). Among equal logits, the smaller id counts as more likely. */
int32_t dsc_sample(const float *logits, int64_t count, const dsc_sample_options *options, double uniform,
                   dsc_sample_work *work);

/* out[count] <- logits, with those of the text's tokens divided by the penalty if positive, else multiplied by it: the
 * repetition_penalty of transformers (Keskar et al. 2019, section 4.1). Tokens are below `count`. */
void dsc_sample_penalize(const float *logits, int64_t count, const int32_t *tokens, int64_t token_count, double penalty,
                         float *out);

#endif
