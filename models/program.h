/* program.h - a module as a straight-line list of ops over values, and its compiler.
 *
 * A family describes forward with the builder. dsc_program_compile fuses ops, generates the backward list, decides
 * which values are saved, rebuilt or made again, and which share memory. One executor launches kernels for forward,
 * rebuild and backward, and one function gives the exact plan. A value is a matrix: a number of rows of each sample,
 * in row-major order. models/program/README.md says how the parts fit together. Inside models/ only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_PROGRAM_H
#define DSC_MODELS_PROGRAM_H

#include <dsc/program.h>

#include "models/conv2d.h"
#include "models/linear.h"
#include "models/norm.h"
#include "models/rope.h"

#define DSC_PROGRAM_FORWARD_OPS 128
#define DSC_PROGRAM_OPS 800 /* ops of all lists */
#define DSC_PROGRAM_VALUES 1024
#define DSC_PROGRAM_PARAMS 160
#define DSC_PROGRAM_LAYERS 64 /* linear ones */
#define DSC_PROGRAM_NONE (-1)
enum { DSC_OP_INPUTS = 6, DSC_OP_OUTPUTS = 3 };

/* Kinds, with their operands `in` and `out` in order. */
typedef enum dsc_op_kind {
    DSC_OP_LINEAR,     /* x, residual -> y, before the activation */
    DSC_OP_NORM,       /* x, residual -> y, statistics, x + residual. Without a residual: x -> y, statistics */
    DSC_OP_ROPE_TABLE, /* -> cosines, sines */
    DSC_OP_ROPE,       /* x, cosines, sines -> y */
    DSC_OP_ATTENTION,  /* q, k, v -> y, log-sum-exp */
    DSC_OP_ACTIVATION, /* x -> y */
    DSC_OP_GATED,      /* gate, up -> y */
    DSC_OP_PAIRS,      /* pairs of gate and up -> y, clamped */
    DSC_OP_ADD,        /* a, b -> y */
    DSC_OP_SCALE,      /* x -> y */
    DSC_OP_TANH,       /* x -> y */
    DSC_OP_DROPOUT,    /* x -> y */
    DSC_OP_COLUMNS,    /* x -> y, each column times the parameter's element */
    DSC_OP_SLICE,      /* x -> y, some of its columns in place */
    DSC_OP_COPY,       /* x -> y */
    DSC_OP_REGROUP,    /* x -> y */
    DSC_OP_CUSTOM,     /* inputs -> y */
    DSC_OP_HEADS,      /* own, shared or none -> y, heads put together (kernels/heads.h) */
    /* Exchanges of the ranks that compute the program together (kernels/exchange.h) */
    DSC_OP_EXCHANGE_SHARE,   /* x -> y, equal to x on all ranks; the gradient is the sum of all ranks' */
    DSC_OP_EXCHANGE_SUM,     /* x -> y, the sum of all ranks' x */
    DSC_OP_EXCHANGE_GATHER,  /* x -> y, the rows of all ranks */
    DSC_OP_EXCHANGE_SCATTER, /* x -> y, this rank's rows of the sum of all ranks' x */
    /* Inputs of a first module, and rows of samples. */
    DSC_OP_DATA,    /* -> rows of a batch tensor */
    DSC_OP_PATCHES, /* -> patches of the pictures of a batch tensor */
    DSC_OP_PREPEND, /* x -> y, a parameter's rows before those of each sample */
    DSC_OP_TABLE,   /* x -> y, each row with the parameter's row of its place added */
    DSC_OP_PICK,    /* x -> y, some rows of each sample, or their mean */
    DSC_OP_EMBED,   /* x or none -> y, rows of tables that the batch's tokens name */
    DSC_OP_GATHER,  /* x -> y, rows of each sample that the batch names, or the mean of those up to one */
    /* Mixture of experts. Rows of routed tokens are in expert order. `place`, `source` and `starts`: kernels/moe.h */
    DSC_OP_ROUTER,   /* logits -> weights, chosen */
    DSC_OP_ORDER,    /* chosen -> place, source, starts */
    DSC_OP_DISPATCH, /* x, source, place -> rows */
    DSC_OP_GROUPED,  /* rows, starts, other or none -> rows, each times its expert's matrix, its expert's bias, other */
    DSC_OP_COMBINE,  /* rows, weights, place -> y */
    /* Linear attention */
    DSC_OP_PACK,  /* x, which may be columns of a wider value -> y, the same side by side */
    DSC_OP_CONV,  /* up to three inputs, whose columns follow one another -> y */
    DSC_OP_DELTA, /* q, k and v in one, b, a -> y, states */
    DSC_OP_LSTM,  /* the input's part of the gates -> y, gates, cells */
    /* Pictures */
    DSC_OP_CONV2D, /* x -> y */
    /* Feature maps beside their convolution */
    DSC_OP_BATCH_STATS,  /* x -> mean and 1 / deviation of each column */
    DSC_OP_BATCH_NORM,   /* x, statistics, residual or none -> y */
    DSC_OP_POOL,         /* x -> y, the pixels that were chosen or none */
    DSC_OP_SAMPLE_SCALE, /* x, one row of each sample -> y */
    /* Ends of a last module: losses, and in the same call the gradient of the input (models/program/loss.c) */
    DSC_OP_LOSS,     /* logits -> their gradient */
    DSC_OP_CLASSIFY, /* x, which a table makes logits of -> dx */
    DSC_OP_VECTORS,  /* rows of texts -> a vector of each one, lengths */
    DSC_OP_COMPARE,  /* vectors -> their gradient */
    /* Made by the compiler; dy is the gradient of y. */
    DSC_OP_LINEAR_DX,        /* dy, sum so far, before the activation -> dx */
    DSC_OP_LINEAR_DW,        /* x, dy -> */
    DSC_OP_NORM_BWD,         /* dy, sum so far, x, statistics -> dx */
    DSC_OP_ATTENTION_BWD,    /* dy, y, log-sum-exp, q, k, v -> dq, dk, dv */
    DSC_OP_ACTIVATION_BWD,   /* dy, x -> dx */
    DSC_OP_TANH_BWD,         /* dy, y -> dx */
    DSC_OP_GATED_BWD,        /* dy, gate, up -> d_gate, d_up, y again */
    DSC_OP_PAIRS_BWD,        /* dy, pairs -> d_pairs */
    DSC_OP_CUSTOM_BWD,       /* dy, y or none, inputs or none -> gradients of the inputs */
    DSC_OP_ROUTER_BWD,       /* d_weights, chosen, logits -> d_logits */
    DSC_OP_DISPATCH_BWD,     /* d_rows, sum so far, place -> dx */
    DSC_OP_GROUPED_DX,       /* dy, sum so far, starts -> dx */
    DSC_OP_GROUPED_DW,       /* rows, dy, starts -> */
    DSC_OP_COMBINE_BWD,      /* dy, rows, weights, place -> d_rows, d_weights */
    DSC_OP_HEADS_BWD,        /* dy -> d_own, d_shared */
    DSC_OP_CONV_BWD,         /* dy, inputs -> gradients of the inputs */
    DSC_OP_DELTA_BWD,        /* dy, states, q, k and v in one, b, a -> their gradients */
    DSC_OP_LSTM_BWD,         /* dy, y, gates, cells -> the gradient of the gates before their activation */
    DSC_OP_PREPEND_BWD,      /* dy -> dx */
    DSC_OP_TABLE_DW,         /* dy -> */
    DSC_OP_COLUMNS_DW,       /* dy, x -> */
    DSC_OP_PICK_BWD,         /* dy -> dx */
    DSC_OP_EMBED_DW,         /* dy -> */
    DSC_OP_GATHER_BWD,       /* dy -> dx */
    DSC_OP_VECTORS_BWD,      /* dy, y, lengths -> dx */
    DSC_OP_CONV2D_DX,        /* dy, sum so far -> dx */
    DSC_OP_CONV2D_DW,        /* x, dy -> */
    DSC_OP_BATCH_NORM_BWD,   /* dy, x, statistics, residual or none -> dx, d_residual or none */
    DSC_OP_POOL_BWD,         /* dy, the pixels that were chosen or none -> dx */
    DSC_OP_SAMPLE_SCALE_BWD, /* dy, x -> the gradient of the row of each sample */
    DSC_OP_EXCHANGE_DW,      /* -> the gradient of a parameter becomes the sum of all ranks' */
    DSC_OP_JOIN,             /* gradients of all slices of a value, in place -> its gradient */
    DSC_OP_KINDS
} dsc_op_kind;

