/* onebit.c - the optimizers whose ranks exchange signs (sign_compress.c): the exchanged values and their schedule.
 *
 * 1-bit Adam (Tang et al. 2021, arXiv:2102.02888): once the variance is frozen, signs are of the momentum after each
 * rank's own gradient. They are the new momentum of all ranks, and the step follows it. 1-bit LAMB does the same with
 * the step sizes of onebit_lamb.c.
 *
 * 0/1 Adam (Lu et al. 2022, arXiv:2202.06009), as DeepSpeed has it. First the variance changes in some updates only,
 * from plainly summed gradients; in all others the signs are of the gradients. Then the variance is frozen, and ranks
 * take local steps, each along its own momentum. The sum of these steps (`local_update`) is the difference between the
 * common weights (`shared`) and the rank's own. At a synchronization the signs are of that sum times the root of the
 * variance. The mean over ranks gives the new weights from the shared ones, and divided by the sum of the rates it is
 * the new momentum. The shared weights stay in memory, so that new weights have equal bits on every rank; they decay
 * during the local phase. In a half precision run they are the masters, which no rank changes alone.
 *
 * A single rank sends no signs and continues with its own momentum. Errors and local steps differ between ranks, so a
 * checkpoint that another world size can read does not contain them. A save first adds their mean over all ranks to the
 * momentum or to the weights. SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/optimizer/onebit.h"
#include "zero/optimizer/onebit_lamb.h"
#include "zero/optimizer/sign_compress.h"

#include <string.h>

static bool takes_local_steps(const dsc_zero *zero)
{
    return zero->o.signs.kind == DSC_ONEBIT_ZEROONE && dsc_sign_compress_are_used(zero);
}

/* In fp32 the masters are the parameters, which every rank's own steps change. */
static bool keeps_shared(const dsc_zero *zero) { return takes_local_steps(zero) && zero->o.compute_dtype == DSC_F32; }

static int64_t local_update_bytes(const dsc_zero *zero)
{
    int64_t bytes = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        bytes += zero->o.layout->group[g].trainable ? zero->o.layout->group[g].padded * 4 : 0;
    DSC_ASSERT(bytes % (DSC_LAYOUT_SLICE_ALIGN * 4) == 0);
    return bytes;
}

static bool is_needed(const dsc_zero *zero) { return zero->o.signs.kind != DSC_ONEBIT_NEVER; }

enum { NEEDS = 2 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    const int64_t bytes = takes_local_steps(zero) ? local_update_bytes(zero) : 0,
                  shared = keeps_shared(zero) ? bytes : 0;
    const dsc_need needs[NEEDS] = {
        { &zero->onebit->local_update_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, bytes, DSC_NEED_DEVICE },
        { &zero->onebit->shared_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, shared, DSC_NEED_DEVICE },
    };
    memcpy(out, needs, sizeof needs);
}

static dsc_status plan(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
    return DSC_OK;
}

static void assign(dsc_zero *zero)
{
    float *local_update = zero->onebit->local_update_buf.ptr, *shared = zero->onebit->shared_buf.ptr;
    for (int32_t g = 0; g < zero->o.layout->group_count && takes_local_steps(zero); g++) {
        const dsc_layout_group *group = &zero->o.layout->group[g];
        if (!group->trainable)
            continue;
        zero->group[g].onebit->local_update = local_update;
        zero->group[g].onebit->shared = keeps_shared(zero) ? shared : zero->group[g].master;
        local_update += group->padded;
        shared += keeps_shared(zero) ? group->padded : 0;
    }
    DSC_ASSERT((char *)local_update ==
               (char *)zero->onebit->local_update_buf.ptr + zero->onebit->local_update_buf.bytes);
}

static dsc_status open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    assign(zero);
    return DSC_OK;
}

static void close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

static dsc_status forget(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(zero->o.signs.kind != DSC_ONEBIT_NEVER);
    zero->onebit->error_phase = DSC_PHASE_SUMS;
    zero->onebit->has_local_steps = false;
    return dsc_sign_compress_forget(zero, err);
}

/* The errors of signs belong to phase `phase` from now on. */
static dsc_status send(dsc_zero *zero, const dsc_update_terms *terms, dsc_onebit_phase phase, dsc_part_fn fill,
                       dsc_error *err)
{
    DSC_ASSERT(zero->sums_are_own);
    DSC_ASSERT(phase == zero->phase);
    zero->onebit->error_phase = phase;
    return dsc_sign_compress_exchange(zero, terms, fill, phase == DSC_PHASE_MOMENTUM && !dsc_onebit_lamb_are_used(zero),
                                      err);
}

