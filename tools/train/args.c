/* args.c - one table of flags; each is a key of the config that it beats. SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char train_usage[] =
    "usage: train --config FILE [flags]\n"
    "\n"
    "  --config FILE, --deepspeed_config FILE   the ds_config.json (default: the preset of --strategy)\n"
    "  --strategy ddp|fsdp_stage2|fsdp_stage3   preset; with --config it sets zero_optimization.stage to 1, 2 or 3\n"
    "  --model, --model-type NAME|HF_DIR|FILE.json\n"
    "  --data PATH...           text, *.jsonl, *.bin (uint16, llm.c's, Megatron's); may be repeated\n"
    "  --eval-data PATH...      likewise, for the validation loss\n"
    "  --tokenizer DIR|FILE     for text and *.jsonl; without: the model folder's, else a byte is a token\n"
    "  --seq-len T              tokens of a sample\n"
    "  --steps N                the step at which the run ends;  --epochs N instead\n"
    "  --batch-size M           micro-batch per rank;  --gradient-accumulation-steps G;  --learning-rate X\n"
    "  --save DIR               --save-every N, --load DIR|DIR/step-N|latest|auto\n"
    "  --save-async             checkpoints are written while training goes on\n"
    "  --save-failure go_on|stop  what a failed save does to the run\n"
    "  --keep-last N            after a save the newest N stay;  --keep-every M: and every multiple of M\n"
    "  --seed S                 --no-shuffle, --log FILE.jsonl, --device auto|cpu|cuda\n"
    "  --comm NAME              between ranks: auto, shm (one host), tcp, gloo or mpi (several), nccl (GPUs)\n"
    "  --sample TEXT            at the end, let the model continue TEXT;  --curve draws the loss\n"
    "  --strict                 warnings of the config are errors\n"
    "  --deepspeed, --local_rank N are accepted and ignored; --version, --help\n"
    "\n"
    "Start several ranks with: dsc-launch --num_gpus=4 train --config FILE\n";

typedef enum flag_kind { FLAG_TEXT, FLAG_INTEGER, FLAG_NUMBER, FLAG_PATHS, FLAG_OWN, FLAG_BARE } flag_kind;

typedef struct flag {
    const char *name;
    flag_kind kind;
    const char *key; /* config key; NULL for FLAG_OWN and FLAG_BARE */
} flag;

static const flag flags[] = {
    { "--config", FLAG_OWN, NULL },
    { "--deepspeed_config", FLAG_OWN, NULL },
    { "--strategy", FLAG_OWN, NULL },
    { "--local_rank", FLAG_OWN, NULL },
    { "--local-rank", FLAG_OWN, NULL },
    { "--sample", FLAG_OWN, NULL },
    { "--model", FLAG_TEXT, "dsc.model" },
    { "--model-type", FLAG_TEXT, "dsc.model" },
    { "--data", FLAG_PATHS, "dsc.data" },
    { "--eval-data", FLAG_PATHS, "dsc.eval_data" },
    { "--tokenizer", FLAG_TEXT, "dsc.tokenizer" },
    { "--seq-len", FLAG_INTEGER, "dsc.seq_length" },
    { "--steps", FLAG_INTEGER, "dsc.steps" },
    { "--epochs", FLAG_INTEGER, "dsc.epochs" },
    { "--batch-size", FLAG_INTEGER, "train_micro_batch_size_per_gpu" },
    { "--gradient-accumulation-steps", FLAG_INTEGER, "gradient_accumulation_steps" },
    { "--learning-rate", FLAG_NUMBER, "optimizer.params.lr" },
    { "--save", FLAG_TEXT, "dsc.save" },
    { "--save-every", FLAG_INTEGER, "dsc.save_every" },
    { "--keep-last", FLAG_INTEGER, "dsc.keep_last" },
    { "--keep-every", FLAG_INTEGER, "dsc.keep_every" },
    { "--save-failure", FLAG_TEXT, "dsc.save_failure" },
    { "--load", FLAG_TEXT, "dsc.load" },
    { "--save-async", FLAG_BARE, NULL },
    { "--seed", FLAG_INTEGER, "seed" },
    { "--log", FLAG_TEXT, "dsc.log" },
    { "--device", FLAG_TEXT, "dsc.device" },
    { "--comm", FLAG_TEXT, "dsc.comm" },
    { "--no-shuffle", FLAG_BARE, NULL },
    { "--deepspeed", FLAG_BARE, NULL },
    { "--curve", FLAG_BARE, NULL },
    { "--strict", FLAG_BARE, NULL },
    { "--help", FLAG_BARE, NULL },
    { "-h", FLAG_BARE, NULL },
    { "--version", FLAG_BARE, NULL },
};
#define FLAG_COUNT (sizeof flags / sizeof flags[0])

