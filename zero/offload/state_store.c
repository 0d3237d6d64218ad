/* state_store.c - see state_store.h: which states are in swap, their positions, opening and closing, and views.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/offload/borrowed_memory.h"
#include "zero/offload/grad_staging.h"
#include "zero/offload/host_update.h"
#include "zero/offload/param_prefetch.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"

#include <string.h>

#define STRIPE_BYTES (INT64_C(4) << 20)
#define TILE_ALIGN 2048    /* elements: whole blocks also in bf16 */
#define TILE_ALIGN_U8 4096 /* and in U8 */
#define SUMS_IN_TILES 8 /* requests that a disk has under way at a time */
/* States, sum and parameters of so many elements stay in a processor's caches while they are checked, updated and
 * checked again. */
#define CACHED_ELEMENTS (INT64_C(1) << 17)

static const struct { dsc_space space; int aio;
} plane_table[DSC_PLANE_COUNT] = {
    [DSC_PLANE_PARAM] = { DSC_SPACE_PARAM, DSC_IO_PARAM },
    [DSC_PLANE_MASTER] = { DSC_SPACE_MASTER, DSC_IO_STATE },
    [DSC_PLANE_MOMENT1] = { DSC_SPACE_MOMENT, DSC_IO_STATE },
    [DSC_PLANE_MOMENT2] = { DSC_SPACE_MOMENT, DSC_IO_STATE },
    [DSC_PLANE_MOMENT3] = { DSC_SPACE_MOMENT, DSC_IO_STATE },
    [DSC_PLANE_GRAD] = { DSC_SPACE_GRAD, DSC_IO_GRAD },
};
static const struct { dsc_tag tag; int aio;
} space_table[DSC_SPACE_COUNT] = {
    [DSC_SPACE_PARAM] = { DSC_TAG_PARAM, DSC_IO_PARAM },
    [DSC_SPACE_GRAD] = { DSC_TAG_GRAD, DSC_IO_GRAD },
    [DSC_SPACE_MASTER] = { DSC_TAG_MASTER, DSC_IO_STATE },
    [DSC_SPACE_MOMENT] = { DSC_TAG_MOMENT, DSC_IO_STATE },
};

/* ---- planning ---- */

static void choose_states(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    int64_t total = 0, kept = 0;
    for (int32_t g = 0; g < layout->group_count; g++)
        total += layout->group[g].trainable ? layout->group[g].slice : 0;
    const int64_t most = (int64_t)((1.0 - zero->o.swap.state_share) * (double)total);
    for (int32_t g = 0; g < layout->group_count; g++) {
        if (!layout->group[g].trainable)
            continue;
        const bool keep = kept + layout->group[g].slice <= most;
        kept += keep ? layout->group[g].slice : 0;
        zero->group[g].tiers.swap_states = !keep;
    }
    DSC_ASSERT(kept <= most);
    DSC_ASSERT(most <= total);
}

/* Spreads the choice over all groups. With speculative updates of a single pass, a forward pass then meets updated
 * groups and others alternately. */
static void choose_sums(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    const double share = zero->o.world_size_reproducible ? 0 : zero->o.swap.sums_in_memory;
    int64_t passed = 0, stay = 0;
    for (int32_t g = 0; g < layout->group_count; g++) {
        const int64_t slice = layout->group[g].slice;
        if (!zero->group[g].tiers.swap_states)
            continue;
        passed += slice;
        zero->group[g].tiers.sum_in_memory = (double)(stay + slice) <= share * (double)passed;
        stay += zero->group[g].tiers.sum_in_memory ? slice : 0;
        DSC_ASSERT(stay <= passed);
    }
}

