/* grad_part.h - a gradient part of a pass, and questions about it. zero/grad_parts.c makes the list of all parts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_GRAD_PART_H
#define DSC_ZERO_CORE_GRAD_PART_H

#include "zero/core/options.h"

#define DSC_GRAD_PART_MARKS_MAX 8

/* One gradient part of a pass: a use of a group, the module's own or one it shares, by one of the micro-batches that
 * run together. Parts are listed in the order in which they are reduced. */
typedef struct dsc_grad_part {
    int32_t module, group, use;
    int32_t mb;               /* which of the micro-batches */
    int32_t visit;            /* the part is reduced with the parts of this module and that micro-batch */
    bool first_use, last_use; /* among the parts that a micro-step adds to the group's sum */
    int32_t before;           /* the group's part that is reduced before it in a pass, -1: none */
    bool sum_is_staged;       /* an offloaded sum is on the device already, from the part before */
    bool sum_stays_staged;    /* an offloaded sum stays on the device for the next part */
    bool holds_sum;           /* the sum stays in the memory of the step's last part, until the update has read it */
    bool begins_sum;          /* in the first pass of a step the part is made where the group's sum is */
    int32_t slot;             /* -1: the part is made nowhere else */
    int32_t after, after_mark; /* slot of the part that lay there before, and the mark after which its memory is free */
    int64_t error_at;          /* offset among the errors, in elements */
    float *levels;             /* [level_count][slice] of its use; world-size reproducible sums only */
} dsc_grad_part;

/* Memory of the parts of one use, one after the other. */
typedef struct dsc_grad_part_slot {
    int64_t offset;         /* bytes in buf.grad_part */
    int32_t last_grad_part; /* of a pass */
    int32_t mark_count;
    dsc_event *mark[DSC_GRAD_PART_MARKS_MAX]; /* mark i: i + 1 of mark_count parts of the slice are reduced */
} dsc_grad_part_slot;

/* The gradient parts of a pass and their slots (zero/grad_parts.c). */
typedef struct dsc_grad_parts {
    dsc_grad_part *part; /* [count] */
    int32_t count;
    dsc_grad_part_slot *slot; /* [slot_count] */
    int32_t slot_count;
    int32_t *of_use;      /* [use_count * micro_batch_group] -> part index, -1: frozen */
    int32_t *visit_first; /* [module_count * micro_batch_group + 1] the first part that is reduced with those of a
                             module, backwards */
    float *staged_sums;   /* offloaded sums of one module, on the device while its parts are added */
    int32_t level_count;  /* levels of the binary counter of world-size reproducible sums; 0: no counter */
    int64_t separate_elements;
    float **separate; /* [W] memory of separate_elements: elements of a part of each rank, before the counter */
} dsc_grad_parts;

/* The part of a group's state that belongs to its gradient sum. */
typedef struct dsc_group_sums {
    int32_t newest_part; /* used while parts are listed */
    int64_t at;          /* elements of staged_sums before those of the group */
    float *last;         /* the sum of a step that does not go to its file before the update; or NULL */
    bool is_unrounded;   /* the sum is its first part as that was made, not yet rounded to the wire dtype */
} dsc_group_sums;

/* Parts from *first to before *end are reduced after this module has made its own part of that micro-batch. */
void dsc_grad_parts_of_visit(const dsc_zero *zero, int32_t module, int32_t mb, int32_t *first, int32_t *end);
/* Elements of each rank's slice that are reduced when a mark is passed. */
int64_t dsc_grad_part_mark_end(const dsc_zero *zero, const dsc_grad_part *part, int32_t mark);
/* The last one of the neighbouring parts of a group that are reduced together (a run). */
const dsc_grad_part *dsc_grad_part_last_of_run(const dsc_zero *zero, const dsc_grad_part *first);
/* The sum that a part is added to is read from its offloaded storage; the sum is written there. */
bool dsc_grad_part_reads_sum(const dsc_grad_part *part, int64_t pass);
bool dsc_grad_part_writes_sum(const dsc_zero *zero, const dsc_grad_part *part, int64_t pass);
/* First and last among the parts of a group in a pass. */
static inline bool dsc_grad_part_is_first(const dsc_grad_part *part) { return part->first_use && part->mb == 0; }
bool dsc_grad_part_is_last(const dsc_zero *zero, const dsc_grad_part *part);
/* The part lies where the group's sum is, so that nothing is added to that. */
static inline bool dsc_grad_part_is_sum(const dsc_grad_part *part, int64_t pass)
{
    return part->begins_sum && pass == 0;
}
/* Where a part is made, from its first element on: its slot, or the group's sum. */
float *dsc_grad_part_base(const dsc_zero *zero, const dsc_grad_part *part, int64_t pass);

#endif
