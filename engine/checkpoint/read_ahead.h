/* read_ahead.h - blocks of an open checkpoint that are read before their turn, and verified when it comes.
 *
 * Long ones go past the page cache, as many at a time as there is memory for. A checkpoint is read once, and pages for
 * it would only be taken from who needs them. Short ones go by plain reads. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_READ_AHEAD_H
#define DSC_ENGINE_CHECKPOINT_READ_AHEAD_H

#include "engine/checkpoint/direct.h"
#include "offload/staging.h"

#define DSC_CKPT_SLOTS_MOST DSC_CKPT_DIRECT_DEPTH
/* A block, and what lies in the same blocks of the disk. */
#define DSC_CKPT_SLOT_BYTES (DSC_CKPT_BLOCK_BYTES + 2 * DSC_AIO_ALIGN)

typedef struct dsc_ckpt_slot {
    const dsc_ckpt_block *block;
    char *memory, *data; /* data: where the block begins in it */
    dsc_aio_op op;       /* file = NULL: it is read when it is taken */
} dsc_ckpt_slot;

typedef struct dsc_ckpt_read_ahead {
    const dsc_ckpt_reader *reader;
    const char *step_dir;
    dsc_ckpt_direct direct;
    dsc_ckpt_slot slot[DSC_CKPT_SLOTS_MOST];
    dsc_staging staging; /* of the slots */
} dsc_ckpt_read_ahead;

/* `memory` of at least DSC_CKPT_SLOT_BYTES + DSC_AIO_ALIGN bytes, the reader and the folder's name are borrowed until
 * close. */
void dsc_ckpt_read_ahead_open(dsc_ckpt_read_ahead *a, const dsc_ckpt_reader *reader, const dsc_ckpt_ctx *c,
                              const char *step_dir, void *memory, int64_t bytes);
/* There is room for another block. */
bool dsc_ckpt_read_ahead_has_room(const dsc_ckpt_read_ahead *a);
DSC_MUST_USE dsc_status dsc_ckpt_read_ahead_request(dsc_ckpt_read_ahead *a, const dsc_ckpt_block *block,
                                                    dsc_error *err);
/* The block that was asked for longest, its hash compared: *data is good until the next call. */
DSC_MUST_USE dsc_status dsc_ckpt_read_ahead_consume(dsc_ckpt_read_ahead *a, const char **data, dsc_error *err);
/* After anything. Reads under way end first. */
void dsc_ckpt_read_ahead_close(dsc_ckpt_read_ahead *a);

#endif
