/* buffers.c - see buffers.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/buffers.h"

#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/manifest.h"

#define ENTRY_BYTES 160 /* of the header's text, beside a name */
enum { AVERAGE_BYTES = sizeof DSC_SAFETENSORS_AVERAGE - 1 };

static bool counts_steps(const dsc_buffer_spec *spec) { return spec->kind == DSC_BUFFER_STEPS; }

static int64_t bytes_of(const dsc_buffer_spec *spec)
{
    DSC_ASSERT(spec->count >= 1); /* the model's table was checked */
    return counts_steps(spec) ? (int64_t)sizeof(int64_t) : spec->count * (int64_t)sizeof(float);
}

int64_t dsc_ckpt_buffers_bytes(const dsc_ckpt_buffers *buffers)
{
    int64_t bytes = 256;
    DSC_ASSERT(buffers->count >= 0);
    for (int32_t b = 0; b < buffers->count; b++) { /* a byte of a name may be escaped to six */
        const dsc_buffer_spec *spec = buffers->buffer[b].spec;
        const int64_t each = ENTRY_BYTES + 6 * (int64_t)(AVERAGE_BYTES + strlen(spec->name)) + bytes_of(spec);
        bytes += buffers->buffer[b].average != NULL ? 2 * each : each;
    }
    return bytes;
}

/* ---- save ---- */

static dsc_tensor_desc average_desc(const dsc_buffer_spec *spec)
{
    DSC_ASSERT(!counts_steps(spec));
    return spec->row ? (dsc_tensor_desc) { .dtype = DSC_F32, .dim_count = 2, .dim = { 1, spec->count } }
                     : (dsc_tensor_desc) { .dtype = DSC_F32, .dim_count = 1, .dim = { spec->count } };
}

/* Tensors of the file: buffers, and behind them the averages. */
typedef struct entry_list {
    dsc_safetensors_spec *spec; /* [count] */
    const void **data;          /* [count] */
    char *names;                /* of averages, one after the other */
    int32_t count;
} entry_list;

static void add_entry(entry_list *list, const char *name, const dsc_buffer_spec *spec, const void *data)
{
    DSC_ASSERT(data != NULL);
    list->spec[list->count] = (dsc_safetensors_spec) { .name = name, .desc = { .dtype = DSC_I64, .dim_count = 0 } };
    if (!counts_steps(spec))
        list->spec[list->count].desc = average_desc(spec);
    list->data[list->count++] = data;
}

static bool writes_average(const dsc_ckpt_buffers *buffers, int32_t b)
{
    DSC_ASSERT(b >= 0 && b < buffers->count);
    return buffers->averages && buffers->buffer[b].average != NULL;
}

static dsc_status list_entries(dsc_alloc *alloc, const dsc_ckpt_buffers *buffers, entry_list *out, dsc_error *err)
{
    const int64_t most = 2 * (int64_t)buffers->count;
    int64_t bytes = 0, used = 0;
    DSC_ASSERT(buffers->count > 0);
    for (int32_t b = 0; b < buffers->count; b++)
        bytes += AVERAGE_BYTES + (int64_t)strlen(buffers->buffer[b].spec->name) + 1;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, most, sizeof *out->spec, &out->spec, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, most, sizeof *out->data, &out->data, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, bytes, 1, &out->names, err));
    for (int32_t b = 0; b < buffers->count; b++)
        add_entry(out, buffers->buffer[b].spec->name, buffers->buffer[b].spec, buffers->buffer[b].value);
    for (int32_t b = 0; b < buffers->count; b++) {
        if (!writes_average(buffers, b))
            continue;
        char *const name = out->names + used;
        used += 1 + snprintf(name, (size_t)(bytes - used), DSC_SAFETENSORS_AVERAGE "%s", buffers->buffer[b].spec->name);
        DSC_ASSERT(used <= bytes);
        add_entry(out, name, buffers->buffer[b].spec, buffers->buffer[b].average);
    }
    return DSC_OK;
}

static dsc_status fill_text(dsc_alloc *alloc, const entry_list *list, const dsc_safetensors_plan *plan, char **text,
                            dsc_error *err)
{
    DSC_ASSERT(plan->count == list->count);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, plan->file_bytes, 1, text, err));
    memcpy(*text, plan->header, (size_t)plan->header_bytes);
    for (int32_t i = 0; i < list->count; i++) {
        const dsc_tensor_desc *desc = &list->spec[i].desc;
        const int64_t elements = desc->dim_count > 0 ? desc->dim[desc->dim_count - 1] : 1;
        memcpy(*text + plan->offset[i], list->data[i], (size_t)(elements * (int64_t)dsc_dtype_bytes(desc->dtype)));
    }
    return DSC_OK;
}

