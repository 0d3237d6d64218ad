/* config.c - from the text of a ds_config.json to a dsc_config.
 *
 * The steps: scan (base/json.h), walk (config_walk.c: one checked value per row of the table), overrides, states (what
 * is ignored or refused), then the fields. Nothing here depends on the world size, the model or the machine: that is
 * dsc_config_resolve (config_resolve.c). SPDX-License-Identifier: Apache-2.0 */
#include "engine/config_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "base/io.h"

/* ---- places and lines ---- */

const char *dsc_config_where_item(const dsc_config_parse_state *s, const cJSON *item, char *out)
{
    return dsc_json_where(s->json, item, out, 256);
}

const char *dsc_config_where(const dsc_config_parse_state *s, int id, char *out)
{
    if (s->flag[id] != NULL)
        snprintf(out, 256, "%s", s->flag[id]);
    else if (s->given[id] != NULL)
        dsc_json_where(s->source[id], s->given[id], out, 256);
    else
        snprintf(out, 256, "%.255s", s->config->name);
    return out;
}

/* "name:12:9" -> 12, 9. */
static dsc_config_place place_of_text(const char *where)
{
    dsc_config_place place = { 0, 0 };
    const char *column = strrchr(where, ':'), *line = column;
    while (line != NULL && line > where && *--line != ':')
        ;
    if (line != NULL && line != column && *line == ':' && strspn(column + 1, "0123456789") == strlen(column + 1) &&
        column[1] != 0) {
        place.line = (int32_t)strtol(line + 1, NULL, 10);
        place.column = (int32_t)strtol(column + 1, NULL, 10);
    }
    return place;
}

dsc_config_place dsc_config_place_of(const dsc_config_parse_state *s, int id)
{
    char where[256];
    dsc_config_place nowhere = { 0, 0 };
    if (s->given[id] == NULL || s->flag[id] != NULL)
        return nowhere;
    return place_of_text(dsc_config_where(s, id, where));
}

dsc_status dsc_config_fail(const dsc_config_parse_state *s, int id, dsc_status status, const char *fmt, ...)
{
    char where[256], text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return DSC_FAIL(s->err, status, dsc_config_where(s, id, where), "%s: %s",
                    s->alias[id] != NULL ? s->alias[id] : dsc_config_keys[id].path, text);
}

/* One printable line of whole UTF-8 characters: it goes to terminals and into JSON. */
static void tidy(char *line)
{
    size_t length = strlen(line);
    if (length + 1 == DSC_CONFIG_LINE) { /* cut: not in the middle of a character */
        while (length > 0 && ((unsigned char)line[length - 1] & 0xC0) == 0x80)
            length--;
        if (length > 0 && (unsigned char)line[length - 1] >= 0xC0)
            length--;
        line[length] = 0;
    }
    for (unsigned char *c = (unsigned char *)line; *c != 0; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
}

static void line_print(char *line, const char *fmt, ...) DSC_PRINTF(2, 3);
static void line_print(char *line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, DSC_CONFIG_LINE, fmt, args);
    va_end(args);
    tidy(line);
}

static dsc_status add_warning(dsc_config *config, const char *where, int32_t line, const char *path, dsc_error *err,
                              const char *text)
{
    if (config->given.strict)
        return DSC_FAIL(err, DSC_ERR_CONFIG, where, "%s: %s (a warning; --strict makes it an error)", path, text);
    if (config->warning_count == DSC_WARNINGS_MAX) {
        line_print(config->warnings[DSC_WARNINGS_MAX - 1], "and more warnings than fit here");
        return DSC_OK;
    }
    char *to = config->warnings[config->warning_count++];
    if (line > 0)
        line_print(to, "%s (line %d): %s", path, (int)line, text);
    else
        line_print(to, "%s: %s", path, text);
    return DSC_OK;
}

dsc_status dsc_config_warn_at(dsc_config *config, const char *where, int32_t line, const char *path, dsc_error *err,
                              const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return add_warning(config, where, line > 0 ? line : place_of_text(where).line, path, err, text);
}

dsc_status dsc_config_warn(dsc_config_parse_state *s, int id, const char *fmt, ...)
{
    char where[256], text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dsc_config_where(s, id, where);
    return add_warning(s->config, where, s->flag[id] != NULL ? 0 : place_of_text(where).line,
                       s->alias[id] != NULL ? s->alias[id] : dsc_config_keys[id].path, s->err, text);
}

