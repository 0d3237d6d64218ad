/* dense_config.c - config.json of the families of the dense block. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/dense.h"

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static const char *name_of(const dsc_dense_size *size, const char *name)
{
    return size->key[0] != NULL ? size->key[0] : name;
}

static dsc_status read_size(dsc_hf_config *reader, const dsc_dense_size *size, const char *name, int64_t max,
                            int64_t *out)
{
    const char *const keys[3] = { name_of(size, name), size->key[1], size->key[2] };
    for (int i = 0; i < 3 && keys[i] != NULL; i++)
        if (size->null >> i & 1)
            DSC_TRY(dsc_hf_int_or_null(reader, keys[i], max, *out, out));
        else
            DSC_TRY(dsc_hf_int(reader, keys[i], max, *out, out));
    return DSC_OK;
}

static dsc_status check_heads(dsc_hf_config *reader, const dsc_dense_keys *keys, const dsc_dense_config *out)
{
    const int64_t size = out->lm.channels / out->heads;
    if (out->lm.channels % out->heads != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" %lld is not a multiple of \"%s\" %lld",
                             name_of(&keys->channels, "hidden_size"), (long long)out->lm.channels,
                             name_of(&keys->heads, "num_attention_heads"), (long long)out->heads);
    if (keys->head_max > 0 && size > keys->head_max)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "heads of %lld elements are not built; what exists: up to %lld", (long long)size,
                             (long long)keys->head_max);
    return DSC_OK;
}

static dsc_status read_sizes(dsc_hf_config *reader, const dsc_dense_keys *keys, dsc_dense_config *out)
{
    dsc_lm_config *lm = &out->lm;
    lm->positions = keys->positions.usual, lm->layers = keys->layers.usual, lm->channels = keys->channels.usual;
    out->heads = keys->heads.usual;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, keys->vocab, &lm->vocab));
    DSC_TRY(read_size(reader, &keys->positions, "max_position_embeddings", DSC_LM_POSITIONS_MAX, &lm->positions));
    DSC_TRY(read_size(reader, &keys->layers, "num_hidden_layers", DSC_LM_LAYERS_MAX, &lm->layers));
    DSC_TRY(read_size(reader, &keys->channels, "hidden_size", DSC_LM_CHANNELS_MAX, &lm->channels));
    out->inner = keys->inner.usual > 0 ? keys->inner.usual : 4 * lm->channels;
    if (!keys->fixed_inner)
        DSC_TRY(read_size(reader, &keys->inner, "intermediate_size", DSC_LM_INNER_MAX, &out->inner));
    DSC_TRY(read_size(reader, &keys->heads, "num_attention_heads", DSC_LM_CHANNELS_MAX, &out->heads));
    return check_heads(reader, keys, out);
}

/* ---- other keys -------------------------------------------------------------------------------------------------- */

/* The first three are one function under three names. */
static const char *const activation_names[] = { "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "relu" };
static const dsc_activation activations[] = { DSC_GELU_TANH, DSC_GELU_TANH, DSC_GELU_TANH, DSC_GELU_ERF, DSC_RELU };

dsc_status dsc_dense_read_activation(dsc_hf_config *reader, const char *key, dsc_activation fallback,
                                     dsc_activation *out)
{
    int32_t index = 0;
    const bool given = dsc_hf_field(reader, key) != NULL;
    DSC_TRY(dsc_hf_choice(reader, key, activation_names, DSC_COUNT(activation_names), &index));
    *out = given ? activations[index] : fallback;
    return DSC_OK;
}

const char *dsc_dense_activation_name(dsc_activation activation)
{
    int32_t index = 0;
    while (activations[index] != activation)
        index++;
    return activation_names[index];
}

dsc_status dsc_dense_read_dropout(dsc_hf_config *reader, const char *const *keys, int32_t count, double fallback)
{
    char list[200] = "";
    bool any = false;
    for (int32_t i = 0; i < count; i++) {
        const size_t used = strlen(list);
        double share = 0;
        DSC_TRY(dsc_hf_number(reader, keys[i], (dsc_hf_range){ 0, 1 }, fallback, &share));
        snprintf(list + used, sizeof list - used, "%s%s %g", i > 0 ? ", " : "", keys[i], share);
        any = any || share > 0;
    }
    if (any)
        dsc_hf_warn(reader->warnings, reader->warnings_bytes, "the model's dropout is off (config.json: %s)", list);
    return DSC_OK;
}

dsc_status dsc_dense_read_rope(dsc_hf_config *reader, dsc_dense_config *out, const char *theta, const char *partial,
                               double share)
{
    const dsc_rope_keys keys = { .theta = theta,
                                 .partial = partial,
                                 .partial_default = share,
                                 .positions = out->lm.positions,
                                 .head_size = out->lm.channels / out->heads };
    DSC_TRY(dsc_rope_read(reader, &keys, &out->rope));
    out->lm.short_positions = dsc_rope_short_positions(&out->rope);
    return DSC_OK;
}

dsc_status dsc_dense_read(dsc_hf_config *reader, dsc_lm_config *lm)
{
    const dsc_dense_keys *keys = reader->traits;
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    int32_t dropouts = 0;
    out->traits = keys->block;
    out->activation = keys->activation_usual;
    lm->norm_eps = keys->eps_usual;
    DSC_TRY(read_sizes(reader, keys, out));
    if (keys->eps != NULL)
        DSC_TRY(dsc_hf_number(reader, keys->eps, (dsc_hf_range) { 1e-30, 1 }, keys->eps_usual, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, keys->std != NULL ? keys->std : "initializer_range", (dsc_hf_range) { 0, 1000 }, 0.02,
                          &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", keys->tied, &lm->tied));
    if (keys->activation != NULL)
        DSC_TRY(dsc_dense_read_activation(reader, keys->activation, keys->activation_usual, &out->activation));
    DSC_TRY(keys->read_more(reader, out));
    while (dropouts < (int32_t)DSC_COUNT(keys->dropouts) && keys->dropouts[dropouts] != NULL)
        dropouts++;
    return dsc_dense_read_dropout(reader, keys->dropouts, dropouts, keys->dropout_usual);
}