dsc_status dsc_ckpt_buffers_text(dsc_alloc *alloc, const dsc_ckpt_buffers *buffers, char **text, int64_t *bytes,
                                 dsc_error *err)
{
    const dsc_safetensors_pair metadata = { "format", "pt" };
    dsc_safetensors_plan plan = { 0 };
    entry_list list = { 0 };
    *text = NULL;
    *bytes = 0;
    DSC_ASSERT(buffers->count >= 0);
    if (buffers->count == 0)
        return DSC_OK;
    dsc_status status = list_entries(alloc, buffers, &list, err);
    if (status == DSC_OK)
        status = dsc_safetensors_plan_open(&plan, alloc, list.spec, list.count, &metadata, 1, err);
    if (status == DSC_OK)
        status = fill_text(alloc, &list, &plan, text, err);
    *bytes = plan.file_bytes;
    DSC_ASSERT(status != DSC_OK || *bytes <= dsc_ckpt_buffers_bytes(buffers));
    dsc_safetensors_plan_close(&plan);
    dsc_alloc_free(alloc, list.names);
    dsc_alloc_free(alloc, list.data);
    dsc_alloc_free(alloc, list.spec);
    return status;
}

/* ---- an open checkpoint ---- */

int64_t dsc_ckpt_buffer_file_count(const dsc_ckpt_buffer_file *file)
{
    DSC_ASSERT((file->text == NULL) == (file->table == NULL));
    return file->table != NULL ? dsc_safetensors_count(file->table) : 0;
}

const dsc_safetensors_entry *dsc_ckpt_buffer_file_at(const dsc_ckpt_buffer_file *file, int64_t i)
{
    DSC_ASSERT(i >= 0 && i < dsc_ckpt_buffer_file_count(file));
    return dsc_safetensors_at(file->table, i);
}

const void *dsc_ckpt_buffer_file_data(const dsc_ckpt_buffer_file *file, const dsc_safetensors_entry *entry)
{
    DSC_ASSERT(entry->offset >= 0 && entry->offset + entry->bytes <= file->bytes);
    return file->text + entry->offset;
}

/* Offsets of a file made elsewhere need not be multiples of 8. */
static int64_t steps_of(const dsc_ckpt_buffer_file *file, const dsc_safetensors_entry *entry)
{
    int64_t steps = 0;
    DSC_ASSERT(entry->bytes == (int64_t)sizeof steps);
    memcpy(&steps, dsc_ckpt_buffer_file_data(file, entry), sizeof steps);
    return steps;
}

static dsc_status check_entries(const dsc_ckpt_buffer_file *file, const char *path, dsc_error *err)
{
    int64_t elements = 0;
    DSC_ASSERT(file->table != NULL);
    for (int64_t i = 0; i < dsc_safetensors_count(file->table); i++) {
        const dsc_safetensors_entry *e = dsc_safetensors_at(file->table, i);
        const bool row = e->desc.dim_count == 2 && e->desc.dim[0] == 1;
        const bool average = e->desc.dtype == DSC_F32 && (e->desc.dim_count == 1 || row) && e->count >= 1;
        const bool steps = e->desc.dtype == DSC_I64 && e->desc.dim_count == 0;
        const dsc_safetensors_entry *mean = dsc_safetensors_average(file->table, e);
        elements += dsc_safetensors_is_average(file->table, e) ? 0 : e->count; /* as many as its buffer has */
        if (!average && !steps)
            return DSC_FAIL(
                err, DSC_ERR_INPUT, path,
                "tensor \"%.200s\" is not a buffer: expected F32 of one dimension or one row, or I64 without any; use "
                "another checkpoint",
                e->name);
        if (steps && steps_of(file, e) < 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "buffer \"%.200s\" counts %lld steps; use another checkpoint",
                            e->name, (long long)steps_of(file, e));
        if (mean != NULL && (mean->desc.dtype != DSC_F32 || steps || mean->count != e->count))
            return DSC_FAIL(err, DSC_ERR_INPUT, path,
                            "tensor \"%.200s\" has another size or dtype than its buffer; use another checkpoint",
                            mean->name);
        if (elements > DSC_BUFFERS_ELEMENTS_MAX + dsc_safetensors_count(file->table))
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "has more than %lld elements; use another checkpoint",
                            (long long)DSC_BUFFERS_ELEMENTS_MAX);
    }
    return DSC_OK;
}

