/* lm.h - common parts of language models: a token embedding, L blocks of the family's own, and a head.
 *
 * A family is a const table (dsc_lm_family): how it is configured and named, and what its block is. Embedding, head,
 * names, first values and weights from disk are here for all of them. Inside models/ only.
 * Letters: B batch, T tokens of a sample, R = B * T rows, C channels, V vocabulary, P rows of the token table (V
 * padded). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_LM_H
#define DSC_MODELS_LM_H

#include "base/alloc.h"
#include "models/hf_config.h"
#include "models/linear.h"
#include "models/lora.h"
#include "models/lora_config.h"
#include "models/packed_weights.h"
#include "models/norm.h"
#include "models/program.h"
#include "models/weights.h"

#define DSC_ROUTER_FACTOR_MAX 1e9

/* Bounds that keep every size of a micro-batch of up to 2^31 rows within int64. */
#define DSC_LM_LAYERS_MAX 4096
#define DSC_LM_CHANNELS_MAX (1 << 18)
#define DSC_LM_INNER_MAX (1 << 20)
#define DSC_LM_POSITIONS_MAX (1 << 24)
#define DSC_LM_VOCAB_MAX (1 << 24)
#define DSC_LM_ROWS_MAX (INT64_C(1) << 31)

/* A family's own config starts with this one. */
typedef struct dsc_lm_config {
    int64_t layers, channels;
    int64_t embed_channels; /* E, of the token table, whose rows are projected to the blocks' C; 0: as many */
    int64_t positions;  /* the longest sample that the model is made for */
    int64_t window;     /* a token sees no more than this many, itself among them; 0: all before it */
    bool full[DSC_LM_LAYERS_MAX]; /* layers that have no window all the same */
    /* Files may hold so many layers behind those of the model, which predict further tokens and are not read. */
    int64_t later_layers;
    int64_t short_positions; /* texts up to this long have other rotary positions than longer ones; 0: the same */
    int64_t sequence;   /* T <= positions */
    int64_t cache;      /* tokens of a text whose keys and values modules keep between calls; 0: none are kept */
    int64_t vocab;      /* V: real tokens, the softmax's width */
    int64_t vocab_rows; /* P >= V */
    int64_t file_vocab; /* rows that the folder's files have; V above this: the others begin as their mean */
    int64_t file_classes;  /* classes of the folder's classifier, which is not read; 0: the model's own is there */
    int64_t adapter_vocab; /* rows of the tables in an adapter's file; 0: it has none */
    double norm_eps, init_std;
    /* Factor of the rows of the token table; 0: 1. `embed_scale_rounded`: the factor has the compute dtype, as
     * Gemma's in transformers. */
    double embed_scale;
    bool embed_scale_rounded;
    double logit_scale;        /* factor of the logits before the loss, > 0; 0: 1 */
    double logit_softcap;      /* then a logit is softcap * tanh(logit / softcap); 0: no cap */
    double router_balance, router_z; /* factors of the losses of routers (dsc_model_experts); 0: none */
    dsc_preference preference; /* with a beta the third batch tensor is the reference */
    bool documents; /* a sample is of several, whose tokens' places are the third batch tensor */
    bool tied; /* the head uses the token table */
    bool turned;    /* an in_out family: matrices of blocks are kept [out,in], as their files in 4 bits */
    bool bare_head; /* without a norm before it */
    /* The embedding's and the head's norms: the factor is 1 + weight, whose first values are 0; a layer norm has no
     * bias. */
    bool norm_plus_one, norm_no_bias;
    /* Tokens see both sides, and the head predicts `predictions` of a sample's, whose places are the third batch
     * tensor, from what the transform makes of them with this activation. */
    bool masked;
    int64_t predictions;       /* K <= T */
    dsc_activation activation;
    bool transform_no_bias;    /* the transform's linear layer has none */
    int64_t segments;          /* rows of the table of segments; every token is in the first one */
    /* Token `padding` gives its row of the table nothing where it is an input: what Hugging Face's code makes of
     * pad_token_id in some families. */
    bool has_padding;
    int32_t padding;
    /* The first batch tensor of a model whose samples are not tokens: the family's emit_first reads it. dim_count 0: a
     * sample is `sequence` tokens. */
    dsc_batch_spec data;
    /* Places in the table of positions begin at this row, in addition to the family's. With `places_skip_padding` only
     * tokens other than padding are counted, and padding has the row `padding`, which is not trained, as in RoBERTa:
     * position_first is padding + 1 there. */
    int64_t position_first;
    bool places_skip_padding;
    /* A model that classifies texts: rows N of its head; 0: it predicts tokens. A masked one has one "prediction" a
     * sample: the transform of its first token, or of the mean of its tokens. Another one takes the last token. */
    int64_t classes;
    dsc_label_kind label_kind;
    bool of_tokens; /* each token has a class; then there may be no transform */
    bool no_transform;
    bool pools_mean, pools_tanh; /* the transform's activation is tanh */
    bool takes_segments;         /* tokens have the segments of the batch, else the first one */
    /* A model that makes a vector of each text: `classes` are its C numbers, without a table. */
    bool embeds, unit_vectors;
    dsc_pooling pooling; /* not AUTO */
    double similarity_scale;
    int64_t longest_text; /* tokens at which the folder cuts texts; 0: it does not say */
    dsc_program_ranks ranks; /* that compute the blocks together, and which of them this one is */
} dsc_lm_config;

