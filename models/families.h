/* families.h - how registry.c reaches the model families. Inside models/ only. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_FAMILIES_H
#define DSC_MODELS_FAMILIES_H

#include <dsc/model.h>

#include "base/alloc.h"

/* Each: on success *out owns `alloc`; on failure nothing of it is in use. */

/* The i-th built-in GPT-2's name, NULL past the end. */
const char *dsc_gpt2_builtin_name(int32_t index);
DSC_MUST_USE dsc_status dsc_gpt2_open_builtin(dsc_model **out, dsc_alloc *alloc, int32_t index,
                                              const dsc_model_options *options, dsc_error *err);
/* A folder with config.json, or such a file alone (`dir` NULL). */
DSC_MUST_USE dsc_status dsc_hf_open(dsc_model **out, dsc_alloc *alloc, const char *config_path, const char *dir,
                                    const dsc_model_options *options, dsc_error *err);

#endif
