/* conflicts.c - pairs of settings that exclude each other: one table, one check, one form of the message.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

typedef bool condition(const dsc_config_parse_state *s, int id);

/* The message points at `key`. Both conditions must hold. */
typedef struct conflict {
    int key;
    condition *key_is;
    int other;
    condition *other_is;
    bool is_unbuilt; /* DeepSpeed can combine them: a reader of the config is warned, a run fails */
    const char *reason;
} conflict;

static bool set(const dsc_config_parse_state *s, int id) { return dsc_config_has(s, id); }
static bool present(const dsc_config_parse_state *s, int id) { return s->given[id] != NULL; }
static bool on(const dsc_config_parse_state *s, int id) { return dsc_config_bool_or(s, id, false); }
static bool positive(const dsc_config_parse_state *s, int id) { return dsc_config_int_or(s, id, 0) > 0; }
static bool not_negative(const dsc_config_parse_state *s, int id) { return dsc_config_int_or(s, id, -1) >= 0; }
static bool above_one(const dsc_config_parse_state *s, int id) { return dsc_config_int_or(s, id, 0) > 1; }

static bool named(const dsc_config_parse_state *s, int id)
{
    return dsc_config_has(s, id) && *s->given[id]->valuestring != 0;
}

/* Any choice but the first one of the row, which is the neutral one of all rows below. */
static bool chosen(const dsc_config_parse_state *s, int id) { return dsc_config_choice_or(s, id, 0) > 0; }

static bool world_size(const dsc_config_parse_state *s, int id)
{
    return dsc_config_choice_or(s, id, DSC_REPRODUCIBLE_PLAN) == DSC_REPRODUCIBLE_WORLD_SIZE;
}

enum { HOOK_POWERSGD = 3 }; /* place among the choices of dsc.communication_hook.type */
static bool powersgd(const dsc_config_parse_state *s, int id)
{
    return dsc_config_choice_or(s, id, 0) == HOOK_POWERSGD;
}
static bool casts(const dsc_config_parse_state *s, int id) { return chosen(s, id) && !powersgd(s, id); }

/* The stage in effect: the old form "zero_optimization": true has no "stage". */
static bool partitioned(const dsc_config_parse_state *s, int id)
{
    (void)id;
    return s->config->zero.stage > 0;
}

static bool compresses_signs(const dsc_config_parse_state *s, int id)
{
    return dsc_config_has(s, id) &&
           dsc_optimizer_compresses_signs(dsc_config_optimizer_kind(s->given[id]->valuestring));
}

static bool takes_local_steps(const dsc_config_parse_state *s, int id)
{
    return dsc_config_has(s, id) &&
           dsc_config_optimizer_kind(s->given[id]->valuestring) == DSC_OPTIMIZER_ZEROONE_ADAM;
}

enum { MOMENTS_8BIT = 2 }; /* of the choices of dsc.moments */
static bool eight_bits(const dsc_config_parse_state *s, int id)
{
    return dsc_config_choice_or(s, id, 0) == MOMENTS_8BIT;
}
static bool other_bits(const dsc_config_parse_state *s, int id) { return dsc_config_has(s, id) && !eight_bits(s, id); }

static bool is_not_adam(const dsc_config_parse_state *s, int id)
{
    const dsc_optimizer_kind kind =
        dsc_config_has(s, id) ? dsc_config_optimizer_kind(s->given[id]->valuestring) : DSC_OPTIMIZER_ADAMW;
    return kind != DSC_OPTIMIZER_ADAM && kind != DSC_OPTIMIZER_ADAMW && !s->foreign_optimizer;
}

static bool measured(const dsc_config_parse_state *s, int id)
{
    return dsc_config_has(s, id) && cJSON_IsString(s->given[id]) && strcmp(s->given[id]->valuestring, "measured") == 0;
}

static bool differs_from_clipping(const dsc_config_parse_state *s, int id)
{
    double norm = 0, clipping = 0;
    bool from_text;
    return dsc_config_has(s, id) && dsc_config_has(s, DSC_ID_CLIPPING) &&
           dsc_value_float(s->given[id], &norm, &from_text) &&
           dsc_value_float(s->given[DSC_ID_CLIPPING], &clipping, &from_text) && norm != clipping;
}

static const char old_offload[] = "it replaces this old form";
static const char from_adapter[] = "its adapter_config.json has the value";
static const char two_packings[] = "each packs gradients its own way";
static const char repeats_errors[] = "a step that is repeated would use other rounding errors";
static const char momentum_packed[] = "this optimizer compresses momentum, not gradients";