/* The place of a value between forward and backward. */
typedef enum dsc_store {
    DSC_STORE_SCRATCH,  /* nowhere */
    DSC_STORE_INPUT,    /* the module's input, which the engine keeps */
    DSC_STORE_SAVED,    /* ctx->saved */
    DSC_STORE_REBUILT,  /* ctx->rebuilt: the products before an activation */
    DSC_STORE_REPEATED, /* ctx->repeated, or backward makes it again by a cheap op */
    DSC_STORE_AGAIN     /* backward always makes it again */
} dsc_store;

typedef struct dsc_value {
    const char *name;
    int64_t rows, columns;
    bool per_sample; /* `rows` of each sample, else in all */
    bool f32;        /* else in the compute dtype */
    bool is_data;    /* made of the batch alone: it has no gradient */
    int64_t height, width; /* rows of a sample are one or more pictures of so many, row by row; 0: they are not */
    dsc_store store;
    int16_t maker, maker_out; /* the op that writes it in forward or backward, NONE: the module's input or d_out */
} dsc_value;

/* A parameter of the module. Its number is its place in the module's list. */
typedef struct dsc_program_param {
    const char *name; /* "self_attn.q_proj", which follows the module's own name */
    const char *part; /* "weight", behind the name; "": nothing is behind it */
    int32_t dim_count;
    int64_t dim[DSC_DIMS_MAX];
    dsc_init_kind init;
    double std; /* init_std of dsc_param_spec */
    dsc_split_axis split;
    bool parted, as_stored, laid_late; /* as in dsc_param_spec */
    bool frozen; /* never trained */
    bool experts; /* as in dsc_param_spec */
    bool in_base; /* the name follows the family's base and not the module's own name */
    bool tied;    /* it is the table of tokens, the model's first parameter */
    dsc_param_part share; /* as `part` of dsc_param_spec; its `spare` of a whole tensor is set by the declaration */
    bool summed;          /* ranks have parts of its gradient: at the end of backward it becomes their sum */
} dsc_program_param;

