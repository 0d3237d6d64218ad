/* config_explain.c - `dsc config explain`: every key of the table, with its value, its meaning, or both.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/yaml.h"
#include "base/io.h"
#include "engine/config/table.h"
#include "tools/dsc/config_tool.h"

/* ---- values ---- */

#define VALUE_BYTES (DSC_CONFIG_TEXT * 6 + 16) /* a text of control characters, each escaped */

static void text_value(const char *text, char *out)
{
    if (*text == 0)
        snprintf(out, VALUE_BYTES, "null");
    else
        (void)dsc_json_quote(out, VALUE_BYTES, text);
}

static void int_value(int64_t value, char *out)
{
    if (value == DSC_AUTO_I64)
        snprintf(out, VALUE_BYTES, "\"auto\"");
    else
        snprintf(out, VALUE_BYTES, "%lld", (long long)value);
}

/* Rows whose field has the form of the value. */
static void field_value(const dsc_config *config, const dsc_config_key *key, char *out)
{
    const char *field = (const char *)config + key->offset;
    int64_t i;
    double d;
    bool b;
    char number[32];
    switch (key->type) {
    case DSC_KEY_INT:
        memcpy(&i, field, sizeof i);
        int_value(i, out);
        break;
    case DSC_KEY_FLOAT: case DSC_KEY_RATE: case DSC_KEY_NUMBERS:
        memcpy(&d, field, sizeof d);
        snprintf(out, VALUE_BYTES, "%s", dsc_tool_double(d, number));
        break;
    case DSC_KEY_BOOL:
        memcpy(&b, field, sizeof b);
        snprintf(out, VALUE_BYTES, "%s", b ? "true" : "false");
        break;
    default: text_value(field, out); break;
    }
}

/* The value of an honoured row as JSON; false when the row has none to show. */
static bool value_of(const dsc_config *config, int id, char *out)
{
    const dsc_config_key *key = &dsc_config_keys[id];
    char a[32], b[32];
    out[0] = 0;
    if (key->state != DSC_KEY_HONOURED)
        return false;
    if (dsc_config_key_is_in(id, "scheduler.params") &&
        (config->schedule.kind == DSC_SCHEDULE_NONE || !dsc_schedule_has_param(config->schedule.kind, id)))
        return false;
    if (dsc_config_key_is_in(id, "optimizer.params") && !dsc_optimizer_has_param(config->optimizer.kind, id))
        return false;
    if (key->offset >= 0) {
        field_value(config, key, out);
        return true;
    }
    switch (id) {
    case DSC_ID_TRAIN_BATCH: int_value(config->train_batch_size, out); break;
    case DSC_ID_MICRO_BATCH: int_value(config->train_micro_batch_size_per_gpu, out); break;
    case DSC_ID_ACCUMULATION: int_value(config->gradient_accumulation_steps, out); break;
    case DSC_ID_OPTIMIZER_TYPE: text_value(config->optimizer.type, out); break;
    case DSC_ID_BETAS:
        snprintf(out, VALUE_BYTES, "[%s,%s]", dsc_tool_double(config->optimizer.beta1, a),
                 dsc_tool_double(config->optimizer.beta2, b));
        break;
    case DSC_ID_ADAM_W_MODE:
        snprintf(out, VALUE_BYTES, "%s", config->optimizer.kind == DSC_OPTIMIZER_ADAM ? "false" : "true");
        break;
    case DSC_ID_SCHEDULER_TYPE: text_value(config->schedule.type, out); break;
    case DSC_ID_WARMUP_NUM_STEPS: int_value(config->schedule.warmup_num_steps, out); break;
    case DSC_ID_WARMUP_TYPE: text_value(config->schedule.warmup_linear ? "linear" : "log", out); break;
    case DSC_ID_TOTAL_NUM_STEPS: int_value(config->schedule.total_num_steps, out); break;
    case DSC_ID_FP16:
        snprintf(out, VALUE_BYTES, "%s", config->precision == DSC_PRECISION_FP16 ? "true" : "false");
        break;
    case DSC_ID_BF16:
        snprintf(out, VALUE_BYTES, "%s", config->precision == DSC_PRECISION_BF16 ? "true" : "false");
        break;
    case DSC_ID_ZERO_STAGE: snprintf(out, VALUE_BYTES, "%d", config->zero.stage); break;
    case DSC_ID_OVERLAP_COMM: snprintf(out, VALUE_BYTES, "%s", config->zero.overlap_comm ? "true" : "false"); break;
    case DSC_ID_OFFLOAD_OPTIMIZER_DEVICE:
        text_value(dsc_config_tool_offload(config->zero.optimizer_named), out);
        break;
    case DSC_ID_OFFLOAD_PARAM_DEVICE: text_value(dsc_config_tool_offload(config->zero.param_named), out); break;
    case DSC_ID_ELASTIC:
        snprintf(out, VALUE_BYTES, "%s", config->unresolved.elastic.enabled ? "true" : "false");
        break;
    case DSC_ID_LR_SCHEDULE:
        text_value(config->schedule.kind >= DSC_SCHEDULE_CONSTANT ? config->schedule.type : "none", out);
        break;
    case DSC_ID_LR_SCALING: text_value(config->own.lr_linear ? "linear" : "none", out); break;
    case DSC_ID_COMPRESSION: text_value(dsc_quant_text(config->own.compression), out); break;
    case DSC_ID_REPRODUCIBLE:
        text_value(config->own.reproducible == DSC_REPRODUCIBLE_WORLD_SIZE ? "world_size" : "plan", out);
        break;
    case DSC_ID_RECOMPUTE: text_value(dsc_recompute_text(config->own.recompute), out); break;
    default: return false;
    }
    return true;
}