/* ---- updates whose ranks take the same step ---- */

static dsc_status fill_momentum(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state,
                                const dsc_part *p, int32_t owner, dsc_error *err)
{
    const dsc_update_scalars *s = p->scalars;
    DSC_ASSERT(owner < 0); /* the whole tensor: each rank has its own vector */
    DSC_ASSERT(p->at + p->count <= group->padded);
    const dsc_signs_add_args args = { .error = state->signs->own_error + p->at,
                                      .moment = (const float *)(const void *)state->moment[0] + p->at,
                                      .grad = state->grad + p->at,
                                      .count = p->count,
                                      .grad_scale = s->grad_scale,
                                      .one_minus_beta1 = s->one_minus_beta1 };
    return DSC_RUN(zero->o.compute, SIGNS_ADD, &args, err);
}

static dsc_status fill_gradient(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state,
                                const dsc_part *p, int32_t owner, dsc_error *err)
{
    DSC_ASSERT(owner < 0);
    DSC_ASSERT(p->scalars != NULL); /* inside an update only */
    float *error = state->signs->own_error + p->at;
    const dsc_scale_args scale = {
        .x = state->grad + p->at, .count = p->count, .dtype = DSC_F32, .factor = p->scalars->grad_scale
    };
    const dsc_add_args add = { .to = error, .a = error, .b = scale.x, .count = p->count };
    DSC_TRY(DSC_RUN(zero->o.compute, SCALE, &scale, err));
    return DSC_RUN(zero->o.compute, ADD, &add, err);
}

/* One rank alone. */
static dsc_status mask_gradients(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(zero->world_size == 1);
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (zero->o.layout->group[g].trainable && zero->group[g].local_count > 0)
            DSC_TRY(dsc_sign_compress_mask(zero, g, zero->group[g].grad, err));
    return DSC_OK;
}

static dsc_status exchange(dsc_zero *zero, dsc_update_terms *terms, dsc_error *err)
{
    dsc_update_scalars *s = terms->scalars;
    DSC_ASSERT(zero->phase != DSC_PHASE_SUMS);
    if (!zero->sums_are_own)
        DSC_TRY(mask_gradients(zero, err));
    else if (zero->phase == DSC_PHASE_MOMENTUM)
        DSC_TRY(send(zero, terms, DSC_PHASE_MOMENTUM, fill_momentum, err));
    else
        DSC_TRY(send(zero, terms, DSC_PHASE_GRADIENTS, fill_gradient, err));
    if (dsc_onebit_lamb_are_frozen(zero))
        return DSC_OK;                                                         /* onebit_lamb.c edits the terms */
    for (int32_t c = 0; c < DSC_UPDATE_CLASSES_MAX && zero->sums_are_own; c++) /* the rest of the update */
        if (zero->phase == DSC_PHASE_MOMENTUM)
            s[c].one_minus_beta1 = 0.0f;
        else
            s[c].grad_scale = 1.0f;
    return DSC_OK;
}

/* ---- a rank's own steps ---- */

/* From the weights and the momentum that all ranks have. */
static dsc_status start_local_phase(dsc_zero *zero, dsc_error *err)
{
    dsc_onebit *onebit = zero->onebit;
    DSC_ASSERT(!onebit->has_local_steps);
    DSC_ASSERT(takes_local_steps(zero));
    if (onebit->error_phase != DSC_PHASE_SYNCHRONIZE) /* errors of another phase are never sent again */
        DSC_TRY(forget(zero, err));
    DSC_TRY(dsc_fill_zero(zero->o.compute, onebit->local_update_buf.ptr, onebit->local_update_buf.bytes, err));
    for (int32_t g = 0; g < zero->o.layout->group_count && keeps_shared(zero); g++)
        if (zero->o.layout->group[g].trainable)
            DSC_TRY(dsc_copy(zero->o.compute, zero->group[g].onebit->shared, zero->group[g].master,
                             zero->o.layout->group[g].padded * 4, err));
    for (int32_t c = 0; c < DSC_UPDATE_CLASSES_MAX; c++) {
        onebit->decays[c] = 1.0;
        onebit->rates[c] = 0.0;
    }
    onebit->steps = 0;
    onebit->has_local_steps = true;
    return DSC_OK;
}

