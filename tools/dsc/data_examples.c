/* data_examples.c - `dsc data render FILE`: instruction data as training sees it, one JSON object for each example.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/data_examples.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/data/sft/examples.h"
#include "engine/data/sft/json_out.h"

typedef struct render_settings {
    dsc_example_settings examples;
    int64_t count;
} render_settings;

#define AT(field) offsetof(render_settings, field)
static const dsc_flag rows[] = {
    { "--model", NULL, "DIR", DSC_FLAG_TEXT, AT(examples.tokenizer),
      .help = "folder with tokenizer.json and the chat template; default: that of --config" },
    { "--config", NULL, "FILE", DSC_FLAG_TEXT, AT(examples.config),
      .help = "ds_config.json with the section dsc.sft; default: the defaults of its keys" },
    { "--count", NULL, "N", DSC_FLAG_INTEGER, AT(count), .min = 1, .max = INT64_MAX,
      .help = "number of examples; default: all" },
};
static const dsc_positional files[] = {
    { "FILE", "instruction data: a list of objects, or an object on each line", "file", AT(examples.path), 1, 1 },
};
const dsc_flag_command dsc_data_render_page = {
    .name = "dsc data render",
    .description = "Prints instruction data as training sees it before packing: text, tokens and their mask, as JSON.",
    .flags = rows, .flag_count = DSC_COUNT(rows), .positionals = files, .positional_count = 1,
};

/* ---- Settings ---- */

/* The tokenizer of the config: its own, or the model folder's. */
static dsc_status find_tokenizer(const dsc_ext_config *own, char *out, size_t out_bytes, dsc_error *err)
{
    const char *path = own->tokenizer[0] != 0 ? own->tokenizer : own->model;
    if (path[0] == 0 || dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--model", "is missing, and the config names no folder with a tokenizer; "
                        "give --model DIR");
    snprintf(out, out_bytes, "%s", path);
    return DSC_OK;
}

dsc_status dsc_data_read_settings(dsc_alloc *alloc, const dsc_example_settings *s, dsc_sft_section *section,
                                  char *tokenizer, int64_t *sequence, dsc_error *err)
{
    dsc_config *config = NULL;
    *section = (dsc_sft_section)DSC_SFT_SECTION_INIT;
    snprintf(tokenizer, DSC_CONFIG_TEXT, "%s", s->tokenizer != NULL ? s->tokenizer : "");
    if (s->config == NULL)
        return s->tokenizer != NULL ? DSC_OK
                                    : DSC_FAIL(err, DSC_ERR_INPUT, "--model", "is missing; give the model folder, or "
                                               "--config with one");
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *config, &config, err));
    dsc_status status = dsc_config_load(alloc, s->config, NULL, 0, false, config, err);
    if (status == DSC_OK) {
        *section = config->own.sft;
        *sequence = *sequence > 0 ? *sequence : config->own.seq_length;
        if (s->tokenizer == NULL)
            status = find_tokenizer(&config->own, tokenizer, DSC_CONFIG_TEXT, err);
    }
    dsc_alloc_free(alloc, config);
    return status;
}

/* ---- Render ---- */

static dsc_status add_numbers(dsc_text *out, const char *name, const int32_t *numbers, int64_t count, dsc_error *err)
{
    char text[32];
    DSC_TRY(dsc_json_out_raw(out, name, err));
    for (int64_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s%d", i > 0 ? "," : "", (int)numbers[i]);
        DSC_TRY(dsc_json_out_raw(out, text, err));
    }
    return DSC_OK;
}

