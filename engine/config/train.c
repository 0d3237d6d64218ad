/* train.c - the "scheduler" section of a config, dsc.lr_schedule, and the types of scheduler and optimizer (its
 * section is optimizer.c's). SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char *const schedules[] = { "", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest",
                                        "StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR" };
static const char *const schedules_of_torch[] = {
    "ConstantLR", "LinearLR",          "PolynomialLR", "CosineAnnealingWarmRestarts", "CyclicLR",
    "OneCycleLR", "ReduceLROnPlateau", "LambdaLR",     "MultiplicativeLR",            "SequentialLR",
    "ChainedScheduler",
};

static dsc_schedule_kind schedule_of(const char *type)
{
    for (size_t i = 1; i < DSC_COUNT(schedules); i++)
        if (strcmp(schedules[i], type) == 0)
            return (dsc_schedule_kind)i;
    return DSC_SCHEDULE_NONE;
}

/* The "type" of a section, if present; fails unless the value is a string. */
static dsc_status type_of(dsc_config_parse_state *s, const char *section_name, const cJSON **out)
{
    char where[256], value[128];
    const cJSON *section = cJSON_GetObjectItemCaseSensitive(dsc_json_root(s->json), section_name);
    const cJSON *type = cJSON_IsObject(section) ? cJSON_GetObjectItemCaseSensitive(section, "type") : NULL;
    *out = NULL;
    if (type == NULL || cJSON_IsNull(type))
        return DSC_OK;
    if (!cJSON_IsString(type))
        return DSC_FAIL(s->err, DSC_ERR_CONFIG, dsc_config_where_item(s, type, where), "%s.type: %s is not a name",
                        section_name, dsc_value_text(type, value, sizeof value));
    *out = type;
    return DSC_OK;
}

static dsc_status check_schedule_type(dsc_config_parse_state *s, const cJSON *type)
{
    char where[256], value[128];
    if (type == NULL || schedule_of(type->valuestring) != DSC_SCHEDULE_NONE)
        return DSC_OK;
    dsc_config_where_item(s, type, where);
    dsc_value_text(type, value, sizeof value);
    for (size_t i = 0; i < DSC_COUNT(schedules_of_torch); i++)
        s->foreign_schedule |= strcmp(schedules_of_torch[i], type->valuestring) == 0;
    if (s->foreign_schedule)
        return dsc_config_not_built_at(s, where, "scheduler.type",
                                       "%s is not supported in this version; WarmupLR, WarmupDecayLR, WarmupCosineLR, "
                                       "OneCycle, LRRangeTest, StepLR, MultiStepLR, ExponentialLR and "
                                       "CosineAnnealingLR work", value);
    return DSC_FAIL(s->err, DSC_ERR_CONFIG, where, "scheduler.type: %s is not a schedule; did you mean \"%s\"?", value,
                    dsc_config_nearest_string(type->valuestring, schedules + 1, DSC_COUNT(schedules) - 1, "WarmupLR"));
}

/* Before the params are looked at: those of a type that is not built are not misspelled. */
dsc_status dsc_config_check_types(dsc_config_parse_state *s)
{
    const cJSON *type;
    if (!cJSON_IsObject(dsc_json_root(s->json)))
        return DSC_OK;
    DSC_TRY(type_of(s, "optimizer", &type));
    DSC_TRY(dsc_config_check_optimizer(s, type));
    DSC_TRY(type_of(s, "scheduler", &type));
    return check_schedule_type(s, type);
}

/* ---- scheduler ---- */

