/* gather.c - stage 3: the step of each gather, its slot in the arena, and the order of streams.
 *
 * A group's uses in a pass are known, so each becomes a lifetime [issue step, last use]; lifetimes get fixed
 * places in one arena. A gather is issued some steps before its use (prefetch) on the gather stream. It may overwrite
 * memory of lifetimes that ended before its issue step, so the gather stream first waits for the compute stream. Groups
 * of a pass's first steps are gathered in the last steps of the pass before, unless an update comes between.
 * With W = 1, and below stage 3, parameters are whole and nothing is gathered, but for frozen groups that are stored
 * packed: those are unpacked into windows at every stage (packed.c). One rank also fetches offloaded
 * parameters, and packs and unpacks those that are exchanged packed (compress.c). The fetch stream copies a rank's
 * slice of offloaded parameters to its slot in the window, while the gather before it is under way.
 *
 * One group may dwarf the others (the embedding of a small model): its window alone can take more than keeping it
 * whole. Then it is resident: gathered once after each update, as at stage 2. SPDX-License-Identifier: Apache-2.0 */
#include "base/window.h"
#include "zero/compress.h"
#include "zero/core/internal.h"
#include "zero/fingerprints.h"
#include "zero/fp8_gather.h"
#include "zero/gather.h"
#include "zero/hpz.h"
#include "zero/offload/host_update.h"
#include "zero/offload/param_fetch.h"
#include "zero/offload/param_prefetch.h"
#include "zero/offload/placement.h"
#include "zero/packed.h"
#include "zero/zero.h"

#include <string.h>

/* Deeper than this gains nothing: a gather that is hidden behind three modules' compute is hidden. */
#define PREFETCH_STEPS_MAX 3

bool dsc_gather_fetches(const dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_zero_param_is_away(zero, g))
            return !dsc_device_host_visible(zero->o.device);
    return false;
}

static bool needs_gather(const dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_gather_is_windowed(zero, g))
            return true;
    return false;
}

/* Elements that only a window of this group holds: what others own, or what is away from the device. */
static int64_t elsewhere(const dsc_zero *zero, int32_t group)
{
    const dsc_layout_group *layout = &zero->o.layout->group[group];
    DSC_ASSERT(dsc_gather_is_windowed(zero, group));
    DSC_ASSERT(layout->slice * zero->world_size == layout->padded);
    const bool all = zero->group[group].tiers.swap_param || dsc_is_packed(zero, group);
    return all ? layout->padded : layout->padded - layout->slice;
}

/* The modules whose backward reads no parameters have no backward uses. */
static bool used_in(const dsc_zero *zero, int32_t step, int32_t group)
{
    const dsc_layout *layout = zero->o.layout;
    const int32_t modules = zero->o.model->module_count;
    const bool backward = step >= modules;
    const int32_t module = backward ? 2 * modules - 2 - step : step;
    DSC_ASSERT(step >= 0);
    DSC_ASSERT(module >= 0);
    if (backward && !zero->o.backward_reads_params[module])
        return false;
    for (int32_t u = layout->module_first_use[module]; u < layout->module_first_use[module + 1]; u++)
        if (layout->use_group[u] == group)
            return true;
    return false;
}

/* Elements of the windowed groups that each step reads. */
static void add_up_steps(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    const int32_t modules = zero->o.model->module_count;
    for (int32_t step = 0; step < zero->step_count; step++) {
        const int32_t module = step >= modules ? 2 * modules - 2 - step : step;
        int64_t elements = 0;
        for (int32_t u = layout->module_first_use[module]; u < layout->module_first_use[module + 1]; u++)
            if (dsc_gather_is_windowed(zero, layout->use_group[u]) && used_in(zero, step, layout->use_group[u]))
                elements += layout->group[layout->use_group[u]].padded;
        DSC_ASSERT(module >= 0);
        DSC_ASSERT(module < modules);
        zero->gathers.step_elements[step] = elements;
    }
}

/* How many steps before its use a group's gather starts: as many as what is then under way or waiting stays within
 * prefetch_elements, after the use before. With one_ahead it is one step for any size. Steps of the pass before are
 * its backward's. */
