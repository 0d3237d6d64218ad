/* generate.c - `dsc generate --model DIR --prompt TEXT`: a model continues a text, which appears as it comes; or, with
 * --prompt-ids, a list of tokens' numbers, as numbers. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dsc/text.h>

#include "base/formats/json.h"
#include "base/io.h"
#include "base/rng.h"
#include "engine/generate/infer.h"
#include "engine/generate/sample.h"
#include "engine/text/unicode.h"
#include "tools/dsc/tool.h"

#define ENDS_MAX 16
#define CONFIG_BYTES_MAX (INT64_C(1) << 20)
#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

typedef struct generation {
    const char *model, *prompt, *prompt_ids, *tokenizer_path, *device;
    int64_t new_count, seed, threads;
    dsc_sample_options sample;
    dsc_dtype dtype;
    bool ignore_end, temperature_given;
    dsc_alloc *alloc;
    dsc_tokenizer *tokenizer; /* NULL: a token is a byte */
    dsc_encoder *encoder;
    dsc_infer *infer;
    int32_t ends[ENDS_MAX]; /* tokens that end the text */
    int32_t end_count;
    dsc_ids ids;            /* ids of the prompt, then of the generated text */
    dsc_text bytes;         /* text of byte tokens, repaired */
    dsc_sample_work *work;
    int64_t printed; /* bytes of the whole text, the prompt's among them; of ids: whether there was one */
} generation;

static dsc_status set_temperature(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    generation *g = out;
    char *end;
    g->sample.temperature = strtod(value, &end);
    if (end == value || *end != 0 || !(g->sample.temperature >= 0 && g->sample.temperature <= 1000))
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is not a number from 0 to 1000", value);
    g->temperature_given = true;
    return DSC_OK;
}

