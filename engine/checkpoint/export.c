/* export.c - a checkpoint's weights as a Hugging Face folder, in fp32 or bf16, in one file or in shards; its
 * adapters as PEFT's folder, or added to the weights. Weights of blocks may be written in 4 bits (export_nf4.h).
 *
 * Every block is verified as it is read. The folder is made under OUT.tmp and renamed when it is whole.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/module_names.h"
#include "engine/checkpoint/adapter.h"
#include "engine/checkpoint/export_nf4.h"
#include "engine/checkpoint/export_vectors.h"
#include "kernels/scalar.h"

#define INDEX_FILE "model.safetensors.index.json"
#define FILE_NAME_BYTES 64
#define ADAPTER_PREFIX "base_model.model." /* as in models/lora_config.h */

/* Data written for one tensor, and its place. */
typedef struct export_tensor {
    const dsc_safetensors_entry *weights; /* name and shape in the checkpoint */
    dsc_tensor_desc desc;                 /* in the export */
    char *name;                           /* that it gets; owned */
    const dsc_ckpt_manifest_tensor *from; /* source of the blocks: master weights for fp32, if any; NULL: carried, or
                                           * a buffer */
    const void *buffer;                   /* its bytes; NULL: it is none */
    int64_t bytes;
    int32_t shard;
    int32_t parts; /* number of tensors that are written with it: itself and those that follow */
} export_tensor;

typedef struct export_job {
    const dsc_io *io;
    dsc_alloc *alloc;
    const dsc_ckpt_export_options *options;
    const char *step_dir;
    char tmp_dir[DSC_CKPT_PATH_BYTES];
    dsc_dtype dtype;
    dsc_ckpt_reader reader;
    bool adapted;     /* the checkpoint has adapters */
    bool transposed;  /* matrices are packed as [out,in], and stored [in,out] */
    dsc_ckpt_adapter adapter;
    char *adapter_text;
    int64_t adapter_bytes;
    dsc_safetensors *carried; /* tensors that are written as they are; NULL: none */
    export_tensor *tensor;
    int64_t count;
    int64_t in_shard; /* bytes of the shard that is planned */
    int32_t shard_count;
    char *buffer; /* a block as it was saved, and after it converted: twice as long at most */
} export_job;

/* The adapters alone are written, else the weights alone. */
static bool takes_adapters(const export_job *j) { return j->adapted && !j->options->merge; }

/* PEFT's folder has modules that are trained whole beside the adapters; so has a merged model. */
static bool takes(const export_job *j, const char *name)
{
    const bool adapter = j->adapted && dsc_ckpt_adapter_is(name);
    return takes_adapters(j) ? adapter || dsc_ckpt_adapter_saves(&j->adapter, name) : !adapter;
}

static void file_name(const export_job *j, int32_t shard, char out[FILE_NAME_BYTES])
{
    DSC_ASSERT(shard >= 0);
    DSC_ASSERT(shard < j->shard_count);
    if (takes_adapters(j))
        snprintf(out, FILE_NAME_BYTES, "adapter_model.safetensors");
    else if (j->shard_count == 1)
        snprintf(out, FILE_NAME_BYTES, "model.safetensors");
    else
        snprintf(out, FILE_NAME_BYTES, "model-%05d-of-%05d.safetensors", (int)shard + 1, (int)j->shard_count);
}

/* Tensors of `bytes` bytes lie in one shard. */
static void place(export_job *j, export_tensor *t, int32_t parts, int64_t bytes)
{
    const int64_t shard_bytes = takes_adapters(j) ? INT64_MAX : j->options->shard_bytes;
    DSC_ASSERT(bytes >= 0);
    if (j->in_shard > 0 && j->in_shard + bytes > shard_bytes) {
        j->shard_count++;
        j->in_shard = 0;
    }
    for (int32_t p = 0; p < parts; p++)
        t[p].shard = j->shard_count;
    t->parts = parts;
    j->in_shard += bytes;
}