static int32_t find_prefetch_steps(const dsc_zero *zero, int32_t g, int32_t step, int32_t last_use)
{
    DSC_ASSERT(last_use < step);
    const int64_t near = dsc_min_i64(zero->gathers.prefetch_steps, step - last_use - 1);
    const int32_t most = (int32_t)dsc_min_i64(near, step + zero->gathers.prefetch_carryover_steps);
    int64_t under_way = zero->o.layout->group[g].padded;
    int32_t ahead = 0;
    while (zero->o.overlap && ahead < most &&
           (under_way <= zero->o.prefetch_elements || (ahead == 0 && zero->gathers.one_ahead))) {
        ahead++;
        under_way += zero->gathers.step_elements[(step - ahead + zero->step_count) % zero->step_count];
    }
    DSC_ASSERT(step - ahead > last_use); /* the window of the use before is free then */
    DSC_ASSERT(step - ahead >= -zero->gathers.prefetch_carryover_steps);
    return ahead;
}

/* From one use of a group to its next one. */
static bool stays(const dsc_zero *zero, int32_t last_use, int32_t step)
{
    int64_t between = 0;
    DSC_ASSERT(last_use >= 0);
    DSC_ASSERT(last_use < step);
    if (step - last_use > zero->gathers.keep_steps)
        return false;
    for (int32_t s = last_use + 1; s < step; s++)
        between += zero->gathers.step_elements[s];
    return between <= zero->o.reuse_elements;
}

static void find_users(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    for (int32_t g = 0; g < layout->group_count; g++)
        zero->group[g].first_user = zero->group[g].last_user = layout->group[g].module;
    for (int32_t m = 0; m < layout->module_count; m++)
        for (int32_t u = layout->module_first_use[m]; u < layout->module_first_use[m + 1]; u++) {
            dsc_group_state *group = &zero->group[layout->use_group[u]];
            DSC_ASSERT(m >= layout->group[layout->use_group[u]].module); /* an owner comes before all sharers */
            group->first_user = m < group->first_user ? m : group->first_user;
            group->last_user = m > group->last_user ? m : group->last_user;
        }
}

/* Appends the lifetimes of one group and enters them for each use. */
static void plan_group(dsc_zero *zero, int32_t g)
{
    const int32_t first = zero->group[g].first_user, last = zero->group[g].last_user;
    const int32_t turn = dsc_backward_step(zero, last), end = dsc_backward_step(zero, first);
    int32_t last_use = end - zero->step_count;
    DSC_ASSERT(first <= last);
    DSC_ASSERT(end < zero->step_count);
    while (last_use >= -zero->step_count && !used_in(zero, last_use + zero->step_count, g))
        last_use--;
    for (int32_t step = first; step <= end; step++) {
        if (step > last && step < turn)
            step = turn; /* nobody uses it in between */
        if (!used_in(zero, step, g))
            continue;
        const int32_t ahead = find_prefetch_steps(zero, g, step, last_use);
        if (last_use >= 0 && stays(zero, last_use, step)) {
            DSC_ASSERT(zero->gathers.gather[zero->gathers.count - 1].group == g);
            zero->gathers.gather[zero->gathers.count - 1].last_step = step;
        } else {
            DSC_ASSERT(zero->gathers.count < 2 * zero->o.layout->module_first_use[zero->o.model->module_count]);
            zero->gathers.gather[zero->gathers.count++] =
                (dsc_gather) { .group = g, .issue_step = step - ahead, .last_step = step };
        }
        last_use = step;
    }
}

static void enter_uses(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    const int32_t modules = zero->o.model->module_count, uses = layout->module_first_use[modules];
    DSC_ASSERT(zero->gathers.count <= 2 * uses);
    for (int32_t m = 0; m < modules; m++) {
        for (int32_t u = layout->module_first_use[m]; u < layout->module_first_use[m + 1]; u++) {
            zero->gathers.of_use[u] = zero->gathers.of_use[uses + u] = -1;
            for (int32_t i = 0; i < zero->gathers.count; i++) {
                const dsc_gather *gather = &zero->gathers.gather[i];
                DSC_ASSERT(gather->issue_step <= gather->last_step);
                if (gather->group != layout->use_group[u])
                    continue;
                if (gather->issue_step <= m && m <= gather->last_step)
                    zero->gathers.of_use[u] = i;
                const int32_t backward = dsc_backward_step(zero, m);
                if (m < modules - 1 && gather->issue_step <= backward && backward <= gather->last_step)
                    zero->gathers.of_use[uses + u] = i;
            }
        }
    }
}

