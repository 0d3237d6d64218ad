/* safetensors.c - the strict reader.
 *
 * Order of belief: the file's size, then the length of the header, then the JSON scan, then each tensor alone, then all
 * of them together. Nothing is allocated from a number in the file before that number was compared with the file's
 * size. SPDX-License-Identifier: Apache-2.0 */
#include "base/formats/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/f16.h"
#include "base/formats/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are read as they lie in the file: little-endian");

/* 8 JSON values a tensor of two dimensions: about 100,000 tensors. */
static const dsc_json_limits header_limits = { DSC_SAFETENSORS_HEADER_BYTES_MAX, 8, 800000 };

#define METADATA_KEY "__metadata__"

struct dsc_safetensors {
    dsc_alloc *alloc;
    const dsc_io *io;
    dsc_file *file; /* a pointer, so that reading through a const dsc_safetensors is possible */
    dsc_safetensors_entry *entries; /* [count] by name */
    int64_t count;
    dsc_safetensors_pair *metadata; /* [metadata_count] */
    int64_t metadata_count;
    char *text; /* every name, key and value, each with its NUL */
};

/* State while the header is read. */
typedef struct header_reader {
    dsc_safetensors *st;
    int64_t data_offset, data_bytes; /* range of the tensors in the file */
    char *text_end;                  /* next free byte of st->text */
    dsc_error *err;
} header_reader;

#define REFUSE(reader, ...) DSC_FAIL((reader)->err, DSC_ERR_INPUT, (reader)->st->file->path, __VA_ARGS__)

typedef struct file_dtype {
    const char *text;
    int32_t bits;
    dsc_dtype dtype;
} file_dtype;

static const file_dtype file_dtypes[] = {
    { "F32", 32, DSC_F32 },       { "BF16", 16, DSC_BF16 },          { "F16", 16, DSC_F16 },
    { "F64", 64, DSC_F64 },       { "I32", 32, DSC_I32 },            { "I64", 64, DSC_I64 },
    { "U8", 8, DSC_U8 },          { "BOOL", 8, DSC_DTYPE_COUNT },    { "I8", 8, DSC_DTYPE_COUNT },
    { "I16", 16, DSC_DTYPE_COUNT }, { "U16", 16, DSC_DTYPE_COUNT },  { "U32", 32, DSC_DTYPE_COUNT },
    { "U64", 64, DSC_DTYPE_COUNT }, { "C64", 64, DSC_DTYPE_COUNT },  { "F8_E4M3", 8, DSC_DTYPE_COUNT },
    { "F8_E5M2", 8, DSC_DTYPE_COUNT }, { "F8_E8M0", 8, DSC_DTYPE_COUNT }, { "F6_E2M3", 6, DSC_DTYPE_COUNT },
    { "F6_E3M2", 6, DSC_DTYPE_COUNT }, { "F4", 4, DSC_DTYPE_COUNT },
};

/* The format has unsigned integers alone. */
static bool unsigned_integer(const cJSON *item, int64_t *out)
{
    return dsc_json_integer(item, 0, DSC_JSON_INTEGER_MAX, out);
}

static char *keep_text(header_reader *reader, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *kept = reader->text_end;
    memcpy(kept, text, bytes);
    reader->text_end += bytes;
    return kept;
}

static dsc_status read_dtype(header_reader *reader, const cJSON *item, dsc_safetensors_entry *entry, int32_t *bits)
{
    if (!cJSON_IsString(item))
        return REFUSE(reader, "tensor \"%.200s\": \"dtype\" must be a string", entry->name);
    for (size_t i = 0; i < DSC_COUNT(file_dtypes); i++) {
        if (strcmp(item->valuestring, file_dtypes[i].text) == 0) {
            entry->dtype_text = file_dtypes[i].text;
            entry->desc.dtype = file_dtypes[i].dtype;
            *bits = file_dtypes[i].bits;
            return DSC_OK;
        }
    }
    return REFUSE(reader, "tensor \"%.200s\": dtype \"%.40s\" is not one of the format; expected F32, BF16, F16, ...",
                  entry->name, item->valuestring);
}