/* A buffer of the module: dsc_buffer_spec with a name in two parts, as a parameter's. Its number is its place in the
 * module's list. */
typedef struct dsc_program_buffer {
    const char *name, *part; /* "bn1", "running_mean" */
    dsc_buffer_kind kind;
    int64_t count;
    double init, momentum;
    bool row; /* as in dsc_buffer_spec */
} dsc_program_buffer;

/* Ranks that compute the program together, and which of them this one is. count 0: this one alone. */
typedef struct dsc_program_ranks {
    int32_t count, own;
} dsc_program_ranks;

/* A linear layer of the module, with the numbers of its parameters. */
typedef struct dsc_program_layer {
    const char *name;
    dsc_linear shape;
    int32_t weight, bias; /* bias: NONE without one */
    bool out_split, whole, no_adapter, by_parameter, f32_out;
    bool bias_elsewhere; /* another rank adds the bias to its part of a sum */
} dsc_program_layer;

typedef struct dsc_op_norm {
    dsc_norm_kind kind;
    int64_t groups;
    double eps;
    int32_t weight, bias;    /* numbers of the parameters, DSC_PROGRAM_NONE: none. An RMS norm has no bias */
    bool no_weight, no_bias; /* declared without them */
    bool summed;             /* ranks have parts of the gradients, as in dsc_program_param */
    bool plus_one;           /* the factor is 1 + weight, whose first values are 0 */
} dsc_op_norm;
typedef struct dsc_op_rope {
    const dsc_rope *rope;
    int64_t heads, head_size;
    int64_t first; /* the first column of a head that turns */
} dsc_op_rope;
typedef struct dsc_op_attention {
    int64_t heads, kv_heads, head_size;
    double scale;
    int64_t window; /* keys that a query sees at most; with `all` half of it to each side; 0: all before it */
    bool all;       /* and those after it */
    double softcap; /* logits are softcap * tanh(score / softcap); 0: scores */
    double alibi;   /* the exponent that heads' slopes share out, 8 in BLOOM and MPT; 0: no slopes */
    double alibi_of_key; /* as in dsc_attention_logits */
    bool has_sinks;
    int32_t sinks; /* with has_sinks: the declared parameter [heads] of logits that have no value */
} dsc_op_attention;

typedef struct dsc_op_heads {
    int64_t heads, width; /* columns of a head of y */
} dsc_op_heads;

/* ROUTER: the rule is at the same place as that of ORDER. */
typedef struct dsc_op_router {
    dsc_moe_rule rule;
    int32_t bias; /* the buffer's number; NONE: without */
} dsc_op_router;

typedef struct dsc_op_grouped {
    int64_t in, out;
    int32_t experts, weight; /* the parameter's number */
    int32_t bias;            /* likewise, [experts, out]; DSC_PROGRAM_NONE: none */
    bool in_out;             /* matrices are stored [in, out], else [out, in] */
    /* Or element (o, i) of expert e is element (first + o * in + i) * experts + e, as in PEFT's lora_B. */
    bool spread;
    int64_t first;
} dsc_op_grouped;

typedef struct dsc_op_conv {
    int32_t width, weight; /* the declared parameter [columns, 1, width] */
} dsc_op_conv;
/* As in kernels/delta.h; a_log and dt_bias are declared parameters [value_heads]. */
typedef struct dsc_op_delta {
    int64_t key_heads, value_heads, key_size, value_size;
    int32_t a_log, dt_bias;
} dsc_op_delta;

/* Declared parameters [4 * hidden,hidden] and [4 * hidden] of the step before; bias NONE: without biases. */
typedef struct dsc_op_lstm {
    int64_t hidden;
    int32_t weight, bias;
} dsc_op_lstm;

/* BATCH_STATS, BATCH_NORM */
typedef struct dsc_op_batch_norm {
    double eps;
    int32_t weight, bias;   /* declared parameters [columns] */
    int32_t mean, variance; /* declared buffers [columns] */
    bool frozen;            /* the statistics are those of the buffers in training too */
    bool activates;
    dsc_activation kind; /* with `activates`: of y, one of dsc_batch_norm_activates */
} dsc_op_batch_norm;
typedef dsc_pool_shape dsc_op_pool;

/* A batch tensor of floats: [rows,columns] of a sample, or its picture [planes,height,width] in patches. */
typedef struct dsc_op_data {
    int32_t tensor; /* number of the batch tensor */
    int64_t planes, height, width, patch;
    int64_t frames; /* patches of one pixel: pictures that lie below one another in that of a sample; 0: one */
} dsc_op_data;

