/* experts.h - loads of experts and losses of routers in a step (include/dsc/model.h, dsc_model_experts).
 *
 * Modules write records of a micro-batch on the device. They come to the host with the micro-batch's losses, and the
 * host makes the routers' losses from them in double. Each is a part of the micro-batch's loss, with the weight of its
 * counted targets. At a step's end ranks exchange their loads and their losses of each micro-step. So no number here
 * depends on stage, placement or overlap, and with "world_size" on the number of ranks. Records are of the routers of
 * all stages of a pipeline: they travel with outputs and gradients, and the last stage makes the losses.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_EXPERTS_H
#define DSC_ENGINE_EXPERTS_H

#include <dsc/dsc.h>

#include "base/base.h"
#include "kernels/moe_balance.h"

enum { DSC_ROUTER_LOSSES = 2 }; /* balance, z: doubles of a micro-step before the loads */

static inline bool dsc_model_has_routers(const dsc_model *model) { return model->experts.routers > 0; }

/* Bytes of the records of a micro-batch, 256-byte aligned; 0: the model has none. */
static inline int64_t dsc_model_records_bytes(const dsc_model *model, int64_t samples)
{
    const dsc_model_experts *x = &model->experts;
    return dsc_align_up(x->routers * dsc_moe_record_words(x->experts, samples) * 4, 256);
}

/* Doubles that each rank gives to the others at a step's end; 0: none. */
static inline int64_t dsc_model_router_stats(const dsc_model *model, int64_t micro_steps)
{
    const dsc_model_experts *x = &model->experts;
    return x->routers > 0 ? DSC_ROUTER_LOSSES * micro_steps + (int64_t)x->routers * x->experts : 0;
}

/* The part of struct dsc_engine. */
typedef struct dsc_engine_experts {
    double balance, z; /* losses of the last step, without factors */
} dsc_engine_experts;

void dsc_engine_experts_begin(dsc_engine *engine); /* of a step */
/* Records of a micro-step whose loss module has run, to the host. */
dsc_status dsc_engine_fetch_records(dsc_engine *engine, int64_t micro_step, dsc_error *err);
/* Records of a micro-batch of a pass on the device; NULL: none. */
void *dsc_engine_records(const dsc_engine *engine, int32_t mb);
/* Adds the fetched records to those of the step. The part of the micro-step's loss that is the routers': 0 without. */
double dsc_engine_router_loss(dsc_engine *engine, int64_t micro_step);
/* Sums over all ranks. Collective. */
dsc_status dsc_engine_experts_exchange(dsc_engine *engine, dsc_error *err);
void dsc_engine_tell_experts(const dsc_engine *engine, dsc_step_result *out);

#endif
