/* layout.c - lays a model's tensors into flat groups. SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/layout.h"

#include <string.h>
#include <strings.h>

#define GROUPS_MOST 8 /* of a module: one of each kind, and one in fp8 */

static int64_t element_count(const dsc_param_spec *spec)
{
    int64_t count = 1;
    for (int32_t d = 0; d < spec->dim_count; d++)
        count *= spec->dim[d]; /* dsc_model_check has bounded the product */
    DSC_ASSERT(count > 0); /* dsc_model_check refuses empty dimensions */
    return count;
}

/* Tensors of one group: trainable or frozen, and matrices apart from the others or not. */
typedef struct group_kind {
    bool trainable, matrices, packed, fp8;
} group_kind;

/* A hidden matrix in DeepSpeed's sense. In a model with several modules it belongs neither to the first nor to the last
 * one, and its name is not that of an embedding or of logits. */
static bool is_hidden_matrix(const dsc_model *model, int32_t module_index, const dsc_param_spec *spec,
                             const dsc_layout_rules *rules)
{
    static const char *const outer[] = { "embed", "lm_head" };
    const int32_t number = rules->first_module + module_index;
    const int32_t modules = rules->whole_modules > 0 ? rules->whole_modules : model->module_count;
    DSC_ASSERT(module_index < model->module_count);
    if (spec->dim_count < 2)
        return false;
    if (modules > 1 && (number == 0 || number == modules - 1))
        return false;
    for (const char *at = spec->name; *at != 0; at++)
        for (size_t w = 0; w < DSC_COUNT(outer); w++)
            if (strncasecmp(at, outer[w], strlen(outer[w])) == 0)
                return false;
    return true;
}

/* Whether a tensor is one of those that a recipe for matrices is for. */
static bool is_matrix(const dsc_model *model, int32_t module_index, const dsc_param_spec *spec,
                      const dsc_layout_rules *rules)
{
    const uint32_t needs = dsc_recipes[rules->recipe].needs;
    if ((needs & DSC_NEEDS_ROW_COL_STATS) != 0)
        return spec->trainable && spec->dim_count >= 2;
    return (needs & DSC_NEEDS_WHOLE_MATRIX) != 0 && spec->trainable &&
           is_hidden_matrix(model, module_index, spec, rules);
}

/* Of a parameter, dsc_layout_open's fp8. */
static int64_t fp8_of(const dsc_model *model, int32_t module_index, const dsc_param_spec *spec,
                      const dsc_layout_rules *rules)
{
    int64_t number = spec - model->modules[module_index].params;
    for (int32_t m = 0; m < module_index; m++)
        number += model->modules[m].param_count;
    return rules->fp8 != NULL ? rules->fp8[number] : 0;
}

static group_kind kind_of(const dsc_model *model, int32_t module_index, const dsc_param_spec *spec,
                          const dsc_layout_rules *rules)
{
    const bool linear = spec->dim_count == 2 && !spec->as_stored, experts = rules->experts && spec->experts;
    DSC_ASSERT(spec->shared_module < 0);
    return (group_kind) { .trainable = spec->trainable,
                          .matrices = is_matrix(model, module_index, spec, rules),
                          .fp8 = fp8_of(model, module_index, spec, rules) != 0,
                          .packed = rules->packed != DSC_NF4_NONE && !spec->trainable && (linear || experts) &&
                                    is_hidden_matrix(model, module_index, spec, rules) };
}

/* Tensors in fp8 are apart, but of one kind with the others. */
static bool same_kind(group_kind a, group_kind b)
{
    return a.trainable == b.trainable && a.matrices == b.matrices && a.packed == b.packed;
}

/* Where a kind's tensors begin if those in fp8 are not apart: numbers and random roundings do not depend on that. */
typedef struct kind_place {
    int32_t number;
    int64_t position;
} kind_place;

/* Of tensors of the kind, in fp8 or not, behind each other. */
static kind_place end_of_kind(const dsc_layout *layout, const dsc_model *model, int32_t module_index, group_kind kind,
                              const dsc_layout_rules *rules, kind_place start)
{
    const dsc_module *module = &model->modules[module_index];
    for (int32_t p = 0; p < module->param_count; p++) {
        const dsc_param_spec *spec = &module->params[p];
        if (spec->shared_module >= 0 || !same_kind(kind_of(model, module_index, spec, rules), kind))
            continue;
        start.number++;
        start.position += dsc_align_up(element_count(spec), layout->tensor_align);
    }
    return start;
}

