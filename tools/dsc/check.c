/* check.c - `dsc check --kind KIND FILE`: is this input file what the programs would accept?
 *
 * Exit code 0 and nothing printed, or 2 and one line. Opens nothing else and starts nothing. A kind is one row.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dsc/text.h>

#include "base/formats/safetensors.h"
#include "base/hosts/envfile.h"
#include "base/hosts/hostfile.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/config/config.h"
#include "engine/data/data.h"
#include "tools/dsc/tool.h"

typedef struct check_kind {
    const char *name;
    /* NULL: not built. vocab_size 0: not given */
    dsc_status (*check)(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err);
    bool has_vocab;
} check_kind;

static dsc_status check_config(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    const dsc_config_facts nothing_known = { 0 };
    dsc_config *config = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *config, &config, err));
    dsc_status status = dsc_config_load(alloc, path, NULL, 0, false, config, err);
    if (status == DSC_OK)
        status = dsc_config_resolve(config, &nothing_known, err);
    if (status == DSC_OK)
        status = dsc_config_built(config, err);
    dsc_alloc_free(alloc, config);
    return status;
}

static dsc_status check_safetensors(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    dsc_safetensors *st = NULL;
    DSC_TRY(dsc_safetensors_open(&st, NULL, alloc, path, err));
    dsc_safetensors_close(&st);
    return DSC_OK;
}

static dsc_status check_hostfile(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    dsc_host_pool pool = DSC_HOST_POOL_INIT;
    const dsc_status status = dsc_hostfile_read(alloc, path, &pool, err);
    dsc_host_pool_close(&pool);
    return status;
}

static dsc_status check_envfile(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    return dsc_envfile_read(alloc, path, NULL, NULL, err);
}

static dsc_status check_latest(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    char name[64];
    return dsc_ckpt_read_latest(NULL, alloc, path, name, err);
}

static dsc_status check_tokenizer(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    dsc_tokenizer *tokenizer = NULL;
    DSC_TRY(dsc_tokenizer_open(&tokenizer, path, err));
    dsc_tokenizer_close(&tokenizer);
    return DSC_OK;
}

static dsc_status check_tokens_llmc(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    int64_t tokens;
    return dsc_data_check(NULL, alloc, path, DSC_TOKENS_LLMC, vocab_size, &tokens, err);
}

static dsc_status check_tokens_raw(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    int64_t tokens;
    return dsc_data_check(NULL, alloc, path, DSC_TOKENS_RAW_U16, vocab_size, &tokens, err);
}

static dsc_status check_tokens_mmidx(dsc_alloc *alloc, const char *path, int64_t vocab_size, dsc_error *err)
{
    int64_t tokens;
    return dsc_data_check(NULL, alloc, path, DSC_TOKENS_MMIDX, vocab_size, &tokens, err);
}

static const check_kind kinds[] = {
    { "config", check_config, false },
    { "safetensors", check_safetensors, false },
    { "hostfile", check_hostfile, false },
    { "envfile", check_envfile, false },
    { "latest", check_latest, false },
    { "tokenizer", check_tokenizer, false },
    { "tokens-llmc", check_tokens_llmc, true },
    { "tokens-raw", check_tokens_raw, true },
    { "tokens-mmidx", check_tokens_mmidx, true },
};

typedef struct check_args {
    const char *kind, *path;
    int64_t vocab_size; /* 0: tokens are not read */
} check_args;

#define AT(field) offsetof(check_args, field)
static const dsc_flag rows[] = {
    { "--kind", NULL, "KIND", DSC_FLAG_TEXT, AT(kind), .required = true,
      .help = "format of the file: config, safetensors, hostfile, envfile, latest, tokenizer, tokens-llmc, "
              "tokens-raw or "
              "tokens-mmidx" },
    { "--vocab-size", NULL, "V", DSC_FLAG_INTEGER, AT(vocab_size), .min = 1, .max = 1 << 24,
      .help = "with a token file: also read every token, and refuse an id of V or above" },
};
static const dsc_positional files[] = { { "FILE", "the file to validate", "file", AT(path), 1, 1 } };
static const dsc_flag_command page = {
    .name = "dsc check",
    .description = "Validates one input file as the programs would read it. Opens and starts nothing else.",
    .flags = rows, .flag_count = DSC_COUNT(rows), .positionals = files, .positional_count = 1,
    .exit_codes = "0 valid; 2 not valid, with one line that gives the reason",
};

static int wrong(const char *where, const char *problem)
{
    char names[256];
    size_t used = 0;
    for (size_t i = 0; i < DSC_COUNT(kinds); i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", kinds[i].name);
    return dsc_tool_usage(where, "%s; the kinds: %s", problem, names);
}

int dsc_cmd_check(int argc, char **argv)
{
    check_args args = { 0 };
    const int code = dsc_tool_parse(&page, argc, argv, &args);
    if (code >= 0)
        return code;
    for (size_t i = 0; i < DSC_COUNT(kinds); i++) {
        dsc_error err = DSC_ERROR_INIT;
        dsc_alloc *alloc = NULL;
        if (strcmp(kinds[i].name, args.kind) != 0)
            continue;
        if (args.vocab_size > 0 && !kinds[i].has_vocab)
            return wrong("--vocab-size", "only token files have one");
        if (dsc_alloc_open(&alloc, &err) != DSC_OK)
            return dsc_tool_fail(&err);
        const dsc_status status = kinds[i].check(alloc, args.path, args.vocab_size, &err);
        dsc_alloc_close(&alloc);
        return status == DSC_OK ? 0 : dsc_tool_fail(&err);
    }
    return wrong(args.kind, "no such kind");
}
