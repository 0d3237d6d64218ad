/* fields.c - from checked values to the fields of a dsc_config: batch, precision, stage, offload, clipping and
 * our own section. Optimizer and schedule are train.c's. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <float.h>
#include <string.h>

#include "comm/comm.h"

static void fill_plain_fields(dsc_config_parse_state *s)
{
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        if (dsc_config_keys[id].offset >= 0)
            dsc_value_store(&dsc_config_keys[id], dsc_config_has(s, id) ? s->given[id] : NULL, s->config);
}

static void fill_batch(dsc_config_parse_state *s)
{
    static const int ids[] = { DSC_ID_TRAIN_BATCH, DSC_ID_MICRO_BATCH, DSC_ID_ACCUMULATION };
    dsc_config_unresolved *given = &s->config->unresolved;
    bool any_auto = false, any_value = false;
    given->train_batch_size = dsc_config_int_or(s, DSC_ID_TRAIN_BATCH, DSC_AUTO_I64);
    given->train_micro_batch_size_per_gpu = dsc_config_int_or(s, DSC_ID_MICRO_BATCH, DSC_AUTO_I64);
    given->gradient_accumulation_steps = dsc_config_int_or(s, DSC_ID_ACCUMULATION, DSC_AUTO_I64);
    for (size_t i = 0; i < DSC_COUNT(ids); i++) {
        if (given->batch.line == 0 && dsc_config_has(s, ids[i]))
            given->batch = dsc_config_source_pos(s, ids[i]);
        given->batch_auto[i] = s->is_auto[ids[i]];
        any_auto |= s->is_auto[ids[i]];
        any_value |= dsc_config_has(s, ids[i]) && ids[i] != DSC_ID_ACCUMULATION;
    }
    if (any_auto && !any_value)
        s->config->auto_mask |= DSC_CONFIG_AUTO_BATCH;
}

/* "auto" leaves the choice to the run, and the run takes bf16; fp16 where only that is left open. */
static dsc_status fill_precision(dsc_config_parse_state *s)
{
    dsc_config *config = s->config;
    const bool fp16 = dsc_config_bool_or(s, DSC_ID_FP16, false), bf16 = dsc_config_bool_or(s, DSC_ID_BF16, false);
    if (!fp16 && (s->is_auto[DSC_ID_BF16] || (s->is_auto[DSC_ID_FP16] && !bf16))) {
        config->auto_mask |= DSC_CONFIG_AUTO_PRECISION;
        config->precision = dsc_config_has(s, DSC_ID_BF16) ? DSC_PRECISION_FP16 : DSC_PRECISION_BF16;
        dsc_config_note(config, "precision \"auto\": %s", dsc_dtype_text(dsc_config_compute_dtype(config)));
        return DSC_OK;
    }
    config->precision = bf16 ? DSC_PRECISION_BF16 : fp16 ? DSC_PRECISION_FP16 : DSC_PRECISION_FP32;
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
        return dsc_config_warn(s, id, "\"auto\" has no meaning for this key; using %s", built);
    if (*dtype == 0)
        return dsc_config_fail(s, id, DSC_ERR_CONFIG, "%s is not a dtype; expected fp32, bf16 or fp16", value);
    if (strcmp(dtype, built) != 0)
        return dsc_config_not_built(s, id, "%s is not supported in this version (%s): %s works", value,
                                    dsc_config_keys[id].what, built);
    return DSC_OK;
}

/* Not in another dtype than the run computes in or accumulates in: what is asked for is less than what is done. */
static dsc_status check_accumulation(dsc_config_parse_state *s)
{
    const char *compute = dsc_dtype_text(dsc_config_compute_dtype(s->config));
    const int id = DSC_ID_GRAD_ACCUM_DTYPE;
    if (dsc_config_has(s, id) && strcmp(compute, "fp32") != 0 &&
        strcmp(dtype_of(s->given[id]->valuestring), compute) == 0)
        return dsc_config_warn(s, id, "gradients are accumulated in fp32 all the same");
    return check_dtype(s, id, "fp32");
}

