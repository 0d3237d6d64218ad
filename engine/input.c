/* input.c - the files of samples that the config names: texts made to token files, opened, looked at.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/data/data_text.h"
#include "engine/data/files.h"
#include "engine/data/sft/detect.h"
#include "engine/data/sft/pack.h"
#include "engine/internal.h"
#include "engine/report.h"

#define TEXT_THREADS_MAX 64

/* Tokenizer of texts: that of the config, or that of the model's folder; "": a byte is a token. */
dsc_status dsc_engine_find_tokenizer(dsc_engine *engine, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    char *const out = engine->input.tokenizer;
    const size_t out_bytes = sizeof engine->input.tokenizer;
    engine->input.model_folder = own->model[0] != 0 && dsc_io_kind(own->model) == DSC_PATH_DIR ? own->model : NULL;
    snprintf(out, out_bytes, "%s", strcmp(own->tokenizer, "none") == 0 ? "" : own->tokenizer);
    if (own->tokenizer[0] != 0 || own->model[0] == 0 || dsc_io_kind(own->model) != DSC_PATH_DIR)
        return DSC_OK;
    DSC_TRY(dsc_path_join(out, out_bytes, own->model, "tokenizer.json", err));
    if (dsc_io_kind(out) != DSC_PATH_FILE)
        out[0] = 0;
    return DSC_OK;
}

dsc_status dsc_engine_count_tokens(dsc_engine *engine, dsc_error *err)
{
    dsc_tokenizer *tokenizer = NULL;
    if (!engine->config.own.grow_vocab)
        return DSC_OK;
    DSC_TRY(dsc_engine_find_tokenizer(engine, err));
    if (engine->input.tokenizer[0] == 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.grow_vocab",
                        "there is no tokenizer whose tokens could be counted; name "
                        "one with dsc.tokenizer, or put tokenizer.json into the model's folder");
    DSC_TRY(dsc_tokenizer_open(&tokenizer, engine->input.tokenizer, err));
    engine->input.grown_tokens = dsc_tokenizer_vocab_size(tokenizer);
    dsc_tokenizer_close(&tokenizer);
    return DSC_OK;
}

static bool has_positions(const dsc_model *model)
{
    return model->batch_count == 3 && strcmp(model->batch[2].name, DSC_BATCH_POSITIONS) == 0;
}

static bool classifies(const dsc_model *model) { return model->labels.kind != DSC_LABELS_NONE; }

static void set_texts(const dsc_embedding_section *from, dsc_sft_section *out)
{
    const struct {
        dsc_sft_column column;
        const char *name;
    } columns[] = { { DSC_SFT_COLUMN_TEXT, from->anchor },
                    { DSC_SFT_COLUMN_TEXT_PAIR, from->positive },
                    { DSC_SFT_COLUMN_NEGATIVE, from->negative },
                    { DSC_SFT_COLUMN_LABEL, from->score } };
    for (size_t i = 0; i < DSC_COUNT(columns); i++)
        snprintf(out->column[columns[i].column], sizeof out->column[0], "%s", columns[i].name);
    snprintf(out->prompt[0], sizeof out->prompt[0], "%s", from->prompt_anchor);
    snprintf(out->prompt[1], sizeof out->prompt[1], "%s", from->prompt_positive);
}

/* The settings of rows: the config's section, or rows with the model's labels. */
static dsc_sft_section section_of(const dsc_engine *engine)
{
    const dsc_labels_section *labels = &engine->config.own.labels;
    dsc_sft_section section = engine->config.own.sft;
    if (!classifies(engine->model))
        return section;
    section.labels = engine->model->labels;
    section.packing = section.drop_long = false;
    snprintf(section.column[DSC_SFT_COLUMN_TEXT], sizeof section.column[0], "%s", labels->text);
    snprintf(section.column[DSC_SFT_COLUMN_TEXT_PAIR], sizeof section.column[0], "%s", labels->text_pair);
    snprintf(section.column[DSC_SFT_COLUMN_LABEL], sizeof section.column[0], "%s", labels->label);
    if (dsc_label_kind_pairs(engine->model->labels.kind))
        set_texts(&engine->config.own.embedding, &section);
    return section;
}

/* NULL: not given. */
static const char *data_field(const dsc_ext_config *own) { return own->data_field[0] != 0 ? own->data_field : NULL; }

/* The rows of a data file. */
static dsc_rows rows_of(const dsc_engine *engine, const char *path)
{
    const dsc_ext_config *own = &engine->config.own;
    if (!dsc_token_path_is_text(path) || dsc_sample_path(path))
        return DSC_ROWS_NONE;
    return dsc_sft_detect(&engine->io, engine->alloc, path, &own->sft, data_field(own));
}

