/* families.c - the list of model families. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/families.h"

#include "models/dense.h"
#include "models/decoder.h"
#include "models/moe.h"
#include "models/qwen3_next.h"
#include "models/vision.h"

static const dsc_lm_family *const families[] = {
    &dsc_gpt2_family,        &dsc_llama_family,       &dsc_mistral_family,     &dsc_qwen2_family,
    &dsc_qwen3_family,       &dsc_neox_family,        &dsc_opt_family,         &dsc_bert_family,
    &dsc_ministral_family,   &dsc_phi3_family,        &dsc_smollm3_family,     &dsc_olmo2_family,
    &dsc_stablelm_family,    &dsc_starcoder2_family,  &dsc_mixtral_family,     &dsc_olmoe_family,
    &dsc_qwen2_moe_family,   &dsc_qwen3_moe_family,   &dsc_gemma_family,       &dsc_gemma2_family,
    &dsc_gemma3_family,      &dsc_granite_family,     &dsc_olmo3_family,       &dsc_cohere_family,
    &dsc_cohere2_family,     &dsc_glm_family,         &dsc_glm4_family,        &dsc_bloom_family,
    &dsc_gptj_family,        &dsc_phi_family,         &dsc_falcon_family,      &dsc_seed_oss_family,
    &dsc_arcee_family,       &dsc_helium_family,      &dsc_ernie4_5_family,    &dsc_hunyuan_family,
    &dsc_exaone4_family,     &dsc_mpt_family,         &dsc_nemotron_family,    &dsc_deepseek_v2_family,
    &dsc_deepseek_v3_family, &dsc_kimi_k2_family,     &dsc_glm4_moe_family,    &dsc_ernie4_5_moe_family,
    &dsc_hunyuan_moe_family, &dsc_roberta_family,     &dsc_xlm_roberta_family, &dsc_camembert_family,
    &dsc_distilbert_family,  &dsc_modernbert_family,  &dsc_gpt_oss_family,     &dsc_qwen3_next_family,
    &dsc_qwen3_5_family,     &dsc_qwen3_5_moe_family, &dsc_vit_family,         &dsc_clip_vision_family,
    &dsc_dinov2_family,      &dsc_dinov2_registers_family,
    &dsc_resnet_family
};

const dsc_lm_family *dsc_lm_family_at(int32_t index)
{
    return index >= 0 && index < (int32_t)DSC_COUNT(families) ? families[index] : NULL;
}

dsc_status dsc_lm_refuse_family(dsc_hf_config *reader, const dsc_lm_family *family, const char *what,
                                bool (*has)(const dsc_lm_family *))
{
    char list[500] = "";
    for (size_t i = 0; i < DSC_COUNT(families); i++) {
        const size_t used = strlen(list);
        if (has(families[i]))
            snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", families[i]->model_type);
    }
    return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "%s built for %s; what exists: %s", what, family->model_type,
                         list);
}