/* EMBED: y = factor * x + the row of a table of positions, where x is the row of a token in its table, or the input.
 * Batch tensors are int32 numbers of rows, one for each row of y. NONE: the tensor or parameter is not there. */
typedef struct dsc_op_embed {
    int32_t tokens, table;    /* batch tensor, and declared parameter [rows,columns]; table NONE: the input is x */
    double factor;            /* 1 for an input */
    bool rounded;             /* the factor has the compute dtype */
    bool has_padding;         /* token `padding` gives its rows no gradient */
    int32_t padding;
    int32_t position, places; /* declared parameter [rows,columns], and batch tensor */
    int64_t first;            /* the row of place 0 */
    /* Without a tensor of places a token has that in its sample, behind the text so far. Or all tokens have the first
     * row; or those that are not padding are counted, as in RoBERTa, and padding has the row `padding`. */
    bool same, counts;
} dsc_op_embed;

/* GATHER: a batch tensor of int32 places, `count` of each sample; mean: one of each, the last row of the mean. */
typedef struct dsc_op_gather {
    int32_t places;
    int64_t count;
    bool mean;
} dsc_op_gather;

/* CLASSIFY: logits = x times a table's rows. Their losses: of labels, or the cross-entropy of tokens. */
typedef struct dsc_op_classify {
    int32_t table, bias;         /* declared parameters [rows,columns of x] and [rows]; bias NONE: none */
    int64_t outputs;             /* rows of the table that are real */
    int64_t total;               /* likewise of all ranks that share out the table; 0: this one has all of it */
    int32_t targets, reference;  /* batch tensors; reference: of a preference */
    dsc_label_kind labels;       /* NONE: tokens; then the other members count */
    dsc_preference preference;   /* with a beta above 0 */
    double logit_scale, softcap; /* as in dsc_cross_entropy_args; 0: none */
} dsc_op_classify;
/* VECTORS: as in kernels/text_vectors.h; COMPARE: cosines of all vectors, which all losses there take. */
typedef struct dsc_op_vectors {
    int32_t places; /* batch tensor: the place of a text's last token that counts */
    bool mean;      /* of its tokens, else that one */
    bool unit;      /* vectors that are given out have length 1; those that are compared always have */
} dsc_op_vectors;
typedef struct dsc_op_compare {
    int32_t targets;
    dsc_label_kind kind;
    double scale;
} dsc_op_compare;

typedef struct dsc_op {
    dsc_op_kind kind;
    const char *name;
    int16_t in[DSC_OP_INPUTS], out[DSC_OP_OUTPUTS];
    bool unless_kept; /* backward: runs only where ctx->repeated is NULL */
    bool inverse;     /* ROPE, REGROUP: the way back */
    int16_t record;   /* ROUTER: number of its record in the module, from 1; 0: it has none */
    union {
        dsc_linear_layer linear;
        dsc_op_norm norm;
        dsc_op_rope rope;
        dsc_op_attention attention;
        dsc_activation activation; /* ACTIVATION, GATED */
        double factor; /* SCALE */
        dsc_moe_rule rule; /* ROUTER, ORDER */
        dsc_op_router router;
        dsc_op_heads heads;
        dsc_op_grouped grouped;
        dsc_swiglu_clamp clamp; /* PAIRS */
        dsc_op_conv conv;
        dsc_conv2d_layer conv2d;
        dsc_op_delta delta;
        dsc_op_lstm lstm;
        struct {
            int64_t groups, queries, head_size;
        } regroup;
        struct {
            double probability;
            uint32_t stream;
            bool per_sample; /* all rows of a sample together */
        } dropout;
        dsc_op_batch_norm batch_norm;
        dsc_op_pool pool;
        struct {
            int64_t column, width, apart;
        } slice;
        dsc_op_data data; /* DATA, PATCHES */
        dsc_op_embed embed;
        dsc_op_gather gather;
        dsc_op_classify classify;
        dsc_op_vectors vectors;
        dsc_op_compare compare;
        int32_t sharers; /* EXCHANGE_SHARE, EXCHANGE_SUM: as in dsc_exchange_args */
        int32_t summed;  /* EXCHANGE_DW: the parameter's number */
        int32_t targets; /* LOSS: the batch tensor with an int32 class for each row */
        int32_t columns; /* COLUMNS: the parameter's number */
        struct {
            int32_t param; /* its number */
            int64_t rows;
        } table; /* PREPEND, TABLE */
        struct {
            int64_t first, count;
            bool mean;
        } pick;
        struct {
            const dsc_custom_op *op; /* out_columns above 0 */
            int32_t param;           /* number of its first parameter; the others follow */
        } custom;
    };
} dsc_op;

