/* config_convert.c - `dsc config convert`: accelerate's YAML or a horovodrun command as a ds_config.json.
 *
 * One table per source: a name, and what to do with its value. A setting without a counterpart is reported on stderr,
 * never dropped silently. A setting that changes the training and is not built is an error of `train` later.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/formats/json.h"
#include "engine/config/config.h"
#include "tools/dsc/config_tool.h"

typedef struct conversion {
    dsc_alloc *alloc;
    dsc_json *from;       /* accelerate's file; NULL for flags */
    cJSON *to;
    const char *name;     /* name of the current row */
    char where[256];      /* of its value */
    dsc_error *err;
    int stage;            /* 0 until something says another */
    bool offload;         /* fsdp_offload_params */
    bool gather_on_save;  /* one whole checkpoint */
    bool base_rate;       /* the rate is one micro-batch's on one worker, as Horovod's scripts take it */
} conversion;

typedef dsc_status (*convert_fn)(conversion *c, const char *value);

typedef struct conversion_row {
    const char *name;
    convert_fn convert; /* NULL: nothing here corresponds to it */
    const char *why;    /* then: what is true instead; "": nothing needs to be said */
} conversion_row;

/* ---- the result ---- */

static dsc_status put(conversion *c, const char *path, cJSON *value)
{
    return dsc_config_tool_put(c->to, path, value, c->err);
}

static dsc_status put_bool(conversion *c, const char *path, bool value)
{
    return put(c, path, cJSON_CreateBool(value));
}

static dsc_status put_text(conversion *c, const char *path, const char *text)
{
    return put(c, path, cJSON_CreateString(text));
}

static dsc_status wrong(conversion *c, const char *value, const char *expected)
{
    char quoted[128];
    dsc_json_quote(quoted, sizeof quoted, value);
    return DSC_FAIL(c->err, DSC_ERR_CONFIG, c->where, "%s: %s is not %s", c->name, quoted, expected);
}

static dsc_status put_number(conversion *c, const char *path, const char *value)
{
    char *end;
    const double number = strtod(value, &end);
    if (*value == 0 || *end != 0 || strspn(value, "0123456789+-.eE") != strlen(value))
        return strcmp(value, "auto") == 0 ? put_text(c, path, value) : wrong(c, value, "a number");
    return put(c, path, cJSON_CreateNumber(number));
}

static dsc_status is_true(conversion *c, const char *value, bool *out)
{
    *out = strcasecmp(value, "true") == 0 || strcasecmp(value, "yes") == 0 || strcmp(value, "1") == 0;
    const bool no = strcasecmp(value, "false") == 0 || strcasecmp(value, "no") == 0 || strcmp(value, "0") == 0;
    return *out || no ? DSC_OK : wrong(c, value, "true or false");
}

static void say(const conversion *c, const char *text)
{
    char line[512];
    snprintf(line, sizeof line, "%s: %s: %s", c->where, c->name, text);
    dsc_text_printable(line);
    fprintf(stderr, "dsc: note: %s\n", line);
}

/* ---- accelerate ---- */

static dsc_status precision(conversion *c, const char *value)
{
    if (strcmp(value, "no") == 0 || strcmp(value, "false") == 0)
        return DSC_OK;
    if (strcmp(value, "bf16") == 0)
        return put_bool(c, "bf16.enabled", true);
    if (strcmp(value, "fp16") == 0)
        return put_bool(c, "fp16.enabled", true);
    return wrong(c, value, "\"no\", \"bf16\" or \"fp16\"");
}

static dsc_status distributed_type(conversion *c, const char *value)
{
    static const char *const known[] = { "NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED" };
    for (size_t i = 0; i < DSC_COUNT(known); i++)
        if (strcmp(known[i], value) == 0) {
            c->stage = i == 3 ? 3 : c->stage; /* FULL_SHARD is FSDP's default */
            return DSC_OK;
        }
    return wrong(c, value, "one of NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED");
}

