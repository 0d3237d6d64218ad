/* embed.c - `dsc embed --model DIR FILE|-`: the vector that a model makes of each text of a file, as one JSON object or
 * one list of numbers a line. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/formats/json.h"
#include "base/io.h"
#include "engine/data/sft/detect.h"
#include "engine/data/sft/json_out.h"
#include "engine/text/content.h"
#include "tools/dsc/text_rows.h"

#define LINE_BYTES_MAX (INT64_C(16) << 20)
#define PROMPTS_FILE "config_sentence_transformers.json"
#define PROMPTS_BYTES_MAX 1000000
#define PATH_BYTES 1024

typedef struct embedding {
    dsc_text_rows rows;
    const char *prompt_name, *format;
    /* Lines of stdin or of a plain text, as JSON objects. The file has no name, so that nothing is left of it; spool is
     * its path by its descriptor. */
    FILE *lines;
    char spool[64];
    char *named_prompt;
} embedding;

#define AT(field) offsetof(embedding, rows.field)
static const char *const devices[] = DSC_TEXT_ROWS_DEVICES;
static const char *const formats[] = { "json", "numbers", NULL };
static const dsc_flag flags[] = {
    { "--model", NULL, "DIR", DSC_FLAG_TEXT, AT(model), .required = true,
      .help = "model folder: of sentence-transformers, or of a base model, with *.safetensors" },
    { "--format", NULL, "NAME", DSC_FLAG_CHOICE, offsetof(embedding, format), .choices = formats,
      .help = "json, the default: an object a line; numbers: the vector's numbers alone" },
    { "--text", NULL, "NAME", DSC_FLAG_TEXT, AT(text), .help = "column of the text; default: text, sentence, ..." },
    { "--prompt", NULL, "TEXT", DSC_FLAG_TEXT, AT(prompt), .help = "put before each text" },
    { "--prompt-name", NULL, "NAME", DSC_FLAG_TEXT, offsetof(embedding, prompt_name),
      .help = "a prompt of config_sentence_transformers.json; default: its default_prompt_name" },
    DSC_TEXT_ROWS_FLAGS(AT, devices),
};
static const dsc_positional files[] = {
    { "FILE", "rows with a text: JSON, CSV, TSV or Parquet; or a text a line; -: lines from stdin", "file", AT(path), 1,
      1 },
};
static const dsc_flag_command page = {
    .name = "dsc embed",
    .description =
        "Prints the vector that a model makes of each text of a file, a line for each text. Pooling and unit "
        "length are those of the folder's modules.json; docs/data.md says how such a model is trained.",
    .flags = flags,
    .flag_count = DSC_COUNT(flags),
    .positionals = files,
    .positional_count = 1,
    .exit_codes = "0 done; 1 failed; 2 wrong command line, model or text; 3 does not fit into memory",
};

/* ---- Output ---- */

static dsc_status print_numbers(const dsc_text_rows *r, int64_t line, const float *vector, dsc_error *err)
{
    (void)line;
    for (int64_t i = 0; i < dsc_infer_labels(r->infer)->count; i++)
        printf("%s%.9g", i > 0 ? " " : "", (double)vector[i]);
    return printf("\n") < 0 ? DSC_FAIL(err, DSC_ERR_IO, "stdout", "the line cannot be written") : DSC_OK;
}

static dsc_status print_object(const dsc_text_rows *r, int64_t line, const float *vector, dsc_error *err)
{
    printf("{\"line\":%lld,\"embedding\":[", (long long)line);
    for (int64_t i = 0; i < dsc_infer_labels(r->infer)->count; i++)
        printf("%s%.9g", i > 0 ? "," : "", (double)vector[i]);
    return printf("]}\n") < 0 ? DSC_FAIL(err, DSC_ERR_IO, "stdout", "the line cannot be written") : DSC_OK;
}

/* ---- Prompts ---- */

/* The names of prompts, for a message. */
static void list_prompts(const cJSON *prompts, char *out, size_t bytes)
{
    size_t used = 0;
    snprintf(out, bytes, "none");
    for (const cJSON *each = cJSON_IsObject(prompts) ? prompts->child : NULL; each != NULL && used + 40 < bytes;
         each = each->next)
        used += (size_t)snprintf(out + used, bytes - used, "%s%.32s", used > 0 ? ", " : "", each->string);
}