/* All lifetimes of the groups that are windowed, and their places. Returns the arena's bytes. */
static int64_t plan_windows(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    add_up_steps(zero);
    zero->gathers.count = 0;
    for (int32_t g = 0; g < layout->group_count; g++)
        if (dsc_gather_is_windowed(zero, g))
            plan_group(zero, g);
    for (int32_t i = 0; i < zero->gathers.count; i++)
        zero->gathers.window[i] =
            (dsc_window) { .first = zero->gathers.gather[i].issue_step,
                           .last = zero->gathers.gather[i].last_step,
                           .bytes = dsc_state_store_window_bytes(zero, zero->gathers.gather[i].group) };
    return dsc_window_assign(zero->gathers.window, zero->gathers.count, zero->step_count);
}

/* The most elements that windows hold in any step of the last plan. */
static int64_t most_live(const dsc_zero *zero)
{
    int64_t most = 0;
    memset(zero->gathers.live_elements, 0, (size_t)zero->step_count * sizeof *zero->gathers.live_elements);
    for (int32_t i = 0; i < zero->gathers.count; i++) {
        const dsc_gather *gather = &zero->gathers.gather[i];
        const int64_t elements = zero->o.layout->group[gather->group].padded;
        DSC_ASSERT(gather->issue_step > -zero->step_count);
        DSC_ASSERT(gather->last_step < zero->step_count);
        for (int32_t step = gather->issue_step; step <= gather->last_step; step++)
            zero->gathers.live_elements[(step + zero->step_count) % zero->step_count] += elements;
    }
    for (int32_t step = 0; step < zero->step_count; step++)
        most = dsc_max_i64(most, zero->gathers.live_elements[step]);
    return most;
}

/* Tries the largest group as a resident one; it stays so when that takes less. Packed ones cannot: whole parameters are
 * also this rank's own, which must stay what they are. */
static int64_t choose_resident(dsc_zero *zero, int64_t window_bytes)
{
    const dsc_layout *layout = zero->o.layout;
    int32_t largest = -1;
    for (int32_t g = 0; g < layout->group_count; g++)
        if (dsc_gather_is_windowed(zero, g) && dsc_pack_of_params(zero, g) == DSC_QUANT_NONE &&
            !dsc_is_packed(zero, g) && !dsc_is_gathered_in_fp8(zero, g) &&
            (largest < 0 || layout->group[g].padded > layout->group[largest].padded))
            largest = g;
    if (largest < 0)
        return window_bytes;
    const int64_t more = elsewhere(zero, largest) * zero->param_bytes_each;
    DSC_ASSERT(more >= 0);
    zero->group[largest].gather.resident = true;
    const int64_t less = plan_windows(zero);
    if (less + more < window_bytes)
        return less;
    zero->group[largest].gather.resident = false;
    return plan_windows(zero);
}

static int64_t plan_depth(dsc_zero *zero, int32_t steps)
{
    DSC_ASSERT(steps >= 0);
    DSC_ASSERT(steps <= PREFETCH_STEPS_MAX);
    zero->gathers.prefetch_steps = steps;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        zero->group[g].gather.resident = false;
    return choose_resident(zero, plan_windows(zero));
}

/* Bytes of windows that the user allows; 0: no limit is given. */
static int64_t given_bytes(const dsc_zero *zero)
{
    DSC_ASSERT(zero->o.swap.window_elements >= 0);
    return zero->o.swap.window_elements * zero->param_bytes_each;
}

/* The deepest prefetch whose windows stay within the options and take no more than the same parameters would take
 * whole: stage 3 must not take more than stage 2. A prefetch of one step within prefetch_elements is the least that
 * overlaps, and may take more. Returns -1 if there is none. */
