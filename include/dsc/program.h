/* program.h - a language model described as lists of ops, without a backward: embedding, blocks, head.
 *
 * A block is a list of ops over values; its backward, memory and fusions are the library's. The model that comes out
 * is a dsc_model like a built-in one: ZeRO 0 to 3, offload, recomputation, checkpoints. Batch tensors are "tokens" and
 * "targets", int32 [T] each; the head's loss is the cross-entropy of the next tokens. Samples may be arrays of floats,
 * as pictures, and a model may end with a classifier; then its first and last modules are lists of ops too.
 * docs/own_model.md leads through examples/own_model.c and examples/own_vision.c.
 *
 * Letters: B samples of a micro-batch, T tokens of a sample, C channels of the model, V tokens of the vocabulary.
 * A value has [B*T, columns] elements in the compute dtype (float, bfloat16 or half), row by row. In a first and a last
 * module a sample may have another number of rows.
 *
 * Errors: a wrong call returns DSC_NODE_NONE and the builder keeps the first failure, which dsc_build_finish returns.
 * Its message names the block, the op and the shapes. Calls after a failure do nothing.
 * A builder is used by one thread. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_PROGRAM_H
#define DSC_PROGRAM_H

#include <dsc/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_builder dsc_builder; /* a model that is being described; opaque */
typedef int32_t dsc_node;               /* a value of the block in hand; other blocks refuse it */
#define DSC_NODE_NONE (-1)

/* ---- The model --------------------------------------------------------------------------------------------------- */

/* Each parameter begins from a normal distribution with mean 0 and `init_std`, but norms' weights with 1 and biases
 * with 0. All are trained. */
typedef struct dsc_build_options {
    uint32_t struct_bytes;
    const char *name;   /* the model's, in messages and checkpoints; copied */
    int64_t tokens;     /* T, 1 to 2^24: tokens of a sample, or rows that the first module makes of it */
    int64_t vocabulary; /* V, 1 to 2^24: of tokens, or the classes */
    int64_t channels;   /* C, 1 to 2^18 */
    bool positions;     /* the embedding adds a learned vector for each position of a sample, 0 to T - 1 */
    double init_std;    /* 0 to 1000 */
    /* Samples that are arrays of floats: the first batch tensor has this shape for each of them, and
     * dsc_build_begin_first describes the module that reads it. 2 dimensions: rows and columns, of a name of yours. 3
     * dimensions: a picture [planes,height,width]; under the name DSC_BATCH_PIXELS, files of pictures (docs/data.md)
     * are read. The name is copied, and the dtype is DSC_F32. 0 dimensions: samples are tokens. */
    dsc_batch_spec data;
} dsc_build_options;
#define DSC_BUILD_OPTIONS_INIT                                                                                         \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_build_options), NULL, 0, 0, 0, false, 0.02,                                               \
        {                                                                                                              \
            NULL, DSC_F32, 0, { 0 }                                                                                    \
        }                                                                                                              \
    }

/* Begins a model. With tokens it has an embedding: parameters "embedding.weight" [V,C] and, with positions,
 * "positions.weight" [T,C]. *out is owned by the caller until dsc_build_finish. Errors: DSC_ERR_STATE (an option out of
 * range), DSC_ERR_NOMEM. */
DSC_API DSC_MUST_USE dsc_status dsc_build_open(dsc_builder **out, const dsc_build_options *options, dsc_error *err);
/* Gives up; safe on NULL. Models that were finished stay. */
DSC_API void dsc_build_close(dsc_builder **builder);

/* A block: a function of [B*T,C] to [B*T,C] that adds ops and returns the block's output. x is its input. Parameters of
 * block i are named "blocks.<i>.<name>.weight" and so on. */
typedef dsc_node (*dsc_build_block_fn)(dsc_builder *builder, dsc_node x, int64_t block, void *user);
/* `count` more blocks; at most 4096 in all. `user` is only used during the call. */
DSC_API void dsc_build_blocks(dsc_builder *builder, int64_t count, dsc_build_block_fn block, void *user);
/* One block, op by op: its ops stand between the two calls. */
DSC_API dsc_node dsc_build_begin(dsc_builder *builder); /* the block's input */
DSC_API void dsc_build_end(dsc_builder *builder, dsc_node output);
/* One block whose input is the feature map that the module before it gives: [B*height*width,columns], a picture's
 * pixels row by row. A module may give a picture of any size; other outputs are [B*T,C]. */
DSC_API dsc_node dsc_build_begin_picture(dsc_builder *builder, int64_t height, int64_t width, int64_t columns);
/* The first module of a model with `data`, before its blocks: its ops stand between this call and dsc_build_end. They
 * begin with dsc_build_data or dsc_build_patches, and the output is [B*T,C] or a picture. Parameters are named
 * "embedding.<name>".
 */