static dsc_status fill_wire(dsc_config_parse_state *s)
{
    static const dsc_dtype wires[] = { DSC_F32, DSC_F16, DSC_BF16 }; /* as the table names them */
    dsc_config *config = s->config;
    const bool given = dsc_config_has(s, DSC_ID_COMM_DTYPE);
    config->communication_dtype = dsc_config_compute_dtype(config);
    if (given)
        config->communication_dtype = wires[dsc_config_choice_or(s, DSC_ID_COMM_DTYPE, 0)];
    if (!dsc_config_bool_or(s, DSC_ID_FP32_ALLREDUCE, false))
        return DSC_OK;
    config->communication_dtype = DSC_F32;
    return dsc_config_warn(s, DSC_ID_FP32_ALLREDUCE, "an old form, taken as communication_data_type \"fp32\"");
}

static dsc_status check_dtypes(dsc_config_parse_state *s)
{
    const dsc_config *config = s->config;
    if (config->zero.stage == 0 && dsc_config_bool_or(s, DSC_ID_FP16_MASTERS, false))
        return dsc_config_fail(s, DSC_ID_FP16_MASTERS, DSC_ERR_CONFIG, "true needs stage 1, 2 or 3, in DeepSpeed too");
    DSC_TRY(fill_wire(s));
    if (config->fp16.initial_scale_power < -126 || config->fp16.initial_scale_power > 126)
        return dsc_config_fail(s, DSC_ID_INITIAL_SCALE_POWER, DSC_ERR_CONFIG,
                               "2 to the power %lld is not an fp32 number",
                               (long long)config->fp16.initial_scale_power);
    if (config->fp16.loss_scale > (double)FLT_MAX)
        return dsc_config_fail(s, DSC_ID_LOSS_SCALE, DSC_ERR_CONFIG, "%g is not an fp32 number",
                               config->fp16.loss_scale);
    DSC_TRY(check_accumulation(s));
    return check_dtype(s, DSC_ID_PARAM_DTYPE, dsc_dtype_text(dsc_config_compute_dtype(config)));
}

static dsc_status fill_stage(dsc_config_parse_state *s)
{
    const cJSON *section = s->given[DSC_ID_ZERO];
    s->config->zero.stage = (int)dsc_config_int_or(s, DSC_ID_ZERO_STAGE, 0);
    if (section == NULL || !cJSON_IsBool(section))
        return DSC_OK;
    if (s->flag[DSC_ID_ZERO_STAGE] == NULL)
        s->config->zero.stage = cJSON_IsTrue(section) ? 1 : 0;
    return dsc_config_warn(s, DSC_ID_ZERO, "%s is an old form, taken as {\"stage\": %d}",
                           cJSON_IsTrue(section) ? "true" : "false", cJSON_IsTrue(section) ? 1 : 0);
}

/* ZeRO++: what asks for more than it gets. */
static dsc_status check_zeropp(dsc_config_parse_state *s)
{
    const dsc_zero_config *zero = &s->config->zero;
    if (zero->hpz_partition_size > 1 && zero->stage != 3)
        DSC_TRY(dsc_config_warn(s, DSC_ID_HPZ, "no effect at stage %d: it needs stage 3", zero->stage));
    const int weights = zero->quantized_weights ? DSC_ID_QUANTIZED_WEIGHTS : DSC_ID_QUANTIZED_FROZEN;
    if (zero->quantized_frozen_weights && zero->stage != 3)
        return dsc_config_warn(s, weights, "no effect at stage %d: it needs stage 3", zero->stage);
    return DSC_OK;
}

