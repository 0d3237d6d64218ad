/* walk.c - one pass over a ds_config.json: each key is known, misspelled or unknown.
 *
 * The result is one value per row of the table (given[]). config.c and fields.c interpret the values.
 *
 * Unknown keys follow DeepSpeed where that is safe: an error in its strict sections and in optimizer and scheduler
 * params, else a warning. A key with a spelling close to one of tier A is an error everywhere, because DeepSpeed would
 * train without the setting and print nothing. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

#define PATH_BYTES 512
#define OWN_KEYS_MAX 8       /* listed in one line */
#define SUGGESTIONS_MAX 64 /* a file of 10,000 wrong keys must not take a minute */

/* A section that only this project has: DeepSpeed's form of it does not exist. */
static bool is_own(const char *section)
{
    return strncmp(section, "dsc", 3) == 0 && (section[3] == 0 || section[3] == '.');
}

/* Number of words of `name` that `leaf` has too. A word of at least 3 letters also counts as the start of a longer one:
 * "prob" and "probability". */
static int shared_words(const char *name, const char *leaf)
{
    static const char ends[] = "_-";
    int count = 0;
    for (const char *word = name; *word != 0; word += strspn(word, ends)) {
        const size_t length = strcspn(word, ends);
        bool found = false;
        for (const char *other = leaf; *other != 0 && !found; other += strspn(other, ends)) {
            const size_t other_length = strcspn(other, ends);
            const size_t least = length < other_length ? length : other_length;
            found = (length == other_length || least >= 3) && strncmp(word, other, least) == 0;
            other += other_length;
        }
        count += found;
        word += length;
    }
    return count;
}

/* Keys of the section: those that share the most words with `name`, or, with `name` NULL, all of them. Returns how many
 * there are; `out` ends early when they do not fit. */
static int list_keys(const char *parent, const char *name, char *out, size_t out_bytes)
{
    int most = 1, count = 0;
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < DSC_KEY_COUNT && name != NULL; i++)
        if (dsc_config_key_is_in(i, parent))
            most = (int)dsc_max_i64(most, shared_words(name, dsc_config_key_leaf(i)));
    for (int i = 0; i < DSC_KEY_COUNT; i++) {
        const char *leaf = dsc_config_key_leaf(i);
        if (!dsc_config_key_is_in(i, parent) || (name != NULL && shared_words(name, leaf) < most))
            continue;
        if (used + strlen(leaf) + 5 < out_bytes)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s\"%s\"", count > 0 ? ", " : "", leaf);
        count++;
    }
    return count;
}

/* Suggestion for an unknown key of an own section: a key with a word of it, else the keys of that section. */
static const char *own_suggestion(const char *parent, const char *name, char *out, size_t out_bytes)
{
    char keys[256];
    int count = list_keys(parent, name, keys, sizeof keys);
    if (count > 0 && count <= OWN_KEYS_MAX)
        snprintf(out, out_bytes, "; did you mean %s%s?", count > 1 ? "one of " : "", keys);
    else if ((count = list_keys(parent, NULL, keys, sizeof keys)) <= OWN_KEYS_MAX)
        snprintf(out, out_bytes, "; the keys of \"%s\" are %s", parent, keys);
    else
        snprintf(out, out_bytes, "; \"dsc config explain\" lists the keys of \"%s\"", parent);
    return out;
}