static dsc_status sharding(conversion *c, const char *value)
{
    static const struct { const char *name, *number; int stage; } names[] = {
        { "FULL_SHARD", "1", 3 },   { "SHARD_GRAD_OP", "2", 2 },      { "NO_SHARD", "3", 0 },
        { "HYBRID_SHARD", "4", 3 }, { "HYBRID_SHARD_ZERO2", "5", 2 },
    };
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        if (strcmp(names[i].name, value) == 0 || strcmp(names[i].number, value) == 0) {
            c->stage = names[i].stage;
            if (i >= 3)
                say(c, "over all ranks here, not inside each node: the same training, less memory, more between nodes");
            return DSC_OK;
        }
    return wrong(c, value, "a sharding strategy, such as FULL_SHARD or SHARD_GRAD_OP");
}

static dsc_status reshard(conversion *c, const char *value)
{
    bool yes;
    if (strspn(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == strlen(value)) /* FSDP 1's names are taken here too */
        return sharding(c, value);
    DSC_TRY(is_true(c, value, &yes));
    c->stage = yes ? 3 : 2;
    return DSC_OK;
}

static dsc_status offload(conversion *c, const char *value) { return is_true(c, value, &c->offload); }

static dsc_status recompute(conversion *c, const char *value)
{
    bool yes;
    DSC_TRY(is_true(c, value, &yes));
    return yes ? put_text(c, "dsc.recompute", "full") : DSC_OK;
}

static dsc_status state_dict(conversion *c, const char *value)
{
    c->gather_on_save = strcmp(value, "FULL_STATE_DICT") == 0;
    return DSC_OK;
}

static dsc_status use_cpu(conversion *c, const char *value)
{
    bool yes;
    DSC_TRY(is_true(c, value, &yes));
    return yes ? put_text(c, "dsc.device", "cpu") : DSC_OK;
}

static dsc_status accumulation(conversion *c, const char *value)
{
    return put_number(c, "gradient_accumulation_steps", value);
}

static dsc_status clipping(conversion *c, const char *value) { return put_number(c, "gradient_clipping", value); }

static dsc_status zero_stage(conversion *c, const char *value)
{
    if (strlen(value) != 1 || *value < '0' || *value > '3')
        return wrong(c, value, "a stage, 0 to 3");
    c->stage = *value - '0';
    return DSC_OK;
}

static dsc_status device_at(conversion *c, const char *path, const char *value)
{
    return strcmp(value, "none") == 0 ? DSC_OK : put_text(c, path, value);
}
static dsc_status optimizer_device(conversion *c, const char *value)
{
    return device_at(c, "zero_optimization.offload_optimizer.device", value);
}
static dsc_status param_device(conversion *c, const char *value)
{
    return device_at(c, "zero_optimization.offload_param.device", value);
}
static dsc_status optimizer_path(conversion *c, const char *value)
{
    return device_at(c, "zero_optimization.offload_optimizer.nvme_path", value);
}
static dsc_status param_path(conversion *c, const char *value)
{
    return device_at(c, "zero_optimization.offload_param.nvme_path", value);
}
static dsc_status save_16bit(conversion *c, const char *value) { return is_true(c, value, &c->gather_on_save); }

static dsc_status config_file(conversion *c, const char *value)
{
    return DSC_FAIL(c->err, DSC_ERR_CONFIG, c->where,
                    "%s: the config is a file of its own already; give that one: train --config %.200s", c->name,
                    value);
}

#define LAUNCHER "dsc-launch says it: --num_gpus, --num_nodes, --hostfile, --master_addr, --master_port"
#define MODULES "a model's modules are gathered one by one, and the order is known before the run"

static const conversion_row accelerate_rows[] = {
    { "distributed_type", distributed_type, "" },
    { "mixed_precision", precision, "" },
    { "use_cpu", use_cpu, "" },
    { "gradient_accumulation_steps", accumulation, "" },
    { "gradient_clipping", clipping, "" },
    { "fsdp_sharding_strategy", sharding, "" },
    { "fsdp_reshard_after_forward", reshard, "" },
    { "fsdp_offload_params", offload, "" },
    { "fsdp_activation_checkpointing", recompute, "" },
    { "fsdp_state_dict_type", state_dict, "" },
    { "zero_stage", zero_stage, "" },
    { "offload_optimizer_device", optimizer_device, "" },
    { "offload_param_device", param_device, "" },
    { "offload_optimizer_nvme_path", optimizer_path, "" },
    { "offload_param_nvme_path", param_path, "" },
    { "zero3_save_16bit_model", save_16bit, "" },
    { "deepspeed_config_file", config_file, "" },
    { "num_processes", NULL, LAUNCHER },
    { "num_machines", NULL, LAUNCHER },
    { "main_process_ip", NULL, LAUNCHER },
    { "main_process_port", NULL, LAUNCHER },
    { "gpu_ids", NULL, "dsc-launch --include localhost:0,1 says it" },
    { "fsdp_auto_wrap_policy", NULL, MODULES },
    { "fsdp_transformer_layer_cls_to_wrap", NULL, MODULES },
    { "fsdp_min_num_params", NULL, MODULES },
    { "fsdp_backward_prefetch", NULL, MODULES },
    { "fsdp_forward_prefetch", NULL, MODULES },
    { "fsdp_ignored_modules", NULL, MODULES },
    { "fsdp_use_orig_params", NULL, "" },
    { "fsdp_cpu_ram_efficient_loading", NULL, "" },
    { "fsdp_sync_module_states", NULL, "" },
    { "fsdp_version", NULL, "" },
    { "zero3_init_flag", NULL, "" },
    { "deepspeed_multinode_launcher", NULL, "dsc-launch --launcher says it" },
    { "deepspeed_hostfile", NULL, "dsc-launch --hostfile says it" },
    { "compute_environment", NULL, "" },
    { "debug", NULL, "" },
    { "downcast_bf16", NULL, "" },
    { "enable_cpu_affinity", NULL, "" },
    { "machine_rank", NULL, "" },
    { "main_training_function", NULL, "" },
    { "rdzv_backend", NULL, "" },
    { "same_network", NULL, "" },
    { "tpu_env", NULL, "" },
    { "tpu_use_cluster", NULL, "" },
    { "tpu_use_sudo", NULL, "" },
};

/* ---- Horovod: horovodrun's flags, and those of its example scripts ---- */

static dsc_status micro_batch(conversion *c, const char *value)
{
    return put_number(c, "train_micro_batch_size_per_gpu", value);
}

/* The scripts train with SGD, and with one worker's rate times their number. */
static dsc_status base_lr(conversion *c, const char *value)
{
    DSC_TRY(put_text(c, "optimizer.type", "SGD"));
    DSC_TRY(put_text(c, "dsc.lr_scaling", "linear"));
    c->base_rate = true;
    return put_number(c, "optimizer.params.lr", value);
}

static dsc_status weight_decay(conversion *c, const char *value)
{
    DSC_TRY(put_text(c, "optimizer.type", "SGD"));
    return put_number(c, "optimizer.params.weight_decay", value);
}

static dsc_status momentum(conversion *c, const char *value)
{
    DSC_TRY(put_text(c, "optimizer.type", "SGD"));
    return put_number(c, "optimizer.params.momentum", value);
}

static dsc_status epochs(conversion *c, const char *value) { return put_number(c, "dsc.epochs", value); }
static dsc_status seed(conversion *c, const char *value) { return put_number(c, "dsc.seed", value); }
static dsc_status predivide(conversion *c, const char *value)
{
    return put_number(c, "gradient_predivide_factor", value);
}
static dsc_status fp16_wire(conversion *c, const char *value)
{
    (void)value;
    return put_text(c, "communication_data_type", "fp16");
}

/* Megabytes of fp32. */
static dsc_status fusion(conversion *c, const char *value)
{
    const int64_t megabytes = strtoll(value, NULL, 10);
    if (megabytes < 1 || megabytes > 1 << 20 || strspn(value, "0123456789") != strlen(value))
        return wrong(c, value, "a number of megabytes");
    return put(c, "zero_optimization.reduce_bucket_size", cJSON_CreateNumber((double)(megabytes << 18)));
}

static const conversion_row horovod_rows[] = {
    { "--batch-size", micro_batch, "" },
    { "--batches-per-allreduce", accumulation, "" },
    { "--base-lr", base_lr, "" },
    { "--lr", base_lr, "" },
    { "--wd", weight_decay, "" },
    { "--epochs", epochs, "" },
    { "--seed", seed, "" },
    { "--gradient-predivide-factor", predivide, "" },
    { "--fusion-threshold-mb", fusion, "" },
    { "--fp16-allreduce", fp16_wire, "" },
    { "--momentum", momentum, "" },
    { "--warmup-epochs", NULL, "a scheduler's warmup_num_steps says it, in steps" },
    { "-np", NULL, "dsc-launch takes it as it is" },
    { "--num-proc", NULL, "dsc-launch -np says it" },
    { "-H", NULL, "dsc-launch takes it as it is" },
    { "--hosts", NULL, "dsc-launch -H says it" },
    { "--hostfile", NULL, "dsc-launch takes it as it is" },
    { "--cycle-time-ms", NULL, "nothing waits for a cycle: the order is known before the run" },
    { "--cache-capacity", NULL, "nothing is negotiated" },
    { "--log-level", NULL, "" },
    { "--timeline-filename", NULL, "dsc.trace names a Chrome trace" },
};

static dsc_status one_value(conversion *c, const conversion_row *rows, size_t count, const char *name,
                            const char *value)
{
    c->name = name;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(rows[i].name, name) != 0)
            continue;
        if (rows[i].convert != NULL)
            return rows[i].convert(c, value);
        if (rows[i].why[0] != 0)
            say(c, rows[i].why);
        return DSC_OK;
    }
    say(c, "nothing here corresponds to it");
    return DSC_OK;
}

