/* model.h - a model is an ordered list of modules; the engine shards, offloads, recomputes and saves what they declare.
 *
 * A module (an embedding, a transformer block, the head) declares parameters and implements forward and backward over
 * buffers that it is given. It never allocates, never waits, never sees a rank or a shard, so that it can be
 * recomputed, captured or run elsewhere. The engine gathers a module's parameters before each call and releases them
 * after. A user's own table of modules gets ZeRO, recomputation and checkpoints like the built-in models
 * (examples/own_kernel.c). Shapes: B samples of a micro-batch, row-major. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODEL_H
#define DSC_MODEL_H

#include <dsc/error.h>
#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dsc_stream; /* opaque: where a module launches its work */
struct dsc_exchange_group; /* kernels/exchange.h */

typedef enum dsc_init_kind {
    DSC_INIT_ZEROS,
    DSC_INIT_ONES,
    DSC_INIT_NORMAL,
    DSC_INIT_UNIFORM,
    /* A vector: the norms of the rows, or columns, of a matrix's first values as the compute dtype keeps them. The
     * matrix is parameter shared_param of the same module; shared_module is -1. */
    DSC_INIT_ROW_NORMS,
    DSC_INIT_COLUMN_NORMS
} dsc_init_kind;
typedef enum dsc_split_axis { DSC_SPLIT_NONE, DSC_SPLIT_ROW, DSC_SPLIT_COLUMN } dsc_split_axis;

/* The part of a tensor that one of several ranks has. Along one axis the whole tensor is longer than the part. It is
 * there one run of elements, or several side by side, as q, k and v in one matrix. Each run is shared out in
 * the order of parts; where their number does not divide it, the first ones have one element more. */
enum { DSC_PART_RUNS = 3 };
typedef struct dsc_param_part {
    int32_t count, index; /* parts of the tensor, and which one this is. count 0: it is the whole */
    int32_t axis;         /* of the dimensions */
    int32_t run_count;
    int64_t run[DSC_PART_RUNS]; /* lengths in the whole tensor */
    bool spare; /* a rank before this one has the same elements. It stands for them in norms, files and counts */
} dsc_param_part;

typedef struct dsc_param_spec {
    const char *name; /* Hugging Face name: "transformer.h.0.attn.c_attn.weight"; unique but for shared ones */
    int32_t dim_count;
    int64_t dim[DSC_DIMS_MAX];
    dsc_init_kind init;
    float init_std;  /* DSC_INIT_NORMAL, mean 0; DSC_INIT_UNIFORM: between minus this and this */
    bool trainable;  /* false: no gradient, no optimizer state */
    bool decay;      /* weight decay applies */
    dsc_split_axis split; /* for tensor parallelism */
    /* A tied parameter: owned by parameter shared_param of module shared_module (earlier in the list); -1: own.
     * Its gradient is this use's alone; the engine adds the uses in backward order. */
    int32_t shared_module, shared_param;
    /* Files have one tensor for each index of the first dimension, without that dimension. The name has '*' in place of
     * the index, once: "model.layers.0.mlp.experts.*.up_proj.weight". */
    bool parted;
    /* A frozen weight that dsc.quantize_base leaves as it is: its files have others in 4 bits, and not this one. */
    bool as_stored;
    /* Matrices of experts, [experts,rows,columns]: dsc.quantize_base.experts keeps them in 4 bits while they are
     * frozen. */
    bool experts;
    /* Its place in a flat group is behind the module's other tensors, so that the matrices around it lie side by side.
     */
    bool laid_late;
    /* This rank's part, where several ranks compute a model together: `dim` are the dimensions of the part. */
    dsc_param_part part;
} dsc_param_spec;

/* The name of a language model's tensor of targets, which hold one token or class for each loss item. A negative target
 * (-1, or PyTorch's ignore_index -100) is masked: it is not counted, and has neither loss nor gradient. */
#define DSC_BATCH_TARGETS "targets"

/* The name of a tensor of pictures: F32 [planes,height,width] of each sample, normalised as the model expects it. */
#define DSC_BATCH_PIXELS "pixels"

/* The name of a tensor of tokens' places in their documents: 0, or one more than that of the token before. */
#define DSC_BATCH_POSITIONS "positions"

/* A masked language model has targets at K positions of a sample. This is the name of its last batch tensor, which
 * holds these positions in ascending order, below the sequence length. The model's tokens there are the masked input.
 * */
#define DSC_BATCH_PREDICTED "predicted"
#define DSC_MASK_SHARE 0.15 /* default share of a sample's tokens that such a model predicts */

