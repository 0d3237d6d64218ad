/* settings.c - the settings of a config that change the numbers of a run, as lines of text.
 *
 * A checkpoint keeps them, so that a resume can name each one that is another now. Sizes of buffers, places of states,
 * files, logs and speed change no bit (docs/ARCHITECTURE.md, "Same bits") and are not among them. Values are resolved
 * ones: "auto" stands as what it has become. SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "engine/config/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_BYTES 24 /* "...#" and 16 digits */

typedef struct setting_lines {
    char *text; /* NULL: only counts */
    size_t bytes, capacity;
} setting_lines;

/* A value in parts. The hash of a whole value replaces one that does not fit, so that a difference stays one. */
typedef struct setting_value {
    char text[DSC_SETTING_BYTES - HASH_BYTES];
    size_t bytes;
    uint64_t hash;
    bool cut;
} setting_value;

static void add(setting_value *v, const char *fmt, ...) DSC_PRINTF(2, 3);
static void add(setting_value *v, const char *fmt, ...)
{
    char part[DSC_CONFIG_TEXT + 64];
    va_list args;
    va_start(args, fmt);
    vsnprintf(part, sizeof part, fmt, args);
    va_end(args);
    dsc_text_printable(part);
    v->hash = dsc_xxh3_128(part, strlen(part), v->hash).low;
    v->cut = v->cut || v->bytes + strlen(part) >= sizeof v->text;
    if (!v->cut)
        v->bytes += (size_t)snprintf(v->text + v->bytes, sizeof v->text - v->bytes, "%s", part);
}

/* The shortest text that is read back as the number. */
static void add_number(setting_value *v, double number)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    add(v, "%s", text);
}

static void put(setting_lines *lines, const char *key, const setting_value *v)
{
    char line[DSC_SETTING_LINE_BYTES];
    char hash[HASH_BYTES] = "";
    if (v->cut)
        snprintf(hash, sizeof hash, "...#%016llx", (unsigned long long)v->hash);
    const int length = snprintf(line, sizeof line, "%s\t%s%s\n", key, v->text, hash);
    DSC_ASSERT(length > 0 && (size_t)length < sizeof line);
    DSC_ASSERT(lines->text == NULL || lines->bytes + (size_t)length < lines->capacity); /* it was counted before */
    if (lines->text != NULL)
        memcpy(lines->text + lines->bytes, line, (size_t)length + 1);
    lines->bytes += (size_t)length;
}

static void put_text(setting_lines *lines, int id, const char *text)
{
    setting_value v = { .bytes = 0 };
    add(&v, "%s", text);
    put(lines, dsc_config_keys[id].path, &v);
}

static void put_whole(setting_lines *lines, int id, int64_t value)
{
    setting_value v = { .bytes = 0 };
    add(&v, "%lld", (long long)value);
    put(lines, dsc_config_keys[id].path, &v);
}

/* Appends choice number `index` of "a|b|c/i". */
static void put_choice(setting_lines *lines, int id, int index)
{
    const char *at = dsc_config_keys[id].range;
    for (; index > 0; index--)
        at += strcspn(at, "|") + 1;
    setting_value v = { .bytes = 0 };
    add(&v, "%.*s", (int)strcspn(at, "|/"), at);
    put(lines, dsc_config_keys[id].path, &v);
}

/* A row whose field has the form of its value. */
static void put_field(setting_lines *lines, const dsc_config *config, int id)
{
    const dsc_config_key *key = &dsc_config_keys[id];
    const char *field = (const char *)config + key->offset;
    setting_value v = { .bytes = 0 };
    int64_t whole;
    double number;
    DSC_ASSERT(key->offset >= 0);
    switch (key->type) {
    case DSC_KEY_BOOL:
        add(&v, "%s", *(const bool *)field ? "true" : "false");
        break;
    case DSC_KEY_INT:
        memcpy(&whole, field, sizeof whole);
        add(&v, "%lld", (long long)whole);
        break;
    case DSC_KEY_FLOAT: case DSC_KEY_RATE: case DSC_KEY_NUMBERS:
        memcpy(&number, field, sizeof number);
        add_number(&v, number);
        break;
    default: add(&v, "%s", field);
    }
    put(lines, key->path, &v);
}

static void put_pair(setting_lines *lines, int id, double first, double second)
{
    setting_value v = { .bytes = 0 };
    add(&v, "[");
    add_number(&v, first);
    add(&v, ",");
    add_number(&v, second);
    add(&v, "]");
    put(lines, dsc_config_keys[id].path, &v);
}