static const conflict conflicts[] = {
    { DSC_ID_QUOTA, set, DSC_ID_ELASTIC, on, false, "the section decides the micro-batch by the number of ranks" },
    { DSC_ID_QUOTA, set, DSC_ID_MICS, positive, true, "every group of ranks adds as many micro-batches" },
    { DSC_ID_QUOTA, set, DSC_ID_ALLREDUCE_OP, chosen, false, "a sum would weigh ranks by their quotas" },
    { DSC_ID_QUOTA, measured, DSC_ID_TOGETHER, above_one, true, "the number of micro-steps changes" },
    { DSC_ID_OPTIMIZER_TYPE, takes_local_steps, DSC_ID_CHECK_REPLICAS, positive, false,
      "ranks have other weights between synchronizations" },
    { DSC_ID_OPTIMIZER_TYPE, compresses_signs, DSC_ID_QUOTA, set, true, "every rank's momentum counts the same" },
    { DSC_ID_FP16, on, DSC_ID_BF16, on, false, "a run computes in one dtype" },
    { DSC_ID_FP32_ALLREDUCE, on, DSC_ID_COMM_DTYPE, chosen, false, "it is the old form of \"fp32\"" },
    { DSC_ID_CPU_OFFLOAD, set, DSC_ID_OFFLOAD_OPTIMIZER, present, false, old_offload },
    { DSC_ID_CPU_OFFLOAD_PARAM, set, DSC_ID_OFFLOAD_PARAM, present, false, old_offload },
    { DSC_ID_REDUCE, chosen, DSC_ID_QUANTIZED_GRADIENTS, on, false, "native sums cannot add packed gradients" },
    { DSC_ID_COMPRESSION, chosen, DSC_ID_QUANTIZED_GRADIENTS, on, false, two_packings },
    { DSC_ID_COMPRESSION, chosen, DSC_ID_REDUCE, chosen, false, "native sums cannot add packed gradients" },
    { DSC_ID_COMPRESSION, chosen, DSC_ID_SPIKES, present, false, repeats_errors },
    { DSC_ID_COMPRESSION, chosen, DSC_ID_CHECK_GRADIENTS, positive, false, repeats_errors },
    { DSC_ID_COMPRESSION, chosen, DSC_ID_REPRODUCIBLE, world_size, false, "each rank has its own rounding error" },
    { DSC_ID_HOOK_TYPE, casts, DSC_ID_COMM_DTYPE, set, false, "each sets the dtype on the wire" },
    { DSC_ID_HOOK_TYPE, casts, DSC_ID_FP32_ALLREDUCE, on, false, "each sets the dtype on the wire" },
    { DSC_ID_HOOK_TYPE, chosen, DSC_ID_COMPRESSION, chosen, false, two_packings },
    { DSC_ID_HOOK_TYPE, chosen, DSC_ID_QUANTIZED_GRADIENTS, on, false, two_packings },
    { DSC_ID_HOOK_TYPE, powersgd, DSC_ID_OPTIMIZER_TYPE, compresses_signs, false, momentum_packed },
    { DSC_ID_HOOK_TYPE, powersgd, DSC_ID_QUOTA, set, true, "every rank's compression error counts the same" },
    { DSC_ID_HOOK_TYPE, powersgd, DSC_ID_ZERO_STAGE, partitioned, true,
      "every rank needs the sums of whole matrices: stage 0 works" },
    { DSC_ID_HOOK_TYPE, powersgd, DSC_ID_REPRODUCIBLE, world_size, false, "each rank has its own compression error" },
    { DSC_ID_HOOK_TYPE, powersgd, DSC_ID_GRADIENTS, chosen, true, "its sums are fp32" },
    { DSC_ID_HOOK_TYPE, powersgd, DSC_ID_SPIKES, present, false, repeats_errors },
    { DSC_ID_HOOK_TYPE, powersgd, DSC_ID_CHECK_GRADIENTS, positive, false, repeats_errors },
    { DSC_ID_PRESCALE, on, DSC_ID_REPRODUCIBLE, world_size, false, "rounding depends on the number of ranks" },
    { DSC_ID_ALLREDUCE_OP, chosen, DSC_ID_REPRODUCIBLE, world_size, false, "a sum grows with the number of ranks" },
    { DSC_ID_MICS, positive, DSC_ID_REPRODUCIBLE, world_size, false, "sums depend on the groups of ranks" },
    { DSC_ID_MICS, positive, DSC_ID_HPZ, above_one, true, "not supported together in this version" },
    { DSC_ID_NODE_LOCAL, on, DSC_ID_MICS, positive, true,
      "only the first group of ranks saves: save to a folder that all hosts see, or use stage 3 alone" },
    { DSC_ID_LR_SCHEDULE, chosen, DSC_ID_SCHEDULER_TYPE, set, false, "each sets the learning rate" },
    { DSC_ID_MAX_GRAD_NORM, differs_from_clipping, DSC_ID_CLIPPING, set, false, "it replaces this old form" },
    { DSC_ID_LORA_RANK, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_ALPHA, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_TARGETS, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_PARAMETERS, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_EXCLUDE, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_LAYERS, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_LAYERS_PATTERN, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_RANKS, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_ALPHAS, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_DROPOUT, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_SAVE, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_DORA, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_LORA_STABILIZED, set, DSC_ID_LORA_ADAPTER, named, false, from_adapter },
    { DSC_ID_DPO, present, DSC_ID_MLM, present, false, "a masked language model has no answers to compare" },
    { DSC_ID_LABELS, present, DSC_ID_MLM, present, false, "a model has one head" },
    { DSC_ID_LABELS, present, DSC_ID_DPO, present, false, "a model has one head" },
    { DSC_ID_LABELS, present, DSC_ID_SFT, present, false, "rows with labels have no answers" },
    { DSC_ID_EMBEDDING, present, DSC_ID_MLM, present, false, "a model has one head" },
    { DSC_ID_EMBEDDING, present, DSC_ID_DPO, present, false, "a model has one head" },
    { DSC_ID_EMBEDDING, present, DSC_ID_LABELS, present, false, "a model has one head" },
    { DSC_ID_EMBEDDING, present, DSC_ID_SFT, present, false, "rows of texts have no answers" },
    { DSC_ID_DPO, present, DSC_ID_CURRICULUM_ENABLED, on, true, "samples of a curriculum are cut" },
    { DSC_ID_DPO, present, DSC_ID_DATA_EFFICIENCY, on, true, "samples of a curriculum are cut" },
    { DSC_ID_DPO, present, DSC_ID_DOCUMENT_END, not_negative, false, "a sample of a pair is one text" },
    { DSC_ID_SFT_PACKING, on, DSC_ID_DPO, present, true, "pairs are not packed: each sequence is a sample" },
    { DSC_ID_MOMENTS, eight_bits, DSC_ID_OPTIMIZER_TYPE, is_not_adam, false,
      "only Adam and AdamW have 8-bit moments: \"bf16\" and \"fp32\" work" },
    { DSC_ID_OPTIMIZER_TYPE, dsc_config_names_8bit, DSC_ID_MOMENTS, other_bits, false,
      "the name means AdamW with 8-bit moments" },
    { DSC_ID_OPTIMIZER_TYPE, compresses_signs, DSC_ID_ZERO_STAGE, partitioned, true,
      "as in DeepSpeed, every rank needs the whole momentum: stage 0 works" },
    { DSC_ID_OPTIMIZER_TYPE, compresses_signs, DSC_ID_REPRODUCIBLE, world_size, false,
      "each rank has its own compression error: \"plan\" works" },
    { DSC_ID_OPTIMIZER_TYPE, compresses_signs, DSC_ID_COMPRESSION, chosen, false, momentum_packed },
    { DSC_ID_OPTIMIZER_TYPE, compresses_signs, DSC_ID_QUANTIZED_GRADIENTS, on, false, momentum_packed },
    { DSC_ID_OPTIMIZER_TYPE, compresses_signs, DSC_ID_MOMENTS, chosen, false,
      "such moments are coarser than the compression error: \"fp32\" works" },
};