void dsc_config_note(dsc_config *config, const char *fmt, ...)
{
    va_list args;
    if (config->note_count == DSC_NOTES_MAX)
        return;
    char *to = config->notes[config->note_count++];
    va_start(args, fmt);
    vsnprintf(to, DSC_CONFIG_LINE, fmt, args);
    va_end(args);
    tidy(to);
}

/* ---- overrides ---- */

static dsc_status apply_override(dsc_config_parse_state *s, const dsc_config_override *override, dsc_json **json)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    char expected[256], before[128], now[128];
    bool from_text;
    int id = dsc_config_key_find(override->key);
    if (id == DSC_ID_TOP_SEED) /* the short name is for files; one seed beats both */
        id = DSC_ID_SEED;
    if (id < 0 || dsc_config_keys[id].type == DSC_KEY_SECTION || dsc_config_keys[id].state == DSC_KEY_RENAMED)
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, override->flag, "%s is not a key that can be overridden",
                        override->key);
    const dsc_config_key *key = &dsc_config_keys[id];
    DSC_TRY(dsc_json_open(s->alloc, override->flag, override->json_value, (int64_t)strlen(override->json_value),
                          DSC_JSON_STRICT, &limits, json, s->err));
    const cJSON *item = dsc_json_root(*json);
    if (!dsc_value_fits(key, item, &from_text, expected, sizeof expected))
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, override->flag, "%s is not %s", dsc_value_text(item, now, sizeof now),
                        expected);
    if (id == DSC_ID_SEED && s->given[DSC_ID_TOP_SEED] != NULL && s->given[id] == NULL)
        dsc_config_note(s->config, "%s %s overrides seed %s", override->flag, dsc_value_text(item, now, sizeof now),
                        dsc_value_text(s->given[DSC_ID_TOP_SEED], before, sizeof before));
    if (s->given[id] != NULL && s->flag[id] == NULL)
        dsc_config_note(s->config, "%s %s overrides %s %s", override->flag, dsc_value_text(item, now, sizeof now),
                        override->key, dsc_value_text(s->given[id], before, sizeof before));
    if (id == DSC_ID_LR && dsc_config_has(s, id) && s->flag[id] == NULL)
        (void)dsc_value_float(s->given[id], &s->lr_of_file, &from_text);
    s->given[id] = item;
    s->source[id] = *json;
    s->flag[id] = override->flag;
    s->is_auto[id] = false;
    s->is_null[id] = false;
    if (id == DSC_ID_SEED)
        s->given[DSC_ID_TOP_SEED] = NULL;
    return DSC_OK;
}

/* A flag for the length of the run beats the file's other way to say it. */
static void epochs_beat_steps(dsc_config_parse_state *s)
{
    char value[128];
    if (s->flag[DSC_ID_EPOCHS] == NULL || s->flag[DSC_ID_STEPS] != NULL || !dsc_config_has(s, DSC_ID_STEPS))
        return;
    dsc_config_note(s->config, "%s beats dsc.steps %s of the file", s->flag[DSC_ID_EPOCHS],
                    dsc_value_text(s->given[DSC_ID_STEPS], value, sizeof value));
    s->given[DSC_ID_STEPS] = NULL;
}

static dsc_status apply_overrides(dsc_config_parse_state *s, const dsc_config_override *overrides, int override_count)
{
    char value[128];
    for (int i = 0; i < override_count; i++)
        DSC_TRY(apply_override(s, &overrides[i], &s->override_json[i]));
    epochs_beat_steps(s);
    /* A flag for one factor says nothing about the product: train_batch_size follows. */
    const bool factor = s->flag[DSC_ID_MICRO_BATCH] != NULL || s->flag[DSC_ID_ACCUMULATION] != NULL;
    if (factor && dsc_config_has(s, DSC_ID_TRAIN_BATCH) && s->flag[DSC_ID_TRAIN_BATCH] == NULL) {
        dsc_config_note(s->config, "train_batch_size %s of the file gives way: it follows from the flags",
                        dsc_value_text(s->given[DSC_ID_TRAIN_BATCH], value, sizeof value));
        s->given[DSC_ID_TRAIN_BATCH] = NULL;
    }
    return DSC_OK;
}

/* ---- fields ---- */

static int64_t int_or(const dsc_config_parse_state *s, int id, int64_t otherwise)
{
    bool from_text;
    if (dsc_config_has(s, id))
        (void)dsc_value_int(s->given[id], &otherwise, &from_text);
    return otherwise;
}