static void find_source(const export_job *j, export_tensor *t)
{
    const char *const name = t->weights->name;
    if (j->options->averages && dsc_ckpt_reader_find(&j->reader, DSC_CKPT_AVERAGE, name, &t->from) != NULL)
        return;
    if (j->dtype != DSC_F32 || dsc_ckpt_reader_find(&j->reader, DSC_CKPT_MASTER, name, &t->from) == NULL)
        (void)dsc_ckpt_reader_find(&j->reader, DSC_CKPT_WEIGHTS, name, &t->from);
    DSC_ASSERT(t->from != NULL); /* the reader has matched files and manifest */
}

static bool packs(const export_job *j, const dsc_safetensors_entry *weights)
{
    return j->options->nf4 != DSC_NF4_NONE && dsc_ckpt_nf4_is(weights);
}

static dsc_status plan_packed(export_job *j, const dsc_safetensors_entry *weights, dsc_error *err)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 64];
    export_tensor *const first = &j->tensor[j->count];
    dsc_ckpt_nf4_weight w;
    int64_t bytes = 0;
    dsc_ckpt_nf4_parts(j->options->nf4, weights, j->dtype, j->transposed, &w);
    for (int32_t p = 0; p < w.part_count; p++) {
        export_tensor *t = &j->tensor[j->count++];
        t->weights = weights;
        t->desc = w.part[p].desc;
        t->bytes = w.part[p].bytes;
        bytes += t->bytes;
        snprintf(name, sizeof name, "%s%s", weights->name, w.part[p].suffix);
        DSC_TRY(dsc_alloc_strdup(j->alloc, DSC_TAG_IO, name, &t->name, err));
        find_source(j, t);
    }
    place(j, first, w.part_count, bytes);
    return DSC_OK;
}

static dsc_status plan_trained(export_job *j, const dsc_safetensors_entry *weights, dsc_error *err)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + sizeof ADAPTER_PREFIX], live[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    if (packs(j, weights))
        return plan_packed(j, weights, err);
    export_tensor *t = &j->tensor[j->count++];
    t->weights = weights;
    const char *const point = takes_adapters(j) && j->adapter.of_base ? strchr(weights->name, '.') : NULL;
    snprintf(live, sizeof live, "%s", point != NULL ? point + 1 : weights->name);
    if (takes_adapters(j) && dsc_module_is_vit(weights->name))
        dsc_module_vit_in_peft(weights->name, live, sizeof live);
    snprintf(name, sizeof name, "%s%s", takes_adapters(j) ? ADAPTER_PREFIX : "", live);
    DSC_TRY(dsc_alloc_strdup(j->alloc, DSC_TAG_IO, name, &t->name, err));
    find_source(j, t);
    t->desc = weights->desc;
    t->desc.dtype = j->dtype;
    t->bytes = weights->count * (int64_t)dsc_dtype_bytes(j->dtype);
    place(j, t, 1, t->bytes);
    return DSC_OK;
}

/* The carried tensors, whose hash is compared now: none of their bytes is changed. */
static dsc_status open_carried(export_job *j, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(j->carried == NULL);
    DSC_TRY(dsc_ckpt_file_path(path, j->step_dir, DSC_MODEL_CARRIED_FILE, err));
    if (takes_adapters(j) || dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_check_companions(j->io, j->alloc, j->step_dir, DSC_MODEL_CARRIED_FILE, err));
    return dsc_safetensors_open(&j->carried, j->io, j->alloc, path, err);
}

static dsc_status plan_carried(export_job *j, const dsc_safetensors_entry *entry, dsc_error *err)
{
    export_tensor *t = &j->tensor[j->count++];
    DSC_ASSERT(t->from == NULL);
    if (dsc_safetensors_find(j->reader.file[DSC_CKPT_MODEL], entry->name) != NULL ||
        entry->desc.dtype == DSC_DTYPE_COUNT)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(j->carried), "tensor \"%.200s\" is also a weight, or "
                        "in a dtype that is not written; use another checkpoint", entry->name);
    t->weights = entry;
    t->desc = entry->desc;
    t->bytes = entry->bytes;
    place(j, t, 1, t->bytes);
    return dsc_alloc_strdup(j->alloc, DSC_TAG_IO, entry->name, &t->name, err);
}

