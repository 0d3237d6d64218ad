/* grad_parts.h - gradient parts of a pass: the order in which they are reduced and their addresses until then.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_GRAD_PARTS_H
#define DSC_ZERO_GRAD_PARTS_H

#include "zero/internal.h"

/* After gathers and the state store are planned. *sum_bytes: memory of sums beside the sums themselves. */
dsc_status dsc_grad_parts_plan(dsc_zero *zero, int64_t *sum_bytes, dsc_error *err);
dsc_status dsc_grad_parts_open(dsc_zero *zero, dsc_error *err);
void dsc_grad_parts_close(dsc_zero *zero);
/* Parts from *first to before *end are reduced after this module has made its own part of that micro-batch. */
void dsc_grad_parts_of_visit(const dsc_zero *zero, int32_t module, int32_t lane, int32_t *first, int32_t *end);
/* Elements of each rank's slice that are reduced when a mark is passed. */
int64_t dsc_grad_part_mark_end(const dsc_zero *zero, const dsc_grad_part *leaf, int32_t mark);
/* The last one of the neighbouring parts of a group that are reduced together (a run). */
const dsc_grad_part *dsc_grad_part_last_of_run(const dsc_zero *zero, const dsc_grad_part *first);
/* The sum that a part is added to is read from its offloaded storage; the sum is written there. */
bool dsc_grad_part_reads_sum(const dsc_grad_part *leaf, int64_t pass);
bool dsc_grad_part_writes_sum(const dsc_zero *zero, const dsc_grad_part *leaf, int64_t pass);
/* First and last among the parts of a group in a pass. */
static inline bool dsc_grad_part_is_first(const dsc_grad_part *leaf) { return leaf->first_use && leaf->lane == 0; }
static inline bool dsc_grad_part_is_last(const dsc_zero *zero, const dsc_grad_part *leaf)
{
    DSC_ASSERT(leaf->lane < zero->o.together);
    return leaf->last_use && leaf->lane == zero->o.together - 1;
}
static inline float *dsc_grad_part_base(const dsc_zero *zero, const dsc_grad_part *leaf)
{
    DSC_ASSERT(leaf->place >= 0);
    DSC_ASSERT(leaf->place < zero->grad_part_slot_count);
    return (float *)(void *)((char *)zero->grad_part_buf.ptr + zero->grad_part_slot[leaf->place].offset);
}

#endif