static bool bool_or(const dsc_config_parse_state *s, int id, bool otherwise)
{
    bool from_text;
    if (dsc_config_has(s, id))
        (void)dsc_value_bool(s->given[id], &otherwise, &from_text);
    return otherwise;
}

static void fill_plain_fields(dsc_config_parse_state *s)
{
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        if (dsc_config_keys[id].offset >= 0)
            dsc_value_store(&dsc_config_keys[id], dsc_config_has(s, id) ? s->given[id] : NULL, s->config);
}

static void fill_batch(dsc_config_parse_state *s)
{
    static const int ids[] = { DSC_ID_TRAIN_BATCH, DSC_ID_MICRO_BATCH, DSC_ID_ACCUMULATION };
    dsc_config_given *given = &s->config->given;
    bool any_auto = false, any_value = false;
    given->train_batch_size = int_or(s, DSC_ID_TRAIN_BATCH, DSC_AUTO_I64);
    given->train_micro_batch_size_per_gpu = int_or(s, DSC_ID_MICRO_BATCH, DSC_AUTO_I64);
    given->gradient_accumulation_steps = int_or(s, DSC_ID_ACCUMULATION, DSC_AUTO_I64);
    for (size_t i = 0; i < DSC_COUNT(ids); i++) {
        if (given->batch.line == 0 && dsc_config_has(s, ids[i]))
            given->batch = dsc_config_place_of(s, ids[i]);
        any_auto |= s->is_auto[ids[i]];
        any_value |= dsc_config_has(s, ids[i]) && ids[i] != DSC_ID_ACCUMULATION;
    }
    if (any_auto && !any_value)
        s->config->auto_mask |= DSC_CONFIG_AUTO_BATCH;
}

/* fp16 itself is refused with the other states. "auto" leaves the choice to the run, and the run takes bf16. */
static dsc_status fill_precision(dsc_config_parse_state *s)
{
    dsc_config *config = s->config;
    const bool fp16 = bool_or(s, DSC_ID_FP16, false), bf16 = bool_or(s, DSC_ID_BF16, false);
    if (fp16 && bf16)
        return dsc_config_fail(s, DSC_ID_FP16, DSC_ERR_CONFIG, "fp16.enabled and bf16.enabled are both true; keep one");
    if (!fp16 && (s->is_auto[DSC_ID_BF16] || (s->is_auto[DSC_ID_FP16] && !bf16))) {
        config->auto_mask |= DSC_CONFIG_AUTO_PRECISION;
        /* fp16 "auto" beside bf16 false leaves only fp32 of what is built. */
        const bool without = dsc_config_has(s, DSC_ID_BF16);
        config->precision = without ? DSC_PRECISION_FP32 : DSC_PRECISION_BF16;
        dsc_config_note(config, "precision \"auto\": %s", without ? "fp32 (fp16 is not built)" : "bf16");
        return DSC_OK;
    }
    config->precision = bf16 ? DSC_PRECISION_BF16 : DSC_PRECISION_FP32;
    return DSC_OK;
}