static void print_texts(const char *path, const char (*texts)[DSC_CONFIG_TEXT], int count, bool json)
{
    printf(json ? ",\"%s\":[" : "%-56s [", path);
    for (int i = 0; i < count; i++) {
        if (i > 0)
            putchar(',');
        dsc_tool_json_text(texts[i]);
    }
    printf(json ? "]" : "]\n");
}

static void print_paths(const char *key, const dsc_config_paths *paths, bool json)
{
    printf(json ? ",\"%s\":[" : "%-56s [", key);
    for (int i = 0; i < paths->count; i++) {
        if (i > 0)
            putchar(',');
        dsc_tool_json_text(dsc_config_path(paths, i));
    }
    printf(json ? "]" : "]\n");
}

dsc_status dsc_config_tool_open(dsc_alloc *alloc, const char *path, dsc_json **out, dsc_error *err)
{
    const dsc_io io = { .hook = { NULL, NULL } };
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    char *text = NULL;
    int64_t bytes = 0;
    *out = NULL;
    DSC_TRY(dsc_io_read_all(&io, alloc, path, limits.bytes, &text, &bytes, err));
    const dsc_status status = dsc_yaml_is_name(path)
                                  ? dsc_yaml_open(alloc, path, text, bytes, &limits, out, err)
                                  : dsc_json_open(alloc, path, text, bytes, DSC_JSON_CONFIG, &limits, out, err);
    dsc_alloc_free(alloc, text);
    return status;
}

static bool is_default(const dsc_config_key *key, const char *value)
{
    char *end;
    const double number = strtod(value, &end);
    if (*end != 0 || *value == 0)
        return strcmp(value, key->default_json) == 0;
    return *key->default_json != 0 && number == strtod(key->default_json, NULL); /* 500000000 is 5e8 */
}

/* Origin of a value: its line in the file, the table's default, or other keys, the model and the machine. */
static const char *origin_of(const dsc_json *file, const dsc_config_key *key, const char *value, char out[32])
{
    char name[64], where[512];
    const cJSON *item = dsc_json_root(file);
    for (const char *from = key->path; item != NULL && *from != 0;) {
        const int length = (int)strcspn(from, ".");
        snprintf(name, sizeof name, "%.*s", length, from);
        item = cJSON_IsObject(item) ? cJSON_GetObjectItemCaseSensitive(item, name) : NULL;
        from += length + (from[length] == '.');
    }
    if (item == NULL || cJSON_IsNull(item)) {
        snprintf(out, 32, "%s", is_default(key, value) ? "default" : "resolved");
        return out;
    }
    dsc_json_where(file, item, where, sizeof where);
    char *column = strrchr(where, ':');
    if (column != NULL)
        *column = 0;
    const char *line = strrchr(where, ':');
    const bool left_open = cJSON_IsString(item) && strcmp(item->valuestring, "auto") == 0;
    const bool filled = left_open && strcmp(value, "\"auto\"") != 0;
    snprintf(out, 32, "line %.12s%s", line != NULL ? line + 1 : "?", filled ? " (auto)" : "");
    return out;
}

static void print_value(const dsc_config_key *key, const char *value, const char *origin)
{
    const int range = (int)strcspn(key->range, "/");
    printf("%-56s %-22s %-12s %.*s%s%s\n", key->path, value, origin, range, key->range, range > 0 ? "; " : "",
           key->what);
}