static int64_t try_depths(dsc_zero *zero, bool one_ahead)
{
    const dsc_layout *layout = zero->o.layout;
    zero->gathers.one_ahead = one_ahead;
    DSC_ASSERT(!one_ahead || zero->o.prefetch_elements > 0);
    for (int32_t steps = PREFETCH_STEPS_MAX; steps > 0; steps--) {
        const int64_t window_bytes = plan_depth(zero, steps);
        int64_t elements = 0; /* slices of other ranks, which only the windows hold */
        for (int32_t g = 0; g < layout->group_count; g++)
            if (dsc_gather_is_windowed(zero, g))
                elements += elsewhere(zero, g);
        const int64_t most = given_bytes(zero) > 0 ? given_bytes(zero) : elements * zero->param_bytes_each;
        const bool least = steps == 1 && given_bytes(zero) == 0 && !one_ahead;
        if (most_live(zero) <= zero->o.live_elements && (least || window_bytes <= most))
            return window_bytes;
    }
    return -1;
}

/* A single group exceeds prefetch_elements. Without one_ahead it would never be gathered in advance. */
static bool has_larger_group(const dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_gather_is_windowed(zero, g) && zero->o.layout->group[g].padded > zero->o.prefetch_elements)
            return true;
    return false;
}

/* One module ahead of any size if there is room, then prefetch within prefetch_elements. If the options allow less than
 * single modules need, the windows have the size of single modules. */
static int64_t choose_depth(dsc_zero *zero)
{
    const bool larger = zero->o.overlap && zero->o.prefetch_elements > 0 && has_larger_group(zero);
    int64_t window_bytes = larger && !zero->o.prefetch_within_limit ? try_depths(zero, true) : -1;
    zero->plan.prefetch_exceeds = window_bytes >= 0;
    zero->plan.prefetch_held = larger && !zero->o.prefetch_within_limit && window_bytes < 0;
    if (window_bytes < 0)
        window_bytes = try_depths(zero, false);
    if (window_bytes >= 0)
        return window_bytes;
    window_bytes = plan_depth(zero, 0);
    if (most_live(zero) <= zero->o.live_elements && (given_bytes(zero) == 0 || window_bytes <= given_bytes(zero)))
        return window_bytes;
    zero->gathers.keep_steps = 1;
    return plan_depth(zero, 0);
}

/* The plan as it is now takes no more than that. */
static bool fits(dsc_zero *zero, int64_t window_bytes)
{
    return plan_windows(zero) <= window_bytes && most_live(zero) <= zero->o.live_elements;
}

/* The number of last steps of a pass that issue gathers of the next pass, as far as the arena's size allows. */
static void choose_early(dsc_zero *zero, int64_t window_bytes)
{
    const int64_t backward_steps = zero->o.model->module_count - 1;
    zero->gathers.prefetch_carryover_steps = (int32_t)dsc_min_i64(zero->gathers.prefetch_steps, backward_steps);
    if (zero->pass_count == 1)
        zero->gathers.prefetch_carryover_steps = 0;
    DSC_ASSERT(zero->gathers.prefetch_carryover_steps >= 0);
    DSC_ASSERT(zero->gathers.prefetch_carryover_steps < zero->step_count);
    while (zero->gathers.prefetch_carryover_steps > 0 && !fits(zero, window_bytes))
        zero->gathers.prefetch_carryover_steps--;
}

/* The last modules of a forward pass are the first ones of its backward pass: they stay, as many as fit. */
static void choose_kept(dsc_zero *zero, int64_t window_bytes)
{
    const int32_t least = zero->gathers.keep_steps;
    int32_t good = 0, bad = (zero->step_count - least + 1) / 2, more = 1; /* modules beyond the least */
    while (bad - good > 1) { /* most models have room for few: longer and longer strides, then halves */
        const int32_t tried = good + (more < bad - good ? more : (bad - good) / 2);
        DSC_ASSERT(tried > good);
        DSC_ASSERT(tried < bad);
        zero->gathers.keep_steps = least + 2 * tried;
        if (fits(zero, window_bytes)) {
            good = tried;
            more *= 2;
        } else {
            bad = tried;
            more = bad;
        }
    }
    zero->gathers.keep_steps = least + 2 * good;
}

static int32_t use_count(const dsc_zero *zero)
{
    const int32_t uses = zero->o.layout->module_first_use[zero->o.layout->module_count];
    DSC_ASSERT(uses >= 0 && uses <= INT32_MAX / 2);
    return uses;
}

