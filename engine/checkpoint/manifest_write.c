/* manifest_write.c - manifest.json as text. Its size is known before any tensor is written: a hash has as
 * many digits as any other. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/checkpoint/internal.h"

#define QUOTED_BYTES (6 * (DSC_SAFETENSORS_NAME_BYTES_MAX + 32)) /* every byte of a name as \u00xx */

typedef struct text_out {
    char *text; /* NULL: only counts */
    int64_t bytes, capacity;
} text_out;

static DSC_PRINTF(2, 3) void put(text_out *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *to = out->text != NULL ? out->text + out->bytes : NULL;
    const int length = vsnprintf(to, out->text != NULL ? (size_t)(out->capacity - out->bytes) : 0, fmt, args);
    va_end(args);
    DSC_ASSERT(length >= 0);
    out->bytes += length;
    DSC_ASSERT(out->text == NULL || out->bytes < out->capacity); /* it was counted before */
}

static void put_text(text_out *out, const char *name, const char *value)
{
    char quoted[QUOTED_BYTES];
    DSC_ASSERT(strlen(value) * 6 + 3 <= sizeof quoted);
    dsc_json_quote(quoted, sizeof quoted, value);
    put(out, "\"%s\":%s,", name, quoted);
}

static void put_int(text_out *out, const char *name, int64_t value) { put(out, "\"%s\":%" PRId64 ",", name, value); }

static void put_bool(text_out *out, const char *name, bool value)
{
    put(out, "\"%s\":%s,", name, value ? "true" : "false");
}

/* One string a line. */
static void put_plans(text_out *out, const char *plans)
{
    char line[DSC_CKPT_PLAN_LINE_BYTES_MAX + 1], quoted[6 * DSC_CKPT_PLAN_LINE_BYTES_MAX + 3];
    put(out, "\n\"gemm_plans\":[");
    for (const char *at = plans; *at != 0;) {
        const size_t bytes = strcspn(at, "\n");
        DSC_ASSERT(bytes <= DSC_CKPT_PLAN_LINE_BYTES_MAX);
        memcpy(line, at, bytes);
        line[bytes] = 0;
        dsc_json_quote(quoted, sizeof quoted, line);
        put(out, "%s\n%s", at != plans ? "," : "", quoted);
        at += bytes + (at[bytes] == '\n');
    }
    put(out, "],");
}

/* {"key":"value",...}, one a line. */
static void put_settings(text_out *out, const char *settings)
{
    char key[DSC_SETTING_LINE_BYTES], value[DSC_SETTING_LINE_BYTES], quoted[6 * DSC_SETTING_LINE_BYTES];
    put(out, "\n\"settings\":{");
    for (const char *at = settings; *at != 0;) {
        const size_t line = strcspn(at, "\n"), key_bytes = strcspn(at, "\t\n");
        DSC_ASSERT(line < DSC_SETTING_LINE_BYTES && key_bytes < line);
        snprintf(key, sizeof key, "%.*s", (int)key_bytes, at);
        snprintf(value, sizeof value, "%.*s", (int)(line - key_bytes - 1), at + key_bytes + 1);
        dsc_json_quote(quoted, sizeof quoted, key);
        put(out, "%s\n%s:", at != settings ? "," : "", quoted);
        dsc_json_quote(quoted, sizeof quoted, value);
        put(out, "%s", quoted);
        at += line + (at[line] == '\n');
    }
    put(out, "},");
}

static void put_loss_scaler(text_out *out, const dsc_loss_scaler *s)
{
    put(out, "\n\"loss_scaler\":{\"scale\":%.17g,\"step\":%" PRId64 ",\"overflow_step\":%" PRId64
        ",\"overflows_left\":%" PRId64 "},\n", s->scale, s->step, s->overflow_step, s->overflows_left);
}

static void put_mean(text_out *out, const char *name, const dsc_spike_mean *mean)
{
    put(out, "\"%s\":{\"mean\":%.17g,\"variance\":%.17g,\"count\":%" PRId64 "}", name, mean->mean, mean->variance,
        mean->count);
}

static void put_spikes(text_out *out, const dsc_run_state *s)
{
    put(out, "\n\"skips\":[");
    for (int32_t i = 0; i < s->skips.count; i++)
        put(out, "%s{\"after_step\":%" PRId64 ",\"batches\":%" PRId64 "}", i > 0 ? "," : "",
            s->skips.skip[i].after_step, s->skips.skip[i].batches);
    put(out, "],\"spikes\":{");
    put_mean(out, "loss", &s->spikes.loss);
    put(out, ",");
    put_mean(out, "norm", &s->spikes.norm);
    put(out, "},\n");
}