/* A row with this last segment in any section, -1: none. `only`: also -1 when several sections have one. */
static int elsewhere(const char *name, bool only)
{
    int found = -1;
    for (int i = 0; i < DSC_KEY_COUNT; i++) {
        if (strcmp(dsc_config_key_leaf(i), name) != 0 || strchr(dsc_config_keys[i].path, '*') != NULL)
            continue;
        if (!only)
            return i;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* Nearest name in the section, or the section where this very name belongs. "" when there is nothing to say. */
static const char *suggestion(dsc_config_parse_state *s, const char *parent, const char *name, char *out,
                              size_t out_bytes)
{
    const size_t length = strlen(name);
    int best = -1, best_distance = length / 3 < 2 ? 3 : (int)dsc_min_i64((int64_t)length / 3, 8) + 1;
    out[0] = 0;
    if (s->suggestion_count++ >= SUGGESTIONS_MAX)
        return out;
    for (int i = 0; i < DSC_KEY_COUNT; i++) {
        const char *leaf = dsc_config_key_leaf(i);
        if (*leaf == '*' || !dsc_config_key_is_in(i, parent))
            continue;
        const int distance = dsc_string_is_near_miss(name, leaf) ? 1 : dsc_string_distance(name, leaf, best_distance);
        if (distance < best_distance) {
            best = i;
            best_distance = distance;
        }
    }
    if (best >= 0) {
        snprintf(out, out_bytes, "; did you mean \"%s\"?", dsc_config_key_leaf(best));
        return out;
    }
    const int other = elsewhere(name, is_own(parent));
    if (other < 0)
        return is_own(parent) ? own_suggestion(parent, name, out, out_bytes) : out;
    const char *path = dsc_config_keys[other].path, *dot = strrchr(path, '.');
    if (dot != NULL)
        snprintf(out, out_bytes, "; it belongs in \"%.*s\"", (int)(dot - path), path);
    else
        snprintf(out, out_bytes, "; it belongs in the top level");
    return out;
}

/* The tier A key of this section that `name` nearly is, or -1. */
static int nearly_tier_a(const char *parent, const char *name)
{
    for (int i = 0; i < DSC_KEY_COUNT; i++)
        if (dsc_config_keys[i].tier == 'A' && dsc_config_key_is_in(i, parent) &&
            dsc_string_is_near_miss(name, dsc_config_key_leaf(i)))
            return i;
    return -1;
}

static dsc_status unknown_key(dsc_config_parse_state *s, const char *parent, const cJSON *item, bool strict)
{
    char where[256], hint[400], path[PATH_BYTES];
    const char *name = item->string;
    dsc_config_where_item(s, item, where);
    if (strlen(name) > 128)
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, where, "%s%sa key of %zu bytes; keys have at most 128 letters", parent,
                        *parent != 0 ? ": " : "", strlen(name));
    snprintf(path, sizeof path, "%s%s%s", parent, *parent != 0 ? "." : "", name);
    const int meant = nearly_tier_a(parent, name);
    if (meant >= 0)
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, where, "%s: unknown key; did you mean \"%s\"?", path,
                        dsc_config_key_leaf(meant));
    suggestion(s, parent, name, hint, sizeof hint);
    if (!dsc_string_is_identifier(name))
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, where,
                        "%s: not a key: keys are letters, digits, underscores and hyphens%s", path, hint);
    if (is_own(parent))
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, where, "%s: unknown key%s", path, hint);
    if (strict)
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, where, "%s: unknown key%s; remove it or write it as DeepSpeed does",
                        path, hint);
    return dsc_config_warn_at(s->config, where, 0, path, s->err, "unknown key, ignored%s", hint);
}

/* "auto" means "fill this in", except where it is one of the key's own words. */
static bool asks_to_be_filled(const dsc_config_key *key, const cJSON *item)
{
    if (!dsc_value_is_auto(item))
        return false;
    switch (key->type) {
    case DSC_KEY_TEXT: case DSC_KEY_TEXTS: case DSC_KEY_ANY: case DSC_KEY_SECTION: return false;
    case DSC_KEY_CHOICE: return dsc_value_choice(key, "auto") < 0;
    default: return true;
    }
}

/* Sizes of other kinds of parallelism say "none" with 0 or 1. */
static bool asks_for_nothing(const dsc_config_key *key, const cJSON *item)
{
    int64_t value;
    bool from_text;
    if (dsc_value_is_default(key, item))
        return true;
    return key->type == DSC_KEY_INT && (strcmp(key->default_json, "0") == 0 || strcmp(key->default_json, "1") == 0) &&
           key->state == DSC_KEY_REFUSED && dsc_value_int(item, &value, &from_text) && (value == 0 || value == 1);
}

/* Records a value for a row, after its type and range. */
static dsc_status take(dsc_config_parse_state *s, int id, const dsc_json *source, const cJSON *item, bool strict)
{
    const dsc_config_key *key = &dsc_config_keys[id];
    char expected[256], value[128];
    bool from_text = false;
    /* A row for "any name" stands for several keys: the one that asks for something is the one to act on. */
    if (s->given[id] == NULL || strchr(key->path, '*') == NULL || asks_for_nothing(key, s->given[id])) {
        s->given[id] = item;
        s->source[id] = source;
    }
    s->is_auto[id] = asks_to_be_filled(key, item);
    if (s->is_auto[id])
        return DSC_OK;
    if (!dsc_value_fits(key, item, &from_text, expected, sizeof expected))
        return dsc_config_fail(s, id, DSC_ERR_CONFIG, "%s is not %s", dsc_value_text(item, value, sizeof value),
                               expected);
    if (from_text && (id == DSC_ID_TRAIN_BATCH || id == DSC_ID_MICRO_BATCH || id == DSC_ID_ACCUMULATION))
        return dsc_config_fail(s, id, DSC_ERR_CONFIG, "%s is a string, which DeepSpeed does not take here; write the "
                               "number without quotes", dsc_value_text(item, value, sizeof value));
    if (from_text && !strict) /* DeepSpeed would keep the string and stumble over it later */
        return dsc_config_warn(s, id, "%s is a string, taken as %s", dsc_value_text(item, value, sizeof value),
                               key->type == DSC_KEY_INT ? "an integer" : key->type == DSC_KEY_BOOL ? "a boolean"
                                                                                                   : "a number");
    return DSC_OK;
}

