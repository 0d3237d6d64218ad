/* save_plan.c - content and places of a save's writes, known before its first byte: files, blocks, their owners,
 * and the size of the manifest. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/checkpoint/save.h"

static dsc_status plan_file(dsc_ckpt_save_state *s, int f, dsc_error *err)
{
    DSC_ASSERT(f < DSC_CKPT_TENSOR_FILE_COUNT);
    dsc_alloc *alloc = s->c->alloc;
    const dsc_safetensors_pair metadata = { "format", "pt" };
    dsc_safetensors_spec *specs = NULL;
    bool *parted = NULL;
    const int64_t most = s->entries.file_entries[f];
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, most, sizeof *specs + sizeof *parted, &specs, err));
    parted = (bool *)(specs + most);
    for (int32_t e = 0; e < s->entries.count; e++) {
        const dsc_ckpt_entry *entry = &s->entries.entry[e];
        if (entry->file != (dsc_ckpt_file)f)
            continue;
        const dsc_param_spec *param = s->c->layout->tensor[entry->tensor].spec;
        DSC_ASSERT(entry->index_in_file < s->entries.file_entries[f]);
        dsc_safetensors_spec *spec = &specs[entry->index_in_file];
        *spec = (dsc_safetensors_spec){ .name = entry->name,
                                        .desc = { .dtype = entry->dtype, .dim_count = param->dim_count } };
        parted[entry->index_in_file] = param->parted && entry->plane == DSC_CKPT_WEIGHTS;
        memcpy(spec->desc.dim, param->dim, sizeof param->dim);
        if (dsc_ckpt_is_shared(entry->plane) || dsc_ckpt_is_absmax(entry->plane)) {
            spec->desc.dim_count = 1;
            spec->desc.dim[0] = entry->count;
        }
    }
    const int32_t count = s->entries.file_entries[f];
    const dsc_status status = dsc_safetensors_plan_parts(&s->plan[f], alloc, specs, parted, count, &metadata, 1, err);
    dsc_alloc_free(alloc, specs);
    DSC_TRY(status);
    const dsc_safetensors_plan *plan = &s->plan[f];
    s->info[f] = (dsc_ckpt_file_info) { .bytes = plan->file_bytes, .head_bytes = plan->header_bytes };
    dsc_ckpt_sha256(plan->header, plan->header_bytes, s->info[f].sha256);
    return DSC_OK;
}

bool dsc_ckpt_save_leads(const dsc_ckpt_save_state *s)
{
    return dsc_ckpt_leader(&s->hosts, s->hosts.mine) == dsc_comm_rank(s->c->comm);
}

/* A part's file has its blocks behind the header of the whole one, in the manifest's order: where this rank's begin
 * takes the place of where the tensor does. */
static void place_part(dsc_ckpt_save_state *s, int f)
{
    const int32_t size = dsc_comm_size(s->c->comm), rank = dsc_comm_rank(s->c->comm);
    dsc_safetensors_plan *plan = &s->plan[f];
    const int64_t whole = plan->file_bytes;
    int64_t at = plan->header_bytes;
    DSC_ASSERT(s->hosts.count > 1);
    for (int32_t e = 0; e < s->entries.count; e++) {
        const dsc_ckpt_entry *entry = &s->entries.entry[e];
        for (int32_t r = 0; r < size && entry->file == (dsc_ckpt_file)f; r++) {
            int64_t first = 0;
            if (dsc_ckpt_host_of(&s->hosts, r) != s->hosts.mine)
                continue;
            const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
            const int64_t span = dsc_ckpt_span_of_rank(s->c, entry, r, &first);
            if (r == rank)
                plan->offset[entry->index_in_file] = at - first * each;
            at += span * each;
        }
    }
    DSC_ASSERT(at <= whole); /* a part is no longer than the file that it is of */
    plan->file_bytes = at;
}

const dsc_ckpt_parts *dsc_ckpt_save_parts(const dsc_ckpt_save_state *s, dsc_ckpt_parts *out)
{
    DSC_ASSERT(s->hosts.mine < s->hosts.count);
    *out = (dsc_ckpt_parts) {
        .count = s->hosts.count, .index = s->hosts.mine, .host = s->hosts.name, .of_block = s->part_of
    };
    return s->hosts.count > 1 ? out : NULL;
}

