/* grad_part.c - questions about gradient parts, which are answered without any side effect.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"

void dsc_grad_parts_of_visit(const dsc_zero *zero, int32_t module, int32_t mb, int32_t *first, int32_t *end)
{
    DSC_ASSERT(module >= 0);
    DSC_ASSERT(module < zero->o.layout->module_count);
    DSC_ASSERT(mb < zero->o.micro_batch_group);
    const int32_t *visit =
        &zero->parts.visit_first[(zero->o.layout->module_count - 1 - module) * zero->o.micro_batch_group + mb];
    *first = visit[0];
    *end = visit[1];
    DSC_ASSERT(*first <= *end);
    DSC_ASSERT(*end <= zero->parts.count);
}

/* Elements of each rank's slice that are reduced when a mark is passed. */
int64_t dsc_grad_part_mark_end(const dsc_zero *zero, const dsc_grad_part *part, int32_t mark)
{
    DSC_ASSERT(mark >= 0);
    DSC_ASSERT(mark < zero->parts.slot[part->slot].mark_count);
    return dsc_div_ceil(zero->o.layout->group[part->group].slice * (mark + 1), zero->parts.slot[part->slot].mark_count);
}

const dsc_grad_part *dsc_grad_part_last_of_run(const dsc_zero *zero, const dsc_grad_part *part)
{
    const dsc_grad_part *end = zero->parts.part + zero->parts.count;
    DSC_ASSERT(part >= zero->parts.part);
    DSC_ASSERT(part < end);
    while (part + 1 < end && part[1].group == part->group && part[1].visit == part->visit && part[1].mb == part->mb)
        part++;
    return part;
}

bool dsc_grad_part_reads_sum(const dsc_grad_part *part, int64_t pass)
{
    DSC_ASSERT(pass >= 0);
    return !part->sum_is_staged && !(pass == 0 && dsc_grad_part_is_first(part));
}

bool dsc_grad_part_writes_sum(const dsc_zero *zero, const dsc_grad_part *part, int64_t pass)
{
    DSC_ASSERT(pass < zero->pass_count);
    return !part->sum_stays_staged && !(part->holds_sum && pass == zero->pass_count - 1);
}

bool dsc_grad_part_is_last(const dsc_zero *zero, const dsc_grad_part *part)
{
    DSC_ASSERT(part->mb < zero->o.micro_batch_group);
    return part->last_use && part->mb == zero->o.micro_batch_group - 1;
}

float *dsc_grad_part_base(const dsc_zero *zero, const dsc_grad_part *part, int64_t pass)
{
    if (dsc_grad_part_is_sum(part, pass))
        return dsc_zero_own_sum(zero, part->group);
    DSC_ASSERT(part->slot >= 0);
    DSC_ASSERT(part->slot < zero->parts.slot_count);
    return (float *)(void *)((char *)zero->buf.grad_part.ptr + zero->parts.slot[part->slot].offset);
}
