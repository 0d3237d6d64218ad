/* manifest.c - manifest.json read: what a checkpoint is. Its own SHA-256 is its last member.
 *
 * A tensor's blocks are one string of hashes: where they begin follows from its size, its dtype and the list of cuts.
 * A JSON value per block would take ten times the memory to read. SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/checkpoint/internal.h"

#define PLANS_BYTES_MAX (INT64_C(1) << 20)
#define SETTINGS_BYTES_MAX (INT64_C(256) << 10)

/* The dtype of that text; F32 also of any other. */
static dsc_dtype dtype_of(const char *text, const char *(*text_of)(dsc_dtype dtype))
{
    static const dsc_dtype others[] = { DSC_BF16, DSC_F16, DSC_U8 };
    for (size_t i = 0; i < DSC_COUNT(others); i++)
        if (strcmp(text, text_of(others[i])) == 0)
            return others[i];
    return DSC_F32;
}

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

/* A whole number of least..2^53. */
static bool whole_number(const cJSON *item, int64_t least, int64_t *out)
{
    return dsc_json_integer(item, least, DSC_JSON_INTEGER_MAX, out);
}

static dsc_status get_int(const read_ctx *c, const cJSON *object, const char *name, int64_t least, int64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return whole_number(item, least, out) ? DSC_OK : bad(c, item, name);
}

static dsc_status get_bool(const read_ctx *c, const cJSON *object, const char *name, bool *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsBool(item))
        return bad(c, item, name);
    *out = cJSON_IsTrue(item);
    return DSC_OK;
}

static dsc_status text_of(const read_ctx *c, const cJSON *item, const char *name, char *out, size_t out_bytes)
{
    DSC_ASSERT(out_bytes > 0);
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= out_bytes)
        return bad(c, item, name);
    for (const unsigned char *at = (const unsigned char *)item->valuestring; *at != 0; at++)
        if (*at < 0x20 || *at == 0x7f) /* such text ends up in messages, and they on a terminal */
            return bad(c, item, name);
    memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
    return DSC_OK;
}

static dsc_status get_text(const read_ctx *c, const cJSON *object, const char *name, char *out, size_t out_bytes)
{
    return text_of(c, cJSON_GetObjectItemCaseSensitive(object, name), name, out, out_bytes);
}

/* Not there: a run on a CPU, or one of a device that has nothing to say. */
static dsc_status read_plans(const read_ctx *c, dsc_alloc *alloc, const cJSON *plans, char **out)
{
    char line[DSC_CKPT_PLAN_LINE_BYTES_MAX + 1];
    const cJSON *item;
    int64_t bytes = 0;
    if (plans == NULL)
        return DSC_OK;
    if (!cJSON_IsArray(plans))
        return bad(c, plans, "gemm_plans");
    cJSON_ArrayForEach(item, plans)
    {
        DSC_TRY(text_of(c, item, "gemm_plans", line, sizeof line));
        bytes += (int64_t)strlen(line) + 1;
        if (bytes > PLANS_BYTES_MAX)
            return bad(c, plans, "gemm_plans");
    }
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, bytes + 1, 1, out, c->err));
    bytes = 0;
    cJSON_ArrayForEach(item, plans)
    {
        const size_t length = strlen(item->valuestring);
        memcpy(*out + bytes, item->valuestring, length);
        bytes += (int64_t)length;
        (*out)[bytes++] = '\n';
    }
    return DSC_OK;
}

/* Bytes of a setting as a line of text, whose parts do not separate lines or themselves; -1: it is none. */
static int64_t setting_bytes(const cJSON *item)
{
    if (!cJSON_IsString(item) || *item->string == 0 || strpbrk(item->string, "\t\n") != NULL)
        return -1;
    const int64_t bytes = (int64_t)(strlen(item->string) + strlen(item->valuestring)) + 2;
    return bytes < DSC_SETTING_LINE_BYTES ? bytes : -1;
}