static void put_state(text_out *out, const dsc_run_state *s)
{
    DSC_ASSERT(s->recipe < DSC_RECIPE_COUNT);
    DSC_ASSERT(s->step >= s->update_count);
    put(out, "{\"format\":\"dsc-checkpoint\",");
    put_int(out, "version", DSC_CKPT_MANIFEST_VERSION);
    put_int(out, "step", s->step);
    put_int(out, "update_count", s->update_count);
    put_int(out, "next_sample", s->next_sample);
    put_int(out, "seed", s->seed);
    put_int(out, "train_batch_size", s->train_batch_size);
    put_int(out, "micro_batch", s->micro_batch);
    put_int(out, "accumulation_steps", s->accumulation_steps);
    put_int(out, "world_size", s->world_size);
    if (s->shard_ranks != s->world_size)
        put_int(out, "shard_ranks", s->shard_ranks);
    if (s->tensor_ranks > 1)
        put_int(out, "tensor_ranks", s->tensor_ranks);
    put_int(out, "samples_per_epoch", s->samples_per_epoch);
    put_int(out, "seq_length", s->seq_length);
    if (s->document_end >= 0)
        put_int(out, "document_end", s->document_end);
    put_int(out, "zero_stage", s->zero_stage);
    put_text(out, "compute_dtype", dsc_dtype_text(s->compute_dtype));
    if (s->compute_dtype == DSC_F16 && s->loss_scaler.scale > 0) /* else it was not saved */
        put_loss_scaler(out, &s->loss_scaler);
    if (s->skips.count > 0 || s->spikes.loss.count > 0)
        put_spikes(out, s);
    put_text(out, "optimizer", dsc_recipes[s->recipe].name);
    put_text(out, "moment_dtype", dsc_dtype_text(s->moment_dtype));
    put_bool(out, "world_size_reproducible", s->world_size_reproducible);
    put_bool(out, "shuffle", s->shuffle);
    put_text(out, "cpu_level", s->cpu_level);
    put_text(out, "versions", s->versions);
    if (s->packed_hash[0] != 0)
        put_text(out, "packed_weights", s->packed_hash);
    if (s->averages)
        put_bool(out, "averages", true);
    if (s->outer)
        put_bool(out, "outer_momentum", true);
    if (s->gemm_plans != NULL)
        put_plans(out, s->gemm_plans);
    if (s->settings != NULL)
        put_settings(out, s->settings);
}

static void put_parts(text_out *out, const dsc_ckpt_parts *parts)
{
    char quoted[6 * DSC_CKPT_HOST_BYTES + 3];
    DSC_ASSERT(parts->count > 1);
    DSC_ASSERT(parts->index < parts->count);
    put(out, "\n\"part\":{\"index\":%d,\"hosts\":[", (int)parts->index);
    for (int32_t p = 0; p < parts->count; p++) {
        dsc_json_quote(quoted, sizeof quoted, parts->host[p]);
        put(out, "%s%s", p > 0 ? "," : "", quoted);
    }
    put(out, "]},");
}

static void put_files(text_out *out, const dsc_ckpt_file_info *file)
{
    put(out, "\n\"files\":{");
    for (int f = 0, written = 0; f < DSC_CKPT_FILE_COUNT; f++) {
        char hex[65];
        if (file[f].bytes < 0)
            continue;
        DSC_ASSERT(file[f].head_bytes <= file[f].bytes);
        dsc_hex(hex, file[f].sha256, 32);
        put(out, "%s\n\"%s\":{\"bytes\":%" PRId64 ",\"head_bytes\":%" PRId64 ",\"sha256\":\"%s\"}",
            written++ > 0 ? "," : "", dsc_ckpt_file_name[f], file[f].bytes, file[f].head_bytes, hex);
    }
    put(out, "},");
}

/* A part, how many blocks of it follow each other, the next one's, ... */
static void put_runs(text_out *out, const int32_t *part, int64_t block_count)
{
    put(out, "\"parts\":[");
    for (int64_t b = 0, first = 0; b < block_count; b++)
        if (b + 1 == block_count || part[b + 1] != part[b]) {
            put(out, "%s%d,%" PRId64, first > 0 ? "," : "", (int)part[b], b + 1 - first);
            first = b + 1;
        }
    put(out, "],");
}