#define DSC_VOCAB_TOKENS_MAX (1 << 24) /* as a tokenizer has at most */

/* Batch tensors of a micro-batch; the third one with documents, with a preference, or of a masked model; the others of
 * a model with labels. */
enum {
    DSC_LM_TOKENS,
    DSC_LM_TARGETS,
    DSC_LM_POSITIONS,
    DSC_LM_POOLED,
    DSC_LM_SEGMENTS,
    DSC_LM_BATCH_MAX,
    DSC_LM_PREDICTED = DSC_LM_POSITIONS,
    DSC_LM_REFERENCE = DSC_LM_POSITIONS
};

/* A model that is being described; see lm_parts.h. */
typedef struct dsc_lm dsc_lm;

typedef struct dsc_lm_family {
    const char *model_type;     /* of config.json: "gpt2" */
    const char *layers_key;     /* the key of the number of layers, for messages */
    const char *base;           /* prefix that files of the base model alone leave out: "transformer." */
    const char *layer;          /* after it and before a layer's number: "h." */
    const char *token_table;    /* after base: "wte.weight" */
    const char *position_table; /* "wpe.weight"; NULL: no learned positions */
    int64_t position_first;     /* the row of a sample's first token in it */
    /* Projections of a token table of its own width, after base: to the blocks' width and back:
     * "decoder.project_in". NULL: none. */
    const char *project_in, *project_out;
    const char *segment_table, *embed_norm; /* the embedding's, after base; NULL: none */
    const char *transform;                  /* a masked model's, a whole name: "cls.predictions.transform.dense" */
    const char *transform_norm;             /* before the transform, a whole name: "model.final_norm"; NULL: none */
    const char *head_bias;                  /* a whole name: "cls.predictions.bias", "lm_head.bias"; NULL: none */
    const char *head_table;     /* a head that is not tied, without base: "lm_head.weight" */
    const char *final_norm;     /* after base: "ln_f"; of a masked model a whole name */
    bool shared_out;            /* several ranks can compute its blocks together */
    bool wrapped; /* the text part of another model, whose other tensors are not the family's (wrapper.h) */
    bool in_out;  /* matrices of blocks are stored [in,out], and in 4 bits [out,in] */
    dsc_norm_kind norm;
    int64_t config_bytes; /* size of the family's own config */
    const void *traits;   /* reader->traits for read_config; NULL: read_config has its own */

    /* Reads config.json. `sequence` and `vocab_rows` are set by the caller. */
    dsc_status (*read_config)(dsc_hf_config *reader, dsc_lm_config *out);
    /* Writes config.json of a built-in size; as snprintf. NULL: there is none. */
    int (*write_config)(const dsc_lm_config *config, char *out, size_t bytes);
    /* The i-th built-in size of a family of these traits: its name, NULL past the end. *out <- its config with the
     * sequence that it has by default; out may be NULL. A NULL function: the family has no built-in size. */
    const char *(*builtin)(const void *traits, int32_t index, dsc_lm_config *out);

    /* The block's ops and parameters: names follow the layer's own, as "attn.c_attn" in "transformer.h.3.". The same
     * layer gives the same program each time, with texts that stay as long as the model. */
    void (*emit_block)(dsc_program *program, const dsc_lm_config *config, int64_t layer);
    /* A first module of other samples than tokens: ops from the batch tensor `data` to rows of C columns, with names
     * after base. A last module whose output has a row of V logits for each loss item of a sample, with whole names;
     * the loss is the cross-entropy. Their layers have no adapters. NULL: embedding and head of a language model. */
    void (*emit_first)(dsc_program *program, const dsc_lm_config *config);
    void (*emit_last)(dsc_program *program, const dsc_lm_config *config);
    /* Hooks of modules that make feature maps; NULL elsewhere. The first one gives the name before a layer's
     * tensors in place of `layer` and its number, without the point behind it; "": nothing. It is called for a first
     * and a last module too. The second one begins the program of a layer whose input is a map of its own size. */
    void (*name_block)(const dsc_lm_config *config, int64_t layer, char *out, size_t bytes);
    void (*begin_block)(dsc_program *program, const dsc_lm_config *config, int64_t layer);
    const char *const *lora_layers; /* layers that PEFT adapts by default, up to a NULL */
    /* Tensors of a layer ("attn.bias") that a file may hold beside the parameters, up to a NULL. NULL: none. */
    const char *const *may_ignore;
    /* Alternative ends of names in files: { ".LayerNorm.weight", ".LayerNorm.gamma" }, up to a NULL. Then beginnings
     * of names, after base, of tensors that a file may hold in addition to the model: { name, description }. A NULL
     * description: nothing is lost without the tensor. NULL: none. */
    const char *const (*aliases)[2], *const (*beside)[2];
    const struct dsc_lm_stacked *stacked; /* up to one without a part; NULL: none */
    bool asks_weights;                    /* read_config chooses names by the folder's tensors, dsc_hf_config.weights */
    bool any_picture;                     /* pictures may have another size than the folder says */
    bool has_mxfp4; /* experts' matrices, parameters of three dimensions, may be in MXFP4 (mxfp4.h) */
    const char *class_prefix; /* "Bert" of BertForSequenceClassification in transformers, with a classifier */
    const struct dsc_lm_classifier *classifier; /* NULL: no head for labels is built */
    const struct dsc_lm_classifier *token_classifier; /* head for labels of tokens; NULL: none is built */
    const struct dsc_lm_classifier *embedder; /* head for vectors of texts: norm, beside; NULL: none is built */
    bool classifies;                            /* a copy of a family that has that head */
} dsc_lm_family;