DSC_API void dsc_build_begin_first(dsc_builder *builder);
/* The last module, behind the blocks, in place of the head. x is what the last block gives; the output is [B*L,V],
 * logits of L items of a sample, 1 for a classifier. "targets" are int32 [L], and the loss is the mean cross-entropy.
 * Parameters are named "head.<name>". dsc_build_finish then takes no head. */
DSC_API dsc_node dsc_build_begin_last(dsc_builder *builder);

typedef enum dsc_build_norm_kind {
    DSC_BUILD_LAYER_NORM, /* (x - mean) / sqrt(variance + eps) * weight + bias */
    DSC_BUILD_RMS_NORM    /* x / sqrt(mean of squares + eps) * weight */
} dsc_build_norm_kind;

/* The head: a norm ("norm.weight", a layer norm's "norm.bias"), a product to V logits and the cross-entropy with the
 * targets. */
typedef struct dsc_build_head_options {
    uint32_t struct_bytes;
    bool tied; /* the logits' weight is "embedding.weight", else "head.weight" [V,C] */
    dsc_build_norm_kind norm;
    double eps; /* above 0 */
} dsc_build_head_options;
#define DSC_BUILD_HEAD_OPTIONS_INIT                                                                                    \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_build_head_options), true, DSC_BUILD_RMS_NORM, 1e-5                                       \
    }

/* Ends the model. *builder becomes NULL in any case. *out is owned by the caller: dsc_model_close, after the engine
 * that trains it. Errors: the first failure of a call, no block (DSC_ERR_INPUT), DSC_ERR_NOMEM. */
DSC_API DSC_MUST_USE dsc_status dsc_build_finish(dsc_builder **builder, const dsc_build_head_options *head,
                                                 dsc_model **out, dsc_error *err); /* head: NULL with a last module */

/* ---- Ops --------------------------------------------------------------------------------------------------------- */

/* At most 128 ops, 64 linear layers and 160 parameters in a block. Names have 1 to 32 characters, letters, digits, '_'
 * and '.', and differ in a block. Each value but the output is read by an op. */

/* y = x w^T + b: "<name>.weight" [columns,columns of x] and, with bias, "<name>.bias" [columns]. */
DSC_API dsc_node dsc_build_linear(dsc_builder *builder, dsc_node x, const char *name, int64_t columns, bool bias);
/* Norms of the columns of each row, in `groups` equal parts with one weight for all parts: "<name>.weight"
 * [columns/groups] and for a layer norm "<name>.bias". groups 1: of the whole row; of heads: as many as heads. */
DSC_API dsc_node dsc_build_norm(dsc_builder *builder, dsc_node x, const char *name, dsc_build_norm_kind kind,
                                int64_t groups, double eps);
/* Rotary positions of `heads` equal parts of each row. `turned`, an even number of at most 512, counts a head's first
 * elements that turn. Pairs are as in Llama: i and i + turned / 2 turn by position / theta^(2 i / turned). */
DSC_API dsc_node dsc_build_rope(dsc_builder *builder, dsc_node x, int64_t heads, int64_t turned, double theta);

typedef struct dsc_build_attention_options {
    uint32_t struct_bytes;
    int64_t heads;    /* heads of q */
    int64_t kv_heads; /* heads of k and v, a divisor of heads; 0: heads */
    double scale;     /* factor of q k^T; 0: 1 / sqrt(columns of a head) */
    int64_t window;   /* a token sees no more than so many, itself among them; 0: all before it */
    bool all;         /* and those after it; a window of w is then w / 2 to each side */
} dsc_build_attention_options;
#define DSC_BUILD_ATTENTION_OPTIONS_INIT                                                                               \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_build_attention_options), 1, 0, 0, 0, false                                               \
    }
/* softmax(scale q k^T) v for each head, over a token and those before it in its sample, or all of them. q has heads * D
 * columns, k and v have kv_heads * D; the result is as wide as q. */
DSC_API dsc_node dsc_build_attention(dsc_builder *builder, dsc_node q, dsc_node k, dsc_node v,
                                     const dsc_build_attention_options *options);