/* Buffers keep their dtypes: a state_dict has fp32 averages and int64 counts whatever its weights are in. */
static dsc_status plan_buffer(export_job *j, const dsc_safetensors_entry *entry, dsc_error *err)
{
    DSC_ASSERT(!takes_adapters(j));
    if (dsc_safetensors_is_average(j->reader.buffers.table, entry))
        return DSC_OK;
    export_tensor *t = &j->tensor[j->count++];
    const dsc_safetensors_entry *mean = dsc_safetensors_average(j->reader.buffers.table, entry);
    if (j->carried != NULL && dsc_safetensors_find(j->carried, entry->name) != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(j->carried),
                        "tensor \"%.200s\" is also a buffer; use another checkpoint", entry->name);
    t->weights = entry;
    t->desc = entry->desc;
    t->bytes = entry->bytes;
    t->buffer = dsc_ckpt_buffer_file_data(&j->reader.buffers, j->options->averages && mean != NULL ? mean : entry);
    place(j, t, 1, t->bytes);
    return dsc_alloc_strdup(j->alloc, DSC_TAG_IO, entry->name, &t->name, err);
}

/* In order of names, the carried ones and buffers last; a shard is full when the next tensor would make it too large.
 */
static dsc_status plan(export_job *j, dsc_error *err)
{
    const dsc_safetensors *model = j->reader.file[DSC_CKPT_MODEL];
    const dsc_dtype usual = takes_adapters(j) ? DSC_F32 : j->reader.manifest.state.compute_dtype;
    DSC_TRY(open_carried(j, err));
    const int64_t carried = j->carried != NULL ? dsc_safetensors_count(j->carried) : 0;
    const int64_t parts = j->options->nf4 != DSC_NF4_NONE ? DSC_CKPT_NF4_PARTS_MAX : 1;
    const int64_t buffers = takes_adapters(j) ? 0 : dsc_ckpt_buffer_file_count(&j->reader.buffers);
    const int64_t most = dsc_safetensors_count(model) * parts + carried + buffers;
    j->dtype = j->options->dtype != DSC_DTYPE_COUNT ? j->options->dtype : usual;
    DSC_TRY(dsc_alloc_zeroed(j->alloc, DSC_TAG_IO, most, sizeof *j->tensor, &j->tensor, err));
    for (int64_t i = 0; i < dsc_safetensors_count(model); i++)
        if (takes(j, dsc_safetensors_at(model, i)->name))
            DSC_TRY(plan_trained(j, dsc_safetensors_at(model, i), err));
    for (int64_t i = 0; i < carried; i++)
        DSC_TRY(plan_carried(j, dsc_safetensors_at(j->carried, i), err));
    for (int64_t i = 0; i < buffers; i++)
        DSC_TRY(plan_buffer(j, dsc_ckpt_buffer_file_at(&j->reader.buffers, i), err));
    j->shard_count++;
    DSC_ASSERT(j->count <= most);
    return DSC_OK;
}

/* ---- writing ---- */

/* Values that are finite and not in the dtype of the export. */
static dsc_status check_range(const export_job *j, const export_tensor *t, const dsc_ckpt_block *block,
                              const void *from, dsc_dtype from_dtype, dsc_error *err)
{
    const int64_t i = dsc_first_overflow(from, from_dtype, j->dtype, block->count);
    DSC_ASSERT(i < block->count);
    if (i < 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir, "tensor \"%.200s\" has the value %g at element %lld, which is "
                    "infinite in %s (at most %g); export with --dtype %s", t->weights->name,
                    (double)dsc_get(from, i, from_dtype), (long long)(block->first + i), dsc_dtype_text(j->dtype),
                    dsc_dtype_largest(j->dtype), j->dtype == DSC_F16 ? "bf16 or fp32" : "fp32");
}