/* Quotes text as JSON into out; false when it does not fit. */
static bool quote(char *out, size_t out_bytes, const char *text)
{
    size_t at = 0;
    for (const unsigned char *c = (const unsigned char *)text;; c++) {
        char piece[8];
        if (c == (const unsigned char *)text && at == 0)
            out[at++] = '"';
        if (*c == 0)
            break;
        if (*c == '"' || *c == '\\')
            snprintf(piece, sizeof piece, "\\%c", *c);
        else if (*c < 0x20)
            snprintf(piece, sizeof piece, "\\u%04x", *c);
        else
            snprintf(piece, sizeof piece, "%c", *c);
        const size_t length = strlen(piece);
        if (at + length + 2 > out_bytes)
            return false;
        memcpy(out + at, piece, length);
        at += length;
    }
    out[at++] = '"';
    out[at] = 0;
    return true;
}

static dsc_override *find_override(train_args *args, const char *key)
{
    for (int32_t i = 0; i < args->override_count; i++)
        if (strcmp(args->overrides[i].key, key) == 0)
            return &args->overrides[i];
    return NULL;
}

/* The last of two equal flags wins, as everywhere on a command line. */
static dsc_status set_override(train_args *args, const char *key, const char *json, const char *name, dsc_error *err)
{
    dsc_override *override = find_override(args, key);
    if (override == NULL) {
        if (args->override_count == TRAIN_OVERRIDES_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, name, "too many flags");
        override = &args->overrides[args->override_count];
        override->key = key;
        override->json = args->json[args->override_count];
        args->override_count++;
    }
    char *text = args->json[override - args->overrides];
    if ((size_t)snprintf(text, sizeof args->json[0], "%s", json) >= sizeof args->json[0])
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "value is too long");
    override->flag = name;
    return DSC_OK;
}

static dsc_status set_text(train_args *args, const flag *f, const char *value, dsc_error *err)
{
    char json[8192];
    if (value[0] == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "an empty value");
    if (!quote(json, sizeof json, value))
        return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "value is too long");
    return set_override(args, f->key, json, f->name, err);
}

static dsc_status set_number(train_args *args, const flag *f, const char *value, dsc_error *err)
{
    char *end = NULL;
    const double number = strtod(value, &end);
    const bool plain = value[0] != 0 && strspn(value, "0123456789+-.eE") == strlen(value);
    if (!plain || *end != 0 || !(number > -1e300 && number < 1e300))
        return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "\"%s\" is not a number", value);
    if (f->kind == FLAG_INTEGER) {
        char json[32];
        if (number != (double)(long long)number || number > 9e15 || number < -9e15)
            return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "\"%s\" is not a whole number", value);
        snprintf(json, sizeof json, "%lld", (long long)number);
        return set_override(args, f->key, json, f->name, err);
    }
    char json[40];
    snprintf(json, sizeof json, "%.17g", number);
    return set_override(args, f->key, json, f->name, err);
}

/* Appends to the list that the flag's earlier uses started. */
static dsc_status add_path(train_args *args, const flag *f, const char *value, dsc_error *err)
{
    char quoted[8192], json[sizeof args->json[0]];
    const dsc_override *before = find_override(args, f->key);
    if (value[0] == 0 || !quote(quoted, sizeof quoted, value))
        return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "the path is empty or too long");
    int length;
    if (before == NULL)
        length = snprintf(json, sizeof json, "[%s]", quoted);
    else
        length = snprintf(json, sizeof json, "%.*s, %s]", (int)strlen(before->json) - 1, before->json, quoted);
    if (length < 0 || (size_t)length >= sizeof json)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "too many paths");
    return set_override(args, f->key, json, f->name, err);
}

typedef struct strategy { const char *name, *preset, *stage; } strategy;
static const strategy strategies[] = {
    { "ddp", "ds_config_ddp.json", "1" },
    { "fsdp_stage2", "ds_config_fsdp_stage2.json", "2" },
    { "fsdp_stage3", "ds_config_fsdp_stage3.json", "3" },
};

static dsc_status find_preset(const char *exe_dir, const char *file, train_args *args, dsc_error *err)
{
    static const char *const places[] = { "../configs", "../share/dsc/configs" };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int length = snprintf(args->config, sizeof args->config, "%s/%s/%s", exe_dir, places[i], file);
        if (length > 0 && (size_t)length < sizeof args->config && access(args->config, R_OK) == 0)
            return DSC_OK;
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, "--config", "not given, and the preset %s is not installed beside this program",
                    file);
}

