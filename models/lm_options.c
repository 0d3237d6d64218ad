/* lm_options.c - options of an opening, and what they change in a config. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "models/families.h"
#include "models/lm.h"

dsc_status dsc_lm_read_padding(dsc_hf_config *reader, int32_t fallback, dsc_lm_config *config)
{
    const bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(reader->object, "pad_token_id"));
    int64_t token = fallback;
    config->has_padding = !null && (fallback >= 0 || dsc_hf_field(reader, "pad_token_id") != NULL);
    if (!config->has_padding)
        return DSC_OK;
    const cJSON *item = dsc_hf_field(reader, "pad_token_id");
    if ((item != NULL && !dsc_json_integer(item, -config->vocab, config->vocab - 1, &token)) || token >= config->vocab)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"pad_token_id\" must be a token: a whole number below %lld",
                             (long long)config->vocab);
    config->padding = (int32_t)(token < 0 ? token + config->vocab : token);
    return DSC_OK;
}

const char *dsc_lm_padding_text(const dsc_lm_config *config, char *out, size_t bytes)
{
    if (config->has_padding)
        snprintf(out, bytes, "%d", (int)config->padding);
    else
        snprintf(out, bytes, "null");
    return out;
}

/* Predictions per sample: their share of its tokens, rounded to nearest, at least one. */
static int64_t predictions_of(int64_t sequence, double share)
{
    const double count = floor((share > 0 ? share : DSC_MASK_SHARE) * (double)sequence + 0.5);
    return count < 1 ? 1 : count > (double)sequence ? sequence : (int64_t)count;
}

/* Rotary positions that depend on a text's length are one thing for a whole micro-batch, from its first call on. */
static dsc_status check_long_text(const dsc_lm_config *config, const dsc_model_options *options, const char *where,
                                  dsc_error *err)
{
    const int64_t longest = dsc_max_i64(options->cache_tokens, options->documents ? config->sequence : 0);
    if (config->short_positions == 0 || longest <= config->short_positions)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                    "%s %lld tokens; rotary positions of type longrope are other ones in texts of more than %lld "
                    "(original_max_position_embeddings), which is built only for samples that are one text: give at "
                    "most that many",
                    options->documents ? "samples of several documents, of" : "a text that goes on, up to",
                    (long long)longest, (long long)config->short_positions);
}

static dsc_status check_preference(const dsc_lm_config *config, const dsc_model_options *options, const char *where,
                                   dsc_error *err)
{
    const dsc_preference *wanted = &options->preference;
    if (wanted->beta == 0)
        return DSC_OK;
    if (!(wanted->beta > 0 && wanted->beta <= 1e9) || !(wanted->smoothing >= 0 && wanted->smoothing < 0.5))
        return DSC_FAIL(err, DSC_ERR_STATE, where,
                        "dsc_model_options.preference is beta %g, smoothing %g; expected a beta above 0 and a "
                        "smoothing from 0 to less than 0.5",
                        wanted->beta, wanted->smoothing);
    if (config->masked || config->classes > 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "preferences are for models that predict the next token, and this one %s; leave out dsc.dpo",
                        config->classes > 0 ? "classifies texts" : "is a masked language model");
    if (options->documents)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "a sample of a preference is one text, not several documents; leave out dsc.document_end");
    return DSC_OK;
}

dsc_status dsc_lm_check_network(const dsc_model_options *options, const dsc_lm_family *family, bool is_named,
                                const char *where, dsc_error *err)
{
    const struct dsc_network_options *o = &options->network;
    const bool size = !o->size_by_data && (o->planes > 0 || o->height > 0);
    const bool classes = !o->classes_by_data && o->classes > 0;
    if (size && !family->any_picture)
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "a size of pictures (dsc.image_size) is for a convolutional network; leave it out: this model "
                        "says its sizes itself");
    if (o->member_count > 0 && (family != &dsc_ensemble_family || !is_named))
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "members are named (dsc.ensemble), which are those of the built-in network \"%s\"; leave them "
                        "out, or set \"dsc\": {\"model\": \"%s\"}",
                        DSC_ENSEMBLE_NAME, DSC_ENSEMBLE_NAME);
    if (size && !is_named && o->height == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "%lld planes are asked for; a folder says its planes itself",
                        (long long)o->planes);
    if (o->frames > 0 && (!is_named || !family->any_picture))
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "a number of frames (dsc.image_frames) is for the built-in cnn_lstm; leave it out: a folder "
                        "says its frames itself");
    if (classes && family->emit_last == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "a number of classes of pictures (dsc.image_classes) is for a model that classifies pictures; "
                        "leave it out");
    return DSC_OK;
}