/* The head of a family that classifies texts. It takes the place of the one that predicts tokens; names are whole. */
typedef struct dsc_lm_classifier {
    const char *transform; /* NULL: of tokens; or of a decoder, whose last token the head sees behind the norm */
    const char *norm;               /* before the table, of an encoder; NULL: none */
    const char *table, *bias;       /* bias: NULL: none */
    bool tanh, relu;                /* the transform's activation; neither: config.json's */
    bool pools_by_key;              /* config.json has "classifier_pooling" */
    const char *const (*beside)[2]; /* as the family's */
} dsc_lm_classifier;

/* labels.c: whether config.json or the options ask for labels; *out <- names of the classes, one block of `alloc`. The
 * family, which is the caller's own copy, and the config get that head. */
DSC_MUST_USE dsc_status dsc_lm_read_labels(dsc_hf_config *reader, dsc_alloc *alloc,
                                           const struct dsc_label_options *options, dsc_lm_family *family,
                                           dsc_lm_config *config, const char *const **names);
/* Sets the number of classes in a config.json of a model that classifies pictures, as transformers or timm has it.
 * Names of other classes go. false: out of memory. */
bool dsc_lm_write_classes(cJSON *root, int64_t classes);
/* vectors_config.c: the head that makes vectors, for options of a kind that compares texts. `dir`: the folder, whose
 * files of sentence-transformers are read; NULL: none. The second function sets the keys of a config.json. */
