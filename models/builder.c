/* builder.c - the public builder's models: options, blocks, and the language model that they become.
 *
 * A model is one of lm.h's whose family is made here: emit_block copies the program that the user described.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/builder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The family's own config. */
typedef struct built_config {
    dsc_lm_config lm;
    dsc_builder *builder; /* owned by the model once it is open */
} built_config;

const char *dsc_builder_where(const dsc_builder *b, char *out)
{
    if (b->open && b->kind == BUILDER_BLOCK)
        snprintf(out, 32, "block %lld", (long long)b->block_count);
    else if (b->open)
        snprintf(out, 32, "%s module", b->kind == BUILDER_FIRST ? "first" : "last");
    return out;
}

void dsc_builder_keep_failure(dsc_builder *b, const dsc_program *program)
{
    if (program->status != DSC_OK)
        BUILDER_REFUSE(b, program->status, "%s", program->err.message);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static bool is_name(const char *name)
{
    const size_t bytes = name == NULL ? 0 : strlen(name);
    bool good = bytes > 0 && bytes <= 200;
    for (size_t i = 0; good && i < bytes; i++)
        good = (unsigned char)name[i] >= 0x20 && name[i] != 0x7f;
    return good;
}

static dsc_status check_options(const dsc_build_options *options, dsc_error *err)
{
    if (options->struct_bytes < sizeof *options)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_build_options.struct_bytes is %u; use DSC_BUILD_OPTIONS_INIT",
                        options->struct_bytes);
    if (!is_name(options->name))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_build_options.name must have 1 to 200 printable characters");
    const struct {
        const char *name;
        int64_t value, most;
    } sizes[] = { { "tokens", options->tokens, DSC_LM_POSITIONS_MAX },
                  { "vocabulary", options->vocabulary, DSC_LM_VOCAB_MAX },
                  { "channels", options->channels, DSC_LM_CHANNELS_MAX } };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_build_options.%s is %lld; expected 1 to %lld", sizes[i].name,
                            (long long)sizes[i].value, (long long)sizes[i].most);
    if (!(options->init_std >= 0 && options->init_std <= 1000))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_build_options.init_std is %g; expected 0 to 1000",
                        options->init_std);
    return DSC_OK;
}

static dsc_status check_data(const dsc_build_options *options, dsc_error *err)
{
    const dsc_batch_spec *data = &options->data;
    bool good = data->dim_count == 0 || (is_name(data->name) && data->dtype == DSC_F32);
    good = good && (data->dim_count == 0 || data->dim_count == 2 || data->dim_count == 3);
    for (int32_t i = 0; good && i < data->dim_count; i++)
        good = data->dim[i] >= 1 && data->dim[i] <= DSC_LM_INNER_MAX;
    if (!good)
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "dsc_build_options.data must have a name, DSC_F32 and 2 or 3 dimensions from 1 to %d, or no "
                        "dimension",
                        DSC_LM_INNER_MAX);
    if (data->dim_count > 0 && options->positions)
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "dsc_build_options.positions is for tokens; use dsc_build_positions in "
                        "the first module");
    return DSC_OK;
}

static dsc_status open_parts(dsc_builder *b, const dsc_build_options *options, dsc_error *err)
{
    char *name = NULL, *data = NULL;
    DSC_TRY(dsc_alloc_strdup(b->alloc, DSC_TAG_CONTROL, options->name, &name, err));
    b->options = *options;
    b->options.name = name;
    b->options.data.name = NULL;
    if (options->data.dim_count > 0)
        DSC_TRY(dsc_alloc_strdup(b->alloc, DSC_TAG_CONTROL, options->data.name, &data, err));
    b->options.data.name = data;
    DSC_TRY(dsc_alloc_zeroed(b->alloc, DSC_TAG_CONTROL, 1, sizeof *b->program, &b->program, err));
    return dsc_alloc_zeroed(b->alloc, DSC_TAG_CONTROL, 1, sizeof *b->trial, &b->trial, err);
}

dsc_status dsc_build_open(dsc_builder **out, const dsc_build_options *options, dsc_error *err)
{
    dsc_alloc *alloc = NULL;
    dsc_builder *b = NULL;
    *out = NULL;
    DSC_TRY(check_options(options, err));
    DSC_TRY(check_data(options, err));
    DSC_TRY(dsc_alloc_open(&alloc, err));
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *b, &b, err);
    if (status != DSC_OK) {
        dsc_alloc_close(&alloc);
        return status;
    }
    b->alloc = alloc;
    status = open_parts(b, options, err);
    if (status != DSC_OK)
        dsc_build_close(&b);
    *out = b;
    return status;
}

