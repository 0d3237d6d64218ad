/* families.h - the model families, and how a folder becomes a model. Inside models/ only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_FAMILIES_H
#define DSC_MODELS_FAMILIES_H

#include "models/lm.h"
#include "models/named_models.h"

/* The i-th family, NULL past the end. families.c */
const dsc_lm_family *dsc_lm_family_at(int32_t index);
/* "<what> built for <family>", and those that have it. */
DSC_MUST_USE dsc_status dsc_lm_refuse_family(dsc_hf_config *reader, const dsc_lm_family *family, const char *what,
                                             bool (*has)(const dsc_lm_family *));

/* models/conv/: every convolutional network, which config.json names by "architecture". */
extern const dsc_lm_family dsc_conv_family, dsc_resnet_family; /* the second: by transformers */
extern const dsc_lm_family dsc_torch_vit_family;               /* architectures that the function knows */
bool dsc_torch_vit_has(const char *architecture);

/* models/conv/ensemble.c: several of these networks, whose outputs are averaged. The function that checks refuses names
 * that cannot be members. */
#define DSC_ENSEMBLE_NAME "ensemble"
#define DSC_ENSEMBLE_MEMBERS_MAX 8
#define DSC_ENSEMBLE_USUAL 3
extern const dsc_lm_family dsc_ensemble_family;
extern const char *const dsc_ensemble_usual[DSC_ENSEMBLE_USUAL]; /* members of the built-in one */
bool dsc_ensemble_is(const char *architecture);
DSC_MUST_USE dsc_status dsc_ensemble_check(const char *const *members, int32_t count, dsc_error *err);

/* hf.c: a folder with config.json, or such a file alone (`dir` NULL). On success *out owns `alloc`; on failure nothing
 * of it is in use. `lora` is what the options' adapters were read to, whose weights a success takes; NULL: none. */
DSC_MUST_USE dsc_status dsc_hf_open(dsc_model **out, dsc_alloc *alloc, const char *config_path, const char *dir,
                                    const dsc_model_options *options, dsc_lora_config *lora, dsc_error *err);
/* The same for the text of a config.json; its samples have at most DSC_NAMED_SEQUENCE tokens by default. */
DSC_MUST_USE dsc_status dsc_hf_open_named(dsc_model **out, dsc_alloc *alloc, const dsc_named_model *named,
                                          const dsc_model_options *options, dsc_lora_config *lora, dsc_error *err);

#endif
