/* grad_parts.c - the gradient parts of a pass: the order of their reduction, their slots until then, and the location
 * of offloaded sums meanwhile.
 *
 * A part is produced at a step and reduced on the reduce stream while the next part is made. So its slot in the arena
 * is occupied for the time of two parts of its module (of one without overlap). Reductions may be later than that,
 * above all with sums in files. So a slot is reused as late as the arena allows, and a slot that is reduced piecewise
 * is written again as soon as its pieces are reduced.
 *
 * Owners add parts micro-step after micro-step, and uses of a tied parameter in backward order. With a
 * micro-batch group, a module makes the parts of all its micro-batches one after the other. For a group with several
 * users that is not the order of sums. Parts of its earlier users wait in their slots, except for the first
 * micro-batch, until the last user has made its part. With speculative updates, parts of sums in files wait too. One
 * user's sum would otherwise go to its file and come back for the next user's part, when the update needs it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/window.h"
#include "zero/core/internal.h"
#include "zero/grad_parts.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"

#include <string.h>

#define SEPARATE_ELEMENTS (1 << 18) /* per rank: 1 MiB of fp32 parts that are kept separate at a time */
#define SLOT_CLASSES 4              /* slots for the parts of a use: the first, two that alternate, the last */
#define REUSE_DELAY_MAX 8           /* reductions that are later than that do not catch up any more */

/* ---- the order ---- */

static int32_t step_of(const dsc_zero *zero, int32_t module)
{
    DSC_ASSERT(module >= 0);
    DSC_ASSERT(module < zero->o.layout->module_count);
    return module == zero->o.layout->module_count - 1 ? module : dsc_backward_step(zero, module);
}

static void add_part(dsc_zero *zero, int32_t module, int32_t use, int32_t mb, int32_t visit)
{
    const int32_t g = zero->o.layout->use_group[use], index = zero->parts.count++;
    dsc_group_state *group = &zero->group[g];
    dsc_grad_part *part = &zero->parts.part[index];
    DSC_ASSERT(mb < zero->o.micro_batch_group);
    DSC_ASSERT(visit <= module); /* a part waits for modules whose backward comes later */
    DSC_ASSERT(zero->parts.of_use[use * zero->o.micro_batch_group + mb] < 0); /* one part of a use and micro-batch */
    *part = (dsc_grad_part) {
        .module = module, .group = g, .use = use, .mb = mb, .visit = visit, .before = group->sums.newest_part
    };
    group->sums.newest_part = index;
    part->first_use = module == group->last_user;
    part->last_use = module == group->first_user;
    zero->parts.of_use[use * zero->o.micro_batch_group + mb] = index;
}

static int32_t use_of(const dsc_layout *layout, int32_t module, int32_t group)
{
    for (int32_t u = layout->module_first_use[module]; u < layout->module_first_use[module + 1]; u++)
        if (layout->use_group[u] == group)
            return u;
    return -1;
}

/* Lists the parts of one use that are reduced when its own part is made. */
static void list_use(dsc_zero *zero, int32_t module, int32_t use, int32_t mb)
{
    const dsc_layout *layout = zero->o.layout;
    const int32_t g = layout->use_group[use];
    const dsc_group_state *group = &zero->group[g];
    const bool last_use = module == group->first_user;
    const bool wait = mb > 0 || (dsc_speculative_update_is_used(zero) && dsc_in_swap(zero, g, DSC_PLANE_GRAD));
    DSC_ASSERT(use >= layout->module_first_use[module]);
    DSC_ASSERT(use < layout->module_first_use[module + 1]);
    if (!layout->group[g].trainable || (wait && !last_use))
        return;
    for (int32_t m = group->last_user; wait && m > module; m--)
        if (use_of(layout, m, g) >= 0)
            add_part(zero, m, use_of(layout, m, g), mb, module);
    add_part(zero, module, use, mb, module);
}

