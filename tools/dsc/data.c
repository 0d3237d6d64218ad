/* data.c - `dsc data tokenize FILE... -o OUT.bin`, and `dsc data show FILE`: texts to token files and back.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/data/token_writer.h"
#include "tools/dsc/data_examples.h"
#include "tools/dsc/data_images.h"

#define FILES_MAX 4096

typedef struct settings {
    const char *tokenizer, *out, *field, *separator, *begin;
    const char *path; /* token file to show */
    dsc_flag_list paths;
    int64_t threads, first, count;
    bool decompress;
    dsc_token_format format;
    struct {
        int64_t sample, sequence;
        const char *config;
    } examples; /* options of show; sample -1: a token file */
    dsc_alloc *alloc;
} settings;

#define AT(field) offsetof(settings, field)
static const char *const formats[] = { "llmc", "raw", "megatron", NULL }; /* in the order of dsc_token_format */

static dsc_status read_format(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    for (int i = 0; formats[i] != NULL; i++)
        if (strcmp(value, formats[i]) == 0) {
            ((settings *)out)->format = (dsc_token_format)i;
            return DSC_OK;
        }
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.60s\" is unknown; expected llmc, raw or megatron", value);
}

#define TOKENIZER_ROW                                                                     \
    { "--tokenizer", NULL, "DIR|FILE.json", DSC_FLAG_TEXT, AT(tokenizer), .required = true, \
      .help = "model folder, or its tokenizer.json" }
static const dsc_flag tokenize_rows[] = {
    TOKENIZER_ROW,
    { "--out", "-o", "OUT.bin", DSC_FLAG_TEXT, AT(out), .required = true, .help = "token file to write" },
    { "--field", NULL, "NAME", DSC_FLAG_TEXT, AT(field),
      .help = "member of a JSON object, or column of a table, that holds the text; default text for JSON" },
    { "--decompress", NULL, NULL, DSC_FLAG_BOOL, AT(decompress), .help = "read files compressed by gzip or zstd" },
    { "--separator", NULL, "TOKEN", DSC_FLAG_TEXT, AT(separator), .allow_empty = true,
      .help = "token after each text, or none; default: the end token of the tokenizer" },
    { "--begin", NULL, "TOKEN", DSC_FLAG_TEXT, AT(begin), .allow_empty = true,
      .help = "token before each text, or none; default: what the tokenizer puts before a text" },
    { "--format", NULL, "NAME", DSC_FLAG_CALL, 0, .set = read_format,
      .help = "format of OUT.bin: llmc, raw or megatron; default llmc" },
    { "--threads", NULL, "N", DSC_FLAG_INTEGER, AT(threads), .min = 1, .max = 256,
      .help = "threads that tokenize; default: one for each core" },
};
static const dsc_flag show_rows[] = {
    TOKENIZER_ROW,
    { "--first", NULL, "N", DSC_FLAG_INTEGER, AT(first), .min = 0, .max = INT64_MAX / 8,
      .help = "index of the first token; default 0" },
    { "--count", NULL, "N", DSC_FLAG_INTEGER, AT(count), .min = 1, .max = 1 << 20,
      .help = "number of tokens; default 256" },
    { "--sample", NULL, "N", DSC_FLAG_INTEGER, AT(examples.sample), .min = 0, .max = INT64_MAX / 8,
      .help =
          "sample of instruction data to show, from 0 on: each token and whether it counts in the loss; of preferences "
          "the pair of that number" },
    { "--config", NULL, "FILE", DSC_FLAG_TEXT, AT(examples.config),
      .help = "with --sample: ds_config.json with dsc.sft and dsc.seq_length" },
    { "--seq-len", NULL, "T", DSC_FLAG_INTEGER, AT(examples.sequence), .min = 1, .max = 1 << 24,
      .help = "with --sample: tokens of a sample; default: that of --config, or 2048" },
};
static const dsc_positional text_files[] = {
    { "FILE", "texts, JSON (an object on each line, or a list), CSV and TSV to read", "file", AT(paths), 1, 0 },
};
static const dsc_positional token_files[] = {
    { "FILE", "token file to read; with --sample, instruction data or a *.samples file", "file", AT(path), 1, 1 }
};
static const dsc_flag_command tokenize_page = {
    .name = "dsc data tokenize", .description = "Writes the tokens of texts as a token file that train reads.",
    .flags = tokenize_rows, .flag_count = DSC_COUNT(tokenize_rows), .positionals = text_files, .positional_count = 1,
};
static const dsc_flag_command show_page = {
    .name = "dsc data show", .description = "Prints tokens of a token file as text.",
    .flags = show_rows, .flag_count = DSC_COUNT(show_rows), .positionals = token_files, .positional_count = 1,
};

/* ---- tokenize ---- */

typedef struct progress {
    dsc_token_writer writer;
    int64_t total_bytes, start_ns, shown_ns;
    bool terminal;
} progress;

