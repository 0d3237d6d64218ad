/* checkpoint_manifest.c - manifest.json: what a checkpoint is. Written last; its own SHA-256 is its last member.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "engine/checkpoint_internal.h"

#define MANIFEST_BYTES_MAX (INT64_C(256) << 20)
#define MANIFEST_VERSION 1
#define SEAL_TEXT "\"sha256\":\""
#define SEAL_BYTES ((int64_t)sizeof SEAL_TEXT - 1 + 64 + 3) /* "sha256":"<64>"}\n */

/* ---- writing ---- */

typedef struct text_out {
    char *text; /* NULL: only counts */
    int64_t bytes, room;
} text_out;

static DSC_PRINTF(2, 3) void put(text_out *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int length = out->text != NULL
                           ? vsnprintf(out->text + out->bytes, (size_t)(out->room - out->bytes), fmt, args)
                           : vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    out->bytes += length;
}

static void put_text(text_out *out, const char *name, const char *value)
{
    char quoted[2 * DSC_SAFETENSORS_NAME_BYTES_MAX];
    dsc_json_quote(quoted, sizeof quoted, value);
    put(out, "\"%s\":%s,", name, quoted);
}

static void put_state(text_out *out, const dsc_run_state *s)
{
    put(out, "{\"format\":\"dsc-checkpoint\",\"version\":%d,\"step\":%" PRId64 ",\"update_count\":%" PRId64 ",",
        MANIFEST_VERSION, s->step, s->update_count);
    put(out,
        "\"next_sample\":%" PRId64 ",\"seed\":%" PRId64 ",\"train_batch_size\":%" PRId64 ",\"micro_batch\":%" PRId64
        ",",
        s->next_sample, s->seed, s->train_batch_size, s->micro_batch);
    put(out,
        "\"accumulation_steps\":%" PRId64 ",\"world_size\":%" PRId64 ",\"samples_per_epoch\":%" PRId64
        ",\"seq_length\":%" PRId64 ",",
        s->accumulation_steps, s->world_size, s->samples_per_epoch, s->seq_length);
    put(out, "\"zero_stage\":%d,\"compute_dtype\":\"%s\",\"world_size_reproducible\":%s,\"shuffle\":%s,",
        (int)s->zero_stage, s->compute_dtype == DSC_BF16 ? "bf16" : "fp32",
        s->world_size_reproducible ? "true" : "false", s->shuffle ? "true" : "false");
    put_text(out, "cpu_level", s->cpu_level);
    put_text(out, "versions", s->versions);
}

static void put_body(text_out *out, const dsc_run_state *state, const ckpt_entries *entries, const int64_t *file_bytes,
                     const ckpt_block *block, int64_t block_count)
{
    put_state(out, state);
    put(out, "\"files\":{");
    for (int f = 0, written = 0; f < CKPT_FILE_COUNT; f++)
        if (file_bytes[f] >= 0)
            put(out, "%s\"%s\":%" PRId64, written++ > 0 ? "," : "", ckpt_file_name[f], file_bytes[f]);
    put(out, "},\n\"tensors\":[");
    int64_t b = 0;
    for (int32_t e = 0; e < entries->count; e++) {
        char quoted[2 * DSC_SAFETENSORS_NAME_BYTES_MAX];
        dsc_json_quote(quoted, sizeof quoted, entries->entry[e].name);
        put(out, "%s\n{\"name\":%s,\"file\":\"%s\",\"blocks\":[", e > 0 ? "," : "", quoted,
            ckpt_file_name[entries->entry[e].file]);
        for (bool comma = false; b < block_count && block[b].entry == e; b++, comma = true)
            put(out, "%s[%" PRId64 ",%" PRId64 ",\"%016" PRIx64 "%016" PRIx64 "\"]", comma ? "," : "", block[b].first,
                block[b].count, block[b].hash.high, block[b].hash.low);
        put(out, "]}");
    }
    put(out, "],\n");
}