void *dsc_builder_keep(dsc_builder *b, builder_list list, size_t bytes)
{
    builder_kept *kept = NULL;
    if (b->status == DSC_OK)
        b->status = dsc_alloc_zeroed(b->alloc, DSC_TAG_CONTROL, 1, (int64_t)(sizeof *kept + bytes), &kept, &b->err);
    if (b->status != DSC_OK)
        return NULL;
    kept->next = b->kept[list];
    b->kept[list] = kept;
    return kept->copy;
}

static void free_list(dsc_builder *b, builder_list list)
{
    while (b->kept[list] != NULL) {
        builder_kept *next = b->kept[list]->next;
        dsc_alloc_free(b->alloc, b->kept[list]);
        b->kept[list] = next;
    }
}

/* The programs, which a model that is open does not need. */
static void free_programs(dsc_builder *b)
{
    free_list(b, BUILDER_PROGRAMS);
    dsc_alloc_free(b->alloc, b->program);
    dsc_alloc_free(b->alloc, b->trial);
    b->program = b->trial = NULL;
}

void dsc_build_close(dsc_builder **builder)
{
    dsc_builder *b = *builder;
    *builder = NULL;
    if (b == NULL)
        return;
    dsc_alloc *alloc = b->alloc;
    free_programs(b);
    for (int list = 0; list < BUILDER_LISTS; list++)
        free_list(b, (builder_list)list);
    dsc_alloc_free(alloc, (void *)(uintptr_t)b->options.name);
    dsc_alloc_free(alloc, (void *)(uintptr_t)b->options.data.name);
    dsc_alloc_free(alloc, b);
    dsc_alloc_close(&alloc);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

dsc_value dsc_builder_plain(const dsc_builder *b)
{
    return (dsc_value) { .rows = b->options.tokens, .columns = b->options.channels };
}

dsc_value dsc_builder_given(const dsc_builder *b) { return b->given.rows > 0 ? b->given : dsc_builder_plain(b); }

/* A module reads what the module before it gives. */
static void check_input(dsc_builder *b, const dsc_value *input)
{
    const dsc_value given = dsc_builder_given(b);
    const bool same = input->rows == given.rows && input->columns == given.columns;
    if (!same || (input->height > 0 && (input->height != given.height || input->width != given.width)))
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "its input is [%lld,%lld], a picture of %lld by %lld, and the module before it gives "
                       "[%lld,%lld], a picture of %lld by %lld (0: none); begin it with dsc_build_begin_picture and "
                       "these sizes",
                       (long long)input->rows, (long long)input->columns, (long long)input->height,
                       (long long)input->width, (long long)given.rows, (long long)given.columns,
                       (long long)given.height, (long long)given.width);
}

bool dsc_builder_begin(dsc_builder *b, builder_kind kind, const dsc_value *input)
{
    if (b->open)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "a block begins before the one in hand ends; call dsc_build_end first");
    if (b->last != NULL || (kind == BUILDER_FIRST && (b->first != NULL || b->block_count > 0)))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "the order of modules is: a first one, blocks, a last one");
    if (kind != BUILDER_FIRST && b->first == NULL && b->options.data.dim_count > 0)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "samples are \"%.60s\", and no first module reads them; call "
                       "dsc_build_begin_first before the blocks",
                       b->options.data.name);
    if (kind != BUILDER_FIRST)
        check_input(b, input);
    if (b->status != DSC_OK)
        return false;
    b->open = true;
    b->kind = kind;
    b->table_count = 0;
    if (kind == BUILDER_FIRST)
        dsc_program_begin_first(b->program, b->options.tokens);
    else if (input->height > 0)
        dsc_program_begin_picture(b->program, input->height, input->width, input->columns);
    else
        dsc_program_begin(b->program, input->rows, input->columns, DSC_PROGRAM_NONE);
    return true;
}

static dsc_node begin_block(dsc_builder *b, const dsc_value *input)
{
    if (b->block_count >= DSC_LM_LAYERS_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "a model has at most %d blocks", DSC_LM_LAYERS_MAX);
    return dsc_builder_begin(b, BUILDER_BLOCK, input) ? dsc_builder_node(b, b->program->input) : DSC_NODE_NONE;
}

dsc_node dsc_build_begin(dsc_builder *b)
{
    const dsc_value input = dsc_builder_plain(b);
    return begin_block(b, &input);
}