/* ---- the two sources ---- */

static dsc_status convert_members(conversion *c, const cJSON *object)
{
    for (const cJSON *item = object->child; item != NULL; item = item->next) {
        char number[32];
        if (cJSON_IsObject(item)) {
            DSC_TRY(convert_members(c, item));
            continue;
        }
        if (cJSON_IsNull(item) || cJSON_IsArray(item))
            continue;
        dsc_json_where(c->from, item, c->where, sizeof c->where);
        const char *value = cJSON_IsString(item) ? item->valuestring
                            : cJSON_IsBool(item) ? (cJSON_IsTrue(item) ? "true" : "false")
                                                 : dsc_tool_double(item->valuedouble, number);
        DSC_TRY(one_value(c, accelerate_rows, DSC_COUNT(accelerate_rows), item->string, value));
    }
    return DSC_OK;
}

static dsc_status convert_accelerate(conversion *c, const char *path)
{
    DSC_TRY(dsc_config_tool_open(c->alloc, path, &c->from, c->err));
    const cJSON *root = dsc_json_root(c->from);
    if (cJSON_GetObjectItemCaseSensitive(root, "distributed_type") == NULL)
        return DSC_FAIL(c->err, DSC_ERR_CONFIG, path, "no config of accelerate: it has no distributed_type");
    return convert_members(c, root);
}

