/* config.c - from the text of a ds_config.json to a dsc_config.
 *
 * The steps in order: scan (base/formats/json.h, or yaml.h by the file name's ending); one checked value per row of the
 * table (walk.c); overrides; states of keys (ignored, refused); fields (fields.c). No step here depends on the world
 * size, the model or the machine. dsc_config_resolve (resolve.c) applies those.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/yaml.h"
#include "base/hash.h"
#include "base/io.h"

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

/* ---- the whole ---- */

static dsc_status parse_text(dsc_config_parse_state *s, const char *text, int64_t bytes,
                             const dsc_config_override *overrides, int override_count)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    dsc_config *config = s->config;
    if (dsc_yaml_is_name(config->name))
        DSC_TRY(dsc_yaml_open(s->alloc, config->name, text, bytes, &limits, &s->json, s->err));
    else
        DSC_TRY(dsc_json_open(s->alloc, config->name, text, bytes, DSC_JSON_CONFIG, &limits, &s->json, s->err));
    DSC_TRY(dsc_config_check_types(s));
    DSC_TRY(dsc_config_walk(s));
    DSC_TRY(apply_overrides(s, overrides, override_count));
    DSC_TRY(dsc_config_fill_modes(s));
    DSC_TRY(dsc_config_check_conflicts(s));
    DSC_TRY(dsc_config_states(s));
    return dsc_config_fill_fields(s);
}

const char *dsc_recompute_text(dsc_recompute recompute)
{
    static const char *const texts[] = { "kept", "none", "selective", "full", "auto" };
    return texts[recompute];
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
    out->unresolved.strict = strict;
    snprintf(out->name, sizeof out->name, "%s", name);
    hash_text(text, bytes, out->sha256);
    DSC_TRY_OUT(parse_text(s, text, bytes, overrides, override_count));
    out->unresolved.warning_count = out->warning_count;
    out->unresolved.note_count = out->note_count;
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
    const dsc_io io = { .hook = { NULL, NULL } };
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    char *text = NULL;
    int64_t bytes = 0;
    DSC_TRY(dsc_io_read_all(&io, alloc, path, limits.bytes, &text, &bytes, err));
    const dsc_status status = dsc_config_parse(alloc, path, text, bytes, overrides, override_count, strict, out, err);
    dsc_alloc_free(alloc, text);
    return status;
}
