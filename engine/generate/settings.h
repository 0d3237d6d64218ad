/* settings.h - settings of generation in a model folder: generation_config.json, as transformers reads it, and the end
 * token of config.json. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_GENERATE_SETTINGS_H
#define DSC_ENGINE_GENERATE_SETTINGS_H

#include "base/alloc.h"

#define DSC_GENERATION_ENDS_MAX 16

typedef struct dsc_generation_settings {
    int32_t end[DSC_GENERATION_ENDS_MAX]; /* eos_token_id: tokens that end a text */
    int32_t end_count;
    bool samples;            /* do_sample; without it temperature, top_k and top_p have no effect in transformers */
    double temperature;      /* 0..1000; 0 without `samples` */
    int64_t top_k;           /* 0: all; transformers' default of 50 if `samples` and the file has none */
    double top_p;            /* above 0, at most 1 */
    double repetition_penalty; /* above 0; 1: none */
    int64_t max_new_tokens;  /* 0: not given */
    char ignored[512];       /* keys that change the text in transformers and are not supported: "num_beams, min_p" */
} dsc_generation_settings;

/* `model` is a folder; another path, and a file that is not there, give the defaults. eos_token_id is read from
 * generation_config.json, else from config.json. DSC_ERR_INPUT: invalid JSON, a value out of its range. */
DSC_MUST_USE dsc_status dsc_generation_settings_read(dsc_alloc *alloc, const char *model, dsc_generation_settings *out,
                                                     dsc_error *err);
/* Adds a token that ends a text; known ones and negative ones are left out. */
DSC_MUST_USE dsc_status dsc_generation_add_end(dsc_generation_settings *settings, int32_t id, dsc_error *err);
bool dsc_generation_ends(const dsc_generation_settings *settings, int32_t id);

#endif