/* In memory means in the host's, where that is not the device's too. */
static void choose_params(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    const bool host_visible = dsc_device_host_visible(zero->o.device);
    int64_t kept = 0;
    for (int32_t g = 0; g < layout->group_count; g++) {
        const dsc_layout_group *group = &layout->group[g];
        const bool persists = group->padded <= zero->o.swap.persistent_elements;
        const bool with_states = zero->o.swap.params_with_states && zero->o.swap.state_folder_count > 0 &&
                                 group->trainable && !zero->group[g].tiers.swap_states;
        const bool in_memory = zero->o.swap.params_on_host || with_states ||
                               kept + group->slice <= zero->o.swap.param_elements_in_memory;
        kept += in_memory && !persists && !with_states ? group->slice : 0;
        zero->group[g].tiers.swap_param = !persists && !(in_memory && host_visible);
        zero->group[g].tiers.param_on_host = zero->group[g].tiers.swap_param && in_memory;
        DSC_ASSERT(!(zero->group[g].tiers.param_on_host && host_visible));
    }
}

void dsc_state_store_choose(dsc_zero *zero)
{
    if (zero->o.swap.state_folder_count > 0 || zero->o.swap.states_on_host)
        choose_states(zero);
    if (zero->o.swap.state_folder_count > 0)
        choose_sums(zero);
    if (zero->o.swap.param_folder_count > 0 || zero->o.swap.params_on_host)
        choose_params(zero);
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        zero->group[g].gather.copied_from = dsc_stored_slice(zero, g, DSC_PLANE_PARAM);
        for (int p = 0; p < DSC_PLANE_COUNT; p++)
            zero->group[g].tiers.at[p] = zero->group[g].tiers.next_at[p] = -1;
    }
}

static bool wants_swap(const dsc_zero *zero, int32_t g, dsc_plane plane)
{
    const dsc_group_state *state = &zero->group[g];
    const bool states = state->tiers.swap_states && zero->o.swap.state_folder_count > 0;
    DSC_ASSERT(g < zero->o.layout->group_count);
    switch (plane) {
    case DSC_PLANE_PARAM:
        return dsc_zero_param_is_away(zero, g) && !state->tiers.param_on_host;
    case DSC_PLANE_MASTER: return states && zero->o.compute_dtype != DSC_F32;
    case DSC_PLANE_MOMENT1: case DSC_PLANE_MOMENT2: case DSC_PLANE_MOMENT3:
        return states && (int)plane - DSC_PLANE_MOMENT1 < dsc_moment_count(zero, g);
    /* The binary counter of sums that do not depend on W needs all its levels at hand. */
    case DSC_PLANE_GRAD:
        return states && !zero->o.world_size_reproducible && !state->tiers.sum_in_memory;
    default: return states;
    }
}

static bool plane_is_used(const dsc_zero *zero, dsc_plane plane)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_in_swap(zero, g, plane))
            return true;
    return false;
}

/* Parameters in files that are trained. */
static bool update_writes_params(const dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_in_swap(zero, g, DSC_PLANE_PARAM) && zero->o.layout->group[g].trainable)
            return true;
    return false;
}

/* The update gives none of them back. */
static int32_t update_sums_slots(const dsc_zero *zero)
{
    return (int32_t)dsc_min_i64(zero->store->slot_count, SUMS_IN_TILES);
}

static int32_t folders_of(const dsc_zero *zero, dsc_space space)
{
    DSC_ASSERT(space < DSC_SPACE_COUNT);
    return space == DSC_SPACE_PARAM ? zero->o.swap.param_folder_count : zero->o.swap.state_folder_count;
}

static bool param_in_host_memory(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(!zero->group[g].tiers.param_on_host || zero->group[g].tiers.swap_param);
    return dsc_zero_param_is_away(zero, g) && zero->group[g].tiers.param_on_host;
}

static int64_t host_param_bytes(const dsc_zero *zero)
{
    int64_t elements = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        elements += param_in_host_memory(zero, g) ? dsc_stored_slice(zero, g, DSC_PLANE_PARAM) : 0;
    DSC_ASSERT(elements == 0 || !dsc_device_host_visible(zero->o.device));
    return elements * zero->param_bytes_each;
}

/* The absmax of moments in files. They stay in memory, so that a tile of codes is whole blocks of a file. */
static int64_t absmax_bytes(const dsc_zero *zero)
{
    int64_t bytes = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_in_swap(zero, g, DSC_PLANE_MOMENT1))
            bytes += dsc_absmax_bytes(zero, g, zero->o.layout->group[g].slice);
    DSC_ASSERT(bytes == 0 || zero->o.moment_dtype == DSC_U8);
    return bytes;
}