/* "torch.bfloat16", "half": every name that DeepSpeed has for a dtype. "": no such name. */
static const char *dtype_of(const char *name)
{
    static const struct { const char *name, *dtype; } names[] = {
        { "fp32", "fp32" }, { "float32", "fp32" }, { "float", "fp32" }, { "bf16", "bf16" }, { "bfloat16", "bf16" },
        { "fp16", "fp16" }, { "float16", "fp16" }, { "half", "fp16" }, { "int8", "int8" },
    };
    if (strncasecmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        if (strcasecmp(names[i].name, name) == 0)
            return names[i].dtype;
    return "";
}

/* A dtype key may only say what happens anyway. */
static dsc_status check_dtype(dsc_config_parse_state *s, int id, const char *built)
{
    if (!dsc_config_has(s, id))
        return DSC_OK;
    const char *text = s->given[id]->valuestring, *dtype = dtype_of(text);
    char value[128];
    dsc_value_text(s->given[id], value, sizeof value);
    if (strcmp(text, "auto") == 0)
        return dsc_config_warn(s, id, "\"auto\" is filled by nobody: %s is used", built);
    if (*dtype == 0)
        return dsc_config_fail(s, id, DSC_ERR_CONFIG, "%s is not a dtype; expected fp32, bf16 or fp16", value);
    if (strcmp(dtype, built) != 0)
        return dsc_config_fail(s, id, DSC_ERR_UNSUPPORTED, "%s is not supported in this version (%s): %s works", value,
                               dsc_config_keys[id].what, built);
    return DSC_OK;
}

static dsc_status check_dtypes(dsc_config_parse_state *s)
{
    const char *compute = s->config->precision == DSC_PRECISION_BF16 ? "bf16" : "fp32";
    DSC_TRY(check_dtype(s, DSC_ID_GRAD_ACCUM_DTYPE, "fp32"));
    DSC_TRY(check_dtype(s, DSC_ID_PARAM_DTYPE, compute));
    return check_dtype(s, DSC_ID_COMM_DTYPE, compute);
}

static dsc_status fill_stage(dsc_config_parse_state *s)
{
    const cJSON *section = s->given[DSC_ID_ZERO];
    s->config->zero.stage = (int)int_or(s, DSC_ID_ZERO_STAGE, 0);
    if (section == NULL || !cJSON_IsBool(section))
        return DSC_OK;
    if (s->flag[DSC_ID_ZERO_STAGE] == NULL)
        s->config->zero.stage = cJSON_IsTrue(section) ? 1 : 0;
    return dsc_config_warn(s, DSC_ID_ZERO, "%s is an old form, taken as {\"stage\": %d}",
                           cJSON_IsTrue(section) ? "true" : "false", cJSON_IsTrue(section) ? 1 : 0);
}

/* One tier of one kind of state: the device in effect. */
static dsc_status offload_device(dsc_config_parse_state *s, int section, int device, int path, int old, int least_stage,
                                 dsc_offload *out)
{
    static const char *const names[] = { "none", "cpu", "nvme" };
    int at = device;
    int choice =
        dsc_config_has(s, device) ? dsc_value_choice(&dsc_config_keys[device], s->given[device]->valuestring) : 0;
    if (dsc_config_has(s, old)) {
        if (s->given[section] != NULL)
            return dsc_config_fail(s, old, DSC_ERR_CONFIG, "given together with %s, which replaces it; keep that one",
                                   dsc_config_keys[section].path);
        choice = bool_or(s, old, false);
        at = old;
        DSC_TRY(dsc_config_warn(s, old, "an old form, taken as %s \"%s\"", dsc_config_keys[device].path,
                                names[choice]));
    }
    *out = DSC_OFFLOAD_NONE;
    if (choice == 0)
        return DSC_OK;
    if (s->config->zero.stage < least_stage)
        return dsc_config_warn(s, at, "no effect at stage %d: it needs stage %d", s->config->zero.stage, least_stage);
    if (choice == DSC_OFFLOAD_NVME && !dsc_config_has(s, path))
        return dsc_config_fail(s, at, DSC_ERR_CONFIG, "\"nvme\" needs %s, a folder", dsc_config_keys[path].path);
    if (choice == DSC_OFFLOAD_NVME)
        return dsc_config_fail(s, at, DSC_ERR_UNSUPPORTED,
                               "\"nvme\" is not built in this version; \"none\" works, and \"cpu\" on CPU ranks");
    *out = (dsc_offload)choice;
    return DSC_OK;
}

static dsc_status fill_zero(dsc_config_parse_state *s)
{
    dsc_zero_config *zero = &s->config->zero;
    double ratio = 1;
    bool from_text;
    zero->overlap_comm = bool_or(s, DSC_ID_OVERLAP_COMM, false);
    if (!bool_or(s, DSC_ID_COMPUTE_GRAD_NORM, true) && (zero->stage == 0 || zero->stage == 3))
        return dsc_config_fail(s, DSC_ID_COMPUTE_GRAD_NORM, DSC_ERR_CONFIG, "false is for stages 1 and 2, not %d",
                               zero->stage);
    if (dsc_config_has(s, DSC_ID_OFFLOAD_RATIO))
        (void)dsc_value_float(s->given[DSC_ID_OFFLOAD_RATIO], &ratio, &from_text);
    if (ratio < 1 && zero->stage < 3)
        return dsc_config_fail(s, DSC_ID_OFFLOAD_RATIO, DSC_ERR_CONFIG, "below 1 only at stage 3, not %d", zero->stage);
    DSC_TRY(offload_device(s, DSC_ID_OFFLOAD_OPTIMIZER, DSC_ID_OFFLOAD_OPTIMIZER_DEVICE, DSC_ID_OFFLOAD_OPTIMIZER_PATH,
                           DSC_ID_CPU_OFFLOAD, 1, &zero->offload_optimizer));
    DSC_TRY(offload_device(s, DSC_ID_OFFLOAD_PARAM, DSC_ID_OFFLOAD_PARAM_DEVICE, DSC_ID_OFFLOAD_PARAM_PATH,
                           DSC_ID_CPU_OFFLOAD_PARAM, 3, &zero->offload_param));
    s->config->given.offload_optimizer = dsc_config_place_of(s, DSC_ID_OFFLOAD_OPTIMIZER_DEVICE);
    s->config->given.offload_param = dsc_config_place_of(s, DSC_ID_OFFLOAD_PARAM_DEVICE);
    s->config->given.reduce_bucket_size = s->is_auto[DSC_ID_REDUCE_BUCKET] ? DSC_AUTO_I64 : zero->reduce_bucket_size;
    s->config->given.stage3_prefetch_bucket_size =
        s->is_auto[DSC_ID_PREFETCH_BUCKET] ? DSC_AUTO_I64 : zero->stage3_prefetch_bucket_size;
    return DSC_OK;
}

static void copy_texts(const cJSON *item, char out[][DSC_CONFIG_TEXT], int *count)
{
    *count = 0;
    if (item == NULL)
        return;
    for (const cJSON *each = cJSON_IsArray(item) ? item->child : item; each != NULL && *count < DSC_DATA_PATHS_MAX;
         each = cJSON_IsArray(item) ? each->next : NULL)
        snprintf(out[(*count)++], DSC_CONFIG_TEXT, "%s", each->valuestring);
}

static int choice_or(const dsc_config_parse_state *s, int id, int otherwise)
{
    return dsc_config_has(s, id) ? dsc_value_choice(&dsc_config_keys[id], s->given[id]->valuestring) : otherwise;
}

static dsc_status fill_own(dsc_config_parse_state *s)
{
    dsc_own_config *own = &s->config->own;
    bool from_text;
    copy_texts(s->given[DSC_ID_DATA], own->data, &own->data_count);
    copy_texts(s->given[DSC_ID_EVAL_DATA], own->eval_data, &own->eval_data_count);
    own->reproducible = (dsc_reproducible)choice_or(s, DSC_ID_REPRODUCIBLE, DSC_REPRODUCIBLE_PLAN);
    own->recompute = (dsc_recompute)choice_or(s, DSC_ID_RECOMPUTE, DSC_RECOMPUTE_NONE);
    own->dropout_model = choice_or(s, DSC_ID_DROPOUT, 0) == 1;
    own->accumulate_local = choice_or(s, DSC_ID_ACCUMULATE, 0) == 1;
    if (strcmp(own->device, "cuda") == 0)
        return dsc_config_fail(s, DSC_ID_DEVICE, DSC_ERR_UNSUPPORTED,
                               "\"cuda\" is not built in this version; \"auto\" and \"cpu\" work");
    if (!dsc_config_has(s, DSC_ID_TOP_SEED))
        return DSC_OK;
    if (!dsc_config_has(s, DSC_ID_SEED))
        (void)dsc_value_int(s->given[DSC_ID_TOP_SEED], &s->config->seed, &from_text);
    return dsc_config_warn(s, DSC_ID_TOP_SEED,
                           dsc_config_has(s, DSC_ID_SEED) ? "ignored because dsc.seed is there"
                                                          : "not a key of DeepSpeed, taken as dsc.seed");
}

static dsc_status fill_clipping(dsc_config_parse_state *s)
{
    dsc_config *config = s->config;
    double old;
    bool from_text;
    if (s->is_auto[DSC_ID_CLIPPING]) {
        config->gradient_clipping = 1.0;
        config->auto_mask |= DSC_CONFIG_AUTO_CLIPPING;
        dsc_config_note(config, "gradient_clipping \"auto\": 1.0, as the Trainer fills it");
    }
    if (dsc_config_has(s, DSC_ID_MAX_GRAD_NORM)) {
        (void)dsc_value_float(s->given[DSC_ID_MAX_GRAD_NORM], &old, &from_text);
        if (dsc_config_has(s, DSC_ID_CLIPPING) && config->gradient_clipping != old)
            return dsc_config_fail(s, DSC_ID_MAX_GRAD_NORM, DSC_ERR_CONFIG,
                                   "%.15g, but gradient_clipping is %.15g; keep that one", old,
                                   config->gradient_clipping);
        config->gradient_clipping = old;
        config->auto_mask &= ~(uint32_t)DSC_CONFIG_AUTO_CLIPPING;
        return dsc_config_warn(s, DSC_ID_MAX_GRAD_NORM, "an old form, taken as gradient_clipping %.15g", old);
    }
    if (s->given[DSC_ID_CLIPPING] == NULL)
        dsc_config_note(config, "gradient_clipping is not given: 0, no clipping (DeepSpeed 0.19 clips at 1.0)");
    return DSC_OK;
}

static dsc_status check_sparse_attention(dsc_config_parse_state *s)
{
    const int section = dsc_config_key_find("sparse_attention");
    DSC_ASSERT(section >= 0);
    if (s->given[section] == NULL || choice_or(s, DSC_ID_SPARSE_MODE, 1) == 0)
        return DSC_OK;
    return dsc_config_fail(s, section, DSC_ERR_UNSUPPORTED,
                           "sparse attention is not supported in this version: mode dense works");
}

/* ---- the whole ---- */

static dsc_status parse_text(dsc_config_parse_state *s, const char *text, int64_t bytes,
                             const dsc_config_override *overrides, int override_count)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    dsc_config *config = s->config;
    DSC_TRY(dsc_json_open(s->alloc, config->name, text, bytes, DSC_JSON_CONFIG, &limits, &s->json, s->err));
    DSC_TRY(dsc_config_check_types(s));
    DSC_TRY(dsc_config_walk(s));
    DSC_TRY(apply_overrides(s, overrides, override_count));
    DSC_TRY(fill_stage(s));
    DSC_TRY(fill_precision(s));
    DSC_TRY(dsc_config_states(s));
    fill_plain_fields(s);
    fill_batch(s);
    DSC_TRY(check_dtypes(s));
    DSC_TRY(fill_zero(s));
    DSC_TRY(dsc_config_fill_training(s));
    DSC_TRY(fill_clipping(s));
    DSC_TRY(fill_own(s));
    return check_sparse_attention(s);
}