/* A run of ops of one pass: numbers of ops in order. */
typedef enum dsc_pass { DSC_PASS_FORWARD, DSC_PASS_REBUILD, DSC_PASS_BACKWARD, DSC_PASSES } dsc_pass;
typedef struct dsc_op_list {
    int16_t count, op[DSC_PROGRAM_OPS];
} dsc_op_list;

/* Memory that several values share one after another, or of which slices are columns. Between passes it is where its
 * values are stored. */
typedef enum dsc_region {
    DSC_REGION_SCRATCH,
    DSC_REGION_IN,
    DSC_REGION_OUT,
    DSC_REGION_D_OUT,
    DSC_REGION_D_IN,
    DSC_REGION_SAVED,
    DSC_REGION_REBUILT,
    DSC_REGION_REPEATED
} dsc_region;
typedef struct dsc_buffer {
    dsc_region region;
    int16_t value;  /* the one that spans it */
    int16_t anchor; /* backward: the forward buffer that it is, NONE: its own */
    int16_t cache;  /* forward: number of a part of the cache that replaces it where there is one, NONE */
    bool carried;   /* in front of the module's input, output or their gradients: a carried value */
} dsc_buffer;
/* A value's columns in a buffer: `width` of them from `column` on, in rows of `stride`. With `apart` above 0, so many
 * columns after each first one follow further ones. */
typedef struct dsc_place {
    int16_t buffer;
    int64_t column, width, stride, apart;
} dsc_place;

typedef struct dsc_program {
    int64_t tokens;    /* T, rows of a sample in the module's input */
    int32_t positions; /* the batch tensor of tokens' places in their documents; NONE: a sample is one document */
    int16_t input, output, d_output, d_input; /* input: NONE in a first module; d_input: the gradient that leaves */
    /* Values that pass modules beside input and output, and their gradients; NONE: there are none. */
    int16_t carried, carried_out, d_carried_out, d_carried;
    int16_t op_count, forward_count, value_count, buffer_count[2], cache_count;
    int32_t param_count, layer_count;
    int16_t record_count; /* of routers */
    dsc_program_ranks ranks;
    bool loss;  /* the last op gives losses, and the output is the gradient of its input */
    bool keeps; /* of such a program: values that backward could make again are kept */
    const dsc_lora *adapters; /* the module's, while the block is described with its experts' adapters; NULL: without */
    int64_t cache_tokens;
    dsc_program_param param[DSC_PROGRAM_PARAMS];
    dsc_program_layer layer[DSC_PROGRAM_LAYERS];
    int32_t module_buffer_count;
    dsc_program_buffer module_buffer[DSC_MODULE_BUFFERS_MAX];
    dsc_op op[DSC_PROGRAM_OPS];
    dsc_value value[DSC_PROGRAM_VALUES];
    dsc_op_list list[DSC_PASSES];
    dsc_place place[2][DSC_PROGRAM_VALUES]; /* forward's and rebuild's; backward's */
    dsc_buffer buffer[2][DSC_PROGRAM_VALUES];
    bool buffer_used[DSC_PROGRAM_VALUES]; /* forward's; the others were taken up by another one */
    int16_t cache_value[2 * DSC_PROGRAM_FORWARD_OPS];
    struct dsc_layouts *layouts; /* [dsc_program_layouts_bytes], zero at first: offsets of passes that ran; or NULL */
    /* The first failure of the builder; dsc_program_compile returns it. */
    dsc_status status;
    dsc_error err;
} dsc_program;

/* ---- Builder: values by number. After a failure each function gives NONE, and dsc_program_compile the message. -----
 */

void dsc_program_begin(dsc_program *program, int64_t tokens, int64_t columns, int32_t positions);
/* A module whose input is a feature map: rows of a sample are its pixels. Or several of one size, as frames are. */
void dsc_program_begin_picture(dsc_program *program, int64_t height, int64_t width, int64_t columns);
void dsc_program_begin_pictures(dsc_program *program, int64_t pictures, int64_t height, int64_t width, int64_t columns);
/* A first module, which no other one is before: it reads the batch. `tokens`: rows of a sample in its output. */
void dsc_program_begin_first(dsc_program *program, int64_t tokens);
/* A second value between modules, beside the one that they work on: sums over parts of a model that follow each other.
 * `carried`, called once behind begin, is what the module before has handed on, `rows` of each sample. `carry` hands a
 * value on; with a carried one it has the same shape. In memory it lies in front of the module's input or output. */
int16_t dsc_program_carried(dsc_program *program, int64_t rows, int64_t columns);
void dsc_program_carry(dsc_program *program, int16_t value);
/* Bytes in front of an input or output, by the value that is carried there; NONE: 0. */
int64_t dsc_program_carried_bytes(const dsc_program *program, int16_t value, int64_t batch, dsc_dtype dtype);

/* An op of a layer or a norm adds the parameters behind those that are there. A declaration adds them ahead of the op,
 * where their order is another one. Texts are the caller's and stay as long as the program. */
int32_t dsc_program_declare(dsc_program *program, const dsc_program_param *param); /* the parameter's number */

int32_t dsc_program_declare_buffer(dsc_program *program, const dsc_program_buffer *buffer); /* the buffer's number */

