/* entries.c - which tensors a checkpoint stores, and how they are cut into blocks by owner.
 *
 * Blocks end at multiples of 1 MiB of their tensor and where an owner's slice ends, so each has one owner. The owner
 * hashes it from memory without a word to the others. The price: the manifest lists the cuts, which depend on the
 * world size. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/internal.h"

const char *const dsc_ckpt_file_name[DSC_CKPT_FILE_COUNT] = { "model.safetensors",  "optimizer.safetensors",
                                                              "config.json",        "ds_config.json",
                                                              "adapter.json",       "companions.sha256",
                                                              "buffers.safetensors" };

const char *dsc_ckpt_stored_name(const dsc_run_state *state, dsc_ckpt_plane plane, const char *hf_name, char *out)
{
    snprintf(out, DSC_CKPT_NAME_BYTES, "%s%s%s", dsc_ckpt_plane_name(state, plane),
             plane == DSC_CKPT_WEIGHTS ? "" : ".", hf_name);
    return out;
}

static dsc_status add(dsc_ckpt_entries *entries, dsc_ckpt_file file, dsc_ckpt_plane plane, int32_t t,
                      const dsc_layout_tensor *tensor, const dsc_run_state *state, dsc_error *err)
{
    char name[DSC_CKPT_NAME_BYTES];
    dsc_ckpt_entry *entry = &entries->entry[entries->count];
    DSC_ASSERT(file < DSC_CKPT_TENSOR_FILE_COUNT);
    dsc_ckpt_stored_name(state, plane, tensor->spec->name, name);
    *entry = (dsc_ckpt_entry) { .file = file,
                                .plane = plane,
                                .tensor = t,
                                .count = dsc_ckpt_count(plane, tensor),
                                .dtype = dsc_ckpt_dtype(state, plane),
                                .index_in_file = entries->file_entries[file] };
    DSC_ASSERT(entry->count > 0);
    DSC_TRY(dsc_alloc_strdup(entries->alloc, DSC_TAG_CONTROL, name, &entry->name, err));
    entries->count++;
    entries->file_entries[file]++;
    return DSC_OK;
}

/* Single bytes come last, so that all other numbers lie where their size divides the offset. */
static const dsc_ckpt_plane stored[] = { DSC_CKPT_MASTER,  DSC_CKPT_AVERAGE, DSC_CKPT_OUTER,   DSC_CKPT_ABSMAX1,
                                         DSC_CKPT_ABSMAX2, DSC_CKPT_MOMENT1, DSC_CKPT_MOMENT2, DSC_CKPT_MOMENT3,
                                         DSC_CKPT_ROWS,    DSC_CKPT_COLS,    DSC_CKPT_TENSOR };
_Static_assert(DSC_COUNT(stored) == DSC_CKPT_PLANE_COUNT - 1, "all but the weights");

static dsc_status add_all(dsc_ckpt_entries *entries, const dsc_layout *layout, const dsc_run_state *state,
                          dsc_error *err)
{
    for (int32_t t = 0; t < layout->tensor_count; t++)
        if (dsc_ckpt_saved_planes(state, DSC_CKPT_WEIGHTS, layout, &layout->tensor[t]))
            DSC_TRY(add(entries, DSC_CKPT_MODEL, DSC_CKPT_WEIGHTS, t, &layout->tensor[t], state, err));
    for (size_t i = 0; i < DSC_COUNT(stored); i++)
        for (int32_t t = 0; t < layout->tensor_count; t++)
            if (dsc_ckpt_saved_planes(state, stored[i], layout, &layout->tensor[t]))
                DSC_TRY(add(entries, DSC_CKPT_OPTIMIZER, stored[i], t, &layout->tensor[t], state, err));
    DSC_ASSERT(entries->file_entries[DSC_CKPT_MODEL] <= layout->tensor_count);
    return DSC_OK;
}

dsc_status dsc_ckpt_entries_open(dsc_alloc *alloc, const dsc_layout *layout, const dsc_run_state *state,
                                 dsc_ckpt_entries *out, dsc_error *err)
{
    *out = (dsc_ckpt_entries) { .alloc = alloc };
    int64_t most = 0; /* planes that any tensor has, for each tensor */
    for (int plane = DSC_CKPT_WEIGHTS; plane < DSC_CKPT_PLANE_COUNT; plane++)
        most += dsc_ckpt_is_saved(state, (dsc_ckpt_plane)plane, true) ? layout->tensor_count : 0;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, most, sizeof *out->entry, &out->entry, err));
    const dsc_status status = add_all(out, layout, state, err);
    DSC_ASSERT(out->count <= most);
    if (status != DSC_OK)
        dsc_ckpt_entries_close(out);
    return status;
}

