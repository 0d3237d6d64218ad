/* lmrun.h - comparison of every family of language models with PyTorch's numbers in tests/golden/ and with itself.
 *
 * Weights and tokens come from an integer hash that the generators in tests/golden/ compute too, so that they are not
 * stored. modelrun.h runs the modules and watches buffers and launches. cmocka's asserts say what is wrong.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_LMRUN_H
#define DSC_TESTS_LMRUN_H

#include "base/formats/safetensors.h"
#include "models/lm.h"
#include "tests/support/modelrun.h"

extern const modelrun_options lmrun_plain; /* two samples, fp32, two threads, the best instructions */

dsc_model *lmrun_open_model(const dsc_lm_family *family, const dsc_lm_config *config);

/* ---- the generators' integers ---- */

uint32_t lmrun_fnv(const char *text);
uint32_t lmrun_mixed(uint32_t seed, uint64_t index);
/* A parameter's first values: in [-1/8, 1/8), around 1 for a norm's weight. To be freed. */
float *lmrun_values(const dsc_param_spec *spec);
void lmrun_set_tokens(modelrun *run, const dsc_model *model, int64_t items);

/* A run with the generators' weights and tokens. */
modelrun *lmrun_open(const dsc_model *model, const modelrun_options *options);
/* The gradient of a parameter: the sum over its uses. */
void lmrun_whole_grad(const modelrun *run, const dsc_model *model, int32_t module, int32_t param, double *out);

/* ---- tests/golden/NAME.safetensors ---- */

dsc_safetensors *lmrun_open_golden(dsc_alloc *alloc, const char *name);
int64_t lmrun_read_golden(const dsc_safetensors *golden, const char *prefix, const char *name, float *out,
                          int64_t room);
/* Bounds of the mean loss (single losses: ten times), and of gradients in units of a tensor's root mean square. */
typedef struct lmrun_bounds { double loss, grad; } lmrun_bounds;
/* `whole`: the file has all elements of the gradients, else a sample. */
void lmrun_against_golden(const char *name, const dsc_model *model, const modelrun_options *options, bool whole,
                          lmrun_bounds most);

/* ---- against itself ---- */

/* Threads, recomputation and where d_in lies must not change a bit; evaluation has the losses of training. */
void lmrun_keeps_its_bits(const dsc_model *model, dsc_dtype dtype);
/* The plan tells every product that runs and no other, and their work is the plan's but for the attention's, whose
 * forward does attention_flops for a sample. */
void lmrun_runs_as_planned(const dsc_model *model, double attention_flops);
/* The loss along a random direction, by central differences in the parameters. */
void lmrun_gradient_is_the_slope(const dsc_model *model);

/* ---- all of it, for a family's golden cases ---- */

/* tests/golden/NAME.json and .safetensors. attention: elements of a row that the attention reads, H * D. */
typedef struct lmrun_case {
    const char *name;
    int64_t batch, sequence, layers, attention;
    bool whole;
    double bf16_grad; /* 0: 0.12 */
    const dsc_lora_options *lora;
} lmrun_case;

/* On every level of the instruction set, in fp32 and bf16; logits too where the file has some. */
void lmrun_cases_agree(const lmrun_case *cases, size_t count);
void lmrun_cases_keep_their_bits(const lmrun_case *cases, size_t count);
void lmrun_cases_run_as_planned(const lmrun_case *cases, size_t count);
/* One layer of those that have one product is frozen, so that its weight lies apart: the others keep their bits. */
void lmrun_cases_freeze_a_layer(const lmrun_case *cases, size_t count);
void lmrun_cases_have_slopes(const lmrun_case *cases, size_t count);

#endif