dsc_status ckpt_manifest_write(dsc_alloc *alloc, const dsc_run_state *state, const ckpt_entries *entries,
                               const int64_t *file_bytes, const ckpt_block *block, int64_t block_count, char **text,
                               int64_t *bytes, dsc_error *err)
{
    text_out out = { 0 };
    put_body(&out, state, entries, file_bytes, block, block_count);
    out.room = out.bytes + SEAL_BYTES + 1;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, out.room, 1, &out.text, err));
    out.bytes = 0;
    put_body(&out, state, entries, file_bytes, block, block_count);
    dsc_sha256 sha;
    uint8_t digest[32];
    char hex[65];
    dsc_sha256_init(&sha);
    dsc_sha256_update(&sha, out.text, (size_t)out.bytes);
    dsc_sha256_final(&sha, digest);
    dsc_hex(hex, digest, sizeof digest);
    put(&out, SEAL_TEXT "%s\"}\n", hex);
    *text = out.text;
    *bytes = out.bytes;
    return DSC_OK;
}

/* ---- reading ---- */

typedef struct read_ctx {
    const dsc_json *json;
    const char *path;
    dsc_error *err;
} read_ctx;

static dsc_status bad(const read_ctx *c, const cJSON *item, const char *what)
{
    char where[256];
    return DSC_FAIL(c->err, DSC_ERR_INPUT, item != NULL ? dsc_json_where(c->json, item, where, sizeof where) : c->path,
                    "damaged manifest: %s", what);
}

static dsc_status get_int(const read_ctx *c, const cJSON *object, const char *name, int64_t least, int64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(item) || item->valuedouble != (double)(int64_t)item->valuedouble ||
        item->valuedouble < (double)least)
        return bad(c, item, name);
    *out = (int64_t)item->valuedouble;
    return DSC_OK;
}

static dsc_status get_bool(const read_ctx *c, const cJSON *object, const char *name, bool *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsBool(item))
        return bad(c, item, name);
    *out = cJSON_IsTrue(item);
    return DSC_OK;
}

static dsc_status get_text(const read_ctx *c, const cJSON *object, const char *name, char *out, size_t out_bytes)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= out_bytes)
        return bad(c, item, name);
    memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
    return DSC_OK;
}

static dsc_status read_state(const read_ctx *c, const cJSON *root, dsc_run_state *s)
{
    char text[32];
    int64_t version = 0, stage = 0;
    DSC_TRY(get_text(c, root, "format", text, sizeof text));
    DSC_TRY(get_int(c, root, "version", 0, &version));
    if (strcmp(text, "dsc-checkpoint") != 0 || version != MANIFEST_VERSION)
        return bad(c, NULL, "format or version of another program; this one reads dsc-checkpoint version 1");
    DSC_TRY(get_int(c, root, "step", 0, &s->step));
    DSC_TRY(get_int(c, root, "update_count", 0, &s->update_count));
    DSC_TRY(get_int(c, root, "next_sample", 0, &s->next_sample));
    DSC_TRY(get_int(c, root, "seed", INT64_MIN / 1024, &s->seed));
    DSC_TRY(get_int(c, root, "train_batch_size", 1, &s->train_batch_size));
    DSC_TRY(get_int(c, root, "micro_batch", 1, &s->micro_batch));
    DSC_TRY(get_int(c, root, "accumulation_steps", 1, &s->accumulation_steps));
    DSC_TRY(get_int(c, root, "world_size", 1, &s->world_size));
    DSC_TRY(get_int(c, root, "samples_per_epoch", 0, &s->samples_per_epoch));
    DSC_TRY(get_int(c, root, "seq_length", 0, &s->seq_length));
    DSC_TRY(get_int(c, root, "zero_stage", 0, &stage));
    DSC_TRY(get_text(c, root, "compute_dtype", text, sizeof text));
    DSC_TRY(get_bool(c, root, "world_size_reproducible", &s->world_size_reproducible));
    DSC_TRY(get_bool(c, root, "shuffle", &s->shuffle));
    DSC_TRY(get_text(c, root, "cpu_level", s->cpu_level, sizeof s->cpu_level));
    DSC_TRY(get_text(c, root, "versions", s->versions, sizeof s->versions));
    if (stage > 3 || (strcmp(text, "bf16") != 0 && strcmp(text, "fp32") != 0) || s->update_count > s->step)
        return bad(c, NULL, "zero_stage, compute_dtype or update_count");
    s->zero_stage = (int32_t)stage;
    s->compute_dtype = strcmp(text, "bf16") == 0 ? DSC_BF16 : DSC_F32;
    return DSC_OK;
}

