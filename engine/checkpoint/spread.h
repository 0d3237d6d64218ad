/* spread.h - a checkpoint whose parts lie on the disks of several hosts: which of them it is that a load
 * means, and which rank has what. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_SPREAD_H
#define DSC_ENGINE_CHECKPOINT_SPREAD_H

#include "engine/checkpoint/internal.h"

typedef struct dsc_ckpt_spread {
    dsc_alloc *alloc;
    int32_t *part_of_rank; /* [W] the part that a rank sees; -1: none */
    int32_t *first_with;   /* [parts] the first rank that sees each */
    bool everywhere;       /* all ranks see all of it */
} dsc_ckpt_spread;

/* Collective; every rank returns the same verdict. Finds, among the names in `latest` on any host or `dir` itself, the
 * newest checkpoint of which every part is seen by some rank. Opens it on every rank, on those that have no file of it
 * from another one's texts; step_dir is where it lies, or would, on this one. */
DSC_MUST_USE dsc_status dsc_ckpt_spread_open(const dsc_ckpt_ctx *c, const char *dir, char step_dir[DSC_CKPT_PATH_BYTES],
                                             dsc_ckpt_reader *reader, dsc_ckpt_spread *out, dsc_error *err);
void dsc_ckpt_spread_close(dsc_ckpt_spread *spread); /* safe on a zeroed one */

/* Collective: *there: every part of what lies at each rank's step_dir is seen by some rank. */
DSC_MUST_USE dsc_status dsc_ckpt_parts_there(const dsc_ckpt_ctx *c, const char *step_dir, bool *there, dsc_error *err);

#endif
