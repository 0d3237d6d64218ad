/* packed_weights.c - see packed_weights.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/packed_weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "kernels/nf4.h"

#define NAME_BYTES (DSC_SAFETENSORS_NAME_BYTES_MAX + 64)
#define STATE_NF4 "quant_state.bitsandbytes__nf4"
#define STATE_FP4 "quant_state.bitsandbytes__fp4"
#define STATE_BYTES_MAX 4096
#define READ_BLOCKS 64 /* that are unpacked at a time */

/* linspace rounds the numbers of the 8-bit code differently on some processors. */
#define CODE_TOLERANCE 0x1p-21

static const dsc_weight *beside(const dsc_weights *weights, const dsc_weight *weight, const char *part)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", weight->name, part);
    return dsc_weights_find(weights, name);
}

bool dsc_packed_weight_is(const dsc_weights *weights, const dsc_weight *weight)
{
    return beside(weights, weight, STATE_NF4) != NULL || beside(weights, weight, STATE_FP4) != NULL;
}

/* ---- checks ---- */

/* A weight whose tensors are being checked. */
typedef struct opening {
    const dsc_weights *weights;
    dsc_alloc *alloc;
    const dsc_weight *weight;
    int64_t rows, cols;
    dsc_packed_weight *out;
    bool *used;
    dsc_error *err;
} opening;

#define REFUSE(o, status, ...) DSC_FAIL((o)->err, status, dsc_safetensors_path((o)->weight->file), __VA_ARGS__)

/* The tensor NAME.part of this many elements of a dtype. */
static dsc_status find_part(opening *o, const char *part, dsc_dtype dtype, int64_t count, const dsc_weight **out)
{
    *out = beside(o->weights, o->weight, part);
    if (*out == NULL)
        return REFUSE(o, DSC_ERR_INPUT, "tensor \"%.150s.%s\" is missing beside its weight in 4 bits", o->weight->name,
                      part);
    if ((*out)->entry->desc.dtype != dtype || (*out)->entry->count != count)
        return REFUSE(o, DSC_ERR_INPUT,
                      "tensor \"%.150s.%s\" has %lld elements in %s; a weight [%lld,%lld] in 4 bits "
                      "needs %lld in %s",
                      o->weight->name, part, (long long)(*out)->entry->count, (*out)->entry->dtype_text,
                      (long long)o->rows, (long long)o->cols, (long long)count, dtype == DSC_U8 ? "U8" : "F32");
    o->used[*out - dsc_weights_at(o->weights, 0)] = true;
    return DSC_OK;
}

/* The numbers of the codes are those that this program knows. */
static dsc_status check_map(opening *o, const char *part, const float *known, int64_t count, double tolerance)
{
    float numbers[256];
    const dsc_weight *map;
    DSC_ASSERT(count <= (int64_t)DSC_COUNT(numbers));
    DSC_TRY(find_part(o, part, DSC_F32, count, &map));
    DSC_TRY(dsc_weight_read_f32(map, 0, count, numbers, o->err));
    for (int64_t i = 0; i < count; i++)
        if (fabs((double)numbers[i] - (double)known[i]) > tolerance * fabs((double)known[i]))
            return REFUSE(o, DSC_ERR_UNSUPPORTED,
                          "tensor \"%.150s.%s\" is %.9g at element %lld, and bitsandbytes' code "
                          "has %.9g; quantize the model again with nf4",
                          o->weight->name, part, (double)numbers[i], (long long)i, (double)known[i]);
    return DSC_OK;
}

static dsc_status check_word(opening *o, const cJSON *state, const char *key, const char *expected)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(state, key);
    if (cJSON_IsString(item) && strcmp(item->valuestring, expected) == 0)
        return DSC_OK;
    return REFUSE(o, DSC_ERR_UNSUPPORTED, "weight \"%.150s\" has \"%s\": %.40s%s; what is read: \"%s\"",
                  o->weight->name, key, cJSON_IsString(item) ? item->valuestring : "",
                  cJSON_IsString(item) ? "" : "no text", expected);
}

static dsc_status check_number(opening *o, const cJSON *state, const char *key, int64_t expected)
{
    int64_t value = -1;
    if (dsc_json_integer(cJSON_GetObjectItemCaseSensitive(state, key), 0, DSC_JSON_INTEGER_MAX, &value) &&
        value == expected)
        return DSC_OK;
    return REFUSE(o, DSC_ERR_UNSUPPORTED, "weight \"%.150s\" has \"%s\": %lld; what is read: %lld", o->weight->name,
                  key, (long long)value, (long long)expected);
}