/* Whether a name, or a file of a pattern, has examples. A file that cannot be read has none: opening the data will
 * report it. */
static bool name_has_examples(const dsc_engine *engine, const char *name)
{
    dsc_data_files files = { .alloc = engine->alloc };
    bool found = false;
    if (dsc_data_files_add(&files, name, 0, NULL) == DSC_OK)
        for (int64_t i = 0; i < files.count && !found; i++)
            found = dsc_sample_path(files.path[i]) || rows_of(engine, files.path[i]) == DSC_ROWS_EXAMPLES;
    dsc_data_files_free(&files);
    return found;
}

static bool has_examples(const dsc_engine *engine)
{
    const dsc_ext_config *own = &engine->config.own;
    bool has = false;
    for (int i = 0; i < own->data.count && !has; i++)
        has = name_has_examples(engine, dsc_config_path(&own->data, i));
    for (int i = 0; i < own->eval_data.count && !has; i++)
        has = name_has_examples(engine, dsc_config_path(&own->eval_data, i));
    return has;
}

bool dsc_engine_packs_examples(const dsc_engine *engine)
{
    return engine->config.own.sft.packing && has_examples(engine);
}

/* A section without effect hides that the data is not what the user expects. */
static dsc_status check_section(const dsc_engine *engine, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    if (!own->sft.enabled || own->data.count + own->eval_data.count == 0 || engine->plan_only || has_examples(engine))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.sft",
                    "no data file has JSON objects, so this section has no effect; give instruction data as JSON "
                    "(docs/data.md), or remove the section");
}

/* One line for the log: what the samples of a data file hold. */
static dsc_status report_samples(dsc_engine *engine, const char *path, const char *samples, dsc_error *err)
{
    dsc_sample_file file;
    char text[600];
    const dsc_status status = dsc_sample_file_open(&engine->io, samples, &file, err);
    if (status == DSC_OK && engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "%s: %s; %s", path, file.summary.description,
                       dsc_sample_summary_text(&file.summary, text, sizeof text));
    dsc_sample_file_close(&engine->io, &file);
    return status;
}

/* Instruction data needs a tokenizer, and a model that keeps the examples of a sample apart. */
static dsc_status check_examples(const dsc_engine *engine, const char *path, dsc_error *err)
{
    if (engine->input.tokenizer[0] == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "%s a tokenizer: give --tokenizer DIR, or a --model folder that has a tokenizer.json",
                        classifies(engine->model) ? "rows with labels need" : "instruction data needs");
    if (dsc_model_predictions(engine->model) > 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "instruction data for the masked language model %.200s; give text, or "
                        "a model that predicts the next token",
                        engine->model->name);
    if (classifies(engine->model))
        return DSC_OK;
    if (engine->config.own.sft.packing && !has_positions(engine->model))
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.sft.packing",
                        "model %.200s has no third batch tensor \"" DSC_BATCH_POSITIONS
                        "\", so its attention would cross the examples of a sample; set this key to "
                        "false",
                        engine->model->name);
    return DSC_OK;
}

/* Each rank asks for itself: one of a host makes the tokens, the others wait for it. */
static dsc_status find_tokens(dsc_engine *engine, dsc_data_text_shared *shared, const char *path, char *out,
                              size_t out_bytes, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    const dsc_sft_section section = section_of(engine);
    const dsc_rows rows = rows_of(engine, path);
    const bool examples = classifies(engine->model) ? rows != DSC_ROWS_NONE : rows == DSC_ROWS_EXAMPLES;
    if (examples)
        DSC_TRY(check_examples(engine, path, err));
    if (!dsc_token_path_is_text(path) || dsc_sample_path(path)) {
        snprintf(out, out_bytes, "%s", path);
        return DSC_OK;
    }
    const int64_t threads = (int64_t)engine->threads * engine->place.local_size;
    const dsc_data_text text = { .shared = shared,
                                 .io = &engine->io,
                                 .log = engine->place.rank == 0 ? &engine->log : NULL,
                                 .tokenizer = engine->input.tokenizer,
                                 .field = data_field(own),
                                 .folder = own->data_cache,
                                 .threads = (int32_t)dsc_min_i64(threads, TEXT_THREADS_MAX),
                                 .examples = examples ? &section : NULL,
                                 .sequence = engine->model->seq_length };
    DSC_TRY(dsc_data_text_tokens(&text, path, out, out_bytes, err));
    return examples ? report_samples(engine, path, out, err) : DSC_OK;
}