static void put_texts(setting_lines *lines, int id, const char (*texts)[DSC_CONFIG_TEXT], int count)
{
    setting_value v = { .bytes = 0 };
    for (int i = 0; i < count; i++)
        add(&v, "%s%s", i > 0 ? ", " : "", texts[i]);
    put(lines, dsc_config_keys[id].path, &v);
}

static void put_paths(setting_lines *lines, int id, const dsc_config_paths *paths)
{
    setting_value v = { .bytes = 0 };
    for (int i = 0; i < paths->count; i++)
        add(&v, "%s%s", i > 0 ? ", " : "", dsc_config_path(paths, i));
    put(lines, dsc_config_keys[id].path, &v);
}

static void put_optimizer(setting_lines *lines, const dsc_config *config)
{
    const dsc_optimizer_config *o = &config->optimizer;
    const dsc_optimizer_kind kind = o->kind == DSC_OPTIMIZER_NONE ? DSC_OPTIMIZER_ADAMW : o->kind;
    const bool adafactor = kind == DSC_OPTIMIZER_ADAFACTOR;
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        if (dsc_config_key_is_in(id, "optimizer.params") && dsc_optimizer_has_param(kind, id) &&
            dsc_config_keys[id].offset >= 0 && !(adafactor && id == DSC_ID_EPS))
            put_field(lines, config, id);
    if (adafactor)
        put_pair(lines, DSC_ID_EPS, o->adafactor.eps_root, o->adafactor.eps_weights);
    if (dsc_optimizer_has_param(kind, DSC_ID_BETAS))
        put_pair(lines, DSC_ID_BETAS, o->beta1, o->beta2);
    if (kind == DSC_OPTIMIZER_ADAM)
        put_text(lines, DSC_ID_ADAM_W_MODE, "false");
    setting_value v = { .bytes = 0 };
    add_number(&v, o->beta1);
    if (adafactor && o->adafactor.has_beta1)
        put(lines, dsc_config_keys[DSC_ID_BETA1].path, &v);
}

/* Counts of epochs, and a cosine to the end of the run, depend on their lengths in steps. */
static void put_torchs(setting_lines *lines, const dsc_schedule_config *s)
{
    setting_value milestones = { .bytes = 0 }, unit = { .bytes = 0 }, total = { .bytes = 0 };
    if (!dsc_schedule_is_torchs(s->kind))
        return;
    for (int i = 0; i < s->milestone_count; i++)
        add(&milestones, "%s%lld", i > 0 ? ", " : "", (long long)s->milestone[i]);
    if (s->milestone_count > 0)
        put(lines, dsc_config_keys[DSC_ID_MILESTONES].path, &milestones);
    add(&unit, s->by_epoch ? "epoch of %lld steps" : "step", (long long)s->unit_steps);
    put(lines, dsc_config_keys[DSC_ID_SCHEDULE_UNIT].path, &unit);
    add(&total, "%lld", (long long)s->total_num_steps);
    if (s->kind == DSC_SCHEDULE_COSINE_ANNEALING && s->t_max == 0 && s->total_num_steps != DSC_AUTO_I64)
        put(lines, "steps of CosineAnnealingLR", &total);
}

static void put_schedule(setting_lines *lines, const dsc_config *config)
{
    const dsc_schedule_config *s = &config->schedule;
    static const int own[] = { DSC_ID_LR_WARMUP_STEPS, DSC_ID_LR_DECAY_STEPS, DSC_ID_LR_MIN_RATIO };
    setting_value steps = { .bytes = 0 };
    add(&steps, "%lld", (long long)s->total_num_steps);
    if (s->kind >= DSC_SCHEDULE_CONSTANT) {
        put_choice(lines, DSC_ID_LR_SCHEDULE, (int)(s->kind - DSC_SCHEDULE_CONSTANT) + 1);
        for (size_t i = 0; i < DSC_COUNT(own); i++)
            put_field(lines, config, own[i]);
        if (s->kind != DSC_SCHEDULE_CONSTANT && s->total_num_steps != DSC_AUTO_I64)
            put(lines, "steps of dsc.lr_schedule", &steps);
        return;
    }
    put_text(lines, DSC_ID_SCHEDULER_TYPE, s->kind == DSC_SCHEDULE_NONE ? "none" : s->type);
    for (int id = 0; id < DSC_KEY_COUNT && s->kind != DSC_SCHEDULE_NONE; id++)
        if (dsc_config_key_is_in(id, "scheduler.params") && dsc_schedule_has_param(s->kind, id) &&
            dsc_config_keys[id].offset >= 0)
            put_field(lines, config, id);
    put_torchs(lines, s);
    if (s->kind != DSC_SCHEDULE_NONE && dsc_schedule_has_param(s->kind, DSC_ID_WARMUP_NUM_STEPS)) {
        put_whole(lines, DSC_ID_WARMUP_NUM_STEPS, s->warmup_num_steps);
        put_text(lines, DSC_ID_WARMUP_TYPE, s->warmup_linear ? "linear" : "log");
    }
    if (s->kind != DSC_SCHEDULE_NONE && dsc_schedule_has_param(s->kind, DSC_ID_TOTAL_NUM_STEPS) &&
        s->total_num_steps != DSC_AUTO_I64)
        put(lines, dsc_config_keys[DSC_ID_TOTAL_NUM_STEPS].path, &steps);
}