/* A flag that stands alone. */
static bool is_switch(const char *flag)
{
    return strcmp(flag, "--fp16-allreduce") == 0 || strcmp(flag, "--autotune") == 0 || strcmp(flag, "--verbose") == 0 ||
           strcmp(flag, "--hierarchical-allreduce") == 0 || strcmp(flag, "--use-adasum") == 0;
}

static dsc_status convert_flags(conversion *c, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        char name[64];
        if (argv[i][0] != '-')
            continue; /* python, the script, what it is given by place */
        const char *equals = strchr(argv[i], '=');
        snprintf(name, sizeof name, "%.*s", equals != NULL ? (int)(equals - argv[i]) : 63, argv[i]);
        snprintf(c->where, sizeof c->where, "horovodrun");
        const char *value = equals != NULL ? equals + 1 : "";
        if (equals == NULL && !is_switch(name) && i + 1 < argc)
            value = argv[++i];
        if (strcmp(name, "--use-adasum") == 0)
            return DSC_FAIL(c->err, DSC_ERR_UNSUPPORTED, c->where, "%s is another algorithm, which is not built", name);
        DSC_TRY(one_value(c, horovod_rows, DSC_COUNT(horovod_rows), name, value));
    }
    return DSC_OK;
}

/* Settings that follow from several values. */
static dsc_status finish(conversion *c)
{
    cJSON *rate = c->base_rate ? dsc_config_tool_get(c->to, "optimizer.params.lr") : NULL;
    const cJSON *steps = cJSON_GetObjectItemCaseSensitive(c->to, "gradient_accumulation_steps");
    if (cJSON_IsNumber(rate) && cJSON_IsNumber(steps)) /* the workers' number is dsc.lr_scaling's part */
        cJSON_SetNumberValue(rate, rate->valuedouble * steps->valuedouble);
    static const char *const sizes[] = { "train_micro_batch_size_per_gpu", "gradient_accumulation_steps" };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++)
        if (cJSON_GetObjectItemCaseSensitive(c->to, sizes[i]) == NULL)
            DSC_TRY(put_text(c, sizes[i], "auto"));
    DSC_TRY(put(c, "zero_optimization.stage", cJSON_CreateNumber(c->stage)));
    if (c->offload && c->stage > 0)
        DSC_TRY(put_text(c, "zero_optimization.offload_optimizer.device", "cpu"));
    if (c->offload && c->stage == 3)
        DSC_TRY(put_text(c, "zero_optimization.offload_param.device", "cpu"));
    if (c->gather_on_save && c->stage == 3)
        DSC_TRY(put_bool(c, "zero_optimization.stage3_gather_16bit_weights_on_model_save", true));
    return DSC_OK;
}

