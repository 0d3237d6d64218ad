/* generate.c - `dsc generate --model DIR --prompt TEXT`: a model continues a text, which appears as it comes; with
 * --prompt-ids, a list of tokens' numbers, as numbers; with --chat it answers. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "tools/dsc/generate.h"

#define NEW_COUNT 128

static dsc_status set_temperature(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    generation *g = out;
    char *end;
    g->sample.temperature = strtod(value, &end);
    if (end == value || *end != 0 || !(g->sample.temperature >= 0 && g->sample.temperature <= 1000))
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is not a number from 0 to 1000", value);
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
    { "--prompt", NULL, "TEXT", DSC_FLAG_TEXT, AT(prompt), .allow_empty = true,
      .help = "text to continue; with --chat the one question" },
    { "--chat", NULL, NULL, DSC_FLAG_BOOL, AT(chat),
      .help = "answer questions, one line of standard input each, with the folder's chat template" },
    { "--system", NULL, "TEXT", DSC_FLAG_TEXT, AT(system), .allow_empty = true,
      .help = "system prompt of --chat" },
    { "--prompt-ids", NULL, "N,N,...", DSC_FLAG_TEXT, AT(prompt_ids), .allow_empty = true,
      .help = "token ids to continue, instead of a text; the output is ids too" },
    { "--max-new-tokens", NULL, "N", DSC_FLAG_INTEGER, AT(new_count), .min = 0, .max = 1 << 24,
      .help = "most tokens to add; default: the model folder's, else 128; with --chat at most half of --context" },
    { "--context", NULL, "N", DSC_FLAG_INTEGER, AT(context), .min = 2, .max = 1 << 24,
      .help = "most tokens of a conversation with its next answer; default: the model's positions, at most 4096" },
    { "--temperature", NULL, "X", DSC_FLAG_CALL, 0, .set = set_temperature,
      .help = "divisor of the logits, 0 to 1000; default: the model folder's, else 0: always the best token" },
    { "--top-k", NULL, "K", DSC_FLAG_INTEGER, AT(sample.top_k), .min = 0, .max = 1 << 24,
      .help = "choose among the K best tokens, 0: among all; default: the model folder's, else 0" },
    { "--top-p", NULL, "P", DSC_FLAG_NUMBER, AT(sample.top_p), .low = 1e-9, .high = 1,
      .help = "choose among the best tokens that have probability P together, above 0 to 1; default: the model "
              "folder's, else 1" },
    { "--repetition-penalty", NULL, "X", DSC_FLAG_NUMBER, AT(repetition_penalty), .low = 1e-3, .high = 1000,
      .help = "divisor of the logits of tokens that the text has; default: the model folder's, else 1" },
    { "--seed", NULL, "S", DSC_FLAG_INTEGER, AT(seed), .min = 0, .max = INT64_MAX,
      .help = "seed of the random choice; default 0" },
    { "--dtype", NULL, "NAME", DSC_FLAG_CALL, 0, .set = set_dtype, .help = "compute in fp32, the default, or bf16" },
    { "--tokenizer", NULL, "DIR|FILE.json", DSC_FLAG_TEXT, AT(tokenizer_path),
      .help = "tokenizer of the prompt; default: the model folder's, else a byte is a token" },
    { "--ignore-eos", NULL, NULL, DSC_FLAG_BOOL, AT(ignore_end), .help = "do not stop at the model's end token" },
    { "--chat-template", NULL, "FILE", DSC_FLAG_TEXT, AT(chat_template),
      .help = "chat template of --chat; default: the folder's" },
    { "--show-context", NULL, NULL, DSC_FLAG_BOOL, AT(show_context),
      .help = "messages and token ids before each answer of --chat, as JSON on standard error" },
    { "--device", NULL, "NAME", DSC_FLAG_CHOICE, AT(device), .choices = devices,
      .help = "auto, the default, cpu or cuda" },
    { "--threads", NULL, "N", DSC_FLAG_INTEGER, AT(threads), .min = 1, .max = 256,
      .help = "CPU threads; default: one for each core" },
};
static const dsc_flag_command page = {
    .name = "dsc generate",
    .description = "Lets a model continue a prompt or answer questions, and prints the text as it appears. Give "
                   "--prompt, --prompt-ids or --chat.",
    .flags = rows, .flag_count = DSC_COUNT(rows),
    .notes = "The model folder's settings are those of generation_config.json. Its temperature, top_k and top_p count "
             "if do_sample is true, as in transformers. Otherwise --top-k or --top-p without --temperature sets the "
             "temperature to 1.\n\nA conversation that grows longer than --context loses its oldest questions and "
             "answers; the system prompt stays.",
    .exit_codes = "0 done; 1 failed; 2 wrong command line, model or prompt; 3 does not fit into memory",
};

/* -1: go on; else the exit code. */
static int read_arguments(int argc, char **argv, generation *g)
{
    *g = (generation){ .new_count = -1, .sample = { .temperature = -1, .top_k = -1, .top_p = -1 },
                       .repetition_penalty = -1, .dtype = DSC_F32, .device = "auto",
                       .threads = sysconf(_SC_NPROCESSORS_ONLN) };
    const int code = dsc_tool_parse(&page, argc, argv, g);
    if (code >= 0)
        return code;
    if (g->prompt_ids != NULL && (g->prompt != NULL || g->chat))
        return dsc_tool_usage("--prompt-ids", "is beside %s; give one of them", g->chat ? "--chat" : "--prompt");
    if (g->prompt == NULL && g->prompt_ids == NULL && !g->chat)
        return dsc_tool_usage("--prompt", "is missing; \"dsc generate --help\" explains");
    const char *const of_chat = g->system != NULL          ? "--system"
                                : g->chat_template != NULL ? "--chat-template"
                                : g->context > 0           ? "--context"
                                : g->show_context          ? "--show-context"
                                                           : NULL;
    if (of_chat != NULL && !g->chat)
        return dsc_tool_usage(of_chat, "needs --chat");
    if (g->chat && g->ignore_end)
        return dsc_tool_usage("--ignore-eos", "is beside --chat, whose answers end with the end token; leave one out");
    return -1;
}

