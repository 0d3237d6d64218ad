/* sample.h - `train --sample TEXT`: what the trained model says after a text. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TRAIN_SAMPLE_H
#define DSC_TRAIN_SAMPLE_H

#include <dsc/text.h>

#include "progress.h"

#define TRAIN_PROMPT_TOKENS_MAX 1024

typedef struct train_sample {
    const char *text;
    int64_t seed;
    dsc_tokenizer *tokenizer; /* NULL: bytes are tokens */
    dsc_encoder *encoder;
    int32_t token[TRAIN_PROMPT_TOKENS_MAX];
    int64_t token_count;
} train_sample;

/* Before the first step: a text that the model cannot read is DSC_ERR_INPUT. Close it whatever happens. */
dsc_status train_sample_open(train_sample *sample, const char *text, const dsc_run_info *info, dsc_error *err);
/* Collective; progress NULL: another rank prints. */
dsc_status train_sample_print(train_sample *sample, dsc_engine *engine, train_progress *progress, dsc_error *err);
void train_sample_close(train_sample *sample);

#endif
