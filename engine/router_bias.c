/* router_bias.c - see router_bias.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/router_bias.h"

#include <string.h>

#include "engine/internal.h"
#include "engine/model.h"

static bool is_bias(const dsc_buffer_spec *spec)
{
    static const char end[] = "e_score_correction_bias";
    const size_t bytes = strlen(spec->name), most = sizeof end - 1;
    return spec->kind == DSC_BUFFER_AVERAGE && bytes >= most && strcmp(spec->name + bytes - most, end) == 0;
}

static bool biases_move(const dsc_engine *engine) { return engine->config.own.moe.bias_speed > 0; }

dsc_status dsc_engine_check_biases(const dsc_engine *engine, dsc_error *err)
{
    const dsc_model *model = engine->model;
    const dsc_model_experts *x = &model->experts;
    int64_t found = 0;
    bool alike = true;
    if (!biases_move(engine))
        return DSC_OK;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t b = 0; b < model->modules[m].buffer_count; b++) {
            const dsc_buffer_spec *spec = &model->modules[m].buffers[b];
            found += is_bias(spec);
            alike = alike && (!is_bias(spec) || (spec->count == x->experts && !dsc_buffer_is_folded(spec)));
        }
    if (model->adapter_json == NULL && x->routers > 0 && found == x->routers && alike)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.moe.bias_update_speed",
                    "the model's routers of experts: %d; its buffers \"*e_score_correction_bias\": %lld%s; expected "
                    "one for each router, in a run without adapters",
                    (int)x->routers, (long long)found, alike ? "" : ", of other sizes or with statistics");
}

/* An expert with fewer tokens than the mean is chosen more often from now on. */
static void move_bias(const dsc_engine *engine, float *bias, const int64_t *load)
{
    const int32_t experts = engine->model->experts.experts;
    const float speed = (float)engine->config.own.moe.bias_speed;
    int64_t sum = 0;
    for (int32_t e = 0; e < experts; e++)
        sum += load[e];
    for (int32_t e = 0; e < experts; e++) { /* in whole numbers: the mean may be a fraction */
        const int64_t over = load[e] * experts - sum;
        bias[e] += over > 0 ? -speed : over < 0 ? speed : 0;
    }
}

/* Every rank has the buffers of the whole model, and the loads of its routers in their order. */
dsc_status dsc_engine_move_biases(dsc_engine *engine, dsc_error *err)
{
    const int64_t *load = engine->work.expert_load;
    if (!biases_move(engine))
        return DSC_OK;
    for (int32_t n = 0; n < engine->buffers.count; n++)
        if (is_bias(engine->buffers.stored[n].spec)) {
            move_bias(engine, engine->buffers.stored[n].value, load);
            load += dsc_stages_whole_model(engine)->experts.experts;
        }
    return dsc_engine_give_buffers(engine, err);
}
