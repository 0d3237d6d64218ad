/* grad_hooks.c - see grad_hooks.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/grad_hooks.h"

#include "zero/core/internal.h"

/* A call, as it travels on a stream. micro_step -1: after the reduction. */
typedef struct hook_call {
    const dsc_zero_hooks *hooks;
    int32_t module, group;
    int64_t micro_step, first, count;
    float *values;
} hook_call;

static dsc_status run_call(void *args, dsc_error *err)
{
    const hook_call *call = args;
    const dsc_zero_hooks *hooks = call->hooks;
    DSC_ASSERT(call->count > 0);
    if (call->micro_step >= 0)
        return hooks->before_send(hooks->user, call->module, call->group, call->micro_step, call->values, call->count,
                                  err);
    return hooks->after_reduce(hooks->user, call->group, call->first, call->values, call->count, err);
}

dsc_status dsc_grad_hooks_before_send(dsc_zero *zero, const dsc_grad_part *part, int64_t micro_step, dsc_error *err)
{
    const hook_call call = { .hooks = &zero->hooks,
                             .module = part->module,
                             .group = part->group,
                             .micro_step = micro_step,
                             .count = zero->o.layout->group[part->group].padded,
                             .values = dsc_grad_part_base(zero, part, zero->pass) };
    DSC_ASSERT(micro_step >= 0);
    if (zero->hooks.before_send == NULL)
        return DSC_OK;
    return dsc_host_call(zero->stream.reduce, run_call, &call, (int64_t)sizeof call, err);
}

dsc_status dsc_grad_hooks_after_reduce(dsc_zero *zero, int32_t group, int64_t first, float *values, int64_t count,
                                       dsc_error *err)
{
    const dsc_layout_group *of = &zero->o.layout->group[group];
    const hook_call call = { .hooks = &zero->hooks,
                             .module = of->module,
                             .group = group,
                             .micro_step = -1,
                             .first = of->slice * zero->o.rank + first,
                             .count = count,
                             .values = values };
    DSC_ASSERT(first + count <= of->slice);
    if (zero->hooks.after_reduce == NULL)
        return DSC_OK;
    return dsc_host_call(zero->stream.reduce, run_call, &call, (int64_t)sizeof call, err);
}

void dsc_zero_set_hooks(dsc_zero *zero, const dsc_zero_hooks *hooks)
{
    DSC_ASSERT(zero->state != DSC_ZERO_ACCUMULATING);
    DSC_ASSERT(dsc_device_host_visible(zero->o.device));
    zero->hooks = *hooks;
}
