/* weights.h - the safetensors files of a Hugging Face folder: model.safetensors, or the shards of its index; and of
 * a checkpoint's folder buffers.safetensors.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_WEIGHTS_H
#define DSC_MODELS_WEIGHTS_H

#include "base/formats/safetensors.h"

typedef struct dsc_weights dsc_weights;

/* One tensor of one of the files; borrowed until dsc_weights_close. */
typedef struct dsc_weight {
    const char *name;
    const dsc_safetensors *file;
    const dsc_safetensors_entry *entry;
    const struct dsc_weight *scales; /* scales of a matrix in fp8, else NULL */
    int32_t block_rows, block_cols;  /* with scales: each block of so many elements has one */
    bool is_scales;
} dsc_weight;

/* Opens every file. *out = NULL and DSC_OK when the folder has no weights at all. A folder with weights in another
 * format only (pytorch_model.bin) is refused with the command that converts it. Owned by the caller. */
DSC_MUST_USE dsc_status dsc_weights_open(dsc_weights **out, dsc_alloc *alloc, const char *dir, dsc_error *err);
/* One file of the folder, which must be there. */
DSC_MUST_USE dsc_status dsc_weights_open_file(dsc_weights **out, dsc_alloc *alloc, const char *dir, const char *name,
                                              dsc_error *err);
void dsc_weights_close(dsc_weights **weights); /* safe on NULL */

const char *dsc_weights_dir(const dsc_weights *weights);
int64_t dsc_weights_count(const dsc_weights *weights);
const dsc_weight *dsc_weights_at(const dsc_weights *weights, int64_t i); /* in the order of names */
const dsc_weight *dsc_weights_find(const dsc_weights *weights, const char *name); /* NULL: none */
/* Finds the scales of all matrices in F8_E4M3. A matrix NAME [rows,cols] has NAME_scale_inv in fp32, with one number
 * for each block of block_rows x block_cols elements. An element is its code's value times its block's scale
 * (DeepSeek-V3, section 3.3.2). Sizes of blocks: 1 to DSC_FP8_BLOCK_MAX. */
#define DSC_FP8_BLOCK_MAX 65536
DSC_MUST_USE dsc_status dsc_weights_find_scales(dsc_weights *weights, int32_t block_rows, int32_t block_cols,
                                                dsc_error *err);
/* Elements [first, first + count) as fp32. One that is not finite is DSC_ERR_INPUT: every loss would be NaN. */
DSC_MUST_USE dsc_status dsc_weight_read_f32(const dsc_weight *weight, int64_t first, int64_t count, float *out,
                                            dsc_error *err);

#endif