static dsc_status set_dtype(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    const bool bf16 = strcmp(value, "bf16") == 0;
    if (!bf16 && strcmp(value, "fp32") != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is unknown; expected fp32 or bf16", value);
    ((generation *)out)->dtype = bf16 ? DSC_BF16 : DSC_F32;
    return DSC_OK;
}

#define AT(field) offsetof(generation, field)
static const char *const devices[] = { "auto", "cpu", "cuda", NULL };
static const dsc_flag rows[] = {
    { "--model", NULL, "DIR", DSC_FLAG_TEXT, AT(model), .required = true,
      .help = "model folder: config.json and *.safetensors" },
    { "--prompt", NULL, "TEXT", DSC_FLAG_TEXT, AT(prompt), .allow_empty = true, .help = "text to continue" },
    { "--prompt-ids", NULL, "N,N,...", DSC_FLAG_TEXT, AT(prompt_ids), .allow_empty = true,
      .help = "token ids to continue, instead of a text; the output is ids too" },
    { "--max-new-tokens", NULL, "N", DSC_FLAG_INTEGER, AT(new_count), .min = 0, .max = 1 << 24,
      .help = "most tokens to add; default 128" },
    { "--temperature", NULL, "X", DSC_FLAG_CALL, 0, .set = set_temperature,
      .help = "divisor of the logits, 0 to 1000; 0, the default, always chooses the best token" },
    { "--top-k", NULL, "K", DSC_FLAG_INTEGER, AT(sample.top_k), .min = 0, .max = 1 << 24,
      .help = "choose among the K best tokens; 0, the default: among all" },
    { "--top-p", NULL, "P", DSC_FLAG_NUMBER, AT(sample.top_p), .low = 1e-9, .high = 1,
      .help = "choose among the best tokens that have probability P together, above 0 to 1; default 1" },
    { "--seed", NULL, "S", DSC_FLAG_INTEGER, AT(seed), .min = 0, .max = INT64_MAX,
      .help = "seed of the random choice; default 0" },
    { "--dtype", NULL, "NAME", DSC_FLAG_CALL, 0, .set = set_dtype, .help = "compute in fp32, the default, or bf16" },
    { "--tokenizer", NULL, "DIR|FILE.json", DSC_FLAG_TEXT, AT(tokenizer_path),
      .help = "tokenizer of the prompt; default: the model folder's, else a byte is a token" },
    { "--ignore-eos", NULL, NULL, DSC_FLAG_BOOL, AT(ignore_end), .help = "do not stop at the model's end token" },
    { "--device", NULL, "NAME", DSC_FLAG_CHOICE, AT(device), .choices = devices,
      .help = "auto, the default, cpu or cuda" },
    { "--threads", NULL, "N", DSC_FLAG_INTEGER, AT(threads), .min = 1, .max = 256,
      .help = "CPU threads; default: one for each core" },
};
static const dsc_flag_command page = {
    .name = "dsc generate",
    .description = "Lets a model continue a prompt, and prints the text as it appears. Give --prompt or --prompt-ids.",
    .flags = rows, .flag_count = DSC_COUNT(rows),
    .notes = "--top-k or --top-p without --temperature sets the temperature to 1.",
    .exit_codes = "0 done; 1 failed; 2 wrong command line, model or prompt; 3 does not fit into memory",
};

/* -1: go on; else the exit code. */
static int read_arguments(int argc, char **argv, generation *g)
{
    *g = (generation){ .new_count = 128, .sample = { .temperature = 0, .top_p = 1 }, .dtype = DSC_F32,
                       .device = "auto", .threads = sysconf(_SC_NPROCESSORS_ONLN) };
    const int code = dsc_tool_parse(&page, argc, argv, g);
    if (code >= 0)
        return code;
    if (g->prompt != NULL && g->prompt_ids != NULL)
        return dsc_tool_usage("--prompt-ids", "is beside --prompt; give one of them");
    if (g->prompt == NULL && g->prompt_ids == NULL)
        return dsc_tool_usage("--prompt", "is missing; \"dsc generate --help\" explains");
    if (!g->temperature_given && (g->sample.top_k > 0 || g->sample.top_p < 1))
        g->sample.temperature = 1;
    return -1;
}

/* ---- What ends a text ---- */

/* A negative number stands for no end. */
static dsc_status add_end(generation *g, const dsc_json *json, const cJSON *item, dsc_error *err)
{
    char where[256];
    int64_t token = -1;
    if (cJSON_IsNumber(item) && !dsc_json_integer(item, -DSC_JSON_INTEGER_MAX, INT32_MAX - 1, &token))
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, item, where, sizeof where),
                        "\"eos_token_id\" must be a whole number, or a list of them, below %d", INT32_MAX);
    if (token >= 0 && g->end_count < ENDS_MAX)
        g->ends[g->end_count++] = (int32_t)token;
    return DSC_OK;
}

/* eos_token_id of a folder's file: a number or several. A file that is not there has none. */
static dsc_status read_ends(generation *g, const char *name, dsc_error *err)
{
    const dsc_json_limits limits = { CONFIG_BYTES_MAX, 32, 100000 };
    char path[1024];
    char *text = NULL;
    int64_t bytes = 0;
    dsc_json *json = NULL;
    DSC_TRY(dsc_path_join(path, sizeof path, g->model, name, err));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(dsc_io_read_all(NULL, g->alloc, path, CONFIG_BYTES_MAX, &text, &bytes, err));
    dsc_status status = dsc_json_open(g->alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    dsc_alloc_free(g->alloc, text);
    DSC_TRY(status);
    const cJSON *ends = cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), "eos_token_id");
    status = add_end(g, json, ends, err);
    for (const cJSON *item = cJSON_IsArray(ends) ? ends->child : NULL; item != NULL && status == DSC_OK;
         item = item->next)
        status = add_end(g, json, item, err);
    dsc_json_close(&json);
    return status;
}

static dsc_status find_ends(generation *g, dsc_error *err)
{
    if (g->ignore_end || dsc_io_kind(g->model) != DSC_PATH_DIR)
        return DSC_OK;
    DSC_TRY(read_ends(g, "generation_config.json", err));
    if (g->end_count == 0)
        DSC_TRY(read_ends(g, "config.json", err));
    const int32_t usual = g->tokenizer != NULL ? dsc_tokenizer_text_end(g->tokenizer) : -1;
    if (g->end_count == 0 && usual >= 0)
        g->ends[g->end_count++] = usual;
    return DSC_OK;
}