static void print_group(const dsc_config *config, const dsc_param_group *group)
{
    char number[32];
    printf("{\"params\":[");
    for (int p = 0; p < group->pattern_count; p++) {
        if (p > 0)
            putchar(',');
        dsc_tool_json_text(group->pattern[p]);
    }
    printf("],\"lr\":%s", dsc_tool_double(config->optimizer.lr * group->lr_scale, number));
    if (group->has_weight_decay)
        printf(",\"weight_decay\":%s", dsc_tool_double(group->weight_decay, number));
    putchar('}');
}

static void print_groups(const dsc_config *config, const char *path, bool json)
{
    printf(json ? ",\"%s\":[" : "%-56s [", path);
    for (int g = 0; g < config->own.group_count; g++) {
        if (g > 0)
            putchar(',');
        print_group(config, &config->own.group[g]);
    }
    printf(json ? "]" : "]\n");
}

static void print_values(const dsc_config *config, const dsc_json *file, bool json)
{
    char value[VALUE_BYTES], origin[32];
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        const dsc_config_key *key = &dsc_config_keys[id];
        if (id == DSC_ID_DATA)
            print_paths(key->path, &config->own.data, json);
        else if (id == DSC_ID_EVAL_DATA)
            print_paths(key->path, &config->own.eval_data, json);
        else if (id == DSC_ID_FREEZE)
            print_texts(key->path, config->own.freeze, config->own.freeze_count, json);
        else if (id == DSC_ID_LORA_TARGETS)
            print_texts(key->path, config->own.lora.targets, config->own.lora.target_count, json);
        else if (id == DSC_ID_LORA_PARAMETERS)
            print_texts(key->path, config->own.lora.parameters, config->own.lora.parameter_count, json);
        else if (id == DSC_ID_LORA_EXCLUDE)
            print_texts(key->path, config->own.lora.exclude, config->own.lora.exclude_count, json);
        else if (id == DSC_ID_LORA_LAYERS_PATTERN)
            print_texts(key->path, config->own.lora.layers_pattern, config->own.lora.layers_pattern_count, json);
        else if (id == DSC_ID_LORA_SAVE)
            print_texts(key->path, config->own.lora.save, config->own.lora.save_count, json);
        else if (id == DSC_ID_PARAM_GROUPS && config->own.group_count > 0)
            print_groups(config, key->path, json);
        else if (json && id != DSC_ID_SEED && value_of(config, id, value))
            printf(",\"%s\":%s", key->path, value);
        else if (!json && value_of(config, id, value))
            print_value(key, value, origin_of(file, key, value, origin));
    }
}

int dsc_config_tool_values(const dsc_config *config, const dsc_json *file, bool json)
{
    char value[VALUE_BYTES], origin[32];
    if (json) {
        putchar('{');
        dsc_config_tool_json(config);
        printf(",\"values\":{\"dsc.seed\":%lld", (long long)config->seed);
    }
    print_values(config, file, json);
    for (int i = 0; !json && i < config->warning_count; i++)
        printf("warning: %s\n", config->warnings[i]);
    for (int i = 0; !json && i < config->note_count; i++)
        printf("note: %s\n", config->notes[i]);
    bool first = true;
    for (int id = 0; json && id < DSC_KEY_COUNT; id++) {
        if (!value_of(config, id, value))
            continue;
        printf("%s\"%s\":\"%s\"", first ? "},\"origins\":{" : ",", dsc_config_keys[id].path,
               origin_of(file, &dsc_config_keys[id], value, origin));
        first = false;
    }
    if (json)
        printf("}}\n");
    return dsc_tool_end();
}

/* ---- meanings ---- */

static void type_of(const dsc_config_key *key, char *out, size_t out_bytes)
{
    const int shown = (int)strcspn(key->range, "/");
    if (key->type == DSC_KEY_SECTION)
        snprintf(out, out_bytes, "object");
    else
        snprintf(out, out_bytes, "%s%s%.*s", dsc_key_type_text(key->type), shown > 0 ? " " : "", shown, key->range);
}

/* The treatment of a key, as text. */
static void effect_of(const dsc_config_key *key, char *out, size_t out_bytes)
{
    switch (key->state) {
    case DSC_KEY_HONOURED: snprintf(out, out_bytes, "honoured%s%s", *key->here != 0 ? "; " : "", key->here); break;
    case DSC_KEY_PART:
        snprintf(out, out_bytes, "read with its section%s%s", *key->here != 0 ? "; " : "", key->here);
        break;
    case DSC_KEY_RENAMED: snprintf(out, out_bytes, "mapped to %s", key->here); break;
    case DSC_KEY_MAPPED: snprintf(out, out_bytes, "mapped with a warning: %s", key->here); break;
    case DSC_KEY_IGNORED:
        snprintf(out, out_bytes, "ignored with a warning%s: %s", *key->default_json != 0 ? " unless default" : "",
                 key->here);
        break;
    case DSC_KEY_REFUSED:
        snprintf(out, out_bytes, "refused%s: %s", *key->default_json != 0 ? " unless default" : "", key->here);
        break;
    case DSC_KEY_WRONG:
        snprintf(out, out_bytes, "an error%s: %s", *key->default_json != 0 ? " unless default" : "", key->here);
        break;
    }
}