static dsc_status read_shape(header_reader *reader, const cJSON *item, dsc_safetensors_entry *entry)
{
    if (!cJSON_IsArray(item))
        return REFUSE(reader, "tensor \"%.200s\": \"shape\" must be an array", entry->name);
    entry->count = 1;
    for (const cJSON *dim = item->child; dim != NULL; dim = dim->next) {
        if (entry->desc.dim_count == DSC_DIMS_MAX)
            return REFUSE(reader, "tensor \"%.200s\": more than %d dimensions", entry->name, DSC_DIMS_MAX);
        int64_t value = 0;
        if (!unsigned_integer(dim, &value))
            return REFUSE(reader, "tensor \"%.200s\": a dimension of \"shape\" must be an unsigned integer, as 16 and "
                          "not 16.0; write the file again", entry->name);
        if (!dsc_mul_i64(entry->count, value, &entry->count))
            return REFUSE(reader, "tensor \"%.200s\": the product of its dimensions is out of range",
                          entry->name);
        entry->desc.dim[entry->desc.dim_count++] = value;
    }
    return DSC_OK;
}

static dsc_status read_offsets(header_reader *reader, const cJSON *item, dsc_safetensors_entry *entry, int32_t bits)
{
    int64_t begin = 0, end = 0;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !unsigned_integer(item->child, &begin) ||
        !unsigned_integer(item->child->next, &end))
        return REFUSE(reader, "tensor \"%.200s\": \"data_offsets\" must be two unsigned integers, as 16 and not 16.0; "
                      "write the file again", entry->name);
    if (begin > end || end > reader->data_bytes)
        return REFUSE(reader, "tensor \"%.200s\": bytes %lld to %lld are outside the data of %lld bytes; is the file "
                      "truncated, or one host's part of a checkpoint (dsc ckpt merge)?", entry->name, (long long)begin,
                      (long long)end, (long long)reader->data_bytes);
    int64_t data_bits = 0;
    if (!dsc_mul_i64(entry->count, bits, &data_bits) || data_bits % 8 != 0 || data_bits / 8 != end - begin)
        return REFUSE(reader, "tensor \"%.200s\": %lld elements of %s do not fill its %lld bytes", entry->name,
                      (long long)entry->count, entry->dtype_text, (long long)(end - begin));
    entry->offset = reader->data_offset + begin;
    entry->bytes = end - begin;
    return DSC_OK;
}

static dsc_status read_entry(header_reader *reader, const cJSON *item, dsc_safetensors_entry *entry)
{
    const size_t name_bytes = strlen(item->string);
    if (name_bytes == 0 || name_bytes > DSC_SAFETENSORS_NAME_BYTES_MAX)
        return REFUSE(reader, "the name of a tensor has %zu bytes; expected 1 to %d", name_bytes,
                      DSC_SAFETENSORS_NAME_BYTES_MAX);
    entry->name = keep_text(reader, item->string);
    if (!cJSON_IsObject(item))
        return REFUSE(reader, "tensor \"%.200s\": expected an object with dtype, shape and data_offsets", entry->name);
    const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL;
    for (const cJSON *field = item->child; field != NULL; field = field->next) {
        if (strcmp(field->string, "dtype") == 0)
            dtype = field;
        else if (strcmp(field->string, "shape") == 0)
            shape = field;
        else if (strcmp(field->string, "data_offsets") == 0)
            offsets = field;
        else
            return REFUSE(reader, "tensor \"%.200s\": unknown field \"%.60s\"", entry->name, field->string);
    }
    if (dtype == NULL || shape == NULL || offsets == NULL)
        return REFUSE(reader, "tensor \"%.200s\": \"%s\" is missing", entry->name,
                      dtype == NULL ? "dtype" : shape == NULL ? "shape" : "data_offsets");
    int32_t bits = 0;
    DSC_TRY(read_dtype(reader, dtype, entry, &bits));
    DSC_TRY(read_shape(reader, shape, entry));
    return read_offsets(reader, offsets, entry, bits);
}

