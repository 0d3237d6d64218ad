/* args.c - one table of flags. Most are keys of the config, whose value in the file they override.
 * SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/flags.h"
#include "base/formats/json.h"
#include "tools/strategies.h"

static dsc_override *find_override(train_args *args, const char *key)
{
    for (int32_t i = 0; i < args->override_count; i++)
        if (strcmp(args->overrides[i].key, key) == 0)
            return &args->overrides[i];
    return NULL;
}

/* The last of two equal flags counts, as everywhere on a command line. */
static dsc_status set_override(train_args *args, const char *key, const char *json, const char *name, dsc_error *err)
{
    dsc_override *override = find_override(args, key);
    if (override == NULL) {
        DSC_ASSERT(args->override_count < TRAIN_OVERRIDES_MAX); /* more than the table has keys */
        override = &args->overrides[args->override_count];
        override->key = key;
        override->json = args->json[args->override_count];
        args->override_count++;
    }
    char *text = args->json[override - args->overrides];
    if ((size_t)snprintf(text, sizeof args->json[0], "%s", json) >= sizeof args->json[0])
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "the value is too long; expected at most %zu bytes",
                        sizeof args->json[0] - 1);
    override->flag = name;
    return DSC_OK;
}

dsc_status train_args_set_number(train_args *args, const char *key, int64_t value, const char *name, dsc_error *err)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return set_override(args, key, text, name, err);
}

/* ---- values ---- */

static dsc_status set_text(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    char json[8192];
    if (value[0] == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "the value is empty; expected %s", flag->value);
    if (dsc_json_quote(json, sizeof json, value) >= sizeof json)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "the value is too long; expected at most %zu bytes as JSON",
                        sizeof json - 1);
    return set_override(out, flag->key, json, flag->name, err);
}

/* Integers of the config may be written as 1e3 too. */
static dsc_status read_number(const dsc_flag *flag, const char *value, double *out, dsc_error *err)
{
    char *end = NULL;
    *out = strtod(value, &end);
    const bool plain = value[0] != 0 && strspn(value, "0123456789+-.eE") == strlen(value);
    if (plain && *end == 0 && *out > -1e300 && *out < 1e300)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.60s\" is not a number; expected %s", value, flag->value);
}

static dsc_status set_number(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    double number;
    char json[40];
    DSC_TRY(read_number(flag, value, &number, err));
    snprintf(json, sizeof json, "%.17g", number);
    return set_override(out, flag->key, json, flag->name, err);
}

static dsc_status set_whole(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    double number;
    char json[32];
    DSC_TRY(read_number(flag, value, &number, err));
    if (number > 9e15 || number < -9e15 || number != (double)(long long)number)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.60s\" is not a whole number; expected %s", value,
                        flag->value);
    snprintf(json, sizeof json, "%lld", (long long)number);
    return set_override(out, flag->key, json, flag->name, err);
}

/* Room for `more` bytes; a list grows with the command line. */
static bool reserve(struct train_list *list, size_t more)
{
    if (list->bytes + more <= list->room)
        return true;
    const size_t room = 2 * (list->bytes + more);
    char *json = realloc(list->json, room);
    if (json == NULL)
        return false;
    list->json = json;
    list->room = room;
    return true;
}

/* Appends to the list that the flag's earlier uses started. */
static dsc_status add_path(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    train_args *args = out;
    struct train_list *list = &args->lists[strcmp(flag->key, "dsc.data") != 0];
    char quoted[6 * PATH_MAX]; /* a byte takes at most 6 in JSON */
    if (value[0] == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "the value is empty; expected %s", flag->value);
    if (strlen(value) >= PATH_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "the path is too long; expected at most %d bytes",
                        PATH_MAX - 1);
    const size_t length = dsc_json_quote(quoted, sizeof quoted, value);
    if (!reserve(list, length + sizeof ", []"))
        return DSC_FAIL(err, DSC_ERR_NOMEM, flag->name, "no memory for the list of paths");
    if (list->bytes > 0)
        list->bytes--; /* the bracket at the end */
    const int added =
        snprintf(list->json + list->bytes, list->room - list->bytes, "%s%s]", list->bytes > 0 ? ", " : "[", quoted);
    list->bytes += (size_t)added;
    DSC_ASSERT(list->bytes < list->room);
    DSC_TRY(set_override(args, flag->key, "[]", flag->name, err));
    find_override(args, flag->key)->json = list->json;
    return DSC_OK;
}