/* *to is the block, which lies in the buffer, in the dtype of the export. */
static dsc_status convert(export_job *j, const export_tensor *t, const dsc_ckpt_block *block,
                          const dsc_ckpt_merge_state *merge, const void **to, dsc_error *err)
{
    void *out = j->buffer + DSC_CKPT_BLOCK_BYTES;
    const dsc_dtype from = t->from->dtype;
    const int64_t count = block->count;
    DSC_ASSERT(count > 0);
    DSC_ASSERT(count * 4 <= 2 * DSC_CKPT_BLOCK_BYTES); /* fits behind the block as it was saved */
    if (merge->a != NULL) {
        float *x = out;
        for (int64_t i = 0; i < count; i++)
            x[i] = dsc_get(j->buffer, i, from);
        dsc_ckpt_merge_add(merge, block->first, count, x);
        DSC_TRY(check_range(j, t, block, x, DSC_F32, err));
        for (int64_t i = 0; i < count; i++) /* in place: element i is read before its bytes are written */
            dsc_put(out, i, j->dtype, x[i]);
        *to = out;
        return DSC_OK;
    }
    DSC_TRY(check_range(j, t, block, j->buffer, from, err));
    *to = from == j->dtype ? j->buffer : out;
    for (int64_t i = 0; from != j->dtype && i < count; i++)
        dsc_put(out, i, j->dtype, dsc_get(j->buffer, i, from));
    return DSC_OK;
}

static dsc_status write_blocks(export_job *j, const export_tensor *t, const dsc_ckpt_merge_state *merge, dsc_file *file,
                               int64_t offset, dsc_error *err)
{
    const int64_t each = (int64_t)dsc_dtype_bytes(j->dtype);
    const dsc_ckpt_block *block = j->reader.manifest.block + t->from->first_block;
    for (int64_t b = 0; b < t->from->block_count; b++, block++) {
        DSC_ASSERT(block->first + block->count <= t->from->elements);
        DSC_TRY(dsc_ckpt_reader_block(&j->reader, block, j->buffer, err));
        const void *data = NULL;
        DSC_TRY(convert(j, t, block, merge, &data, err));
        DSC_TRY(dsc_io_write(j->io, file, data, block->count * each, offset + block->first * each, err));
    }
    return DSC_OK;
}

/* w->x <- all values, rounded to the dtype of the export. */
static dsc_status read_values(export_job *j, const export_tensor *t, const dsc_ckpt_merge_state *merge,
                              dsc_ckpt_nf4_weight *w, dsc_error *err)
{
    const dsc_ckpt_block *block = j->reader.manifest.block + t->from->first_block;
    for (int64_t b = 0; b < t->from->block_count; b++, block++) {
        DSC_ASSERT(block->first + block->count <= t->weights->count);
        DSC_TRY(dsc_ckpt_reader_block(&j->reader, block, j->buffer, err));
        const void *data = NULL;
        DSC_TRY(convert(j, t, block, merge, &data, err));
        for (int64_t i = 0; i < block->count; i++) {
            const float value = dsc_get(data, i, j->dtype);
            w->x[dsc_ckpt_nf4_place(w, block->first + i)] = value;
            if (!isfinite(value))
                return DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir,
                                "tensor \"%.200s\" has the value %g at element %lld, "
                                "which 4 bits cannot hold; export without --nf4",
                                t->weights->name, (double)value, (long long)(block->first + i));
        }
    }
    return DSC_OK;
}

/* One weight at a time is in memory. */
static dsc_status write_packed(export_job *j, const export_tensor *t, const dsc_ckpt_merge_state *merge, dsc_file *file,
                               const int64_t *offset, dsc_error *err)
{
    dsc_ckpt_nf4_weight w;
    dsc_ckpt_nf4_parts(j->options->nf4, t->weights, j->dtype, j->transposed, &w);
    DSC_ASSERT(w.part_count == t->parts);
    dsc_status status = dsc_ckpt_nf4_open(&w, j->alloc, err);
    if (status == DSC_OK)
        status = read_values(j, t, merge, &w, err);
    if (status == DSC_OK)
        dsc_ckpt_nf4_pack(&w);
    for (int32_t p = 0; p < w.part_count && status == DSC_OK; p++)
        status = dsc_io_write(j->io, file, w.part[p].data, w.part[p].bytes, offset[p], err);
    dsc_ckpt_nf4_close(&w, j->alloc);
    return status;
}