static dsc_status open_file(dsc_ckpt_buffer_file *out, const dsc_io *io, dsc_alloc *alloc, const char *path,
                            int64_t bytes, const uint8_t sha256[32], dsc_error *err)
{
    uint8_t digest[32];
    DSC_ASSERT(bytes >= 0 && bytes <= DSC_CKPT_SMALL_BYTES_MAX); /* the manifest was checked */
    DSC_TRY(dsc_io_read_all(io, alloc, path, DSC_CKPT_SMALL_BYTES_MAX, &out->text, &out->bytes, err));
    dsc_ckpt_sha256(out->text, out->bytes, digest);
    if (out->bytes != bytes || memcmp(digest, sha256, sizeof digest) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "is damaged or was edited: its SHA-256 differs from the manifest's; use another checkpoint");
    DSC_TRY(dsc_safetensors_parse(&out->table, alloc, path, out->text, out->bytes, out->bytes, err));
    return check_entries(out, path, err);
}

dsc_status dsc_ckpt_buffer_file_open(dsc_ckpt_buffer_file *out, const dsc_io *io, dsc_alloc *alloc, const char *path,
                                     int64_t bytes, const uint8_t sha256[32], dsc_error *err)
{
    *out = (dsc_ckpt_buffer_file) { 0 };
    const dsc_status status = open_file(out, io, alloc, path, bytes, sha256, err);
    DSC_ASSERT(status != DSC_OK || out->table != NULL);
    if (status != DSC_OK)
        dsc_ckpt_buffer_file_close(out, alloc);
    return status;
}

void dsc_ckpt_buffer_file_close(dsc_ckpt_buffer_file *file, dsc_alloc *alloc)
{
    dsc_safetensors_close(&file->table);
    dsc_alloc_free(alloc, file->text);
    *file = (dsc_ckpt_buffer_file) { 0 };
}

/* ---- load ---- */

dsc_status dsc_ckpt_buffer_file_match(const dsc_ckpt_buffer_file *file, const dsc_ckpt_buffers *buffers,
                                      const char *where, dsc_error *err)
{
    int64_t there = 0;
    DSC_ASSERT(buffers->count >= 0);
    for (int64_t i = 0; i < dsc_ckpt_buffer_file_count(file); i++)
        there += !dsc_safetensors_is_average(file->table, dsc_ckpt_buffer_file_at(file, i));
    for (int32_t b = 0; b < buffers->count; b++) {
        const dsc_buffer_spec *spec = buffers->buffer[b].spec;
        const dsc_safetensors_entry *e = file->table != NULL ? dsc_safetensors_find(file->table, spec->name) : NULL;
        if (e == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, where,
                            "the checkpoint has no buffer \"%.200s\", which the model needs; begin from the weights: "
                            "--model DIR/step-N",
                            spec->name);
        if ((e->desc.dtype == DSC_I64) != counts_steps(spec) || e->count != spec->count)
            return DSC_FAIL(err, DSC_ERR_INPUT, where,
                            "buffer \"%.200s\" has %lld elements in %s; the model's has %lld in %s", spec->name,
                            (long long)e->count, e->dtype_text, (long long)spec->count,
                            counts_steps(spec) ? "I64" : "F32");
    }
    if (there == buffers->count)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, where, "%lld buffers; the model has %d", (long long)there, (int)buffers->count);
}

void dsc_ckpt_buffer_file_load(const dsc_ckpt_buffer_file *file, const dsc_ckpt_buffers *buffers)
{
    DSC_ASSERT(dsc_ckpt_buffer_file_count(file) >= buffers->count);
    for (int32_t b = 0; b < buffers->count; b++) {
        const dsc_ckpt_buffer *buffer = &buffers->buffer[b];
        const dsc_safetensors_entry *e = dsc_safetensors_find(file->table, buffer->spec->name);
        const dsc_safetensors_entry *mean = dsc_safetensors_average(file->table, e);
        DSC_ASSERT(e->bytes == bytes_of(buffer->spec));
        memcpy(buffer->value, dsc_ckpt_buffer_file_data(file, e), (size_t)e->bytes);
        if (buffer->average != NULL)
            memcpy(buffer->average, dsc_ckpt_buffer_file_data(file, mean != NULL ? mean : e), (size_t)e->bytes);
    }
}

/* name, NUL, number of dimensions (uint32), each dimension (uint64), values; all little-endian. */
void dsc_ckpt_buffer_file_hash(const dsc_ckpt_buffer_file *file, dsc_sha256 *sha)
{
    for (int64_t i = 0; i < dsc_ckpt_buffer_file_count(file); i++) {
        const dsc_safetensors_entry *e = dsc_ckpt_buffer_file_at(file, i);
        const uint32_t dims = (uint32_t)e->desc.dim_count;
        DSC_ASSERT(dims <= 2);
        dsc_sha256_update(sha, e->name, strlen(e->name) + 1);
        dsc_sha256_update(sha, &dims, sizeof dims);
        for (uint32_t d = 0; d < dims; d++)
            dsc_sha256_update(sha, &e->desc.dim[d], 8);
        dsc_sha256_update(sha, dsc_ckpt_buffer_file_data(file, e), (size_t)e->bytes);
    }
}
