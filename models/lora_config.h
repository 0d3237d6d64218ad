/* lora_config.h - which linear layers of a model get adapters, of what rank; PEFT's adapter_config.json read and
 * written. Inside models/ only. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_LORA_CONFIG_H
#define DSC_MODELS_LORA_CONFIG_H

#include "models/weights.h"

#include <dsc/model.h>

#define DSC_LORA_RANK_MAX 65536
#define DSC_LORA_TARGETS_MAX 64
/* In front of a parameter's name in PEFT's files: the wrapper's, then the model's attribute in it. */
#define DSC_LORA_PREFIX "base_model.model."
#define DSC_LORA_MAGNITUDE "lora_magnitude_vector" /* behind a layer's name */

/* A key of checkpoints' adapter.json alone: tables that PEFT's save_embedding_layers would save. */
#define DSC_LORA_TABLES "save_embedding_layers"

#define DSC_LORA_EXPERTS "experts" /* likewise: where adapters of experts belong */

#define DSC_LORA_NAME_BYTES 128
#define DSC_LORA_PATTERN_BYTES 256
#define DSC_LORA_PATTERNS_MAX 64
#define DSC_LORA_SAVED_MAX 64
#define DSC_LORA_PARAMETERS_MAX 64
#define DSC_LORA_FUSED_MAX 8
#define DSC_LORA_BLOCKS_MAX 1024
#define DSC_LORA_REGEX_BYTES 512
#define DSC_LORA_STEPS INT64_C(100000000) /* work of all matches of one opening: seconds */
/* One entry of PEFT's rank_pattern and alpha_pattern: layers that the regular expression fits, or of whose names what
 * follows a point, have another value. */
typedef struct dsc_lora_pattern {
    char name[DSC_LORA_PATTERN_BYTES];
    double value;
    bool used;
} dsc_lora_pattern;

typedef struct dsc_lora_config {
    int64_t rank;
    double alpha;
    dsc_lora_pattern rank_pattern[DSC_LORA_PATTERNS_MAX], alpha_pattern[DSC_LORA_PATTERNS_MAX];
    int32_t rank_pattern_count, alpha_pattern_count;
    bool rank_stabilized;
    bool use_dora;              /* each output of a layer has a magnitude */
    double dropout;             /* probability */
    const char *const *targets; /* [target_count] as the options'; 0: `usual` decides */
    int32_t target_count;
    bool used[DSC_LORA_TARGETS_MAX]; /* targets[i] was the name of a layer */
    const char *target_regex, *exclude_regex; /* in place of the lists; NULL: none */
    const char *const *exclude;               /* [exclude_count] as the options' */
    int32_t exclude_count;
    bool exclude_used[DSC_LORA_TARGETS_MAX];
    const int64_t *layers; /* [layer_count] the numbers of blocks with adapters; none: all */
    int32_t layer_count;
    bool layer_used[DSC_LORA_BLOCKS_MAX];
    const char *const *layers_pattern; /* [layers_pattern_count] what comes before these numbers */
    int32_t layers_pattern_count;
    char saved[DSC_LORA_SAVED_MAX][DSC_LORA_NAME_BYTES]; /* [saved_count] PEFT's modules_to_save */
    int32_t saved_count;
    bool saved_used[DSC_LORA_SAVED_MAX];   /* saved[i] was the end of a module's name */
    bool saved_partly[DSC_LORA_SAVED_MAX]; /* of a linear layer's, within a component */
    /* [parameter_count] PEFT's target_parameters: parameters that have an adapter, by their names or their ends. */
    char parameters[DSC_LORA_PARAMETERS_MAX][DSC_LORA_NAME_BYTES];
    int32_t parameter_count;
    bool parameter_used[DSC_LORA_PARAMETERS_MAX];
    /* Experts' matrices had layers of their own before transformers 5. Targets that named them became parameters, and
     * the last components of those layers' names are not targets elsewhere. */
    bool taken[DSC_LORA_TARGETS_MAX];
    const char *fused[DSC_LORA_FUSED_MAX];
    int32_t fused_count;
    dsc_weights *weights;            /* an adapter to continue from: its tensors name the layers; NULL: fresh */
    bool of_base; /* names in the files may lack the first component: PEFT has adapted the base model itself */
    char warnings[256];
    int64_t steps_left; /* of regular expressions */
    dsc_status status;  /* the first one that could not be matched, and why */
    dsc_error err;
} dsc_lora_config;