/* Weights of this precision, from fp32. */
static dsc_status round_part(dsc_zero *zero, dsc_group_state *state, const float *from, const dsc_part *p,
                             dsc_error *err)
{
    DSC_ASSERT(p->at + p->count <= state->local_count);
    const dsc_cast_args cast = { .to = state->param + p->at * zero->param_bytes_each, .from = from + p->at,
                                 .count = p->count, .to_dtype = zero->o.compute_dtype, .from_dtype = DSC_F32 };
    return zero->o.compute_dtype != DSC_F32 ? DSC_RUN(zero->o.compute, CAST, &cast, err) : DSC_OK;
}

static dsc_status walk_part(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                            int32_t owner, dsc_error *err)
{
    const int32_t class = zero->o.layout->tensor[p->tensor].update_class;
    const dsc_update_scalars *s = p->scalars;
    DSC_ASSERT(class >= 0);
    DSC_ASSERT(class < DSC_UPDATE_CLASSES_MAX);
    float *to = zero->o.compute_dtype == DSC_F32 ? state->master : state->grad; /* which has been read then */
    const dsc_signs_local_step_args args = { .local_update = state->onebit->local_update + p->at,
                                             .moment = (float *)(void *)state->moment[0] + p->at,
                                             .to = to + p->at,
                                             .variance = (const float *)(const void *)state->moment[1] + p->at,
                                             .grad = state->grad + p->at,
                                             .shared = state->onebit->shared + p->at,
                                             .count = p->count,
                                             .grad_scale = s->grad_scale,
                                             .one_minus_beta1 = s->one_minus_beta1,
                                             .rate = s->step_size,
                                             .decay = s->decay,
                                             .decays = (float)zero->onebit->decays[class],
                                             .eps = s->eps };
    DSC_TRY(DSC_RUN(zero->o.compute, SIGNS_LOCAL_STEP, &args, err));
    return round_part(zero, state, to, p, err);
}

static dsc_status fill_local_update(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state,
                                    const dsc_part *p, int32_t owner, dsc_error *err)
{
    DSC_ASSERT(state->onebit->local_update != NULL);
    DSC_ASSERT(p->at + p->count <= group->padded);
    float *error = state->signs->own_error + p->at;
    const dsc_add_args add = { .to = error, .a = error, .b = state->onebit->local_update + p->at, .count = p->count };
    return DSC_RUN(zero->o.compute, ADD, &add, err);
}

/* Weights from the shared ones along what lies in `along`; the momentum too, if ranks have local_update. */
static dsc_status apply_part(dsc_zero *zero, dsc_group_state *state, const float *along, const dsc_part *p,
                             dsc_error *err)
{
    DSC_ASSERT(state->onebit->shared != NULL);
    const int32_t class = zero->o.layout->tensor[p->tensor].update_class;
    DSC_ASSERT(class < DSC_UPDATE_CLASSES_MAX);
    const double rates = zero->onebit->rates[class];
    float *moment = (float *)(void *)state->moment[0];
    const dsc_signs_synchronize_args args = { .to = state->master + p->at,
                                              .moment = zero->onebit->steps > 0 ? moment + p->at : NULL,
                                              .variance = (const float *)(const void *)state->moment[1] + p->at,
                                              .local_update = along + p->at,
                                              .shared = state->onebit->shared + p->at,
                                              .count = p->count,
                                              .decays = (float)zero->onebit->decays[class],
                                              .eps = zero->onebit->eps[class],
                                              .per_rate = rates > 0 ? (float)(-1.0 / rates) : 0.0f };
    DSC_TRY(DSC_RUN(zero->o.compute, SIGNS_SYNCHRONIZE, &args, err));
    return round_part(zero, state, state->master, p, err);
}

static dsc_status apply_sums(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                             int32_t owner, dsc_error *err)
{
    DSC_ASSERT(owner < 0);
    return apply_part(zero, state, state->grad, p, err);
}

static dsc_status apply_errors(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                               int32_t owner, dsc_error *err)
{
    DSC_ASSERT(owner < 0);
    return apply_part(zero, state, state->signs->own_error, p, err);
}

static bool is_local_phase(const dsc_zero *zero)
{
    return zero->sums_are_own && (zero->phase == DSC_PHASE_LOCAL || zero->phase == DSC_PHASE_SYNCHRONIZE);
}