/* Those of them that are laid late, or the others. Returns the end of the last one. */
static int64_t add_tensors(dsc_layout *layout, const dsc_model *model, dsc_layout_group *group, group_kind kind,
                           const dsc_layout_rules *rules, int32_t number, bool late, int64_t end)
{
    const dsc_module *module = &model->modules[group->module];
    int64_t drawn = 0;
    for (int32_t p = 0; p < module->param_count; p++) {
        const dsc_param_spec *spec = &module->params[p];
        if (spec->shared_module >= 0 || !same_kind(kind_of(model, group->module, spec, rules), kind))
            continue;
        const int64_t count = element_count(spec), place = dsc_align_up(drawn, layout->tensor_align);
        number++;
        drawn = place + count;
        if (spec->laid_late != late || kind_of(model, group->module, spec, rules).fp8 != kind.fp8)
            continue;
        DSC_ASSERT(layout->tensor_count < layout->param_count);
        const int64_t offset = dsc_align_up(end, layout->tensor_align);
        layout->tensor[layout->tensor_count] = (dsc_layout_tensor) { .spec = spec,
                                                                     .module = group->module,
                                                                     .param = p,
                                                                     .group = layout->group_count,
                                                                     .number = number - 1,
                                                                     .offset = offset,
                                                                     .drawn = place,
                                                                     .count = count,
                                                                     .uncounted = spec->part.spare,
                                                                     .update_class = spec->decay ? 0 : 1 };
        if (kind.fp8)
            layout->tensor[layout->tensor_count].fp8_count = dsc_max_i64(fp8_of(model, group->module, spec, rules), 0);
        layout->param[layout->module_first_param[group->module] + p] =
            (dsc_layout_param) { layout->tensor_count, false };
        layout->tensor_count++;
        group->tensor_count++;
        group->uncounted = group->uncounted || spec->part.spare;
        end = offset + count;
        layout->parameter_count += count;
        if (kind.trainable)
            layout->trainable_count += count;
    }
    return end;
}

/* Appends the group of a module's own tensors of a kind; nothing when there are none. */
static void add_group(dsc_layout *layout, const dsc_model *model, int32_t module_index, group_kind kind,
                      const dsc_layout_rules *rules, kind_place start)
{
    dsc_layout_group group = { .module = module_index,
                               .trainable = kind.trainable,
                               .matrices = kind.matrices,
                               .packed = kind.packed ? rules->packed : DSC_NF4_NONE,
                               .fp8 = kind.fp8,
                               .first_tensor = layout->tensor_count };
    int64_t end = add_tensors(layout, model, &group, kind, rules, start.number, false, 0);
    end = add_tensors(layout, model, &group, kind, rules, start.number, true, end);
    if (group.tensor_count == 0)
        return;
    group.elements = end;
    group.slice = dsc_layout_slice(end, layout->world_size);
    group.padded = group.slice * layout->world_size;
    DSC_ASSERT(group.elements <= group.padded);
    DSC_ASSERT(group.first_tensor + group.tensor_count == layout->tensor_count);
    group.position = start.position;
    DSC_ASSERT(group.position % layout->tensor_align == 0);
    DSC_ASSERT(layout->group_count < GROUPS_MOST * layout->module_count); /* one of each kind at most */
    layout->group[layout->group_count++] = group;
}

static void add_use(dsc_layout *layout, int32_t module, int32_t *use_count, int32_t group)
{
    DSC_ASSERT(group < layout->group_count);
    for (int32_t u = layout->module_first_use[module]; u < *use_count; u++)
        if (layout->use_group[u] == group)
            return;
    DSC_ASSERT(*use_count < GROUPS_MOST * layout->module_count + layout->param_count);
    layout->use_group[(*use_count)++] = group;
}