typedef enum dsc_build_activation_kind {
    DSC_BUILD_GELU_TANH, /* the approximation by tanh, as in GPT-2 */
    DSC_BUILD_GELU,      /* by the error function */
    DSC_BUILD_RELU,
    DSC_BUILD_SILU,         /* x times its sigmoid */
    DSC_BUILD_SIGMOID,
    DSC_BUILD_RELU6,        /* min(max(x, 0), 6) */
    DSC_BUILD_HARD_SIGMOID, /* min(max(x + 3, 0), 6) / 6 */
    DSC_BUILD_HARD_SWISH    /* x times its hard sigmoid */
} dsc_build_activation_kind;
DSC_API dsc_node dsc_build_activation(dsc_builder *builder, dsc_node x, dsc_build_activation_kind kind);
DSC_API dsc_node dsc_build_gated(dsc_builder *builder, dsc_node gate, dsc_node up); /* silu(gate) * up */
DSC_API dsc_node dsc_build_add(dsc_builder *builder, dsc_node a, dsc_node b);
DSC_API dsc_node dsc_build_scale(dsc_builder *builder, dsc_node x, double factor); /* finite */
/* In training each element is 0 with this probability, below 1, else divided by 1 - probability. */
DSC_API dsc_node dsc_build_dropout(dsc_builder *builder, dsc_node x, double probability);
/* Columns [first, first + columns) of x, without a copy. Slices of one value must cover it exactly. */
DSC_API dsc_node dsc_build_slice(dsc_builder *builder, dsc_node x, int64_t first, int64_t columns);

/* ---- Data, and rows of samples ----------------------------------------------------------------------------------- */

/* Of a first module: rows of data of two dimensions. */
DSC_API dsc_node dsc_build_data(dsc_builder *builder);
/* Of a first module: windows of patch by patch of a picture, which do not overlap, from left to right and downwards.
 * Each is a row [planes,patch,patch]; dsc_build_linear makes of it what PyTorch's Conv2d with that stride does. */
DSC_API dsc_node dsc_build_patches(dsc_builder *builder, int64_t patch);
/* Convolution of a picture, as PyTorch's Conv2d: "<name>.weight" [columns,columns of x / groups,kernel] and, with bias,
 * "<name>.bias" [columns]. Pairs are downwards and across. Rows of x are a picture where patches of one pixel, a
 * convolution or dsc_build_begin_picture made it, and after ops that keep rows. The result is a picture of
 * (side + 2 padding - dilation (kernel - 1) - 1) / stride + 1 pixels to a side, rounded down. */
typedef struct dsc_build_conv2d_options {
    uint32_t struct_bytes;
    int64_t columns; /* of the result */
    int64_t groups;  /* divides the columns of x and of the result; as many as x has columns: depthwise */
    int64_t kernel[2], stride[2], padding[2], dilation[2]; /* 1 to 4096, padding 0 to 4096 */
    bool bias;
    double init_std; /* of the weight's first values, with mean 0; below 0: the model's */
} dsc_build_conv2d_options;
#define DSC_BUILD_CONV2D_OPTIONS_INIT                                                                                  \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_build_conv2d_options), 1, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, false, -1            \
    }
DSC_API dsc_node dsc_build_conv2d(dsc_builder *builder, dsc_node x, const char *name,
                                  const dsc_build_conv2d_options *options);
/* `rows` trained rows before those of each sample, as a class token: "<name>.weight" [rows,columns of x]. */
DSC_API dsc_node dsc_build_prepend(dsc_builder *builder, dsc_node x, const char *name, int64_t rows);
/* Adds a trained row to each row of a sample, by its place: "<name>.weight" [rows of a sample,columns of x]. */
DSC_API dsc_node dsc_build_positions(dsc_builder *builder, dsc_node x, const char *name);
/* Rows [first, first + count) of each sample; and their mean, one row of a sample. */
DSC_API dsc_node dsc_build_rows(dsc_builder *builder, dsc_node x, int64_t first, int64_t count);
DSC_API dsc_node dsc_build_mean(dsc_builder *builder, dsc_node x, int64_t first, int64_t count);

/* torch.nn.LSTM with batch_first over the rows of each sample, from a state of zeros, in 1 to 8 layers of `columns`.
 * Layer i has "<name>.weight_ih_l<i>" [4 columns,columns of its input] and "<name>.weight_hh_l<i>" [4 columns,columns],
 * and biases "<name>.bias_ih_l<i>" and "<name>.bias_hh_l<i>" [4 columns]. Gates are in the order i, f, g, o. First
 * values are torch's, uniform up to 1 / sqrt(columns). Errors: DSC_ERR_INPUT. */
DSC_API dsc_node dsc_build_lstm(dsc_builder *builder, dsc_node x, const char *name, int64_t columns, int32_t layers);

/* ---- Feature maps ------------------------------------------------------------------------------------------------ */

/* Rows of a sample are the pixels of a picture, row by row, and columns are its channels. dsc_build_patches(builder, 1)
 * makes such values, and ops that work on single rows keep them so. */

/* As torch.nn.BatchNorm2d, over the rows of a micro-batch: "<name>.weight" and "<name>.bias" [columns of x]. Evaluation
 * reads buffers, "<name>.running_mean" and "<name>.running_var" [columns of x]; "<name>.num_batches_tracked" counts.
 * eps is above 0, and momentum from 0 to 1, 0.1 in PyTorch. Errors: DSC_ERR_INPUT. */
