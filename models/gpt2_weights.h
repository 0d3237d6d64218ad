/* gpt2_weights.h - what a Hugging Face folder says about a GPT-2. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_GPT2_WEIGHTS_H
#define DSC_MODELS_GPT2_WEIGHTS_H

#include "base/json.h"
#include "models/gpt2.h"

/* sources[i] <- the tensor of params[i]. Names with and without "transformer."; shapes must be those of the config (V
 * rows for tables); a missing or an unknown tensor is refused by name. */
DSC_MUST_USE dsc_status dsc_gpt2_match_weights(const dsc_weights *weights, const dsc_gpt2_config *config,
                                               const dsc_param_spec *params, int64_t param_count,
                                               const dsc_weight **sources, dsc_error *err);

/* Reads config.json of model_type "gpt2". sequence is set to positions and vocab_rows to vocab. What the user should
 * hear is appended to warnings[warnings_bytes], parts with "; " between. */
DSC_MUST_USE dsc_status dsc_gpt2_read_config(const dsc_json *json, dsc_gpt2_config *out, char *warnings,
                                             size_t warnings_bytes, dsc_error *err);

#endif