/* The loss module's at its forward step, then the others' backwards. */
static void list_parts(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    int32_t *first = zero->parts.visit_first;
    for (int32_t g = 0; g < layout->group_count; g++)
        zero->group[g].sums.newest_part = -1;
    for (int32_t m = layout->module_count - 1; m >= 0; m--)
        for (int32_t mb = 0; mb < zero->o.micro_batch_group; mb++) {
            *first++ = zero->parts.count;
            for (int32_t u = layout->module_first_use[m]; u < layout->module_first_use[m + 1]; u++)
                list_use(zero, m, u, mb);
        }
    DSC_ASSERT(first == zero->parts.visit_first + layout->module_count * zero->o.micro_batch_group);
    *first = zero->parts.count;
}

/* The first part of a single rank's sum on the device needs no copy. Readers of the sum round it to the wire dtype, or
 * the next part is added to it. Passes of an optimizer do not round what they read. */
static bool begins_sum(const dsc_zero *zero, const dsc_grad_part *part)
{
    const bool is_last = dsc_grad_part_is_last(zero, part) && zero->pass_count == 1;
    const bool by_pass = dsc_recipes[dsc_group_recipe(zero, part->group)].needs != DSC_NEEDS_NOTHING;
    return dsc_grad_part_is_first(part) && zero->world_size == 1 && zero->o.replica_count <= 1 &&
           !zero->o.world_size_reproducible && zero->o.quant_grad_parts == DSC_QUANT_NONE &&
           zero->o.sum_dtype == DSC_F32 && zero->o.signs.kind == DSC_ONEBIT_NEVER && zero->o.power_sgd.rank == 0 &&
           !dsc_state_store_is_used(zero) && !dsc_host_update_is_used(zero) &&
           !(is_last && by_pass && zero->o.wire_dtype != DSC_F32);
}

static void find_begins(dsc_zero *zero)
{
    for (int32_t i = 0; i < zero->parts.count; i++) {
        dsc_grad_part *part = &zero->parts.part[i];
        part->begins_sum = begins_sum(zero, part);
        part->slot = part->begins_sum && zero->pass_count == 1 ? -1 : 0;
    }
}

/* ---- offloaded sums ---- */

/* Offsets of the buffers that hold a module's sums while a micro-batch group adds to them one micro-batch at a time.
 * Returns the largest bytes of one module. */
static int64_t assign_staged_sums(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    int64_t most = 0;
    for (int32_t m = 0; m < layout->module_count && zero->o.micro_batch_group > 1; m++) {
        int64_t elements = 0;
        for (int32_t u = layout->module_first_use[m]; u < layout->module_first_use[m + 1]; u++) {
            dsc_group_state *group = &zero->group[layout->use_group[u]];
            if (group->first_user != m || !layout->group[layout->use_group[u]].trainable ||
                !dsc_grad_staging_is_offloaded(zero, layout->use_group[u]))
                continue;
            DSC_ASSERT(group->tiers.swap_states);
            group->sums.at = elements;
            elements += layout->group[layout->use_group[u]].slice;
        }
        most = dsc_max_i64(most, elements);
    }
    return most * 4;
}

/* A sum to which the next part of the module is added stays staged in between. */
static void chain_staged_sums(dsc_zero *zero)
{
    for (int32_t i = 0; i < zero->parts.count; i++) {
        dsc_grad_part *part = &zero->parts.part[i];
        DSC_ASSERT(part->before < i);
        if (part->before < 0 || zero->parts.part[part->before].visit != part->visit ||
            !dsc_grad_staging_is_offloaded(zero, part->group))
            continue;
        part->sum_is_staged = true;
        zero->parts.part[part->before].sum_stays_staged = true;
    }
}

/* ---- slots ---- */

/* Elements of a part's slice that one call of the reductions takes. */
static int64_t piece_elements(const dsc_zero *zero, const dsc_grad_part *part)
{
    const int64_t slice = zero->o.layout->group[part->group].slice;
    DSC_ASSERT(slice % DSC_LAYOUT_SLICE_ALIGN == 0);
    if (zero->o.world_size_reproducible)
        return dsc_min_i64(SEPARATE_ELEMENTS, slice);
    return dsc_grad_staging_is_offloaded(zero, part->group) ? dsc_min_i64(zero->store->tile_elements, slice) : slice;
}

