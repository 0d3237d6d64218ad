/* export_vectors.h - files of an exported folder that sentence-transformers reads: modules.json and what it names.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_EXPORT_VECTORS_H
#define DSC_ENGINE_CHECKPOINT_EXPORT_VECTORS_H

#include "base/io.h"

/* Writes them into `to` if the config.json of the checkpoint says that the model makes vectors of texts. */
DSC_MUST_USE dsc_status dsc_ckpt_export_vectors(const dsc_io *io, dsc_alloc *alloc, const char *step_dir,
                                                const char *to, dsc_error *err);

#endif