/* A section's value is too long for a line: its key is enough. */
static const char *value_of(const dsc_config_parse_state *s, int id, char *out, size_t out_bytes)
{
    out[0] = 0;
    return s->given[id] == NULL || cJSON_IsObject(s->given[id]) ? out : dsc_value_text(s->given[id], out, out_bytes);
}

static dsc_status refuse(dsc_config_parse_state *s, const conflict *c)
{
    char value[128], other[128], text[512];
    value_of(s, c->key, value, sizeof value);
    value_of(s, c->other, other, sizeof other);
    snprintf(text, sizeof text, "%s conflicts with %s%s%s (%s); keep one of them", value,
             dsc_config_keys[c->other].path, other[0] != 0 ? " " : "", other, c->reason);
    return c->is_unbuilt ? dsc_config_not_built(s, c->key, "%s", text)
                         : dsc_config_fail(s, c->key, DSC_ERR_CONFIG, "%s", text);
}

dsc_status dsc_config_check_conflicts(dsc_config_parse_state *s)
{
    for (size_t i = 0; i < DSC_COUNT(conflicts); i++) {
        const conflict *c = &conflicts[i];
        if (c->key_is(s, c->key) && c->other_is(s, c->other))
            DSC_TRY(refuse(s, c));
    }
    return DSC_OK;
}