DSC_MUST_USE dsc_status dsc_lm_read_vectors(dsc_hf_config *reader, dsc_alloc *alloc, const char *dir,
                                            const struct dsc_label_options *options, dsc_lm_family *family,
                                            dsc_lm_config *config);
bool dsc_lm_write_vectors(cJSON *root, const dsc_lm_family *family, const dsc_lm_config *config);
/* out[DSC_LM_BATCH_MAX] <- the batch of dsc_labels; returns how many tensors it has. */
int32_t dsc_lm_describe_labels(const dsc_lm_config *config, dsc_batch_spec *out);
/* Sets the keys of a config.json that say so. false: out of memory. */
bool dsc_lm_write_labels(cJSON *root, const dsc_lm_family *family, const dsc_lm_config *config,
                         const char *const *names);

/* A parted parameter may also lie in one tensor [E, count * rows, cols]: in each E it is the group of rows `index`. The
 * parameter's name ends with `part`, and the tensor's with `whole`. */
typedef struct dsc_lm_stacked {
    const char *part, *whole; /* "experts.*.up_proj.weight", "experts.gate_up_proj" */
    int32_t index, count;
} dsc_lm_stacked;

/* Target of a module's `self`. */
typedef struct dsc_lm_module {
    const dsc_lm_family *family;
    const dsc_lm_config *config; /* the beginning of the family's own */
    int64_t layer;               /* of a block */
    dsc_lora lora;
    const dsc_program *program; /* program of a block, or of a first or last module that has one */
    int32_t first_record;       /* first record of a block's routers */
} dsc_lm_module;

/* Options of an opening. `config` and `family` are copied. */
typedef struct dsc_lm_open_args {
    const dsc_lm_family *family;
    const char *name;
    const dsc_lm_config *config; /* [config_bytes] */
    dsc_weights *weights;        /* NULL: fresh initialisation */
    dsc_lora_config *lora;       /* NULL: no adapters; its weights become the model's on success */
    char *config_json;           /* NULL: one is written */
    char *warnings;              /* NULL: none */
    bool complete;               /* weights without the model's head are refused */
    bool untied;                 /* the head begins as a copy of the table of tokens */
    const char *const *label_names; /* owned as weights are; NULL: none */
    dsc_packed_files packed;     /* of weights, by config.json */
    bool mxfp4;                  /* likewise: experts' matrices are in MXFP4 */
    struct dsc_wrapper_carried *carried; /* tensors beside the text model, as owned as weights; NULL: none */
} dsc_lm_open_args;

/* Builds the model. Everything is allocated from `alloc`, which the model owns on success (and closes), as it owns
 * weights, carried, config_json and warnings, all allocated from `alloc`. On failure they stay the caller's. */
DSC_MUST_USE dsc_status dsc_lm_open(dsc_model **out, dsc_alloc *alloc, const dsc_lm_open_args *args, dsc_error *err);
/* config.json's pad_token_id, `fallback` without the key (-1: none); negative ones count from the vocabulary's end. */
DSC_MUST_USE dsc_status dsc_lm_read_padding(dsc_hf_config *reader, int32_t fallback, dsc_lm_config *config);
/* Its value for a config.json: a number or null. */
const char *dsc_lm_padding_text(const dsc_lm_config *config, char *out, size_t bytes);
/* Whether modules_to_save has the head or the table of tokens. */
bool dsc_lm_trains_table(const dsc_lm_family *family, const dsc_lora_config *lora);
/* lm_grow.c: the most rows that a table of tokens or a head has in the adapter's file; 0: it has neither. */
int64_t dsc_lm_adapter_rows(const dsc_lm_family *family, const dsc_lora_config *lora);
/* Says how many rows a table gets that are in no file; `fresh`: no row is. */
void dsc_lm_warn_grown(const dsc_lm_config *config, bool fresh, char *warnings, size_t bytes);
/* Refuses sizes of pictures and numbers of classes that were asked for, and not taken from the data, of a model that
 * has its own. */
