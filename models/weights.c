/* weights.c - finds and opens the safetensors files of a model folder.
 *
 * Order: model.safetensors, with a checkpoint's buffers.safetensors where it has one; else the shards that
 * model.safetensors.index.json names, else every *.safetensors of the folder. Names inside the index are plain file
 * names: nothing outside the folder is opened. No tensor may lie in two files. Other formats are never read: a pickle
 * can run code. SPDX-License-Identifier: Apache-2.0 */
#include "models/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/formats/unsafe_format.h"

#define SUFFIX ".safetensors"
#define SINGLE "model" SUFFIX
#define INDEX SINGLE ".index.json"
#define BUFFERS "buffers" SUFFIX /* of a checkpoint (docs/checkpoint.md) */
#define FILES_MAX 1024
#define PATH_BYTES 1024

struct dsc_weights {
    dsc_alloc *alloc;
    char *dir;
    dsc_safetensors **files; /* [FILES_MAX], file_count open */
    char **names;            /* [FILES_MAX] of the files inside the folder */
    int64_t file_count;
    dsc_weight *table; /* [count] by name */
    int64_t count;
};

static bool listed(char **names, int64_t count, const char *name)
{
    for (int64_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static bool has_suffix(const char *name)
{
    const size_t bytes = strlen(name), suffix = strlen(SUFFIX);
    return bytes > suffix && strcmp(name + bytes - suffix, SUFFIX) == 0;
}

/* Opens a file of the folder unless it is open; *index is its place. */
static dsc_status add_file(dsc_weights *w, const char *name, int64_t *index, dsc_error *err)
{
    char path[PATH_BYTES];
    for (int64_t i = w->file_count - 1; i >= 0; i--) { /* an index lists a shard's tensors together: found at once */
        if (strcmp(w->names[i], name) == 0) {
            *index = i;
            return DSC_OK;
        }
    }
    if (w->file_count == FILES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, w->dir, "more than %d weight files", FILES_MAX);
    DSC_TRY(dsc_path_join(path, sizeof path, w->dir, name, err));
    DSC_TRY(dsc_safetensors_open(&w->files[w->file_count], NULL, w->alloc, path, err));
    *index = w->file_count++;
    return dsc_alloc_strdup(w->alloc, DSC_TAG_CONTROL, name, &w->names[*index], err);
}

static int compare_weights(const void *a, const void *b)
{
    const dsc_weight *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static dsc_status build_table(dsc_weights *w, dsc_error *err)
{
    int64_t total = 0;
    for (int64_t f = 0; f < w->file_count; f++)
        total += dsc_safetensors_count(w->files[f]);
    DSC_TRY(dsc_alloc_zeroed(w->alloc, DSC_TAG_CONTROL, total, sizeof *w->table, &w->table, err));
    for (int64_t f = 0; f < w->file_count; f++) {
        for (int64_t i = 0; i < dsc_safetensors_count(w->files[f]); i++) {
            const dsc_safetensors_entry *entry = dsc_safetensors_at(w->files[f], i);
            if (strcmp(w->names[f], BUFFERS) == 0 && dsc_safetensors_is_average(w->files[f], entry))
                continue; /* the model begins at the values, as at the weights */
            w->table[w->count++] = (dsc_weight) { .name = entry->name, .file = w->files[f], .entry = entry };
        }
    }
    qsort(w->table, (size_t)w->count, sizeof *w->table, compare_weights);
    for (int64_t i = 1; i < w->count; i++)
        if (strcmp(w->table[i - 1].name, w->table[i].name) == 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(w->table[i].file),
                            "tensor \"%.200s\" is also in another file of the folder", w->table[i].name);
    return DSC_OK;
}

/* Opens the shards that the index names. */
static dsc_status open_shards(dsc_weights *w, const dsc_json *json, const cJSON **map, dsc_error *err)
{
    char where[256];
    const cJSON *root = dsc_json_root(json);
    *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    if (!cJSON_IsObject(*map))
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, root, where, sizeof where),
                        "\"weight_map\" must be an object from tensor names to file names");
    for (const cJSON *item = (*map)->child; item != NULL; item = item->next) {
        if (!cJSON_IsString(item) || !dsc_path_is_plain(item->valuestring) || !has_suffix(item->valuestring))
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, item, where, sizeof where),
                            "expected the name of a *.safetensors file in the same folder, without a path");
        int64_t index = 0;
        DSC_TRY(add_file(w, item->valuestring, &index, err));
    }
    return DSC_OK;
}