static dsc_status take(void *user, const dsc_token_batch *batch, dsc_error *err)
{
    progress *p = user;
    DSC_TRY(dsc_token_writer_add(&p->writer, batch, err));
    const int64_t now = dsc_clock_ns();
    if (!p->terminal || now - p->shown_ns < 200000000)
        return DSC_OK;
    p->shown_ns = now;
    const double seconds = (double)(now - p->start_ns) * 1e-9, share = (double)batch->bytes_read /
                                                                      (double)dsc_max_i64(p->total_bytes, 1);
    fprintf(stderr, "\r\033[K%3.0f%%  %lld tokens  %.1f MB/s  ETA %.0f s", share * 100,
            (long long)p->writer.token_count, (double)batch->bytes_read * 1e-6 / seconds,
            share > 0 ? seconds * (1 - share) / share : 0);
    fflush(stderr);
    return DSC_OK;
}

/* The id of a token named on the command line; without a name the file's own end of a text. */
static dsc_status find_separator(const settings *s, const dsc_tokenizer *tokenizer, int32_t *out, dsc_error *err)
{
    *out = -1;
    if (s->separator != NULL && strcmp(s->separator, "none") == 0)
        return DSC_OK;
    if (s->separator != NULL) {
        *out = dsc_tokenizer_find(tokenizer, s->separator);
        return *out >= 0 ? DSC_OK
                         : DSC_FAIL(err, DSC_ERR_INPUT, "--separator", "the tokenizer has no token \"%.60s\"; give one "
                                    "of its tokens, or none", s->separator);
    }
    *out = dsc_tokenizer_text_end(tokenizer);
    return *out >= 0 ? DSC_OK
                     : DSC_FAIL(err, DSC_ERR_INPUT, s->tokenizer, "none of the usual tokens ends a text here; give "
                                "--separator TOKEN, or --separator none");
}

/* Nothing is written before every input is known to be readable and another file than the output. */
static dsc_status check_files(const settings *s, dsc_error *err)
{
    char json[1024];
    const char *tokenizer = s->tokenizer;
    if (dsc_io_kind(tokenizer) == DSC_PATH_DIR) {
        DSC_TRY(dsc_path_join(json, sizeof json, tokenizer, "tokenizer.json", err));
        tokenizer = json;
    }
    DSC_TRY(dsc_token_writer_check(s->out, s->format, s->paths.text, s->paths.count, err));
    DSC_TRY(dsc_token_writer_check(s->out, s->format, &tokenizer, 1, err));
    for (int32_t i = 0; i < s->paths.count; i++) {
        dsc_documents documents;
        DSC_TRY(dsc_documents_open(NULL, s->alloc, s->paths.text[i], s->field, &documents, err));
        if (documents.content.packed && !s->decompress)
            return DSC_FAIL(err, DSC_ERR_INPUT, s->paths.text[i],
                            "the file is compressed; add --decompress to read the "
                            "texts in it");
        if (documents.content.kind == DSC_CONTENT_EMPTY)
            fprintf(stderr, "dsc: note: %s is empty and has no document\n", s->paths.text[i]);
    }
    return DSC_OK;
}

static dsc_status sum_sizes(const settings *s, int64_t *total, dsc_error *err)
{
    *total = 0;
    for (int32_t i = 0; i < s->paths.count; i++) {
        dsc_file file = DSC_FILE_INIT;
        int64_t bytes = 0;
        DSC_TRY(dsc_io_open(NULL, s->paths.text[i], DSC_IO_READ_ONLY, &file, err));
        const dsc_status status = dsc_io_size(NULL, &file, &bytes, err);
        (void)dsc_io_close(NULL, &file, NULL);
        DSC_TRY(status);
        *total += bytes;
    }
    return DSC_OK;
}

static dsc_status tokenize(settings *s, const dsc_tokenizer *tokenizer, progress *p, dsc_error *err)
{
    dsc_tokenize_options options = { .alloc = s->alloc,
                                     .tokenizer = tokenizer,
                                     .paths = s->paths.text,
                                     .path_count = s->paths.count,
                                     .field = s->field,
                                     .begin = DSC_BEGIN_TEMPLATE,
                                     .threads = (int32_t)s->threads,
                                     .take = take,
                                     .user = p };
    DSC_TRY(find_separator(s, tokenizer, &options.separator, err));
    if (s->begin != NULL && strcmp(s->begin, "none") == 0)
        options.begin = -1;
    else if (s->begin != NULL) {
        options.begin = dsc_tokenizer_find(tokenizer, s->begin);
        if (options.begin < 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--begin", "the tokenizer has no token \"%.60s\"; give one of its "
                            "tokens, or leave the flag out", s->begin);
    }
    DSC_TRY(check_files(s, err));
    DSC_TRY(sum_sizes(s, &p->total_bytes, err));
    p->start_ns = dsc_clock_ns();
    p->terminal = isatty(STDERR_FILENO);
    dsc_status status = dsc_token_writer_open(s->alloc, NULL, s->out, s->format, dsc_tokenizer_vocab_size(tokenizer),
                                              &p->writer, err);
    if (status == DSC_OK)
        status = dsc_tokenize(&options, err);
    if (status == DSC_OK)
        status = dsc_token_writer_commit(&p->writer, err);
    dsc_token_writer_close(&p->writer);
    if (p->terminal)
        fputs("\r\033[K", stderr);
    return status;
}