static dsc_status set_false(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    return set_override(out, flag->key, "false", flag->name, err);
}

static dsc_status set_true(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    return set_override(out, flag->key, "true", flag->name, err);
}

/* ---- the table ---- */

/* A flag of the same meaning in other programs. */
static dsc_status name_key(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    (void)out, (void)value;
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "unknown flag; set %s in the config instead", flag->key);
}

static dsc_status name_ours(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    (void)out, (void)value;
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "unknown flag; give %s instead", flag->key);
}

#define STRATEGY_NAME(name, preset, stage) name,
static const char *const strategy_names[] = { DSC_STRATEGY_MAP(STRATEGY_NAME) NULL };

static dsc_status name_best(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    (void)out, (void)value;
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "unknown flag; dsc.eval_every in the config, beside --save DIR, "
                    "names the checkpoint of the lowest validation loss in DIR/best, and --load DIR/best loads it");
}

#define AT(field) offsetof(train_args, field)
#define OTHERS(name, ours) { name, NULL, "VALUE", DSC_FLAG_CALL, 0, .set = name_ours, .key = ours }
#define KEYS(name, keys)                                                                                               \
    {                                                                                                                  \
        name, NULL, "VALUE", DSC_FLAG_CALL, 0, .set = name_key, .key = keys                                            \
    }
#define SWITCHES(name, keys)                                                                                           \
    {                                                                                                                  \
        name, NULL, NULL, DSC_FLAG_SWITCH, 0, .set = name_key, .key = keys                                             \
    }
#define TEXT(name, value, config_key, text) \
    { name, NULL, value, DSC_FLAG_CALL, 0, .set = set_text, .key = config_key, .help = text }
#define WHOLE(name, value, config_key, text) \
    { name, NULL, value, DSC_FLAG_CALL, 0, .set = set_whole, .key = config_key, .help = text }
#define PATHS(name, config_key, text) \
    { name, NULL, "PATH", DSC_FLAG_CALL, 0, .set = add_path, .key = config_key, .greedy = true, .help = text }

