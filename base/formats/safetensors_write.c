/* safetensors_write.c - where the tensors of a file lie, and its header. SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/formats/safetensors.h"

#define LENGTH_BYTES 8
#define HEADER_ALIGN 64 /* the first tensor's alignment, for whoever maps the file */

static const char *dtype_text(dsc_dtype dtype)
{
    switch (dtype) {
    case DSC_F32: return "F32";
    case DSC_BF16: return "BF16";
    case DSC_F16: return "F16";
    case DSC_F64: return "F64";
    case DSC_I32: return "I32";
    case DSC_I64: return "I64";
    case DSC_U8: return "U8";
    default: return NULL;
    }
}

/* Appends to text[bytes] what fits and counts all of it, so that one pass measures and the next one writes. */
typedef struct writer {
    char *text;
    size_t bytes, used;
} writer;

static void put(writer *w, const char *fmt, ...) DSC_PRINTF(2, 3);

static void put(writer *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(w->used < w->bytes ? w->text + w->used : NULL, w->used < w->bytes ? w->bytes - w->used : 0,
                            fmt, args);
    va_end(args);
    DSC_ASSERT(n >= 0);
    w->used += (size_t)n;
}

static void put_quoted(writer *w, const char *text)
{
    w->used += dsc_json_quote(w->used < w->bytes ? w->text + w->used : NULL,
                              w->used < w->bytes ? w->bytes - w->used : 0, text);
}

static int compare_specs(const void *a, const void *b)
{
    const dsc_safetensors_spec *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static dsc_status check_name(const char *name, dsc_error *err)
{
    const size_t bytes = name == NULL ? 0 : strlen(name);
    if (bytes == 0 || bytes > DSC_SAFETENSORS_NAME_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "the name of a tensor has %zu bytes; expected 1 to %d", bytes,
                        DSC_SAFETENSORS_NAME_BYTES_MAX);
    for (const char *c = name; *c != 0; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return DSC_FAIL(err, DSC_ERR_STATE, "", "tensor \"%.200s\": control character in its name", name);
    if (strcmp(name, "__metadata__") == 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "\"__metadata__\" is not allowed as the name of a tensor");
    return DSC_OK;
}

bool dsc_safetensors_part_name(const char *name, int64_t index, char *out)
{
    const char *star = strchr(name, '*');
    if (star == NULL || strchr(star + 1, '*') != NULL)
        return false;
    const int bytes = snprintf(out, DSC_SAFETENSORS_NAME_BYTES_MAX + 1, "%.*s%lld%s", (int)(star - name), name,
                               (long long)index, star + 1);
    return bytes > 0 && bytes <= DSC_SAFETENSORS_NAME_BYTES_MAX;
}

/* The last index has the longest name. */
static dsc_status check_parts(const dsc_safetensors_spec *spec, dsc_error *err)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    if (spec->desc.dim_count < 1 || spec->desc.dim[0] < 1 ||
        !dsc_safetensors_part_name(spec->name, spec->desc.dim[0] - 1, name))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "tensor \"%.200s\": no parts with names of their own", spec->name);
    return DSC_OK;
}

static dsc_status tensor_bytes(const dsc_safetensors_spec *spec, int64_t *bytes, dsc_error *err)
{
    if (dtype_text(spec->desc.dtype) == NULL || spec->desc.dim_count < 0 || spec->desc.dim_count > DSC_DIMS_MAX)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "tensor \"%.200s\": no such dtype or number of dimensions", spec->name);
    *bytes = (int64_t)dsc_dtype_bytes(spec->desc.dtype);
    for (int32_t i = 0; i < spec->desc.dim_count; i++)
        if (spec->desc.dim[i] < 0 || !dsc_mul_i64(*bytes, spec->desc.dim[i], bytes))
            return DSC_FAIL(err, DSC_ERR_STATE, "", "tensor \"%.200s\": the product of its dimensions is out of range",
                            spec->name);
    return DSC_OK;
}

/* Offsets from the start of the data; wider elements first. */
static dsc_status place_tensors(dsc_safetensors_plan *plan, const dsc_safetensors_spec *specs, int64_t *data_bytes,
                                dsc_error *err)
{
    *data_bytes = 0;
    for (size_t width = 8; width > 0; width /= 2) {
        for (int64_t i = 0; i < plan->count; i++) {
            if (dsc_dtype_bytes(specs[i].desc.dtype) != width)
                continue;
            int64_t bytes = 0;
            DSC_TRY(tensor_bytes(&specs[i], &bytes, err));
            plan->offset[i] = *data_bytes;
            /* 2^53: the largest offset that a JSON number holds exactly. */
            if (!dsc_add_i64(*data_bytes, bytes, data_bytes) || *data_bytes > INT64_C(9007199254740992))
                return DSC_FAIL(err, DSC_ERR_STATE, "", "tensor \"%.200s\": the file would be larger than any",
                                specs[i].name);
        }
    }
    return DSC_OK;
}

static dsc_status check_specs(dsc_alloc *alloc, const dsc_safetensors_spec *specs, const bool *parted, int64_t count,
                              dsc_error *err)
{
    const dsc_safetensors_spec **sorted = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *sorted, &sorted, err));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count; i++) {
        int64_t bytes = 0;
        DSC_TRY_OUT(check_name(specs[i].name, err));
        DSC_TRY_OUT(tensor_bytes(&specs[i], &bytes, err));
        if (parted != NULL && parted[i])
            DSC_TRY_OUT(check_parts(&specs[i], err));
        sorted[i] = &specs[i];
    }
    qsort(sorted, (size_t)count, sizeof *sorted, compare_specs);
    for (int64_t i = 1; i < count && status == DSC_OK; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = DSC_FAIL(err, DSC_ERR_STATE, "", "tensor \"%.200s\" is listed twice", sorted[i]->name);
out:
    dsc_alloc_free(alloc, sorted);
    return status;
}