/* How much of each rank's slice of a part lies before `end`, where it meets elements [first, end) of the part. */
static int64_t slice_end(const dsc_zero *zero, const dsc_grad_part *part, int64_t first, int64_t end)
{
    DSC_ASSERT(first < end);
    const int64_t slice = zero->o.layout->group[part->group].slice;
    const int64_t from = dsc_max_i64(first, 0), to = dsc_min_i64(end, slice * zero->world_size);
    return from < to ? dsc_min_i64(to - from / slice * slice, slice) : 0;
}

static int64_t offset_of(const dsc_zero *zero, const dsc_grad_part *part)
{
    DSC_ASSERT(zero->parts.slot[part->slot].offset % 4 == 0);
    return zero->parts.slot[part->slot].offset;
}

/* How much of each rank's slice of part `other` comes before the end of the memory that it shares with `part`; 0: they
 * share none. */
static int64_t shared_end(const dsc_zero *zero, const dsc_grad_part *other, const dsc_grad_part *part)
{
    const int64_t first = (offset_of(zero, part) - offset_of(zero, other)) / 4;
    DSC_ASSERT(part->slot < zero->parts.slot_count);
    DSC_ASSERT(other->slot < zero->parts.slot_count);
    return slice_end(zero, other, first, first + zero->o.layout->group[part->group].padded);
}

/* Reductions proceed run by run, so earlier contents of a part's slot are reduced before the last run there. The parts
 * of that run are reduced in step, and the last one in the slot comes last. */
static void plan_after(dsc_zero *zero, dsc_grad_part *part)
{
    const int32_t index = (int32_t)(part - zero->parts.part);
    DSC_ASSERT(index < zero->parts.count);
    for (int32_t back = 1; back <= zero->parts.count; back++) { /* the last one is itself, a pass before */
        const dsc_grad_part *before = &zero->parts.part[(index + zero->parts.count - back) % zero->parts.count];
        const dsc_grad_part *last = dsc_grad_part_last_of_run(zero, before);
        int64_t needed = before->slot >= 0 ? shared_end(zero, before, part) : 0;
        if (needed == 0)
            continue;
        for (const dsc_grad_part *of = before; of-- > zero->parts.part && dsc_grad_part_last_of_run(zero, of) == last;)
            needed = of->slot >= 0 ? dsc_max_i64(needed, shared_end(zero, of, part)) : needed;
        part->after = before->slot;
        for (part->after_mark = 0; dsc_grad_part_mark_end(zero, before, part->after_mark) < needed;)
            part->after_mark++;
        DSC_ASSERT(needed <= zero->o.layout->group[before->group].slice); /* Z7: a mark covers it */
        return;
    }
    DSC_ASSERT(false); /* a part shares its own slot with itself, a pass before */
}

/* A sum that would go to a file only to be read by the update. */
static bool holds_sum(const dsc_zero *zero, const dsc_grad_part *part)
{
    if (!dsc_grad_part_is_last(zero, part) || !dsc_in_swap(zero, part->group, DSC_PLANE_GRAD) ||
        zero->o.sum_dtype != DSC_F32 || !dsc_device_host_visible(zero->o.device))
        return false;
    for (int32_t p = 0; p < zero->parts.slot_count; p++) {
        const dsc_grad_part *other = &zero->parts.part[zero->parts.slot[p].last_grad_part];
        DSC_ASSERT(other->slot == p);
        if (other > part && shared_end(zero, other, part) > 0)
            return false;
    }
    return true;
}