/* Parameters of masking. */
static dsc_status find_masking(dsc_engine *engine, dsc_masking *out, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    char path[DSC_CONFIG_TEXT];
    *out = (dsc_masking){ .predictions = dsc_model_predictions(engine->model), .mask_token = -1 };
    if (out->predictions == 0)
        return DSC_OK;
    snprintf(path, sizeof path, "%s", engine->input.tokenizer);
    if (path[0] != 0 && dsc_io_kind(path) == DSC_PATH_DIR)
        DSC_TRY(dsc_path_join(path, sizeof path, engine->input.tokenizer, "tokenizer.json", err));
    if (path[0] != 0)
        DSC_TRY(dsc_masking_read(out, &engine->io, engine->alloc, path, err));
    if (own->mlm.special_count > 0) {
        memcpy(out->special, own->mlm.special, sizeof own->mlm.special);
        out->special_count = own->mlm.special_count;
    }
    if (own->mlm.mask_token >= 0)
        out->mask_token = (int32_t)own->mlm.mask_token;
    if (out->mask_token >= 0 && out->mask_token < engine->model->vocab_size)
        return DSC_OK;
    if (out->mask_token >= 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.mlm.mask_token",
                        "%d is not a token of the model's vocabulary of %lld", (int)out->mask_token,
                        (long long)engine->model->vocab_size);
    return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.mlm.mask_token", "%s is a masked language model, and neither this key "
                    "nor a tokenizer.json with a special token [MASK] or <mask> says what it sees for a masked token",
                    engine->model->name);
}

/* A log or a trace over an input would be its end. */
dsc_status dsc_engine_check_outputs(const dsc_engine *engine, const char *input, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    const char *const outputs[] = { own->log, own->log_text, own->trace };
    for (size_t o = 0; o < DSC_COUNT(outputs); o++)
        DSC_TRY(dsc_io_refuse_input(outputs[o], &input, 1, err));
    return DSC_OK;
}

/* The paths that are read for a list of data files. */
typedef struct data_list {
    dsc_data_files files;            /* the user's */
    char (*tokens)[DSC_CONFIG_TEXT]; /* [files.count] */
    const char **path;               /* [files.count] into `tokens` */
    double *weight;                  /* [files.count] */
    dsc_data_text_shared shared;
} data_list;

/* The texts of the list become tokens, and the model may have fewer rows than the tokenizer has tokens. A text without
 * such a token is accepted. */
static dsc_status compare_tokenizer(dsc_engine *engine, data_list *list, dsc_error *err)
{
    bool texts = false;
    if (engine->input.tokenizer_compared || engine->input.tokenizer[0] == 0)
        return DSC_OK;
    for (int64_t i = 0; i < list->files.count && !texts; i++)
        texts = strcmp(list->path[i], list->files.path[i]) != 0;
    if (!texts || engine->place.rank != 0)
        return DSC_OK;
    engine->input.tokenizer_compared = true;
    DSC_TRY(dsc_data_text_tokenizer(&list->shared, engine->input.tokenizer, err));
    const dsc_tokenizer *tokenizer = list->shared.tokenizer;
    const int64_t tokens = dsc_tokenizer_vocab_size(tokenizer), rows = engine->model->vocab_size;
    int32_t first = (int32_t)dsc_min_i64(rows, INT32_MAX);
    while (first < tokens && dsc_tokenizer_token(tokenizer, first) == NULL)
        first++;
    if (first >= tokens)
        return DSC_OK;
    const char *const last = dsc_tokenizer_token(tokenizer, (int32_t)tokens - 1);
    dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                   "%s: the tokenizer has %lld tokens and the model %lld rows; a text "
                   "with one of the tokens from %d \"%.60s\" to %lld \"%.60s\" ends the run; dsc.grow_vocab adds rows",
                   engine->input.tokenizer, (long long)tokens, (long long)rows, (int)first,
                   dsc_tokenizer_token(tokenizer, first), (long long)tokens - 1, last != NULL ? last : "");
    return DSC_OK;
}