/* The cuts are the starts of blocks that are not a multiple of 1 MiB. `part`: of each block; NULL: there is one. */
static void put_tensor(text_out *out, const dsc_ckpt_entry *entry, const int32_t *part, const dsc_ckpt_block *block,
                       int64_t block_count)
{
    DSC_ASSERT(entry->file < DSC_CKPT_TENSOR_FILE_COUNT);
    put(out, "\n{");
    put_text(out, "name", entry->name);
    put(out, "\"file\":\"%s\",\"dtype\":\"%s\",", dsc_ckpt_file_name[entry->file], dsc_ckpt_dtype_text(entry->dtype));
    put_int(out, "elements", entry->count);
    put(out, "\"cuts\":[");
    for (int64_t b = 0, written = 0; b < block_count; b++)
        if (block[b].first % dsc_ckpt_block_elements(entry->dtype) != 0)
            put(out, "%s%" PRId64, written++ > 0 ? "," : "", block[b].first);
    put(out, "],");
    if (part != NULL)
        put_runs(out, part, block_count);
    put(out, "\"blocks\":\"");
    for (int64_t b = 0; b < block_count; b++)
        put(out, "%016" PRIx64 "%016" PRIx64, block[b].hash.high, block[b].hash.low);
    put(out, "\"}");
}

static void put_body(text_out *out, const dsc_run_state *state, const dsc_ckpt_entries *entries,
                     const dsc_ckpt_file_info *file, const dsc_ckpt_parts *parts, const dsc_ckpt_block *block,
                     int64_t block_count)
{
    DSC_ASSERT(parts == NULL || parts->of_block != NULL);
    put_state(out, state);
    if (parts != NULL)
        put_parts(out, parts);
    put_files(out, file);
    put(out, "\n\"tensors\":[");
    int64_t b = 0;
    for (int32_t e = 0; e < entries->count; e++) {
        const int64_t first = b;
        while (b < block_count && block[b].entry == e)
            b++;
        put(out, e > 0 ? "," : "");
        put_tensor(out, &entries->entry[e], parts != NULL ? parts->of_block + first : NULL, block + first, b - first);
    }
    DSC_ASSERT(b == block_count);
    put(out, "],\n");
}

/* Counts the text without its NUL. */
static int64_t text_bytes(const dsc_run_state *state, const dsc_ckpt_entries *entries, const dsc_ckpt_file_info *file,
                          const dsc_ckpt_parts *parts, const dsc_ckpt_block *block, int64_t block_count)
{
    text_out out = { 0 };
    put_body(&out, state, entries, file, parts, block, block_count);
    DSC_ASSERT(out.bytes > 0);
    return out.bytes + DSC_CKPT_SEAL_BYTES;
}

dsc_status dsc_ckpt_manifest_check(const dsc_run_state *state, const dsc_ckpt_entries *entries,
                                   const dsc_ckpt_file_info *file, const dsc_ckpt_parts *parts,
                                   const dsc_ckpt_block *block, int64_t block_count, dsc_error *err)
{
    const int64_t bytes = text_bytes(state, entries, file, parts, block, block_count);
    DSC_ASSERT(bytes > DSC_CKPT_SEAL_BYTES);
    if (bytes <= DSC_CKPT_MANIFEST_BYTES_MAX)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, DSC_CKPT_MANIFEST_FILE,
                    "a checkpoint whose manifest has %.1f MiB; at most "
                    "%.0f are read, so it was not written",
                    (double)bytes / 1048576.0, (double)DSC_CKPT_MANIFEST_BYTES_MAX / 1048576.0);
}

dsc_status dsc_ckpt_manifest_write(dsc_alloc *alloc, const dsc_run_state *state, const dsc_ckpt_entries *entries,
                                   const dsc_ckpt_file_info *file, const dsc_ckpt_parts *parts,
                                   const dsc_ckpt_block *block, int64_t block_count, char **text, int64_t *bytes,
                                   dsc_error *err)
{
    text_out out = { .capacity = text_bytes(state, entries, file, parts, block, block_count) + 1 };
    uint8_t digest[32];
    char hex[65];
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, out.capacity, 1, &out.text, err));
    put_body(&out, state, entries, file, parts, block, block_count);
    dsc_ckpt_sha256(out.text, out.bytes, digest);
    dsc_hex(hex, digest, sizeof digest);
    put(&out, DSC_CKPT_SEAL_TEXT "%s\"}\n", hex);
    DSC_ASSERT(out.bytes == out.capacity - 1);
    *text = out.text;
    *bytes = out.bytes;
    return DSC_OK;
}