static void put_gradients(setting_lines *lines, const dsc_config *config)
{
    static const int fields[] = { DSC_ID_CLIPPING, DSC_ID_PRESCALE, DSC_ID_PREDIVIDE, DSC_ID_QUANTIZED_WEIGHTS,
                                  DSC_ID_QUANTIZED_FROZEN, DSC_ID_QUANTIZED_GRADIENTS };
    static const int scaler[] = { DSC_ID_LOSS_SCALE, DSC_ID_LOSS_SCALE_WINDOW, DSC_ID_HYSTERESIS,
                                  DSC_ID_CONSECUTIVE_HYSTERESIS, DSC_ID_MIN_LOSS_SCALE };
    const dsc_ext_config *own = &config->own;
    for (size_t i = 0; i < DSC_COUNT(fields); i++)
        put_field(lines, config, fields[i]);
    for (size_t i = 0; i < DSC_COUNT(scaler) && config->precision == DSC_PRECISION_FP16; i++)
        put_field(lines, config, scaler[i]);
    if (own->fp8.enabled) {
        put_field(lines, config, DSC_ID_FP8);
        put_choice(lines, DSC_ID_FP8_FORMAT, own->fp8.hybrid ? 0 : 1);
        put_choice(lines, DSC_ID_FP8_FAST, (int)own->fp8.fast);
        if (own->fp8.blocks)
            put_choice(lines, DSC_ID_FP8_SCALING, 1);
    }
    put_choice(lines, DSC_ID_ALLREDUCE_OP, config->gradient_sum ? 1 : 0);
    if (config->communication_dtype != dsc_config_compute_dtype(config)) /* else the precision's own */
        put_text(lines, DSC_ID_COMM_DTYPE, dsc_dtype_text(config->communication_dtype));
    put_choice(lines, DSC_ID_GRADIENTS, own->gradients == DSC_BF16 ? 1 : 0);
    put_choice(lines, DSC_ID_COMPRESSION, (int)own->compression);
    put_choice(lines, DSC_ID_REDUCE, own->native_sums ? 1 : 0);
    for (int id = 0; id < DSC_KEY_COUNT && own->local_sgd.inner_steps > 0; id++)
        if (dsc_config_key_is_in(id, "dsc.local_sgd"))
            put_field(lines, config, id);
    if (own->hook.kind == DSC_HOOK_POWERSGD) {
        put_choice(lines, DSC_ID_HOOK_TYPE, (int)own->hook.kind);
        put_field(lines, config, DSC_ID_HOOK_RANK);
        put_field(lines, config, DSC_ID_HOOK_START);
        put_field(lines, config, DSC_ID_HOOK_RATE);
    }
    setting_value v = { .bytes = 0 };
    add(&v, "%s", own->lr_linear ? "linear, times " : "none");
    if (own->lr_linear)
        add_number(&v, config->lr_scale);
    put(lines, dsc_config_keys[DSC_ID_LR_SCALING].path, &v);
}

static void put_groups(setting_lines *lines, const dsc_ext_config *own)
{
    setting_value v = { .bytes = 0 };
    for (int g = 0; g < own->group_count; g++) {
        const dsc_param_group *group = &own->group[g];
        add(&v, "%s{", g > 0 ? ", " : "");
        for (int i = 0; i < group->pattern_count; i++)
            add(&v, "%s ", group->pattern[i]);
        add(&v, "lr_scale ");
        add_number(&v, group->lr_scale);
        if (group->has_weight_decay) {
            add(&v, " weight_decay ");
            add_number(&v, group->weight_decay);
        }
        add(&v, "}");
    }
    put(lines, dsc_config_keys[DSC_ID_PARAM_GROUPS].path, &v);
}

