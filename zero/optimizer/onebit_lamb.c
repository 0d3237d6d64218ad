/* onebit_lamb.c - step sizes per tensor of 1-bit LAMB (Li et al. 2021, arXiv:2104.06069, as DeepSpeed has it).
 *
 * While gradients are summed it is LAMB. A tensor's rate is multiplied by the ratio of the norms of its weights and of
 * its direction, and a moving average of that ratio is kept. Once signs of momentum are exchanged, the average is used.
 * LAMB's ratio would follow the variance, which is frozen now. So a second variance, `fresh`, continues from the
 * gradients that successive momenta imply, and the average is multiplied by a factor. The factor is the largest ratio
 * of the frozen root to the fresh root over all elements. It changes by a bounded fraction of itself between updates.
 * With weight decay the factor applies to the rest of the direction only.
 *
 * Every rank has every element at stage 0, so all find the same largest ratio without an exchange; a maximum has no
 * order. The numbers of a tensor are its average and its last factor. A factor of 0 says that there is no fresh
 * variance yet: it begins as a copy, whenever signs begin. DeepSpeed scales momenta to one size before it compresses
 * all of them in one piece. Here a tensor has a scale of its own (sign_compress.c), so there is none to choose.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/optimizer/onebit_lamb.h"
#include "zero/optimizer/sign_compress.h"

#include <math.h>
#include <string.h>

enum { COEFF, LAST_FACTOR }; /* indices of a tensor's DSC_TENSOR_STATES */
enum { MOMENT, VARIANCE, FRESH };