static int find_file(const char *name)
{
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        if (strcmp(ckpt_file_name[f], name) == 0)
            return f;
    return -1;
}

static dsc_status read_files(const read_ctx *c, const cJSON *files, ckpt_manifest *m)
{
    const cJSON *item;
    if (!cJSON_IsObject(files))
        return bad(c, files, "files");
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        m->file_bytes[f] = -1;
    cJSON_ArrayForEach(item, files)
    {
        const int f = find_file(item->string);
        if (f < 0)
            return bad(c, item, "a file of an unknown name");
        DSC_TRY(get_int(c, files, item->string, 0, &m->file_bytes[f]));
    }
    return m->file_bytes[CKPT_MODEL] < 0 ? bad(c, files, "model.safetensors is not among the files") : DSC_OK;
}

static bool parse_hash(const char *text, dsc_hash128 *out)
{
    char extra;
    return strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32 &&
           sscanf(text, "%16" SCNx64 "%16" SCNx64 "%c", &out->high, &out->low, &extra) == 2;
}

/* Blocks of one tensor: in order, each starting where the one before ended. */
static dsc_status read_blocks(const read_ctx *c, const cJSON *blocks, ckpt_manifest *m, int64_t tensor)
{
    const cJSON *item;
    int64_t at = 0;
    if (!cJSON_IsArray(blocks))
        return bad(c, blocks, "blocks");
    m->tensor[tensor].first_block = m->block_count;
    cJSON_ArrayForEach(item, blocks)
    {
        ckpt_block *block = &m->block[m->block_count];
        const cJSON *first = cJSON_GetArrayItem(item, 0), *count = cJSON_GetArrayItem(item, 1),
                    *hash = cJSON_GetArrayItem(item, 2);
        if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 3 || !cJSON_IsNumber(first) || !cJSON_IsNumber(count) ||
            !cJSON_IsString(hash) || first->valuedouble != (double)at || count->valuedouble < 1 ||
            count->valuedouble > CKPT_BLOCK_BYTES || count->valuedouble != (double)(int64_t)count->valuedouble ||
            !parse_hash(hash->valuestring, &block->hash))
            return bad(c, item, "a block out of order or without a hash");
        block->entry = (int32_t)tensor;
        block->first = at;
        block->count = (int64_t)count->valuedouble;
        at += block->count;
        m->block_count++;
    }
    m->tensor[tensor].block_count = m->block_count - m->tensor[tensor].first_block;
    return DSC_OK;
}