/* A model that classifies texts, or predicts numbers for them. A loss item is a sample. The batch has tokens [T],
 * targets, positions [T], pooled [1] and, where the model asks for them, segments [T]. Targets are a class as int32
 * [1], or `count` fp32 numbers. Tokens behind a text begin another document by their positions, so nobody sees them.
 * `pooled` is the place of a text's last token, or 0. Segments are types of tokens: 0 of a first text, 1 of a second
 * one. A model of other samples, such as pictures, has classes without names, and its batch has the samples and the
 * targets. */
#define DSC_BATCH_POOLED "pooled"
#define DSC_BATCH_SEGMENTS "segments"

/* A model that makes a vector of each text has a kind from DSC_LABELS_RANKED on, as many numbers as the vector, and a
 * batch without segments. Targets are two fp32 numbers of each sample: its place in its row, and the row's score. Rows
 * are an anchor of place 0, its positive of place 1 and its negatives of places 2, 3 and so on, side by side. The loss
 * compares all texts of the micro-batch. A loss item is a sample, which has the loss of its row. A row is whole in its
 * micro-batch, and an anchor without a positive behind it counts in no loss. A score that is not known is NaN. */
/* Which tokens of a text its vector is made of: all, their mean; the first one; the last one. AUTO: as the folder of
 * sentence-transformers says, else the mean, and of a model whose tokens see those before them the last one. */
typedef enum dsc_pooling { DSC_POOLING_AUTO, DSC_POOLING_MEAN, DSC_POOLING_FIRST, DSC_POOLING_LAST } dsc_pooling;
/* Whether vectors have unit length. AUTO: as the folder says, else not. The loss compares unit vectors always. */
typedef enum dsc_unit { DSC_UNIT_AUTO, DSC_UNIT_YES, DSC_UNIT_NO } dsc_unit;
typedef struct dsc_labels {
    dsc_label_kind kind;      /* DSC_LABELS_NONE: the model predicts tokens */
    int64_t count;            /* N: classes, or numbers */
    const char *const *names; /* [count] of classes, borrowed from the model; NULL: numbers, or not of texts */
    bool last;                /* `pooled` is the place of the last token, else 0 */
    bool segments;            /* the batch has segments */
    int64_t tokens; /* T: each token has a class, and is a loss item; targets, which may be masked, and pooled are [T],
                     * the latter all places. 0: a text has a label */
    bool smooths;   /* classes: the loss module reads label_smoothing of its context and writes `places` */
} dsc_labels;
#define DSC_LABELS_MAX 65536

/* Direct preference optimization (Rafailov et al. 2023). Samples 2 i and 2 i + 1 of a micro-batch are a pair, the
 * chosen one first. l is the log-probability of a sample's counted targets, and ref that of a frozen reference. The
 * last batch tensor has ref: one double for each sample, under this name.
 *
 *     margin = (l - ref of the chosen one) - (l - ref of the rejected one)
 *     loss   = -(1 - s) log sigmoid(beta margin) - s log sigmoid(-beta margin)
 *
 * The loss of a micro-batch is the mean over its pairs, so it has an even number of samples. */
#define DSC_BATCH_REFERENCE "reference"
typedef struct dsc_preference {
    double beta;      /* 0: none, the loss is that of the targets */
    double smoothing; /* s, the share of pairs that are labelled the wrong way round; below 0.5 */
} dsc_preference;

/* Mixture of experts. Each router of the model has a record of a micro-batch (kernels/moe_balance.h): the load of each
 * expert, and sums for two losses. They are added to the loss of a micro-batch, with their factors:
 *
 *     balance = E * sum over experts e of f_e p_e   f_e: slots of e per token, p_e: its mean probability
 *     z       = the mean of log-sum-exp^2 of a token's logits
 *
 * Both run over the tokens of all routers together, as transformers' load_balancing_loss_func. A token behind the one
 * that the last counted target of its sample names is padding, and is left out. The weight of a micro-batch among those
 * of a step is its number of counted targets, as that of its other losses; on pairs all micro-batches count alike. */
typedef struct dsc_model_experts {
    int32_t routers;        /* records; 0: no experts, or routers with different numbers of them */
    int32_t experts, top_k; /* of each router */
    int32_t targets;        /* number of the batch tensor of targets, one for each token; -1: every token counts */
    double balance, z;      /* factors of the losses; 0: a loss is not there */
} dsc_model_experts;