static dsc_status read_metadata(header_reader *reader, const cJSON *item)
{
    if (!cJSON_IsObject(item))
        return REFUSE(reader, "\"" METADATA_KEY "\" must be an object of strings");
    for (const cJSON *pair = item->child; pair != NULL; pair = pair->next) {
        if (!cJSON_IsString(pair))
            return REFUSE(reader, "\"" METADATA_KEY "\": the value of \"%.200s\" must be a string", pair->string);
        dsc_safetensors_pair *to = &reader->st->metadata[reader->st->metadata_count++];
        to->key = keep_text(reader, pair->string);
        to->value = keep_text(reader, pair->valuestring);
    }
    return DSC_OK;
}

static int compare_place(const void *a, const void *b)
{
    const dsc_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int compare_name(const void *a, const void *b)
{
    const dsc_safetensors_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* In the order of their offsets, each tensor begins where the one before ends, and the last one ends the file. */
static dsc_status check_cover(header_reader *reader)
{
    dsc_safetensors *st = reader->st;
    qsort(st->entries, (size_t)st->count, sizeof *st->entries, compare_place);
    const int64_t data_end = reader->data_offset + reader->data_bytes;
    int64_t end = reader->data_offset;
    for (int64_t i = 0; i < st->count; i++) {
        const dsc_safetensors_entry *entry = &st->entries[i];
        if (entry->offset < end)
            return REFUSE(reader, "tensors \"%.150s\" and \"%.150s\" overlap", st->entries[i - 1].name, entry->name);
        if (entry->offset > end)
            return REFUSE(reader, "a hole of %lld bytes before tensor \"%.200s\"", (long long)(entry->offset - end),
                          entry->name);
        end += entry->bytes;
    }
    if (end != data_end)
        return REFUSE(reader, "%lld bytes at the end belong to no tensor", (long long)(data_end - end));
    qsort(st->entries, (size_t)st->count, sizeof *st->entries, compare_name);
    return DSC_OK;
}

static dsc_status read_tree(header_reader *reader, const cJSON *root)
{
    dsc_safetensors *st = reader->st;
    if (!cJSON_IsObject(root))
        return REFUSE(reader, "the header must be a JSON object");
    int64_t text_bytes = 0, tensor_count = 0, pair_count = 0;
    for (const cJSON *item = root->child; item != NULL; item = item->next) {
        if (strcmp(item->string, METADATA_KEY) != 0) {
            tensor_count++;
            text_bytes += (int64_t)strlen(item->string) + 1;
            continue;
        }
        for (const cJSON *pair = item->child; pair != NULL && cJSON_IsObject(item); pair = pair->next) {
            pair_count++;
            text_bytes += (int64_t)strlen(pair->string) + 1;
            text_bytes += cJSON_IsString(pair) ? (int64_t)strlen(pair->valuestring) + 1 : 0;
        }
    }
    DSC_TRY(dsc_alloc_zeroed(st->alloc, DSC_TAG_CONTROL, text_bytes, 1, &st->text, reader->err));
    DSC_TRY(dsc_alloc_zeroed(st->alloc, DSC_TAG_CONTROL, tensor_count, sizeof *st->entries, &st->entries, reader->err));
    DSC_TRY(dsc_alloc_zeroed(st->alloc, DSC_TAG_CONTROL, pair_count, sizeof *st->metadata, &st->metadata, reader->err));
    reader->text_end = st->text;
    for (const cJSON *item = root->child; item != NULL; item = item->next) {
        if (strcmp(item->string, METADATA_KEY) == 0)
            DSC_TRY(read_metadata(reader, item));
        else
            DSC_TRY(read_entry(reader, item, &st->entries[st->count++]));
    }
    DSC_ASSERT(reader->text_end == st->text + text_bytes);
    return check_cover(reader);
}

/* How long the header is, from the file's first bytes. */
static dsc_status read_length(header_reader *reader, uint64_t header_bytes, int64_t file_bytes, int64_t *bytes)
{
    if (header_bytes > (uint64_t)DSC_SAFETENSORS_HEADER_BYTES_MAX)
        return REFUSE(reader, "a header of %llu bytes; at most %lld are read (is this a safetensors file?)",
                      (unsigned long long)header_bytes, (long long)DSC_SAFETENSORS_HEADER_BYTES_MAX);
    *bytes = (int64_t)header_bytes;
    if (*bytes > file_bytes - (int64_t)sizeof header_bytes)
        return REFUSE(reader, "truncated: the header has %lld bytes, the file only %lld", (long long)*bytes,
                      (long long)file_bytes);
    reader->data_offset = (int64_t)sizeof header_bytes + *bytes;
    reader->data_bytes = file_bytes - reader->data_offset;
    return DSC_OK;
}

static dsc_status read_text(header_reader *reader, const char *text, int64_t bytes)
{
    dsc_safetensors *st = reader->st;
    dsc_json *json = NULL;
    if (bytes == 0 || *text != '{')
        return REFUSE(reader, "the header does not start with '{': this is not a safetensors file");
    DSC_TRY(dsc_json_open(st->alloc, st->file->path, text, bytes, DSC_JSON_STRICT, &header_limits, &json, reader->err));
    const dsc_status status = read_tree(reader, dsc_json_root(json));
    dsc_json_close(&json);
    return status;
}

static dsc_status read_header(dsc_safetensors *st, dsc_error *err)
{
    header_reader reader = { st, 0, 0, NULL, err };
    char *text = NULL;
    int64_t file_bytes = 0, bytes = 0;
    uint64_t header_bytes = 0;
    DSC_TRY(dsc_io_size(st->io, st->file, &file_bytes, err));
    if (file_bytes < (int64_t)sizeof header_bytes)
        return REFUSE(&reader, "a file of %lld bytes is not a safetensors file: "
                                 "it starts with 8 bytes of header length",
                      (long long)file_bytes);
    DSC_TRY(dsc_io_read(st->io, st->file, &header_bytes, sizeof header_bytes, 0, err));
    DSC_TRY(read_length(&reader, header_bytes, file_bytes, &bytes));
    DSC_TRY(dsc_alloc_zeroed(st->alloc, DSC_TAG_CONTROL, bytes + 1, 1, &text, err));
    dsc_status status = dsc_io_read(st->io, st->file, text, bytes, sizeof header_bytes, err);
    if (status == DSC_OK)
        status = read_text(&reader, text, bytes);
    dsc_alloc_free(st->alloc, text);
    return status;
}

static dsc_status open_empty(dsc_safetensors **out, const dsc_io *io, dsc_alloc *alloc, dsc_error *err)
{
    dsc_safetensors *st = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *st, &st, err));
    st->alloc = alloc;
    st->io = io;
    const dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *st->file, &st->file, err);
    if (status != DSC_OK) {
        dsc_safetensors_close(&st);
        return status;
    }
    *st->file = (dsc_file)DSC_FILE_INIT;
    *out = st;
    return DSC_OK;
}