static dsc_status fill_zero(dsc_config_parse_state *s)
{
    dsc_zero_config *zero = &s->config->zero;
    zero->overlap_comm = dsc_config_bool_or(s, DSC_ID_OVERLAP_COMM, false);
    s->config->unresolved.overlap_comm = dsc_config_has(s, DSC_ID_OVERLAP_COMM);
    zero->quantized_frozen_weights = zero->quantized_frozen_weights || zero->quantized_weights;
    DSC_TRY(check_zeropp(s));
    if (!dsc_config_bool_or(s, DSC_ID_COMPUTE_GRAD_NORM, true) && (zero->stage == 0 || zero->stage == 3))
        return dsc_config_fail(s, DSC_ID_COMPUTE_GRAD_NORM, DSC_ERR_CONFIG, "false is for stages 1 and 2, not %d",
                               zero->stage);
    s->config->unresolved.reduce_bucket_size =
        s->is_auto[DSC_ID_REDUCE_BUCKET] ? DSC_AUTO_I64 : zero->reduce_bucket_size;
    s->config->unresolved.stage3_prefetch_bucket_size =
        s->is_auto[DSC_ID_PREFETCH_BUCKET] ? DSC_AUTO_I64 : zero->stage3_prefetch_bucket_size;
    s->config->unresolved.stage3_param_persistence_threshold =
        s->is_auto[DSC_ID_PERSISTENCE] ? DSC_AUTO_I64 : zero->stage3_param_persistence_threshold;
    return dsc_config_fill_offload(s);
}

/* "all_gather_into_tensor" is an all_gather. */
static dsc_status fill_prof_ops(dsc_config_parse_state *s)
{
    char value[128];
    if (!dsc_config_has(s, DSC_ID_PROF_OPS))
        return DSC_OK;
    for (const cJSON *each = s->given[DSC_ID_PROF_OPS]->child; each != NULL; each = each->next) {
        const char *name = cJSON_IsString(each) ? each->valuestring : "", *known;
        int op = 0;
        while (op < DSC_COMM_OP_COUNT && (known = dsc_comm_op_text((dsc_comm_op)op),
                                          strncmp(name, known, strlen(known)) != 0))
            op++;
        if (op == DSC_COMM_OP_COUNT)
            return dsc_config_fail(s, DSC_ID_PROF_OPS, DSC_ERR_CONFIG,
                                   "%s is not an operation; expected names such as "
                                   "\"all_reduce\" or \"all_gather\"",
                                   dsc_value_text(each, value, sizeof value));
        s->config->comms_logger.ops |= 1u << op;
    }
    return DSC_OK;
}

static dsc_status fill_data_weights(dsc_config_parse_state *s)
{
    dsc_ext_config *own = &s->config->own;
    bool from_text;
    if (!dsc_config_has(s, DSC_ID_DATA_WEIGHTS))
        return DSC_OK;
    for (const cJSON *each = s->given[DSC_ID_DATA_WEIGHTS]->child; each != NULL; each = each->next) {
        double weight = 0;
        if (own->data_weight_count == DSC_DATA_PATHS_MAX || !dsc_value_float(each, &weight, &from_text) ||
            !(weight > 0 && weight <= DSC_DATA_WEIGHT_MAX))
            return dsc_config_fail(s, DSC_ID_DATA_WEIGHTS, DSC_ERR_CONFIG,
                                   "expected a list of at most %d numbers above 0, each at most %d", DSC_DATA_PATHS_MAX,
                                   DSC_DATA_WEIGHT_MAX);
        own->data_weights[own->data_weight_count++] = weight;
    }
    return DSC_OK;
}

static dsc_status fill_paths(dsc_config_parse_state *s, int id, dsc_config_paths *out)
{
    const cJSON *const item = s->given[id];
    for (const cJSON *each = cJSON_IsArray(item) ? item->child : item; each != NULL;
         each = cJSON_IsArray(item) ? each->next : NULL)
        if (!dsc_config_add_path(out, each->valuestring))
            return dsc_config_fail(s, id, DSC_ERR_CONFIG,
                                   "names of more than %d bytes in all; give a pattern, such as "
                                   "\"folder/*.bin\", which is one name for many files",
                                   DSC_DATA_PATHS_BYTES);
    return DSC_OK;
}