static void plan_marks(dsc_zero *zero)
{
    for (int32_t i = 0; i < zero->parts.count; i++) {
        const dsc_grad_part *part = &zero->parts.part[i];
        const int64_t slice = zero->o.layout->group[part->group].slice;
        if (part->slot < 0)
            continue;
        zero->parts.slot[part->slot].mark_count =
            (int32_t)dsc_min_i64(DSC_GRAD_PART_MARKS_MAX, dsc_div_ceil(slice, piece_elements(zero, part)));
        DSC_ASSERT(zero->parts.slot[part->slot].mark_count >= 1);
    }
    for (int32_t i = 0; i < zero->parts.count; i++) {
        if (zero->parts.part[i].slot < 0)
            continue;
        plan_after(zero, &zero->parts.part[i]);
        zero->parts.part[i].holds_sum = holds_sum(zero, &zero->parts.part[i]);
    }
}

/* Its slot is free for the next part only when it is reduced. Those of a group with several users are large (tied
 * tables), and where they wait for each other there are many. */
static bool keeps_others_waiting(const dsc_zero *zero, const dsc_grad_part *part)
{
    const dsc_group_state *group = &zero->group[part->group];
    DSC_ASSERT(group->first_user <= part->module);
    DSC_ASSERT(part->module <= group->last_user);
    return !zero->o.overlap || (zero->o.micro_batch_group > 1 && group->first_user != group->last_user);
}

/* The class of the slot of a micro-batch's part. Parts between the first and the last alternate between two slots,
 * however many there are. */
static int32_t slot_class_of(const dsc_zero *zero, int32_t mb)
{
    const int32_t last = zero->o.micro_batch_group - 1;
    DSC_ASSERT(mb >= 0);
    DSC_ASSERT(mb <= last);
    if (last < SLOT_CLASSES)
        return mb;
    return mb == 0 ? 0 : mb == last ? SLOT_CLASSES - 1 : SLOT_CLASSES - 2 - (last - 1 - mb) % 2;
}

/* The window that a part shares with others of its use, or a new one. A part that waits has its own window. Between the
 * first and the last micro-batch the slot classes repeat. A waiting part is made before any class occurs for the last
 * time, and still waits when each class has occurred. */
static int32_t window_of(dsc_zero *zero, dsc_window *windows, const dsc_grad_part *part, int32_t *slot_of_class)
{
    const int32_t classes = (int32_t)dsc_min_i64(zero->o.micro_batch_group, SLOT_CLASSES);
    const int32_t slot_class = slot_class_of(zero, part->mb);
    const int32_t made_step = step_of(zero, part->module) * classes,
                  reduced_step = step_of(zero, part->visit) * classes;
    DSC_ASSERT(slot_class < classes);
    const bool waits = part->visit != part->module;
    const bool is_inner = slot_class > 0 && slot_class < SLOT_CLASSES - 1;
    const bool class_repeats = zero->o.micro_batch_group > SLOT_CLASSES && is_inner;
    int32_t *shared = &slot_of_class[part->use * SLOT_CLASSES + slot_class];
    int32_t slot = waits ? -1 : *shared; /* -1: no part of the use and class has a slot yet */
    if (slot < 0) {
        const int32_t first = made_step + (waits && class_repeats ? 1 : slot_class);
        slot = zero->parts.slot_count++;
        windows[slot] = (dsc_window) { .first = first, .last = first };
        windows[slot].bytes = zero->o.layout->group[part->group].padded * 4;
    }
    if (!waits)
        *shared = slot;
    DSC_ASSERT(windows[slot].bytes == zero->o.layout->group[part->group].padded * 4);
    int32_t last = reduced_step + (waits && class_repeats ? SLOT_CLASSES - 2 : slot_class);
    if (!keeps_others_waiting(zero, part)) /* the next part is made meanwhile */
        last = part->mb == zero->o.micro_batch_group - 1 ? last + 1 : reduced_step + slot_class_of(zero, part->mb + 1);
    windows[slot].last = (int32_t)dsc_max_i64(windows[slot].last, last);
    return slot;
}

static dsc_need slot_need(dsc_zero *zero)
{
    return (dsc_need) { &zero->parts.slot, DSC_TAG_CONTROL, DSC_TIER_HOST,
                        zero->parts.slot_count * (int64_t)sizeof *zero->parts.slot, DSC_NEED_SMALL };
}