static void put_curriculum(setting_lines *lines, const dsc_curriculum *c)
{
    setting_value v = { .bytes = 0 };
    add(&v, "from %lld to %lld", (long long)c->min_difficulty, (long long)c->max_difficulty);
    for (int i = 0; i < c->stair_count; i++)
        add(&v, ", %lld until step %lld", (long long)c->stair[i],
            (long long)(i + 1 < c->stair_count ? c->last_step[i] : INT64_MAX));
    if (c->stair_count == 0) {
        add(&v, " in %lld steps, by %lld, of degree ", (long long)c->total_steps, (long long)c->difficulty_step);
        add_number(&v, c->root_degree);
    }
    put(lines, dsc_config_keys[DSC_ID_CURRICULUM].path, &v);
}

static void put_spikes(setting_lines *lines, const dsc_config *config)
{
    put_choice(lines, DSC_ID_SPIKES_POLICY, (int)config->own.spikes.policy);
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        if (dsc_config_key_is_in(id, "dsc.spikes") && dsc_config_keys[id].offset >= 0)
            put_field(lines, config, id);
}

static void put_examples(setting_lines *lines, const dsc_config *config)
{
    const dsc_sft_section *sft = &config->own.sft;
    setting_value roles = { .bytes = 0 };
    put_choice(lines, DSC_ID_SFT_FORMAT, (int)sft->format);
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        if (dsc_config_key_is_in(id, "dsc.sft.columns"))
            put_field(lines, config, id);
    for (int i = 0; i < sft->train_on_count; i++)
        add(&roles, "%s%s", i > 0 ? ", " : "", sft->train_on[i]);
    put(lines, dsc_config_keys[DSC_ID_SFT_TRAIN_ON].path, &roles);
    put_field(lines, config, DSC_ID_SFT_SYSTEM);
    put_field(lines, config, DSC_ID_SFT_END);
    put_field(lines, config, DSC_ID_SFT_TEMPLATE);
    put_field(lines, config, DSC_ID_SFT_PACKING);
    put_choice(lines, DSC_ID_SFT_LONG, sft->drop_long ? 1 : 0);
}

static void put_numbers(setting_lines *lines, int id, const double *number, int count)
{
    setting_value v = { .bytes = 0 };
    for (int i = 0; i < count; i++) {
        add(&v, "%s", i > 0 ? ", " : "");
        add_number(&v, number[i]);
    }
    put(lines, dsc_config_keys[id].path, &v);
}

static void put_images(setting_lines *lines, const dsc_config *config)
{
    const dsc_images_section *images = &config->own.images;
    put_field(lines, config, DSC_ID_IMAGES_RANDOM_CROP);
    put_numbers(lines, DSC_ID_IMAGES_SCALE, images->scale, 2);
    put_numbers(lines, DSC_ID_IMAGES_RATIO, images->ratio, 2);
    put_field(lines, config, DSC_ID_IMAGES_FLIP);
    put_numbers(lines, DSC_ID_IMAGES_JITTER, images->jitter, 4);
    put_numbers(lines, DSC_ID_IMAGES_RAND_AUGMENT, images->rand_augment, 2);
    put_field(lines, config, DSC_ID_IMAGES_MIXUP);
    put_field(lines, config, DSC_ID_IMAGES_CUTMIX);
    put_field(lines, config, DSC_ID_IMAGES_MIXUP_PROB);
    put_field(lines, config, DSC_ID_IMAGES_MIXUP_SWITCH);
    put_field(lines, config, DSC_ID_IMAGES_RESIZE);
    if (images->filter > 0)
        put_choice(lines, DSC_ID_IMAGES_INTERPOLATION, images->filter - 1);
    put_numbers(lines, DSC_ID_IMAGES_MEAN, images->mean, images->mean_count);
    put_numbers(lines, DSC_ID_IMAGES_STD, images->std, images->std_count);
    put_field(lines, config, DSC_ID_IMAGES_DCT_SCALING);
}

