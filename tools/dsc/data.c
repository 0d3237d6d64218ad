/* data.c - `dsc data tokenize FILE... -o OUT.bin`, and `dsc data show FILE`: texts to token files and back.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/text/token_writer.h"
#include "tools/dsc/tool.h"

#define FILES_MAX 4096

typedef struct settings {
    const char *tokenizer, *out, *field, *separator, *begin;
    const char *paths[FILES_MAX];
    int32_t path_count;
    int64_t threads, first, count;
    dsc_token_format format;
    dsc_alloc *alloc;
} settings;

static int usage(const char *where, const char *problem)
{
    return dsc_tool_usage(where, "%s; usage: dsc data tokenize --tokenizer DIR|FILE.json FILE... -o OUT.bin "
                          "[--field text] [--separator TOKEN|none] [--begin TOKEN] [--format llmc|raw|megatron] "
                          "[--threads N] | dsc data show --tokenizer DIR|FILE.json FILE.bin [--first N] [--count N]",
                          problem);
}

static bool read_format(const char *name, dsc_token_format *out)
{
    static const char *const names[] = { "llmc", "raw", "megatron" };
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (dsc_token_format)i;
            return true;
        }
    return false;
}

/* 0, or the exit code after an error was printed. */
static int read_arguments(int argc, char **argv, settings *s)
{
    const char *value;
    *s = (settings){ .field = "text", .threads = sysconf(_SC_NPROCESSORS_ONLN), .count = 256 };
    for (int i = 2; i < argc; i++) {
        if ((value = dsc_tool_flag("--tokenizer", argc, argv, &i)) != NULL) {
            s->tokenizer = value;
        } else if ((value = dsc_tool_flag("-o", argc, argv, &i)) != NULL ||
                   (value = dsc_tool_flag("--out", argc, argv, &i)) != NULL) {
            s->out = value;
        } else if ((value = dsc_tool_flag("--field", argc, argv, &i)) != NULL) {
            s->field = value;
        } else if ((value = dsc_tool_flag("--separator", argc, argv, &i)) != NULL) {
            s->separator = value;
        } else if ((value = dsc_tool_flag("--begin", argc, argv, &i)) != NULL) {
            s->begin = value;
        } else if ((value = dsc_tool_flag("--format", argc, argv, &i)) != NULL) {
            if (!read_format(value, &s->format))
                return usage(value, "--format is llmc, raw or megatron");
        } else if ((value = dsc_tool_flag("--threads", argc, argv, &i)) != NULL) {
            if (!dsc_tool_number("--threads", value, 1, 256, &s->threads))
                return 2;
        } else if ((value = dsc_tool_flag("--first", argc, argv, &i)) != NULL) {
            if (!dsc_tool_number("--first", value, 0, INT64_MAX / 8, &s->first))
                return 2;
        } else if ((value = dsc_tool_flag("--count", argc, argv, &i)) != NULL) {
            if (!dsc_tool_number("--count", value, 1, 1 << 20, &s->count))
                return 2;
        } else if (argv[i][0] == '-' && argv[i][1] != 0) {
            return usage(argv[i], "unknown flag");
        } else if (s->path_count == FILES_MAX) {
            return usage(argv[i], "too many files");
        } else {
            s->paths[s->path_count++] = argv[i];
        }
    }
    if (s->tokenizer == NULL || s->tokenizer[0] == 0)
        return usage("--tokenizer", "a model folder or a tokenizer.json is missing");
    return s->path_count == 0 ? usage("FILE", "no file") : 0;
}

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
                         : DSC_FAIL(err, DSC_ERR_INPUT, "--separator", "\"%.60s\" is no token", s->separator);
    }
    *out = dsc_tokenizer_text_end(tokenizer);
    return *out >= 0 ? DSC_OK
                     : DSC_FAIL(err, DSC_ERR_INPUT, s->tokenizer, "none of the usual tokens ends a text here; give "
                                "--separator TOKEN, or --separator none");
}

static dsc_status sum_sizes(const settings *s, int64_t *total, dsc_error *err)
{
    *total = 0;
    for (int32_t i = 0; i < s->path_count; i++) {
        dsc_file file = DSC_FILE_INIT;
        int64_t bytes = 0;
        DSC_TRY(dsc_io_open(NULL, s->paths[i], DSC_IO_READ_ONLY, &file, err));
        const dsc_status status = dsc_io_size(NULL, &file, &bytes, err);
        (void)dsc_io_close(NULL, &file, NULL);
        DSC_TRY(status);
        *total += bytes;
    }
    return DSC_OK;
}

static dsc_status tokenize(settings *s, const dsc_tokenizer *tokenizer, progress *p, dsc_error *err)
{
    dsc_tokenize_options options = { .alloc = s->alloc, .tokenizer = tokenizer, .paths = s->paths,
                                     .path_count = s->path_count, .field = s->field, .begin = -1,
                                     .threads = (int32_t)s->threads, .take = take, .user = p };
    DSC_TRY(find_separator(s, tokenizer, &options.separator, err));
    if (s->begin != NULL) {
        options.begin = dsc_tokenizer_find(tokenizer, s->begin);
        if (options.begin < 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--begin", "\"%.60s\" is no token", s->begin);
    }
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

static dsc_status show(settings *s, const dsc_tokenizer *tokenizer, dsc_error *err)
{
    dsc_token_file file = DSC_TOKEN_FILE_INIT;
    dsc_encoder *encoder = NULL;
    int32_t *ids = NULL;
    const char *text = NULL;
    int64_t bytes = 0, count = 0;
    dsc_status status = dsc_alloc_zeroed(s->alloc, DSC_TAG_DATA, s->count, sizeof *ids, &ids, err);
    if (status == DSC_OK)
        status = dsc_token_file_open(NULL, s->paths[0], &file, err);
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

int dsc_cmd_data(int argc, char **argv)
{
    static settings s; /* too large for a stack */
    static progress p;
    dsc_error err = DSC_ERROR_INIT;
    dsc_tokenizer *tokenizer = NULL;
    const bool shows = argc > 1 && strcmp(argv[1], "show") == 0;
    if (!shows && (argc < 2 || strcmp(argv[1], "tokenize") != 0))
        return usage(argc > 1 ? argv[1] : "dsc data", "tokenize or show is expected");
    const int code = read_arguments(argc, argv, &s);
    if (code != 0)
        return code;
    if (shows ? s.path_count != 1 : s.out == NULL || s.out[0] == 0)
        return shows ? usage("FILE", "one file at a time") : usage("-o", "the name of the output is missing");
    dsc_status status = dsc_alloc_open(&s.alloc, &err);
    if (status == DSC_OK)
        status = dsc_tokenizer_open(&tokenizer, s.tokenizer, &err);
    if (status == DSC_OK)
        status = shows ? show(&s, tokenizer, &err) : tokenize(&s, tokenizer, &p, &err);
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