static dsc_status assign_slots(dsc_zero *zero, int64_t use_count, dsc_error *err)
{
    dsc_alloc *alloc = zero->o.alloc;
    dsc_window *windows = NULL;
    int32_t *slot_of_class = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, zero->parts.count, sizeof *windows, &windows, err));
    DSC_TRY_OUT(
        dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, use_count * SLOT_CLASSES, sizeof(int32_t), &slot_of_class, err));
    for (int64_t i = 0; i < use_count * SLOT_CLASSES; i++)
        slot_of_class[i] = -1;
    for (int32_t i = 0; i < zero->parts.count; i++)
        if (zero->parts.part[i].slot >= 0)
            zero->parts.part[i].slot = window_of(zero, windows, &zero->parts.part[i], slot_of_class);
    const dsc_need slots = slot_need(zero);
    DSC_TRY_OUT(dsc_needs_plan_and_open(&zero->needs, &slots, 1, err));
    zero->grad_part_bytes = dsc_window_spread(windows, zero->parts.slot_count, zero->o.overlap ? REUSE_DELAY_MAX : 0);
    DSC_ASSERT(zero->parts.slot_count <= zero->parts.count);
    for (int32_t p = 0; p < zero->parts.slot_count; p++)
        zero->parts.slot[p].offset = windows[p].offset;
    for (int32_t i = 0; i < zero->parts.count; i++)
        if (zero->parts.part[i].slot >= 0)
            zero->parts.slot[zero->parts.part[i].slot].last_grad_part = i;
    plan_marks(zero);
out:
    dsc_alloc_free(alloc, slot_of_class);
    dsc_alloc_free(alloc, windows);
    return status;
}

/* Bytes of the levels of the counters, and of the separate parts before them. */
static int64_t plan_counters(dsc_zero *zero)
{
    int64_t elements = 0, longest = 0;
    while (((int64_t)1 << zero->parts.level_count) <= zero->o.quota.total)
        zero->parts.level_count++;
    DSC_ASSERT(zero->parts.level_count <= DSC_COUNTER_LEVELS_MAX);
    for (int32_t i = 0; i < zero->parts.count; i++) {
        const int64_t slice = zero->o.layout->group[zero->parts.part[i].group].slice;
        elements += zero->parts.part[i].mb == 0 ? slice * zero->parts.level_count : 0;
        longest = dsc_max_i64(longest, slice);
    }
    zero->parts.separate_elements = dsc_min_i64(SEPARATE_ELEMENTS, longest);
    return (elements + zero->parts.separate_elements * zero->world_size) * 4;
}

enum { NEEDS = 4 };
/* Lists as long as a model has modules are not counted; a config can make these many times as long. */
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    const dsc_layout *layout = zero->o.layout;
    const int64_t micro_batches = zero->o.micro_batch_group, each = (int64_t)sizeof *zero->parts.part,
                  number = (int64_t)sizeof(int32_t);
    const int64_t parts = layout->module_first_use[layout->module_count] * micro_batches;
    const int64_t visits = layout->module_count * micro_batches;
    const int64_t counted =
        (parts - parts / micro_batches) * (each + number) + (visits - layout->module_count) * number;
    const dsc_need needs[NEEDS] = {
        { &zero->parts.part, DSC_TAG_CONTROL, DSC_TIER_HOST, parts * each, DSC_NEED_SMALL },
        { &zero->parts.of_use, DSC_TAG_CONTROL, DSC_TIER_HOST, parts * number, DSC_NEED_SMALL },
        { &zero->parts.visit_first, DSC_TAG_CONTROL, DSC_TIER_HOST, (visits + 1) * number, DSC_NEED_SMALL },
        { NULL, DSC_TAG_CONTROL, DSC_TIER_HOST, counted, DSC_NEED_INSIDE },
    };
    memcpy(out, needs, sizeof needs);
}