/* ---- show ---- */

static dsc_status show_sample(settings *s, dsc_error *err)
{
    const dsc_example_settings of = {
        .tokenizer = s->tokenizer, .config = s->examples.config, .path = s->path, .sequence = s->examples.sequence
    };
    return dsc_data_show_sample(s->alloc, &of, s->examples.sample, err);
}

static dsc_status show(settings *s, const dsc_tokenizer *tokenizer, dsc_error *err)
{
    dsc_token_file file = DSC_TOKEN_FILE_INIT;
    dsc_encoder *encoder = NULL;
    int32_t *ids = NULL;
    const char *text = NULL;
    int64_t bytes = 0, count = 0;
    dsc_status status = dsc_alloc_zeroed(s->alloc, DSC_TAG_DATA, s->count, sizeof *ids, &ids, err);
    if (status == DSC_OK)
        status = dsc_token_file_open(NULL, s->path, &file, err);
    if (status == DSC_OK && s->first >= file.token_count)
        status = DSC_FAIL(err, DSC_ERR_INPUT, "--first", "%lld; there are %lld tokens", (long long)s->first,
                          (long long)file.token_count);
    if (status == DSC_OK) {
        count = dsc_min_i64(s->count, file.token_count - s->first);
        status = dsc_token_file_read(NULL, &file, s->first, count, ids, err);
    }
    dsc_token_file_close(NULL, &file);
    if (status == DSC_OK)
        status = dsc_encoder_open(&encoder, tokenizer, err);
    if (status == DSC_OK)
        status = dsc_decode(encoder, ids, count, false, &text, &bytes, err);
    if (status == DSC_OK && bytes > 0)
        (void)!fwrite(text, 1, (size_t)bytes, stdout); /* dsc_tool_end asks whether that went well */
    if (status == DSC_OK)
        printf("\n");
    dsc_encoder_close(&encoder);
    dsc_alloc_free(s->alloc, ids);
    return status;
}

static int run(int argc, char **argv, bool shows)
{
    static const char *paths[FILES_MAX]; /* too large for a stack */
    settings s = { .examples = { .sample = -1 },
                   .threads = sysconf(_SC_NPROCESSORS_ONLN),
                   .count = 256,
                   .paths = { paths, 0, FILES_MAX } };
    progress p;
    dsc_error err = DSC_ERROR_INIT;
    dsc_tokenizer *tokenizer = NULL;
    const int code = dsc_tool_parse(shows ? &show_page : &tokenize_page, argc, argv, &s);
    if (code >= 0)
        return code;
    memset(&p, 0, sizeof p);
    dsc_status status = dsc_alloc_open(&s.alloc, &err);
    if (status == DSC_OK)
        status = dsc_tokenizer_open(&tokenizer, s.tokenizer, &err);
    if (status == DSC_OK)
        status = shows && s.examples.sample >= 0 ? show_sample(&s, &err)
                 : shows                         ? show(&s, tokenizer, &err)
                                                 : tokenize(&s, tokenizer, &p, &err);
    dsc_tokenizer_close(&tokenizer);
    dsc_alloc_close(&s.alloc);
    if (status != DSC_OK)
        return dsc_tool_fail(&err);
    if (!shows) {
        const double seconds = (double)(dsc_clock_ns() - p.start_ns) * 1e-9;
        printf("%s: %lld tokens of %lld documents, uint%d; %.1f MB in %.1f s (%.1f MB/s)\n", s.out,
               (long long)p.writer.token_count, (long long)p.writer.document_count, (int)p.writer.token_bytes * 8,
               (double)p.total_bytes * 1e-6, seconds, (double)p.total_bytes * 1e-6 / seconds);
    }
    return dsc_tool_end();
}

static int run_tokenize(int argc, char **argv) { return run(argc, argv, false); }
static int run_show(int argc, char **argv) { return run(argc, argv, true); }

int dsc_cmd_data(int argc, char **argv)
{
    static const dsc_tool_verb verbs[] = { { &tokenize_page, run_tokenize },
                                           { &show_page, run_show },
                                           { &dsc_data_images_page, dsc_data_images },
                                           { &dsc_data_render_page, dsc_data_render } };
    return dsc_tool_run_verb("dsc data",
                             "Turns texts and pictures into files that train reads, and shows instruction data.", verbs,
                             (int32_t)DSC_COUNT(verbs), argc, argv);
}