static dsc_status plan_blocks(dsc_ckpt_save_state *s, dsc_error *err)
{
    const dsc_ckpt_ctx *c = s->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size + 1, sizeof *s->first_block, &s->first_block, err));
    for (int32_t r = 0; r < size; r++)
        s->first_block[r + 1] = s->first_block[r] + dsc_ckpt_blocks_of_rank(c, &s->entries, r, NULL);
    const int64_t mine = s->first_block[rank + 1] - s->first_block[rank];
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, mine, sizeof *s->block, &s->block, err));
    const int64_t listed = dsc_ckpt_blocks_of_rank(c, &s->entries, rank, s->block);
    DSC_ASSERT(listed == mine);
    if (!dsc_ckpt_save_leads(s))
        return DSC_OK;
    if (s->hosts.count > 1)
        DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, s->first_block[size], sizeof *s->part_of, &s->part_of, err));
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, s->entries.count + 1, sizeof *s->first_of_entry, &s->first_of_entry,
                             err));
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, s->first_block[size], sizeof *s->all, &s->all, err));
    return dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, s->first_block[size], sizeof *s->sorted, &s->sorted, err);
}

/* By tensor, then by position. Within a tensor, owners follow each other, so the order of ranks is already right. */
void dsc_ckpt_save_sort(dsc_ckpt_save_state *s)
{
    const int32_t size = dsc_comm_size(s->c->comm);
    const int64_t count = s->first_block[size];
    int64_t *next = s->first_of_entry; /* place of the next block of each entry */
    DSC_ASSERT(s->all != NULL);
    DSC_ASSERT(s->sorted != NULL);
    memset(next, 0, (size_t)(s->entries.count + 1) * sizeof *next);
    for (int64_t i = 0; i < count; i++)
        next[s->all[i].entry + 1]++;
    for (int32_t e = 0; e < s->entries.count; e++)
        next[e + 1] += next[e];
    DSC_ASSERT(next[s->entries.count] == count);
    for (int32_t r = 0; r < size; r++)
        for (int64_t i = s->first_block[r]; i < s->first_block[r + 1]; i++) {
            const int64_t to = next[s->all[i].entry]++;
            s->sorted[to] = s->all[i];
            if (s->part_of != NULL)
                s->part_of[to] = dsc_ckpt_host_of(&s->hosts, r);
        }
}

/* ---- small files ---- */

const char *dsc_ckpt_save_text(const dsc_ckpt_save_state *s, dsc_ckpt_file f, int64_t *bytes)
{
    const char *text = f == DSC_CKPT_CONFIG      ? s->model_config
                       : f == DSC_CKPT_ADAPTER   ? s->c->model->adapter_json
                       : f == DSC_CKPT_BUFFERS   ? s->buffers
                       : f == DSC_CKPT_DS_CONFIG ? s->c->config_text
                                                 : NULL; /* the hashes of companions are known after their copies */
    DSC_ASSERT(f >= DSC_CKPT_TENSOR_FILE_COUNT);
    DSC_ASSERT(f < DSC_CKPT_FILE_COUNT);
    *bytes = text == NULL              ? 0
             : f == DSC_CKPT_BUFFERS   ? s->buffers_bytes
             : f == DSC_CKPT_DS_CONFIG ? s->c->config_bytes
                                       : (int64_t)strlen(text);
    return text;
}

static dsc_status plan_config(dsc_ckpt_save_state *s, dsc_error *err)
{
    const char *text = s->c->model->config_json;
    int64_t bytes;
    DSC_ASSERT(s->model_config == NULL);
    return text == NULL ? DSC_OK
                        : dsc_ckpt_config_with_dtype(s->c->alloc, text, (int64_t)strlen(text), s->state->compute_dtype,
                                                     &s->model_config, &bytes, err);
}