/* A buffer: a saved tensor of a module without a gradient, such as the running statistics of a batch norm. The first
 * training forward of each micro-batch gives a statistic of it. At the end of a step the statistics of all ranks are
 * folded in the order of micro-batches:
 *
 *     value = value + momentum * (statistic - value)        as torch.nn.BatchNorm2d; fp32, three roundings
 *
 * So the values do not depend on the number of ranks, on the stage, on offload or on the device, and all ranks have the
 * same. A forward that runs again gives no statistic. As in PyTorch, a step whose update is skipped is folded too. A
 * statistic of NaN or infinity makes a value that is not finite; rank 0 warns once and names the buffer. Frozen
 * parameters beside a buffer change nothing: after model.train() PyTorch folds there too. */
typedef enum dsc_buffer_kind {
    DSC_BUFFER_AVERAGE, /* fp32 [count], by the formula above */
    DSC_BUFFER_STEPS    /* an int64 without dimensions: the micro-batches that were folded. It has no statistic. */
} dsc_buffer_kind;
typedef struct dsc_buffer_spec {
    const char *name; /* whole, as in checkpoints: "layer1.0.bn1.running_mean"; of no other buffer and no parameter */
    dsc_buffer_kind kind;
    int64_t count;   /* elements; STEPS: 1 */
    double init;     /* first value of each element; STEPS: a whole number, at least 0 */
    double momentum; /* AVERAGE: 0 to 1; 0: the value stays, as that of a frozen one */
    bool frozen;     /* the value stays, as after model.eval() of PyTorch: there is no statistic, and no step counts */
    bool row;        /* AVERAGE: files have [1,count], else [count] */
} dsc_buffer_spec;
#define DSC_BUFFERS_ELEMENTS_MAX (INT64_C(3) << 20) /* of all buffers of a model together */

/* One tensor of a micro-batch as the data source delivers it: [B, dim...]. */
typedef struct dsc_batch_spec {
    const char *name; /* "tokens", "targets" */
    dsc_dtype dtype;
    int32_t dim_count; /* without B */
    int64_t dim[DSC_DIMS_MAX];
} dsc_batch_spec;

/* Memory of one call of a module, for a micro-batch of B samples. All bytes are exact functions of (model, B, dtype).
 * */
typedef struct dsc_module_plan {
    int64_t out_elements;     /* activation handed to the next module, in the compute dtype; 0 for the last */
    int64_t saved_bytes;      /* kept from forward to backward, beside the module's input, which is always kept */
    int64_t forward_scratch_bytes, backward_scratch_bytes; /* live during one call */
    double forward_flops, backward_flops; /* 2 per multiply-add; for MFU */
    int64_t cache_bytes; /* model with a cache: bytes that this module keeps of a text between calls */
    /* Further values that backward reads and that rebuild computes again at a part of forward's cost. With "recompute":
     * "selective" they are not kept. 0: none, and rebuild is NULL. */
    int64_t rebuilt_bytes;
    double rebuild_flops;
    /* Further values that backward reads, but computes again itself if it is not given them: outputs of norms and
     * activations. With "recompute": "kept" they are kept. 0: none. */
    int64_t repeated_bytes;
    /* The cache has a state behind the last token of a call: the next call begins at the token behind it, or at 0
     * again. */
    bool keeps_state;
    /* Payload in bytes that one of the ranks of the context's group sends to the others. 0: this rank is alone. */
    int64_t forward_sent_bytes, backward_sent_bytes;
} dsc_module_plan;

/* Shapes of matrix products that the module will launch, so that nothing is prepared inside a step. Also forward
 * attentions and passes of convolutions, for devices that choose among kernels. Pointers in a shape are not looked at.
 */
struct dsc_gemm_args;
struct dsc_attention_fwd_args;
struct dsc_conv2d_args;
struct dsc_fp8_plan;
struct dsc_fp8_cache;
typedef struct dsc_plan_sink {
    dsc_status (*gemm)(void *user, const struct dsc_gemm_args *shape, dsc_error *err); /* may be NULL */
    void *user;
    dsc_status (*attention)(void *user, const struct dsc_attention_fwd_args *shape, dsc_error *err); /* may be NULL */
    int64_t chunk_bytes; /* as in the contexts of the calls */
    struct dsc_fp8_plan *fp8; /* NULL: no product is in fp8; else of a module with DSC_MODULE_FP8 */
    bool joins_input_gradients, stores_score_gradients; /* as in the contexts of the calls */
    int64_t tensor_align; /* elements: the places of tensors in a flat group are multiples of it. 0: it is not known */
    dsc_status (*conv2d)(void *user, const struct dsc_conv2d_args *shape, dsc_error *err); /* may be NULL */
} dsc_plan_sink;

