/* lm_expert_adapters.c - adapters of experts. transformers 5 has the matrices of all experts in two tensors of a
 * module, and PEFT's target_parameters name these. PEFT keeps the names of the layers that experts once were: as
 * target_modules they stand for the tensors. The rules are those of PEFT's ParamWrapper and of its
 * utils/transformers_weight_conversion.py. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/lm_parts.h"

/* A tensor of transformers 5: the matrices of experts that it consists of, which have one adapter. */
typedef struct lm_fused {
    char name[NAME_BYTES]; /* without the layer's prefix: "mlp.experts.gate_up_proj" */
    int32_t count, matrix[LM_EXPERTS_MAX];
    int64_t out;
} lm_fused;

int32_t dsc_lm_find_experts(dsc_lm *lm, const dsc_program *program)
{
    int32_t count = 0;
    for (int16_t i = 0; i < program->op_count && count < LM_EXPERTS_MAX; i++) {
        const dsc_op *op = &program->op[i];
        if (op->kind != DSC_OP_GROUPED)
            continue;
        const dsc_program_param *param = &program->param[op->grouped.weight];
        lm->own_experts[count++] = (lm_experts) { .name = param->name,
                                                  .parted = param->parted,
                                                  .in_out = op->grouped.in_out,
                                                  .weight = op->grouped.weight,
                                                  .experts = op->grouped.experts,
                                                  .in = op->grouped.in,
                                                  .out = op->grouped.out };
    }
    lm->own_experts_count = count;
    return count;
}

/* The tensor of all experts that a matrix lies in; NULL: it is one itself, or none is known. */
static const dsc_lm_stacked *stacked_of(const dsc_lm *lm, const lm_experts *matrix)
{
    char part[NAME_BYTES];
    snprintf(part, sizeof part, "%s.weight", matrix->name);
    for (const dsc_lm_stacked *kind = lm->family->stacked; matrix->parted && kind != NULL && kind->part != NULL; kind++)
        if (strcmp(kind->part, part) == 0)
            return kind;
    return NULL;
}

/* The tensors that matrices lie in, in order; returns how many there are. */
static int32_t list_fused(const dsc_lm *lm, const lm_experts *matrices, int32_t matrix_count, lm_fused *out)
{
    int32_t count = 0;
    for (int32_t i = 0; i < matrix_count; i++) {
        const lm_experts *matrix = &matrices[i];
        const dsc_lm_stacked *kind = stacked_of(lm, matrix);
        const char *name = kind != NULL ? kind->whole : matrix->name;
        int32_t at = 0;
        if (kind == NULL && matrix->parted)
            continue;
        while (at < count && strcmp(out[at].name, name) != 0)
            at++;
        if (at == count) {
            out[count] = (lm_fused) { 0 };
            snprintf(out[count++].name, NAME_BYTES, "%s", name);
        }
        out[at].matrix[out[at].count++] = i;
        out[at].out += matrix->out;
    }
    return count;
}

void dsc_lm_name_adapter(const dsc_lm *lm, const lm_layer *layer, lm_name out)
{
    char weight[NAME_BYTES];
    snprintf(out, NAME_BYTES, "%s", layer->name);
    snprintf(weight, sizeof weight, "%s.weight", layer->name);
    for (const char *const(*alias)[2] = lm->family->aliases;
         layer->by_parameter && alias != NULL && (*alias)[0] != NULL; alias++)
        if (strcmp((*alias)[0], weight) == 0)
            snprintf(out, NAME_BYTES, "%.*s", (int)(strlen((*alias)[1]) - strlen(".weight")), (*alias)[1]);
}

/* PEFT wraps the module once for each of its tensors, in order, so that the last one's wrapper is outside. */
static void name_module(const char *tensor, int32_t inside, char out[NAME_BYTES])
{
    const char *const end = strrchr(tensor, '.');
    int used = snprintf(out, NAME_BYTES, "%.*s", end != NULL ? (int)(end - tensor) : 0, tensor);
    for (int32_t i = 0; i < inside && used < NAME_BYTES; i++)
        used += snprintf(out + used, (size_t)(NAME_BYTES - used), ".base_layer");
    DSC_ASSERT(used < NAME_BYTES);
}

static void add_pair(dsc_lm *lm, const lm_fused *fused, int32_t inside, const char *key, dsc_lora *out)
{
    const lm_experts *first = &lm->own_experts[fused->matrix[0]];
    const int64_t rank = dsc_lora_rank(lm->lora, key);
    const int32_t number = (int32_t)(lm->param_count - lm->first_param);
    char module[NAME_BYTES];
    name_module(fused->name, inside, module);
    for (int32_t i = 0; i < fused->count; i++) {
        const int64_t weight = lm->first_param + lm->own_experts[fused->matrix[i]].weight;
        lm->adapter_of[weight] = number;
        lm->adapter_rank[weight] = (int32_t)rank;
        lm->adapter_scale[weight] = dsc_lora_scale(lm->lora, key);
    }
    dsc_param_spec *a = dsc_lm_add_param(lm, module, "lora_A.weight", first->experts * rank, first->in, 0);
    a->init = DSC_INIT_UNIFORM;
    a->init_std = (float)(1 / sqrt((double)first->in));
    dsc_lm_add_param(lm, module, "lora_B.weight", fused->out, rank * first->experts, 0);
    lm->experts_adapted++;
    out->rank = dsc_max_i64(out->rank, 1);
}