/* Not there: an older version wrote the checkpoint. */
static dsc_status read_settings(const read_ctx *c, dsc_alloc *alloc, const cJSON *settings, char **out)
{
    char value[DSC_SETTING_LINE_BYTES];
    const cJSON *item;
    int64_t bytes = 0;
    if (settings == NULL)
        return DSC_OK;
    if (!cJSON_IsObject(settings))
        return bad(c, settings, "settings");
    cJSON_ArrayForEach(item, settings)
    {
        if (setting_bytes(item) < 0)
            return bad(c, item, "settings");
        DSC_TRY(text_of(c, item, "settings", value, sizeof value));
        bytes += setting_bytes(item);
        if (bytes > SETTINGS_BYTES_MAX)
            return bad(c, settings, "settings");
    }
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, bytes + 1, 1, out, c->err));
    char *at = *out;
    cJSON_ArrayForEach(item, settings)
        at += snprintf(at, (size_t)setting_bytes(item) + 1, "%s\t%s\n", item->string, item->valuestring);
    DSC_ASSERT(at - *out == bytes);
    return DSC_OK;
}

static dsc_status get_precision(const read_ctx *c, const cJSON *object, const char *name, dsc_dtype *out)
{
    char text[32];
    DSC_TRY(get_text(c, object, name, text, sizeof text));
    *out = dtype_of(text, dsc_dtype_text);
    return strcmp(text, dsc_dtype_text(*out)) == 0 ? DSC_OK : bad(c, NULL, name);
}

static dsc_status read_loss_scaler(const read_ctx *c, const cJSON *root, dsc_loss_scaler *s)
{
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(root, "loss_scaler");
    if (object == NULL)
        return DSC_OK;
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(object, "scale");
    if (!cJSON_IsNumber(scale) || !(scale->valuedouble > 0 && scale->valuedouble <= (double)FLT_MAX))
        return bad(c, object, "loss_scaler");
    s->scale = scale->valuedouble;
    DSC_TRY(get_int(c, object, "step", 0, &s->step));
    DSC_TRY(get_int(c, object, "overflow_step", -1, &s->overflow_step));
    DSC_TRY(get_int(c, object, "overflows_left", -DSC_JSON_INTEGER_MAX, &s->overflows_left));
    return s->overflow_step < s->step || s->step == 0 ? DSC_OK : bad(c, object, "loss_scaler");
}

/* Not there: none are left out. */
static dsc_status read_skips(const read_ctx *c, const cJSON *root, dsc_skips *skips)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "skips"), *item;
    int64_t after = 0, batches = 0;
    if (list != NULL && (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > DSC_SKIPS_MAX))
        return bad(c, list, "skips");
    cJSON_ArrayForEach(item, list)
    {
        const int64_t least = after;
        DSC_TRY(get_int(c, item, "after_step", least, &after));
        DSC_TRY(get_int(c, item, "batches", 1, &batches));
        if (batches > DSC_SKIP_BATCHES_MAX)
            return bad(c, item, "skips");
        skips->skip[skips->count++] = (dsc_skip) { after, batches };
    }
    DSC_ASSERT(skips->count <= DSC_SKIPS_MAX);
    return DSC_OK;
}

static bool is_finite_number(const cJSON *item, double least, double *out)
{
    *out = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return cJSON_IsNumber(item) && isfinite(*out) && *out >= least;
}

static dsc_status read_mean(const read_ctx *c, const cJSON *spikes, const char *name, dsc_spike_mean *out)
{
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(spikes, name);
    if (!is_finite_number(cJSON_GetObjectItemCaseSensitive(object, "mean"), -DBL_MAX, &out->mean) ||
        !is_finite_number(cJSON_GetObjectItemCaseSensitive(object, "variance"), 0, &out->variance))
        return bad(c, object, "spikes");
    return get_int(c, object, "count", 0, &out->count);
}

/* Not there: the run has not watched its losses. */
static dsc_status read_spikes(const read_ctx *c, const cJSON *root, dsc_spike_watch *watch)
{
    const cJSON *spikes = cJSON_GetObjectItemCaseSensitive(root, "spikes");
    if (spikes == NULL)
        return DSC_OK;
    DSC_TRY(read_mean(c, spikes, "loss", &watch->loss));
    return read_mean(c, spikes, "norm", &watch->norm);
}