/* y = x w + b, with parameters "<name>.weight" and, with bias, "<name>.bias". */
typedef struct dsc_program_linear_args {
    const char *name;
    const char *weight_part, *bias_part; /* in place of "weight" and "bias"; NULL: these */
    dsc_linear shape; /* in 0: as many as x has columns */
    bool bias;
    bool out_split;  /* tensor parallelism cuts the output, else the input */
    bool whole;      /* or neither */
    const int64_t *dims; /* [dim_count] of the weight, whose product is that of the shape; NULL: two dimensions */
    int32_t dim_count;
    bool no_adapter; /* the layer cannot have a low-rank adapter */
    bool by_parameter; /* it has one where its weight is named, and not by the name of the layer */
    bool as_stored;  /* its weight stays as it is beside others in 4 bits */
    bool late_bias;  /* its bias lies behind the other tensors, and its weight beside the next layer's */
    bool f32_out;    /* y is in fp32, which routers alone read; its gradient has the compute dtype */
    /* With several ranks: the shape is that of this rank's part, by out_split. count 0: all ranks have the whole. */
    dsc_param_part share;
    double std;      /* of the weight's first values; 0: zeros. Those of a bias are zeros. */
} dsc_program_linear_args;
int16_t dsc_program_linear(dsc_program *program, int16_t x, const dsc_program_linear_args *args);
int32_t dsc_program_declare_linear(dsc_program *program, const dsc_program_linear_args *args); /* for linear_of */
int16_t dsc_program_linear_of(dsc_program *program, int16_t x, int32_t layer);
/* `groups` norms side by side in a row, with one weight, "<name>.weight", and for a layer norm "<name>.bias". The
 * parameters' numbers are set by the function; norm_of reads those that declare_norm has set. */
int16_t dsc_program_norm(dsc_program *program, int16_t x, const char *name, const dsc_op_norm *args);
void dsc_program_declare_norm(dsc_program *program, const char *name, int64_t channels, dsc_op_norm *norm);
int16_t dsc_program_norm_of(dsc_program *program, int16_t x, const dsc_op_norm *args);
typedef struct dsc_program_tables {
    int16_t cos, sin;
} dsc_program_tables;
dsc_program_tables dsc_program_rope_tables(dsc_program *program, const dsc_rope *rope);
int16_t dsc_program_rope(dsc_program *program, int16_t x, dsc_program_tables tables, const dsc_op_rope *args);
int16_t dsc_program_attention(dsc_program *program, int16_t q, int16_t k, int16_t v, const dsc_op_attention *args);
int16_t dsc_program_activation(dsc_program *program, int16_t x, dsc_activation kind);
int16_t dsc_program_gated(dsc_program *program, int16_t gate, int16_t up, dsc_activation kind); /* kind(gate) * up */
int16_t dsc_program_add(dsc_program *program, int16_t a, int16_t b);
int16_t dsc_program_scale(dsc_program *program, int16_t x, double factor);
/* Exchanges of the ranks, which program->ranks has since the beginning. With one rank each gives x, and there is no op.
 * y of `share` is x for a part of the program that ranks compute apart: their gradients are added. With `sharers` above
 * 0 only those of so many neighbours, whose part is the same. `gather` puts the rows of the ranks' micro-batches behind
 * one another, and `scatter` cuts them so. Ops between them look at single rows alone. */
int16_t dsc_program_exchange_share(dsc_program *program, int16_t x, int32_t sharers);
int16_t dsc_program_exchange_sum(dsc_program *program, int16_t x);
int16_t dsc_program_exchange_gather(dsc_program *program, int16_t x);
int16_t dsc_program_exchange_scatter(dsc_program *program, int16_t x);
/* Each token goes to `top_k` of the experts, which are MLPs: down(activation(gate(x)) * up(x)). y is their sum, by
 * weights that the rule makes of `logits`, [experts] of each token. Each matrix is one parameter [experts, out, in].
 * The '*' in its name is the number of an expert in files. */
typedef struct dsc_program_experts_args {
    const char *gate, *up, *down; /* "mlp.experts.*.gate_proj" */
    dsc_moe_rule rule;
    bool has_bias;
    int32_t bias; /* with has_bias: the declared buffer [experts], which is added to scores for the choice alone */
    dsc_activation activation;
    int64_t inner;
    double std;
} dsc_program_experts_args;
int16_t dsc_program_experts(dsc_program *program, int16_t x, int16_t logits, const dsc_program_experts_args *args);
/* As above, with biases and the clamped SwiGLU (kernels/swiglu_pairs.h). A parameter is one tensor of all experts in
 * files. `gate_up` is [experts, C, 2 inner], whose columns are pairs of a gate and an up, and `down` is
 * [experts, inner, C]; biases are [experts, 2 inner] and [experts, C]. */