static dsc_status check_shape(opening *o, const cJSON *state)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(state, "shape");
    const cJSON *first = cJSON_IsArray(shape) ? shape->child : NULL, *second = first != NULL ? first->next : NULL;
    int64_t rows = -1, cols = -1;
    if (second != NULL && second->next == NULL && dsc_json_integer(first, 0, DSC_JSON_INTEGER_MAX, &rows) &&
        dsc_json_integer(second, 0, DSC_JSON_INTEGER_MAX, &cols) && rows == o->rows && cols == o->cols)
        return DSC_OK;
    return REFUSE(o, DSC_ERR_INPUT, "weight \"%.150s\" in 4 bits is [%lld,%lld], config.json needs [%lld,%lld]",
                  o->weight->name, (long long)rows, (long long)cols, (long long)o->rows, (long long)o->cols);
}

/* ---- opening ---- */

static dsc_status read_nested(opening *o, const cJSON *state)
{
    const cJSON *offset = cJSON_GetObjectItemCaseSensitive(state, "nested_offset");
    dsc_packed_weight *out = o->out;
    DSC_TRY(check_number(o, state, "nested_blocksize", DSC_NF4_NESTED_BLOCK));
    DSC_TRY(check_word(o, state, "nested_dtype", "float32"));
    if (!cJSON_IsNumber(offset) || !(fabs(offset->valuedouble) < 3e38))
        return REFUSE(o, DSC_ERR_INPUT, "weight \"%.150s\" has no finite number \"nested_offset\"", o->weight->name);
    out->offset = (float)offset->valuedouble;
    DSC_TRY(check_map(o, "nested_quant_map", dsc_nf4_scale_values, 256, CODE_TOLERANCE));
    DSC_TRY(find_part(o, "nested_absmax", DSC_F32, dsc_nf4_tops(out->count), &out->tops));
    return find_part(o, "absmax", DSC_U8, dsc_nf4_blocks(out->count), &out->scales);
}

static dsc_status read_state(opening *o, const cJSON *state)
{
    dsc_packed_weight *out = o->out;
    DSC_TRY(check_word(o, state, "quant_type", "nf4"));
    DSC_TRY(check_number(o, state, "blocksize", DSC_NF4_BLOCK));
    DSC_TRY(check_shape(o, state));
    DSC_TRY(check_map(o, "quant_map", dsc_nf4_values, 16, 0));
    if (beside(o->weights, o->weight, "nested_absmax") != NULL ||
        cJSON_GetObjectItemCaseSensitive(state, "nested_blocksize") != NULL)
        return read_nested(o, state);
    return find_part(o, "absmax", DSC_F32, dsc_nf4_blocks(out->count), &out->scales);
}

static dsc_status parse_state(opening *o, const dsc_weight *text)
{
    static const dsc_json_limits limits = { STATE_BYTES_MAX, 4, 64 };
    char bytes[STATE_BYTES_MAX];
    dsc_json *json = NULL;
    if (text->entry->desc.dtype != DSC_U8 || text->entry->bytes < 2 || text->entry->bytes > STATE_BYTES_MAX)
        return REFUSE(o, DSC_ERR_INPUT, "tensor \"%.200s\" is no text of at most %d bytes in U8", text->name,
                      STATE_BYTES_MAX);
    DSC_TRY(dsc_safetensors_read_bytes(text->file, text->entry, 0, text->entry->bytes, bytes, o->err));
    DSC_TRY(dsc_json_open(o->alloc, text->name, bytes, text->entry->bytes, DSC_JSON_STRICT, &limits, &json, o->err));
    const dsc_status status = read_state(o, dsc_json_root(json));
    dsc_json_close(&json);
    return status;
}

dsc_status dsc_packed_weight_open(const dsc_weights *weights, dsc_alloc *alloc, const dsc_weight *weight, int64_t rows,
                                  int64_t cols, dsc_packed_weight *out, bool *used, dsc_error *err)
{
    const dsc_weight *state = beside(weights, weight, STATE_NF4);
    opening o = { weights, alloc, weight, rows, cols, out, used, err };
    DSC_ASSERT(rows > 0 && cols > 0); /* of a matrix that dsc_model_check has bounded */
    *out = (dsc_packed_weight) { .codes = weight, .count = rows * cols };
    if (state == NULL)
        return REFUSE(&o, DSC_ERR_UNSUPPORTED, "weight \"%.150s\" is in fp4; what is read: nf4, or F32, BF16 and F16",
                      weight->name);
    if (weight->entry->bytes != (out->count + 1) / 2)
        return REFUSE(&o, DSC_ERR_INPUT, "weight \"%.150s\" has %lld bytes; [%lld,%lld] in 4 bits has %lld",
                      weight->name, (long long)weight->entry->bytes, (long long)rows, (long long)cols,
                      (long long)((out->count + 1) / 2));
    used[weight - dsc_weights_at(weights, 0)] = true;
    used[state - dsc_weights_at(weights, 0)] = true;
    return parse_state(&o, state);
}

/* ---- reading ---- */