static int64_t sum_tile_bytes(const dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_grad_staging_is_offloaded(zero, g) && zero->o.sum_dtype != DSC_F32 && !dsc_update_reads_bf16_sums(zero))
            return zero->store->tile_elements * 4;
    return 0;
}

/* Behind what lies in the plane's space so far. */
static int64_t place_plane(dsc_zero *zero, int32_t g, dsc_plane plane)
{
    int64_t *bytes = &zero->store->space_bytes[plane_table[plane].space];
    const int64_t at = *bytes;
    DSC_ASSERT(at % DSC_AIO_ALIGN == 0);
    DSC_ASSERT(folders_of(zero, plane_table[plane].space) > 0);
    *bytes += dsc_align_up(dsc_stored_slice(zero, g, plane) * dsc_plane_bytes_each(zero, plane), DSC_AIO_ALIGN);
    return at;
}

static void place_group(dsc_zero *zero, int32_t g)
{
    dsc_group_state *state = &zero->group[g];
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        if (wants_swap(zero, g, (dsc_plane)p))
            state->tiers.at[p] = state->tiers.next_at[p] = place_plane(zero, g, (dsc_plane)p);
    for (int p = 0; p < DSC_PLANE_GRAD && dsc_speculative_update_covers(zero, g); p++)
        if (state->tiers.at[p] >= 0)
            state->tiers.next_at[p] = place_plane(zero, g, (dsc_plane)p);
}

static void choose_tiles(dsc_zero *zero, int64_t longest_slice)
{
    dsc_state_store *store = zero->store;
    const int64_t align = zero->o.moment_dtype == DSC_U8 ? TILE_ALIGN_U8 : TILE_ALIGN;
    const int64_t asked = dsc_max_i64(align, zero->o.swap.tile_elements / align * align);
    store->tile_elements = dsc_min_i64(asked, dsc_align_up(longest_slice, align));
    store->part_elements = dsc_min_i64(store->tile_elements, CACHED_ELEMENTS);
    DSC_ASSERT(store->tile_elements % align == 0);
    store->slot_count = zero->o.swap.slot_count;
}

enum { NEEDS_MAX = DSC_PLANE_COUNT + 7, FILES = 2 * DSC_SPACE_COUNT };

static void add_need(dsc_need *needs, int *count, dsc_tag tag, int64_t bytes, dsc_buf *buf)
{
    DSC_ASSERT(*count < NEEDS_MAX);
    needs[(*count)++] = (dsc_need) { buf, tag, DSC_TIER_PINNED, bytes, DSC_NEED_DEVICE };
}

/* All buffers and arrays in host memory: tile buffers of each plane that is in files, and parameters and sums. Returns
 * the length of the list. Tiles are chosen. */
static int list_needs(dsc_zero *zero, dsc_need needs[NEEDS_MAX])
{
    dsc_state_store *store = zero->store;
    int count = 0;
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        if (plane_is_used(zero, (dsc_plane)p))
            add_need(needs, &count, DSC_TAG_IO, dsc_state_store_tile_buffers_bytes(zero, (dsc_plane)p), &store->buf[p]);
    if (update_writes_params(zero))
        add_need(needs, &count, DSC_TAG_IO, dsc_state_store_slots_bytes(zero, DSC_PLANE_PARAM, store->slot_count),
                 &store->update_params_buf);
    if (dsc_speculative_update_is_used(zero) && plane_is_used(zero, DSC_PLANE_GRAD))
        add_need(needs, &count, DSC_TAG_IO, dsc_state_store_slots_bytes(zero, DSC_PLANE_GRAD, update_sums_slots(zero)),
                 &store->update_sums_buf);
    add_need(needs, &count, DSC_TAG_PARAM, host_param_bytes(zero), &store->param_buf);
    add_need(needs, &count, DSC_TAG_IO, sum_tile_bytes(zero), &store->sum_buf);
    add_need(needs, &count, DSC_TAG_MOMENT, absmax_bytes(zero), &store->absmax_buf);
    needs[count++] = (dsc_need) { &store->order, DSC_TAG_CONTROL, DSC_TIER_HOST,
                                  zero->o.layout->group_count * (int64_t)sizeof *store->order, DSC_NEED_SMALL };
    if (dsc_param_prefetch_is_used(zero)) /* slots in the tile buffers of masters and moments */
        needs[count++] = (dsc_need) { NULL, DSC_TAG_IO, DSC_TIER_HOST,
                                      dsc_tile_buffers_plan_bytes(dsc_param_prefetch_slots(zero),
                                                                  store->tile_elements * zero->param_bytes_each),
                                      DSC_NEED_INSIDE };
    DSC_ASSERT(count <= NEEDS_MAX);
    return count;
}