/* Adam, if it is not named. */
static dsc_status read_optimizer(const read_ctx *c, const cJSON *root, dsc_recipe *recipe)
{
    char text[32];
    if (cJSON_GetObjectItemCaseSensitive(root, "optimizer") == NULL)
        return DSC_OK;
    DSC_TRY(get_text(c, root, "optimizer", text, sizeof text));
    *recipe = dsc_recipe_find(text);
    return *recipe != DSC_RECIPE_COUNT ? DSC_OK : bad(c, NULL, "an optimizer that this version does not know");
}

/* One, if they are not named. */
static dsc_status read_tensor_ranks(const read_ctx *c, const cJSON *root, int32_t *ranks)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "tensor_ranks");
    int64_t count = 0;
    if (item != NULL && (!whole_number(item, 2, &count) || count > INT32_MAX))
        return bad(c, item, "tensor_ranks");
    *ranks = (int32_t)count;
    return DSC_OK;
}

static dsc_status read_state(const read_ctx *c, const cJSON *root, dsc_run_state *s)
{
    char text[32];
    int64_t version = 0, stage = 0;
    DSC_TRY(get_text(c, root, "format", text, sizeof text));
    DSC_TRY(get_int(c, root, "version", 0, &version));
    if (strcmp(text, "dsc-checkpoint") != 0 || version != DSC_CKPT_MANIFEST_VERSION)
        return bad(c, NULL, "format or version of another program; this one reads dsc-checkpoint version 1");
    DSC_TRY(get_int(c, root, "step", 0, &s->step));
    DSC_TRY(get_int(c, root, "update_count", 0, &s->update_count));
    DSC_TRY(get_int(c, root, "next_sample", 0, &s->next_sample));
    DSC_TRY(get_int(c, root, "seed", -DSC_JSON_INTEGER_MAX, &s->seed));
    DSC_TRY(get_int(c, root, "train_batch_size", 1, &s->train_batch_size));
    DSC_TRY(get_int(c, root, "micro_batch", 1, &s->micro_batch));
    DSC_TRY(get_int(c, root, "accumulation_steps", 1, &s->accumulation_steps));
    DSC_TRY(get_int(c, root, "world_size", 1, &s->world_size));
    s->shard_ranks = s->world_size;
    if (cJSON_GetObjectItemCaseSensitive(root, "shard_ranks") != NULL)
        DSC_TRY(get_int(c, root, "shard_ranks", 1, &s->shard_ranks));
    DSC_TRY(read_tensor_ranks(c, root, &s->tensor_ranks));
    DSC_TRY(get_int(c, root, "samples_per_epoch", 0, &s->samples_per_epoch));
    DSC_TRY(get_int(c, root, "seq_length", 0, &s->seq_length));
    s->document_end = -1;
    if (cJSON_GetObjectItemCaseSensitive(root, "document_end") != NULL)
        DSC_TRY(get_int(c, root, "document_end", 0, &s->document_end));
    DSC_TRY(get_int(c, root, "zero_stage", 0, &stage));
    DSC_TRY(get_precision(c, root, "compute_dtype", &s->compute_dtype));
    DSC_TRY(read_loss_scaler(c, root, &s->loss_scaler));
    DSC_TRY(read_skips(c, root, &s->skips));
    DSC_TRY(read_spikes(c, root, &s->spikes));
    if (cJSON_GetObjectItemCaseSensitive(root, "moment_dtype") != NULL) /* fp32 if it is not named */
        DSC_TRY(get_precision(c, root, "moment_dtype", &s->moment_dtype));
    DSC_TRY(read_optimizer(c, root, &s->recipe));
    DSC_TRY(get_bool(c, root, "world_size_reproducible", &s->world_size_reproducible));
    DSC_TRY(get_bool(c, root, "shuffle", &s->shuffle));
    DSC_TRY(get_text(c, root, "cpu_level", s->cpu_level, sizeof s->cpu_level));
    DSC_TRY(get_text(c, root, "versions", s->versions, sizeof s->versions));
    if (cJSON_GetObjectItemCaseSensitive(root, "packed_weights") != NULL)
        DSC_TRY(get_text(c, root, "packed_weights", s->packed_hash, sizeof s->packed_hash));
    if (cJSON_GetObjectItemCaseSensitive(root, "averages") != NULL)
        DSC_TRY(get_bool(c, root, "averages", &s->averages));
    if (cJSON_GetObjectItemCaseSensitive(root, "outer_momentum") != NULL)
        DSC_TRY(get_bool(c, root, "outer_momentum", &s->outer));
    if (s->compute_dtype == DSC_U8 || (s->moment_dtype == DSC_U8 && s->recipe != DSC_RECIPE_ADAMW))
        return bad(c, NULL, "a precision that its optimizer does not have");
    if (stage > 3 || s->update_count > s->step)
        return bad(c, NULL, "zero_stage or update_count");
    DSC_ASSERT(s->recipe < DSC_RECIPE_COUNT);
    s->zero_stage = (int32_t)stage;
    return DSC_OK;
}