bool dsc_schedule_has_param(dsc_schedule_kind kind, int id)
{
    switch (id) {
    case DSC_ID_LAST_BATCH_ITERATION: return !dsc_schedule_is_torchs(kind);
    case DSC_ID_STEP_SIZE: return kind == DSC_SCHEDULE_STEP;
    case DSC_ID_MILESTONES: return kind == DSC_SCHEDULE_MULTI_STEP;
    case DSC_ID_GAMMA: return dsc_schedule_is_torchs(kind) && kind != DSC_SCHEDULE_COSINE_ANNEALING;
    case DSC_ID_T_MAX: case DSC_ID_ETA_MIN: return kind == DSC_SCHEDULE_COSINE_ANNEALING;
    case DSC_ID_LINEAR_STEPS: case DSC_ID_LINEAR_FACTOR: case DSC_ID_SCHEDULE_UNIT: return dsc_schedule_is_torchs(kind);
    case DSC_ID_WARMUP_MIN_LR:
    case DSC_ID_WARMUP_MAX_LR: return kind == DSC_SCHEDULE_WARMUP || kind == DSC_SCHEDULE_WARMUP_DECAY;
    case DSC_ID_WARMUP_NUM_STEPS: case DSC_ID_WARMUP_TYPE:
        return kind == DSC_SCHEDULE_WARMUP || kind == DSC_SCHEDULE_WARMUP_DECAY || kind == DSC_SCHEDULE_WARMUP_COSINE;
    case DSC_ID_TOTAL_NUM_STEPS: return kind == DSC_SCHEDULE_WARMUP_DECAY || kind == DSC_SCHEDULE_WARMUP_COSINE;
    case DSC_ID_WARMUP_MIN_RATIO: case DSC_ID_COS_MIN_RATIO: return kind == DSC_SCHEDULE_WARMUP_COSINE;
    case DSC_ID_RANGE_MIN_LR: case DSC_ID_RANGE_STEP_SIZE: case DSC_ID_RANGE_STEP_RATE: case DSC_ID_RANGE_STAIRCASE:
        return kind == DSC_SCHEDULE_LR_RANGE_TEST;
    default: return kind == DSC_SCHEDULE_ONE_CYCLE;
    }
}

/* The key without which a schedule of torch has no meaning; DSC_ID_SCHEDULER_TYPE: none. */
static int needed_of(dsc_schedule_kind kind)
{
    switch (kind) {
    case DSC_SCHEDULE_STEP: return DSC_ID_STEP_SIZE;
    case DSC_SCHEDULE_MULTI_STEP: return DSC_ID_MILESTONES;
    case DSC_SCHEDULE_EXPONENTIAL: return DSC_ID_GAMMA;
    default: return DSC_ID_SCHEDULER_TYPE;
    }
}

static dsc_status check_params(dsc_config_parse_state *s)
{
    const dsc_schedule_config *schedule = &s->config->schedule;
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        if (s->given[id] == NULL || !dsc_config_key_is_in(id, "scheduler.params") ||
            dsc_schedule_has_param(schedule->kind, id))
            continue;
        for (int other = 1; other < (int)DSC_COUNT(schedules); other++)
            if (dsc_schedule_has_param((dsc_schedule_kind)other, id))
                return dsc_config_fail(s, id, DSC_ERR_CONFIG, "%s does not take it (%s does); remove it",
                                       schedule->type, schedules[other]);
    }
    if (schedule->kind == DSC_SCHEDULE_ONE_CYCLE &&
        (!dsc_config_has(s, DSC_ID_CYCLE_MIN_LR) || !dsc_config_has(s, DSC_ID_CYCLE_MAX_LR)))
        return dsc_config_fail(s, DSC_ID_SCHEDULER, DSC_ERR_CONFIG,
                               "OneCycle needs cycle_min_lr and cycle_max_lr in its params");
    static const int needed[] = { DSC_ID_STEP_SIZE, DSC_ID_MILESTONES, DSC_ID_GAMMA };
    for (size_t i = 0; i < DSC_COUNT(needed); i++)
        if (needed[i] == needed_of(schedule->kind) && !dsc_config_has(s, needed[i]))
            return dsc_config_fail(s, DSC_ID_SCHEDULER, DSC_ERR_CONFIG, "%s needs %s in its params", schedule->type,
                                   dsc_config_key_leaf(needed[i]));
    if (dsc_schedule_has_param(schedule->kind, DSC_ID_TOTAL_NUM_STEPS) && s->given[DSC_ID_TOTAL_NUM_STEPS] == NULL)
        return dsc_config_fail(s, DSC_ID_SCHEDULER, DSC_ERR_CONFIG,
                               "%s needs total_num_steps in its params (\"auto\": the steps of the run)",
                               schedule->type);
    return DSC_OK;
}

/* DeepSpeed once took 0.001 when WarmupLR's warmup_max_lr was absent, and today takes the optimizer's lr; WarmupDecayLR
 * takes 0.001 in both. We keep the older value (most public configs were written for it) and say what it replaces. */