/* The index and the shards agree on which tensor lies where. */
static dsc_status check_index(dsc_weights *w, const dsc_json *json, const cJSON *map, dsc_error *err)
{
    char where[256];
    int64_t count = 0, index = 0;
    for (const cJSON *item = map->child; item != NULL; item = item->next, count++) {
        const dsc_weight *weight = dsc_weights_find(w, item->string);
        DSC_TRY(add_file(w, item->valuestring, &index, err));
        if (weight == NULL || weight->file != w->files[index])
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, item, where, sizeof where),
                            "tensor \"%.200s\" is not in \"%.100s\"", item->string, item->valuestring);
    }
    if (count != w->count)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, map, where, sizeof where),
                        "the files hold %lld tensors, the index names %lld", (long long)w->count, (long long)count);
    return DSC_OK;
}

static dsc_status open_index(dsc_weights *w, dsc_error *err)
{
    static const dsc_json_limits limits = { DSC_SAFETENSORS_HEADER_BYTES_MAX, 8, 200000 };
    char path[PATH_BYTES];
    char *text = NULL;
    int64_t bytes = 0;
    dsc_json *json = NULL;
    const cJSON *map = NULL;
    DSC_TRY(dsc_path_join(path, sizeof path, w->dir, INDEX, err));
    DSC_TRY(dsc_io_read_all(NULL, w->alloc, path, limits.bytes, &text, &bytes, err));
    dsc_status status = dsc_json_open(w->alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    if (status == DSC_OK)
        status = open_shards(w, json, &map, err);
    if (status == DSC_OK)
        status = build_table(w, err);
    if (status == DSC_OK)
        status = check_index(w, json, map, err);
    dsc_json_close(&json);
    dsc_alloc_free(w->alloc, text);
    return status;
}

/* Opens what the folder has; file_count stays 0 when there is nothing. */
static dsc_status open_files(dsc_weights *w, char **names, int64_t count, dsc_error *err)
{
    int64_t index = 0;
    if (!listed(names, count, SINGLE) && listed(names, count, INDEX))
        return open_index(w, err);
    if (listed(names, count, SINGLE)) {
        DSC_TRY(add_file(w, SINGLE, &index, err));
        if (listed(names, count, BUFFERS))
            DSC_TRY(add_file(w, BUFFERS, &index, err));
    } else {
        for (int64_t i = 0; i < count; i++)
            if (has_suffix(names[i]))
                DSC_TRY(add_file(w, names[i], &index, err));
        if (w->file_count == 0)
            return dsc_foreign_refuse(NULL, w->alloc, w->dir, err);
    }
    return build_table(w, err);
}

static dsc_status make(dsc_weights **out, dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    dsc_weights *w = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *w, &w, err));
    dsc_status status = DSC_OK;
    w->alloc = alloc;
    DSC_TRY_OUT(dsc_alloc_strdup(alloc, DSC_TAG_CONTROL, dir, &w->dir, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, FILES_MAX, sizeof *w->files, &w->files, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, FILES_MAX, sizeof *w->names, &w->names, err));
    *out = w;
    return DSC_OK;
out:
    dsc_weights_close(&w);
    return status;
}

dsc_status dsc_weights_open(dsc_weights **out, dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    char **names = NULL;
    int64_t count = 0;
    DSC_TRY(make(out, alloc, dir, err));
    dsc_status status = dsc_io_list(NULL, alloc, dir, &names, &count, err);
    if (status == DSC_OK)
        status = open_files(*out, names, count, err);
    dsc_io_list_free(alloc, names, count);
    if (status != DSC_OK || (*out)->file_count == 0)
        dsc_weights_close(out);
    return status;
}