dsc_status dsc_safetensors_open(dsc_safetensors **out, const dsc_io *io, dsc_alloc *alloc, const char *path,
                                dsc_error *err)
{
    *out = NULL;
    DSC_TRY(open_empty(out, io, alloc, err));
    dsc_status status = dsc_io_open(io, path, DSC_IO_READ_ONLY, (*out)->file, err);
    if (status == DSC_OK)
        status = read_header(*out, err);
    if (status != DSC_OK)
        dsc_safetensors_close(out);
    return status;
}

dsc_status dsc_safetensors_parse(dsc_safetensors **out, dsc_alloc *alloc, const char *path, const char *head,
                                 int64_t head_bytes, int64_t file_bytes, dsc_error *err)
{
    uint64_t header_bytes = 0;
    int64_t bytes = 0;
    *out = NULL;
    DSC_TRY(open_empty(out, NULL, alloc, err));
    header_reader reader = { *out, 0, 0, NULL, err };
    snprintf((*out)->file->path, sizeof (*out)->file->path, "%s", path);
    dsc_status status = DSC_OK;
    if (head_bytes < (int64_t)sizeof header_bytes)
        status = REFUSE(&reader, "not a safetensors file: it would have a header of %lld bytes",
                        (long long)head_bytes);
    if (status == DSC_OK) {
        memcpy(&header_bytes, head, sizeof header_bytes);
        status = read_length(&reader, header_bytes, dsc_min_i64(head_bytes, file_bytes), &bytes);
    }
    if (status == DSC_OK) {
        reader.data_bytes = file_bytes - reader.data_offset;
        status = read_text(&reader, head + sizeof header_bytes, bytes);
    }
    if (status != DSC_OK)
        dsc_safetensors_close(out);
    return status;
}