DSC_MUST_USE dsc_status dsc_lm_check_network(const dsc_model_options *options, const dsc_lm_family *family,
                                             bool is_named, const char *where, dsc_error *err);
/* The number of classes that a run asks for, of a model that classifies pictures. */
DSC_MUST_USE dsc_status dsc_lm_choose_classes(dsc_lm_config *config, const struct dsc_network_options *options,
                                              const char *where, dsc_error *err);
/* Sets sequence and the numbers of rows as the options and the adapter ask; `where` is what errors name. */
DSC_MUST_USE dsc_status dsc_lm_apply_options(dsc_lm_config *config, const dsc_model_options *options,
                                             int64_t adapter_rows, const char *where, dsc_error *err);
/* Sets the ranks that compute the model together, of a family and options for which that is built. */
DSC_MUST_USE dsc_status dsc_lm_apply_ranks(dsc_lm_config *config, const dsc_lm_family *family,
                                           const dsc_model_options *options, const char *where, dsc_error *err);

/* ---- For modules ---- */

/* Fills a module, whose name, self, params and flags are the caller's. lm_program.c */
void dsc_lm_module_init(dsc_module *module);

/* Whether a sample is something else than tokens. */
static inline bool dsc_lm_has_data(const dsc_lm_config *config) { return config->data.dim_count > 0; }

static inline bool dsc_lm_projects(const dsc_lm_config *config) { return config->embed_channels != config->channels; }

/* Whether a module is between the last block and the head. */
static inline bool dsc_lm_transforms(const dsc_lm_config *config)
{
    return (config->masked && !config->no_transform) || dsc_lm_projects(config);
}

/* The row of a sample's first token in the table of positions. */
static inline int64_t dsc_lm_position_first(const dsc_lm_family *family, const dsc_lm_config *config)
{
    return family->position_first + config->position_first;
}

/* The number of the table of tokens among the parameters of a language model. */
enum { DSC_LM_TOKEN_TABLE };

/* sources[i] <- the tensor of params[i], and packed[i], if that is in 4 bits. Names with and without the family's base;
 * shapes must be those of the parameters (V rows for tables); a missing or an unknown tensor is refused by name. A
 * model without adapters may lack the parameters of its head, as a folder of the base model does. lm_weights.c */
typedef struct dsc_lm_params {
    const dsc_lm_family *family;
    const dsc_lm_config *config;
    const dsc_param_spec *spec;
    int64_t count;
    bool adapted;  /* those of adapters are among them, which are trainable as are those of modules to save */
    bool complete; /* a missing head is refused, else sources of its parameters stay NULL */
    bool untied;   /* the head's tensor is that of the table of tokens */
    dsc_packed_weight *packed; /* [count] */
    dsc_weight_part **parts;   /* [count] of parted parameters, [dim[0]] each */
    struct dsc_mxfp4 *mxfp4;   /* tensors in MXFP4; NULL: config.json names none */
    const dsc_buffer_spec *buffers; /* [buffer_count] of all modules, and where each lies: NULL: in no file */
    int64_t buffer_count;
    const dsc_weight **buffer_sources;
} dsc_lm_params;
DSC_MUST_USE dsc_status dsc_lm_match_weights(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params,
                                             const dsc_weight **sources, dsc_error *err);
/* Names the parameters without a source. */
void dsc_lm_warn_fresh(const dsc_lm_params *params, const dsc_weight *const *sources, char *warnings, size_t bytes);
/* Says what a folder has beside the model that is lost. */
void dsc_lm_warn_beside(const dsc_weights *weights, const dsc_lm_family *family, char *warnings, size_t bytes);
void dsc_lm_warn_later(const dsc_weights *weights, const dsc_lm_family *family, const dsc_lm_config *config,
                       char *warnings, size_t bytes);
/* Finds the adapters' parameters among the tensors of a folder of PEFT's. */
DSC_MUST_USE dsc_status dsc_lm_match_adapter(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params,
                                             const dsc_weight **sources, dsc_error *err);

#endif
