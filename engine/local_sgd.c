/* local_sgd.c - see local_sgd.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/local_sgd.h"

#include "engine/internal.h"
#include "zero/outer_step.h"

static bool is_used(const dsc_engine *engine) { return engine->config.own.local_sgd.inner_steps > 0; }

/* A world that is one group has nobody to exchange with. */
static bool has_groups(const dsc_engine *engine)
{
    return is_used(engine) && engine->layout.world_size < engine->stages.grid.data;
}

dsc_outer_options dsc_local_sgd_options(const dsc_config *config)
{
    const dsc_local_sgd_section *local = &config->own.local_sgd;
    return (dsc_outer_options) { .every = local->inner_steps,
                                 .lr = (float)local->outer_lr,
                                 .momentum = (float)local->outer_momentum,
                                 .nesterov = local->nesterov };
}

int32_t dsc_local_sgd_ranks(const dsc_engine *engine)
{
    return has_groups(engine) ? engine->layout.world_size : engine->stages.grid.data;
}

dsc_status dsc_local_sgd_start(dsc_engine *engine, dsc_error *err)
{
    engine->progress.outer_update = engine->progress.update_count;
    return dsc_zero_outer_start(engine->zero, err);
}

static dsc_status exchange(dsc_engine *engine, dsc_error *err)
{
    engine->progress.outer_update = engine->progress.update_count;
    return dsc_zero_outer_step(engine->zero, err);
}

dsc_status dsc_local_sgd_after_update(dsc_engine *engine, dsc_error *err)
{
    const int64_t since = engine->progress.update_count - engine->progress.outer_update;
    return has_groups(engine) && since >= engine->config.own.local_sgd.inner_steps ? exchange(engine, err) : DSC_OK;
}

dsc_status dsc_local_sgd_settle(dsc_engine *engine, dsc_error *err)
{
    if (!has_groups(engine))
        return DSC_OK;
    if (engine->progress.outer_update != engine->progress.update_count)
        DSC_TRY(exchange(engine, err));
    return dsc_outer_step_share_moments(engine->zero, err);
}
