/* schedule.c - see schedule.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/stages/schedule.h"

const char *dsc_stage_work_text(dsc_stage_work work)
{
    static const char *const texts[] = { "input",    "forward",  "output",   "tied gradients", "tied gradients",
                                         "gradient", "backward", "gradient", "evaluation" };
    DSC_ASSERT((size_t)work < DSC_COUNT(texts));
    return texts[work];
}

static int64_t group_count(const dsc_stage_shape *shape)
{
    DSC_ASSERT(shape->group >= 1 && shape->micro_batches % shape->group == 0);
    return shape->micro_batches / shape->group;
}

/* Forward passes before the first backward. The loss module makes its gradients in its forward, so the backward of the
 * last stage follows at once. */
static int64_t warm_up(const dsc_stage_shape *shape)
{
    DSC_ASSERT(shape->stage >= 0 && shape->stage < shape->stages);
    if (shape->order == DSC_STAGES_GPIPE && shape->stage < shape->stages - 1)
        return group_count(shape);
    return dsc_min_i64(shape->stages - 1 - shape->stage, group_count(shape));
}

int32_t dsc_stage_lanes(const dsc_stage_shape *shape)
{
    return (int32_t)dsc_min_i64(warm_up(shape) + 1, group_count(shape)) * shape->group;
}

int32_t dsc_stage_slots(const dsc_stage_shape *shape)
{
    const bool loss_alone = shape->stage == shape->stages - 1 && shape->modules == 1;
    return loss_alone && shape->group > 2 ? shape->group : 2;
}

typedef struct list {
    dsc_stage_op *out;
    int64_t count;
} list;

static void add(list *l, bool there, dsc_stage_work work, int32_t module, int64_t micro_batch)
{
    if (!there)
        return;
    if (l->out != NULL)
        l->out[l->count] = (dsc_stage_op) { work, module, micro_batch };
    l->count++;
}

static void add_forward(const dsc_stage_shape *shape, list *l, int64_t group)
{
    const int64_t first = group * shape->group;
    const bool ends = shape->stage == shape->stages - 1;
    for (int32_t m = 0; m < shape->modules; m++)
        for (int64_t k = first; k < first + shape->group; k++) {
            const bool last = m == shape->modules - 1;
            add(l, m == 0 && shape->stage > 0, DSC_STAGE_RECV_INPUT, m, k);
            add(l, true, DSC_STAGE_FORWARD, m, k);
            add(l, last && !ends, DSC_STAGE_SEND_OUTPUT, m, k);
            add(l, last && ends && shape->tied_owner >= 0, DSC_STAGE_SEND_TIED, m, k);
            add(l, last && ends && m == 0 && shape->stage > 0, DSC_STAGE_SEND_GRADIENT, m, k); /* the loss module's */
        }
}

static void add_backward(const dsc_stage_shape *shape, list *l, int64_t group)
{
    const int64_t first = group * shape->group, end = first + shape->group;
    const bool ends = shape->stage == shape->stages - 1;
    for (int64_t k = first; k < end; k++)
        add(l, !ends, DSC_STAGE_BOUNDARY, shape->modules, k);
    for (int32_t m = shape->modules - 1 - ends; m >= 0; m--)
        for (int64_t k = first; k < end; k++) {
            add(l, !ends && m == shape->modules - 1, DSC_STAGE_RECV_GRADIENT, m, k);
            add(l, true, DSC_STAGE_BACKWARD, m, k);
            add(l, m == 0 && shape->stage > 0, DSC_STAGE_SEND_GRADIENT, m, k);
        }
}

int64_t dsc_stage_list(const dsc_stage_shape *shape, dsc_stage_op *out)
{
    const int64_t ahead = warm_up(shape), groups = group_count(shape);
    list l = { out, 0 };
    DSC_ASSERT(shape->micro_batches >= 1 && shape->modules >= 1);
    for (int64_t g = 0; g < ahead; g++)
        add_forward(shape, &l, g);
    for (int64_t g = ahead; g < groups; g++) {
        add_forward(shape, &l, g);
        add_backward(shape, &l, g - ahead);
    }
    for (int64_t g = groups - ahead; g < groups; g++)
        add_backward(shape, &l, g);
    return l.count;
}

/* Runs whose weights stay within `limit`, as long as each stage that follows keeps a module; false: more stages would
 * be needed. */
static bool cut_within(const double *weight, int32_t modules, int32_t stages, double limit, int32_t *first)
{
    int32_t m = 0;
    for (int32_t s = 0; s < stages; s++) {
        double sum = weight[m];
        first[s] = m++;
        while (m < modules && modules - m > stages - 1 - s && sum + weight[m] <= limit)
            sum += weight[m++];
    }
    first[stages] = modules;
    return m == modules;
}

void dsc_stage_cut(const double *weight, int32_t modules, int32_t stages, bool uniform, int32_t *first)
{
    double least = 0, most = 0;
    DSC_ASSERT(stages >= 1 && stages <= modules);
    for (int32_t s = 0; s <= stages; s++)
        first[s] = (int32_t)((int64_t)s * modules / stages);
    if (uniform)
        return;
    for (int32_t m = 0; m < modules; m++) {
        DSC_ASSERT(weight[m] >= 0);
        least = weight[m] > least ? weight[m] : least;
        most += weight[m];
    }
    if (cut_within(weight, modules, stages, least, first))
        return;
    for (int i = 0; i < 64; i++) { /* a double has 53 bits: the limits meet before */
        const double limit = (least + most) / 2;
        if (cut_within(weight, modules, stages, limit, first))
            most = limit;
        else
            least = limit;
    }
    const bool cut = cut_within(weight, modules, stages, most, first);
    DSC_ASSERT(cut);
}