typedef struct dsc_program_pair_experts_args {
    const char *gate_up, *gate_up_bias, *down, *down_bias; /* "mlp.experts.gate_up_proj" */
    dsc_moe_rule rule;
    dsc_swiglu_clamp clamp;
    int64_t inner;
    double std;
} dsc_program_pair_experts_args;
int16_t dsc_program_pair_experts(dsc_program *program, int16_t x, int16_t logits,
                                 const dsc_program_pair_experts_args *args);
/* Of columns 2c, a gate, and 2c + 1, an up. */
int16_t dsc_program_pairs(dsc_program *program, int16_t x, const dsc_swiglu_clamp *clamp);
/* y = x times the sigmoid of `gate`, which has one column. */
int16_t dsc_program_gate_rows(dsc_program *program, int16_t x, int16_t gate);
/* In training, elements are 0 with this probability; `stream` keeps the dropouts of a model apart. */
int16_t dsc_program_dropout(dsc_program *program, int16_t x, double probability, uint32_t stream);
/* Columns [first, first + count) of x. Slices that are used cover x exactly. */
int16_t dsc_program_slice(dsc_program *program, int16_t x, int64_t first, int64_t count);
/* `heads` times `width` columns, the first ones from `first` on, the others each `apart` columns further. */
int16_t dsc_program_slice_heads(dsc_program *program, int16_t x, int64_t first, int64_t heads, int64_t width,
                                int64_t apart);
/* Heads of `width` columns: of each its columns in `own`, then those of `shared`, which all heads have, then zeros.
 * shared NONE: none; then heads of `own` may also be wider, and the columns from `width` on are left out. */
int16_t dsc_program_heads(dsc_program *program, int16_t own, int16_t shared, const dsc_op_heads *args);
/* The columns of x side by side, for ops that cannot read those of a wider value. */
int16_t dsc_program_pack(dsc_program *program, int16_t x);
/* Causal convolution of each channel over the tokens of its document (kernels/conv.h). Channels are the columns of
 * inputs x[count], one to three, in order. */
int16_t dsc_program_conv(dsc_program *program, const int16_t *x, int32_t count, const dsc_op_conv *args);
/* Convolution of pictures, as PyTorch's Conv2d (kernels/conv2d.h). The rows of x are a picture. Parameters are
 * "<name>.weight" [out,columns of x / groups,kernel], and with bias "<name>.bias" [out]. Pairs are downwards and
 * across. A window of one pixel at stride 1, without padding and groups, is a linear layer. */
typedef struct dsc_program_conv2d_args {
    const char *name;
    int64_t out, groups;                                   /* columns of y; groups 0: 1 */
    int64_t kernel[2], stride[2], padding[2], dilation[2]; /* stride and dilation 0: 1 */
    bool bias;
    double std; /* of the weight's first values; 0: zeros. Those of a bias are zeros. */
} dsc_program_conv2d_args;
int16_t dsc_program_conv2d(dsc_program *program, int16_t x, const dsc_program_conv2d_args *args);
/* Batch normalization as torch.nn.BatchNorm2d (kernels/batch_norm.h): parameters "<name>.weight" and "<name>.bias",
 * buffers "<name>.running_mean", "<name>.running_var" and "<name>.num_batches_tracked". In training the statistics are
 * those of the micro-batch. Frozen it is torchvision's FrozenBatchNorm2d: nothing is trained or counted. */
typedef struct dsc_program_batch_norm_args {
    const char *name;
    double eps, momentum; /* above 0; 0 to 1 */
    bool frozen;
} dsc_program_batch_norm_args;
int16_t dsc_program_batch_norm(dsc_program *program, int16_t x, const dsc_program_batch_norm_args *args);
/* Windows of a feature map (kernels/pool.h), by kernel, stride and padding; and means of height by width windows that
 * share out the map. */
int16_t dsc_program_max_pool(dsc_program *program, int16_t x, const dsc_op_pool *args);
int16_t dsc_program_average_pool(dsc_program *program, int16_t x, const dsc_op_pool *args);
int16_t dsc_program_mean_pool(dsc_program *program, int16_t x, int64_t height, int64_t width);
/* The rows of each sample times its one row of `scale`, element by element. */
int16_t dsc_program_scale_rows(dsc_program *program, int16_t x, int16_t scale);
/* As dropout, of whole samples: torchvision's StochasticDepth in mode "row". */
int16_t dsc_program_drop_path(dsc_program *program, int16_t x, double probability, uint32_t stream);
/* The gated delta rule (kernels/delta.h). qkv has the columns of q, k and v, b and a one for each head of values. */
int16_t dsc_program_delta(dsc_program *program, int16_t qkv, int16_t b, int16_t a, const dsc_op_delta *args);
/* torch.nn.LSTM with batch_first (kernels/lstm.h), over the rows of each sample in order: "<name>.weight_ih_l0" and so
 * on, with torch's first values. y has `hidden` columns, those of the last layer. */