static dsc_status apply_strategy(const char *name, const char *exe_dir, train_args *args, dsc_error *err)
{
    const strategy *found = name == NULL ? &strategies[0] : NULL;
    for (size_t i = 0; name != NULL && i < sizeof strategies / sizeof strategies[0]; i++)
        if (strcmp(strategies[i].name, name) == 0)
            found = &strategies[i];
    if (found == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--strategy", "\"%.60s\" is unknown; expected ddp, fsdp_stage2 or "
                        "fsdp_stage3", name);
    if (!args->config_given)
        return find_preset(exe_dir, found->preset, args, err);
    return name == NULL ? DSC_OK : set_override(args, "zero_optimization.stage", found->stage, "--strategy", err);
}

static const flag *find_flag(const char *text, size_t length)
{
    for (size_t i = 0; i < FLAG_COUNT; i++)
        if (strlen(flags[i].name) == length && strncmp(flags[i].name, text, length) == 0)
            return &flags[i];
    return NULL;
}

static dsc_status set_own(train_args *args, const flag *f, const char *value, const char **strategy_name,
                          dsc_error *err)
{
    if (strcmp(f->name, "--strategy") == 0) {
        *strategy_name = value;
    } else if (strcmp(f->name, "--sample") == 0) {
        args->prompt = value;
    } else if (f->name[2] == 'l') { /* --local_rank: checked, and ignored */
        char *end = NULL;
        const long rank = strtol(value, &end, 10);
        if (value[0] == 0 || *end != 0 || rank < -1 || rank > INT_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "\"%.60s\" is not a rank", value);
    } else { /* --config, --deepspeed_config */
        if (value[0] == 0 || strlen(value) >= sizeof args->config)
            return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "the path is empty or too long");
        snprintf(args->config, sizeof args->config, "%s", value);
        args->config_given = true;
    }
    return DSC_OK;
}

static dsc_status set_bare(train_args *args, const flag *f, dsc_error *err)
{
    if (strcmp(f->name, "--no-shuffle") == 0)
        return set_override(args, "dsc.shuffle", "false", f->name, err);
    if (strcmp(f->name, "--save-async") == 0)
        return set_override(args, "dsc.save_async", "true", f->name, err);
    args->strict = args->strict || strcmp(f->name, "--strict") == 0;
    args->curve = args->curve || strcmp(f->name, "--curve") == 0;
    args->help = args->help || strcmp(f->name, "--help") == 0 || strcmp(f->name, "-h") == 0;
    args->version = args->version || strcmp(f->name, "--version") == 0;
    return DSC_OK;
}

static dsc_status set_value(train_args *args, const flag *f, const char *value, const char **strategy_name,
                            dsc_error *err)
{
    switch (f->kind) {
    case FLAG_TEXT: return set_text(args, f, value, err);
    case FLAG_INTEGER:
    case FLAG_NUMBER: return set_number(args, f, value, err);
    case FLAG_PATHS: return add_path(args, f, value, err);
    case FLAG_OWN: return set_own(args, f, value, strategy_name, err);
    case FLAG_BARE: break;
    }
    return DSC_OK;
}

static bool is_flag(const char *text) { return text[0] == '-' && text[1] == '-'; }

dsc_status train_args_parse(int argc, char **argv, const char *exe_dir, train_args *out, dsc_error *err)
{
    const char *strategy_name = NULL;
    out->load = out->save = "";
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        const size_t length = equals != NULL && is_flag(argv[i]) ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const flag *f = find_flag(argv[i], length);
        if (f == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, argv[i], "unknown argument; `train --help` lists the flags");
        if (f->kind == FLAG_BARE) {
            if (length != strlen(argv[i]))
                return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "takes no value");
            DSC_TRY(set_bare(out, f, err));
            continue;
        }
        const bool inside = length != strlen(argv[i]);
        if (!inside && i + 1 >= argc)
            return DSC_FAIL(err, DSC_ERR_INPUT, f->name, "needs a value");
        const char *value = inside ? equals + 1 : argv[++i];
        DSC_TRY(set_value(out, f, value, &strategy_name, err));
        /* --data takes all paths up to the next flag. */
        while (f->kind == FLAG_PATHS && !inside && i + 1 < argc && !is_flag(argv[i + 1]))
            DSC_TRY(add_path(out, f, argv[++i], err));
    }
    if (out->help || out->version)
        return DSC_OK;
    return apply_strategy(strategy_name, exe_dir, out, err);
}