static void add_uses(dsc_layout *layout, const dsc_model *model)
{
    int32_t use_count = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        layout->module_first_use[m] = use_count;
        for (int32_t g = 0; g < layout->group_count; g++)
            if (layout->group[g].module == m)
                add_use(layout, m, &use_count, g);
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            if (spec->shared_module < 0)
                continue;
            const int32_t owner =
                layout->param[layout->module_first_param[spec->shared_module] + spec->shared_param].tensor;
            DSC_ASSERT(layout->tensor[owner].module == spec->shared_module);
            DSC_ASSERT(layout->tensor[owner].param == spec->shared_param);
            layout->param[layout->module_first_param[m] + p] = (dsc_layout_param){ owner, true };
            add_use(layout, m, &use_count, layout->tensor[owner].group);
        }
    }
    layout->module_first_use[model->module_count] = use_count;
}

dsc_status dsc_layout_open(dsc_alloc *alloc, const dsc_model *model, const dsc_layout_rules *rules, dsc_layout *out,
                           dsc_error *err)
{
    _Static_assert(DSC_Q8_BLOCK % DSC_LAYOUT_TENSOR_ALIGN == 0 && DSC_LAYOUT_SLICE_ALIGN % DSC_Q8_BLOCK == 0,
                   "tensors and slices begin with a block");
    static const group_kind kinds[] = {
        { .trainable = true, .matrices = true }, { .trainable = true }, { .trainable = false }, { .packed = true }
    };
    DSC_ASSERT(rules->fp8 == NULL || rules->packed == DSC_NF4_NONE);
    DSC_ASSERT(rules->world_size >= 1);
    dsc_layout layout = { .alloc = alloc,
                          .world_size = rules->world_size,
                          .tensor_align = rules->moment_dtype == DSC_U8 ? DSC_Q8_BLOCK : DSC_LAYOUT_TENSOR_ALIGN,
                          .module_count = model->module_count };
    dsc_status status = DSC_OK;
    int64_t params = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        params += model->modules[m].param_count;
    layout.param_count = (int32_t)params;
    const int64_t modules = model->module_count;
    DSC_TRY_OUT(
        dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules * GROUPS_MOST, sizeof *layout.group, &layout.group, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, params, sizeof *layout.tensor, &layout.tensor, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, params, sizeof *layout.param, &layout.param, err));
    DSC_TRY_OUT(
        dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules + 1, sizeof(int32_t), &layout.module_first_param, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules + 1, sizeof(int32_t), &layout.module_first_use, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules * GROUPS_MOST + params, sizeof(int32_t),
                                 &layout.use_group, err));
    for (int32_t m = 0; m < model->module_count; m++)
        layout.module_first_param[m + 1] = layout.module_first_param[m] + model->modules[m].param_count;
    kind_place start = { 0 };
    for (int32_t m = 0; m < model->module_count; m++) {
        for (size_t k = 0; k < DSC_COUNT(kinds); k++) {
            group_kind in_fp8 = kinds[k];
            in_fp8.fp8 = true;
            add_group(&layout, model, m, kinds[k], rules, start);
            add_group(&layout, model, m, in_fp8, rules, start);
            start = end_of_kind(&layout, model, m, kinds[k], rules, start);
        }
    }
    DSC_ASSERT(start.number == layout.tensor_count);
    add_uses(&layout, model);
    DSC_ASSERT(layout.module_first_param[model->module_count] == layout.param_count);
    DSC_ASSERT(layout.trainable_count <= layout.parameter_count);
    *out = layout;
    return DSC_OK;
out:
    dsc_layout_close(&layout);
    return status;
}

void dsc_layout_close(dsc_layout *layout)
{
    if (layout->alloc == NULL)
        return;
    dsc_alloc_free(layout->alloc, layout->group);
    dsc_alloc_free(layout->alloc, layout->tensor);
    dsc_alloc_free(layout->alloc, layout->param);
    dsc_alloc_free(layout->alloc, layout->module_first_param);
    dsc_alloc_free(layout->alloc, layout->module_first_use);
    dsc_alloc_free(layout->alloc, layout->use_group);
    *layout = (dsc_layout){ 0 };
}

int64_t dsc_layout_span(const dsc_layout_tensor *tensor, int64_t first, int64_t count, int64_t *tensor_first)
{
    DSC_ASSERT(first >= 0);
    DSC_ASSERT(count >= 0);
    const int64_t begin = dsc_max_i64(first, tensor->offset);
    const int64_t end = dsc_min_i64(first + count, tensor->offset + tensor->count);
    if (begin >= end)
        return 0;
    *tensor_first = begin - tensor->offset;
    DSC_ASSERT(*tensor_first + (end - begin) <= tensor->count);
    return end - begin;
}