/* The row that an old name stands for; the same thing said twice is an error. */
static dsc_status renamed(dsc_config_parse_state *s, const cJSON *item, int *id)
{
    char where[256];
    const char *old = dsc_config_keys[*id].path;
    const int target = dsc_config_key_find(dsc_config_keys[*id].here);
    DSC_ASSERT(target >= 0);
    if (s->given[target] != NULL)
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, dsc_config_where_item(s, item, where),
                        "%s: conflicts with %s (its other name); keep one of them", old, dsc_config_keys[target].path);
    s->alias[target] = old;
    *id = target;
    dsc_config_note(s->config, "%s is read as %s", old, dsc_config_keys[target].path);
    return DSC_OK;
}

static dsc_status walk_section(dsc_config_parse_state *s, const cJSON *object, const char *path, bool strict,
                               int depth);

static dsc_status walk_member(dsc_config_parse_state *s, const cJSON *item, const char *parent, bool strict, int depth)
{
    char path[PATH_BYTES];
    int id = strlen(item->string) <= 128 ? dsc_config_key_find_in(parent, item->string) : -1;
    if (id < 0)
        return unknown_key(s, parent, item, strict);
    const dsc_config_key *key = &dsc_config_keys[id];
    snprintf(path, sizeof path, "%s%s%s", parent, *parent != 0 ? "." : "", item->string);
    if (key->type != DSC_KEY_SECTION) {
        if (cJSON_IsNull(item)) {
            s->is_null[id] = true;
            return DSC_OK;
        }
        if (key->state == DSC_KEY_RENAMED)
            DSC_TRY(renamed(s, item, &id));
        else if (s->given[id] != NULL && strchr(key->path, '*') == NULL)
            return dsc_config_fail(s, id, DSC_ERR_CONFIG, "conflicts with %s (its other name); keep one of them",
                                   s->alias[id]);
        return take(s, id, s->json, item, strict);
    }
    if (cJSON_IsNull(item))
        return DSC_OK;
    if (key->state == DSC_KEY_RENAMED) { /* bfloat16: read only when bf16 is not there */
        char where[256];
        if (cJSON_GetObjectItemCaseSensitive(dsc_json_root(s->json), key->here) != NULL)
            return dsc_config_warn_at(s->config, dsc_config_where_item(s, item, where), 0, path, s->err,
                                      "ignored because %s is there", key->here);
        dsc_config_note(s->config, "%s is read as %s", path, key->here);
        snprintf(path, sizeof path, "%s", key->here);
        id = dsc_config_key_find(key->here);
        DSC_ASSERT(id >= 0);
        key = &dsc_config_keys[id];
    }
    s->given[id] = item;
    s->source[id] = s->json;
    if (id == DSC_ID_ZERO && cJSON_IsBool(item))
        return DSC_OK; /* old form; config.c reads it */
    if (!cJSON_IsObject(item)) {
        char value[128];
        return dsc_config_fail(s, id, DSC_ERR_CONFIG, "%s is not an object", dsc_value_text(item, value, sizeof value));
    }
    const bool foreign = (s->foreign_optimizer && strcmp(path, "optimizer.params") == 0) ||
                         (s->foreign_schedule && strcmp(path, "scheduler.params") == 0);
    return walk_section(s, item, path, !foreign && strcmp(key->range, "strict") == 0, depth + 1);
}

static dsc_status walk_section(dsc_config_parse_state *s, const cJSON *object, const char *path, bool strict, int depth)
{
    DSC_ASSERT(depth < 16); /* the table is not deeper */
    for (const cJSON *item = object->child; item != NULL; item = item->next)
        DSC_TRY(walk_member(s, item, path, strict, depth));
    return DSC_OK;
}