static dsc_status fill_mlm(dsc_config_parse_state *s)
{
    dsc_mlm_section *mlm = &s->config->own.mlm;
    mlm->enabled = s->given[DSC_ID_MLM] != NULL;
    if (!dsc_config_has(s, DSC_ID_MLM_SPECIAL))
        return DSC_OK;
    for (const cJSON *each = s->given[DSC_ID_MLM_SPECIAL]->child; each != NULL; each = each->next) {
        int64_t token = 0;
        bool from_text;
        if (mlm->special_count == DSC_MASK_SPECIAL_MAX || !dsc_value_int(each, &token, &from_text) || token < 0 ||
            token > INT32_MAX)
            return dsc_config_fail(s, DSC_ID_MLM_SPECIAL, DSC_ERR_CONFIG, "expected a list of at most %d tokens",
                                   DSC_MASK_SPECIAL_MAX);
        mlm->special[mlm->special_count++] = (int32_t)token;
    }
    return DSC_OK;
}

static dsc_status fill_sft(dsc_config_parse_state *s)
{
    dsc_sft_section *sft = &s->config->own.sft;
    char roles[DSC_SFT_ROLES_MAX][DSC_CONFIG_TEXT];
    const int count = dsc_config_copy_texts(s->given[DSC_ID_SFT_TRAIN_ON], roles, DSC_SFT_ROLES_MAX);
    sft->enabled = s->given[DSC_ID_SFT] != NULL;
    sft->format = (dsc_sft_format)dsc_config_choice_or(s, DSC_ID_SFT_FORMAT, DSC_SFT_AUTO);
    sft->drop_long = dsc_config_choice_or(s, DSC_ID_SFT_LONG, 0) == 1;
    s->config->own.dpo.enabled = sft->pairs = s->given[DSC_ID_DPO] != NULL;
    sft->packing = sft->packing && !sft->pairs;
    if (sft->pairs && sft->format != DSC_SFT_AUTO && sft->format != DSC_SFT_PREFERENCE)
        return dsc_config_fail(s, DSC_ID_SFT_FORMAT, DSC_ERR_CONFIG,
                               "\"%s\" has no pairs; with dsc.dpo expected \"auto\" or \"preference\"",
                               dsc_sft_format_text(sft->format));
    if (!sft->pairs && sft->format == DSC_SFT_PREFERENCE)
        return dsc_config_fail(s, DSC_ID_SFT_FORMAT, DSC_ERR_CONFIG,
                               "\"preference\" is for training on pairs; add the section dsc.dpo");
    bool fits = count <= DSC_SFT_ROLES_MAX;
    for (int i = 0; i < count && fits; i++) {
        const size_t bytes = strlen(roles[i]);
        fits = bytes > 0 && bytes < DSC_SFT_ROLE_BYTES;
        if (fits)
            memcpy(sft->train_on[sft->train_on_count++], roles[i], bytes + 1);
    }
    if (fits)
        return DSC_OK;
    return dsc_config_fail(s, DSC_ID_SFT_TRAIN_ON, DSC_ERR_CONFIG,
                           "expected at most %d roles of at most %d characters, such as [\"assistant\"]",
                           DSC_SFT_ROLES_MAX, DSC_SFT_ROLE_BYTES - 1);
}