static dsc_status take_prompt(embedding *e, const char *path, const cJSON *root, dsc_error *err)
{
    const cJSON *const usual = cJSON_GetObjectItemCaseSensitive(root, "default_prompt_name");
    const cJSON *const prompts = cJSON_GetObjectItemCaseSensitive(root, "prompts");
    const char *const name = e->prompt_name != NULL  ? e->prompt_name
                             : cJSON_IsString(usual) ? usual->valuestring
                                                     : NULL;
    const cJSON *const prompt = name != NULL ? cJSON_GetObjectItemCaseSensitive(prompts, name) : NULL;
    char list[200];
    if (!cJSON_IsObject(root) || (prompts != NULL && !cJSON_IsObject(prompts)) ||
        (usual != NULL && !cJSON_IsNull(usual) && !cJSON_IsString(usual)))
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "expected an object whose \"prompts\" is an object, and whose \"default_prompt_name\" is a "
                        "text or null");
    if (name == NULL)
        return DSC_OK;
    list_prompts(prompts, list, sizeof list);
    if (!cJSON_IsString(prompt))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "has no prompt \"%.60s\"; its prompts: %s", name, list);
    if (strlen(prompt->valuestring) >= DSC_SFT_TEXT_BYTES)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the prompt \"%.60s\" has %zu bytes; expected fewer than %d", name,
                        strlen(prompt->valuestring), DSC_SFT_TEXT_BYTES);
    e->named_prompt = strdup(prompt->valuestring);
    e->rows.prompt = e->named_prompt;
    return e->named_prompt != NULL ? DSC_OK : DSC_FAIL(err, DSC_ERR_NOMEM, path, "out of host memory: the prompt");
}

static dsc_status find_prompt(embedding *e, dsc_alloc *alloc, dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    char path[PATH_BYTES], *text = NULL;
    int64_t bytes = 0;
    dsc_json *json = NULL;
    if (e->rows.prompt != NULL && e->prompt_name != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--prompt-name", "beside --prompt; give one of them");
    if (e->rows.prompt != NULL && strlen(e->rows.prompt) >= DSC_SFT_TEXT_BYTES)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--prompt", "has %zu bytes; expected fewer than %d", strlen(e->rows.prompt),
                        DSC_SFT_TEXT_BYTES);
    DSC_TRY(dsc_path_join(path, sizeof path, e->rows.model, PROMPTS_FILE, err));
    const bool missing = dsc_io_kind(path) == DSC_PATH_MISSING; /* a folder or a pipe fails to be read */
    if (e->prompt_name != NULL && missing)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is missing, and --prompt-name names one of its prompts");
    if (e->rows.prompt != NULL || missing)
        return DSC_OK;
    DSC_TRY(dsc_io_read_all(NULL, alloc, path, PROMPTS_BYTES_MAX, &text, &bytes, err));
    dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    dsc_alloc_free(alloc, text);
    if (status == DSC_OK)
        status = take_prompt(e, path, dsc_json_root(json), err);
    dsc_json_close(&json);
    return status;
}

/* ---- Lines ---- */

/* A line is a JSON object, or the text itself. */
static dsc_status spool_line(dsc_text *json, const char *line, int64_t bytes, FILE *to, dsc_error *err)
{
    json->bytes = 0;
    if (line[0] == '{') {
        DSC_TRY(dsc_text_add(json, line, bytes, err));
    } else {
        DSC_TRY(dsc_json_out_raw(json, "{\"text\":", err));
        DSC_TRY(dsc_json_out_text(json, line, bytes, err));
        DSC_TRY(dsc_json_out_raw(json, "}", err));
    }
    DSC_TRY(dsc_json_out_raw(json, "\n", err));
    return fwrite(json->ptr, 1, (size_t)json->bytes, to) == (size_t)json->bytes
               ? DSC_OK
               : DSC_FAIL(err, DSC_ERR_IO, "stdin", "its lines cannot be kept in a file of TMPDIR");
}