static dsc_status fill_warmup_max_lr(dsc_config_parse_state *s)
{
    dsc_config *config = s->config;
    dsc_schedule_config *schedule = &config->schedule;
    const int id = DSC_ID_WARMUP_MAX_LR;
    const double lr = config->optimizer.lr;
    if (s->is_auto[id] || s->is_null[id]) {
        schedule->warmup_max_lr = lr;
        dsc_config_note(config, "scheduler.params.warmup_max_lr %s: %g, the optimizer's lr",
                        s->is_auto[id] ? "\"auto\"" : "null", lr);
        return DSC_OK;
    }
    if (dsc_config_has(s, id) && s->flag[DSC_ID_LR] != NULL && schedule->warmup_max_lr == s->lr_of_file) {
        schedule->warmup_max_lr = lr; /* the file says "warm up to lr"; so does the run */
        dsc_config_note(config, "scheduler.params.warmup_max_lr follows %s: %g", s->flag[DSC_ID_LR], lr);
        return DSC_OK;
    }
    if (schedule->warmup_max_lr == lr)
        return DSC_OK;
    if (!dsc_config_has(s, id) && schedule->kind == DSC_SCHEDULE_WARMUP)
        return dsc_config_warn(s, DSC_ID_SCHEDULER,
                               "its warmup_max_lr %g, the default as in DeepSpeed 0.16, replaces the optimizer's lr %g "
                               "after the warm-up; DeepSpeed 0.19 takes lr. Set scheduler.params.warmup_max_lr to one "
                               "of them",
                               schedule->warmup_max_lr, lr);
    if (s->given[DSC_ID_LR] == NULL)
        return DSC_OK;
    return dsc_config_warn(s, dsc_config_has(s, id) ? id : DSC_ID_SCHEDULER,
                           "%swarmup_max_lr %g%s replaces the optimizer's lr %g after the warm-up",
                           dsc_config_has(s, id) ? "" : "its ", schedule->warmup_max_lr,
                           dsc_config_has(s, id) ? "" : ", the default,", lr);
}

static dsc_status fill_warmup(dsc_config_parse_state *s)
{
    dsc_config *config = s->config;
    dsc_schedule_config *schedule = &config->schedule;
    bool from_text;
    int64_t steps = 1000, total = DSC_AUTO_I64;
    if (s->is_auto[DSC_ID_WARMUP_MIN_LR])
        dsc_config_note(config, "scheduler.params.warmup_min_lr \"auto\": 0, as the Trainer fills it");
    if (s->is_auto[DSC_ID_WARMUP_NUM_STEPS]) {
        steps = 2;
        dsc_config_note(config, "scheduler.params.warmup_num_steps \"auto\": 2, the least, as the Trainer warms up "
                                "only when told to");
    }
    if (dsc_config_has(s, DSC_ID_WARMUP_NUM_STEPS))
        (void)dsc_value_int(s->given[DSC_ID_WARMUP_NUM_STEPS], &steps, &from_text);
    if (dsc_config_has(s, DSC_ID_TOTAL_NUM_STEPS))
        (void)dsc_value_int(s->given[DSC_ID_TOTAL_NUM_STEPS], &total, &from_text);
    schedule->warmup_num_steps = config->unresolved.warmup_num_steps = steps < 2 ? 2 : steps;
    schedule->total_num_steps = config->unresolved.total_num_steps = total;
    if (total != DSC_AUTO_I64 && total < schedule->warmup_num_steps)
        DSC_TRY(dsc_config_warn(s, DSC_ID_TOTAL_NUM_STEPS,
                                "%lld is less than warmup_num_steps %lld: the warm-up is cut off", (long long)total,
                                (long long)schedule->warmup_num_steps));
    if (dsc_config_has(s, DSC_ID_WARMUP_TYPE)) {
        const char *type = s->given[DSC_ID_WARMUP_TYPE]->valuestring;
        schedule->warmup_linear = strcmp(type, "linear") == 0;
        if (!schedule->warmup_linear && strcmp(type, "log") != 0) {
            char value[128];
            DSC_TRY(dsc_config_warn(s, DSC_ID_WARMUP_TYPE, "%s is not log or linear; log is used",
                                    dsc_value_text(s->given[DSC_ID_WARMUP_TYPE], value, sizeof value)));
        }
    }
    return schedule->kind == DSC_SCHEDULE_WARMUP_COSINE ? DSC_OK : fill_warmup_max_lr(s);
}