static dsc_status fill_labels(dsc_config_parse_state *s)
{
    dsc_labels_section *labels = &s->config->own.labels;
    labels->enabled = s->given[DSC_ID_LABELS] != NULL;
    labels->problem = dsc_config_choice_or(s, DSC_ID_LABELS_PROBLEM, 0);
    labels->name_count = dsc_config_copy_texts(s->given[DSC_ID_LABELS_NAMES], labels->name, DSC_CONFIG_TEXTS_MAX);
    if (labels->name_count > 0 && labels->count > 0 && labels->count != labels->name_count)
        return dsc_config_fail(s, DSC_ID_LABELS_COUNT, DSC_ERR_CONFIG,
                               "%lld, and dsc.labels.names has %d names; leave this key out", (long long)labels->count,
                               labels->name_count);
    for (int i = 0; i < labels->name_count; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(labels->name[i], labels->name[k]) == 0)
                return dsc_config_fail(s, DSC_ID_LABELS_NAMES, DSC_ERR_CONFIG,
                                       "\"%.60s\" is there twice; each class needs a name of its own", labels->name[i]);
    return DSC_OK;
}

static void fill_embedding(dsc_config_parse_state *s)
{
    static const dsc_label_kind losses[] = { DSC_LABELS_RANKED, DSC_LABELS_COSINE, DSC_LABELS_ORDER };
    dsc_embedding_section *embedding = &s->config->own.embedding;
    embedding->enabled = s->given[DSC_ID_EMBEDDING] != NULL;
    embedding->loss = losses[dsc_config_choice_or(s, DSC_ID_EMBEDDING_LOSS, 0)];
    embedding->pooling = (dsc_pooling)dsc_config_choice_or(s, DSC_ID_EMBEDDING_POOLING, DSC_POOLING_AUTO);
    embedding->unit = (dsc_unit)dsc_config_choice_or(s, DSC_ID_EMBEDDING_NORMALIZE, DSC_UNIT_AUTO);
}

static dsc_status check_mics(dsc_config_parse_state *s)
{
    const dsc_zero_config *zero = &s->config->zero;
    if (zero->mics_shard_size < 1 || zero->stage == 3)
        return DSC_OK;
    return dsc_config_fail(s, DSC_ID_MICS, DSC_ERR_CONFIG,
                           "MiCS is stage 3 within groups of ranks, not stage %d; "
                           "set the stage, or -1 here",
                           zero->stage);
}

static dsc_status check_sum(dsc_config_parse_state *s)
{
    s->config->gradient_sum = dsc_config_choice_or(s, DSC_ID_ALLREDUCE_OP, 0) == 1;
    if (!s->config->gradient_sum)
        return DSC_OK;
    if (s->config->zero.stage == 3)
        return dsc_config_fail(s, DSC_ID_ALLREDUCE_OP, DSC_ERR_CONFIG, "sum is for stages 0 to 2, not 3");
    return DSC_OK;
}

/* The factor of gradients must be an fp32 number. Bits that are equal at each world size need an equal factor. */
static dsc_status check_leaf_factor(dsc_config_parse_state *s)
{
    const dsc_config *config = s->config;
    const double factor = config->gradient_predivide_factor;
    if (!(factor >= 0x1p-126 && factor <= 0x1p126))
        return dsc_config_fail(s, DSC_ID_PREDIVIDE, DSC_ERR_CONFIG, "1 / %g is not an fp32 number", factor);
    if (!config->prescale_gradients)
        return DSC_OK;
    if (factor != 1)
        return dsc_config_warn(s, DSC_ID_PREDIVIDE, "no effect beside prescale_gradients, as in DeepSpeed");
    return DSC_OK;
}

/* A script that found nothing writes an empty list or name; a default in its place would hide that. */
static dsc_status refuse_empty(dsc_config_parse_state *s)
{
    static const int ids[] = { DSC_ID_MODEL, DSC_ID_DATA, DSC_ID_EVAL_DATA, DSC_ID_TOKENIZER };
    for (size_t i = 0; i < DSC_COUNT(ids); i++) {
        const cJSON *item = s->given[ids[i]];
        if (item == NULL)
            continue;
        if (cJSON_IsArray(item) && item->child == NULL)
            return dsc_config_fail(s, ids[i], DSC_ERR_CONFIG, "an empty list: no data; name a file or remove the key");
        for (const cJSON *each = cJSON_IsArray(item) ? item->child : item; each != NULL;
             each = cJSON_IsArray(item) ? each->next : NULL)
            if (*each->valuestring == 0)
                return dsc_config_fail(s, ids[i], DSC_ERR_CONFIG, "an empty name; write one or remove the key");
    }
    return DSC_OK;
}

