/* norm_group.h - batch norms over several micro-batches (dsc.batch_norm.synchronized, dsc_norm_group in model.h).
 *
 * A group has equally many micro-batches of each rank. Those of a rank pass a module in one call, each in its own
 * memory. Where a batch norm needs sums over the group, an all-gather makes those of each micro-batch known, and every
 * rank adds them in the order of micro-batches. So the bits are those of one rank with all micro-batches of the group.
 * Gradients of weights stay parts of one micro-batch each. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_NORM_GROUP_H
#define DSC_ENGINE_NORM_GROUP_H

#include <dsc/dsc.h>

#include "base/base.h"

/* Lengths of memory for a model, in elements of fp32; 0: it has no batch norm. */
typedef struct dsc_norm_group_sizes {
    int64_t numbers; /* most numbers of one exchange for a micro-batch */
    int64_t grads;   /* most gradients of a module that is called for a group */
} dsc_norm_group_sizes;
dsc_norm_group_sizes dsc_norm_group_sizes_of(const dsc_model *model);

/* Refuses, by name, a model without such batch norms. */
dsc_status dsc_norm_group_check(const dsc_engine *engine, dsc_error *err);
/* Whether a module is called for a group; and both passes of it. */
bool dsc_norm_group_has(const dsc_engine *engine, int32_t module);
dsc_status dsc_norm_group_forward(dsc_engine *engine, int32_t module, dsc_error *err);
dsc_status dsc_norm_group_backward(dsc_engine *engine, int32_t module, dsc_error *err);

#endif
