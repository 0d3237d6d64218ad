/* lm_ends.c - the programs of a language model's modules around its blocks.
 *
 * The embedding looks up tokens, in some families with learned positions. Others add a segment and a norm of the sum,
 * or project rows of a width of their own. The transform is the layer between the last block and the head of some
 * families, to the width of the table of tokens. Masked models apply it with an activation to the tokens that they
 * predict, some of them behind a norm. Those that classify texts apply it to the first token of a sample, or to the
 * mean of the tokens.
 * Ranks that compute the model together share out the rows of the table of tokens. A row is the sum over ranks, of
 * which all but one have zeros, and positions are added to that sum. SPDX-License-Identifier: Apache-2.0 */
#include "models/lm_parts.h"

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static dsc_program_param matrix(const dsc_lm_config *config, const char *name, int64_t rows, int64_t columns)
{
    return (dsc_program_param) { .name = name,
                                 .part = "",
                                 .dim_count = 2,
                                 .dim = { rows, columns },
                                 .init = config->init_std > 0 ? DSC_INIT_NORMAL : DSC_INIT_ZEROS,
                                 .std = config->init_std };
}

/* Ranks share out a parameter that has an element or a row for each token. */
static void share_rows(dsc_program *program, dsc_program_param *of)
{
    const dsc_program_ranks ranks = program->ranks;
    if (ranks.count <= 1)
        return;
    if (program->status == DSC_OK && of->dim[0] < ranks.count)
        program->status = DSC_FAIL(&program->err, DSC_ERR_CONFIG, "dsc.grid.tensor",
                                   "%d tensor ranks cannot share out a table of %lld tokens; use at most that many",
                                   (int)ranks.count, (long long)of->dim[0]);
    if (program->status != DSC_OK)
        return;
    of->share = (dsc_param_part) { .count = ranks.count, .index = ranks.own, .run_count = 1, .run = { of->dim[0] } };
    of->dim[0] = dsc_param_part_length(&of->share, ranks.own);
}

static int16_t norm(dsc_program *program, int16_t x, const dsc_lm *lm, const char *name, bool in_base)
{
    const dsc_op_norm args = { .kind = lm->family->norm,
                               .groups = 1,
                               .eps = lm->config->norm_eps,
                               .no_bias = lm->config->norm_no_bias,
                               .plus_one = lm->config->norm_plus_one };
    const int32_t first = program->param_count;
    const int16_t y = dsc_program_norm(program, x, name, &args);
    for (int32_t i = first; i < program->param_count; i++)
        program->param[i].in_base = in_base;
    return y;
}