enum { NEEDS = 5 };
/* The first is always open, the others where something is gathered. */
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_gathers *all = &zero->gathers;
    const int64_t uses = 2 * use_count(zero), step_bytes = zero->step_count * (int64_t)sizeof(int64_t);
    const dsc_need needs[NEEDS] = {
        { &all->of_use, DSC_TAG_CONTROL, DSC_TIER_HOST, uses * (int64_t)sizeof(int32_t), DSC_NEED_SMALL },
        { &all->step_elements, DSC_TAG_CONTROL, DSC_TIER_HOST, step_bytes, DSC_NEED_SMALL },
        { &all->live_elements, DSC_TAG_CONTROL, DSC_TIER_HOST, step_bytes, DSC_NEED_SMALL },
        { &all->gather, DSC_TAG_CONTROL, DSC_TIER_HOST, uses * (int64_t)sizeof *all->gather, DSC_NEED_SMALL },
        { &all->window, DSC_TAG_CONTROL, DSC_TIER_HOST, uses * (int64_t)sizeof *all->window, DSC_NEED_SMALL },
    };
    memcpy(out, needs, sizeof needs);
}

dsc_status dsc_gather_plan(dsc_zero *zero, int64_t *window_bytes, dsc_error *err)
{
    const int32_t uses = use_count(zero);
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    *window_bytes = 0;
    find_users(zero);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, needs, 1, err));
    for (int32_t u = 0; u < 2 * uses; u++)
        zero->gathers.of_use[u] = -1;
    if (!needs_gather(zero))
        return DSC_OK;
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, needs + 1, NEEDS - 1, err));
    DSC_ASSERT(zero->gathers.count == 0);
    zero->gathers.keep_steps = 2;
    *window_bytes = dsc_max_i64(choose_depth(zero), given_bytes(zero));
    const int64_t most = *window_bytes;
    choose_early(zero, *window_bytes);
    choose_kept(zero, *window_bytes);
    *window_bytes = plan_windows(zero);
    DSC_ASSERT(*window_bytes <= most); /* deeper prefetch and reuse are chosen only as far as they fit */
    enter_uses(zero);
    return DSC_OK;
}

dsc_status dsc_gather_open(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(zero->gathers.count == 0 || zero->buf.gather.ptr != NULL);
    for (int32_t i = 0; i < zero->gathers.count; i++) {
        DSC_TRY(dsc_event_open(zero->o.device, &zero->gathers.gather[i].fetched, err));
        DSC_TRY(dsc_event_open(zero->o.device, &zero->gathers.gather[i].done, err));
    }
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        DSC_TRY(dsc_event_open(zero->o.device, &zero->group[g].gather.uploaded, err));
        DSC_TRY(dsc_event_open(zero->o.device, &zero->group[g].gather.gathered, err));
        DSC_TRY(dsc_event_open(dsc_host_update_stream_device(zero), &zero->group[g].gather.updated, err));
    }
    return DSC_OK;
}