enum { NEEDS = 3 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    const int64_t tensors = zero->o.layout->tensor_count;
    const dsc_need needs[NEEDS] = {
        { &zero->onebit_lamb->state_buf, DSC_TAG_MOMENT, DSC_TIER_PINNED, tensors * DSC_TENSOR_STATES * 4,
          DSC_NEED_DEVICE },
        { &zero->onebit_lamb->host_most, DSC_TAG_CONTROL, DSC_TIER_PINNED, tensors * 4, DSC_NEED_DEVICE },
        { &zero->onebit_lamb->device_most, DSC_TAG_CONTROL, DSC_TIER_DEVICE, tensors * 4, DSC_NEED_DEVICE },
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

static dsc_status open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    return dsc_needs_open(&zero->needs, needs, NEEDS, err);
}

static void close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

bool dsc_onebit_lamb_are_used(const dsc_zero *zero) { return dsc_recipes[zero->o.recipe].tensor_state != NULL; }

bool dsc_onebit_lamb_are_frozen(const dsc_zero *zero)
{
    return dsc_onebit_lamb_are_used(zero) && zero->phase == DSC_PHASE_MOMENTUM;
}

float *dsc_onebit_lamb_tensor_state(const dsc_zero *zero, int32_t t)
{
    DSC_ASSERT(t >= 0);
    DSC_ASSERT(t < zero->o.layout->tensor_count);
    DSC_ASSERT(dsc_onebit_lamb_are_used(zero));
    return (float *)zero->onebit_lamb->state_buf.ptr + (int64_t)t * DSC_TENSOR_STATES;
}

/* From what the sums are now: momenta of all ranks, or of one rank alone gradients. */
static dsc_status regain_part(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                              int32_t owner, dsc_error *err)
{
    const dsc_update_scalars *s = p->scalars;
    const bool momenta = zero->sums_are_own;
    DSC_ASSERT(owner < 0);
    DSC_ASSERT(p->at + p->count <= group->padded);
    DSC_ASSERT(state->moment[FRESH] != NULL);
    float *moment[DSC_UPDATE_STATES_MAX];
    for (int k = MOMENT; k <= FRESH; k++)
        moment[k] = (float *)(void *)state->moment[k] + p->at;
    if (dsc_onebit_lamb_tensor_state(zero, p->tensor)[LAST_FACTOR] == 0.0f)
        DSC_TRY(dsc_copy(zero->o.compute, moment[FRESH], moment[VARIANCE], p->count * 4, err));
    const dsc_signs_regain_args args = { .moment = moment[MOMENT],
                                         .fresh = moment[FRESH],
                                         .x = state->grad + p->at,
                                         .variance = moment[VARIANCE],
                                         .most = (uint32_t *)zero->onebit_lamb->device_most.ptr + p->tensor,
                                         .count = p->count,
                                         .scale = momenta ? 1.0f : s->grad_scale,
                                         .unmix = momenta ? 1.0f / s->one_minus_beta1 : 1.0f,
                                         .one_minus_beta1 = s->one_minus_beta1,
                                         .beta2 = s->beta2,
                                         .one_minus_beta2 = s->one_minus_beta2,
                                         .eps = s->eps };
    return DSC_RUN(zero->o.compute, SIGNS_REGAIN, &args, err);
}

static dsc_status before_update(dsc_zero *zero, dsc_update_terms *terms, bool *complete, dsc_error *err)
{
    const dsc_buf *most = &zero->onebit_lamb->device_most;
    if (!dsc_onebit_lamb_are_frozen(zero))
        return DSC_OK;
    DSC_ASSERT(!*complete);
    DSC_ASSERT(most->bytes == zero->onebit_lamb->host_most.bytes);
    DSC_TRY(dsc_fill_zero(zero->o.compute, most->ptr, most->bytes, err));
    DSC_TRY(dsc_sign_compress_each(zero, terms, regain_part, err));
    DSC_TRY(dsc_copy(zero->o.compute, zero->onebit_lamb->host_most.ptr, most->ptr, most->bytes, err));
    for (int32_t c = 0; c < DSC_UPDATE_CLASSES_MAX; c++) { /* the rest is the step along the momentum */
        dsc_update_scalars *s = &terms->scalars[c];
        s->one_minus_beta1 = s->one_minus_beta2 = 0.0f;
        s->beta2 = 1.0f;
    }
    return dsc_stream_sync(zero->o.compute, err);
}

double dsc_onebit_lamb_average(const dsc_zero *zero, int32_t t, double trust)
{
    DSC_ASSERT(!dsc_onebit_lamb_are_frozen(zero));
    const double keep = zero->o.signs.coeff_beta;
    float *state = dsc_onebit_lamb_tensor_state(zero, t);
    if (trust != 1.0) /* as where there is no ratio */
        state[COEFF] = (float)(keep * (double)state[COEFF] + (1.0 - keep) * trust);
    state[LAST_FACTOR] = 0.0f;
    return trust;
}

double dsc_onebit_lamb_frozen_ratio(const dsc_zero *zero, int32_t t, double bare_share)
{
    DSC_ASSERT(dsc_onebit_lamb_are_frozen(zero));
    DSC_ASSERT(bare_share >= 0.0);
    DSC_ASSERT(bare_share <= 1.0);
    const dsc_onebit_policy *policy = &zero->o.signs;
    float *state = dsc_onebit_lamb_tensor_state(zero, t), most;
    const double last = state[LAST_FACTOR] == 0.0f ? 1.0 : (double)state[LAST_FACTOR];
    memcpy(&most, (const uint32_t *)zero->onebit_lamb->host_most.ptr + t, sizeof most);
    double factor = (double)most * bare_share + (1.0 - bare_share);
    factor = fmax(policy->factor_min, fmin(policy->factor_max, factor));
    factor = fmax(last * (1.0 - policy->factor_threshold), fmin(last * (1.0 + policy->factor_threshold), factor));
    state[LAST_FACTOR] = (float)factor;
    return (double)state[COEFF] * (double)state[LAST_FACTOR];
}

static void forget_shared(dsc_zero *zero)
{
    DSC_ASSERT(zero->onebit_lamb->state_buf.bytes == zero->o.layout->tensor_count * (int64_t)DSC_TENSOR_STATES * 4);
    memset(zero->onebit_lamb->state_buf.ptr, 0, (size_t)zero->onebit_lamb->state_buf.bytes);
}

const dsc_zero_pass_ops dsc_onebit_lamb_pass = {
    .name = "onebit_lamb",
    .is_needed = dsc_onebit_lamb_are_used,
    .plan = plan,
    .open = open,
    .close = close,
    .before_update = before_update,
    .forget_shared = forget_shared,
};