static dsc_status read_tensors(const read_ctx *c, const cJSON *tensors, ckpt_manifest *m)
{
    const cJSON *item;
    int64_t blocks = 0, tensor_count = 0;
    if (!cJSON_IsArray(tensors))
        return bad(c, tensors, "tensors");
    cJSON_ArrayForEach(item, tensors)
    {
        tensor_count++;
        blocks += cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(item, "blocks"));
    }
    DSC_TRY(dsc_alloc_zeroed(m->alloc, DSC_TAG_IO, tensor_count, sizeof *m->tensor, &m->tensor, c->err));
    DSC_TRY(dsc_alloc_zeroed(m->alloc, DSC_TAG_IO, blocks, sizeof *m->block, &m->block, c->err));
    cJSON_ArrayForEach(item, tensors)
    {
        char file[64], name[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
        ckpt_manifest_tensor *tensor = &m->tensor[m->tensor_count];
        DSC_TRY(get_text(c, item, "name", name, sizeof name));
        DSC_TRY(get_text(c, item, "file", file, sizeof file));
        DSC_TRY(dsc_alloc_strdup(m->alloc, DSC_TAG_IO, name, &tensor->name, c->err));
        m->tensor_count++;
        tensor->file = find_file(file);
        if (tensor->file < 0 || m->file_bytes[tensor->file] < 0)
            return bad(c, item, "a tensor of a file that is not listed");
        DSC_TRY(read_blocks(c, cJSON_GetObjectItemCaseSensitive(item, "blocks"), m, m->tensor_count - 1));
    }
    return DSC_OK;
}

/* The text ends with its own SHA-256; anything else was cut, flipped or edited. */
static bool sealed(const char *text, int64_t bytes)
{
    if (bytes < SEAL_BYTES)
        return false;
    const char *seal = text + bytes - SEAL_BYTES;
    dsc_sha256 sha;
    uint8_t digest[32];
    char hex[65];
    dsc_sha256_init(&sha);
    dsc_sha256_update(&sha, text, (size_t)(bytes - SEAL_BYTES));
    dsc_sha256_final(&sha, digest);
    dsc_hex(hex, digest, sizeof digest);
    return memcmp(seal, SEAL_TEXT, sizeof SEAL_TEXT - 1) == 0 && memcmp(seal + sizeof SEAL_TEXT - 1, hex, 64) == 0 &&
           memcmp(text + bytes - 3, "\"}\n", 3) == 0;
}

static dsc_status parse(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes, ckpt_manifest *m,
                        dsc_error *err)
{
    const dsc_json_limits limits = { MANIFEST_BYTES_MAX, 8, 40000000 };
    dsc_json *json = NULL;
    if (!sealed(text, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "damaged manifest: it does not match its own SHA-256; use another checkpoint");
    DSC_TRY(dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err));
    const read_ctx c = { json, path, err };
    const cJSON *root = dsc_json_root(json);
    dsc_status status = cJSON_IsObject(root) ? read_state(&c, root, &m->state) : bad(&c, root, "not an object");
    if (status == DSC_OK)
        status = read_files(&c, cJSON_GetObjectItemCaseSensitive(root, "files"), m);
    if (status == DSC_OK)
        status = read_tensors(&c, cJSON_GetObjectItemCaseSensitive(root, "tensors"), m);
    dsc_json_close(&json);
    return status;
}

dsc_status ckpt_manifest_read(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, ckpt_manifest *out,
                              dsc_error *err)
{
    char path[CKPT_PATH_BYTES];
    char *text = NULL;
    int64_t bytes;
    *out = (ckpt_manifest){ .alloc = alloc };
    DSC_TRY(dsc_path_join(path, sizeof path, step_dir, CKPT_MANIFEST_FILE, err));
    DSC_TRY(dsc_io_read_all(io, alloc, path, MANIFEST_BYTES_MAX, &text, &bytes, err));
    const dsc_status status = parse(alloc, path, text, bytes, out, err);
    dsc_alloc_free(alloc, text);
    if (status != DSC_OK)
        ckpt_manifest_close(out);
    return status;
}

void ckpt_manifest_close(ckpt_manifest *manifest)
{
    if (manifest->alloc != NULL) {
        for (int64_t t = 0; t < manifest->tensor_count; t++)
            dsc_alloc_free(manifest->alloc, manifest->tensor[t].name);
        dsc_alloc_free(manifest->alloc, manifest->tensor);
        dsc_alloc_free(manifest->alloc, manifest->block);
    }
    *manifest = (ckpt_manifest){ 0 };
}