/* A value that a module has computed. Its elements lie in rows, `stride` elements apart. With `apart` above 0 a row is
 * heads of `width` elements each, and the first elements of heads are `apart` elements apart. */
typedef struct dsc_traced_value {
    const char *name;
    int32_t number; /* in `dsc model show`, behind the name; below 0: none */
    bool gradient;  /* it is the gradient of the value of that name */
    const void *at; /* in the memory of the stream's device */
    dsc_dtype dtype;
    int64_t rows, columns, stride, width, apart;
} dsc_traced_value;

/* Receives values while a module runs: each one when the work that computes it has been launched, and before another
 * value takes its memory. The receiver may copy it on the stream and wait. */
typedef struct dsc_value_sink {
    dsc_status (*value)(void *user, struct dsc_stream *stream, const dsc_traced_value *value, dsc_error *err);
    void *user;
} dsc_value_sink;

/* Micro-batches whose pixels a batch norm normalises together: `each` of this rank and of each other one. They pass a
 * module in one call. Where a result depends on all of them, each writes `count` numbers to own + its number * count,
 * and exchange makes them known: all[ranks][each][count]. All ranks make the same calls in the same order. */
typedef struct dsc_norm_group {
    int32_t ranks, each;
    float *own, *all; /* [each][most numbers of a call], [ranks][each][most] */
    dsc_status (*exchange)(struct dsc_norm_group *group, int64_t count, dsc_error *err);
    void *user;
} dsc_norm_group;
#define DSC_NORM_GROUP_MAX 256 /* micro-batches */