bool dsc_config_tool_is_key(const char *path)
{
    return dsc_config_key_find(path) >= 0 && strchr(path, '/') == NULL;
}

int dsc_config_tool_key(const char *path)
{
    char type[128], effect[512];
    const dsc_config_key *key = &dsc_config_keys[dsc_config_key_find(path)];
    type_of(key, type, sizeof type);
    effect_of(key, effect, sizeof effect);
    printf("%s\n  type     %s\n  default  %s\n", path, type, *key->default_json != 0 ? key->default_json : "none");
    if (*key->what != 0)
        printf("  meaning  %s\n", key->what);
    printf("  here     %s\n", effect);
    return dsc_tool_end();
}

/* A bar would end a table's cell. */
static void cell(const char *text, bool code)
{
    printf("| %s", code && *text != 0 ? "`" : "");
    for (const char *c = text; *c != 0; c++) {
        if (*c == '|')
            fputs("\\|", stdout);
        else
            putchar(*c);
    }
    printf("%s ", code && *text != 0 ? "`" : "");
}

static void markdown_row(const dsc_config_key *key)
{
    char type[128], effect[512];
    type_of(key, type, sizeof type);
    effect_of(key, effect, sizeof effect);
    cell(key->path, true);
    cell(type, false);
    cell(key->default_json, true);
    cell(key->what, false);
    cell(effect, false);
    printf("|\n");
}

/* The first segment; rows with the same one share a heading. */
static size_t group_length(const dsc_config_key *key)
{
    return strcspn(key->path, ".");
}

static bool has_own_heading(const char *path, size_t length)
{
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        const char *row = dsc_config_keys[id].path;
        if (strncmp(row, path, length) == 0 && row[length] == '.')
            return true;
    }
    return false;
}

static int markdown(void)
{
    const char *head = "| key | type | default | meaning | dsc |\n|---|---|---|---|---|\n";
    printf("# Configuration keys\n\n"
           "Generated from engine/config/config_keys.def by `dsc config explain --markdown`; do not edit.\n\n"
           "A file whose name ends in `.yaml` or `.yml` is YAML of the same keys, without anchors and tags. In JSON\n"
           "comments, trailing commas and line ends instead of commas are allowed. `null` is not given.\n"
           "`\"auto\"` is filled as Hugging Face's Trainer fills it, from the model and the run, and reported.\n"
           "Other keys use their default for `\"auto\"`,\n"
           "with a warning. A key that is nearly one of these is an error, any other unknown key a warning, or an\n"
           "error in a section marked strict. `--strict` makes every warning an error. Flags of `train` beat the\n"
           "file, and each override is printed.\n\n"
           "## Top level\n\n%s",
           head);
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        if (!has_own_heading(dsc_config_keys[id].path, group_length(&dsc_config_keys[id])))
            markdown_row(&dsc_config_keys[id]);
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        const dsc_config_key *key = &dsc_config_keys[id];
        const size_t length = group_length(key);
        if (key->type != DSC_KEY_SECTION || key->path[length] != 0 || !has_own_heading(key->path, length))
            continue;
        printf("\n## %s\n\n%s%s%s section%s%s.\n\n%s", key->path, key->what, *key->what != 0 ? ". " : "",
               strcmp(key->range, "strict") == 0 ? "Strict" : "Loose", *key->here != 0 ? "; " : "", key->here, head);
        for (int member = 0; member < DSC_KEY_COUNT; member++) {
            const char *row = dsc_config_keys[member].path;
            if (strncmp(row, key->path, length) == 0 && row[length] == '.')
                markdown_row(&dsc_config_keys[member]);
        }
    }
    return dsc_tool_end();
}

int dsc_config_tool_keys(bool as_markdown)
{
    char effect[512];
    if (as_markdown)
        return markdown();
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        effect_of(&dsc_config_keys[id], effect, sizeof effect);
        printf("%-56s %-14s %s%s%s\n", dsc_config_keys[id].path,
               *dsc_config_keys[id].default_json != 0 ? dsc_config_keys[id].default_json : "-",
               dsc_config_keys[id].what, *dsc_config_keys[id].what != 0 ? ". " : "", effect);
    }
    return dsc_tool_end();
}
