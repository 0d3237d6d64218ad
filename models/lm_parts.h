/* lm_parts.h - the model that lm.c describes, lm_adapters.c adds adapters to and lm_grow.c rows. Between these alone.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_LM_PARTS_H
#define DSC_MODELS_LM_PARTS_H

#include <pthread.h>

#include "models/lm.h"

#define NAME_BYTES 80 /* "gpt_neox.layers.4095.attention.query_key_value.lora_A.weight" is 60 */
#define LINEARS_MAX 64 /* layers of all kinds of blocks, the embedding and the transform before the head */

#define LM_MEANS_MAX 3 /* the table of tokens, the head, its bias */

typedef char lm_name[NAME_BYTES];

/* A linear layer that can have an adapter: of blocks, which have it under one name, or of a module that there is once.
 */
typedef struct lm_layer {
    const char *name;
    lm_name prefix; /* this and what follows: as in the last module that has it */
    dsc_linear shape;
    dsc_split_axis b_split, a_split; /* of its adapter */
    int32_t weight;                  /* among the module's parameters */
    bool by_parameter;               /* as in dsc_program_linear_args */
    int64_t count, adapted;          /* modules that have it; of those, with an adapter */
    int64_t named;                   /* with one that target_parameters names */
} lm_layer;

/* Matrices of a module's experts, a parameter [experts, out, in] or [experts, in, out]. */
enum { LM_EXPERTS_MAX = 8 };
typedef struct lm_experts {
    const char *name; /* as in the program's parameter: "mlp.experts.*.up_proj" */
    bool parted, in_out;
    int32_t weight, experts;
    int64_t in, out;
} lm_experts;

/* The mean row of a table's rows in its file, which the rows that the file lacks begin as. */
typedef struct lm_mean {
    const dsc_weight *of;
    int64_t columns;
    double *sum; /* [columns]; the mean when it is known */
    bool known;
} lm_mean;

struct dsc_lm {
    dsc_model model;
    dsc_alloc *alloc;
    dsc_lm_family own_family; /* target of `family` */
    const dsc_lm_family *family;
    struct dsc_wrapper_carried *carried; /* NULL: none */
    dsc_lm_config *config; /* [config_bytes] */
    char *name, *config_json, *warnings, *all_warnings;
    dsc_lm_module *selves;  /* [module_count] */
    dsc_module *modules;    /* [module_count] */
    dsc_param_spec *params; /* [param_count], of all modules in order */
    lm_name *names;         /* [module_count + param_count] */
    int64_t module_count, param_count;
    dsc_buffer_spec *buffers; /* [buffer_count], of all modules in order */
    lm_name *buffer_names;    /* likewise */
    int64_t buffer_count;
    const dsc_weight **buffer_sources; /* [buffer_count] where each one lies; NULL array without weights */
    lm_name prefix;                   /* prefix of the module that is being described */
    int64_t first_param;              /* its first one */
    lm_layer layer[LINEARS_MAX];      /* [all_layers] */
    int32_t block_layer, all_layers;  /* the blocks' first one; of all modules */
    int32_t own[LINEARS_MAX], own_count; /* layers of the module that is being described */
    lm_experts own_experts[LM_EXPERTS_MAX]; /* [own_experts_count] and matrices of its experts */
    int32_t own_experts_count;
    lm_experts known_experts[LM_EXPERTS_MAX]; /* [known_experts_count] those of the last block that has any */
    int32_t known_experts_count;
    int64_t experts_adapted;             /* tensors of experts with an adapter, of all modules */
    dsc_program *source;                 /* the module in hand as it is described, while the model is built */
    dsc_program **programs;              /* of modules that differ, up to a NULL */
    dsc_model_experts experts;
    dsc_lora_config *lora;            /* while it is built; NULL: no adapters */
    int32_t *adapter_of;              /* [param_count] see dsc_lora; NULL: no adapters */
    int32_t *adapter_rank;            /* likewise */
    float *adapter_scale;
    char *adapter_json;
    dsc_weights *weights, *adapter; /* NULL: fresh */
    dsc_packed_weight *packed;      /* [param_count] what is in 4 bits; NULL array without weights */
    dsc_packed_files packed_files;
    dsc_weight_part **parts;        /* [param_count] see dsc_lm_params; NULL array without weights */
    struct dsc_mxfp4 *mxfp4;        /* see dsc_lm_params */
    const dsc_weight **sources;     /* [param_count] where each parameter lies; NULL array without weights */
    dsc_batch_spec batch[DSC_LM_BATCH_MAX];
    int64_t losses;              /* loss items of a sample, of a last module that is a program */
    lm_mean means[LM_MEANS_MAX]; /* of grown tables: of: NULL: none */
    const char *const *label_names;
    pthread_mutex_t means_lock;  /* values are loaded from several threads */
};

/* lm.c: appends "<prefix><name>.<part>"; no part: "<prefix><name>". A vector when rows is 0. */
dsc_param_spec *dsc_lm_add_param(dsc_lm *lm, const char *name, const char *part, int64_t rows, int64_t cols,
                                 double std);

/* lm_buffers.c: finds the tensors of buffers, which `used` gets; and load_buffer of a dsc_model. */
DSC_MUST_USE dsc_status dsc_lm_match_buffers(const dsc_weights *weights, const dsc_lm_params *params, bool *used,
                                             dsc_error *err);
dsc_status dsc_lm_load_buffer(const dsc_model *model, int32_t module, int32_t buffer, void *out, bool *found,
                              dsc_error *err);