dsc_node dsc_build_begin_picture(dsc_builder *b, int64_t height, int64_t width, int64_t columns)
{
    if (height < 1 || width < 1 || columns < 1 || height > DSC_LM_POSITIONS_MAX || width > DSC_LM_POSITIONS_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "a picture of %lld by %lld pixels with %lld columns; expected 1 or more",
                       (long long)height, (long long)width, (long long)columns);
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const dsc_value input = { .rows = height * width, .columns = columns, .height = height, .width = width };
    return begin_block(b, &input);
}

/* Two parameters of one name would be one in checkpoints. */
static void check_names(dsc_builder *b)
{
    const dsc_program *program = b->program;
    for (int32_t i = 0; i < program->param_count && b->status == DSC_OK; i++)
        for (int32_t k = 0; k < i; k++) {
            const dsc_program_param *x = &program->param[i], *y = &program->param[k];
            char text[2][100];
            snprintf(text[0], sizeof text[0], "%s%s%s", x->name, x->part[0] != 0 ? "." : "", x->part);
            snprintf(text[1], sizeof text[1], "%s%s%s", y->name, y->part[0] != 0 ? "." : "", y->part);
            if (strcmp(text[0], text[1]) == 0)
                BUILDER_REFUSE(b, DSC_ERR_INPUT,
                               "two parameters are named \"%s\"; give the ops of a block names that "
                               "differ",
                               text[0]);
        }
}

/* The program in hand becomes one more module; it is shared with an equal one. */
static void keep_module(dsc_builder *b)
{
    const dsc_program *same = NULL;
    for (const builder_kept *at = b->kept[BUILDER_PROGRAMS]; at != NULL && same == NULL; at = at->next)
        if (memcmp(at->copy, b->program, sizeof *b->program) == 0)
            same = (const void *)at->copy;
    if (same == NULL) {
        dsc_program *own = dsc_builder_keep(b, BUILDER_PROGRAMS, sizeof *own);
        if (own == NULL)
            return;
        *own = *b->program;
        same = own;
    }
    if (b->kind == BUILDER_BLOCK)
        b->block[b->block_count++] = same;
    else
        *(b->kind == BUILDER_FIRST ? &b->first : &b->last) = same;
    b->serial++;
}

/* Rows of a sample in a module's output, and columns. */
static void check_output(dsc_builder *b, const dsc_value *of)
{
    const bool last = b->kind == BUILDER_LAST;
    if (!last && of->height > 0)
        return; /* a picture may have any size */
    const int64_t columns = last ? b->options.vocabulary : b->options.channels;
    if (of->columns != columns)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "its output \"%.60s\" is [%lld,%lld]; expected %lld columns, those of the %s",
                       of->name, (long long)of->rows, (long long)of->columns, (long long)columns,
                       last ? "vocabulary" : "model");
    if (!last && of->rows != b->options.tokens)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "its output \"%.60s\" is [%lld,%lld]; expected %lld rows of a sample",
                       of->name, (long long)of->rows, (long long)of->columns, (long long)b->options.tokens);
}

void dsc_build_end(dsc_builder *b, dsc_node output)
{
    const dsc_program_options options = { 0 };
    if (!b->open)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "dsc_build_end without a block; call dsc_build_begin first");
    const int16_t value = dsc_builder_value(b, output, "end");
    if (b->status != DSC_OK)
        return;
    check_output(b, &b->program->value[value]);
    dsc_program_end(b->program, value);
    dsc_builder_keep_failure(b, b->program);
    check_names(b);
    if (b->status != DSC_OK)
        return;
    *b->trial = *b->program;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = dsc_program_compile(b->trial, &options, &err);
    if (status != DSC_OK)
        BUILDER_REFUSE(b, status, "%s", err.message);
    if (b->status == DSC_OK) {
        b->given = b->program->value[value];
        keep_module(b);
    }
    b->open = false;
}

void dsc_build_blocks(dsc_builder *b, int64_t count, dsc_build_block_fn block, void *user)
{
    if (count < 0 || block == NULL)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "dsc_build_blocks: %lld blocks%s; expected 0 or more, and a function",
                       (long long)count, block == NULL ? " without a function" : "");
    for (int64_t i = 0; i < count && b->status == DSC_OK; i++) {
        const int64_t number = b->block_count;
        const dsc_node x = dsc_build_begin(b);
        if (b->status == DSC_OK)
            dsc_build_end(b, block(b, x, number, user));
    }
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    *program = *((const built_config *)(const void *)base)->builder->block[layer];
}

static void emit_first(dsc_program *program, const dsc_lm_config *base)
{
    *program = *((const built_config *)(const void *)base)->builder->first;
}

static void emit_last(dsc_program *program, const dsc_lm_config *base)
{
    *program = *((const built_config *)(const void *)base)->builder->last;
}