dsc_status dsc_grad_parts_plan(dsc_zero *zero, int64_t *sum_bytes, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const int64_t parts = (int64_t)layout->module_first_use[layout->module_count] * zero->o.micro_batch_group;
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, needs, NEEDS, err));
    for (int64_t i = 0; i < parts; i++)
        zero->parts.of_use[i] = -1;
    list_parts(zero);
    find_begins(zero);
    DSC_ASSERT(zero->parts.count <= parts);
    if (!zero->o.world_size_reproducible)
        chain_staged_sums(zero);
    *sum_bytes = zero->o.world_size_reproducible ? plan_counters(zero) : assign_staged_sums(zero);
    return assign_slots(zero, layout->module_first_use[layout->module_count], err);
}

/* ---- open and close ---- */

static dsc_need separate_need(dsc_zero *zero)
{
    return (dsc_need) { &zero->parts.separate, DSC_TAG_CONTROL, DSC_TIER_HOST,
                        zero->world_size * (int64_t)sizeof(float *), DSC_NEED_SMALL };
}

/* The separate parts and the levels of the counters lie behind the sums in the gradient buffer, from `base` on. */
static dsc_status assign_counters(dsc_zero *zero, float *base, dsc_error *err)
{
    const char *const begin = zero->buf.grad.ptr;
    const dsc_need chunks = separate_need(zero);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, &chunks, 1, err));
    for (int32_t r = 0; r < zero->world_size; r++, base += zero->parts.separate_elements)
        zero->parts.separate[r] = base;
    for (int32_t i = 0; i < zero->parts.count; i++) {
        dsc_grad_part *part = &zero->parts.part[i];
        const dsc_grad_part *first = &zero->parts.part[zero->parts.of_use[part->use * zero->o.micro_batch_group]];
        part->levels = part->mb == 0 ? base : first->levels;
        base += part->mb == 0 ? zero->parts.level_count * zero->o.layout->group[part->group].slice : 0;
    }
    DSC_ASSERT((const char *)base - begin == zero->state_bytes[DSC_TAG_GRAD]); /* all of the buffer is cut up */
    return DSC_OK;
}

static dsc_status assign_sums(dsc_zero *zero, dsc_error *err)
{
    int64_t sums = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (zero->group[g].grad != NULL)
            sums += zero->group[g].local_count;
    DSC_ASSERT(sums * 4 <= zero->state_bytes[DSC_TAG_GRAD]);
    zero->parts.staged_sums = (float *)zero->buf.grad.ptr + sums;
    return zero->parts.level_count > 0 ? assign_counters(zero, zero->parts.staged_sums, err) : DSC_OK;
}

dsc_status dsc_grad_parts_open(dsc_zero *zero, dsc_error *err)
{
    DSC_TRY(assign_sums(zero, err));
    for (int32_t p = 0; p < zero->parts.slot_count; p++)
        for (int32_t mark = 0; mark < zero->parts.slot[p].mark_count; mark++)
            DSC_TRY(dsc_event_open(zero->o.device, &zero->parts.slot[p].mark[mark], err));
    for (int32_t i = 0; i < zero->parts.count; i++)
        if (zero->parts.part[i].holds_sum) {
            DSC_ASSERT(zero->group[zero->parts.part[i].group].sums.last == NULL); /* one part holds a group's sum */
            zero->group[zero->parts.part[i].group].sums.last =
                dsc_grad_part_base(zero, &zero->parts.part[i], zero->pass_count - 1);
        }
    return DSC_OK;
}

void dsc_grad_parts_close(dsc_zero *zero)
{
    for (int32_t p = 0; zero->parts.slot != NULL && p < zero->parts.slot_count; p++)
        for (int32_t mark = 0; mark < zero->parts.slot[p].mark_count; mark++)
            dsc_event_close(&zero->parts.slot[p].mark[mark]);
    const dsc_need at_open[] = { slot_need(zero), separate_need(zero) };
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, at_open, (int)DSC_COUNT(at_open));
    dsc_needs_close(&zero->needs, needs, NEEDS);
}