/* ---- A text ---- */

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

static dsc_status continue_text(generation *g, dsc_error *err)
{
    const char *text = NULL;
    bool ended = false;
    const int64_t positions = dsc_infer_positions(g->infer);
    DSC_TRY(encode_prompt(g, err));
    if (g->new_count < 0)
        g->new_count = g->settings.max_new_tokens > 0 ? g->settings.max_new_tokens : NEW_COUNT;
    if (g->ids.count + g->new_count > positions + 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--max-new-tokens",
                        "%lld tokens of the prompt and %lld new ones; the model has %lld positions",
                        (long long)g->ids.count, (long long)g->new_count, (long long)positions);
    DSC_TRY(generation_start(g, dsc_min_i64(positions, g->ids.count + g->new_count), err));
    if (g->prompt_ids == NULL)
        DSC_TRY(generation_text(g, &text, &g->printed, err));
    DSC_TRY(generation_go_on(g, &ended, err));
    return printf("\n") < 0 ? DSC_FAIL(err, DSC_ERR_IO, "stdout", "the text cannot be written") : DSC_OK;
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
        status = generation_settle(&g, &err);
    if (status == DSC_OK)
        status = generation_open_tokenizer(&g, &err);
    if (status == DSC_OK)
        status = g.chat ? generation_chat(&g, &err) : continue_text(&g, &err);
    dsc_alloc_free(g.alloc, g.work);
    dsc_alloc_free(g.alloc, g.logits);
    dsc_ids_free(&g.ids);
    dsc_text_free(&g.bytes);
    dsc_infer_close(&g.infer);
    dsc_encoder_close(&g.encoder);
    dsc_tokenizer_close(&g.tokenizer);
    dsc_alloc_close(&g.alloc);
    if (status != DSC_OK)
        return dsc_tool_fail(&err);
    return dsc_tool_end();
}