#define DSC_PROGRAM_LSTM_LAYERS 8
typedef struct dsc_program_lstm_args {
    const char *name;
    int64_t hidden;
    int32_t layers; /* 1 to DSC_PROGRAM_LSTM_LAYERS */
    bool bias;
} dsc_program_lstm_args;
int16_t dsc_program_lstm(dsc_program *program, int16_t x, const dsc_program_lstm_args *args);
/* Rows of a batch tensor of floats; and patches of its pictures [planes,height,width], which are windows that do not
 * overlap. A patch is a row of planes * patch * patch columns. A convolution with such windows is a product over the
 * patches, with a weight [out,planes,patch,patch]. */
int16_t dsc_program_data(dsc_program *program, int32_t tensor, int64_t rows, int64_t columns);
int16_t dsc_program_patches(dsc_program *program, const dsc_op_data *args);
/* `param`: a declared one of rows times x's columns elements. Its rows come before those of each sample. */
int16_t dsc_program_prepend(dsc_program *program, int16_t x, int32_t param, int64_t rows);
/* `param`: a declared one with as many rows as a sample has; row p is added to row p of each sample. */
int16_t dsc_program_table(dsc_program *program, int16_t x, int32_t param);
/* `param`: a declared one with as many elements as x has columns, which are their factors. */
int16_t dsc_program_scale_columns(dsc_program *program, int16_t x, int32_t param);
/* Rows [first, first + count) of each sample, or the mean of these. */
int16_t dsc_program_pick(dsc_program *program, int16_t x, int64_t first, int64_t count, bool mean);
/* Places increase within a sample. */
int16_t dsc_program_gather(dsc_program *program, int16_t x, const dsc_op_gather *args);
int16_t dsc_program_tanh(dsc_program *program, int16_t x);
/* x: NONE where the op has a table. */
int16_t dsc_program_embed(dsc_program *program, int16_t x, const dsc_op_embed *args);
/* A row of x has for each of `groups` key heads its `queries` query heads, then its key and its value, all of head_size
 * columns. y has all query heads, then all keys, then all values. */
int16_t dsc_program_regroup(dsc_program *program, int16_t x, int64_t groups, int64_t queries, int64_t head_size);
/* An op of the caller's, which stays as long as the program; in[op->input_count]. out_columns is above 0, and the texts
 * of its parameters are whole: { "scale.bias" } and no part. */
int16_t dsc_program_custom(dsc_program *program, const int16_t *in, const dsc_custom_op *op);
/* The ends of a last module, of which its output is one. */
int16_t dsc_program_loss(dsc_program *program, int16_t logits, int32_t targets);
int16_t dsc_program_classify(dsc_program *program, int16_t x, const dsc_op_classify *args);
int16_t dsc_program_vectors(dsc_program *program, int16_t x, const dsc_op_vectors *args);
int16_t dsc_program_compare(dsc_program *program, int16_t vectors, const dsc_op_compare *args);
void dsc_program_end(dsc_program *program, int16_t output);

/* ---- Compiler ---- */

typedef struct dsc_program_options {
    const dsc_lora *lora; /* the module's adapters, or NULL */
    int64_t cache_tokens; /* tokens of a text whose keys and values are kept; 0: none */
    bool no_fusion;       /* tests: every op by itself */
} dsc_program_options;
DSC_MUST_USE dsc_status dsc_program_compile(dsc_program *program, const dsc_program_options *options, dsc_error *err);

/* ---- A module ---- */

/* Memory that the owner may give a compiled program, in program->layouts, so that offsets are not placed in each call.
 * Several threads may share it. */
size_t dsc_program_layouts_bytes(const dsc_program *program);

DSC_MUST_USE dsc_status dsc_program_plan(const dsc_program *program, const dsc_module *module, const dsc_lora *lora,
                                         int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                                         dsc_module_plan *out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_program_run(const dsc_program *program, dsc_pass pass, const dsc_lora *lora,
                                        dsc_module_ctx *ctx, dsc_error *err);
/* Micro-batches ctx[count] of one norm group together, each in its own memory: ops up to an exchange run for one after
 * the other. norm_numbers: the most that an exchange has of a micro-batch; 0: the program has no batch norm. */
DSC_MUST_USE dsc_status dsc_program_run_group(const dsc_program *program, dsc_pass pass, const dsc_lora *lora,
                                              dsc_module_ctx *ctx, int32_t count, dsc_error *err);
int64_t dsc_program_norm_numbers(const dsc_program *program);
/* A program that ends with an op of losses, as a last module. It has a forward alone, which with `save` makes the
 * gradients at once; all of its memory is scratch. */
DSC_MUST_USE dsc_status dsc_program_plan_loss(const dsc_program *program, const dsc_module *module,
                                              const dsc_lora *lora, int64_t batch, dsc_dtype dtype,
                                              const dsc_plan_sink *sink, dsc_module_plan *out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_program_run_loss(const dsc_program *program, const dsc_lora *lora, dsc_module_ctx *ctx,
                                             dsc_error *err);
/* Lines of text for people: ops, shapes, bytes and FLOPs of a micro-batch, and where values are kept. As snprintf. */
int dsc_program_show(const dsc_program *program, int64_t batch, dsc_dtype dtype, char *out, size_t bytes);

#endif