typedef struct dsc_module_ctx {
    uint32_t struct_bytes;
    struct dsc_stream *stream; /* compute; all work goes here */
    dsc_dtype dtype;           /* compute dtype of parameters and activations: F32, BF16 or F16 */
    int64_t batch;             /* B */
    bool save;                 /* a backward follows: fill `saved` */
    uint64_t rng_seed, rng_step, rng_sample; /* counter-based randomness; rng_sample is the first global sample index */

    const void *const *param; /* [param_count] whole parameters, compute dtype, read only */
    float *const *grad;       /* [param_count] fp32, overwritten by this use's gradient; NULL entries: frozen. Set in
                               * backward, and in forward of a loss module when `save` */
    const void *const *batch_data; /* [batch_count] of the model's batch tensors */

    const void *in;   /* output of the module before; NULL for the first */
    void *out;        /* forward: written, never the memory of `in`; NULL for a loss module */
    const void *d_out; /* backward: gradient of out; may be overwritten by the module. NULL for a loss module */
    void *d_in;       /* backward: written, gradient of in; may be the same memory as d_out; NULL for the first */
    void *saved;      /* [saved_bytes], always given, 256-byte aligned: forward writes it, backward reads it, and may
                       * then use it as work space. Without
                       * `save` it is work space (the same buffer serves every module), so that a forward that is
                       * recomputed does the same work in the same memory */
    void *scratch;    /* 256-byte aligned */

    /* Loss module only: one fp32 loss per item (a token, an image), [loss_count]; the micro-batch loss is their mean,
     * summed in double in order. Gradients are those of the mean times loss_scale. Of a model with labels, without
     * `save` and `training`, the loss of a sample that is classified wrongly has a minus sign. With
     * DSC_MODULE_MASKS_TARGETS an item with a masked target has loss 0 and no gradient. The mean is still over all
     * items: the engine divides the sums of a step by the share of its targets that are counted. Of a model with a
     * preference these are the items' own losses all the same, and the gradients those of the pairs' mean loss. */
    float *losses;
    float loss_scale;

    /* Language models, loss module only, `save` false. If logits is not NULL, the module writes logits[vocab_size]
     * fp32 of item logits_row (among all items of the micro-batch) and nothing else; targets and losses are not
     * touched. Of a model with labels these are logits[N]. */
    float *logits;
    int64_t logits_row;

    /* A text in parts, `save` false, B = 1, a model with a cache. The call's tokens begin at position `past`, and
     * cache[cache_bytes] holds the module's values of the earlier tokens. The module adds its values of these tokens;
     * past + T is at most the cache's tokens. Without a cache: 0 and NULL. */
    int64_t past;
    void *cache; /* 256-byte aligned */

    void *rebuilt; /* [rebuilt_bytes], like `saved`: written by forward, or instead by rebuild, which has the
                    * memory of a forward: in, saved and parameters unchanged since forward, out and scratch as work
                    * space */
    /* [repeated_bytes], 256-byte aligned: forward writes it, backward reads it, and may then use it as work space. NULL
     * in both, and without `save`: these values are not kept. Both ways give the same bits. */
    void *repeated;

    /* Limit for a tensor that a module makes in chunks, as a head its logits: bytes of one chunk. It is the limit of
     * the plan, and equal on all ranks, because the order of sums may depend on it. 0: the module's own limit, which
     * suits a CPU. */
    int64_t chunk_bytes;

    /* A pass of training, also one that computes again: values are dropped at random by the rng above. Each pass over
     * the same micro-batch drops the same ones. False in evaluation and generation. */
    bool training;

    struct dsc_fp8_cache *fp8; /* products of linear layers are in fp8, as planned; NULL: in the compute dtype */

    /* Layers of one input compute its gradient by one product, whose sums are over all their outputs. Otherwise each
     * has a product that adds to the sum so far, as layers apart have; a CPU keeps their bits in this way. It is the
     * plan's, and equal on all ranks. */
    bool joins_input_gradients;
    /* Attention has scratch of at most chunk_bytes more, where a GPU may store gradients of scores. The plan's. */
    bool stores_score_gradients;

    /* Optional: a module that can name its values reports them here. NULL: nobody looks, and nothing waits. */
    const dsc_value_sink *values;

    /* Mixture of experts, in training: `records` has those of all routers for this micro-batch. Forward writes a
     * module's own, and backward reads all of them, after forward of all modules. NULL: none are kept, and the losses
     * of routers have no gradient. */
    const dsc_model_experts *experts;
    void *records;
    bool pairs;           /* the losses of routers count alike in each micro-batch */
    int32_t first_record; /* first record of a module, which sets it */

    /* Of a module with buffers, else NULL. buffer[buffer_count] are their values, fp32, read only in every forward and
     * backward; the entry of a STEPS buffer is NULL. statistic[buffer_count] is there in the first forward of training
     * alone. That forward overwrites all elements of each entry that is not NULL. Entries of STEPS, of frozen buffers
     * and of those with a momentum of 0 are NULL. Without statistic, as in evaluation and in a forward that runs again,
     * nothing is written. The memory is the compute device's, and each entry is 256-byte aligned. */
    const float *const *buffer;
    float *const *statistic;
    const bool *constant; /* [buffer_count] buffers that this run keeps, whose values training uses too; NULL: none */

    /* Loss module of a model whose labels have `smooths`. The loss of an item with class y of N is
     * (1 - s) (L - x_y) + s / N sum_c (L - x_c) with L = log(sum_c exp(x_c)), as torch.nn.CrossEntropyLoss has it. s is
     * label_smoothing, which is 0 outside of training. places[loss_count]: the number of logits before that of the
     * label, which are larger, or equal and of a lower class; 0 of a masked item; NULL: not wanted. */
    float label_smoothing;
    int32_t *places;

    /* Share m of another label, of the same module: that of the item before in the micro-batch. The last item is before
     * the first one. The loss is (1 - m) loss(own label) + m loss(that label). 0: none, as outside of training. */
    float mixed;

    /* The ranks that compute the model together, each with its part of the parameters (tensor_ranks of the options). A
     * module exchanges values with them. NULL: this rank computes alone. */
    const struct dsc_exchange_group *group;

    dsc_norm_group *norm_group; /* group of a call of several contexts, which all have it; NULL: no group */
} dsc_module_ctx;

enum {
    /* The last module: it has no out. In forward with `save` it also computes d_in and its gradients (fused, so that
     * logits need not be kept); its backward is not called. */
    DSC_MODULE_LOSS = 1u,
    /* backward reads no parameter (an embedding): the engine does not gather them for it; ctx.param entries are
     * NULL. */
    DSC_MODULE_BACKWARD_WITHOUT_PARAMS = 2u,
    /* A loss module that accepts masked targets. The model has int32 targets, DSC_BATCH_TARGETS, one for each loss
     * item, and a vocabulary. Without this flag a negative target is refused. */
    DSC_MODULE_MASKS_TARGETS = 4u,
    /* The products of its linear layers may be in fp8 (a transformer block). */
    DSC_MODULE_FP8 = 8u
};