void dsc_safetensors_close(dsc_safetensors **st_ptr)
{
    dsc_safetensors *st = *st_ptr;
    if (st == NULL)
        return;
    if (st->file != NULL)
        (void)dsc_io_close(st->io, st->file, NULL); /* only read: nothing can be lost */
    dsc_alloc_free(st->alloc, st->file);
    dsc_alloc_free(st->alloc, st->metadata);
    dsc_alloc_free(st->alloc, st->entries);
    dsc_alloc_free(st->alloc, st->text);
    dsc_alloc_free(st->alloc, st);
    *st_ptr = NULL;
}

const char *dsc_safetensors_path(const dsc_safetensors *st)
{
    return st->file->path;
}

int64_t dsc_safetensors_count(const dsc_safetensors *st)
{
    return st->count;
}

const dsc_safetensors_entry *dsc_safetensors_at(const dsc_safetensors *st, int64_t i)
{
    DSC_ASSERT(i >= 0);
    DSC_ASSERT(i < st->count);
    return &st->entries[i];
}

const dsc_safetensors_entry *dsc_safetensors_find(const dsc_safetensors *st, const char *name)
{
    const dsc_safetensors_entry key = { .name = name };
    return bsearch(&key, st->entries, (size_t)st->count, sizeof *st->entries, compare_name);
}

bool dsc_safetensors_is_average(const dsc_safetensors *st, const dsc_safetensors_entry *entry)
{
    static const size_t before = sizeof DSC_SAFETENSORS_AVERAGE - 1;
    return strncmp(entry->name, DSC_SAFETENSORS_AVERAGE, before) == 0 &&
           dsc_safetensors_find(st, entry->name + before) != NULL;
}

const dsc_safetensors_entry *dsc_safetensors_average(const dsc_safetensors *st, const dsc_safetensors_entry *entry)
{
    char name[sizeof DSC_SAFETENSORS_AVERAGE + DSC_SAFETENSORS_NAME_BYTES_MAX];
    const int bytes = snprintf(name, sizeof name, DSC_SAFETENSORS_AVERAGE "%s", entry->name);
    DSC_ASSERT(bytes < (int)sizeof name);
    return dsc_safetensors_find(st, name);
}

/* ---- tensors of several names ---- */

static bool is_next_part(const dsc_safetensors_entry *first, const dsc_safetensors_entry *part, int64_t index)
{
    int64_t before = 0;
    bool is = part->desc.dtype == first->desc.dtype && part->desc.dim_count == first->desc.dim_count &&
              part->bytes == first->bytes && dsc_mul_i64(index, first->bytes, &before) &&
              part->offset - first->offset == before;
    for (int32_t d = 0; d < first->desc.dim_count && is; d++)
        is = part->desc.dim[d] == first->desc.dim[d];
    return is;
}