dsc_status dsc_packed_weight_read(const dsc_packed_weight *packed, dsc_packed_part part, int64_t first, int64_t bytes,
                                  void *out, dsc_error *err)
{
    const dsc_weight *const from = part == DSC_PACKED_CODES    ? packed->codes
                                   : part == DSC_PACKED_SCALES ? packed->scales
                                                               : packed->tops;
    DSC_ASSERT(packed->codes != NULL);
    if (part == DSC_PACKED_OFFSET) {
        DSC_ASSERT(first == 0 && bytes == (int64_t)sizeof packed->offset);
        memcpy(out, &packed->offset, (size_t)bytes);
        return DSC_OK;
    }
    DSC_ASSERT(from != NULL && first >= 0 && first + bytes <= from->entry->bytes);
    if (part != DSC_PACKED_CODES && from->entry->desc.dtype == DSC_F32) {
        DSC_ASSERT(first % 4 == 0 && bytes % 4 == 0);
        return dsc_weight_read_f32(from, first / 4, bytes / 4, out, err);
    }
    return dsc_safetensors_read_bytes(from->file, from->entry, first, bytes, out, err);
}

/* scales[count] of blocks from `first` on, unpacked. */
static dsc_status read_scales(const dsc_packed_weight *packed, int64_t first, int64_t count, float *scales,
                              dsc_error *err)
{
    uint8_t codes[READ_BLOCKS];
    float tops[2]; /* fewer blocks than share a top */
    DSC_ASSERT(count >= 1 && count <= READ_BLOCKS);
    if (packed->tops == NULL)
        return dsc_packed_weight_read(packed, DSC_PACKED_SCALES, first * 4, count * 4, scales, err);
    const int64_t top = first / DSC_NF4_NESTED_BLOCK, end = (first + count - 1) / DSC_NF4_NESTED_BLOCK + 1;
    DSC_TRY(dsc_packed_weight_read(packed, DSC_PACKED_SCALES, first, count, codes, err));
    DSC_TRY(dsc_packed_weight_read(packed, DSC_PACKED_TOPS, top * 4, (end - top) * 4, tops, err));
    for (int64_t i = 0; i < count; i++)
        scales[i] = dsc_nf4_scale(codes[i], tops[(first + i) / DSC_NF4_NESTED_BLOCK - top], packed->offset);
    return DSC_OK;
}

/* Elements as the files have them. */
static dsc_status read_in_order(const dsc_packed_weight *packed, int64_t first, int64_t count, float *out,
                                dsc_error *err)
{
    uint8_t codes[READ_BLOCKS * DSC_NF4_BLOCK / 2];
    float scales[READ_BLOCKS];
    DSC_ASSERT(first >= 0 && first + count <= packed->count);
    for (int64_t at = first, end = first + count; at < end;) {
        const int64_t block = at / DSC_NF4_BLOCK, begin = block * DSC_NF4_BLOCK;
        const int64_t stop = dsc_min_i64(begin + READ_BLOCKS * DSC_NF4_BLOCK, end);
        DSC_TRY(read_scales(packed, block, dsc_nf4_blocks(stop - begin), scales, err));
        DSC_TRY(dsc_packed_weight_read(packed, DSC_PACKED_CODES, begin / 2, (stop - begin + 1) / 2, codes, err));
        for (; at < stop; at++) {
            const uint8_t both = codes[(at - begin) / 2];
            out[at - first] =
                dsc_nf4_values[at % 2 == 0 ? both >> 4 : both & 15] * scales[(at - begin) / DSC_NF4_BLOCK];
        }
    }
    return DSC_OK;
}

/* Element r * turned + c of the model is element c * cols + r of the files: a run of each of their rows. */
static dsc_status read_turned(const dsc_packed_weight *packed, int64_t first, int64_t count, float *out, dsc_error *err)
{
    float run[READ_BLOCKS * DSC_NF4_BLOCK];
    const int64_t rows = packed->turned, cols = packed->count / rows, last = first + count - 1;
    for (int64_t c = 0; c < rows; c++) {
        const int64_t end = last < c ? 0 : (last - c) / rows + 1;
        for (int64_t r = first > c ? dsc_div_ceil(first - c, rows) : 0, now; r < end; r += now) {
            now = dsc_min_i64(end - r, (int64_t)DSC_COUNT(run));
            DSC_TRY(read_in_order(packed, c * cols + r, now, run, err));
            for (int64_t i = 0; i < now; i++)
                out[(r + i) * rows + c - first] = run[i];
        }
    }
    return DSC_OK;
}

dsc_status dsc_packed_weight_read_f32(const dsc_packed_weight *packed, int64_t first, int64_t count, float *out,
                                      dsc_error *err)
{
    DSC_ASSERT(count >= 1 && packed->turned >= 0);
    return (packed->turned > 0 ? read_turned : read_in_order)(packed, first, count, out, err);
}