DSC_API dsc_node dsc_build_batch_norm(dsc_builder *builder, dsc_node x, const char *name, double eps, double momentum);
/* As torch.nn.MaxPool2d and AvgPool2d with square windows and ceil_mode=False; the averages count the padding. */
DSC_API dsc_node dsc_build_max_pool(dsc_builder *builder, dsc_node x, int64_t kernel, int64_t stride, int64_t padding);
DSC_API dsc_node dsc_build_average_pool(dsc_builder *builder, dsc_node x, int64_t kernel, int64_t stride,
                                        int64_t padding);
/* As torch.nn.AdaptiveAvgPool2d, to height by width pixels. */
DSC_API dsc_node dsc_build_mean_pool(dsc_builder *builder, dsc_node x, int64_t height, int64_t width);
/* Each row of x times the one row that `scale` has of its sample, as dsc_build_mean gives it. */
DSC_API dsc_node dsc_build_scale_rows(dsc_builder *builder, dsc_node x, dsc_node scale);
/* As dsc_build_dropout, but of whole samples: torchvision's StochasticDepth in mode "row". */
DSC_API dsc_node dsc_build_drop_path(dsc_builder *builder, dsc_node x, double probability);

/* ---- Custom ops -------------------------------------------------------------------------------------------------- */

#define DSC_CUSTOM_INPUTS_MAX 3
#define DSC_CUSTOM_PARAMS_MAX 4

/* One call of an op. Pointers are of the device's memory (host memory on a CPU). On a GPU launch on `native_stream`. On
 * a CPU that is NULL, and the callback is done when it returns. Equal inputs must give equal bits in each call, as
 * forward may run again in backward. */
typedef struct dsc_custom_call {
    uint32_t struct_bytes;
    void *native_stream; /* a cudaStream_t, or NULL */
    dsc_dtype dtype;     /* dtype of in, out, d_in, d_out and param */
    int64_t batch, rows; /* B; B * T */
    bool training;
    int64_t in_columns[DSC_CUSTOM_INPUTS_MAX], out_columns;
    const void *in[DSC_CUSTOM_INPUTS_MAX]; /* [rows,in_columns[i]]; backward: NULL without backward_reads_in */
    void *out;                                /* [rows,out_columns]: written by forward; NULL in backward */
    const void *result;                       /* backward: what forward wrote; NULL without backward_reads_out */
    const void *d_out;                        /* backward: gradient of out, [rows,out_columns] */
    void *d_in[DSC_CUSTOM_INPUTS_MAX];        /* backward: written, the gradient of this use of in[i] */
    const void *param[DSC_CUSTOM_PARAMS_MAX]; /* whole parameters */
    float *grad[DSC_CUSTOM_PARAMS_MAX];       /* backward: fp32, overwritten; NULL: frozen */
    void *scratch;                            /* the bytes that the op asks for, 256-byte aligned */
} dsc_custom_call;

typedef struct dsc_custom_param {
    const char *name;      /* "blocks.<i>.<op's name>.<name>" */
    int64_t rows, columns; /* a matrix [rows,columns]; rows 0: a vector [columns] */
    double init_std;       /* standard deviation, with mean 0; 0: zeros */
    bool ones;             /* begins with 1 in place of that */
} dsc_custom_param;

/* `forward` writes out from in and param; `backward` writes each d_in and grad. A status other than DSC_OK ends the
 * step with that error. */
typedef dsc_status (*dsc_custom_fn)(void *user, const dsc_custom_call *call, dsc_error *err);
typedef struct dsc_custom_op {
    uint32_t struct_bytes;
    const char *name;
    int32_t input_count; /* 1 to 3 */
    int64_t out_columns; /* 0: as many as the first input has */
    bool backward_reads_in, backward_reads_out;
    int64_t scratch_bytes, scratch_row_bytes; /* scratch of a call: the first, and the second for each row */
    double flops_per_row;                     /* FLOPs of forward, for the MFU; backward counts twice as much */
    int32_t param_count;                      /* 0 to 4 */
    dsc_custom_param param[DSC_CUSTOM_PARAMS_MAX];
    dsc_custom_fn forward, backward;
    void *user; /* given to the callbacks, as long as the model lives; several threads may call */
} dsc_custom_op;
#define DSC_CUSTOM_OP_INIT                                                                                             \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_custom_op), NULL, 1, 0, true, false, 0, 0, 0, 0,                                          \
            { { NULL, 0, 0, 0, false }, { NULL, 0, 0, 0, false }, { NULL, 0, 0, 0, false },                            \
              { NULL, 0, 0, 0, false } },                                                                              \
            NULL, NULL, NULL                                                                                           \
    }
/* `op` is copied. in[input_count]. Inputs are whole values: a slice goes through another op first. */
DSC_API dsc_node dsc_build_custom(dsc_builder *builder, const dsc_node *in, const dsc_custom_op *op);

#ifdef __cplusplus
}
#endif
#endif