static dsc_status copy_tensor(export_job *j, const export_tensor *t, dsc_file *file, int64_t offset, dsc_error *err)
{
    DSC_ASSERT(j->carried != NULL);
    for (int64_t at = 0; at < t->bytes; at += DSC_CKPT_BLOCK_BYTES) {
        const int64_t bytes = dsc_min_i64(DSC_CKPT_BLOCK_BYTES, t->bytes - at);
        DSC_TRY(dsc_safetensors_read_bytes(j->carried, t->weights, at, bytes, j->buffer, err));
        DSC_TRY(dsc_io_write(j->io, file, j->buffer, bytes, offset + at, err));
    }
    return DSC_OK;
}

/* offset[t->parts] in the file. */
static dsc_status write_tensor(export_job *j, const export_tensor *t, dsc_file *file, const int64_t *offset,
                               dsc_error *err)
{
    if (t->buffer != NULL)
        return dsc_io_write(j->io, file, t->buffer, t->bytes, *offset, err);
    if (t->from == NULL)
        return copy_tensor(j, t, file, *offset, err);
    dsc_ckpt_merge_state merge = { 0 };
    dsc_status status = DSC_OK;
    DSC_ASSERT(t->shard < j->shard_count);
    if (j->adapted && j->options->merge)
        status = dsc_ckpt_merge_open(&merge, &j->reader, &j->adapter, t->weights, j->buffer, err);
    if (status == DSC_OK)
        status = packs(j, t->weights) ? write_packed(j, t, &merge, file, offset, err)
                                      : write_blocks(j, t, &merge, file, *offset, err);
    dsc_ckpt_merge_close(&merge, j->alloc);
    return status;
}

static dsc_status write_planned(export_job *j, const export_tensor *first, const dsc_safetensors_plan *plan_of_file,
                                dsc_file *file, dsc_error *err)
{
    DSC_ASSERT(plan_of_file->count > 0);
    DSC_TRY(dsc_safetensors_write_header(plan_of_file, j->io, file, err));
    for (int64_t i = 0; i < plan_of_file->count; i += first[i].parts)
        DSC_TRY(write_tensor(j, &first[i], file, &plan_of_file->offset[i], err));
    return dsc_io_fsync(j->io, file, err);
}

/* Tensors that this one is in the file: the manifest has weights in parts under one name with '*'. 0: it is one. */
static int64_t parts_of(const export_tensor *t)
{
    DSC_ASSERT(t->name != NULL);
    return t->from != NULL && strchr(t->name, '*') != NULL && t->desc.dim_count > 1 ? t->desc.dim[0] : 0;
}

/* A shard's tensors are [first, first + count). */
static dsc_status write_shard(export_job *j, int64_t first, int64_t count, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], name[FILE_NAME_BYTES];
    const dsc_safetensors_pair metadata = { "format", "pt" };
    dsc_safetensors_spec *specs = NULL;
    dsc_safetensors_plan plan_of_file = { 0 };
    dsc_file file = DSC_FILE_INIT;
    DSC_ASSERT(count > 0);
    DSC_ASSERT(first + count <= j->count);
    file_name(j, j->tensor[first].shard, name);
    DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, name, err));
    DSC_TRY(dsc_alloc_zeroed(j->alloc, DSC_TAG_IO, count, sizeof *specs + sizeof(bool), &specs, err));
    bool *const parted = (bool *)(specs + count);
    for (int64_t i = 0; i < count; i++) {
        specs[i] = (dsc_safetensors_spec) { j->tensor[first + i].name, j->tensor[first + i].desc };
        parted[i] = parts_of(&j->tensor[first + i]) > 0;
    }
    dsc_status status = dsc_safetensors_plan_parts(&plan_of_file, j->alloc, specs, parted, count, &metadata, 1, err);
    dsc_alloc_free(j->alloc, specs);
    DSC_TRY(status);
    status = dsc_io_open(j->io, path, DSC_IO_CREATE_NEW, &file, err);
    if (status == DSC_OK)
        status = write_planned(j, &j->tensor[first], &plan_of_file, &file, err);
    const dsc_status closed = dsc_io_close(j->io, &file, status == DSC_OK ? err : NULL);
    dsc_safetensors_plan_close(&plan_of_file);
    return status != DSC_OK ? status : closed;
}