void dsc_gather_close(dsc_zero *zero)
{
    for (int32_t i = 0; zero->gathers.gather != NULL && i < zero->gathers.count; i++) {
        dsc_event_close(&zero->gathers.gather[i].fetched);
        dsc_event_close(&zero->gathers.gather[i].done);
    }
    for (int32_t g = 0; zero->group != NULL && g < zero->o.layout->group_count; g++) {
        dsc_event_close(&zero->group[g].gather.uploaded);
        dsc_event_close(&zero->group[g].gather.gathered);
        dsc_event_close(&zero->group[g].gather.updated);
    }
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

static char *window_of(const dsc_zero *zero, const dsc_gather *gather)
{
    const dsc_window *window = &zero->gathers.window[gather - zero->gathers.gather];
    DSC_ASSERT(gather >= zero->gathers.gather);
    DSC_ASSERT(gather < zero->gathers.gather + zero->gathers.count);
    DSC_ASSERT(window->offset >= 0);
    DSC_ASSERT(window->offset + window->bytes <= zero->window_bytes);
    return (char *)zero->buf.gather.ptr + window->offset + dsc_state_store_window_start(zero, gather->group);
}

static char *own_part(const dsc_zero *zero, const dsc_gather *gather)
{
    DSC_ASSERT(dsc_zero_param_is_away(zero, gather->group)); /* otherwise the slice is in buf.param */
    if (dsc_is_packed(zero, gather->group))
        return window_of(zero, gather) + dsc_state_store_packed_start(zero, gather->group);
    return window_of(zero, gather) +
           zero->o.layout->group[gather->group].slice * zero->o.rank * zero->param_bytes_each;
}

static dsc_status fill_window(dsc_zero *zero, const dsc_gather *gather, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[gather->group].slice;
    char *window = window_of(zero, gather), *mine = zero->group[gather->group].param;
    DSC_ASSERT(dsc_gather_is_windowed(zero, gather->group));
    if (zero->group[gather->group].hpz.is_current)
        return dsc_hpz_gather(zero, gather->group, window, err);
    DSC_TRY(dsc_zero_after_update(zero, gather->group, zero->stream.fetch, err));
    if (dsc_zero_param_is_away(zero, gather->group)) {
        mine = own_part(zero, gather);
        DSC_TRY(dsc_param_fetch(zero, gather->group, mine, gather->requested, err));
        DSC_TRY(dsc_stream_order(gather->fetched, zero->stream.fetch, zero->stream.gather, err));
    }
    if (dsc_is_packed(zero, gather->group))
        return dsc_packed_unpack(zero, gather->group, window, mine, err);
    if (dsc_is_gathered_in_fp8(zero, gather->group)) {
        dsc_comm_label_module(zero->o.comm, DSC_CHANNEL_GATHER, zero->o.layout->group[gather->group].module);
        return dsc_fp8_gather(zero, gather->group, window, mine, err);
    }
    const bool packed = dsc_pack_of_params(zero, gather->group) != DSC_QUANT_NONE;
    if (zero->world_size == 1 && !packed)
        return DSC_OK;
    dsc_comm_label_module(zero->o.comm, DSC_CHANNEL_GATHER, zero->o.layout->group[gather->group].module);
    if (packed)
        DSC_TRY(dsc_pack_gather(zero, gather->group, window, mine, err));
    else
        DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_GATHER, window, mine, slice, zero->o.compute_dtype,
                                    zero->stream.gather, err));
    return dsc_hpz_keep(zero, gather->group, window, err);
}

/* Windows may lie where others lay whose use the compute stream has passed. A pass that ends with its forward leaves
 * gathers that nobody uses and only the gather stream has passed. */
static dsc_status open_windows(dsc_zero *zero, int32_t step, dsc_error *err)
{
    DSC_ASSERT(step >= 0);
    DSC_ASSERT(step < zero->step_count);
    DSC_TRY(dsc_zero_after_compute(zero, zero->stream.gather, err));
    if (zero->stream.fetch == zero->stream.gather)
        return DSC_OK;
    DSC_TRY(dsc_zero_after_compute(zero, zero->stream.fetch, err));
    return step == 0 ? dsc_stream_order(zero->event.pass_mark, zero->stream.gather, zero->stream.fetch, err) : DSC_OK;
}

/* Those of the next pass's first steps start in this one, or at its step 0 if nothing or an update was before it.
 */
static bool is_issued_at(const dsc_zero *zero, const dsc_gather *gather, int32_t step)
{
    DSC_ASSERT(gather->issue_step >= -zero->gathers.prefetch_carryover_steps);
    if (gather->issue_step >= 0)
        return gather->issue_step == step;
    return step == 0 ? !zero->gathers.next_pass_prefetched
                     : zero->more_follow && gather->issue_step + zero->step_count == step;
}

/* An update continues under the passes only if compute is done when its launch has returned. Then all earlier users of
 * an opening window's memory have passed. The fetch stream itself may be one group of the update late. */
static bool request_update(dsc_zero *zero, const dsc_gather *gather)
{
    return dsc_state_store_updates_behind(zero) && dsc_zero_param_is_away(zero, gather->group) &&
           !zero->group[gather->group].hpz.is_current &&
           dsc_param_fetch_request(zero, gather->group, own_part(zero, gather));
}

