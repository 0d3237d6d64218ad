/* speculative_update.h - an update in files that begins under the last backward pass, before its norm is known.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_SPECULATIVE_UPDATE_H
#define DSC_ZERO_OFFLOAD_SPECULATIVE_UPDATE_H

#include <stdatomic.h>

#include "zero/core/grad_part.h"
#include "zero/core/pass.h"

/* The part of a group's state. */
typedef struct dsc_group_speculative {
    atomic_llong ready_elements; /* elements of this step's sum that the update may read */
    int32_t borrowed_range;      /* index of the lent range in the sum's memory (borrowed_memory.c), -1: none */
    bool sum_delivered;          /* the update gets the sum in tile buffers, from first_delivered_slot on */
    int32_t first_delivered_slot;
    bool is_listed; /* used by update_tiles.c while it lists the groups */
} dsc_group_speculative;

typedef struct dsc_speculative_update {
    int32_t *group; /* [group_count] groups that it may begin with, in the order in which their sums are complete */
    int32_t count;
    int32_t target;              /* the first groups of the list that this step shall update */
    int32_t complete, published; /* reduce stream: sums complete in this step; sums that are also in their files */
    dsc_update_terms expected;
    bool terms_are_final;       /* only a skipped step can bring other terms */
    bool last_terms_matched;    /* the update of the last step got the expected terms */
    bool begun, kept;           /* in this step; and the update goes on from there */
    atomic_bool stop_requested; /* a caller waits for all background work */
    dsc_event *ended;           /* no further tile is updated in this step */
    /* In this step. Late idle time is the part of the idle time after all groups of the target were updated. */
    int64_t first_ns; /* time at which the sum of the first tile was complete */
    int64_t idle_ns, late_idle_ns;
    atomic_llong updated_elements; /* in this step */
    int64_t kept_elements;         /* in all finished steps */
} dsc_speculative_update;

dsc_status dsc_speculative_update_open(dsc_zero *zero, dsc_error *err); /* after grad_parts.h */
void dsc_speculative_update_close(dsc_zero *zero);
/* The terms that dsc_zero_update will get, unless the norm changes them (dsc_zero_expect). */
void dsc_speculative_update_expect(dsc_zero *zero, const dsc_update_scalars *scalars, int32_t class_count,
                                   int64_t update, bool last_word);
/* Under the head of the last pass of a step: the update begins if it is expected; else its first states are read. */
dsc_status dsc_speculative_update_begin(dsc_zero *zero, dsc_error *err);
/* dsc_zero_update was called with these terms. The speculative update has stopped when the function returns. */
dsc_status dsc_speculative_update_settle(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err);
/* The step has no update: the speculative update has stopped, and its results are dropped. */
dsc_status dsc_speculative_update_drop(dsc_zero *zero, dsc_error *err);
/* On the out stream: that tile of a group's sums is in a buffer that is lent to the update. */
void dsc_speculative_update_deliver(dsc_zero *zero, int32_t group, int64_t first, int64_t count, int32_t slot);
/* After a skipped step: a tile of a group whose sums were handed over. A value is not finite if its sum was not. */
dsc_status dsc_speculative_update_view(dsc_zero *zero, int32_t group, int64_t first, int64_t *count, const float **x,
                                       dsc_error *err);
/* On the out stream: a gradient part of a pass was reduced; some sums may be in their files; all sums are. */
void dsc_speculative_update_count_grad_part(dsc_zero *zero, const dsc_grad_part *part, int64_t pass);
void dsc_speculative_update_publish(dsc_zero *zero);
void dsc_speculative_update_mark_published(dsc_zero *zero);

#endif