/* An interval or a patience without anything to evaluate would be silent. */
static dsc_status check_evaluation(dsc_config_parse_state *s)
{
    const dsc_ext_config *own = &s->config->own;
    const struct { int id; int64_t value; } asked[] = {
        { DSC_ID_EVAL_EVERY, own->eval_every }, { DSC_ID_EVAL_BATCHES, own->eval_batches },
        { DSC_ID_EVAL_PATIENCE, own->eval_patience },
    };
    for (size_t i = 0; i < DSC_COUNT(asked); i++)
        if (asked[i].value > 0 && own->eval_data.count == 0)
            DSC_TRY(dsc_config_warn(s, asked[i].id, "no effect without data to evaluate; set dsc.eval_data or give "
                                    "--eval-data"));
    if (own->eval_patience > 0 && own->eval_every == 0)
        return dsc_config_warn(s, DSC_ID_EVAL_PATIENCE, "no effect without dsc.eval_every");
    return DSC_OK;
}

static dsc_status check_saves(dsc_config_parse_state *s)
{
    if (s->config->own.save_every > 0 && s->config->own.save[0] == 0)
        return dsc_config_warn(s, DSC_ID_SAVE_EVERY,
                               "no effect without a folder to save to; set dsc.save or give --save");
    return DSC_OK;
}

static dsc_status fill_fp8(dsc_config_parse_state *s)
{
    dsc_fp8_section *fp8 = &s->config->own.fp8;
    fp8->hybrid = dsc_config_choice_or(s, DSC_ID_FP8_FORMAT, 0) == 0;
    fp8->fast = (dsc_fp8_fast)dsc_config_choice_or(s, DSC_ID_FP8_FAST, DSC_FP8_FAST_FORWARD);
    fp8->weights = (dsc_fp8_weights)dsc_config_choice_or(s, DSC_ID_FP8_WEIGHTS, DSC_FP8_WEIGHTS_AUTO);
    fp8->inputs = (dsc_fp8_inputs)dsc_config_choice_or(s, DSC_ID_FP8_INPUTS, DSC_FP8_INPUTS_AUTO);
    fp8->blocks = dsc_config_choice_or(s, DSC_ID_FP8_SCALING, 0) == 1;
    fp8->gather_bf16 = dsc_config_choice_or(s, DSC_ID_FP8_GATHER, 0) == 1;
    if (!fp8->enabled || s->config->precision == DSC_PRECISION_BF16)
        return DSC_OK;
    return dsc_config_fail(s, DSC_ID_FP8, DSC_ERR_CONFIG,
                           "products in fp8 need bf16 for the rest, and this run computes in %s; set bf16.enabled true",
                           dsc_dtype_text(dsc_config_compute_dtype(s->config)));
}

static dsc_status fill_nccl(dsc_config_parse_state *s)
{
    dsc_nccl_section *nccl = &s->config->own.nccl;
    nccl->policy = (dsc_nccl_policy)dsc_config_choice_or(s, DSC_ID_NCCL_CTA_POLICY, DSC_NCCL_POLICY_DEFAULT);
    if (nccl->max_ctas == 0 || nccl->min_ctas <= nccl->max_ctas)
        return DSC_OK;
    return dsc_config_fail(s, DSC_ID_NCCL_MIN_CTAS, DSC_ERR_CONFIG,
                           "%d is more than dsc.nccl.max_ctas, which is %d; give the same number or less",
                           (int)nccl->min_ctas, (int)nccl->max_ctas);
}