/* A classifier of other classes than the folder's begins with initial values. */
dsc_status dsc_lm_choose_classes(dsc_lm_config *config, const struct dsc_network_options *options, const char *where,
                                 dsc_error *err)
{
    if (options->classes_by_data || options->classes == 0 || options->classes == config->vocab)
        return DSC_OK;
    if (options->classes < 2 || options->classes > DSC_LABELS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "%lld classes of pictures are asked for; expected 2 to %d",
                        (long long)options->classes, DSC_LABELS_MAX);
    config->file_classes = config->vocab;
    config->vocab = options->classes;
    return DSC_OK;
}

/* A model whose samples are not texts has none of a text's options. */
static dsc_status apply_data_options(dsc_lm_config *config, const dsc_model_options *options, const char *where,
                                     dsc_error *err)
{
    const char *option = options->documents              ? "dsc.document_end"
                         : options->cache_tokens > 0     ? "continuing a text"
                         : options->preference.beta != 0 ? "dsc.dpo"
                         : options->vocab_tokens > 0     ? "dsc.grow_vocab"
                         : options->router_balance > 0   ? "dsc.moe.aux_loss_coef"
                         : options->router_z > 0         ? "dsc.moe.z_loss_coef"
                                                         : NULL;
    if (option != NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "%s is for texts, and a sample of this model is \"%s\"; leave "
                        "it out",
                        option, config->data.name);
    config->file_vocab = config->vocab_rows = config->vocab;
    return DSC_OK;
}

dsc_status dsc_lm_apply_options(dsc_lm_config *config, const dsc_model_options *options, int64_t adapter_rows,
                                const char *where, dsc_error *err)
{
    const int64_t sequence = options->seq_length;
    if (dsc_lm_has_data(config))
        return apply_data_options(config, options, where, err);
    const bool labels = config->classes > 0;
    if (sequence > config->positions)
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "a sequence length of %lld is asked for; the model has %lld positions: give at most that many "
                        "with --seq-len (dsc.seq_length)",
                        (long long)sequence, (long long)config->positions);
    if (labels && options->cache_tokens > 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "continuing a text is not built for a model that classifies "
                        "texts");
    if (config->masked && !labels && (options->documents || options->cache_tokens > 0))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where, "%s is not built for a model whose tokens see both sides; "
                        "what exists: samples that are one document",
                        options->documents ? "dsc.document_end" : "continuing a text");
    if (sequence > 0)
        config->sequence = sequence;
    DSC_TRY(check_long_text(config, options, where, err));
    if (config->masked)
        config->predictions = predictions_of(config->sequence, options->mask_share);
    if (labels)
        config->predictions = config->of_tokens ? config->sequence : 1;
    config->cache = options->cache_tokens;
    DSC_TRY(check_preference(config, options, where, err));
    config->preference = options->preference;
    config->documents = labels ? config->masked : options->documents; /* padding is apart from the text */
    config->router_balance = options->router_balance >= 0 ? options->router_balance : config->router_balance;
    config->router_z = options->router_z >= 0 ? options->router_z : config->router_z;
    if (adapter_rows > DSC_VOCAB_TOKENS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "the adapter has %lld rows of tokens; at most %d are read",
                        (long long)adapter_rows, DSC_VOCAB_TOKENS_MAX);
    config->file_vocab = config->vocab;
    config->adapter_vocab = adapter_rows > 0 ? dsc_max_i64(adapter_rows, config->vocab) : 0; /* fewer are refused */
    config->vocab = dsc_max_i64(config->vocab, dsc_max_i64(options->vocab_tokens, adapter_rows));
    config->vocab_rows = dsc_align_up(config->vocab, dsc_max_i64(1, options->vocab_multiple));
    return DSC_OK;
}

dsc_status dsc_lm_apply_ranks(dsc_lm_config *config, const dsc_lm_family *family, const dsc_model_options *options,
                              const char *where, dsc_error *err)
{
    const int32_t count = options->tensor_ranks, own = options->tensor_rank;
    if (count <= 1 && own == 0)
        return DSC_OK;
    if (count < 1 || own < 0 || own >= count)
        return DSC_FAIL(err, DSC_ERR_STATE, where, "rank %d of %d tensor ranks", (int)own, (int)count);
    const char *what = !family->shared_out           ? "this family"
                       : options->lora != NULL       ? "adapters (dsc.lora)"
                       : config->classes > 0         ? "models that classify texts or make vectors of them"
                       : config->preference.beta > 0 ? "pairs of preferences (dsc.dpo)"
                                                     : NULL;
    if (what != NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "%d tensor ranks do not work with %s in this version; use one (dsc.grid.tensor), and data or "
                        "pipeline ranks",
                        (int)count, what);
    config->ranks = (dsc_program_ranks) { count, own };
    return DSC_OK;
}
