/* built_models.h - models that tests describe to the public builder. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_BUILT_MODELS_H
#define DSC_TESTS_BUILT_MODELS_H

#include <dsc/program.h>

/* The built-in llama-nano, op by op: the same parameters in the same order. */
dsc_model *built_llama_nano(int64_t tokens);
/* Two blocks that differ, with layer norms, learned positions, one product for q, k and v, dropout in the first one and
 * custom ops in the second. */
dsc_model *built_mixed(double dropout);
/* y = x * weight * sigmoid(x) + other, of two inputs: reads its inputs in backward. [columns] weight. */
extern const dsc_custom_op built_swish;
/* y = tanh(x): reads its result in backward. */
extern const dsc_custom_op built_tanh;

#endif