static void put_samples(setting_lines *lines, const dsc_config *config)
{
    const dsc_ext_config *own = &config->own;
    put_paths(lines, DSC_ID_DATA, &own->data);
    setting_value v = { .bytes = 0 };
    for (int i = 0; i < own->data_weight_count; i++) {
        add(&v, "%s", i > 0 ? ", " : "");
        add_number(&v, own->data_weights[i]);
    }
    put(lines, dsc_config_keys[DSC_ID_DATA_WEIGHTS].path, &v);
    put_field(lines, config, DSC_ID_TOKENIZER);
    setting_value field = { .bytes = 0 };
    add(&field, "%s", own->data_field[0] != 0 ? own->data_field : "text");
    put(lines, dsc_config_keys[DSC_ID_DATA_FIELD].path, &field);
    if (config->curriculum.enabled)
        put_curriculum(lines, &config->curriculum);
    if (own->sft.enabled)
        put_examples(lines, config);
    if (own->dpo.enabled) {
        put_field(lines, config, DSC_ID_DPO_BETA);
        put_field(lines, config, DSC_ID_DPO_SMOOTHING);
    }
    if (own->images.enabled)
        put_images(lines, config);
    if (own->ema.enabled)
        put_field(lines, config, DSC_ID_EMA_DECAY);
    if (own->spikes.enabled && own->spikes.policy != DSC_SPIKES_WARN)
        put_spikes(lines, config);
    if (own->labels.enabled) {
        put_choice(lines, DSC_ID_LABELS_PROBLEM, own->labels.problem);
        put_field(lines, config, DSC_ID_LABELS_COUNT);
        put_texts(lines, DSC_ID_LABELS_NAMES, own->labels.name, own->labels.name_count);
        put_field(lines, config, DSC_ID_LABELS_TEXT);
        put_field(lines, config, DSC_ID_LABELS_PAIR);
        put_field(lines, config, DSC_ID_LABELS_LABEL);
    }
    if (own->embedding.enabled) {
        put_choice(lines, DSC_ID_EMBEDDING_LOSS, (int32_t)(own->embedding.loss - DSC_LABELS_RANKED));
        put_field(lines, config, DSC_ID_EMBEDDING_SCALE);
        put_choice(lines, DSC_ID_EMBEDDING_POOLING, (int32_t)own->embedding.pooling);
        put_choice(lines, DSC_ID_EMBEDDING_NORMALIZE, (int32_t)own->embedding.unit);
        put_field(lines, config, DSC_ID_EMBEDDING_ANCHOR);
        put_field(lines, config, DSC_ID_EMBEDDING_POSITIVE);
        put_field(lines, config, DSC_ID_EMBEDDING_NEGATIVE);
        put_field(lines, config, DSC_ID_EMBEDDING_SCORE);
        put_field(lines, config, DSC_ID_EMBEDDING_PROMPT_ANCHOR);
        put_field(lines, config, DSC_ID_EMBEDDING_PROMPT_POSITIVE);
    }
    if (!own->mlm.enabled)
        return;
    put_field(lines, config, DSC_ID_MLM_PROBABILITY);
    put_field(lines, config, DSC_ID_MLM_MASK);
    v = (setting_value) { .bytes = 0 };
    for (int i = 0; i < own->mlm.special_count; i++)
        add(&v, "%s%d", i > 0 ? ", " : "", (int)own->mlm.special[i]);
    put(lines, dsc_config_keys[DSC_ID_MLM_SPECIAL].path, &v);
}

static void put_all(setting_lines *lines, const dsc_config *config)
{
    if (config->own.head_chunk_bytes > 0) /* else the device's own */
        put_field(lines, config, DSC_ID_HEAD_CHUNK_BYTES);
    put_optimizer(lines, config);
    put_schedule(lines, config);
    put_gradients(lines, config);
    put_texts(lines, DSC_ID_FREEZE, config->own.freeze, config->own.freeze_count);
    put_groups(lines, &config->own);
    if (!config->own.decay_vectors)
        put_field(lines, config, DSC_ID_DECAY_VECTORS);
    if (config->own.norm_group > 0)
        put_field(lines, config, DSC_ID_NORM_GROUP);
    if (config->own.label_smoothing > 0)
        put_field(lines, config, DSC_ID_LABEL_SMOOTHING);
    if (config->own.lora.dropout > 0)
        put_field(lines, config, DSC_ID_LORA_DROPOUT);
    if (config->own.quantize.enabled)
        put_field(lines, config, DSC_ID_QUANTIZE_DOUBLE);
    if (config->own.quantize.experts)
        put_field(lines, config, DSC_ID_QUANTIZE_EXPERTS);
    if (config->own.moe.balance >= 0)
        put_field(lines, config, DSC_ID_MOE_BALANCE);
    if (config->own.moe.z >= 0)
        put_field(lines, config, DSC_ID_MOE_Z);
    if (config->own.moe.bias_speed > 0)
        put_field(lines, config, DSC_ID_MOE_BIAS_SPEED);
    put_samples(lines, config);
}

dsc_status dsc_config_settings(dsc_alloc *alloc, const dsc_config *config, char **out, dsc_error *err)
{
    setting_lines lines = { .text = NULL };
    *out = NULL;
    put_all(&lines, config);
    lines.capacity = lines.bytes + 1;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, (int64_t)lines.capacity, 1, &lines.text, err));
    lines.bytes = 0;
    put_all(&lines, config);
    DSC_ASSERT(lines.bytes + 1 == lines.capacity);
    *out = lines.text;
    return DSC_OK;
}