typedef struct dsc_module {
    uint32_t struct_bytes;
    uint32_t flags;
    const char *name;   /* "h.0" */
    const void *self;   /* the module's own constants, borrowed for the life of the model */
    int32_t param_count;
    const dsc_param_spec *params;
    dsc_status (*plan)(const struct dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err);
    dsc_status (*forward)(const struct dsc_module *module, dsc_module_ctx *ctx, dsc_error *err);
    dsc_status (*backward)(const struct dsc_module *module, dsc_module_ctx *ctx, dsc_error *err);
    /* Optional: ctx->rebuilt again, the same bits that forward wrote there. */
    dsc_status (*rebuild)(const struct dsc_module *module, dsc_module_ctx *ctx, dsc_error *err);
    int32_t buffer_count; /* 0 to DSC_MODULE_BUFFERS_MAX */
    const dsc_buffer_spec *buffers;
    /* Optional: forward and backward of ctx[count], whose batch norms are synchronised (norm_group). Each context has
     * its own memory, scratch too. NULL: the module cannot. norm_numbers: the most that one call exchanges for a
     * micro-batch. */
    dsc_status (*forward_group)(const struct dsc_module *module, dsc_module_ctx *ctx, int32_t count, dsc_error *err);
    dsc_status (*backward_group)(const struct dsc_module *module, dsc_module_ctx *ctx, int32_t count, dsc_error *err);
    int64_t (*norm_numbers)(const struct dsc_module *module);
} dsc_module;
#define DSC_MODULE_BUFFERS_MAX 192

/* Parts of a weight that a folder has in NF4 with bitsandbytes' block size of 64 (kernels/nf4.h). CODES: two elements
 * in a byte. SCALES: one byte each with double quantization, else fp32. TOPS and OFFSET, in fp32, exist with double
 * quantization alone: scales of scales, and what is added to all scales. */
typedef enum dsc_packed_part {
    DSC_PACKED_CODES,
    DSC_PACKED_SCALES,
    DSC_PACKED_TOPS,
    DSC_PACKED_OFFSET
} dsc_packed_part;

/* Whether files have weights so: not at all, with fp32 scales, or with double quantization. */
typedef enum dsc_packed_files { DSC_PACKED_NOT, DSC_PACKED_SINGLE, DSC_PACKED_DOUBLE } dsc_packed_files;

/* Bytes of a file that go to another one. */
typedef struct dsc_model_piece {
    const char *path;
    int64_t from, to, bytes; /* offsets in the two files */
} dsc_model_piece;

/* Tensors of the model's files that no module has, such as the vision part of a multimodal model. Checkpoints keep them
 * in a safetensors file of this name, and exports have them again, unchanged. */
#define DSC_MODEL_CARRIED_FILE "carried.tensors"
typedef struct dsc_model_carried {
    const char *header; /* [header_bytes] the first bytes of that file */
    int64_t header_bytes;
    const dsc_model_piece *piece; /* [piece_count] the rest, in order, without a hole */
    int64_t piece_count, file_bytes;
} dsc_model_carried;

typedef struct dsc_model {
    uint32_t struct_bytes;
    const char *name;      /* "gpt2-124m" */
    int32_t module_count;  /* >= 1; the last one has DSC_MODULE_LOSS, only that one */
    const dsc_module *modules;
    int32_t batch_count;
    const dsc_batch_spec *batch;
    int64_t losses_per_sample; /* items per sample: T for a language model, K for a masked one */
    int64_t hidden_size, vocab_size, seq_length; /* facts for "auto", data checks and printing; 0: none */
    void *self;
    /* Optional: fills out[count] fp32 with elements [first, first + count) of the parameter when weights were found on
     * disk; *found = false: the engine initialises. May be called from several threads. */
    dsc_status (*load_param)(const struct dsc_model *model, int32_t module, int32_t param, int64_t first, int64_t count,
                             float *out, bool *found, dsc_error *err);
    void (*close)(struct dsc_model *model); /* frees the model and what it points to; NULL: the caller's memory */
    /* Optional: the text of config.json as Hugging Face spells this model, for saving; NULL: none. */
    const char *config_json;
    /* A warning to the user about this model ("dropout of the config is off"), one line; NULL: none. */
    const char *warnings;
    /* The longest text of a model that continues texts in parts, by dsc_module_ctx.cache; 0: not such a model. */
    int64_t text_positions;
    /* Model with adapters: adapter_config.json in PEFT's form, for saving; NULL: none. */
    const char *adapter_json;
    dsc_preference preference;
    dsc_model_experts experts;
    /* Optional: out <- bytes [first, first + bytes) of a part of a weight that is stored in 4 bits; *found = false: it
     * is not. load_param reads such a weight too, unpacked. */
    dsc_packed_files packed_files;
    dsc_status (*load_packed)(const struct dsc_model *model, int32_t module, int32_t param, dsc_packed_part part,
                              int64_t first, int64_t bytes, void *out, bool *found, dsc_error *err);
    const dsc_model_carried *carried; /* NULL: none */
    /* Optional: text for people about a module's ops, with bytes and FLOPs of a micro-batch, as snprintf; 0: none. */
    int (*show_module)(const struct dsc_model *model, int32_t module, int64_t batch, dsc_dtype dtype, char *out,
                       size_t bytes);
    dsc_labels labels;
    /* Optional: the values of a buffer that were found on disk, `out` is float[count], or an int64_t of a STEPS buffer;
     * *found = false: the engine takes `init`. Rank 0 alone calls it, once for each buffer. */
    dsc_status (*load_buffer)(const struct dsc_model *model, int32_t module, int32_t buffer, void *out, bool *found,
                              dsc_error *err);
    /* Ranks that compute the model together, and the number of the one that it was opened for; 0: one rank. load_param
     * counts elements of whole tensors all the same. */
    int32_t tensor_ranks, tensor_rank;
} dsc_model;