static const dsc_flag flags[] = {
    { "--config", "--deepspeed_config", "FILE", DSC_FLAG_TEXT, AT(config),
      .help = "the ds_config.json; default: the preset of --strategy" },
    { "--strategy", NULL, "NAME", DSC_FLAG_CHOICE, AT(strategy), .choices = strategy_names,
      .help = "ddp (default), fsdp_stage2 or fsdp_stage3: a preset; with --config only its zero_optimization.stage: "
              "1, 2 or 3" },
    TEXT("--model", "NAME|DIR|FILE", "dsc.model",
         "built-in model, folder of a Hugging Face model, or its config as JSON file; --model-type is the same"),
    TEXT("--model-type", "NAME", "dsc.model", NULL),
    PATHS("--data", "dsc.data", "text, JSON, CSV, TSV, or *.bin (uint16 tokens, llm.c, Megatron); takes several paths"),
    PATHS("--eval-data", "dsc.eval_data", "data of the validation loss, as --data"),
    TEXT("--tokenizer", "DIR|FILE", "dsc.tokenizer",
         "tokenizer of texts and documents; default: the one of the model folder, else each byte is a token"),
    WHOLE("--seq-len", "T", "dsc.seq_length", "tokens of a sample"),
    WHOLE("--steps", "N", "dsc.steps", "the step at which the run ends, also after --load; default: one epoch"),
    WHOLE("--epochs", "N", "dsc.epochs", "passes over the data, instead of --steps"),
    WHOLE("--batch-size", "M", "train_micro_batch_size_per_gpu", "samples of a micro-batch, for each rank"),
    WHOLE("--pipeline-ranks", "P", "dsc.grid.pipeline", "stages of modules, each on ranks of its own"),
    WHOLE("--tensor-ranks", "T", "dsc.grid.tensor", "ranks that compute each block together, with a part of it each"),
    WHOLE("--gradient-accumulation-steps", "G", "gradient_accumulation_steps", "micro-batches of a step"),
    { "--learning-rate", NULL, "X", DSC_FLAG_CALL, 0, .set = set_number, .key = "optimizer.params.lr",
      .help = "the optimizer's rate" },
    TEXT("--save", "DIR", "dsc.save", "save checkpoints below this folder, at least one at the end"),
    WHOLE("--save-every", "N", "dsc.save_every", "save after every N steps too"),
    WHOLE("--keep-last", "N", "dsc.keep_last",
          "after a save, remove all checkpoints but the newest N and the best one"),
    WHOLE("--keep-every", "M", "dsc.keep_every", "with --keep-last: keep each step that is a multiple of M too"),
    TEXT("--save-failure", "go_on|stop", "dsc.save_failure", "effect of a failed save on the run"),
    { "--save-async", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = set_true, .key = "dsc.save_async",
      .help = "write checkpoints while training goes on" },
    TEXT("--load", "DIR|auto", "dsc.load",
         "start from the latest checkpoint of DIR, or DIR/best, or DIR/step-N; auto: the latest of --save, if any"),
    WHOLE("--seed", "S", "seed", "seed of the first values, of the order of samples and of dropout"),
    { "--no-shuffle", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = set_false, .key = "dsc.shuffle",
      .help = "take the samples in the order of the files" },
    { "--load-in-4bit", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = set_true, .key = "dsc.quantize_base.double_quant",
      .help = "beside dsc.lora: keep the frozen weights of linear layers in 4 bits (QLoRA)" },
    TEXT("--log", "FILE.jsonl", "dsc.log", "write one JSON object per step"),
    TEXT("--device", "NAME", "dsc.device", "auto, cpu or cuda"),
    TEXT("--comm", "NAME", "dsc.comm",
         "transport between ranks: auto, shm (one host), tcp, hier, gloo or mpi (several hosts), nccl (GPUs)"),
    { "--sample", NULL, "TEXT", DSC_FLAG_TEXT, AT(prompt), .allow_empty = true,
      .help = "at the end, print how the model continues TEXT" },
    { "--curve", NULL, NULL, DSC_FLAG_BOOL, AT(curve), .help = "at the end, draw the loss over the steps" },
    { "--strict", NULL, NULL, DSC_FLAG_BOOL, AT(strict), .help = "warnings of the config are errors" },
    { "--deepspeed", NULL, NULL, DSC_FLAG_BOOL, AT(deepspeed),
      .help = "accepted and ignored; --deepspeed FILE is --config FILE, as in the Trainer" },
    { "--local_rank", NULL, "N", DSC_FLAG_INTEGER, AT(local_rank), .min = -1, .max = INT_MAX,
      .help = "accepted and ignored" },
    { "--version", NULL, NULL, DSC_FLAG_BOOL, AT(version), .ends = true, .help = "print the version" },
    OTHERS("--per_device_train_batch_size", "--batch-size"), /* names of the Hugging Face Trainer */
    OTHERS("--num_train_epochs", "--epochs"),
    OTHERS("--max_steps", "--steps"),
    OTHERS("--output_dir", "--save"),
    OTHERS("--save_steps", "--save-every"),
    OTHERS("--save_total_limit", "--keep-last"),
    { "--load_best_model_at_end", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = name_best },
    { "--metric_for_best_model", NULL, "VALUE", DSC_FLAG_CALL, 0, .set = name_best },
    OTHERS("--resume_from_checkpoint", "--load"),
    OTHERS("--model_name_or_path", "--model"),
    OTHERS("--tokenizer_name", "--tokenizer"),
    OTHERS("--train_file", "--data"),
    OTHERS("--validation_file", "--eval-data"),
    OTHERS("--dataset_name", "--data with files"),
    OTHERS("--block_size", "--seq-len"),
    OTHERS("--max_length", "--seq-len"),
    OTHERS("--max_seq_length", "--seq-len"),
    OTHERS("--model_max_length", "--seq-len"),
    OTHERS("--data_seed", "--seed"),
    OTHERS("--logging_dir", "--log"),
    KEYS("--per_device_eval_batch_size", "dsc.eval_batches; an evaluation has the run's micro-batch"),
    KEYS("--eval_steps", "dsc.eval_every"),
    KEYS("--logging_steps", "steps_per_print"),
    KEYS("--weight_decay", "optimizer.params.weight_decay"),
    KEYS("--max_grad_norm", "gradient_clipping"),
    KEYS("--warmup_steps", "dsc.lr_warmup_steps"),
    KEYS("--lr_scheduler_type", "dsc.lr_schedule"),
    KEYS("--optim", "optimizer.type"),
    KEYS("--adam_beta1", "optimizer.params.betas"),
    KEYS("--adam_beta2", "optimizer.params.betas"),
    KEYS("--adam_epsilon", "optimizer.params.eps"),
    KEYS("--lora_r", "dsc.lora.r"),
    KEYS("--lora_alpha", "dsc.lora.alpha"),
    KEYS("--report_to", "wandb, tensorboard, csv_monitor or comet"),
    KEYS("--zero_stage", "zero_optimization.stage"),
    KEYS("--offload", "zero_optimization.offload_optimizer"),
    SWITCHES("--bf16", "bf16.enabled"),
    SWITCHES("--fp16", "fp16.enabled"),
    SWITCHES("--gradient_checkpointing", "dsc.recompute"),
};
static const dsc_flag_command page = {
    .name = "train",
    .description = "Trains a model as one rank of a run. Each flag overrides its value in the config, and '-' equals "
                   "'_' inside a flag.",
    .usage = "--config FILE [flags]",
    .flags = flags, .flag_count = DSC_COUNT(flags),
    .notes = "Several ranks: dsc-launch --num_gpus=4 train --config FILE\n"
             "Keys of the config: dsc config explain",
    .exit_codes = "0 done; 1 failed; 2 wrong command line, config, model, data or checkpoint; 3 does not fit; "
                  "4 another rank or host was lost; 5 stuck; 130, 143 and 129 ended by Ctrl-C, SIGTERM "
                  "and SIGHUP, with --save after a save",
};