static void fill_ema(dsc_config_parse_state *s)
{
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        if ((id == DSC_ID_EMA || dsc_config_key_is_in(id, "dsc.ema")) && s->given[id] != NULL)
            s->config->own.ema.enabled = true;
}

static dsc_status fill_ensemble(dsc_config_parse_state *s)
{
    dsc_ext_config *own = &s->config->own;
    own->ensemble_count = dsc_config_copy_texts(s->given[DSC_ID_ENSEMBLE], own->ensemble, DSC_CONFIG_ENSEMBLE_MAX);
    if (own->ensemble_count <= DSC_CONFIG_ENSEMBLE_MAX)
        return DSC_OK;
    return dsc_config_fail(s, DSC_ID_ENSEMBLE, DSC_ERR_CONFIG, "%d members; expected at most %d", own->ensemble_count,
                           DSC_CONFIG_ENSEMBLE_MAX);
}

static dsc_status fill_own(dsc_config_parse_state *s)
{
    dsc_ext_config *own = &s->config->own;
    bool from_text;
    DSC_TRY(refuse_empty(s));
    DSC_TRY(fill_paths(s, DSC_ID_DATA, &own->data));
    DSC_TRY(fill_paths(s, DSC_ID_EVAL_DATA, &own->eval_data));
    DSC_TRY(fill_ensemble(s));
    own->freeze_count = dsc_config_copy_texts(s->given[DSC_ID_FREEZE], own->freeze, DSC_CONFIG_TEXTS_MAX);
    DSC_TRY(fill_data_weights(s));
    DSC_TRY(dsc_config_fill_images(s));
    fill_ema(s);
    DSC_TRY(dsc_config_fill_hook(s));
    DSC_TRY(dsc_config_fill_spikes(s));
    DSC_TRY(dsc_config_fill_lora(s));
    DSC_TRY(fill_mlm(s));
    DSC_TRY(fill_fp8(s));
    DSC_TRY(fill_nccl(s));
    DSC_TRY(fill_sft(s));
    DSC_TRY(fill_labels(s));
    fill_embedding(s);
    own->reproducible = (dsc_reproducible)dsc_config_choice_or(s, DSC_ID_REPRODUCIBLE, DSC_REPRODUCIBLE_PLAN);
    static const dsc_dtype moments[] = { DSC_F32, DSC_BF16, DSC_U8 }; /* as the table names them */
    const bool named = dsc_config_names_8bit(s, DSC_ID_OPTIMIZER_TYPE);
    own->moments = named ? DSC_U8 : moments[dsc_config_choice_or(s, DSC_ID_MOMENTS, 0)];
    own->gradients = dsc_config_choice_or(s, DSC_ID_GRADIENTS, 0) == 1 ? DSC_BF16 : DSC_F32;
    own->compression =
        (dsc_quant)dsc_config_choice_or(s, DSC_ID_COMPRESSION, DSC_QUANT_NONE); /* as the table names them */
    DSC_TRY(check_leaf_factor(s));
    DSC_TRY(check_sum(s));
    DSC_TRY(check_mics(s));
    own->comm_timeout_given = dsc_config_has(s, DSC_ID_COMM_TIMEOUT);
    own->recompute = (dsc_recompute)dsc_config_choice_or(s, DSC_ID_RECOMPUTE, DSC_RECOMPUTE_NONE);
    own->recompute_given = dsc_config_has(s, DSC_ID_RECOMPUTE);
    own->dropout_model = dsc_config_choice_or(s, DSC_ID_DROPOUT, 0) == 1;
    own->accumulate_local = dsc_config_choice_or(s, DSC_ID_ACCUMULATE, 0) == 1;
    own->gemm_plans = (dsc_gemm_choice)dsc_config_choice_or(s, DSC_ID_GEMM_PLANS, DSC_GEMM_SAME_BITS);
    own->attention = (dsc_cudnn_use)dsc_config_choice_or(s, DSC_ID_ATTENTION, DSC_CUDNN_AUTO);
    own->convolutions = (dsc_cudnn_use)dsc_config_choice_or(s, DSC_ID_CONVOLUTIONS, DSC_CUDNN_AUTO);
    const int fused = dsc_config_choice_or(s, DSC_ID_GEMM_FUSED, 0); /* auto, measured, then bits */
    own->gemm_fused = fused > 1                                            ? (uint32_t)(fused - 2)
                      : fused == 1 && own->gemm_plans == DSC_GEMM_FASTEST ? DSC_GEMM_FUSED_ALL | DSC_GEMM_FUSED_BY_TIME
                                                                           : DSC_GEMM_FUSED_DEFAULT;
    own->save_failure_stops = dsc_config_choice_or(s, DSC_ID_SAVE_FAILURE, 0) == 1;
    if (dsc_config_has(s, DSC_ID_WRITER_DECOUPLED) && !dsc_config_has(s, DSC_ID_SAVE_ASYNC))
        (void)dsc_value_bool(s->given[DSC_ID_WRITER_DECOUPLED], &own->save_async, &from_text);
    own->native_sums = dsc_config_choice_or(s, DSC_ID_REDUCE, 0) == 1;
    s->config->lr_scale = 1;
    own->lr_linear = dsc_config_choice_or(s, DSC_ID_LR_SCALING, 0) == 1;
    DSC_TRY(check_evaluation(s));
    DSC_TRY(check_saves(s));
    DSC_TRY(dsc_config_check_local_sgd(s));
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
        config->gradient_clipping = old;
        config->auto_mask &= ~(uint32_t)DSC_CONFIG_AUTO_CLIPPING;
        return dsc_config_warn(s, DSC_ID_MAX_GRAD_NORM, "an old form, taken as gradient_clipping %.15g", old);
    }
    if (s->given[DSC_ID_CLIPPING] == NULL)
        dsc_config_note_default(config, "gradient_clipping is not given: 0, no clipping, as DeepSpeed before June "
                                "2026; later releases clip at 1.0. Set gradient_clipping to 0 or 1.0");
    return DSC_OK;
}