static dsc_status write_shards(export_job *j, dsc_error *err)
{
    for (int64_t first = 0, end; first < j->count; first = end) {
        for (end = first; end < j->count && j->tensor[end].shard == j->tensor[first].shard;)
            end++;
        DSC_ASSERT(end > first);
        DSC_TRY(write_shard(j, first, end - first, err));
    }
    return DSC_OK;
}

/* ---- the small files ---- */

static dsc_status write_small(const export_job *j, const char *name, const char *text, int64_t bytes, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(bytes >= 0);
    DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, name, err));
    return dsc_io_write_all_atomic(j->io, path, text, bytes, err);
}

/* {"metadata": {"total_size": bytes}, "weight_map": {name: file}} */
static dsc_status write_index(const export_job *j, dsc_error *err)
{
    const int64_t line = 6 * DSC_SAFETENSORS_NAME_BYTES_MAX + FILE_NAME_BYTES + 16;
    int64_t total = 0, capacity = 256, used;
    char *text = NULL, name[FILE_NAME_BYTES];
    if (j->shard_count == 1)
        return DSC_OK;
    for (int64_t i = 0; i < j->count; i++) {
        const int64_t names = dsc_max_i64(1, parts_of(&j->tensor[i]));
        total += j->tensor[i].bytes;
        capacity += names * (6 * (int64_t)strlen(j->tensor[i].name) + FILE_NAME_BYTES + 48);
    }
    DSC_TRY(dsc_alloc_zeroed(j->alloc, DSC_TAG_IO, capacity + line, 1, &text, err));
    used = snprintf(text, (size_t)capacity, "{\"metadata\": {\"total_size\": %" PRId64 "},\n \"weight_map\": {", total);
    for (int64_t i = 0; i < j->count; i++) {
        file_name(j, j->tensor[i].shard, name);
        for (int64_t part = 0; part < dsc_max_i64(1, parts_of(&j->tensor[i])); part++) {
            char own[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
            const bool parted = parts_of(&j->tensor[i]) > 0 &&
                                dsc_safetensors_part_name(j->tensor[i].name, part, own);
            used += snprintf(text + used, 8, "%s\n  ", i + part > 0 ? "," : "");
            used += (int64_t)dsc_json_quote(text + used, (size_t)line, parted ? own : j->tensor[i].name);
            used += snprintf(text + used, FILE_NAME_BYTES + 8, ": \"%s\"", name);
        }
    }
    used += snprintf(text + used, 8, "\n }}\n");
    DSC_ASSERT(used < capacity + line);
    const dsc_status status = write_small(j, INDEX_FILE, text, used, err);
    dsc_alloc_free(j->alloc, text);
    return status;
}

static dsc_status write_adapter_config(const export_job *j, dsc_error *err)
{
    char *text = NULL;
    DSC_ASSERT(j->adapter_text != NULL);
    char base[DSC_SAFETENSORS_NAME_BYTES_MAX + 1] = "";
    dsc_ckpt_peft peft = { 0 };
    for (int64_t i = 0; i < dsc_safetensors_count(j->reader.file[DSC_CKPT_MODEL]); i++) {
        const char *const name = dsc_safetensors_at(j->reader.file[DSC_CKPT_MODEL], i)->name;
        const char *const point = j->adapter.of_base ? strchr(name, '.') : NULL;
        peft.vit |= dsc_module_is_vit(name);
        if (point != NULL)
            snprintf(base, sizeof base, "%.*s", (int)(point + 1 - name), name);
    }
    peft.base = base[0] != 0 ? base : NULL;
    if (j->adapter.table_count + j->adapter.expert_count == 0 && !peft.vit && peft.base == NULL)
        return write_small(j, "adapter_config.json", j->adapter_text, j->adapter_bytes, err);
    dsc_status status =
        dsc_ckpt_adapter_for_peft(j->alloc, j->step_dir, j->adapter_text, j->adapter_bytes, &peft, &text, err);
    if (status == DSC_OK)
        status = write_small(j, "adapter_config.json", text, (int64_t)strlen(text), err);
    dsc_alloc_free(j->alloc, text);
    return status;
}

static dsc_status write_config(const export_job *j, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], *text = NULL;
    int64_t bytes;
    DSC_ASSERT(!takes_adapters(j) || j->adapter_text != NULL);
    if (takes_adapters(j))
        return write_adapter_config(j, err);
    if (j->reader.manifest.file[DSC_CKPT_CONFIG].bytes < 0)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_file_path(path, j->step_dir, dsc_ckpt_file_name[DSC_CKPT_CONFIG], err));
    DSC_TRY(dsc_io_read_all(j->io, j->alloc, path, DSC_CKPT_SMALL_BYTES_MAX, &text, &bytes, err));
    char *changed = NULL;
    dsc_status status = dsc_ckpt_config_with_dtype(j->alloc, text, bytes, j->dtype, &changed, &bytes, err);
    if (status == DSC_OK && j->options->nf4 != DSC_NF4_NONE) {
        dsc_alloc_free(j->alloc, text);
        text = changed;
        changed = NULL;
        status = dsc_ckpt_nf4_config(j->alloc, text, bytes, j->options->nf4, j->dtype, &changed, &bytes, err);
    }
    if (status == DSC_OK)
        status = write_small(j, dsc_ckpt_file_name[DSC_CKPT_CONFIG], changed, bytes, err);
    dsc_alloc_free(j->alloc, changed);
    dsc_alloc_free(j->alloc, text);
    return status;
}