void dsc_ckpt_entries_close(dsc_ckpt_entries *entries)
{
    for (int32_t i = 0; i < entries->count; i++)
        dsc_alloc_free(entries->alloc, entries->entry[i].name);
    if (entries->entry != NULL)
        dsc_alloc_free(entries->alloc, entries->entry);
    *entries = (dsc_ckpt_entries) { 0 };
}

/* Whether a rank holds the module; *slice <- which of the slices of each group is its own. */
static bool holds(const dsc_ckpt_stages *stages, int32_t module, int32_t rank, int32_t *slice)
{
    *slice = rank;
    if (stages == NULL)
        return true;
    const int32_t stage = rank / stages->data_ranks;
    DSC_ASSERT(stage < stages->count);
    *slice = rank % stages->data_ranks;
    return stages->first_module[stage] <= module && module < stages->first_module[stage + 1];
}

int64_t dsc_ckpt_span_of_rank(const dsc_ckpt_ctx *c, const dsc_ckpt_entry *entry, int32_t rank, int64_t *first)
{
    const dsc_layout *layout = c->layout;
    DSC_ASSERT(rank >= 0);
    DSC_ASSERT(entry->tensor < layout->tensor_count);
    const dsc_layout_tensor *tensor = &layout->tensor[entry->tensor];
    const int64_t slice = layout->group[tensor->group].slice;
    *first = 0;
    if (!holds(c->stages, tensor->module, rank, &rank))
        return 0;
    if (dsc_ckpt_is_shared(entry->plane))
        return rank == 0 ? entry->count : 0;
    const int64_t each = dsc_ckpt_elements_each(entry->plane);
    const int64_t count = dsc_layout_span(tensor, rank * slice, slice, first);
    DSC_ASSERT(count == 0 || *first % each == 0); /* slices and tensors begin with a block */
    *first /= each;
    return dsc_div_ceil(count, each);
}

int64_t dsc_ckpt_blocks_of_rank(const dsc_ckpt_ctx *c, const dsc_ckpt_entries *entries, int32_t rank,
                                dsc_ckpt_block *blocks)
{
    int64_t count = 0;
    for (int32_t e = 0; e < entries->count; e++) {
        const int64_t most = dsc_ckpt_block_elements(entries->entry[e].dtype);
        int64_t first = 0;
        const int64_t span = dsc_ckpt_span_of_rank(c, &entries->entry[e], rank, &first), end = first + span;
        while (first < end) {
            const int64_t cut = dsc_min_i64(end, (first / most + 1) * most);
            DSC_ASSERT(cut > first);
            DSC_ASSERT(cut - first <= most);
            if (blocks != NULL)
                blocks[count] = (dsc_ckpt_block) { .entry = e, .first = first, .count = cut - first };
            count++;
            first = cut;
        }
    }
    return count;
}

dsc_hash128 dsc_ckpt_block_hash(const char *name, const dsc_ckpt_block *block, int64_t step, const void *data,
                                int64_t bytes)
{
    DSC_ASSERT(block->first >= 0 && block->count > 0 && bytes > 0);
    /* Little-endian by definition; this code runs on little-endian machines only (safetensors is little-endian too). */
    const uint64_t place[4] = { dsc_xxh3_128(name, strlen(name), 0).low, (uint64_t)block->first, (uint64_t)block->count,
                                (uint64_t)step };
    return dsc_xxh3_128(data, (size_t)bytes, dsc_xxh3_128(place, sizeof place, 0).low);
}

void dsc_ckpt_sha256(const void *data, int64_t bytes, uint8_t digest[32])
{
    DSC_ASSERT(bytes >= 0 && digest != NULL);
    dsc_sha256 sha;
    dsc_sha256_init(&sha);
    dsc_sha256_update(&sha, data, (size_t)bytes);
    dsc_sha256_final(&sha, digest);
}