static dsc_status find_files(dsc_engine *engine, const dsc_config_paths *names, bool train, data_list *list,
                             dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    const int weights = train ? own->data_weight_count : 0;
    if (weights > 0 && weights != names->count)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.data_weights", "%d weights for %d files of data; give one for each",
                        weights, names->count);
    for (int i = 0; i < names->count; i++)
        DSC_TRY(dsc_data_files_add(&list->files, dsc_config_path(names, i), i, err));
    const int64_t count = list->files.count;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count, sizeof *list->tokens, &list->tokens, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count, sizeof *list->path, &list->path, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count, sizeof *list->weight, &list->weight, err));
    for (int64_t i = 0; i < count; i++) {
        DSC_TRY(dsc_engine_check_outputs(engine, list->files.path[i], err));
        DSC_TRY(find_tokens(engine, &list->shared, list->files.path[i], list->tokens[i], sizeof list->tokens[i], err));
        list->path[i] = list->tokens[i];
        list->weight[i] = weights > 0 ? own->data_weights[list->files.entry[i]] : 1;
    }
    return DSC_OK;
}

/* Files that are shorter than a sample: joined or left out. */
static void report_short(const dsc_engine *engine, const dsc_data *data)
{
    const dsc_data_short facts = dsc_data_short_files(data);
    const struct {
        int64_t count;
        const char *first, *what;
        dsc_log_level level;
    } kinds[] = {
        { facts.joined, facts.first_joined, "shorter than a sample, and joined to one text", DSC_LOG_INFO },
        { facts.left_out, facts.first_left_out, "too short for a sample, and left out", DSC_LOG_WARNING },
        { facts.empty, facts.first_empty, "empty, and left out", DSC_LOG_WARNING },
    };
    for (size_t i = 0; i < DSC_COUNT(kinds) && engine->place.rank == 0; i++)
        if (kinds[i].count > 0)
            dsc_log_printf(&engine->log, kinds[i].level, "%lld data file%s (%s%s) %s %s; a sample has %lld tokens",
                           (long long)kinds[i].count, kinds[i].count == 1 ? "" : "s", kinds[i].first,
                           kinds[i].count == 1 ? "" : ", ...", kinds[i].count == 1 ? "is" : "are", kinds[i].what,
                           (long long)engine->model->seq_length);
}

static dsc_status open_found(dsc_engine *engine, const data_list *list, bool train, dsc_data **out, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    dsc_masking masking;
    DSC_TRY(find_masking(engine, &masking, err));
    const dsc_data_options options = { .alloc = engine->alloc,
                                       .io = &engine->io,
                                       .paths = list->path,
                                       .names = (const char *const *)list->files.path,
                                       .path_count = (int32_t)list->files.count,
                                       .sequence = engine->model->seq_length,
                                       .vocab_size = engine->model->vocab_size,
                                       .masking = masking,
                                       .documents = has_positions(engine->model),
                                       .document_end = (int32_t)own->document_end,
                                       .weights = list->weight,
                                       .shuffle = train && own->shuffle,
                                       .seed = (uint64_t)engine->config.seed,
                                       .pairs = dsc_model_prefers(engine->model),
                                       .labels = engine->model->labels };
    DSC_TRY(dsc_data_open(&options, out, err));
    report_short(engine, *out);
    return DSC_OK;
}

static dsc_status open_files(dsc_engine *engine, const dsc_config_paths *names, bool train, dsc_data **out,
                             dsc_error *err)
{
    data_list list = { .files = { .alloc = engine->alloc } };
    dsc_status status = find_files(engine, names, train, &list, err);
    if (status == DSC_OK)
        status = compare_tokenizer(engine, &list, err);
    dsc_data_text_shared_close(&list.shared);
    if (status == DSC_OK)
        status = open_found(engine, &list, train, out, err);
    dsc_alloc_free(engine->alloc, list.tokens);
    dsc_alloc_free(engine->alloc, list.path);
    dsc_alloc_free(engine->alloc, list.weight);
    dsc_data_files_free(&list.files);
    return status;
}

static bool is_builtin(const char *model)
{
    const char *name = NULL;
    for (int32_t i = 0; (name = dsc_model_builtin_name(i)) != NULL; i++)
        if (strcmp(name, model) == 0)
            return true;
    return false;
}