/* Exactly the names that this version writes: none of them leaves the folder. */
static int find_file(const char *name)
{
    for (int f = 0; f < DSC_CKPT_FILE_COUNT; f++)
        if (strcmp(dsc_ckpt_file_name[f], name) == 0)
            return f;
    return -1;
}

static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* 16 lower-case hex digits; a text that ends earlier is refused by its NUL. */
static bool parse_u64(const char *text, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < 16; i++) {
        if (digit(text[i]) < 0)
            return false;
        *out = *out << 4 | (uint64_t)digit(text[i]);
    }
    return true;
}

static bool parse_digest(const char *text, uint8_t out[32])
{
    for (int i = 0; i < 64; i++) {
        if (digit(text[i]) < 0)
            return false;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | digit(text[i]));
    }
    return true;
}

static dsc_status read_files(const read_ctx *c, const cJSON *files, dsc_ckpt_manifest *m)
{
    const cJSON *item;
    if (!cJSON_IsObject(files))
        return bad(c, files, "files");
    for (int f = 0; f < DSC_CKPT_FILE_COUNT; f++)
        m->file[f].bytes = -1;
    cJSON_ArrayForEach(item, files)
    {
        char hex[65];
        const int f = find_file(item->string);
        if (f < 0 || !cJSON_IsObject(item))
            return bad(c, item, "a file of an unknown name, or without a size");
        dsc_ckpt_file_info *info = &m->file[f];
        DSC_TRY(get_int(c, item, "bytes", 0, &info->bytes));
        DSC_TRY(get_int(c, item, "head_bytes", 0, &info->head_bytes));
        DSC_TRY(get_text(c, item, "sha256", hex, sizeof hex));
        const bool whole = f >= DSC_CKPT_TENSOR_FILE_COUNT;
        const int64_t most = whole ? DSC_CKPT_SMALL_BYTES_MAX : 8 + DSC_SAFETENSORS_HEADER_BYTES_MAX;
        if (!parse_digest(hex, info->sha256) || info->head_bytes > info->bytes || info->head_bytes > most ||
            (whole && info->head_bytes != info->bytes))
            return bad(c, item, "head_bytes or sha256 of a file");
    }
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++)
        if (m->file[f].bytes < 0)
            return bad(c, files, "a safetensors file is not listed");
    return DSC_OK;
}