void dsc_lm_add_expert_adapters(dsc_lm *lm, dsc_lora *out)
{
    lm_fused fused[LM_EXPERTS_MAX];
    bool wanted[LM_EXPERTS_MAX];
    char key[LM_EXPERTS_MAX][2 * NAME_BYTES];
    const int32_t count = list_fused(lm, lm->own_experts, lm->own_experts_count, fused);
    int32_t inside = 0;
    for (int32_t i = 0; i < count; i++) {
        snprintf(key[i], sizeof key[i], "%s%.*s", lm->prefix, NAME_BYTES - 1, fused[i].name);
        wanted[i] = dsc_lora_wants_parameter(lm->lora, key[i]);
        inside += wanted[i];
    }
    for (int32_t i = 0; i < count; i++)
        if (wanted[i])
            add_pair(lm, &fused[i], --inside, key[i], out);
}

void dsc_lm_list_experts(const dsc_lm *lm, char *out, size_t bytes)
{
    lm_fused fused[LM_EXPERTS_MAX];
    const int32_t count = list_fused(lm, lm->known_experts, lm->known_experts_count, fused);
    for (int32_t i = 0; i < count; i++) {
        const size_t used = strlen(out);
        snprintf(out + used, bytes - used, "%s%s", used > 0 ? ", " : "", fused[i].name);
    }
}

static size_t print_tensor(const dsc_lm *lm, const lm_fused *fused, const char *before, char *out, size_t bytes)
{
    const lm_experts *first = &lm->known_experts[fused->matrix[0]];
    size_t used = (size_t)snprintf(out, bytes, "%s{ \"parameter\": \"%s\", \"in_out\": %s, \"weights\": [", before,
                                   fused->name, first->in_out ? "true" : "false");
    for (int32_t k = 0; k < fused->count; k++) {
        const lm_experts *matrix = &lm->known_experts[fused->matrix[k]];
        used += (size_t)snprintf(out + used, bytes - used, "%s\"%s%s\"", k > 0 ? ", " : "", matrix->name,
                                 matrix->parted ? ".weight" : "");
    }
    used += (size_t)snprintf(out + used, bytes - used, "] }");
    DSC_ASSERT(used < bytes);
    return used;
}

/* Routers too whose adapters have other names than their weights. */
void dsc_lm_print_experts(const dsc_lm *lm, char *out, size_t bytes)
{
    static const char first[] = ",\n  \"" DSC_LORA_EXPERTS "\": [\n    ", next[] = ",\n    ";
    lm_fused fused[LM_EXPERTS_MAX];
    const int32_t count = list_fused(lm, lm->known_experts, lm->known_experts_count, fused);
    size_t used = 0;
    out[0] = 0;
    for (int32_t i = 0; i < count && lm->experts_adapted > 0; i++)
        used += print_tensor(lm, &fused[i], used == 0 ? first : next, out + used, bytes - used);
    for (int32_t i = 0; i < lm->all_layers; i++) {
        const lm_layer *layer = &lm->layer[i];
        lm_name name;
        dsc_lm_name_adapter(lm, layer, name);
        if (layer->named == 0 || strcmp(name, layer->name) == 0)
            continue;
        used += (size_t)snprintf(out + used, bytes - used,
                                 "%s{ \"parameter\": \"%s.weight\", \"in_out\": false, \"weights\": [\"%s.weight\"] }",
                                 used == 0 ? first : next, name, layer->name);
        DSC_ASSERT(used < bytes);
    }
    if (used > 0)
        used += (size_t)snprintf(out + used, bytes - used, "\n  ]");
    DSC_ASSERT(used < bytes);
}

/* ---- names of layers --------------------------------------------------------------------------------------------- */

/* The last component of a pattern, "w1" of "block_sparse_moe.experts.*.w1". */
static const char *last_of(const char *name)
{
    const char *const end = strrchr(name, '.');
    return end != NULL ? end + 1 : name;
}

/* Whether a target is the name of experts' layers: "w1", "experts.0.w1". */
static bool names_experts(const char *target, const char *leaf)
{
    const size_t bytes = strlen(target), end = strlen(leaf);
    if (strcmp(target, leaf) == 0)
        return true;
    if (bytes < end + 2 || strcmp(target + bytes - end, leaf) != 0 || target[bytes - end - 1] != '.')
        return false;
    const char before = target[bytes - end - 2];
    static const char module[] = "experts.";
    return (before >= '0' && before <= '9') ||
           (bytes >= end + sizeof module - 1 &&
            strncmp(target + bytes - end - (sizeof module - 1), module, sizeof module - 1) == 0);
}

