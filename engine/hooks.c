/* hooks.c - the host program's gradient hooks (dsc/hooks.h): which parameters the values of a call belong to.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dsc/hooks.h>

#include "engine/hooks.h"
#include "engine/internal.h"

struct dsc_engine_hooks {
    const dsc_engine *engine;
    dsc_gradient_hooks given;
    dsc_gradient_span *spans; /* [most tensors of a group] */
};

/* The tensors of elements [first, first + count) of a group. Returns how many. */
static int32_t list_spans(const dsc_layout *layout, int32_t group, int64_t first, int64_t count, dsc_gradient_span *out)
{
    const dsc_layout_group *of = &layout->group[group];
    int32_t found = 0;
    for (int32_t t = of->first_tensor; t < of->first_tensor + of->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        int64_t at;
        const int64_t inside = dsc_layout_span(tensor, first, count, &at);
        if (inside > 0)
            out[found++] = (dsc_gradient_span) { tensor->spec, tensor->offset + at - first, inside, at };
    }
    return found;
}

static dsc_status call(const struct dsc_engine_hooks *hooks, dsc_gradient_hook hook, dsc_gradient_info *info,
                       float *values, int64_t count, dsc_error *err)
{
    const dsc_engine *engine = hooks->engine;
    info->struct_bytes = (uint32_t)sizeof *info;
    info->step = engine->progress.step + 1;
    info->spans = hooks->spans;
    info->span_count = list_spans(&engine->layout, info->group, info->first, count, hooks->spans);
    return hook(hooks->given.user, info, values, count, err);
}

static dsc_status before_send(void *user, int32_t module, int32_t group, int64_t micro_step, float *values,
                              int64_t count, dsc_error *err)
{
    const struct dsc_engine_hooks *hooks = user;
    dsc_gradient_info info = { .micro_step = micro_step,
                               .module = hooks->engine->model->modules[module].name,
                               .group = group };
    return call(hooks, hooks->given.before_send, &info, values, count, err);
}

static dsc_status after_reduce(void *user, int32_t group, int64_t first, float *values, int64_t count, dsc_error *err)
{
    const struct dsc_engine_hooks *hooks = user;
    const dsc_layout_group *of = &hooks->engine->layout.group[group];
    dsc_gradient_info info = {
        .micro_step = -1, .module = hooks->engine->model->modules[of->module].name, .group = group, .first = first
    };
    return call(hooks, hooks->given.after_reduce, &info, values, count, err);
}

static dsc_status check(const dsc_engine *engine, dsc_error *err)
{
    const char *const refused = dsc_config_compresses_signs(&engine->config) ? "optimizer.type"
                                : engine->config.own.hook.kind == DSC_HOOK_POWERSGD
                                    ? "dsc.communication_hook.type"
                                    : NULL;
    if (refused != NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, refused,
                        "ranks exchange signs or factors instead of gradients, so gradient hooks have nothing to see; "
                        "use another one, or no hooks");
    if (!engine->host_visible)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                        "gradient hooks run on CPU ranks; the gradients of \"cuda\" are not in the host's reach");
    return DSC_OK;
}

static dsc_status open_hooks(dsc_engine *engine, dsc_error *err)
{
    int64_t most = 1;
    for (int32_t g = 0; g < engine->layout.group_count; g++)
        most = dsc_max_i64(most, engine->layout.group[g].tensor_count);
    if (engine->hooks == NULL)
        DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 1, sizeof *engine->hooks, &engine->hooks, err));
    engine->hooks->engine = engine;
    if (engine->hooks->spans != NULL)
        return DSC_OK;
    return dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, most, sizeof *engine->hooks->spans, &engine->hooks->spans,
                            err);
}

dsc_status dsc_engine_set_gradient_hooks(dsc_engine *engine, const dsc_gradient_hooks *hooks, dsc_error *err)
{
    static const dsc_gradient_hooks none = DSC_GRADIENT_HOOKS_INIT;
    hooks = hooks != NULL ? hooks : &none;
    if (hooks->struct_bytes != sizeof *hooks)
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "hooks of another version of dsc (start from DSC_GRADIENT_HOOKS_INIT)");
    DSC_TRY(dsc_engine_check_idle(engine, "set_gradient_hooks", err));
    DSC_TRY(check(engine, err));
    DSC_TRY(dsc_engine_settle(engine, err));
    dsc_alloc_freeze(engine->alloc, false);
    const dsc_status status = open_hooks(engine, err);
    dsc_alloc_freeze(engine->alloc, engine->progress.step > 0);
    DSC_TRY(status);
    engine->hooks->given = *hooks;
    const dsc_zero_hooks of_zero = { .user = engine->hooks,
                                     .before_send = hooks->before_send != NULL ? before_send : NULL,
                                     .after_reduce = hooks->after_reduce != NULL ? after_reduce : NULL };
    dsc_zero_set_hooks(engine->zero, &of_zero);
    return DSC_OK;
}

dsc_power_sgd_options dsc_hooks_power_sgd(const dsc_config *config)
{
    const dsc_hook_section *hook = &config->own.hook;
    if (hook->kind != DSC_HOOK_POWERSGD)
        return (dsc_power_sgd_options) { .rank = 0 };
    return (dsc_power_sgd_options) { (int32_t)hook->rank, hook->start_step + 1, hook->min_rate };
}

void dsc_engine_close_hooks(dsc_engine *engine)
{
    if (engine->hooks != NULL)
        dsc_alloc_free(engine->alloc, engine->hooks->spans);
    dsc_alloc_free(engine->alloc, engine->hooks);
}