/* Owned: close gives the weights back unless they were taken (set to NULL). Lists and regular expressions of fresh
 * adapters are borrowed from the options. */
DSC_MUST_USE dsc_status dsc_lora_config_open(dsc_lora_config *out, dsc_alloc *alloc, const dsc_lora_options *options,
                                             dsc_error *err);
void dsc_lora_config_close(dsc_lora_config *config);

/* PEFT's rule: the target is the whole name, or what follows a point in it. */
bool dsc_lora_is_named(const char *layer, const char *target);
bool dsc_lora_is_all_linear(const char *target);
/* Refuses a regular expression that is not read. */
DSC_MUST_USE dsc_status dsc_lora_check_patterns(dsc_lora_config *config, dsc_error *err);
/* After the functions below: whether all regular expressions could be matched. */
DSC_MUST_USE dsc_status dsc_lora_check(const dsc_lora_config *config, dsc_error *err);
/* Refuses, after the functions below, what was asked for and fitted no layer, but for targets. */
DSC_MUST_USE dsc_status dsc_lora_check_used(const dsc_lora_config *config, const char *model, dsc_error *err);
/* Whether the layer "model.layers.3.self_attn.q_proj" gets an adapter. usual[], up to a NULL, stand in for targets when
 * none are given. */
bool dsc_lora_wants(dsc_lora_config *config, const char *layer, const char *const *usual);
/* A parameter's tensor in an adapter's files, by its name in them; NULL: there is none. */
const dsc_weight *dsc_lora_find(const dsc_weights *weights, const char *name);
/* Whether the parameter "model.layers.3.mlp.experts.down_proj" gets an adapter. */
bool dsc_lora_wants_parameter(dsc_lora_config *config, const char *param);
/* One more of these; then whether what PEFT refuses beside them is asked for. */
DSC_MUST_USE dsc_status dsc_lora_add_parameter(dsc_lora_config *config, const char *name, const char *where,
                                               dsc_error *err);
DSC_MUST_USE dsc_status dsc_lora_check_parameters(const dsc_lora_config *config, const char *where, dsc_error *err);
/* Whether the last component of a layer's name is one of config->fused. */
bool dsc_lora_is_fused(const dsc_lora_config *config, const char *layer);
/* Whether a parameter, not an adapter's, is trained whole: it is of one of PEFT's modules_to_save. */
bool dsc_lora_saves(dsc_lora_config *config, const char *param);
/* Whether a parameter's name is that of an adapter's A, B or magnitudes. */
bool dsc_lora_is_adapter(const char *param);
/* r and s of a layer: those of the first pattern that names it, else the config's. */
int64_t dsc_lora_rank(dsc_lora_config *config, const char *layer);
float dsc_lora_scale(dsc_lora_config *config, const char *layer);

/* Contents of adapter_config.json besides config. */
typedef struct dsc_lora_text {
    const char *base;         /* path of the model; NULL: a built-in one */
    const char *const *names; /* [count] of the layers, or their ends */
    int64_t count;
    bool in_out;              /* weights are stored [in,out] */
    const char *task;         /* PEFT's name of it; NULL: it has none, as for a masked language model */
    const char *experts;      /* a member with a comma in front, or "" */
    const char *const *parameters; /* [parameter_count] of linear layers that PEFT finds by target_parameters alone */
    int64_t parameter_count;
    const char *const *tables; /* [table_count] that an export has beside what is trained */
    int32_t table_count;
} dsc_lora_text;
DSC_MUST_USE dsc_status dsc_lora_write_config(const dsc_lora_config *config, dsc_alloc *alloc,
                                              const dsc_lora_text *text, char **out, dsc_error *err);

/* Adds the module with a head for labels to those that are trained whole, as PEFT does; `table` is "classifier.weight".
 * Not if a folder of PEFT's says all. */
DSC_MUST_USE dsc_status dsc_lora_save_head(dsc_lora_config *config, const char *table, dsc_error *err);

#endif