/* Whether the targets have this leaf, which become parameters. */
static bool take_targets(dsc_lora_config *lora, const char *leaf)
{
    bool found = false;
    for (int32_t t = 0; t < lora->target_count; t++) {
        const bool here = names_experts(lora->targets[t], leaf);
        found |= here || dsc_lora_is_all_linear(lora->targets[t]);
        lora->taken[t] |= here;
        lora->used[t] |= here;
    }
    return found;
}

static bool takes_router(dsc_lora_config *lora)
{
    bool found = false;
    for (int32_t t = 0; t < lora->target_count; t++) {
        const bool here = dsc_lora_is_named(lora->targets[t], "gate");
        found |= here || dsc_lora_is_all_linear(lora->targets[t]);
        lora->taken[t] |= here;
        lora->used[t] |= here;
    }
    return found;
}

/* PEFT gives a tensor of several matrices the ranks of all. */
static dsc_status widen(dsc_lora_config *lora, const char *leaf, int32_t count, dsc_error *err)
{
    dsc_lora_pattern *rank = &lora->rank_pattern[lora->rank_pattern_count];
    dsc_lora_pattern *alpha = &lora->alpha_pattern[lora->alpha_pattern_count];
    if (lora->rank_pattern_count == DSC_LORA_PATTERNS_MAX || lora->alpha_pattern_count == DSC_LORA_PATTERNS_MAX ||
        lora->rank * count > DSC_LORA_RANK_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.lora.target_modules",
                        "adapters of experts need a rank of %d times r, at most %d, and a pattern more in rank_pattern "
                        "and alpha_pattern; name \"%.60s\" in target_parameters instead",
                        (int)count, DSC_LORA_RANK_MAX, leaf);
    *rank = (dsc_lora_pattern) { .value = (double)(lora->rank * count), .used = true };
    *alpha = (dsc_lora_pattern) { .value = lora->alpha * count, .used = true };
    snprintf(rank->name, sizeof rank->name, ".*\\.%.200s", leaf);
    snprintf(alpha->name, sizeof alpha->name, ".*\\.%.200s", leaf);
    lora->rank_pattern_count++;
    lora->alpha_pattern_count++;
    return DSC_OK;
}

static dsc_status fuse(dsc_lm *lm, const lm_fused *fused, dsc_error *err)
{
    int32_t found = 0;
    const char *missing = "", *given = "";
    for (int32_t i = 0; i < fused->count; i++) {
        const char *leaf = last_of(lm->known_experts[fused->matrix[i]].name);
        const bool here = take_targets(lm->lora, leaf);
        found += here;
        missing = here ? missing : leaf;
        given = here ? leaf : given;
    }
    if (found == 0)
        return DSC_OK;
    if (found < fused->count)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora.target_modules",
                        "\"%.60s\" is there without \"%.60s\"; both lie in one tensor, \"%.80s\", which has one "
                        "adapter, as in PEFT; name both",
                        given, missing, fused->name);
    if (fused->count > 1)
        DSC_TRY(widen(lm->lora, last_of(fused->name), fused->count, err));
    return dsc_lora_add_parameter(lm->lora, last_of(fused->name), "dsc.lora.target_modules", err);
}

/* Whether PEFT (0.21, with transformers 5) converts targets of the family. Qwen2 MoE, whose rules the others have, is
 * not among those that it does. */
static bool converts(const dsc_lm *lm)
{
    static const char *const types[] = { "mixtral",     "olmoe",    "qwen3_moe",    "qwen3_next",    "deepseek_v2",
                                         "deepseek_v3", "glm4_moe", "ernie4_5_moe", "hunyuan_v1_moe" };
    bool found = false;
    for (size_t i = 0; i < DSC_COUNT(types); i++)
        found |= strcmp(lm->family->model_type, types[i]) == 0;
    return found;
}

dsc_status dsc_lm_fuse_targets(dsc_lm *lm, dsc_error *err)
{
    lm_fused fused[LM_EXPERTS_MAX];
    dsc_lora_config *lora = lm->lora;
    const int32_t count = list_fused(lm, lm->known_experts, lm->known_experts_count, fused);
    if (lora == NULL || count == 0 || !lm->known_experts[0].parted || !converts(lm))
        return DSC_OK;
    for (int32_t i = 0; i < lm->known_experts_count && lora->fused_count < DSC_LORA_FUSED_MAX; i++)
        lora->fused[lora->fused_count++] = last_of(lm->known_experts[i].name);
    if (lora->weights != NULL)
        return DSC_OK; /* a folder's parameters are its own */
    for (int32_t i = 0; i < count; i++)
        DSC_TRY(fuse(lm, &fused[i], err));
    if (takes_router(lora)) {
        DSC_TRY(dsc_lora_add_parameter(lora, "gate.weight", "dsc.lora.target_modules", err));
        lora->parameter_used[lora->parameter_count - 1] = true; /* some families have a router of another name */
    }
    return dsc_lora_check_parameters(lora, "dsc.lora.target_modules", err);
}