dsc_status dsc_weights_open_file(dsc_weights **out, dsc_alloc *alloc, const char *dir, const char *name, dsc_error *err)
{
    int64_t index = 0;
    DSC_TRY(make(out, alloc, dir, err));
    dsc_status status = add_file(*out, name, &index, err);
    if (status == DSC_OK)
        status = build_table(*out, err);
    if (status != DSC_OK)
        dsc_weights_close(out);
    return status;
}

void dsc_weights_close(dsc_weights **weights_ptr)
{
    dsc_weights *w = *weights_ptr;
    if (w == NULL)
        return;
    for (int64_t f = 0; f < w->file_count; f++) {
        dsc_safetensors_close(&w->files[f]);
        dsc_alloc_free(w->alloc, w->names[f]);
    }
    dsc_alloc_free(w->alloc, w->table);
    dsc_alloc_free(w->alloc, (void *)w->names);
    dsc_alloc_free(w->alloc, (void *)w->files);
    dsc_alloc_free(w->alloc, w->dir);
    dsc_alloc_free(w->alloc, w);
    *weights_ptr = NULL;
}

const char *dsc_weights_dir(const dsc_weights *weights)
{
    return weights->dir;
}

int64_t dsc_weights_count(const dsc_weights *weights)
{
    return weights->count;
}

const dsc_weight *dsc_weights_at(const dsc_weights *weights, int64_t i)
{
    DSC_ASSERT(i >= 0);
    DSC_ASSERT(i < weights->count);
    return &weights->table[i];
}

const dsc_weight *dsc_weights_find(const dsc_weights *weights, const char *name)
{
    const dsc_weight key = { .name = name };
    return bsearch(&key, weights->table, (size_t)weights->count, sizeof *weights->table, compare_weights);
}

/* ---- matrices in fp8 ---- */

/* The scales of a matrix, checked against its shape. */
static dsc_status find_scales(dsc_weights *w, dsc_weight *matrix, dsc_error *err)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 16];
    const dsc_tensor_desc *desc = &matrix->entry->desc;
    snprintf(name, sizeof name, "%s_scale_inv", matrix->name);
    dsc_weight *scales = (dsc_weight *)(uintptr_t)dsc_weights_find(w, name);
    if (desc->dim_count != 2)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dsc_safetensors_path(matrix->file),
                        "tensor \"%.200s\" has %d dimensions in F8_E4M3; what is read: matrices", matrix->name,
                        (int)desc->dim_count);
    if (scales == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(matrix->file),
                        "tensor \"%.200s\" is missing beside its matrix in F8_E4M3", name);
    const dsc_tensor_desc *of = &scales->entry->desc;
    const int64_t rows = dsc_div_ceil(desc->dim[0], matrix->block_rows);
    const int64_t cols = dsc_div_ceil(desc->dim[1], matrix->block_cols);
    if (of->dtype != DSC_F32 || of->dim_count != 2 || of->dim[0] != rows || of->dim[1] != cols)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(scales->file),
                        "tensor \"%.150s\" has %lld elements in %s; a matrix [%lld,%lld] with blocks of %d x %d needs "
                        "[%lld,%lld] in F32",
                        scales->name, (long long)scales->entry->count, scales->entry->dtype_text,
                        (long long)desc->dim[0], (long long)desc->dim[1], (int)matrix->block_rows,
                        (int)matrix->block_cols, (long long)rows, (long long)cols);
    matrix->scales = scales;
    scales->is_scales = true;
    return DSC_OK;
}