static dsc_status local_step(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    dsc_onebit *onebit = zero->onebit;
    if (!onebit->has_local_steps)
        DSC_TRY(start_local_phase(zero, err));
    for (int32_t c = 0; c < DSC_UPDATE_CLASSES_MAX; c++) {
        onebit->decays[c] *= (double)terms->scalars[c].decay;
        onebit->rates[c] += (double)terms->scalars[c].step_size;
        onebit->eps[c] = terms->scalars[c].eps;
    }
    DSC_ASSERT(onebit->has_local_steps);
    DSC_ASSERT(onebit->steps >= 0);
    onebit->steps++;
    DSC_TRY(dsc_sign_compress_each(zero, terms, walk_part, err));
    if (zero->phase == DSC_PHASE_LOCAL)
        return DSC_OK;
    DSC_TRY(send(zero, terms, DSC_PHASE_SYNCHRONIZE, fill_local_update, err));
    onebit->has_local_steps = false;
    return dsc_sign_compress_each(zero, terms, apply_sums, err);
}

static dsc_status before_update(dsc_zero *zero, dsc_update_terms *terms, bool *complete, dsc_error *err)
{
    DSC_ASSERT(!*complete); /* no pass before has made the update */
    *complete = is_local_phase(zero);
    if (*complete)
        return local_step(zero, terms, err);
    return zero->phase != DSC_PHASE_SUMS ? exchange(zero, terms, err) : DSC_OK;
}

static void begin(dsc_zero *zero, int64_t update)
{
    DSC_ASSERT(update >= 1);
    zero->phase = dsc_onebit_phase_of(&zero->o.signs, update);
    zero->sums_are_own = zero->phase != DSC_PHASE_SUMS && dsc_sign_compress_are_used(zero);
    DSC_ASSERT(!zero->sums_are_own || zero->o.stage == 0);
}

const dsc_zero_pass_ops dsc_onebit_pass = {
    .name = "onebit",
    .is_needed = is_needed,
    .plan = plan,
    .open = open,
    .close = close,
    .begin = begin,
    .before_update = before_update,
    .forget = forget,
};

/* ---- before a save ---- */

/* Adds the errors to the momentum, of which the next update keeps beta1. */
static dsc_status settle_moments(dsc_zero *zero, int32_t g, double beta1, dsc_error *err)
{
    DSC_ASSERT(beta1 > 0);
    DSC_ASSERT(zero->onebit->error_phase != DSC_PHASE_SUMS);
    const double part = zero->onebit->error_phase == DSC_PHASE_GRADIENTS ? 1.0 - beta1 : 1.0;
    float *moment = (float *)(void *)zero->group[g].moment[0];
    DSC_TRY(dsc_sign_compress_mean(zero, g, part / beta1, err));
    const dsc_add_args add = { .to = moment, .a = moment, .b = zero->group[g].signs->own_error,
                               .count = zero->o.layout->group[g].padded };
    return DSC_RUN(zero->o.compute, ADD, &add, err);
}

static dsc_status settle(dsc_zero *zero, double beta1, dsc_error *err)
{
    DSC_ASSERT(zero->world_size > 1);
    const bool of_local_steps = zero->onebit->error_phase == DSC_PHASE_SYNCHRONIZE || zero->onebit->has_local_steps;
    if (of_local_steps && zero->onebit->has_local_steps)
        DSC_TRY(dsc_sign_compress_each(zero, NULL, fill_local_update, err));
    else if (of_local_steps)
        DSC_TRY(start_local_phase(zero, err));
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (zero->o.layout->group[g].trainable && zero->group[g].local_count > 0)
            DSC_TRY(of_local_steps ? dsc_sign_compress_mean(zero, g, 1.0, err) : settle_moments(zero, g, beta1, err));
    return of_local_steps ? dsc_sign_compress_each(zero, NULL, apply_errors, err) : DSC_OK;
}

dsc_status dsc_onebit_settle(dsc_zero *zero, double beta1, dsc_error *err)
{
    DSC_ASSERT(dsc_sign_compress_are_used(zero));
    if (zero->onebit->has_local_steps || zero->onebit->error_phase == DSC_PHASE_SYNCHRONIZE ||
        (zero->onebit->error_phase != DSC_PHASE_SUMS && beta1 > 0))
        DSC_TRY(settle(zero, beta1, err));
    DSC_TRY(forget(zero, err));
    DSC_ASSERT(!zero->onebit->has_local_steps);
    DSC_ASSERT(zero->onebit->error_phase == DSC_PHASE_SUMS);
    return dsc_stream_sync(zero->o.compute, err);
}
