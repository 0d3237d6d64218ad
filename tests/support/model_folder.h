/* model_folder.h - a folder that a cmocka test writes models' files into, and models that are opened from it or
 * refused. A failure fails the test. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_MODEL_FOLDER_H
#define DSC_TESTS_MODEL_FOLDER_H

#include <dsc/model.h>

#include "base/formats/safetensors.h"

/* For a group of tests: the folder exists between them. */
int mf_setup(void **state);
int mf_teardown(void **state);

extern char mf_dir[64];
const char *mf_path(const char *name); /* in the folder; until the next call */
void mf_empty(void);
void mf_write(const char *name, const char *text);

/* A file of zeros, but each tensor's first element is its number from 1, and that of a tensor lm_head.weight this. */
extern float mf_head_value;
void mf_write_tensors(const char *name, const dsc_safetensors_spec *specs, int64_t count);

/* A GPT-2: members of its config.json, its tensors, which the caller may change, and its whole folder. */
#define MF_TINY \
    "\"model_type\": \"gpt2\", \"vocab_size\": 11, \"n_positions\": 5, \"n_embd\": 6, \"n_layer\": 1, \"n_head\": 2"
#define MF_TINY_COUNT 16
void mf_tiny_specs(dsc_safetensors_spec specs[MF_TINY_COUNT + 2]);
void mf_write_tiny(void);

dsc_model *mf_open(const char *name, const dsc_model_options *options); /* passes dsc_model_check; owned */
/* The refusal's text has `what` in it. */
void mf_expect_refusal(const char *name, const dsc_model_options *options, dsc_status status, const char *what);
int64_t mf_elements(const dsc_model *model); /* elements of its parameters, each once */

#endif