/* Not there: all of it is here. */
static dsc_status read_part(const read_ctx *c, const cJSON *part, dsc_ckpt_manifest *m)
{
    const cJSON *hosts = cJSON_GetObjectItemCaseSensitive(part, "hosts"), *host;
    int64_t index = 0;
    m->parts.count = 1;
    if (part == NULL)
        return DSC_OK;
    const int count = cJSON_IsArray(hosts) ? cJSON_GetArraySize(hosts) : 0;
    DSC_TRY(get_int(c, part, "index", 0, &index));
    if (count < 2 || count > DSC_CKPT_PARTS_MOST || index >= count)
        return bad(c, part, "part");
    DSC_TRY(dsc_alloc_zeroed(m->alloc, DSC_TAG_IO, count, sizeof *m->parts.host, &m->parts.host, c->err));
    m->parts.index = (int32_t)index;
    m->parts.count = 0;
    cJSON_ArrayForEach(host, hosts)
        DSC_TRY(text_of(c, host, "hosts", m->parts.host[m->parts.count++], DSC_CKPT_HOST_BYTES));
    DSC_ASSERT(m->parts.count == count);
    return DSC_OK;
}

/* A part, how many blocks of it, the next one, ... */
static dsc_status read_runs(const read_ctx *c, const cJSON *item, dsc_ckpt_manifest *m,
                            const dsc_ckpt_manifest_tensor *tensor)
{
    const cJSON *runs = cJSON_GetObjectItemCaseSensitive(item, "parts"), *run;
    int64_t b = tensor->first_block;
    DSC_ASSERT(b <= m->block_count);
    if (m->parts.count == 1)
        return runs == NULL ? DSC_OK : bad(c, item, "parts of a tensor that is whole");
    if (!cJSON_IsArray(runs))
        return bad(c, item, "a tensor without parts");
    for (run = runs->child; run != NULL; run = run->next->next) {
        int64_t part = 0, count = 0;
        if (!whole_number(run, 0, &part) || part >= m->parts.count || run->next == NULL ||
            !whole_number(run->next, 1, &count) || count > m->block_count - b)
            return bad(c, runs, "parts of a tensor");
        for (int64_t end = b + count; b < end; b++)
            m->parts.of_block[b] = (int32_t)part;
    }
    return b == m->block_count ? DSC_OK : bad(c, runs, "parts of a tensor");
}

/* End of the block that starts at `at`: at a multiple of 1 MiB, or at the next cut if that comes first. */
static bool block_end(const dsc_ckpt_manifest_tensor *tensor, int64_t at, const cJSON **cut, int64_t *end)
{
    const int64_t most = dsc_ckpt_block_elements(tensor->dtype);
    DSC_ASSERT(at < tensor->elements);
    int64_t cut_at = 0;
    *end = dsc_min_i64(tensor->elements, (at / most + 1) * most);
    if (*cut == NULL)
        return true;
    if (!whole_number(*cut, at + 1, &cut_at) || cut_at == *end)
        return false; /* out of order, or where a block ends anyway */
    if (cut_at < *end) {
        *end = cut_at;
        *cut = (*cut)->next;
    }
    DSC_ASSERT(*end > at);
    DSC_ASSERT(*end <= tensor->elements);
    return true;
}

static dsc_status read_blocks(const read_ctx *c, const cJSON *item, dsc_ckpt_manifest *m, int64_t index)
{
    dsc_ckpt_manifest_tensor *tensor = &m->tensor[index];
    DSC_ASSERT(index < m->tensor_count);
    const cJSON *cuts = cJSON_GetObjectItemCaseSensitive(item, "cuts");
    const cJSON *blocks = cJSON_GetObjectItemCaseSensitive(item, "blocks");
    if (!cJSON_IsArray(cuts) || !cJSON_IsString(blocks))
        return bad(c, item, "a tensor without cuts or blocks");
    const cJSON *cut = cuts->child;
    const char *hex = blocks->valuestring;
    tensor->first_block = m->block_count;
    for (int64_t at = 0, end; at < tensor->elements; at = end) {
        dsc_ckpt_block block = { .entry = (int32_t)index, .first = at };
        if (!block_end(tensor, at, &cut, &end))
            return bad(c, cuts, "cuts of a tensor");
        block.count = end - at;
        if (!parse_u64(hex, &block.hash.high) || !parse_u64(hex + 16, &block.hash.low))
            return bad(c, blocks, "a block without a hash");
        hex += DSC_CKPT_HASH_DIGITS;
        m->block[m->block_count++] = block;
    }
    if (*hex != 0 || cut != NULL)
        return bad(c, item, "more blocks or cuts than the tensor has room for");
    tensor->block_count = m->block_count - tensor->first_block;
    DSC_ASSERT(tensor->block_count > 0);
    return read_runs(c, item, m, tensor);
}

