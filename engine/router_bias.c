/* router_bias.c - see router_bias.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/router_bias.h"

#include <string.h>

#include "engine/internal.h"
#include "engine/model.h"

bool dsc_name_is_router_bias(const char *name)
{
    static const char end[] = "e_score_correction_bias";
    const size_t bytes = strlen(name), most = sizeof end - 1;
    return bytes >= most && strcmp(name + bytes - most, end) == 0;
}

/* [experts], or [1,experts] as ERNIE has it. */
static int64_t elements_of(const dsc_param_spec *spec)
{
    return spec->dim_count == 1 ? spec->dim[0] : spec->dim_count == 2 && spec->dim[0] == 1 ? spec->dim[1] : 0;
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
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            found += dsc_name_is_router_bias(spec->name);
            alike =
                alike && (!dsc_name_is_router_bias(spec->name) || (elements_of(spec) == x->experts && spec->trainable));
        }
    if (model->adapter_json != NULL || x->routers == 0 || found != x->routers || !alike)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.moe.bias_update_speed",
                        "the model's routers of experts: %d; its parameters \"*e_score_correction_bias\": %lld%s; "
                        "expected one for each router, in a run without adapters that does not freeze them",
                        (int)x->routers, (long long)found, alike ? "" : ", of other sizes or frozen");
    if (engine->config.own.early_update)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.early_update",
                        "updates that begin before the loads of the step are known cannot have moved biases "
                        "(dsc.moe.bias_update_speed); use one of the two");
    return DSC_OK;
}

dsc_status dsc_engine_zero_biases(const dsc_engine *engine, int32_t module, dsc_error *err)
{
    const dsc_module *of = &engine->model->modules[module];
    for (int32_t p = 0; p < of->param_count && biases_move(engine); p++)
        if (dsc_name_is_router_bias(of->params[p].name) && engine->work.grad[p] != NULL)
            DSC_TRY(dsc_fill_zero(engine->compute, engine->work.grad[p], elements_of(&of->params[p]) * 4, err));
    return DSC_OK;
}

static int32_t tensor_of(const dsc_engine *engine, int32_t module, int32_t param)
{
    for (int32_t t = 0; t < engine->layout.tensor_count; t++)
        if (engine->layout.tensor[t].module == module && engine->layout.tensor[t].param == param)
            return t;
    DSC_ASSERT(false);
    return -1;
}

/* An expert with fewer tokens than the mean is chosen more often from now on. */
static dsc_status move_bias(dsc_engine *engine, int32_t tensor, const int64_t *load, dsc_error *err)
{
    const int32_t experts = engine->model->experts.experts;
    const float speed = (float)engine->config.own.moe.bias_speed;
    float delta[DSC_MOE_EXPERTS_MAX];
    int64_t sum = 0;
    for (int32_t e = 0; e < experts; e++)
        sum += load[e];
    for (int32_t e = 0; e < experts; e++) { /* in whole numbers: the mean may be a fraction */
        const int64_t over = load[e] * experts - sum;
        delta[e] = over > 0 ? -speed : over < 0 ? speed : 0;
    }
    return dsc_zero_add_to_master(engine->zero, tensor, delta, err);
}

/* In the order of routers, which are those of all stages; a stage has its own ones. */
dsc_status dsc_engine_move_biases(dsc_engine *engine, dsc_error *err)
{
    const dsc_model *whole = dsc_stages_whole_model(engine);
    const int32_t first = engine->stages.own.first;
    const int32_t end = first + (dsc_stages_are_used(&engine->stages) ? engine->stages.own.count : whole->module_count);
    const int64_t *load = engine->work.expert_load;
    if (!biases_move(engine))
        return DSC_OK;
    for (int32_t m = 0; m < end; m++)
        for (int32_t p = 0; p < whole->modules[m].param_count; p++)
            if (dsc_name_is_router_bias(whole->modules[m].params[p].name)) {
                if (m >= first)
                    DSC_TRY(move_bias(engine, tensor_of(engine, m - first, p), load, err));
                load += whole->experts.experts;
            }
    return DSC_OK;
}