/* lm_program.c: the module of a layer, which is not compiled; the first failure is in out->status. Layer -1 is the
 * first module; those from config->layers on follow the blocks. Then the compiled programs of all modules, once all
 * parameters and adapters are known. lm_ends.c: the modules of a language model around its blocks. */
void dsc_lm_emit_embedding(dsc_program *program, const dsc_lm *lm);
void dsc_lm_emit_transform(dsc_program *program, const dsc_lm *lm);
void dsc_lm_emit_head(dsc_program *program, const dsc_lm *lm);
void dsc_lm_describe_module(const dsc_lm *lm, int64_t layer, const dsc_lora *adapters, dsc_program *out);
DSC_MUST_USE dsc_status dsc_lm_compile(dsc_lm *lm, dsc_error *err);
/* Fills lm->experts from compiled programs, and the numbers of records. */
DSC_MUST_USE dsc_status dsc_lm_find_routers(dsc_lm *lm, dsc_error *err);
int dsc_lm_show_module(const dsc_model *model, int32_t module, int64_t batch, dsc_dtype dtype, char *out, size_t bytes);

/* lm_weights.c: whether a parameter is an adapter's; a name without the family's `base` in front. A tensor by its name
 * or an alias, NULL: none; its shape and dtype. lm_missing.c: the refusal of one that is missing, or whose name has a
 * wrapper's. */
bool dsc_lm_is_adapter(const dsc_lm_params *params, int64_t i);
/* The name without wrappers; *wrapper <- the first of them, NULL: there is none. */
void dsc_lm_without_wrappers(const char *name, char *out, size_t out_bytes, const char **wrapper);
DSC_MUST_USE dsc_status dsc_lm_refuse_wrapped(const dsc_weight *weight, const char *wrapper, dsc_error *err);
const char *dsc_lm_without_base(const dsc_lm_family *family, const char *name);
DSC_MUST_USE dsc_status dsc_lm_find_tensor(const dsc_weights *weights, const dsc_lm_family *family, const char *name,
                                           const dsc_weight **out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_lm_check_dtype(const dsc_weight *weight, dsc_error *err);
DSC_MUST_USE dsc_status dsc_lm_check_tensor(const dsc_weight *weight, int64_t rows, int64_t cols, dsc_error *err);
DSC_MUST_USE dsc_status dsc_lm_refuse_missing(const dsc_weights *weights, const dsc_lm_params *params, const char *name,
                                              dsc_error *err);

/* lm_experts.c: the tensors of parted parameter i, which are marked as used; and elements of it. */
DSC_MUST_USE dsc_status dsc_lm_match_parts(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params,
                                           int64_t i, bool *used, dsc_error *err);
DSC_MUST_USE dsc_status dsc_lm_read_parts(const dsc_param_spec *spec, const dsc_weight_part *parts, int64_t first,
                                          int64_t count, float *out, dsc_error *err);

/* lm_experts.c: the tensor of parameter i, which has three dimensions, or its blocks in MXFP4; all are marked as used.
 */
DSC_MUST_USE dsc_status dsc_lm_match_experts(const dsc_weights *weights, const dsc_lm_params *params, int64_t i,
                                             const dsc_weight **source, bool *used, dsc_error *err);

/* lm_grow.c: what the rows that no file has begin as. The lock is the caller's to open. */
DSC_MUST_USE dsc_status dsc_lm_open_means(dsc_lm *lm, dsc_error *err);
/* Elements [first + begin, first + end) of a parameter are behind those of its file; out is that of `first`. */
typedef struct lm_span {
    int64_t first, begin, end;
} lm_span;
DSC_MUST_USE dsc_status dsc_lm_fill_grown(dsc_lm *lm, const dsc_param_spec *spec, const dsc_weight *source,
                                          lm_span span, float *out, dsc_error *err);
/* Tables that an adapter's folder has although they are not trained, as PEFT's save_embedding_layers: those that grew,
 * or came with an adapter. names[LM_TABLES_MAX]; the count. */
enum { LM_TABLES_MAX = 2 };
int32_t dsc_lm_saved_tables(const dsc_lm *lm, const char *names[LM_TABLES_MAX]);

/* lm_expert_adapters.c: lm->own_experts of a described program; their number. Targets that name experts' layers become
 * parameters, as in PEFT, once the experts are known. The adapters of experts of the module that is being described. */
int32_t dsc_lm_find_experts(dsc_lm *lm, const dsc_program *program);
DSC_MUST_USE dsc_status dsc_lm_fuse_targets(dsc_lm *lm, dsc_error *err);
void dsc_lm_add_expert_adapters(dsc_lm *lm, dsc_lora *out);
/* A layer's name in PEFT's files, which is transformers 5's where files have another. */
void dsc_lm_name_adapter(const dsc_lm *lm, const lm_layer *layer, lm_name out);
/* Appends the names of experts' tensors to a list for messages. The member of adapter.json that tells a checkpoint
 * where adapters of experts belong, with a comma in front; "": there are none. */
void dsc_lm_list_experts(const dsc_lm *lm, char *out, size_t bytes);
void dsc_lm_print_experts(const dsc_lm *lm, char *out, size_t bytes);

/* lm_adapters.c: the adapters of the module that is being described; and of the whole model: which parameters are
 * trained, whether what was asked for exists, adapter_config.json. */
void dsc_lm_add_adapters(dsc_lm *lm, dsc_lora *out);
void dsc_lm_freeze(dsc_lm *lm);
DSC_MUST_USE dsc_status dsc_lm_check_adapters(const dsc_lm *lm, const char *model, dsc_error *err);
DSC_MUST_USE dsc_status dsc_lm_write_adapter_json(dsc_lm *lm, const char *base, dsc_error *err);

#endif