static dsc_lm_family family_of(const dsc_builder *b, const dsc_build_head_options *head)
{
    return (dsc_lm_family) { .model_type = "program",
                             .layers_key = "blocks",
                             .base = "",
                             .layer = "blocks.",
                             .token_table = "embedding.weight",
                             .position_table = b->options.positions ? "positions.weight" : NULL,
                             .head_table = "head.weight",
                             .final_norm = "norm",
                             .norm = head != NULL && head->norm == DSC_BUILD_LAYER_NORM ? DSC_NORM_LAYER : DSC_NORM_RMS,
                             .emit_first = b->first != NULL ? emit_first : NULL,
                             .emit_last = b->last != NULL ? emit_last : NULL,
                             .config_bytes = sizeof(built_config),
                             .emit_block = emit_block };
}

static void close_built(dsc_model *model)
{
    const dsc_lm_module *self = model->modules[0].self;
    dsc_builder *b = ((const built_config *)(const void *)self->config)->builder;
    b->close_model(model);
    dsc_build_close(&b);
}

static void check_head(dsc_builder *b, const dsc_build_head_options *head)
{
    if (b->open)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "the model is finished before this block ends; call dsc_build_end");
    if (b->block_count == 0)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "a model without blocks; add one with dsc_build_blocks or dsc_build_begin");
    if (b->last != NULL)
        return;
    const dsc_value plain = dsc_builder_plain(b), given = dsc_builder_given(b);
    if (given.rows != plain.rows || given.columns != plain.columns)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "the last block gives [%lld,%lld], and a head reads [%lld,%lld]; describe a last module with "
                       "dsc_build_begin_last",
                       (long long)given.rows, (long long)given.columns, (long long)plain.rows,
                       (long long)plain.columns);
    if (head == NULL)
        BUILDER_REFUSE(b, DSC_ERR_STATE, "no head is given, and no last module was described");
    else if (head->tied && b->first != NULL)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "a tied head needs a table of tokens, and the model has a first module of its "
                       "own; set tied to false");
    else if (head->struct_bytes < sizeof *head)
        BUILDER_REFUSE(b, DSC_ERR_STATE, "dsc_build_head_options.struct_bytes is %u; use DSC_BUILD_HEAD_OPTIONS_INIT",
                       head->struct_bytes);
    else if (!(head->eps > 0 && head->eps <= 1))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "the head's eps is %g; expected above 0, at most 1", head->eps);
    else if (head->norm != DSC_BUILD_LAYER_NORM && head->norm != DSC_BUILD_RMS_NORM)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "the head's norm is kind %d; expected DSC_BUILD_LAYER_NORM or "
                       "DSC_BUILD_RMS_NORM",
                       (int)head->norm);
}

static dsc_status open_model(dsc_builder *b, const dsc_build_head_options *head, dsc_alloc *alloc, dsc_model **out,
                             dsc_error *err)
{
    const dsc_build_options *options = &b->options;
    const dsc_lm_family family = family_of(b, head);
    built_config *config = NULL;
    DSC_TRY(dsc_alloc_zeroed(b->alloc, DSC_TAG_CONTROL, 1, sizeof *config, &config, err));
    config->builder = b;
    config->lm.layers = b->block_count;
    config->lm.channels = options->channels;
    config->lm.positions = config->lm.sequence = options->tokens;
    config->lm.vocab = config->lm.vocab_rows = options->vocabulary;
    config->lm.init_std = options->init_std;
    config->lm.data = options->data;
    if (b->last == NULL) {
        config->lm.norm_eps = head->eps;
        config->lm.tied = head->tied;
    }
    const dsc_lm_open_args args = { .family = &family, .name = options->name, .config = &config->lm };
    const dsc_status status = dsc_lm_open(out, alloc, &args, err);
    dsc_alloc_free(b->alloc, config);
    return status;
}

dsc_status dsc_build_finish(dsc_builder **builder, const dsc_build_head_options *head, dsc_model **out, dsc_error *err)
{
    dsc_builder *b = *builder;
    dsc_alloc *alloc = NULL;
    *builder = NULL;
    *out = NULL;
    check_head(b, head);
    dsc_status status = b->status;
    if (status != DSC_OK && err != NULL)
        *err = b->err;
    if (status == DSC_OK)
        status = dsc_alloc_open(&alloc, err);
    if (status == DSC_OK)
        status = open_model(b, head, alloc, out, err);
    if (status != DSC_OK) {
        dsc_alloc_close(&alloc);
        dsc_build_close(&b);
        return status;
    }
    free_programs(b);
    b->close_model = (*out)->close;
    (*out)->close = close_built;
    return DSC_OK;
}