/* ---- swap files ---- */

static dsc_status open_aio(dsc_zero *zero, int which, dsc_error *err)
{
    DSC_ASSERT(which >= 0);
    DSC_ASSERT(which < DSC_IO_CLASS_COUNT);
    const dsc_zero_swap *swap = &zero->o.swap;
    dsc_aio_options options = swap->aio;
    options.alloc = zero->o.alloc;
    if (swap->io != NULL && swap->io->blocks != NULL)
        options.hook = *swap->io->blocks;
    return zero->store->io.engine[which] == NULL ? dsc_aio_open(&options, &zero->store->io.engine[which], err) : DSC_OK;
}

static dsc_status open_space(dsc_zero *zero, dsc_space space, dsc_error *err)
{
    const dsc_zero_swap *swap = &zero->o.swap;
    DSC_TRY(open_aio(zero, space_table[space].aio, err));
    DSC_ASSERT(zero->store->swap[space] == NULL);
    DSC_ASSERT(folders_of(zero, space) > 0);
    const dsc_swap_options place = {
        .alloc = zero->o.alloc,
        .aio = zero->store->io.engine[space_table[space].aio],
        .io = swap->io,
        .tag = space_table[space].tag,
        .folders = space == DSC_SPACE_PARAM ? swap->param_folders : swap->state_folders,
        .folder_count = folders_of(zero, space),
        .bytes = zero->store->space_bytes[space],
        .stripe_bytes = STRIPE_BYTES,
    };
    return dsc_swap_open(&place, &zero->store->swap[space], err);
}

static dsc_status swap_file_open(const dsc_needs *needs, const dsc_need *need, dsc_error *err)
{
    dsc_zero *zero = needs->owner;
    dsc_swap **swap = need->out;
    const ptrdiff_t space = swap - zero->store->swap;
    DSC_ASSERT(space >= 0 && space < DSC_SPACE_COUNT);
    DSC_ASSERT(need->bytes == zero->store->space_bytes[space]);
    return need->bytes > 0 ? open_space(zero, (dsc_space)space, err) : DSC_OK;
}

static void swap_file_close(const dsc_needs *needs, const dsc_need *need)
{
    dsc_swap **swap = need->out;
    dsc_swap_close(swap);
    DSC_ASSERT(*swap == NULL);
}

static const dsc_need_kind swap_file = { NULL, swap_file_open, swap_file_close };

/* The swap file of each kind of state, and the checksums of its blocks, which are opened with it. */
static void list_files(dsc_zero *zero, dsc_need out[FILES])
{
    dsc_state_store *store = zero->store;
    for (int s = 0; s < DSC_SPACE_COUNT; s++) {
        const int64_t bytes = store->space_bytes[s], checks = bytes > 0 ? dsc_swap_plan_bytes(bytes) : 0;
        out[2 * s] = (dsc_need) { &store->swap[s], space_table[s].tag, DSC_TIER_NVME, bytes, &swap_file };
        out[2 * s + 1] = (dsc_need) { NULL, DSC_TAG_IO, DSC_TIER_HOST, checks, DSC_NEED_INSIDE };
    }
}

/* ---- the plan ---- */