static dsc_status issue_gathers(dsc_zero *zero, int32_t step, dsc_error *err)
{
    bool any = false;
    DSC_ASSERT(step >= 0);
    DSC_ASSERT(step < zero->step_count);
    for (int32_t i = 0; i < zero->gathers.count; i++) {
        if (!is_issued_at(zero, &zero->gathers.gather[i], step))
            continue;
        zero->gathers.gather[i].requested = request_update(zero, &zero->gathers.gather[i]);
        any = true;
    }
    if (any) {
        dsc_param_prefetch_request(zero);
        DSC_TRY(open_windows(zero, step, err));
    }
    for (int32_t i = 0; i < zero->gathers.count; i++) {
        if (!is_issued_at(zero, &zero->gathers.gather[i], step))
            continue;
        DSC_TRY(fill_window(zero, &zero->gathers.gather[i], err));
        DSC_TRY(dsc_event_record(zero->gathers.gather[i].done, zero->stream.gather, err));
    }
    if (any)
        DSC_TRY(dsc_param_prefetch_continue(zero, err));
    zero->gathers.next_pass_prefetched =
        zero->more_follow && step + zero->gathers.prefetch_carryover_steps >= zero->step_count;
    DSC_ASSERT(!zero->gathers.next_pass_prefetched || zero->pass_count > 1); /* otherwise an update comes between */
    return DSC_OK;
}

/* Sets *base to a group's parameters for a use; the compute stream waits for them. */
static dsc_status use_group(dsc_zero *zero, int32_t use, bool backward, const char **base, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const int32_t uses = layout->module_first_use[layout->module_count];
    DSC_ASSERT(use < uses);
    dsc_group_state *state = &zero->group[layout->use_group[use]];
    const int32_t i = zero->gathers.of_use[(backward ? uses : 0) + use];
    DSC_ASSERT(i < zero->gathers.count);
    *base = NULL;
    if (i >= 0) {
        DSC_ASSERT(zero->gathers.gather[i].group == layout->use_group[use]);
        DSC_TRY(dsc_zero_after_exchange(zero, zero->stream.gather, zero->gathers.gather[i].done, err));
        *base = window_of(zero, &zero->gathers.gather[i]);
    } else if (state->param_whole && !dsc_is_packed(zero, layout->use_group[use])) {
        DSC_TRY(dsc_zero_after_update(zero, layout->use_group[use], zero->o.compute, err));
        if (state->gather.unshared)
            DSC_TRY(dsc_gather_params(zero, layout->use_group[use], err));
        if (state->gather.pending)
            DSC_TRY(dsc_zero_after_exchange(zero, zero->stream.gather, state->gather.gathered, err));
        state->gather.pending = false;
        *base = state->param;
    }
    return DSC_OK;
}

dsc_status dsc_zero_acquire(dsc_zero *zero, int32_t step, int32_t module, const void **param, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const bool backward = step >= layout->module_count;
    DSC_ASSERT(module == (backward ? 2 * layout->module_count - 2 - step : step));
    DSC_TRY(issue_gathers(zero, step, err));
    const int32_t first_param = layout->module_first_param[module];
    for (int32_t u = layout->module_first_use[module]; u < layout->module_first_use[module + 1]; u++) {
        const char *base;
        DSC_TRY(use_group(zero, u, backward, &base, err));
        DSC_TRY(dsc_fingerprints_add_params(zero, layout->use_group[u], base, err));
        for (int32_t p = first_param; p < layout->module_first_param[module + 1]; p++) {
            const dsc_layout_tensor *tensor = &layout->tensor[layout->param[p].tensor];
            if (tensor->group == layout->use_group[u])
                param[p - first_param] =
                    base != NULL ? base + tensor->offset * dsc_window_bytes_each(zero, tensor->group) : NULL;
        }
    }
    return DSC_OK;
}

/* Whole parameters from every rank's slice, in place, on the gather stream. */
dsc_status dsc_gather_params(dsc_zero *zero, int32_t g, dsc_error *err)
{
    dsc_group_state *state = &zero->group[g];
    const int64_t slice = dsc_stored_slice(zero, g, DSC_PLANE_PARAM);
    DSC_ASSERT(state->param_whole);
    DSC_ASSERT(zero->world_size > 1);
    state->gather.unshared = false;
    DSC_TRY(dsc_zero_after_compute(zero, zero->stream.gather, err));
    DSC_TRY(dsc_zero_after_update(zero, g, zero->stream.gather, err));
    dsc_comm_label_module(zero->o.comm, DSC_CHANNEL_GATHER, zero->o.layout->group[g].module);
    DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_GATHER, state->param,
                                state->param + slice * zero->o.rank * zero->param_bytes_each, slice,
                                zero->o.compute_dtype, zero->stream.gather, err));
    DSC_TRY(dsc_event_record(state->gather.gathered, zero->stream.gather, err));
    state->gather.pending = true;
    return DSC_OK;
}
