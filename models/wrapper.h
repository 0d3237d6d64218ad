/* wrapper.h - text models inside multimodal ones: the place of their config, the names of their tensors, and the
 * tensors of the other parts. Inside models/ only.
 *
 * Only the text model is trained, on text. Tensors of the other parts are carried: they are saved as they are.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_WRAPPER_H
#define DSC_MODELS_WRAPPER_H

#include "models/lm.h"

typedef struct dsc_wrapper {
    const cJSON *object;   /* has the keys of the text model: "text_config" or the root; NULL: no wrapper */
    const char *text_type; /* the family's model_type; NULL: unknown here */
} dsc_wrapper;

/* The reader is at the root, whose model_type does not name a family. out->object is NULL for an unknown wrapper. */
DSC_MUST_USE dsc_status dsc_wrapper_find(dsc_hf_config *reader, const char *model_type, dsc_wrapper *out);

/* Gives the family the names of the text model's tensors in these files (NULL: the newest ones). */
void dsc_wrapper_set_names(dsc_lm_family *family, const dsc_weights *weights);
/* Whether adapters get the names that PEFT gives them. */
bool dsc_wrapper_names_are_peft(const dsc_lm_family *family);
/* Whether head and embedding are one table: as the root says, else the text model's config, else the files. */
DSC_MUST_USE dsc_status dsc_wrapper_read_tied(dsc_hf_config *reader, const dsc_lm_family *family,
                                              const dsc_weights *weights, bool *tied);
/* Whether the tensor belongs to another part than the text model. */
bool dsc_wrapper_carries(const dsc_lm_family *family, const char *name);

/* The carried tensors of a folder. */
typedef struct dsc_wrapper_carried {
    dsc_alloc *alloc;
    dsc_safetensors_plan plan; /* of a file with all of them */
    dsc_model_piece *piece;    /* [plan.count] */
    char **path;               /* [path_count] of the files */
    int64_t path_count;
    dsc_model_carried model;
} dsc_wrapper_carried;
/* From the folder's weights and, in a checkpoint, from DSC_MODEL_CARRIED_FILE. *out is NULL without any; owned. */
DSC_MUST_USE dsc_status dsc_wrapper_collect(dsc_wrapper_carried **out, dsc_alloc *alloc, const dsc_lm_family *family,
                                            const dsc_weights *weights, const char *dir, dsc_error *err);
void dsc_wrapper_carried_close(dsc_wrapper_carried **carried); /* safe on NULL */

#endif
