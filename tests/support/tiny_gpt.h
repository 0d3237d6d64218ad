/* tiny_gpt.h - models small enough for simulated GPUs, and tokens for them. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_TINY_GPT_H
#define DSC_TESTS_TINY_GPT_H

#include <dsc/dsc.h>

typedef struct tiny_gpt { int32_t vocab, sequence, heads, layers; } tiny_gpt;

/* 64 channels. Owned: dsc_model_close. Aborts when it cannot be opened. */
dsc_model *tiny_gpt_open(const tiny_gpt *shape);

/* Any model, by the text of its config.json. */
dsc_model *tiny_model_open(const char *config, const dsc_lora_options *lora); /* NULL: without adapters */

/* The part of tensor rank `rank` of so many. A failure is in *err; NULL then. */
dsc_model *tiny_model_open_part(const char *config, int32_t ranks, int32_t rank, dsc_error *err);

/* Samples are pure functions of their numbers; few targets, so there is something to learn. Borrows the model. */
dsc_data_source tiny_gpt_data(const dsc_model *model, int64_t sample_count);
/* With masked targets: all of every third sample, and every second one of the others. */
dsc_data_source tiny_gpt_masked_data(const dsc_model *model, int64_t sample_count);

#endif