/* A number of the layers that a regular expression in Python's syntax fits. */
typedef struct dsc_lora_value {
    const char *pattern;
    double value;
} dsc_lora_value;

/* Low-rank adapters (LoRA) beside linear layers of a language model, as Hugging Face's PEFT makes them:
 * y = W x + b + s B (A x). A and B are trained and named "<layer>.lora_A.weight" and "<layer>.lora_B.weight"; all other
 * parameters are frozen, but for those of modules_to_save. */
typedef struct dsc_lora_options {
    uint32_t struct_bytes;
    int64_t rank;         /* r */
    double alpha;         /* s = alpha / r */
    bool rank_stabilized; /* s = alpha / sqrt(r) */
    const char *const *targets; /* [target_count] names of layers or their ends ("q_proj"); "all-linear": all of the
                                 * blocks; none: what PEFT takes for the family */
    int32_t target_count;
    const char *adapter; /* a folder of PEFT's to go on from, which then says all else; NULL: fresh ones */
    /* [modules_to_save_count] modules that are trained whole beside the adapters, and saved with them: those whose
     * names end so ("lm_head", "embed_tokens", "mlp"). Their linear layers have no adapter. */
    const char *const *modules_to_save;
    int32_t modules_to_save_count;
    /* Regular expressions in Python's syntax for whole names, in place of targets and exclude; NULL: none. */
    const char *target_regex, *exclude_regex;
    const char *const *exclude; /* [exclude_count] names of layers without adapters, or their ends */
    int32_t exclude_count;
    /* [layer_count] numbers of the blocks whose targets have adapters; none: all. In a name with several numbers, the
     * number of the block is the first one behind a part that layers_pattern has ("layers"). */
    const int64_t *layers;
    int32_t layer_count;
    const char *const *layers_pattern; /* [layers_pattern_count] */
    int32_t layers_pattern_count;
    /* Ranks and alphas of layers that a regular expression fits, or of whose names what follows a point; the first one
     * that fits counts. */
    const dsc_lora_value *rank_pattern, *alpha_pattern;
    int32_t rank_pattern_count, alpha_pattern_count;
    double dropout; /* probability with which an element of an adapter's input is 0 in training; below 1 */
    /* DoRA: y = m (W x + s B (A x)) / |W + s B A| + b, with a trained magnitude m and a norm for each output. It begins
     * as the norm and is named "<layer>.lora_magnitude_vector". */
    bool use_dora;
    /* [target_parameter_count] names of experts' tensors as transformers 5 has them, or their ends, as in PEFT:
     * "mlp.experts.gate_up_proj". Each expert has a pair A [r,in], B [out,r] of its own. All A are the tensor
     * "<module>.lora_A.weight" [experts * r, in]. All B are "<module>.lora_B.weight" [out, r * experts], where column
     * k * experts + e is column k of expert e. A module of
     * which a later tensor has an adapter too is named "<module>.base_layer". Also "<layer>.weight" of a linear layer.
     * Not beside dropout and use_dora. */
    const char *const *target_parameters;
    int32_t target_parameter_count;
} dsc_lora_options;
#define DSC_LORA_OPTIONS_INIT                                                                                          \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_lora_options), 8, 8.0, false, NULL, 0, NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, 0, NULL, \
            0, NULL, NULL, 0, 0, 0, false, NULL, 0                                                                     \
    }

