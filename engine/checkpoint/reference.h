/* reference.h - the file of a checkpoint that keeps a preference's reference (engine/preference.h).
 *
 * A header of 32 bytes, then 16 bytes for each sequence of the training data, then those of the evaluation data. The
 * hash of all these bytes is in the header. Little-endian. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_REFERENCE_H
#define DSC_ENGINE_CHECKPOINT_REFERENCE_H

#include "base/io.h"
#include "engine/data/data.h"

#define DSC_CKPT_REFERENCE_FILE "dpo_reference.bin"

typedef struct dsc_ckpt_reference {
    const dsc_data_reference *train, *eval;
    int64_t train_count, eval_count; /* sequences; both 0: there is no such file */
    void *memory;                    /* of a file that was read; dsc_alloc_free */
} dsc_ckpt_reference;

DSC_MUST_USE dsc_status dsc_ckpt_write_reference(const dsc_io *io, const dsc_ckpt_reference *reference,
                                                 const char *folder, dsc_error *err);
/* DSC_ERR_INPUT: there is none, or it is damaged. */
DSC_MUST_USE dsc_status dsc_ckpt_read_reference(const dsc_io *io, dsc_alloc *alloc, const char *folder,
                                                dsc_ckpt_reference *out, dsc_error *err);

#endif