static void put_tensor(writer *w, const dsc_safetensors_spec *spec, int64_t begin)
{
    int64_t bytes = 0;
    const dsc_status status = tensor_bytes(spec, &bytes, NULL);
    DSC_ASSERT(status == DSC_OK); /* place_tensors has asked already */
    put(w, w->used > 1 ? "," : "");
    put_quoted(w, spec->name);
    put(w, ":{\"dtype\":\"%s\",\"shape\":[", dtype_text(spec->desc.dtype));
    for (int32_t i = 0; i < spec->desc.dim_count; i++)
        put(w, i == 0 ? "%lld" : ",%lld", (long long)spec->desc.dim[i]);
    put(w, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)(begin + bytes));
}

static void put_parts(writer *w, const dsc_safetensors_spec *spec, int64_t begin)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    dsc_safetensors_spec part = { .name = name, .desc = { .dtype = spec->desc.dtype } };
    int64_t bytes = 0;
    part.desc.dim_count = spec->desc.dim_count - 1;
    memcpy(part.desc.dim, spec->desc.dim + 1, (size_t)part.desc.dim_count * sizeof *part.desc.dim);
    const dsc_status status = tensor_bytes(&part, &bytes, NULL);
    DSC_ASSERT(status == DSC_OK);
    for (int64_t i = 0; i < spec->desc.dim[0]; i++) {
        const bool named = dsc_safetensors_part_name(spec->name, i, name);
        DSC_ASSERT(named); /* as check_parts has found */
        put_tensor(w, &part, begin + i * bytes);
    }
}

/* The tensors in the order in which they lie in the file, as other readers like it. */
static void put_header(writer *w, const dsc_safetensors_plan *plan, const dsc_safetensors_spec *specs,
                       const bool *parted, const dsc_safetensors_pair *metadata, int64_t metadata_count)
{
    put(w, "{");
    for (int64_t i = 0; i < metadata_count; i++) {
        put(w, i == 0 ? "\"__metadata__\":{" : ",");
        put_quoted(w, metadata[i].key);
        put(w, ":");
        put_quoted(w, metadata[i].value);
    }
    put(w, metadata_count > 0 ? "}" : "");
    for (size_t width = 8; width > 0; width /= 2)
        for (int64_t i = 0; i < plan->count; i++)
            if (dsc_dtype_bytes(specs[i].desc.dtype) == width)
                (parted != NULL && parted[i] ? put_parts : put_tensor)(w, &specs[i], plan->offset[i]);
    put(w, "}");
}

dsc_status dsc_safetensors_plan_open(dsc_safetensors_plan *out, dsc_alloc *alloc, const dsc_safetensors_spec *specs,
                                     int64_t count, const dsc_safetensors_pair *metadata, int64_t metadata_count,
                                     dsc_error *err)
{
    return dsc_safetensors_plan_parts(out, alloc, specs, NULL, count, metadata, metadata_count, err);
}

dsc_status dsc_safetensors_plan_parts(dsc_safetensors_plan *out, dsc_alloc *alloc, const dsc_safetensors_spec *specs,
                                      const bool *parted, int64_t count, const dsc_safetensors_pair *metadata,
                                      int64_t metadata_count, dsc_error *err)
{
    *out = (dsc_safetensors_plan){ .alloc = alloc, .count = count };
    dsc_status status = DSC_OK;
    int64_t data_bytes = 0;
    writer w = { NULL, 0, 0 };
    DSC_TRY_OUT(check_specs(alloc, specs, parted, count, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *out->offset, &out->offset, err));
    DSC_TRY_OUT(place_tensors(out, specs, &data_bytes, err));
    put_header(&w, out, specs, parted, metadata, metadata_count);
    out->header_bytes = dsc_align_up(LENGTH_BYTES + (int64_t)w.used, HEADER_ALIGN);
    const int64_t json_bytes = out->header_bytes - LENGTH_BYTES;
    if (json_bytes > DSC_SAFETENSORS_HEADER_BYTES_MAX) {
        status = DSC_FAIL(err, DSC_ERR_STATE, "", "a header of %lld bytes; at most %lld are allowed",
                          (long long)json_bytes, (long long)DSC_SAFETENSORS_HEADER_BYTES_MAX);
        goto out;
    }
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, out->header_bytes + 1, 1, &out->header, err));
    const uint64_t length = (uint64_t)json_bytes;
    memcpy(out->header, &length, LENGTH_BYTES);
    w = (writer){ out->header + LENGTH_BYTES, (size_t)json_bytes + 1, 0 };
    put_header(&w, out, specs, parted, metadata, metadata_count);
    DSC_ASSERT((int64_t)w.used <= json_bytes);
    memset(w.text + w.used, ' ', (size_t)json_bytes - w.used);
    for (int64_t i = 0; i < count; i++)
        out->offset[i] += out->header_bytes;
    out->file_bytes = out->header_bytes + data_bytes;
    return DSC_OK;
out:
    dsc_safetensors_plan_close(out);
    return status;
}

void dsc_safetensors_plan_close(dsc_safetensors_plan *plan)
{
    if (plan->alloc != NULL) {
        dsc_alloc_free(plan->alloc, plan->header);
        dsc_alloc_free(plan->alloc, plan->offset);
    }
    *plan = (dsc_safetensors_plan){ 0 };
}

dsc_status dsc_safetensors_write_header(const dsc_safetensors_plan *plan, const dsc_io *io, dsc_file *file,
                                        dsc_error *err)
{
    DSC_TRY(dsc_io_resize(io, file, plan->file_bytes, err));
    return dsc_io_write(io, file, plan->header, plan->header_bytes, 0, err);
}