static void hash_text(const char *text, int64_t bytes, char out[65])
{
    dsc_sha256 sha;
    uint8_t digest[32];
    dsc_sha256_init(&sha);
    dsc_sha256_update(&sha, text, (size_t)bytes);
    dsc_sha256_final(&sha, digest);
    dsc_hex(out, digest, sizeof digest);
}

dsc_status dsc_config_parse(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                            const dsc_config_override *overrides, int override_count, bool strict, dsc_config *out,
                            dsc_error *err)
{
    dsc_config_parse_state *s = NULL;
    dsc_status status;
    DSC_ASSERT(override_count >= 0);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *s, &s, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, override_count, sizeof *s->override_json, &s->override_json,
                                 err));
    s->alloc = alloc;
    s->config = out;
    s->err = err;
    s->lr_of_file = -1;
    memset(out, 0, sizeof *out);
    out->given.strict = strict;
    snprintf(out->name, sizeof out->name, "%s", name);
    hash_text(text, bytes, out->sha256);
    DSC_TRY_OUT(parse_text(s, text, bytes, overrides, override_count));
    out->given.warning_count = out->warning_count;
    out->given.note_count = out->note_count;
out:
    for (int i = 0; s->override_json != NULL && i < override_count; i++)
        dsc_json_close(&s->override_json[i]);
    dsc_json_close(&s->json);
    dsc_alloc_free(alloc, s->override_json);
    dsc_alloc_free(alloc, s);
    return status;
}

dsc_status dsc_config_load(dsc_alloc *alloc, const char *path, const dsc_config_override *overrides, int override_count,
                           bool strict, dsc_config *out, dsc_error *err)
{
    const dsc_io io = { { NULL, NULL } };
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    const char *dot = strrchr(path, '.');
    char *text = NULL;
    int64_t bytes = 0;
    if (dot != NULL && (strcasecmp(dot, ".yaml") == 0 || strcasecmp(dot, ".yml") == 0))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, path,
                        "YAML is not read; give a JSON config, such as configs/ds_config.json");
    DSC_TRY(dsc_io_read_all(&io, alloc, path, limits.bytes, &text, &bytes, err));
    const dsc_status status = dsc_config_parse(alloc, path, text, bytes, overrides, override_count, strict, out, err);
    dsc_alloc_free(alloc, text);
    return status;
}