static dsc_status plan_texts(dsc_ckpt_save_state *s, dsc_error *err)
{
    DSC_TRY(plan_config(s, err));
    DSC_TRY(dsc_ckpt_buffers_text(s->c->alloc, &s->c->buffers, &s->buffers, &s->buffers_bytes, err));
    for (int f = DSC_CKPT_TENSOR_FILE_COUNT; f < DSC_CKPT_FILE_COUNT; f++) {
        int64_t bytes;
        const char *text = dsc_ckpt_save_text(s, (dsc_ckpt_file)f, &bytes);
        if (text == NULL)
            continue;
        DSC_ASSERT(bytes >= 0);
        if (bytes > DSC_CKPT_SMALL_BYTES_MAX)
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dsc_ckpt_file_name[f], "%lld bytes; at most %d are read back",
                            (long long)bytes, DSC_CKPT_SMALL_BYTES_MAX);
        s->info[f] = (dsc_ckpt_file_info) { .bytes = bytes, .head_bytes = bytes };
        dsc_ckpt_sha256(text, bytes, s->info[f].sha256);
    }
    return DSC_OK;
}

/* ---- the whole ---- */

/* Every rank's blocks, without their hashes: enough to know the manifest's size. */
static dsc_status check_manifest(dsc_ckpt_save_state *s, dsc_error *err)
{
    const int32_t size = dsc_comm_size(s->c->comm);
    DSC_ASSERT(s->all != NULL);
    for (int32_t r = 0; r < size; r++)
        dsc_ckpt_blocks_of_rank(s->c, &s->entries, r, s->all + s->first_block[r]);
    dsc_ckpt_save_sort(s);
    dsc_ckpt_parts parts;
    return dsc_ckpt_manifest_check(s->state, &s->entries, s->info, dsc_ckpt_save_parts(s, &parts), s->sorted,
                                   s->first_block[size], err);
}

dsc_status dsc_ckpt_save_plan(dsc_ckpt_save_state *s, dsc_error *err)
{
    DSC_ASSERT(s->entries.entry == NULL); /* planned once */
    DSC_ASSERT(s->hosts.count >= 1);
    DSC_TRY(dsc_ckpt_entries_open(s->c->alloc, s->c->layout, s->state, &s->entries, err));
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++)
        DSC_TRY(plan_file(s, f, err));
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT && s->hosts.count > 1; f++)
        place_part(s, f);
    DSC_TRY(plan_blocks(s, err));
    if (!dsc_ckpt_save_leads(s))
        return DSC_OK;
    DSC_TRY(plan_texts(s, err));
    return check_manifest(s, err);
}

dsc_status dsc_ckpt_save_open(const dsc_ckpt_ctx *c, const char *dir, const dsc_run_state *state, int64_t resumed_step,
                              dsc_ckpt_save_state **out, dsc_error *err)
{
    dsc_ckpt_save_state *s = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, 1, sizeof *s, &s, err));
    *out = s;
    s->c = c;
    s->state = state;
    DSC_ASSERT(resumed_step >= -1);
    dsc_ckpt_writer_open(&s->writer, c->alloc, c->io, &c->aio);
    for (int f = 0; f < DSC_CKPT_FILE_COUNT; f++)
        s->info[f].bytes = -1;
    return dsc_ckpt_commit_plan(&s->commit, c, dir, state, resumed_step, err);
}

void dsc_ckpt_save_close(dsc_ckpt_save_state **save)
{
    dsc_ckpt_save_state *s = *save;
    if (s == NULL)
        return;
    dsc_alloc *alloc = s->c->alloc;
    dsc_ckpt_writer_close(&s->writer);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++)
        dsc_safetensors_plan_close(&s->plan[f]);
    dsc_ckpt_entries_close(&s->entries);
    dsc_ckpt_hosts_close(&s->hosts);
    dsc_alloc_free(alloc, s->buffers);
    dsc_alloc_free(alloc, s->model_config);
    dsc_alloc_free(alloc, s->part_of);
    dsc_alloc_free(alloc, s->first_of_entry);
    dsc_alloc_free(alloc, s->sorted);
    dsc_alloc_free(alloc, s->all);
    dsc_alloc_free(alloc, s->block);
    dsc_alloc_free(alloc, s->first_block);
    dsc_alloc_free(alloc, s);
    *save = NULL;
}