/* Parts from 1 on leave the list, where they are marked by a missing name. */
static dsc_status mark_parts(dsc_safetensors *st, const char *name, dsc_safetensors_entry *first, int64_t *parts,
                             dsc_error *err)
{
    char part_name[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    bool *taken = NULL;
    DSC_TRY(dsc_alloc_zeroed(st->alloc, DSC_TAG_CONTROL, st->count, sizeof *taken, &taken, err));
    for (*parts = 1; *parts < st->count && dsc_safetensors_part_name(name, *parts, part_name); ++*parts) {
        const dsc_safetensors_entry *part = dsc_safetensors_find(st, part_name);
        if (part == NULL)
            break;
        if (!is_next_part(first, part, *parts)) {
            dsc_alloc_free(st->alloc, taken);
            return DSC_FAIL(err, DSC_ERR_INPUT, st->file->path,
                            "tensor \"%.200s\" does not follow that of the number before it with the same shape",
                            part->name);
        }
        taken[part - st->entries] = true;
    }
    for (int64_t i = 0; i < st->count; i++)
        if (taken[i])
            st->entries[i].name = NULL;
    dsc_alloc_free(st->alloc, taken);
    return DSC_OK;
}

static void drop_marked(dsc_safetensors *st)
{
    int64_t count = 0;
    bool sorted = true;
    for (int64_t i = 0; i < st->count; i++)
        if (st->entries[i].name != NULL)
            st->entries[count++] = st->entries[i];
    st->count = count;
    for (int64_t i = 1; i < count; i++)
        sorted &= compare_name(&st->entries[i - 1], &st->entries[i]) < 0;
    if (!sorted) /* '*' stands before digits, and rarely another character is between them */
        qsort(st->entries, (size_t)count, sizeof *st->entries, compare_name);
}

dsc_status dsc_safetensors_unite(dsc_safetensors *st, const char *name, dsc_error *err)
{
    char part_name[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    int64_t parts = 0;
    if (!dsc_safetensors_part_name(name, 0, part_name) || dsc_safetensors_find(st, name) != NULL)
        return DSC_OK;
    const dsc_safetensors_entry *found = dsc_safetensors_find(st, part_name);
    if (found == NULL)
        return DSC_OK;
    dsc_safetensors_entry *first = &st->entries[found - st->entries];
    if (first->desc.dim_count >= DSC_DIMS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, st->file->path, "tensor \"%.200s\" has %d dimensions; expected fewer",
                        first->name, (int)first->desc.dim_count);
    DSC_TRY(mark_parts(st, name, first, &parts, err));
    st->text[first->name - st->text + (strchr(name, '*') - name)] = '*'; /* in place of its 0 */
    memmove(first->desc.dim + 1, first->desc.dim, (size_t)first->desc.dim_count * sizeof *first->desc.dim);
    first->desc.dim[0] = parts;
    first->desc.dim_count++;
    first->count *= parts;
    first->bytes *= parts;
    drop_marked(st);
    return DSC_OK;
}

const char *dsc_safetensors_metadata(const dsc_safetensors *st, const char *key)
{
    for (int64_t i = 0; i < st->metadata_count; i++)
        if (strcmp(st->metadata[i].key, key) == 0)
            return st->metadata[i].value;
    return NULL;
}

dsc_status dsc_safetensors_read_bytes(const dsc_safetensors *st, const dsc_safetensors_entry *entry, int64_t first,
                                      int64_t bytes, void *out, dsc_error *err)
{
    DSC_ASSERT(first >= 0);
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(first <= entry->bytes - bytes);
    return dsc_io_read(st->io, st->file, out, bytes, entry->offset + first, err);
}

void dsc_safetensors_expect(const dsc_safetensors *st, const dsc_safetensors_entry *entry, int64_t first, int64_t bytes)
{
    DSC_ASSERT(first >= 0);
    DSC_ASSERT(first <= entry->bytes - bytes);
    dsc_io_expect(st->file, bytes, entry->offset + first);
}

dsc_status dsc_safetensors_read_f32(const dsc_safetensors *st, const dsc_safetensors_entry *entry, int64_t first,
                                    int64_t count, float *out, dsc_error *err)
{
    DSC_ASSERT(first >= 0);
    DSC_ASSERT(count >= 0);
    DSC_ASSERT(first <= entry->count - count);
    const dsc_dtype dtype = entry->desc.dtype;
    if (dtype == DSC_F32)
        return dsc_safetensors_read_bytes(st, entry, first * 4, count * 4, out, err);
    if (dtype != DSC_BF16 && dtype != DSC_F16)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, st->file->path,
                        "tensor \"%.200s\" is in %s; weights are read from F32, BF16 or F16", entry->name,
                        entry->dtype_text);
    /* The 16-bit values are read into the upper half of `out` and widened from its start. The write of element i ends
     * at or below the 16-bit value of element i, which has been read before. */
    char *const halves = (char *)out + count * 2;
    DSC_TRY(dsc_safetensors_read_bytes(st, entry, first * 2, count * 2, halves, err));
    for (int64_t i = 0; i < count; i++) {
        uint16_t h = 0;
        memcpy(&h, halves + i * 2, 2);
        const float x = dtype == DSC_BF16 ? dsc_f32_from_bf16(h) : dsc_f32_from_f16(h);
        memcpy((char *)out + i * 4, &x, 4);
    }
    return DSC_OK;
}