static dsc_status check_sparse_attention(dsc_config_parse_state *s)
{
    const int section = dsc_config_key_find("sparse_attention");
    DSC_ASSERT(section >= 0);
    if (s->given[section] == NULL || dsc_config_choice_or(s, DSC_ID_SPARSE_MODE, 1) == 0)
        return DSC_OK;
    return dsc_config_not_built(s, section, "sparse attention is not supported in this version: mode dense works");
}

/* ---- the whole ---- */

dsc_status dsc_config_fill_modes(dsc_config_parse_state *s)
{
    DSC_TRY(fill_stage(s));
    return fill_precision(s);
}

dsc_status dsc_config_fill_fields(dsc_config_parse_state *s)
{
    fill_plain_fields(s);
    /* DeepSpeed counts from 0. */
    s->config->flops_profiler.profile_step = dsc_max_i64(1, s->config->flops_profiler.profile_step);
    fill_batch(s);
    DSC_TRY(dsc_config_fill_elastic(s));
    DSC_TRY(dsc_config_fill_quota(s));
    DSC_TRY(check_dtypes(s));
    DSC_TRY(fill_zero(s));
    DSC_TRY(dsc_config_fill_training(s));
    DSC_TRY(fill_clipping(s));
    DSC_TRY(fill_prof_ops(s));
    DSC_TRY(fill_own(s));
    DSC_TRY(dsc_config_fill_groups(s));
    DSC_TRY(dsc_config_warn_onebit(s));
    DSC_TRY(dsc_config_fill_curriculum(s));
    DSC_TRY(dsc_config_fill_grid(s));
    return check_sparse_attention(s);
}