static dsc_status spool_lines(FILE *from, const char *name, dsc_alloc *alloc, FILE *to, dsc_error *err)
{
    dsc_text json = { .alloc = alloc };
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    int64_t number = 0;
    dsc_status status = DSC_OK;
    while (status == DSC_OK && (bytes = getline(&line, &room, from)) >= 0) {
        number++;
        while (bytes > 0 && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r'))
            line[--bytes] = 0;
        if (bytes > LINE_BYTES_MAX || strlen(line) != (size_t)bytes)
            status = DSC_FAIL(err, DSC_ERR_INPUT, name, "line %lld %s; expected a text", (long long)number,
                              bytes > LINE_BYTES_MAX ? "has more than 16 MiB" : "has a NUL");
        else
            status = spool_line(&json, line, bytes, to, err);
    }
    if (status == DSC_OK && ferror(from) && err->message[0] == 0) /* else the source says why */
        status = DSC_FAIL(err, DSC_ERR_IO, name, "cannot be read");
    else if (status == DSC_OK && ferror(from))
        status = DSC_ERR_INPUT;
    free(line);
    dsc_text_free(&json);
    return status;
}

/* A file without a name in TMPDIR. */
static dsc_status open_spool(embedding *e, const char *name, dsc_error *err)
{
    const char *const given = getenv("TMPDIR"), *const dir = given != NULL && given[0] != 0 ? given : "/tmp";
    char path[PATH_BYTES];
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "dsc-embed-XXXXXX", err));
    const int file = mkstemp(path);
    if (file >= 0) {
        (void)unlink(path);
        e->lines = fdopen(file, "w");
    }
    if (e->lines == NULL) {
        if (file >= 0)
            close(file);
        return DSC_FAIL(err, DSC_ERR_IO, dir, "no file for the lines of %.200s can be made; set TMPDIR", name);
    }
    snprintf(e->spool, sizeof e->spool, "/proc/self/fd/%d", file);
    return DSC_OK;
}

static dsc_status spool(embedding *e, FILE *from, dsc_alloc *alloc, dsc_error *err)
{
    const char *const name = from == stdin ? "stdin" : e->rows.path;
    DSC_TRY(open_spool(e, name, err));
    e->rows.shown = name;
    DSC_TRY(spool_lines(from, name, alloc, e->lines, err));
    e->rows.path = e->spool;
    return fflush(e->lines) == 0 ? DSC_OK
                                 : DSC_FAIL(err, DSC_ERR_IO, name, "its lines cannot be kept in a file of TMPDIR");
}

static bool has_rows(const char *path, dsc_alloc *alloc)
{
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    return dsc_sft_detect(NULL, alloc, path, &section, "text") != DSC_ROWS_NONE;
}

/* The bytes of a file, which may be compressed. */
typedef struct text_file {
    dsc_source source;
    dsc_error *err;
} text_file;

static ssize_t read_text(void *user, char *to, size_t bytes)
{
    text_file *const file = user;
    int64_t got = 0;
    return dsc_source_read(&file->source, to, (int64_t)bytes, &got, file->err) == DSC_OK ? (ssize_t)got : -1;
}

static dsc_status spool_file(embedding *e, dsc_alloc *alloc, dsc_error *err)
{
    static const cookie_io_functions_t functions = { .read = read_text };
    text_file file = { .source = DSC_SOURCE_INIT, .err = err };
    dsc_content content;
    DSC_TRY(dsc_content_detect(NULL, e->rows.path, "text", &content, err));
    DSC_TRY(dsc_content_refuse(&content, e->rows.path, err));
    dsc_status status = dsc_source_open(NULL, e->rows.path, &file.source, err);
    FILE *from = status == DSC_OK ? fopencookie(&file, "r", functions) : NULL;
    if (status == DSC_OK && from == NULL)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, e->rows.path, "out of host memory: its lines");
    if (status == DSC_OK)
        status = spool(e, from, alloc, err);
    if (from != NULL)
        fclose(from);
    (void)dsc_source_close(&file.source, NULL);
    return status;
}

static dsc_status prepare(embedding *e, dsc_alloc *alloc, dsc_error *err)
{
    DSC_TRY(find_prompt(e, alloc, err));
    if (strcmp(e->rows.path, "-") == 0)
        return spool(e, stdin, alloc, err);
    if (dsc_io_kind(e->rows.path) != DSC_PATH_FILE || has_rows(e->rows.path, alloc))
        return DSC_OK;
    return spool_file(e, alloc, err);
}

int dsc_cmd_embed(int argc, char **argv)
{
    embedding e = { .rows = { .device = "auto", .threads = sysconf(_SC_NPROCESSORS_ONLN) }, .format = "json" };
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    int code = dsc_tool_parse(&page, argc, argv, &e);
    if (code >= 0)
        return code;
    dsc_status status = dsc_alloc_open(&alloc, &err);
    if (status == DSC_OK)
        status = prepare(&e, alloc, &err);
    dsc_alloc_close(&alloc);
    if (status == DSC_OK)
        code = dsc_text_rows_run(&e.rows, true, strcmp(e.format, "numbers") == 0 ? print_numbers : print_object);
    else
        code = dsc_tool_fail(&err);
    if (e.lines != NULL)
        fclose(e.lines);
    free(e.named_prompt);
    return code;
}