void dsc_state_store_plan(dsc_zero *zero)
{
    dsc_state_store *store = zero->store;
    const dsc_layout *layout = zero->o.layout;
    int64_t longest = 0;
    for (int32_t g = 0; g < layout->group_count; g++) {
        place_group(zero, g);
        if (zero->group[g].tiers.swap_states || dsc_any_in_swap(zero, g))
            longest = dsc_max_i64(longest, dsc_stored_slice(zero, g, DSC_PLANE_PARAM));
    }
    choose_tiles(zero, longest);
    for (int s = 0; s < DSC_SPACE_COUNT; s++)
        if (store->space_bytes[s] > 0)
            store->space_bytes[s] =
                dsc_align_up(store->space_bytes[s], STRIPE_BYTES * folders_of(zero, (dsc_space)s));
    dsc_need files[FILES], needs[NEEDS_MAX];
    list_files(zero, files);
    dsc_needs_plan(&zero->needs, files, FILES);
    dsc_needs_plan(&zero->needs, needs, list_needs(zero, needs));
    dsc_grad_staging_plan(zero);
    dsc_host_update_plan(zero);
}

/* ---- opening and closing ---- */

static void lock_buffer(const dsc_zero *zero, bool pin, const dsc_buf *buf)
{
    DSC_ASSERT(!pin || buf->ptr != NULL);
    char word[256];
    if (pin && !dsc_buf_lock(buf, word, sizeof word))
        dsc_log_printf(zero->o.swap.log, DSC_LOG_WARNING, "pin_memory: %s", word);
}

static dsc_status open_tile_buffers(dsc_zero *zero, dsc_plane plane, int aio, int32_t slot_count,
                                    dsc_tile_buffers *buffers, dsc_buf *buf, dsc_error *err)
{
    dsc_state_store *store = zero->store;
    const int64_t piece_bytes = store->tile_elements * dsc_plane_bytes_each(zero, plane);
    DSC_ASSERT(store->swap[plane_table[plane].space] != NULL);
    DSC_ASSERT(slot_count * piece_bytes == buf->bytes);
    DSC_TRY(open_aio(zero, aio, err));
    DSC_TRY(dsc_aio_register(store->io.engine[aio], buf->ptr, buf->bytes, err));
    lock_buffer(zero, plane == DSC_PLANE_PARAM ? zero->o.swap.pin_params : zero->o.swap.pin_states, buf);
    buffers->read_ahead = zero->o.swap.read_ahead;
    buffers->write_behind = zero->o.swap.write_behind;
    return dsc_tile_buffers_open(buffers, zero->o.alloc, store->swap[plane_table[plane].space], store->io.engine[aio],
                                 buf->ptr, piece_bytes, slot_count, err);
}

/* Windows are buffers of files then, like those of rings. */
static dsc_status open_fetch(dsc_zero *zero, dsc_error *err)
{
    dsc_state_store *store = zero->store;
    int64_t longest = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_in_swap(zero, g, DSC_PLANE_PARAM))
            longest = dsc_max_i64(longest, dsc_stored_slice(zero, g, DSC_PLANE_PARAM) * zero->param_bytes_each);
    if (longest == 0 || !dsc_state_store_reads_to_windows(zero))
        return DSC_OK;
    DSC_TRY(dsc_event_open(zero->o.device, &store->io.arrival[DSC_IO_PARAM], err));
    lock_buffer(zero, zero->o.swap.pin_params, &zero->buf.gather);
    DSC_TRY(dsc_aio_register(store->io.engine[DSC_IO_PARAM], zero->buf.gather.ptr, zero->buf.gather.bytes, err));
    DSC_ASSERT(store->swap[DSC_SPACE_PARAM] != NULL);
    return dsc_swap_op_open(store->swap[DSC_SPACE_PARAM], NULL, longest, &store->fetch, err);
}