static dsc_status fill_milestones(dsc_config_parse_state *s)
{
    dsc_schedule_config *schedule = &s->config->schedule;
    bool from_text;
    schedule->milestone_count = 0;
    if (!dsc_config_has(s, DSC_ID_MILESTONES))
        return DSC_OK;
    int64_t last = 0, at = 0;
    for (const cJSON *each = s->given[DSC_ID_MILESTONES]->child; each != NULL; each = each->next, last = at) {
        if (schedule->milestone_count == DSC_MILESTONES_MAX)
            return dsc_config_fail(s, DSC_ID_MILESTONES, DSC_ERR_CONFIG, "more than %d; give fewer",
                                   DSC_MILESTONES_MAX);
        if (!dsc_value_int(each, &at, &from_text) || at <= last)
            return dsc_config_fail(s, DSC_ID_MILESTONES, DSC_ERR_CONFIG,
                                   "expected a list of whole numbers above 0, each above the one before it");
        schedule->milestone[schedule->milestone_count++] = at;
    }
    return DSC_OK;
}

static dsc_status fill_torchs(dsc_config_parse_state *s)
{
    dsc_schedule_config *schedule = &s->config->schedule;
    schedule->by_epoch = dsc_config_choice_or(s, DSC_ID_SCHEDULE_UNIT, 0) == 1;
    schedule->unit_steps = schedule->by_epoch ? 0 : 1;
    return fill_milestones(s);
}

static bool says_something(const dsc_config_parse_state *s, int id)
{
    return dsc_config_has(s, id) && !dsc_value_is_default(&dsc_config_keys[id], s->given[id]);
}

/* dsc.lr_schedule; true in *done: there is one. */
static dsc_status fill_own(dsc_config_parse_state *s, bool *done)
{
    static const int params[] = { DSC_ID_LR_WARMUP_STEPS, DSC_ID_LR_DECAY_STEPS, DSC_ID_LR_MIN_RATIO };
    dsc_schedule_config *schedule = &s->config->schedule;
    const char *name = dsc_config_has(s, DSC_ID_LR_SCHEDULE) ? s->given[DSC_ID_LR_SCHEDULE]->valuestring : "none";
    const int choice = dsc_value_choice(&dsc_config_keys[DSC_ID_LR_SCHEDULE], name);
    *done = choice > 0;
    for (size_t i = 0; i < DSC_COUNT(params); i++)
        if (!*done && says_something(s, params[i]))
            return dsc_config_warn(s, params[i], "no effect without dsc.lr_schedule");
    if (!*done)
        return DSC_OK;
    schedule->kind = (dsc_schedule_kind)(DSC_SCHEDULE_CONSTANT + choice - 1);
    snprintf(schedule->type, sizeof schedule->type, "%s", name);
    if (says_something(s, DSC_ID_LR_DECAY_STEPS) && schedule->kind != DSC_SCHEDULE_WSD)
        return dsc_config_warn(s, DSC_ID_LR_DECAY_STEPS, "only wsd takes it");
    return DSC_OK;
}

static dsc_status fill_scheduler(dsc_config_parse_state *s)
{
    dsc_schedule_config *schedule = &s->config->schedule;
    bool own;
    DSC_TRY(fill_own(s, &own));
    if (own)
        return DSC_OK;
    if (!dsc_config_has(s, DSC_ID_SCHEDULER_TYPE)) {
        schedule->kind = DSC_SCHEDULE_NONE;
        if (s->given[DSC_ID_SCHEDULER] != NULL && s->given[DSC_ID_SCHEDULER]->child != NULL)
            return dsc_config_warn(s, DSC_ID_SCHEDULER, "it has no type; the rate stays constant");
        return DSC_OK;
    }
    snprintf(schedule->type, sizeof schedule->type, "%s", s->given[DSC_ID_SCHEDULER_TYPE]->valuestring);
    schedule->kind = schedule_of(schedule->type);
    if (s->foreign_schedule)
        return DSC_OK;
    DSC_TRY(check_params(s));
    switch (schedule->kind) {
    case DSC_SCHEDULE_WARMUP: case DSC_SCHEDULE_WARMUP_DECAY: case DSC_SCHEDULE_WARMUP_COSINE: return fill_warmup(s);
    case DSC_SCHEDULE_ONE_CYCLE:
        if (!dsc_config_has(s, DSC_ID_CYCLE_SECOND_STEP_SIZE))
            schedule->cycle_second_step_size = schedule->cycle_first_step_size;
        if (!dsc_config_has(s, DSC_ID_CYCLE_SECOND_STAIR_COUNT))
            schedule->cycle_second_stair_count = schedule->cycle_first_stair_count;
        return DSC_OK;
    default: return dsc_schedule_is_torchs(schedule->kind) ? fill_torchs(s) : DSC_OK;
    }
}

dsc_status dsc_config_fill_training(dsc_config_parse_state *s)
{
    DSC_TRY(dsc_config_fill_optimizer(s));
    return fill_scheduler(s);
}