/* A layer that no tensor parallelism cuts. */
static dsc_program_linear_args linear(const dsc_lm_config *config, const char *name, int64_t in, int64_t out, bool bias)
{
    return (dsc_program_linear_args) {
        .name = name, .shape = { in, out, true }, .bias = bias, .whole = true, .std = config->init_std
    };
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

static const dsc_op_embed nothing = { .tokens = DSC_PROGRAM_NONE,
                                      .table = DSC_PROGRAM_NONE,
                                      .factor = 1,
                                      .position = DSC_PROGRAM_NONE,
                                      .places = DSC_PROGRAM_NONE };

/* Adds the rows of the tokens' positions to `to`. */
static void add_positions(const dsc_lm *lm, int32_t table, dsc_op_embed *to)
{
    const dsc_lm_config *config = lm->config;
    to->position = table;
    to->first = dsc_lm_position_first(lm->family, config);
    to->counts = config->places_skip_padding;
    if (config->documents && !to->counts)
        to->places = DSC_LM_POSITIONS;
}

/* Without segments of the batch all tokens have the first row. */
static int16_t add_segments(dsc_program *program, int16_t x, const dsc_lm *lm, int32_t table)
{
    dsc_op_embed args = nothing;
    args.position = table;
    args.same = !lm->config->takes_segments;
    if (lm->config->takes_segments)
        args.places = DSC_LM_SEGMENTS;
    return dsc_program_embed(program, x, &args);
}

void dsc_lm_emit_embedding(dsc_program *program, const dsc_lm *lm)
{
    const dsc_lm_family *family = lm->family;
    const dsc_lm_config *config = lm->config;
    const bool projects = dsc_lm_projects(config), apart = projects || program->ranks.count > 1;
    const int64_t positions = config->positions + dsc_lm_position_first(family, config);
    dsc_program_param tokens = matrix(config, family->token_table, config->vocab_rows, config->embed_channels);
    const dsc_program_param places = matrix(config, family->position_table, positions, config->channels);
    const dsc_program_param segments = matrix(config, family->segment_table, config->segments, config->channels);
    int32_t segment = DSC_PROGRAM_NONE;
    dsc_op_embed args = nothing, further = nothing;
    DSC_ASSERT(!projects || (family->embed_norm == NULL && family->segment_table == NULL));
    tokens.split = DSC_SPLIT_ROW;
    share_rows(program, &tokens);
    args.table = dsc_program_declare(program, &tokens);
    args.tokens = further.tokens = DSC_LM_TOKENS;
    args.factor = config->embed_scale > 0 ? config->embed_scale : 1;
    args.rounded = config->embed_scale_rounded;
    args.has_padding = config->has_padding;
    args.padding = further.padding = config->padding;
    if (family->position_table != NULL)
        add_positions(lm, dsc_program_declare(program, &places), apart ? &further : &args);
    if (family->segment_table != NULL)
        segment = dsc_program_declare(program, &segments);
    int16_t x = dsc_program_exchange_sum(program, dsc_program_embed(program, DSC_PROGRAM_NONE, &args));
    if (projects) {
        const dsc_program_linear_args project =
            linear(config, family->project_in, config->embed_channels, config->channels, false);
        x = dsc_program_linear(program, x, &project);
    }
    if (further.position != DSC_PROGRAM_NONE)
        x = dsc_program_embed(program, x, &further);
    if (segment != DSC_PROGRAM_NONE)
        x = add_segments(program, x, lm, segment);
    if (family->embed_norm != NULL)
        x = norm(program, x, lm, family->embed_norm, false);
    dsc_program_end(program, x);
}

/* ---- between the blocks and the head ----------------------------------------------------------------------------- */

/* The tokens that the transform or the head of a model with labels sees, and those that a masked one predicts. */
static int16_t gather(dsc_program *program, int16_t x, const dsc_lm_config *config, bool mean)
{
    const dsc_op_gather args = { config->classes > 0 ? DSC_LM_POOLED : DSC_LM_PREDICTED, config->predictions, mean };
    return dsc_program_gather(program, x, &args);
}

void dsc_lm_emit_transform(dsc_program *program, const dsc_lm *lm)
{
    const dsc_lm_family *family = lm->family;
    const dsc_lm_config *config = lm->config;
    const char *name = config->masked ? family->transform : family->project_out;
    const bool bias = config->masked && !config->transform_no_bias;
    const dsc_program_linear_args args = linear(config, name, config->channels, config->embed_channels, bias);
    const int32_t layer = dsc_program_declare_linear(program, &args);
    int16_t x = program->input;
    if (config->masked && !config->pools_mean)
        x = gather(program, x, config, false);
    if (family->transform_norm != NULL)
        x = norm(program, x, lm, family->transform_norm, false);
    if (config->masked && config->pools_mean)
        x = gather(program, x, config, true);
    x = dsc_program_linear_of(program, x, layer);
    if (config->masked)
        x = config->pools_tanh ? dsc_program_tanh(program, x) : dsc_program_activation(program, x, config->activation);
    dsc_program_end(program, x);
}

/* ---- head -------------------------------------------------------------------------------------------------------- */

/* A table that makes logits, in some families with a bias, and their losses. */
static int16_t classify(dsc_program *program, int16_t x, const dsc_lm *lm)
{
    const dsc_lm_family *family = lm->family;
    const dsc_lm_config *config = lm->config;
    const bool labels = config->classes > 0;
    const int64_t rows = labels ? config->classes : config->vocab_rows;
    dsc_program_param bias = { .name = family->head_bias, .part = "", .dim_count = 1, .dim = { rows } };
    const char *name = config->tied ? family->token_table : family->head_table;
    dsc_program_param table = matrix(config, name, rows, config->embed_channels);
    dsc_op_classify args = { .bias = DSC_PROGRAM_NONE,
                             .outputs = labels ? config->classes : config->vocab,
                             .targets = DSC_LM_TARGETS,
                             .reference = DSC_LM_REFERENCE,
                             .labels = labels ? config->label_kind : DSC_LABELS_NONE };
    table.split = labels ? DSC_SPLIT_NONE : DSC_SPLIT_ROW;
    table.tied = table.in_base = config->tied;
    if (!labels) {
        args.preference = config->preference;
        args.logit_scale = config->logit_scale;
        args.softcap = config->logit_softcap;
    }
    if (!labels) {
        share_rows(program, &table);
        share_rows(program, &bias);
        x = dsc_program_exchange_share(program, x, 0);
    }
    if (family->head_bias != NULL)
        args.bias = dsc_program_declare(program, &bias);
    args.table = dsc_program_declare(program, &table);
    return dsc_program_classify(program, x, &args);
}

/* Vectors of texts and their comparison, without a table. */
static int16_t compare(dsc_program *program, int16_t x, const dsc_lm_config *config)
{
    const dsc_op_vectors vectors = { DSC_LM_POOLED, config->pooling == DSC_POOLING_MEAN, config->unit_vectors };
    const dsc_op_compare losses = { DSC_LM_TARGETS, config->label_kind, config->similarity_scale };
    return dsc_program_compare(program, dsc_program_vectors(program, x, &vectors), &losses);
}

void dsc_lm_emit_head(dsc_program *program, const dsc_lm *lm)
{
    const dsc_lm_config *config = lm->config;
    int16_t x = program->input;
    if (config->classes > 0 && !config->masked && !config->of_tokens && !config->embeds) /* one token of each text */
        x = gather(program, x, config, false);
    if (!config->bare_head)
        x = norm(program, x, lm, lm->family->final_norm, !config->masked);
    dsc_program_end(program, config->embeds ? compare(program, x, config) : classify(program, x, lm));
}