/* Prints what a reader of configs takes, or fails with its words. */
static dsc_status print_checked(conversion *c, dsc_config *config)
{
    char *text = cJSON_Print(c->to);
    if (text == NULL)
        return DSC_FAIL(c->err, DSC_ERR_NOMEM, "dsc config convert", "out of host memory: no JSON text");
    const dsc_status status = dsc_config_parse(c->alloc, "<converted>", text, (int64_t)strlen(text), NULL, 0, false,
                                               config, c->err);
    if (status == DSC_OK)
        printf("%s\n", text);
    for (int i = 0; status == DSC_OK && i < config->warning_count; i++)
        fprintf(stderr, "dsc: warning: %s\n", config->warnings[i]);
    cJSON_free(text);
    return status;
}

int dsc_config_tool_convert(dsc_alloc *alloc, int argc, char **argv, dsc_config *config)
{
    dsc_error err = DSC_ERROR_INIT;
    conversion c = { .alloc = alloc, .err = &err, .to = cJSON_CreateObject() };
    dsc_status status = DSC_OK;
    if (c.to == NULL)
        status = DSC_FAIL(&err, DSC_ERR_NOMEM, "dsc config convert", "out of host memory");
    if (status == DSC_OK && strcmp(argv[0], "horovodrun") == 0)
        status = convert_flags(&c, argc - 1, argv + 1);
    else if (status == DSC_OK)
        status = convert_accelerate(&c, argv[0]);
    if (status == DSC_OK)
        status = finish(&c);
    if (status == DSC_OK)
        status = print_checked(&c, config);
    cJSON_Delete(c.to);
    dsc_json_close(&c.from);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
