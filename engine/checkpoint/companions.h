/* companions.h - the files of a model folder that its use needs beside config.json and the weights: the tokenizer, the
 * chat template, the settings of generation.
 *
 * Checkpoints and exports hold copies. The verification of a checkpoint leaves the copies out, since a run does not
 * load them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_COMPANIONS_H
#define DSC_ENGINE_CHECKPOINT_COMPANIONS_H

#include "base/io.h"

typedef struct dsc_ckpt_companions {
    const char *model;     /* folder of the model; NULL: none */
    const char *tokenizer; /* folder or tokenizer.json that the run uses instead of the model's; "": the model's own;
                            * "none": the run has none. NULL is "" */
} dsc_ckpt_companions;

/* Copies those that are there into `to`, a folder without them. A larger file than 256 MB: DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_ckpt_copy_companions(const dsc_io *io, const dsc_ckpt_companions *from, const char *to,
                                                 dsc_error *err);
/* Text of a config.json with this dtype of the weights in "torch_dtype" or "dtype", whichever it has, owned by the
 * caller (dsc_alloc_free). Text that is not an object is copied. */
DSC_MUST_USE dsc_status dsc_ckpt_config_with_dtype(dsc_alloc *alloc, const char *text, int64_t bytes, const char *dtype,
                                                   char **out, int64_t *out_bytes, dsc_error *err);

#endif