typedef struct dsc_model_options {
    uint32_t struct_bytes;
    int64_t seq_length;     /* 0: the model's own (its maximum for a folder, the default for a built-in name) */
    int64_t vocab_multiple; /* pad a built-in model's vocabulary to a multiple; 0 or 1: none */
    bool want_weights;      /* folder: read weights when *.safetensors exist */
    int64_t cache_tokens;   /* with a cache for a text of so many tokens; 0: without one */
    const dsc_lora_options *lora; /* NULL: no adapters */
    /* Samples of several documents, which do not see each other: a third batch tensor DSC_BATCH_POSITIONS. */
    bool documents;
    double mask_share; /* masked model's share; 0: DSC_MASK_SHARE */
    /* Folder: weights without the model's head (a base model's) are refused. Otherwise the head has its initial values,
     * and a warning names its parameters. */
    bool complete_weights;
    dsc_preference preference; /* beta > 0: a language model that is trained on pairs, without documents */
    /* Tokens that the table of tokens and the head have rows for at least; 0: as many as the model says. Rows that are
     * in no file begin as the mean of those that are. The model's config_json says how many there are. */
    int64_t vocab_tokens;
    /* Folder: the head is one for labels, also if config.json names no such class. Kind, count and names replace those
     * of config.json; DSC_LABELS_NONE, 0 and NULL do not. */
    struct dsc_label_options {
        bool wanted;
        dsc_label_kind kind;
        int64_t count;
        const char *const *names; /* [count] */
        bool of_tokens;           /* each token has a class */
        /* A kind that compares texts: */
        dsc_pooling pooling;
        dsc_unit unit;
        double scale; /* factor of cosines; 0: 20 */
    } labels;
    /* Factors of the losses of routers (dsc_model_experts). Below 0: the model's, which are those of transformers:
     * "router_aux_loss_coef" where "output_router_logits" is true, and 0 for z. */
    double router_balance, router_z;
    /* A built-in network for pictures: planes, height and width of its pictures, and its number of classes. 0: its
     * own. The model's config_json says these numbers. `frames`: pictures that lie below one another in that of a
     * sample, of a network that reads them in order. Sizes and classes of the data have no effect on a folder. Other
     * classes than a folder's give it a classifier with initial values, and a convolutional network takes other sizes
     * too. Other models refuse what is not of the data. */
    struct dsc_network_options {
        int64_t planes, height, width, classes, frames;
        bool size_by_data, classes_by_data;
        /* Architectures of the built-in ensemble's members, [member_count]; 0: its own. */
        const char *const *members;
        int32_t member_count;
    } network;
    /* Ranks that compute the model together, each with a part of the heads and of the inner columns, and which of them
     * this one is. 0: one. Families and sizes that cannot be shared out so are refused. */
    int32_t tensor_ranks, tensor_rank;
} dsc_model_options;
#define DSC_MODEL_OPTIONS_INIT                                                                                         \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_model_options), 0, 1, true, 0, NULL, false, 0, false, { 0, 0 }, 0,                        \
            { false, DSC_LABELS_NONE, 0, NULL, false, DSC_POOLING_AUTO, DSC_UNIT_AUTO, 0 }, -1, -1,                    \
            { 0, 0, 0, 0, 0, false, false, NULL, 0 }, 0, 0                                                             \
    }

/* Opens a built-in name ("gpt2-nano", "gpt2-124m", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", ...), a Hugging Face
 * folder (config.json, optional model.safetensors) or a config file *.json. Owned: close with dsc_model_close. Unknown
 * names list what exists. */
DSC_API DSC_MUST_USE dsc_status dsc_model_open(dsc_model **out, const char *name_or_path,
                                               const dsc_model_options *options, dsc_error *err);
DSC_API void dsc_model_close(dsc_model **model); /* safe on NULL */
/* The i-th built-in name, NULL past the end. */
DSC_API const char *dsc_model_builtin_name(int32_t index);
/* Length of a dimension in the whole tensor of which a rank may have a part. */
DSC_API int64_t dsc_param_whole_dim(const dsc_param_spec *spec, int32_t axis);
/* Length of the part with this index along its axis. The first part is the longest. */
DSC_API int64_t dsc_param_part_length(const dsc_param_part *part, int32_t index);
/* *whole <- the place in the whole tensor of element `first` of this rank's part. Returns for how many of the next
 * `count` elements, at least 1, the places follow each other. */
DSC_API int64_t dsc_param_whole_run(const dsc_param_spec *spec, int64_t first, int64_t count, int64_t *whole);
/* Structure checks that the engine makes before it trusts a table: counts, shapes, sharing, one loss module at the
 * end. */
DSC_API DSC_MUST_USE dsc_status dsc_model_check(const dsc_model *model, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