dsc_status dsc_weights_find_scales(dsc_weights *w, int32_t block_rows, int32_t block_cols, dsc_error *err)
{
    DSC_ASSERT(block_rows >= 1 && block_rows <= DSC_FP8_BLOCK_MAX);
    DSC_ASSERT(block_cols >= 1 && block_cols <= DSC_FP8_BLOCK_MAX);
    for (int64_t i = 0; i < w->count; i++) {
        dsc_weight *matrix = &w->table[i];
        if (strcmp(matrix->entry->dtype_text, "F8_E4M3") != 0)
            continue;
        matrix->block_rows = block_rows, matrix->block_cols = block_cols;
        DSC_TRY(find_scales(w, matrix, err));
    }
    return DSC_OK;
}

/* The number of a code: 1.m 2^(e-7), without an infinity (kernels/fp8.h). */
static float value_of(uint8_t code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 0x7f) == 0x7f)
        return NAN;
    const float size = exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    return (code & 0x80) != 0 ? -size : size;
}

enum { FP8_SCALES = 512, FP8_BYTES = 16384 }; /* of one piece */

/* Elements of one row within FP8_SCALES blocks. */
static dsc_status read_fp8_piece(const dsc_weight *matrix, int64_t first, int64_t count, float *out, dsc_error *err)
{
    const int64_t cols = matrix->entry->desc.dim[1], wide = matrix->block_cols, column = first % cols;
    const int64_t block = column / wide, blocks = (column + count - 1) / wide - block + 1;
    const int64_t row = first / cols / matrix->block_rows * dsc_div_ceil(cols, wide);
    float scale[FP8_SCALES];
    uint8_t code[FP8_BYTES];
    DSC_ASSERT(count <= FP8_BYTES);
    DSC_ASSERT(blocks <= FP8_SCALES);
    DSC_TRY(dsc_weight_read_f32(matrix->scales, row + block, blocks, scale, err));
    DSC_TRY(dsc_safetensors_read_bytes(matrix->file, matrix->entry, first, count, code, err));
    for (int64_t i = 0; i < count; i++)
        out[i] = value_of(code[i]) * scale[(column + i) / wide - block];
    return DSC_OK;
}

static dsc_status read_fp8(const dsc_weight *matrix, int64_t first, int64_t count, float *out, dsc_error *err)
{
    const int64_t cols = matrix->entry->desc.dim[1], wide = matrix->block_cols;
    for (const int64_t end = first + count; first < end;) {
        const int64_t column = first % cols, in_row = dsc_min_i64(cols - column, end - first);
        const int64_t in_blocks = (column / wide + FP8_SCALES) * wide - column;
        const int64_t here = dsc_min_i64(dsc_min_i64(in_row, FP8_BYTES), in_blocks);
        DSC_TRY(read_fp8_piece(matrix, first, here, out, err));
        first += here;
        out += here;
    }
    return DSC_OK;
}

/* ---- reading ---- */

#define F32_INF_BITS 0x7f800000u /* without the sign, all that is not finite is at or above it */

static uint32_t magnitude_bits(const float *x)
{
    uint32_t bits = 0;
    memcpy(&bits, x, 4);
    return bits & 0x7fffffffu;
}

dsc_status dsc_weight_read_f32(const dsc_weight *weight, int64_t first, int64_t count, float *out, dsc_error *err)
{
    DSC_TRY(weight->scales != NULL ? read_fp8(weight, first, count, out, err)
                                   : dsc_safetensors_read_f32(weight->file, weight->entry, first, count, out, err));
    uint32_t largest = 0; /* a maximum without a branch: vector instructions */
    for (int64_t i = 0; i < count; i++)
        largest = magnitude_bits(out + i) > largest ? magnitude_bits(out + i) : largest;
    if (largest < F32_INF_BITS)
        return DSC_OK;
    int64_t i = 0;
    while (magnitude_bits(out + i) < F32_INF_BITS)
        i++;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                    "tensor \"%.200s\" is %s at element %lld: the file is damaged, or its training had diverged",
                    weight->name, magnitude_bits(out + i) == F32_INF_BITS ? "infinite" : "NaN", (long long)(first + i));
}
