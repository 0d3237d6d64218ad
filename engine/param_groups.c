/* param_groups.c - dsc.param_groups on a layout: the class of an update's scalars for each tensor, and its log lines.
 *
 * Classes 0 and 1 are for parameters in no group, with and without weight decay, as the model says. Group g has classes
 * 2 g + 2 and 2 g + 3. If a recipe is for hidden matrices alone, the parameters of the second recipe have classes after
 * all of these. States do not depend on classes, so groups may change at a checkpoint.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "engine/internal.h"
#include "engine/model.h"

_Static_assert(2 * (2 * DSC_PARAM_GROUPS_MAX + 2) == DSC_UPDATE_CLASSES_MAX, "each group has two of each recipe");

typedef struct tally {
    int64_t tensors, elements;
    uint32_t used; /* bit p: pattern p took a tensor */
} tally;

/* The first group with a pattern that fits; -1: none. */
static int group_of(const dsc_ext_config *own, const char *name, tally *tallies)
{
    for (int g = 0; g < own->group_count; g++)
        for (int p = 0; p < own->group[g].pattern_count; p++)
            if (dsc_name_matches(own->group[g].pattern[p], name)) {
                tallies[g].used |= 1u << p;
                return g;
            }
    return -1;
}

static dsc_status tell(const dsc_engine *engine, int g, const tally *t, dsc_error *err)
{
    const dsc_param_group *group = &engine->config.own.group[g];
    const dsc_log *log = &engine->log;
    char decay[48] = "the optimizer's";
    if (t->tensors == 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.param_groups", "group %d (\"%s\") gets no parameter that is trained: "
                        "no name fits that a group before it has not taken; names are those of safetensors files, '*' "
                        "stands for any text", g + 1, group->pattern[0]);
    if (engine->place.rank != 0)
        return DSC_OK;
    if (group->has_weight_decay)
        snprintf(decay, sizeof decay, "%g", group->weight_decay);
    dsc_log_printf(log, DSC_LOG_INFO, "dsc.param_groups: group %d (\"%s\"%s): %lld tensors, %lld parameters; lr %g, "
                   "weight_decay %s", g + 1, group->pattern[0], group->pattern_count > 1 ? ", ..." : "",
                   (long long)t->tensors, (long long)t->elements, engine->config.optimizer.lr * group->lr_scale, decay);
    for (int p = 0; p < group->pattern_count; p++)
        if ((t->used >> p & 1) == 0)
            dsc_log_printf(log, DSC_LOG_WARNING, "dsc.param_groups: group %d: \"%s\" takes no parameter", g + 1,
                           group->pattern[p]);
    return DSC_OK;
}

dsc_status dsc_engine_group_params(const dsc_engine *engine, dsc_layout *layout, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    tally tallies[DSC_PARAM_GROUPS_MAX] = { { 0 } };
    for (int32_t t = 0; t < layout->tensor_count && !own->decay_vectors; t++)
        if (layout->tensor[t].spec->dim_count <= 1)
            layout->tensor[t].update_class |= 1; /* without decay */
    for (int32_t t = 0; t < layout->tensor_count && own->group_count > 0; t++) {
        dsc_layout_tensor *tensor = &layout->tensor[t];
        const int g = tensor->spec->trainable ? group_of(own, tensor->spec->name, tallies) : -1;
        if (g < 0)
            continue;
        tensor->update_class = 2 * g + 2 + (tensor->update_class & 1);
        tallies[g].tensors++;
        tallies[g].elements += tensor->count;
    }
    const dsc_recipe recipe = engine->config.optimizer.recipe;
    for (int32_t t = 0; t < layout->tensor_count; t++)
        if (dsc_layout_recipe(layout, layout->tensor[t].group, recipe) != recipe)
            layout->tensor[t].update_class += 2 * own->group_count + 2;
    for (int g = 0; g < own->group_count; g++)
        DSC_TRY(tell(engine, g, &tallies[g], err));
    return DSC_OK;
}