void train_args_help(FILE *to)
{
    char text[8192];
    DSC_ASSERT(dsc_flags_help(&page, text, sizeof text) < sizeof text);
    fputs(text, to);
}

/* ---- the strategy ---- */

static dsc_status find_preset(const char *exe_dir, const char *file, train_args *args, dsc_error *err)
{
    static const char *const places[] = { "../configs", "../share/dsc/configs" };
    for (size_t i = 0; i < DSC_COUNT(places); i++) {
        const int length = snprintf(args->preset, sizeof args->preset, "%s/%s/%s", exe_dir, places[i], file);
        if (length > 0 && (size_t)length < sizeof args->preset && access(args->preset, R_OK) == 0) {
            args->config = args->preset;
            return DSC_OK;
        }
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, "--config", "not given, and the preset %s is not installed beside this program",
                    file);
}

static dsc_status apply_strategy(const char *exe_dir, train_args *args, dsc_error *err)
{
    const dsc_strategy *strategy = &dsc_strategies[0];
    for (size_t i = 0; args->strategy != NULL && i < DSC_STRATEGY_COUNT; i++)
        if (strcmp(dsc_strategies[i].name, args->strategy) == 0)
            strategy = &dsc_strategies[i];
    if (args->config == NULL)
        return find_preset(exe_dir, strategy->preset, args, err);
    if (args->strategy == NULL)
        return DSC_OK;
    return set_override(args, "zero_optimization.stage", strategy->stage, "--strategy", err);
}

/* "--deepspeed FILE" of the Trainer, and the switch of DeepSpeed's own scripts, which has no value. */
static dsc_status read_deepspeed(train_args *args, int argc, char **argv, dsc_error *err)
{
    static const char joined[] = "--deepspeed=";
    snprintf(args->config_flag, sizeof args->config_flag, "--config");
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], joined, strlen(joined)) == 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, argv[i], "write it as --config %.200s", argv[i] + strlen(joined));
        if (strcmp(argv[i], "--deepspeed") == 0 && i + 1 < argc && argv[i + 1][0] != '-')
            argv[i] = args->config_flag;
    }
    return DSC_OK;
}

dsc_status train_args_parse(int argc, char **argv, const char *exe_dir, train_args *out, dsc_error *err)
{
    DSC_TRY(read_deepspeed(out, argc, argv, err));
    DSC_TRY(dsc_flags_parse(&page, argc, argv, out, &out->help, err));
    if (out->help || out->version)
        return DSC_OK;
    if (out->config != NULL && strlen(out->config) >= PATH_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--config", "the path is too long; expected at most %d bytes",
                        PATH_MAX - 1);
    return apply_strategy(exe_dir, out, err);
}
