/* ensemble.c - an ensemble of networks of models/conv, whose logits are the mean of its members' logits.
 *
 *     logits = (logits of member 0 + ... + logits of member K - 1) / K         summed in this order, then scaled
 *
 * The loss is the cross-entropy of these logits. The modules of the members follow each other. Behind the first member
 * the sum so far passes each module as the carried value (models/program.h), and a classifier adds its logits to it.
 * Each member's first module reads the batch's pictures, so that nothing else goes from member to member.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/conv/conv.h"
#include "models/families.h"

enum { CLASSES = 1000, PLANES = 3, SIDE = 224 };

const char *const dsc_ensemble_usual[DSC_ENSEMBLE_USUAL] = { "mobilenet_v2", "efficientnet_b0", "resnet18" };

bool dsc_ensemble_is(const char *architecture) { return strcmp(architecture, DSC_ENSEMBLE_NAME) == 0; }

dsc_status dsc_ensemble_check(const char *const *members, int32_t count, dsc_error *err)
{
    char list[500];
    if (count < 0 || count > DSC_ENSEMBLE_MEMBERS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.ensemble", "%d members; expected 1 to %d", (int)count,
                        DSC_ENSEMBLE_MEMBERS_MAX);
    for (int32_t i = 0; i < count; i++)
        if (dsc_conv_find(members[i], list, sizeof list) == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.ensemble",
                            "\"%.60s\" cannot be a member of an ensemble; what exists: %s", members[i], list);
    return DSC_OK;
}

typedef struct ensemble_config {
    dsc_lm_config lm;
    int32_t member_count;
    dsc_conv_config member[DSC_ENSEMBLE_MEMBERS_MAX];
} ensemble_config;

static const ensemble_config *config_of(const dsc_lm_config *lm) { return (const ensemble_config *)(const void *)lm; }

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* A module of the model: a part of a member. */
typedef struct place {
    int32_t member;
    int64_t part;
} place;

/* A network has a module for each unit, and one for its classifier. */
static int64_t modules_of(const dsc_conv_config *network) { return network->unit_count + 1; }

static place find(const ensemble_config *config, int64_t module)
{
    place at = { 0, module };
    while (at.part >= modules_of(&config->member[at.member])) {
        at.part -= modules_of(&config->member[at.member++]);
        DSC_ASSERT(at.member < config->member_count);
    }
    return at;
}

/* The first module of a later member has the sum as its input. */
static void begin_block(dsc_program *program, const dsc_lm_config *lm, int64_t layer)
{
    const ensemble_config *config = config_of(lm);
    const place at = find(config, 1 + layer);
    if (at.part == 0) {
        dsc_program_begin(program, 1, lm->vocab, DSC_PROGRAM_NONE);
        return;
    }
    dsc_conv_begin_part(program, &config->member[at.member], at.part);
    if (at.member > 0)
        (void)dsc_program_carried(program, 1, lm->vocab);
}

static void emit_block(dsc_program *program, const dsc_lm_config *lm, int64_t layer)
{
    const ensemble_config *config = config_of(lm);
    const place at = find(config, 1 + layer);
    const dsc_conv_config *member = &config->member[at.member];
    const dsc_conv_part part = { member, at.part, 1 + layer, lm->vocab };
    const bool classifies = at.part == member->unit_count;
    int16_t y = dsc_conv_emit_part(program, &part);
    if (at.member > 0 && classifies)
        y = dsc_program_add(program, y, program->carried);
    else if (at.member > 0)
        dsc_program_carry(program, at.part == 0 ? program->input : program->carried);
    if (classifies && at.member == config->member_count - 1)
        y = dsc_program_scale(program, y, 1.0 / config->member_count);
    dsc_program_end(program, y);
}

static void emit_first(dsc_program *program, const dsc_lm_config *lm) { emit_block(program, lm, -1); }
static void emit_last(dsc_program *program, const dsc_lm_config *lm) { emit_block(program, lm, lm->layers); }

/* "members.1.layer1.0": names of torchvision behind the member's number. */
static void name_block(const dsc_lm_config *lm, int64_t layer, char *out, size_t bytes)
{
    const ensemble_config *config = config_of(lm);
    const place at = find(config, 1 + layer);
    const dsc_conv_config *member = &config->member[at.member];
    const char *unit = at.part < member->unit_count ? member->unit[at.part].name : "";
    snprintf(out, bytes, "members.%d%s%s", (int)at.member, unit[0] != 0 ? "." : "", unit);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static dsc_status find_architecture(dsc_hf_config *reader, const cJSON *item, const dsc_conv_architecture **out)
{
    char list[500] = "";
    const char *name = cJSON_IsString(item) ? item->valuestring : "";
    *out = dsc_conv_find(name, list, sizeof list);
    if (*out != NULL)
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                         "\"members\" has \"%.60s\", which cannot be in an ensemble; what exists: %s", name, list);
}

/* All members have the keys of the first one. */
static dsc_status read_members(dsc_hf_config *reader, ensemble_config *out)
{
    const cJSON *list = dsc_hf_field(reader, "members");
    const int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (count < 1 || count > DSC_ENSEMBLE_MEMBERS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"members\" has %d names of architectures; expected a list of 1 to %d", count,
                             DSC_ENSEMBLE_MEMBERS_MAX);
    for (int i = 1; i < count; i++)
        out->member[i] = out->member[0];
    out->member_count = count;
    for (int i = 0; i < count; i++) {
        const dsc_conv_architecture *architecture;
        DSC_TRY(find_architecture(reader, cJSON_GetArrayItem(list, i), &architecture));
        DSC_TRY(dsc_conv_fill(reader, architecture, &out->member[i]));
    }
    return DSC_OK;
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const dsc_conv_usual usual = { PLANES, SIDE, CLASSES };
    ensemble_config *out = (ensemble_config *)(void *)lm;
    const dsc_conv_config *first = &out->member[0];
    (void)dsc_hf_field(reader, "architecture");
    DSC_TRY(dsc_conv_read_keys(reader, &usual, &out->member[0]));
    DSC_TRY(read_members(reader, out));
    lm->vocab = first->lm.vocab;
    lm->data = first->lm.data;
    lm->channels = out->member[out->member_count - 1].lm.channels;
    lm->layers = -2; /* without the first and the last module */
    for (int32_t i = 0; i < out->member_count; i++) {
        lm->positions = dsc_max_i64(lm->positions, out->member[i].lm.positions);
        lm->layers += modules_of(&out->member[i]);
    }
    return DSC_OK;
}

static const char *const no_layers[] = { NULL };

const dsc_lm_family dsc_ensemble_family = { .model_type = "ensemble of convolutional networks",
                                            .layers_key = "members",
                                            .layer = "",
                                            .token_table = "",
                                            .head_table = "",
                                            .base = "",
                                            .norm = DSC_NORM_LAYER,
                                            .config_bytes = sizeof(ensemble_config),
                                            .read_config = read_config,
                                            .name_block = name_block,
                                            .begin_block = begin_block,
                                            .emit_first = emit_first,
                                            .emit_block = emit_block,
                                            .emit_last = emit_last,
                                            .lora_layers = no_layers,
                                            .any_picture = true };
