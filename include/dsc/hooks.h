/* hooks.h - functions of a host program on gradients on their way between ranks.
 *
 *     static dsc_status clip(void *user, const dsc_gradient_info *info, float *values, int64_t count, dsc_error *err)
 *     ...
 *     dsc_gradient_hooks hooks = DSC_GRADIENT_HOOKS_INIT;
 *     hooks.before_send = clip;
 *     dsc_engine_set_gradient_hooks(engine, &hooks, &err);
 *
 * examples/gradient_hooks.c uses them. Hooks run on CPU ranks, at every stage. The gradients of a GPU are not in the
 * host's reach, and the 1-bit optimizers and PowerSGD exchange no gradients: there the call is refused.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_HOOKS_H
#define DSC_HOOKS_H

#include <dsc/dsc.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A parameter's elements among the values of a call. */
typedef struct dsc_gradient_span {
    const dsc_param_spec *param; /* name and shape, borrowed from the model */
    int64_t first, count;        /* elements values[first] ... values[first + count - 1] */
    int64_t at;                  /* element of the parameter that values[first] belongs to */
} dsc_gradient_span;

typedef struct dsc_gradient_info {
    uint32_t struct_bytes;
    int64_t step;       /* optimizer step that is under way, from 1 */
    int64_t micro_step; /* number in the step, from 0; -1: the sum of all */
    const char *module; /* that has made the gradient, or whose sum it is; borrowed */
    int32_t group;      /* number for dsc_engine_group */
    int64_t first;      /* element of the group that values[0] belongs to */
    const dsc_gradient_span *spans; /* [span_count], in order, borrowed during the call. Other values are padding: 0 */
    int32_t span_count;
} dsc_gradient_info;

/* values[count] fp32, to be read and changed in place; borrowed during the call. It runs on a thread of the engine, one
 * call at a time for each rank, and calls no function of the engine. Another status than DSC_OK ends the step.
 * With dsc.spikes or dsc.check_gradients a step may be computed twice. Both calls must change values alike, or their
 * rank is taken for a faulty one. */
typedef dsc_status (*dsc_gradient_hook)(void *user, const dsc_gradient_info *info, float *values, int64_t count,
                                        dsc_error *err);

typedef struct dsc_gradient_hooks {
    uint32_t struct_bytes;
    void *user; /* borrowed until close */
    /* Each gradient part of this rank, before it is rounded to the wire dtype and sent. A part is one micro-batch's
     * gradient of one use of a module's parameters, with all elements of the group. Unit: the mean over the
     * micro-batch's targets, times the loss scale. NULL: none. */
    dsc_gradient_hook before_send;
    /* This rank's slice of the sum over all ranks and micro-steps, once a step, before the norm and the update. A slice
     * whose states are offloaded comes in pieces. Unit: the sum of the parts above, times 1 / W with
     * prescale_gradients. Changes must not depend on the rank's own parts, or the same bits are no longer promised.
     * NULL: none. */
    dsc_gradient_hook after_reduce;
} dsc_gradient_hooks;
#define DSC_GRADIENT_HOOKS_INIT { (uint32_t)sizeof(dsc_gradient_hooks), NULL, NULL, NULL }

/* Between steps; every rank sets the same functions. NULL: no hooks any more. DSC_ERR_UNSUPPORTED where they cannot
 * run (above). */
DSC_API DSC_MUST_USE dsc_status dsc_engine_set_gradient_hooks(dsc_engine *engine, const dsc_gradient_hooks *hooks,
                                                              dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
