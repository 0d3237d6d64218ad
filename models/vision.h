/* vision.h - vision transformers that classify pictures: patches, a class token, learned positions, encoder blocks.
 *
 * A family is a table of names and switches (dsc_vision_traits). Its first module cuts a picture into patches, and a
 * product makes rows of them. The class token is a row before these, and each row gets the position of its place.
 * Registers (Darcet et al. 2024) are further rows, here before the class token: the blocks do not see an order. The
 * last module takes the class token, the mean of the patches, or both, to a norm and a linear classifier.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_VISION_H
#define DSC_MODELS_VISION_H

#include "models/dense.h"

typedef struct dsc_vision_config dsc_vision_config;
typedef struct dsc_vision_traits {
    /* After the family's base. Class token and positions are whole names of parameters; `flat`: [C] and [N,C], else
     * with leading dimensions of 1. */
    const char *class_token, *positions, *patches;
    const char *mask_token; /* [1,C] of files, which no task here reads; NULL: none */
    const char *registers;  /* rows without a position, if the config has some; NULL: none */
    bool flat, patch_bias, quick; /* quick: the default activation is the quick GELU, else GELU */
    const char *embed_norm;       /* of the first module's rows; NULL: none */
    dsc_dense_traits block;
    const char *final_norm; /* a whole name, as is the classifier's */
    const char *classifier; /* NULL: "classifier" */
    /* Defaults of config.json. */
    int64_t patch;
    double eps;
    const char *bias_key;        /* whether q, k and v have biases; NULL: they have */
    const char *dropouts[3];
    const char *const *without_effect; /* keys of other tasks, up to a NULL */
    dsc_status (*read_more)(dsc_hf_config *reader, dsc_vision_config *out); /* NULL: none */
} dsc_vision_traits;

struct dsc_vision_config {
    dsc_dense_config dense;
    const dsc_vision_traits *traits;
    int64_t planes, height, width, patch;
    int64_t registers;
    bool no_mask_token;
    bool pools_mean; /* the classifier reads the mean of the patches, else the class token */
    bool pools_both; /* or both side by side */
};

void dsc_vision_emit_first(dsc_program *program, const dsc_lm_config *config);
void dsc_vision_emit_last(dsc_program *program, const dsc_lm_config *config);
DSC_MUST_USE dsc_status dsc_vision_read(dsc_hf_config *reader, dsc_lm_config *out);

/* Members that the tables of all these families have in common. */
#define DSC_VISION_FAMILY(type, table)                                                                                 \
    .model_type = (type), .traits = &(table), .layers_key = "num_hidden_layers", .token_table = "",                    \
    .head_table = "classifier.weight", .norm = DSC_NORM_LAYER, .config_bytes = sizeof(dsc_vision_config),              \
    .read_config = dsc_vision_read, .emit_first = dsc_vision_emit_first, .emit_block = dsc_dense_emit_block,           \
    .emit_last = dsc_vision_emit_last

extern const dsc_lm_family dsc_vit_family, dsc_clip_vision_family;
extern const dsc_lm_family dsc_dinov2_family, dsc_dinov2_registers_family; /* dinov2.c */

#endif