/* ---- the whole ---- */

/* A run that kept its base in 4 bits has saved the adapters without the weights that they belong to. */
static dsc_status check_bases(const export_job *j, dsc_error *err)
{
    const dsc_safetensors *model = j->reader.file[DSC_CKPT_MODEL];
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 16];
    DSC_ASSERT(j->adapted);
    for (int64_t i = 0; i < dsc_safetensors_count(model) && j->options->merge; i++) {
        const char *adapter = dsc_safetensors_at(model, i)->name, *end = strstr(adapter, ".lora_A.weight");
        if (end == NULL)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(end - adapter), adapter);
        if (!dsc_ckpt_adapter_has_base(&j->adapter, model, name))
            return DSC_FAIL(
                err, DSC_ERR_INPUT, j->step_dir,
                "has adapters without \"%.200s.weight\": the run kept its base in 4 bits (dsc.quantize_base); "
                "export without --merge, and merge with peft's merge_and_unload",
                name);
    }
    return DSC_OK;
}

static dsc_status read_adapter(export_job *j, dsc_error *err)
{
    DSC_ASSERT(j->adapter_text == NULL);
    j->adapted = j->reader.manifest.file[DSC_CKPT_ADAPTER].bytes >= 0;
    if (j->adapted) {
        DSC_TRY(
            dsc_ckpt_adapter_read(j->io, j->alloc, j->step_dir, &j->adapter_text, &j->adapter_bytes, &j->adapter, err));
        return check_bases(j, err);
    }
    return !j->options->merge ? DSC_OK
                              : DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir, "has no adapters that could be merged");
}

static dsc_status check_nf4(export_job *j, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], *text = NULL;
    int64_t bytes;
    DSC_ASSERT(j->options != NULL);
    if (j->options->nf4 == DSC_NF4_NONE)
        return DSC_OK;
    if (takes_adapters(j))
        return DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir,
                        "has adapters, which are not written in 4 bits; export with "
                        "--merge, or without --nf4");
    if (j->reader.manifest.file[DSC_CKPT_CONFIG].bytes < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir,
                        "has no config.json, which weights in 4 bits need; export "
                        "without --nf4");
    DSC_TRY(dsc_ckpt_file_path(path, j->step_dir, dsc_ckpt_file_name[DSC_CKPT_CONFIG], err));
    DSC_TRY(dsc_io_read_all(j->io, j->alloc, path, DSC_CKPT_SMALL_BYTES_MAX, &text, &bytes, err));
    const dsc_status status = dsc_ckpt_nf4_check_config(j->alloc, path, text, bytes, &j->transposed, err);
    dsc_alloc_free(j->alloc, text);
    return status;
}