int64_t dsc_ckpt_buffer_bytes(const dsc_layout *layout, bool states_in_files)
{
    DSC_ASSERT(layout->group_count > 0);
    int64_t elements = 0; /* slice of everything: master and moments have 12 bytes each, weights and gradients 4 */
    for (int32_t g = 0; g < layout->group_count; g++)
        elements += layout->group[g].slice;
    const int64_t wanted = states_in_files ? 0 : dsc_min_i64(elements / 4, DSC_CKPT_BUFFER_BYTES_MOST);
    return dsc_max_i64(DSC_CKPT_BUFFER_BYTES, wanted / 4096 * 4096);
}

/* Largest number of bytes of a save or a load at one time, measured on manifests of this version. The terms are the
 * job with its files, companions and engine, headers and JSON of a stored tensor, lists and text of a block, and one
 * number per cut. A tensor's name is stored several times. */
#define PLAN_BYTES_FIXED 53248
#define PLAN_BYTES_PER_NAME_BYTE 4
#define PLAN_SAVE_BYTES_PER_ENTRY 490
#define PLAN_SAVE_BYTES_PER_BLOCK 165
#define PLAN_LOAD_BYTES_PER_ENTRY 830
#define PLAN_LOAD_BYTES_PER_BLOCK 110
#define PLAN_LOAD_BYTES_PER_CUT 130
/* Bytes for parts: which block is in which; and the texts of a host that has none. */
#define PLAN_PARTS_SAVE_BYTES_PER_BLOCK 16
#define PLAN_PARTS_LOAD_BYTES_PER_ENTRY 480
#define PLAN_PARTS_LOAD_BYTES_PER_BLOCK 120

int64_t dsc_ckpt_plan_bytes(const dsc_layout *layout, dsc_dtype compute_dtype, dsc_dtype moment_dtype,
                            dsc_recipe recipe, const dsc_ckpt_uses *uses)
{
    const dsc_run_state state = {
        .compute_dtype = compute_dtype,
        .moment_dtype = moment_dtype,
        .recipe = recipe,
        .averages = uses->averages,
        .outer = uses->outer,
    };
    const int64_t block_elements = DSC_CKPT_BLOCK_BYTES / 4;
    int64_t planes = 0, prefix_bytes = 0;
    for (int plane = DSC_CKPT_WEIGHTS; plane < DSC_CKPT_PLANE_COUNT; plane++)
        if (dsc_ckpt_is_saved(&state, (dsc_ckpt_plane)plane, true)) {
            planes++;
            prefix_bytes =
                dsc_max_i64(prefix_bytes, (int64_t)strlen(dsc_ckpt_plane_name(&state, (dsc_ckpt_plane)plane)) + 2);
        }
    const int64_t cuts = (int64_t)layout->group_count * (layout->world_size - 1) * planes;
    DSC_ASSERT(planes >= 1); /* weights are always saved */
    DSC_ASSERT(cuts >= 0);
    int64_t entries = layout->tensor_count * planes, blocks = 0, name_bytes = 0;
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_param_spec *spec = layout->tensor[t].spec;
        if (spec->parted) { /* in the header of the weights each part has a name */
            entries += spec->dim[0];
            name_bytes += spec->dim[0] * ((int64_t)strlen(spec->name) + 4);
        }
        blocks += planes * dsc_div_ceil(layout->tensor[t].count, block_elements);
        name_bytes += planes * ((int64_t)strlen(layout->tensor[t].spec->name) + prefix_bytes);
    }
    int64_t save = entries * PLAN_SAVE_BYTES_PER_ENTRY + (blocks + cuts) * PLAN_SAVE_BYTES_PER_BLOCK;
    int64_t load = entries * PLAN_LOAD_BYTES_PER_ENTRY + (blocks + cuts) * PLAN_LOAD_BYTES_PER_BLOCK +
                         cuts * PLAN_LOAD_BYTES_PER_CUT;
    if (uses->node_local) {
        save += (blocks + cuts) * PLAN_PARTS_SAVE_BYTES_PER_BLOCK;
        load += entries * PLAN_PARTS_LOAD_BYTES_PER_ENTRY + (blocks + cuts) * PLAN_PARTS_LOAD_BYTES_PER_BLOCK;
    }
    return PLAN_BYTES_FIXED + name_bytes * PLAN_BYTES_PER_NAME_BYTE +
           dsc_max_i64(uses->saves ? save : 0, uses->loads ? load : 0);
}