static dsc_status open_rings(dsc_zero *zero, dsc_error *err)
{
    dsc_state_store *store = zero->store;
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        if (plane_is_used(zero, (dsc_plane)p))
            DSC_TRY(open_tile_buffers(zero, (dsc_plane)p, plane_table[p].aio,
                                      dsc_state_store_slot_count(zero, (dsc_plane)p), &store->buffers[p],
                                      &store->buf[p], err));
    DSC_TRY(open_fetch(zero, err));
    DSC_TRY(dsc_param_prefetch_open(zero, err));
    if (dsc_speculative_update_is_used(zero) && plane_is_used(zero, DSC_PLANE_GRAD))
        DSC_TRY(open_tile_buffers(zero, DSC_PLANE_GRAD, DSC_IO_STATE, update_sums_slots(zero), &store->update_sums,
                                  &store->update_sums_buf, err));
    if (!update_writes_params(zero))
        return DSC_OK;
    DSC_TRY(dsc_event_open(zero->o.device, &store->written, err));
    DSC_TRY(open_tile_buffers(zero, DSC_PLANE_PARAM, DSC_IO_STATE, store->slot_count, &store->update_params,
                              &store->update_params_buf, err));
    dsc_tile_buffers_write_soon(&store->update_params); /* a forward pass waits for it, and for no other state */
    return DSC_OK;
}

/* One thread beside those that compute keeps up with any disk: an element's update takes well under a nanosecond. */
static dsc_status open_update(dsc_zero *zero, dsc_error *err)
{
    dsc_state_store *store = zero->store;
    const dsc_device_options options = { .alloc = zero->o.alloc, .threads = 1, .caps = zero->o.swap.host_caps };
    DSC_ASSERT(store->update_device == NULL);
    store->update_compute = dsc_update_runs_late(zero) ? zero->stream.update : zero->o.compute;
    if (!dsc_state_store_updates_behind(zero))
        return DSC_OK;
    DSC_TRY(dsc_device_open(&dsc_device_cpu, &store->update_device, &options, err));
    return dsc_stream_open(store->update_device, DSC_STREAM_COMPUTE, "update", &store->update_compute, err);
}

static void close_update(dsc_state_store *store)
{
    if (store->update_device == NULL)
        return;
    dsc_stream_close(&store->update_compute);
    dsc_device_close(&store->update_device);
}

/* One line which engine and why; a warning for what is slower than it could be, once when it is the same for all. */
static void say_files(const dsc_zero *zero)
{
    const dsc_state_store *store = zero->store;
    const dsc_log *log = zero->o.swap.log;
    const char *said = "", *word = "";
    for (int a = 0; a < DSC_IO_CLASS_COUNT; a++) {
        if (store->io.engine[a] == NULL)
            continue;
        if (said[0] == 0)
            dsc_log_printf(log, DSC_LOG_INFO, "files: %s", said = dsc_aio_why(store->io.engine[a]));
        if (word[0] == 0 && (word = dsc_aio_warning(store->io.engine[a]))[0] != 0)
            dsc_log_printf(log, DSC_LOG_WARNING, "files: %s", word);
    }
    said = "";
    for (int s = 0; s < DSC_SPACE_COUNT; s++) {
        const char *now = store->swap[s] != NULL ? dsc_swap_warning(store->swap[s]) : "";
        if (now[0] != 0 && strcmp(said, now) != 0)
            dsc_log_printf(log, DSC_LOG_WARNING, "files: %s", said = now);
    }
}

static void place_host_params(dsc_zero *zero)
{
    char *param = zero->store->param_buf.ptr;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        dsc_group_state *state = &zero->group[g];
        if (!param_in_host_memory(zero, g))
            continue;
        state->param = param;
        param += dsc_stored_slice(zero, g, DSC_PLANE_PARAM) * zero->param_bytes_each;
        if (zero->o.layout->group[g].trainable && zero->o.compute_dtype == DSC_F32)
            state->master = (float *)(void *)state->param;
    }
    DSC_ASSERT(param == (char *)zero->store->param_buf.ptr + zero->store->param_buf.bytes);
}

static void place_absmax(dsc_zero *zero)
{
    char *absmax = zero->store->absmax_buf.ptr;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_in_swap(zero, g, DSC_PLANE_MOMENT1))
            absmax = dsc_zero_place_absmax(zero, g, absmax);
    DSC_ASSERT((intptr_t)absmax - (intptr_t)zero->store->absmax_buf.ptr == zero->store->absmax_buf.bytes);
}