static dsc_status read_tensor(const read_ctx *c, const cJSON *item, dsc_ckpt_manifest *m)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 1], file[64], dtype[8];
    dsc_ckpt_manifest_tensor *tensor = &m->tensor[m->tensor_count];
    DSC_TRY(get_text(c, item, "name", name, sizeof name));
    DSC_TRY(get_text(c, item, "file", file, sizeof file));
    DSC_TRY(get_text(c, item, "dtype", dtype, sizeof dtype));
    DSC_TRY(get_int(c, item, "elements", 1, &tensor->elements));
    DSC_TRY(dsc_alloc_strdup(m->alloc, DSC_TAG_IO, name, &tensor->name, c->err));
    m->tensor_count++;
    tensor->file = find_file(file);
    tensor->dtype = dtype_of(dtype, dsc_ckpt_dtype_text);
    if (tensor->file < 0 || tensor->file >= DSC_CKPT_TENSOR_FILE_COUNT ||
        strcmp(dtype, dsc_ckpt_dtype_text(tensor->dtype)) != 0)
        return bad(c, item, "file or dtype of a tensor");
    return read_blocks(c, item, m, m->tensor_count - 1);
}

static dsc_status read_tensors(const read_ctx *c, const cJSON *tensors, dsc_ckpt_manifest *m)
{
    const cJSON *item;
    int64_t blocks = 0, tensor_count = 0;
    if (!cJSON_IsArray(tensors))
        return bad(c, tensors, "tensors");
    cJSON_ArrayForEach(item, tensors)
    {
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(item, "blocks");
        if (!cJSON_IsObject(item) || !cJSON_IsString(text))
            return bad(c, item, "a tensor without blocks");
        tensor_count++;
        blocks += (int64_t)strlen(text->valuestring) / DSC_CKPT_HASH_DIGITS;
    }
    DSC_TRY(dsc_alloc_zeroed(m->alloc, DSC_TAG_IO, tensor_count, sizeof *m->tensor, &m->tensor, c->err));
    DSC_TRY(dsc_alloc_zeroed(m->alloc, DSC_TAG_IO, blocks, sizeof *m->block, &m->block, c->err));
    if (m->parts.count > 1)
        DSC_TRY(dsc_alloc_zeroed(m->alloc, DSC_TAG_IO, blocks, sizeof *m->parts.of_block, &m->parts.of_block, c->err));
    cJSON_ArrayForEach(item, tensors)
        DSC_TRY(read_tensor(c, item, m));
    DSC_ASSERT(m->tensor_count == tensor_count);
    DSC_ASSERT(m->block_count <= blocks);
    return DSC_OK;
}

/* The text ends with its own SHA-256; anything else was cut, flipped or edited. */
static bool sealed(const char *text, int64_t bytes)
{
    if (bytes < DSC_CKPT_SEAL_BYTES)
        return false;
    const char *seal = text + bytes - DSC_CKPT_SEAL_BYTES;
    uint8_t digest[32];
    char hex[65];
    dsc_ckpt_sha256(text, bytes - DSC_CKPT_SEAL_BYTES, digest);
    dsc_hex(hex, digest, sizeof digest);
    return memcmp(seal, DSC_CKPT_SEAL_TEXT, sizeof DSC_CKPT_SEAL_TEXT - 1) == 0 &&
           memcmp(seal + sizeof DSC_CKPT_SEAL_TEXT - 1, hex, 64) == 0 && memcmp(text + bytes - 3, "\"}\n", 3) == 0;
}