static dsc_status export_all(export_job *j, dsc_error *err)
{
    DSC_TRY(plan(j, err));
    DSC_ASSERT(j->shard_count >= 1);
    DSC_TRY(dsc_alloc_zeroed(j->alloc, DSC_TAG_IO, 3 * DSC_CKPT_BLOCK_BYTES, 1, &j->buffer, err));
    DSC_TRY(write_shards(j, err));
    DSC_TRY(write_index(j, err));
    DSC_TRY(write_config(j, err));
    const dsc_ckpt_companions companions = { .model = j->step_dir };
    DSC_TRY(dsc_ckpt_copy_companions(j->io, &companions, j->tmp_dir, NULL, err));
    if (!takes_adapters(j) && j->reader.manifest.file[DSC_CKPT_CONFIG].bytes >= 0)
        DSC_TRY(dsc_ckpt_export_vectors(j->io, j->alloc, j->step_dir, j->tmp_dir, err));
    return dsc_io_fsync_dir(j->io, j->tmp_dir, err);
}

dsc_status dsc_ckpt_make_out(const dsc_io *io, const char *out, char tmp_dir[DSC_CKPT_PATH_BYTES], dsc_error *err)
{
    size_t bytes = strlen(out);
    while (bytes > 1 && out[bytes - 1] == '/')
        bytes--;
    if (snprintf(tmp_dir, DSC_CKPT_PATH_BYTES, "%.*s.tmp", (int)bytes, out) >= DSC_CKPT_PATH_BYTES)
        return DSC_FAIL(err, DSC_ERR_INPUT, out, "the path is too long");
    if (dsc_io_kind(out) != DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, out, "exists already; nothing is replaced");
    if (dsc_io_kind(tmp_dir) != DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, tmp_dir, "is in the way (a command that was cut short?); move it away");
    return dsc_io_mkdir(io, tmp_dir, err);
}

static dsc_status check_averages(const export_job *j, dsc_error *err)
{
    DSC_ASSERT(j->reader.file[DSC_CKPT_MODEL] != NULL);
    if (j->options->averages && !j->reader.manifest.state.averages)
        return DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir,
                        "the checkpoint has no averages of weights; a run with the section dsc.ema keeps them");
    if (j->options->averages && j->options->merge && j->adapted)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, j->step_dir,
                        "averages of adapters are not merged; export them as adapters, without --merge");
    return DSC_OK;
}

dsc_status dsc_ckpt_export(const dsc_io *io, dsc_alloc *alloc, const char *step_dir,
                           const dsc_ckpt_export_options *options, dsc_error *err)
{
    export_job j = { .io = io, .alloc = alloc, .options = options, .step_dir = step_dir };
    DSC_ASSERT(options->shard_bytes > 0);
    DSC_TRY(dsc_ckpt_reader_open(io, alloc, step_dir, &j.reader, err));
    dsc_status status = dsc_ckpt_refuse_part(&j.reader, step_dir, err);
    if (status == DSC_OK)
        status = read_adapter(&j, err);
    if (status == DSC_OK)
        status = check_averages(&j, err);
    if (status == DSC_OK)
        status = check_nf4(&j, err);
    if (status == DSC_OK)
        status = dsc_ckpt_make_out(io, options->out_dir, j.tmp_dir, err);
    const bool folder_created = status == DSC_OK;
    if (status == DSC_OK)
        status = export_all(&j, err);
    if (status == DSC_OK)
        status = dsc_io_rename(io, j.tmp_dir, options->out_dir, err);
    if (status != DSC_OK && folder_created)
        (void)!dsc_io_remove_dir(io, j.tmp_dir, NULL); /* the first failure is the one to report */
    for (int64_t i = 0; i < j.count; i++)
        dsc_alloc_free(alloc, j.tensor[i].name);
    dsc_alloc_free(alloc, j.adapter_text);
    dsc_alloc_free(alloc, j.buffer);
    dsc_alloc_free(alloc, j.tensor);
    dsc_safetensors_close(&j.carried);
    dsc_ckpt_reader_close(&j.reader);
    return status;
}