/* DeepSpeed's reader accepts these words; other JSON readers refuse the file. One warning is for all of them. */
static dsc_status warn_of_python_words(dsc_config_parse_state *s)
{
    char where[256], key[64], more[64] = "";
    int64_t index = 0, count = 0;
    const cJSON *first = dsc_json_next_python(s->json, &index);
    if (first == NULL)
        return DSC_OK;
    while (dsc_json_next_python(s->json, &index) != NULL)
        count++;
    if (count > 0)
        snprintf(more, sizeof more, " (and %lld more such words)", (long long)count);
    snprintf(key, sizeof key, "%s", first->string != NULL ? first->string : "a list");
    return dsc_config_warn_at(s->config, dsc_config_where_item(s, first, where), 0, key, s->err,
                              "%s is Python and not JSON; write %s%s", cJSON_IsTrue(first) ? "True" : "False",
                              cJSON_IsTrue(first) ? "true" : "false", more);
}

dsc_status dsc_config_walk(dsc_config_parse_state *s)
{
    char where[256], value[128];
    const cJSON *root = dsc_json_root(s->json);
    if (!cJSON_IsObject(root))
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, dsc_config_where_item(s, root, where),
                        "a config is a JSON object { ... }, not %s", dsc_value_text(root, value, sizeof value));
    DSC_TRY(warn_of_python_words(s));
    return walk_section(s, root, "", false, 0);
}

/* ---- states ---- */

static bool is_filled_when_auto(int id)
{
    static const int filled[] = {
        DSC_ID_TRAIN_BATCH, DSC_ID_MICRO_BATCH, DSC_ID_ACCUMULATION, DSC_ID_CLIPPING, DSC_ID_LR, DSC_ID_BETAS,
        DSC_ID_EPS, DSC_ID_WEIGHT_DECAY, DSC_ID_WARMUP_MIN_LR, DSC_ID_WARMUP_MAX_LR, DSC_ID_WARMUP_NUM_STEPS,
        DSC_ID_TOTAL_NUM_STEPS, DSC_ID_FP16, DSC_ID_BF16, DSC_ID_REDUCE_BUCKET, DSC_ID_PREFETCH_BUCKET,
        DSC_ID_PERSISTENCE, DSC_ID_PIPELINE_STAGES,
    };
    for (size_t i = 0; i < DSC_COUNT(filled); i++)
        if (filled[i] == id)
            return true;
    return false;
}

static dsc_status auto_state(dsc_config_parse_state *s, int id)
{
    const dsc_config_key *key = &dsc_config_keys[id];
    if (is_filled_when_auto(id))
        return DSC_OK;
    if (key->state != DSC_KEY_HONOURED) { /* nothing follows from it here, so nothing is said but that */
        dsc_config_note(s->config, "%s \"auto\": %s%s", key->path,
                        *key->default_json != 0 ? "the default, " : "nothing to fill", key->default_json);
        return DSC_OK;
    }
    return dsc_config_warn(s, id, "\"auto\" has no meaning for this key; using the default%s%s",
                           *key->default_json != 0 ? " " : "", key->default_json);
}

/* Below stage 3, keys of stage 3 do nothing, and DeepSpeed does not say so. */
static bool is_stage3_key(int id)
{
    return strncmp(dsc_config_keys[id].path, "zero_optimization.stage3_", 25) == 0;
}

dsc_status dsc_config_states(dsc_config_parse_state *s)
{
    char value[128];
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        const dsc_config_key *key = &dsc_config_keys[id];
        const cJSON *item = s->given[id];
        if (item == NULL)
            continue;
        if (s->is_auto[id]) {
            DSC_TRY(auto_state(s, id));
            continue;
        }
        if (asks_for_nothing(key, item) || (s->foreign_optimizer && dsc_config_key_is_in(id, "optimizer.params")))
            continue;
        const bool section = key->type == DSC_KEY_SECTION;
        const char *shown = section ? "the section" : dsc_value_text(item, value, sizeof value);
        if (is_stage3_key(id) && s->config->zero.stage < 3)
            DSC_TRY(dsc_config_warn(s, id, "no effect at stage %d: it is a key of stage 3", s->config->zero.stage));
        else if (key->state == DSC_KEY_IGNORED)
            DSC_TRY(dsc_config_warn(s, id, "%s is ignored (%s): %s", shown, key->what, key->here));
        else if (key->state == DSC_KEY_REFUSED)
            DSC_TRY(dsc_config_not_built(s, id, "%s is not supported in this version (%s): %s", shown, key->what,
                                         key->here));
        else if (key->state == DSC_KEY_WRONG)
            return dsc_config_fail(s, id, DSC_ERR_CONFIG, "%s is not taken (%s): %s", shown, key->what, key->here);
    }
    return DSC_OK;
}