static bool ends_text(const generation *g, int32_t id)
{
    for (int32_t i = 0; i < g->end_count; i++)
        if (g->ends[i] == id)
            return true;
    return false;
}

/* ---- Text ---- */

/* The tokenizer beside the weights; a vocabulary of 256 without one is of bytes, as train reads raw text. */
static dsc_status open_tokenizer(generation *g, dsc_error *err)
{
    char path[1024];
    if (g->prompt_ids != NULL)
        return DSC_OK;
    DSC_TRY(dsc_path_join(path, sizeof path, g->model, "tokenizer.json", err));
    if (g->tokenizer_path == NULL && dsc_io_kind(path) == DSC_PATH_MISSING && dsc_infer_vocab(g->infer) == 256)
        return DSC_OK;
    if (g->tokenizer_path == NULL && dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, g->model, "no tokenizer.json is here; name the one that the model was "
                        "trained with: --tokenizer DIR|FILE.json");
    DSC_TRY(dsc_tokenizer_open(&g->tokenizer, g->tokenizer_path != NULL ? g->tokenizer_path : path, err));
    return dsc_encoder_open(&g->encoder, g->tokenizer, err);
}

/* Numbers with commas or blanks between them; whether they are tokens is the model's to say. */
static dsc_status read_ids(generation *g, dsc_error *err)
{
    for (const char *at = g->prompt_ids; *at != 0;) {
        char *end;
        const long long id = strtoll(at, &end, 10);
        if (end == at || id < 0 || id > INT32_MAX || (*end != 0 && *end != ',' && *end != ' '))
            return DSC_FAIL(err, DSC_ERR_INPUT, "--prompt-ids", "\"%.20s\" does not begin with a token's number", at);
        DSC_TRY(dsc_ids_add(&g->ids, (int32_t)id, err));
        at = end + strspn(end, ", ");
    }
    return g->ids.count > 0 ? DSC_OK
                            : DSC_FAIL(err, DSC_ERR_INPUT, "--prompt-ids", "at least one token is needed");
}

static dsc_status encode_prompt(generation *g, dsc_error *err)
{
    if (g->prompt_ids != NULL)
        return read_ids(g, err);
    const int64_t bytes = (int64_t)strlen(g->prompt);
    const int32_t *ids = NULL;
    int64_t count = 0;
    if (g->tokenizer != NULL)
        DSC_TRY(dsc_encode(g->encoder, g->prompt, bytes, DSC_ENCODE_SPECIAL, &ids, &count, err));
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(dsc_ids_add(&g->ids, ids[i], err));
    for (int64_t i = 0; g->tokenizer == NULL && i < bytes; i++)
        DSC_TRY(dsc_ids_add(&g->ids, (unsigned char)g->prompt[i], err));
    return g->ids.count > 0 ? DSC_OK
                            : DSC_FAIL(err, DSC_ERR_INPUT, "--prompt", "a prompt of at least one token is needed");
}

static dsc_status whole_text(generation *g, const char **text, int64_t *bytes, dsc_error *err)
{
    if (g->tokenizer != NULL)
        return dsc_decode(g->encoder, g->ids.ptr, g->ids.count, true, text, bytes, err);
    char *raw = NULL;
    DSC_TRY(dsc_alloc_zeroed(g->alloc, DSC_TAG_DATA, g->ids.count, 1, &raw, err));
    for (int64_t i = 0; i < g->ids.count; i++)
        raw[i] = (char)g->ids.ptr[i];
    g->bytes.bytes = 0;
    const dsc_status status = dsc_utf8_repair(raw, g->ids.count, &g->bytes, err);
    dsc_alloc_free(g->alloc, raw);
    *text = g->bytes.ptr;
    *bytes = g->bytes.bytes;
    return status;
}