dsc_status dsc_ckpt_manifest_parse(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                   dsc_ckpt_manifest *out, dsc_error *err)
{
    /* Six values a tensor and its cuts: more tensors than a safetensors header has room for. */
    const dsc_json_limits limits = { DSC_CKPT_MANIFEST_BYTES_MAX, 8, 1000000 };
    dsc_json *json = NULL;
    *out = (dsc_ckpt_manifest) { .alloc = alloc };
    if (!sealed(text, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "damaged manifest: it does not match its own SHA-256; use another "
                        "checkpoint");
    DSC_TRY(dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err));
    const read_ctx c = { json, path, err };
    const cJSON *root = dsc_json_root(json);
    dsc_status status = cJSON_IsObject(root) ? read_state(&c, root, &out->state) : bad(&c, root, "not an object");
    if (status == DSC_OK)
        status = read_plans(&c, alloc, cJSON_GetObjectItemCaseSensitive(root, "gemm_plans"), &out->state.gemm_plans);
    if (status == DSC_OK)
        status = read_settings(&c, alloc, cJSON_GetObjectItemCaseSensitive(root, "settings"), &out->state.settings);
    if (status == DSC_OK)
        status = read_part(&c, cJSON_GetObjectItemCaseSensitive(root, "part"), out);
    if (status == DSC_OK)
        status = read_files(&c, cJSON_GetObjectItemCaseSensitive(root, "files"), out);
    if (status == DSC_OK)
        status = read_tensors(&c, cJSON_GetObjectItemCaseSensitive(root, "tensors"), out);
    dsc_json_close(&json);
    DSC_ASSERT(status != DSC_OK || out->parts.index < out->parts.count);
    if (status != DSC_OK)
        dsc_ckpt_manifest_close(out);
    return status;
}

dsc_status dsc_ckpt_manifest_read(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_ckpt_manifest *out,
                                  dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    char *text = NULL;
    int64_t bytes;
    *out = (dsc_ckpt_manifest) { 0 };
    DSC_TRY(dsc_ckpt_file_path(path, step_dir, DSC_CKPT_MANIFEST_FILE, err));
    DSC_TRY(dsc_io_read_all(io, alloc, path, DSC_CKPT_MANIFEST_BYTES_MAX, &text, &bytes, err));
    const dsc_status status = dsc_ckpt_manifest_parse(alloc, path, text, bytes, out, err);
    dsc_alloc_free(alloc, text);
    return status;
}

void dsc_ckpt_manifest_close(dsc_ckpt_manifest *manifest)
{
    if (manifest->alloc != NULL) {
        for (int64_t t = 0; t < manifest->tensor_count; t++)
            dsc_alloc_free(manifest->alloc, manifest->tensor[t].name);
        dsc_alloc_free(manifest->alloc, manifest->tensor);
        dsc_alloc_free(manifest->alloc, manifest->block);
        dsc_alloc_free(manifest->alloc, manifest->parts.host);
        dsc_alloc_free(manifest->alloc, manifest->parts.of_block);
        dsc_alloc_free(manifest->alloc, manifest->state.gemm_plans);
        dsc_alloc_free(manifest->alloc, manifest->state.settings);
    }
    *manifest = (dsc_ckpt_manifest) { 0 };
}

void dsc_ckpt_manifest_id(const dsc_ckpt_manifest *manifest, uint8_t id[32])
{
    dsc_sha256 sha;
    dsc_sha256_init(&sha);
    dsc_sha256_update(&sha, &manifest->state.step, sizeof manifest->state.step);
    for (int64_t b = 0; b < manifest->block_count; b++) {
        const dsc_ckpt_block *block = &manifest->block[b];
        DSC_ASSERT(block->count > 0);
        const uint64_t row[5] = { (uint64_t)block->first, (uint64_t)block->count, block->hash.high, block->hash.low,
                                  (uint64_t)dsc_ckpt_part_of(manifest, block) };
        dsc_sha256_update(&sha, row, sizeof row);
    }
    const dsc_ckpt_file_info *buffers = &manifest->file[DSC_CKPT_BUFFERS];
    if (buffers->bytes >= 0)
        dsc_sha256_update(&sha, buffers->sha256, sizeof buffers->sha256);
    dsc_sha256_final(&sha, id);
}