dsc_status dsc_state_store_open(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(zero->store->order == NULL); /* opened once */
    dsc_need files[FILES], needs[NEEDS_MAX];
    list_files(zero, files);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, list_needs(zero, needs), err));
    DSC_TRY(dsc_needs_open(&zero->needs, files, FILES, err));
    DSC_TRY(open_rings(zero, err));
    DSC_TRY(dsc_borrowed_memory_open(zero, err));
    DSC_TRY(open_update(zero, err));
    if (zero->o.rank == 0)
        say_files(zero);
    place_host_params(zero);
    place_absmax(zero);
    DSC_TRY(dsc_grad_staging_open(zero, err));
    return dsc_host_update_open(zero, err);
}

/* An operation that never ended may still come to its file and buffer, until its engine is closed. */
void dsc_state_store_close(dsc_zero *zero)
{
    dsc_state_store *store = zero->store;
    dsc_host_update_close(zero);
    dsc_grad_staging_close(zero);
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        dsc_tile_buffers_stop(&store->buffers[p]);
    dsc_tile_buffers_stop(&store->update_params);
    dsc_tile_buffers_stop(&store->update_sums);
    dsc_tile_buffers_stop(&store->prefetched);
    for (int a = 0; a < DSC_IO_CLASS_COUNT; a++)
        dsc_aio_close(&store->io.engine[a]);
    dsc_need files[FILES];
    list_files(zero, files);
    dsc_needs_close(&zero->needs, files, FILES);
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        dsc_tile_buffers_close(&store->buffers[p]);
    dsc_tile_buffers_close(&store->update_params);
    dsc_tile_buffers_close(&store->update_sums);
    dsc_param_prefetch_close(zero);
    dsc_borrowed_memory_close(zero);
    dsc_swap_op_close(&store->fetch);
    dsc_event_close(&store->io.arrival[DSC_IO_PARAM]);
    dsc_event_close(&store->written);
    close_update(store);
    if (zero->o.device == NULL || zero->group == NULL)
        return;
    dsc_need needs[NEEDS_MAX];
    dsc_needs_close(&zero->needs, needs, list_needs(zero, needs));
}

/* ---- views ---- */

dsc_status dsc_state_store_view(dsc_zero *zero, int32_t g, dsc_plane plane, int64_t first, int64_t *count, bool write,
                                void **ptr, dsc_error *err)
{
    const int64_t each = dsc_plane_bytes_each(zero, plane), tile = zero->store->tile_elements;
    const int64_t tile_first = first / tile * tile;
    const int64_t tile_count = dsc_min_i64(tile, dsc_stored_slice(zero, g, plane) - tile_first);
    const dsc_piece piece = { zero->group[g].tiers.at[plane] + tile_first * each, tile_count * each };
    void *buf;
    DSC_ASSERT(zero->store->buffers[plane].swap != NULL);
    DSC_ASSERT(first < dsc_stored_slice(zero, g, plane));
    if (!dsc_device_host_visible(zero->o.device))
        DSC_TRY(dsc_stream_sync(zero->o.compute, err)); /* copies from and to the last view */
    if (plane == DSC_PLANE_PARAM)                       /* which an fp32 update reads by tile buffers of its own */
        DSC_TRY(dsc_tile_buffers_discard(&zero->store->update_params, err));
    DSC_TRY(dsc_tile_buffers_view(&zero->store->buffers[plane], piece, write, &buf, err));
    *ptr = (char *)buf + (first - tile_first) * each;
    *count = dsc_min_i64(*count, tile_first + tile_count - first);
    DSC_ASSERT(*count > 0);
    return DSC_OK;
}

dsc_status dsc_state_store_settle(dsc_zero *zero, dsc_error *err)
{
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        if (zero->store->buffers[p].swap != NULL)
            DSC_TRY(dsc_tile_buffers_settle(&zero->store->buffers[p], err));
    return DSC_OK;
}