/* Data of a first run, of the caller's default: texts, or drawn pictures with others to validate. */
static dsc_status take_first_data(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    dsc_ext_config *own = &engine->config.own;
    const bool pictures = dsc_model_sees_pictures(engine->model);
    for (int32_t i = 0; i < options->default_data_count; i++)
        if (pictures == (dsc_shapes_find(options->default_data[i]) != DSC_SHAPES_NONE))
            (void)dsc_config_add_path(&own->data, options->default_data[i]);
    if (own->data.count == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.data",
                        "no data is given for the model %.200s, and there is no text "
                        "here for a first run; set it in the config or with --data",
                        engine->model->name);
    dsc_engine_note(engine, "no data is named (dsc.data, --data)", dsc_config_path(&own->data, 0));
    if (!pictures)
        return DSC_OK;
    (void)dsc_config_add_path(&own->eval_data, DSC_SHAPES_TEST_NAME);
    if (engine->place.rank != 0)
        return DSC_OK;
    dsc_log_printf(&engine->log, DSC_LOG_INFO,
                   "  %lld drawn pictures of %d shapes to try a model with; " DSC_SHAPES_TEST_NAME
                   " has %lld to validate",
                   (long long)dsc_shapes_count(DSC_SHAPES_TRAIN), DSC_SHAPES_CLASSES,
                   (long long)dsc_shapes_count(DSC_SHAPES_TEST));
    dsc_log_printf(&engine->log, DSC_LOG_INFO,
                   "  yours: --data DIR (a folder for each class), FILE.csv, 'SHARD-{000..146}.tar', "
                   "train-images-idx3-ubyte, CIFAR's *.bin or a packed file (docs/data.md)");
    return DSC_OK;
}

/* Data of a first run is for a built-in model and no setting about data. A setting or a model of the user's own says
 * that data was meant to be there. */
static dsc_status take_default(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    dsc_ext_config *own = &engine->config.own;
    const char *beside = own->eval_data.count > 0     ? "dsc.eval_data"
                         : own->data_weight_count > 0 ? "dsc.data_weights"
                         : own->tokenizer[0] != 0     ? "dsc.tokenizer"
                         : own->document_end >= 0     ? "dsc.document_end"
                                                      : NULL;
    const bool own_model = options->model != NULL || !is_builtin(own->model);
    if ((own_model || beside != NULL) && engine->plan_only) /* a plan reads no data */
        return DSC_OK;
    if (own_model)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.data", "no data is given for the model %.200s; set it in the config "
                        "or with --data", engine->model->name);
    if (beside != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.data", "no data is given beside %s; set it in the config or with "
                        "--data", beside);
    return take_first_data(engine, options, err);
}

/* The files of a list, of tokens or of pictures, as the model asks. */
static dsc_status open_list(dsc_engine *engine, const dsc_config_paths *names, bool train, dsc_data_source *out,
                            dsc_error *err)
{
    dsc_engine_input *input = &engine->input;
    dsc_pictures **pictures = train ? &input->pictures : &input->eval_pictures;
    dsc_data **data = train ? &input->data : &input->eval;
    if (dsc_model_sees_pictures(engine->model)) {
        DSC_TRY(dsc_engine_open_pictures(engine, names, train, pictures, err));
        *out = dsc_pictures_as_source(*pictures);
        return DSC_OK;
    }
    DSC_TRY(open_files(engine, names, train, data, err));
    *out = dsc_data_as_source(*data);
    return DSC_OK;
}

dsc_status dsc_engine_open_data(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    dsc_ext_config *own = &engine->config.own;
    const bool reads = !engine->plan_only && engine->times_of_launches == NULL; /* a measured rank is given batches */
    engine->input.source = options->data;
    DSC_TRY(dsc_engine_find_tokenizer(engine, err));
    DSC_TRY(dsc_engine_check_outputs(engine, engine->input.tokenizer, err));
    DSC_TRY(check_section(engine, err));
    if (engine->input.source.fill == NULL && own->data.count == 0 && options->default_data_count > 0)
        DSC_TRY(take_default(engine, options, err));
    if (engine->input.source.fill == NULL && own->data.count > 0 && reads)
        DSC_TRY(open_list(engine, &own->data, true, &engine->input.source, err));
    engine->input.masks =
        engine->input.pictures == NULL && (engine->input.data == NULL || dsc_data_masks_targets(engine->input.data));
    if (own->eval_data.count > 0 && reads)
        DSC_TRY(open_list(engine, &own->eval_data, false, &engine->input.eval_source, err));
    engine->input.samples_per_epoch = engine->input.source.sample_count;
    return DSC_OK;
}

/* One rank of a host reads for all of them. */
dsc_status dsc_engine_scan_data(dsc_engine *engine, dsc_error *err)
{
    int64_t bytes = DSC_DATA_SCAN_BYTES;
    const dsc_data_buffer buffer = { engine->io_buf.ptr, engine->io_buf.bytes };
    dsc_data *const files[] = { engine->input.data, engine->input.eval };
    for (size_t i = 0; i < DSC_COUNT(files) && engine->place.local_rank == 0; i++)
        if (files[i] != NULL)
            DSC_TRY(dsc_data_scan(files[i], buffer, &bytes, err));
    return DSC_OK;
}