/* Prints what is new. U+FFFD at the end may be a character whose last bytes are still to come: it waits for them. */
static dsc_status print_new(generation *g, bool all, dsc_error *err)
{
    const char *text = NULL;
    int64_t bytes = 0;
    if (g->prompt_ids != NULL) {
        if (!all && (printf("%s%d", g->printed > 0 ? " " : "", (int)g->ids.ptr[g->ids.count - 1]) < 0 ||
                     fflush(stdout) != 0))
            return DSC_FAIL(err, DSC_ERR_IO, "stdout", "the tokens cannot be written");
        g->printed = 1;
        return DSC_OK;
    }
    DSC_TRY(whole_text(g, &text, &bytes, err));
    while (!all && bytes >= 3 && memcmp(text + bytes - 3, REPLACEMENT, 3) == 0)
        bytes -= 3;
    if (bytes > g->printed) {
        if (fwrite(text + g->printed, 1, (size_t)(bytes - g->printed), stdout) == 0 || fflush(stdout) != 0)
            return DSC_FAIL(err, DSC_ERR_IO, "stdout", "the text cannot be written");
        g->printed = bytes;
    }
    return DSC_OK;
}

static dsc_status generate(generation *g, dsc_error *err)
{
    const char *text = NULL;
    const float *logits = NULL;
    const int64_t vocab = dsc_infer_vocab(g->infer), positions = dsc_infer_positions(g->infer);
    DSC_TRY(encode_prompt(g, err));
    if (g->ids.count + g->new_count > positions + 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--max-new-tokens",
                        "%lld tokens of the prompt and %lld new ones; the model has %lld positions",
                        (long long)g->ids.count, (long long)g->new_count, (long long)positions);
    DSC_TRY(dsc_infer_start(g->infer, dsc_min_i64(positions, g->ids.count + g->new_count), NULL, err));
    DSC_TRY(dsc_alloc_zeroed(g->alloc, DSC_TAG_CONTROL, vocab, sizeof *g->work, &g->work, err));
    if (g->prompt_ids == NULL)
        DSC_TRY(whole_text(g, &text, &g->printed, err));
    for (int64_t i = 0; i < g->new_count; i++) {
        DSC_TRY(dsc_infer_logits(g->infer, g->ids.ptr, g->ids.count, &logits, err));
        const double uniform =
            dsc_rng_u32((uint64_t)g->seed, dsc_rng_stream(DSC_RNG_SAMPLE, 0), (uint64_t)i) / 4294967296.0;
        const int32_t id = dsc_sample(logits, vocab, &g->sample, uniform, g->work);
        if (ends_text(g, id))
            break;
        if (g->tokenizer != NULL && dsc_tokenizer_token(g->tokenizer, id) == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, g->model, "the model predicted token %d, which its tokenizer does not "
                            "have; check that the tokenizer belongs to this model", (int)id);
        DSC_TRY(dsc_ids_add(&g->ids, id, err));
        DSC_TRY(print_new(g, false, err));
    }
    return print_new(g, true, err);
}

int dsc_cmd_generate(int argc, char **argv)
{
    generation g;
    dsc_error err = DSC_ERROR_INIT;
    const int code = read_arguments(argc, argv, &g);
    if (code >= 0)
        return code;
    dsc_status status = dsc_alloc_open(&g.alloc, &err);
    if (status != DSC_OK)
        return dsc_tool_fail(&err);
    g.ids.alloc = g.bytes.alloc = g.alloc;
    const dsc_infer_options options = { .alloc = g.alloc, .model = g.model, .device = g.device,
                                        .dtype = g.dtype, .threads = (int32_t)g.threads };
    status = dsc_infer_open(&options, &g.infer, &err);
    if (status == DSC_OK)
        status = open_tokenizer(&g, &err);
    if (status == DSC_OK)
        status = find_ends(&g, &err);
    if (status == DSC_OK)
        status = generate(&g, &err);
    dsc_alloc_free(g.alloc, g.work);
    dsc_ids_free(&g.ids);
    dsc_text_free(&g.bytes);
    dsc_infer_close(&g.infer);
    dsc_encoder_close(&g.encoder);
    dsc_tokenizer_close(&g.tokenizer);
    dsc_alloc_close(&g.alloc);
    if (status != DSC_OK)
        return dsc_tool_fail(&err);
    printf("\n");
    return dsc_tool_end();
}