static dsc_status print_example(const dsc_sft_example *example, dsc_encoder *encoder, dsc_text *out, dsc_error *err)
{
    const char *text = example->text;
    int64_t bytes = example->text_bytes;
    char line[64];
    out->bytes = 0;
    if (text == NULL)
        DSC_TRY(dsc_decode(encoder, example->ids, example->count, false, &text, &bytes, err));
    snprintf(line, sizeof line, "{\"line\":%lld,", (long long)example->line);
    DSC_TRY(dsc_json_out_raw(out, line, err));
    snprintf(line, sizeof line, "\"side\":\"%s\",", dsc_sft_side_text(example->side));
    DSC_TRY(dsc_json_out_raw(out, example->side != DSC_SFT_ONLY ? line : "", err));
    DSC_TRY(dsc_json_out_raw(out, "\"text\":", err));
    DSC_TRY(dsc_json_out_text(out, text, bytes, err));
    DSC_TRY(add_numbers(out, ",\"tokens\":[", example->ids, example->count, err));
    DSC_TRY(add_numbers(out, "],\"mask\":[", example->counted, example->count, err));
    DSC_TRY(dsc_json_out_raw(out, "]}\n", err));
    (void)!fwrite(out->ptr, 1, (size_t)out->bytes, stdout); /* dsc_tool_end asks whether that went well */
    return DSC_OK;
}

static void report(const dsc_sft_reader *reader, const char *path)
{
    const dsc_sft_counts counts = dsc_sft_reader_counts(reader);
    char what[1300];
    fprintf(stderr, "%s: %s; %lld examples, %lld tokens, %lld counted\n", path,
            dsc_sft_reader_describe(reader, what, sizeof what), (long long)counts.examples, (long long)counts.tokens,
            (long long)counts.counted_tokens);
    if (counts.replaced > 0)
        fprintf(stderr, "%s: the template renders %lld earlier answers in another way than a last one; their content "
                "and end token count\n", path, (long long)counts.replaced);
    if (counts.in_parts > 0)
        fprintf(stderr, "%s: %lld examples have characters that the tokenizer changes; their answers are encoded apart "
                "from the text around\n", path, (long long)counts.in_parts);
}

static dsc_status print_examples(dsc_alloc *alloc, const dsc_sft_options *options, int64_t most, dsc_error *err)
{
    dsc_sft_reader *reader = NULL;
    dsc_encoder *encoder = NULL;
    dsc_text out = { .alloc = alloc };
    dsc_sft_example example = { .side = DSC_SFT_ONLY };
    bool found = true;
    dsc_status status = dsc_sft_reader_open(options, &reader, err);
    if (status == DSC_OK)
        status = dsc_encoder_open(&encoder, options->tokenizer, err);
    for (int64_t i = 0; status == DSC_OK && found && (most == 0 || i < most); i += example.side != DSC_SFT_CHOSEN) {
        status = dsc_sft_reader_next(reader, &found, &example, err);
        if (status == DSC_OK && found)
            status = print_example(&example, encoder, &out, err);
    }
    if (status == DSC_OK)
        report(reader, options->path);
    dsc_encoder_close(&encoder);
    dsc_sft_reader_close(&reader);
    dsc_text_free(&out);
    return status;
}

static dsc_status render(dsc_alloc *alloc, const render_settings *s, dsc_error *err)
{
    dsc_sft_section section;
    dsc_tokenizer *tokenizer = NULL;
    char path[DSC_CONFIG_TEXT];
    int64_t sequence = 0;
    DSC_TRY(dsc_data_read_settings(alloc, &s->examples, &section, path, &sequence, err));
    dsc_status status = dsc_tokenizer_open(&tokenizer, path, err);
    const dsc_sft_options options = { .alloc = alloc, .path = s->examples.path, .tokenizer_path = path,
                                      .tokenizer = tokenizer, .section = &section, .now_s = (int64_t)time(NULL) };
    if (status == DSC_OK)
        status = print_examples(alloc, &options, s->count, err);
    dsc_tokenizer_close(&tokenizer);
    return status;
}

int dsc_data_render(int argc, char **argv)
{
    render_settings s = { .count = 0 };
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const int code = dsc_tool_parse(&dsc_data_render_page, argc, argv, &s);
    if (code >= 0)
        return code;
    dsc_status status = dsc_alloc_open(&alloc, &err);
    if (status == DSC_OK)
        status = render(alloc, &s, &err);
    dsc_alloc_close(&alloc);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
