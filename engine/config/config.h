/* config.h - a ds_config.json as numbers: parsed, checked and resolved.
 *
 * Flow: dsc_config_parse (text + overrides -> struct, schema errors with line:column) -> dsc_config_resolve (world size
 * and model facts fill the batch triad and every "auto"). One table, config_keys.def, drives parsing, unknown-key
 * errors, `dsc config explain` and docs/config.md. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CONFIG_CONFIG_H
#define DSC_ENGINE_CONFIG_CONFIG_H

#include <dsc/log.h>

#include "base/alloc.h"
#include "base/quota.h"
#include "comm/comm.h"
#include "engine/data/curriculum.h"
#include "engine/data/masking.h"
#include "engine/data/sft/sft.h"
#include "kernels/fp8_cache.h"
#include "zero/core/onebit_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_AUTO_I64 INT64_MIN /* "auto" or not given, until dsc_config_resolve */
#define DSC_CONFIG_TEXT 1024   /* bytes of a path or name, with its NUL */
#define DSC_CONFIG_ENSEMBLE_MAX 8        /* members of an ensemble */
#define DSC_CONFIG_TEXTS_MAX 64          /* entries of a list of texts */
#define DSC_DATA_PATHS_MAX 4096          /* entries of a list of data files; a pattern is one entry */
#define DSC_DATA_PATHS_BYTES (256 << 10) /* bytes of all their names */
#define DSC_DATA_WEIGHT_MAX 1000 /* times that a file comes in one epoch */
#define DSC_NVME_PATHS_MAX 8
#define DSC_ELASTIC_MICRO_MAX 32
#define DSC_WARNINGS_MAX 64
#define DSC_NOTES_MAX 64 /* bits of note_warns */
#define DSC_CONFIG_LINE 256    /* bytes of one warning or note, with its NUL */
#define DSC_SETTING_BYTES 320  /* bytes of a value of dsc_config_settings, with its NUL */
#define DSC_SETTING_LINE_BYTES 512 /* bytes of one line of it, with its NUL */

typedef enum dsc_precision { DSC_PRECISION_FP32, DSC_PRECISION_BF16, DSC_PRECISION_FP16 } dsc_precision;

typedef struct dsc_fp16_config {
    double loss_scale; /* 0: dynamic */
    double min_loss_scale;
    int64_t initial_scale_power, loss_scale_window, hysteresis;
    bool consecutive_hysteresis;
} dsc_fp16_config;

typedef enum dsc_optimizer_kind {
    DSC_OPTIMIZER_NONE, /* no "optimizer" section: the run takes AdamW with its defaults and says so */
    DSC_OPTIMIZER_ONEBIT_LAMB,
    DSC_OPTIMIZER_ONEBIT_ADAM,
    DSC_OPTIMIZER_ZEROONE_ADAM,
    DSC_OPTIMIZER_ADAFACTOR,
    DSC_OPTIMIZER_ADAM, /* adam_w_mode false: L2 in the gradient */
    DSC_OPTIMIZER_ADAMW,
    DSC_OPTIMIZER_MUON,
    DSC_OPTIMIZER_RMSPROP,
    DSC_OPTIMIZER_LARS,
    DSC_OPTIMIZER_SGD,
    DSC_OPTIMIZER_ADAGRAD,
    DSC_OPTIMIZER_LAMB,
    DSC_OPTIMIZER_LION,
    DSC_OPTIMIZER_KIND_COUNT
} dsc_optimizer_kind;

/* Parameters of Adafactor by torch.optim's names; transformers' parameters of equal meaning are stored here too. */
typedef struct dsc_adafactor_config {
    bool of_transformers; /* formula of transformers instead of torch.optim */
    double beta2_decay, d, decay_rate, clip_threshold;
    double eps_root, eps_weights;
    bool scale_parameter, relative_step, warmup_init;
    bool has_beta1; /* optimizer.beta1 is one: first moments are kept */
} dsc_adafactor_config;

typedef struct dsc_optimizer_config {
    dsc_optimizer_kind kind;
    char type[64]; /* as written: "Adam" */
    dsc_recipe recipe;
    double lr, beta1, beta2, eps, weight_decay;
    double momentum, dampening; /* SGD; Muon, RMSprop and LARS use momentum too */
    double alpha;               /* of RMSprop */
    double trust_coefficient;   /* of LARS */
    double muon_lr, adam_lr;    /* Muon, as the config has them */
    double rest_scale;          /* Muon: rate of the other parameters / rate of the hidden matrices */
    int64_t ns_steps;           /* of Muon */
    double lr_decay;            /* of Adagrad */
    double max_coeff, min_coeff; /* Lamb and OneBitLamb */
    double coeff_beta, factor_max, factor_min, factor_threshold; /* of OneBitLamb */
    int64_t freeze_step;         /* OneBitAdam and OneBitLamb */
    int64_t var_freeze_step, var_update_scaler, local_step_scaler, local_step_clipper; /* of ZeroOneAdam */
    bool bias_correction, nesterov, eps_inside_sqrt, centered;
    dsc_adafactor_config adafactor;
} dsc_optimizer_config;

typedef enum dsc_schedule_kind {
    DSC_SCHEDULE_NONE, DSC_SCHEDULE_WARMUP, DSC_SCHEDULE_WARMUP_DECAY, DSC_SCHEDULE_WARMUP_COSINE,
    DSC_SCHEDULE_ONE_CYCLE, DSC_SCHEDULE_LR_RANGE_TEST,
    /* of torch.optim.lr_scheduler */
    DSC_SCHEDULE_STEP, DSC_SCHEDULE_MULTI_STEP, DSC_SCHEDULE_EXPONENTIAL, DSC_SCHEDULE_COSINE_ANNEALING,
    /* choices of dsc.lr_schedule, in the table's order */
    DSC_SCHEDULE_CONSTANT, DSC_SCHEDULE_LINEAR, DSC_SCHEDULE_COSINE, DSC_SCHEDULE_WSD
} dsc_schedule_kind;

#define DSC_MILESTONES_MAX 32

typedef struct dsc_schedule_config {
    dsc_schedule_kind kind;
    char type[64];
    double warmup_min_lr, warmup_max_lr;
    int64_t warmup_num_steps, total_num_steps;
    bool warmup_linear; /* else log */
    double warmup_min_ratio, cos_min_ratio;
    double cycle_min_lr, cycle_max_lr, decay_lr_rate;
    int64_t cycle_first_step_size, cycle_second_step_size, cycle_first_stair_count, cycle_second_stair_count;
    int64_t decay_step_size;
    bool cycle_momentum;
    double cycle_min_mom, cycle_max_mom, decay_mom_rate;
    double range_min_lr, range_step_rate;
    int64_t range_step_size;
    bool range_staircase;
    /* of torch.optim.lr_scheduler; counts are of steps, or of epochs */
    int64_t step_size, t_max, linear_steps; /* t_max 0: the rest of the run; linear_steps: of a warm-up, 0: none */
    int64_t milestone[DSC_MILESTONES_MAX];  /* rising */
    int milestone_count;
    double gamma, eta_min, linear_factor;
    bool by_epoch;
    int64_t unit_steps; /* steps of an epoch if by_epoch, which the run sets, else 1; 0: not known yet */
    int64_t last_batch_iteration; /* -1 */
    int64_t own_warmup_steps, own_decay_steps; /* 0 of the second: a tenth of the run */
    double own_min_ratio;
} dsc_schedule_config;

typedef enum dsc_offload { DSC_OFFLOAD_NONE, DSC_OFFLOAD_CPU, DSC_OFFLOAD_NVME } dsc_offload;

/* Settings of the swap files of one kind of state, for device nvme. */
typedef struct dsc_nvme_config {
    char path[DSC_NVME_PATHS_MAX][DSC_CONFIG_TEXT]; /* folders */
    int path_count;
} dsc_nvme_config;

typedef struct dsc_zero_config {
    int stage;                                                                       /* 0..3 */
    int64_t reduce_bucket_size, allgather_bucket_size, stage3_prefetch_bucket_size;  /* elements */
    bool prefetch_within_bucket;    /* set by the engine where memory has no room for the next module's window */
    int64_t sub_group_size, stage3_max_live_parameters, stage3_max_reuse_distance;   /* elements */
    bool overlap_comm;                                            /* not given: true on GPUs, false on CPUs */
    bool quantized_weights, quantized_frozen_weights;             /* gathered as int8 at stage 3 */
    int64_t hpz_partition_size;                                   /* ranks that keep second parts; <= 1: none */
    int64_t mics_shard_size;                                      /* ranks that share a copy of the states; < 1: all */
    bool quantized_gradients;                                     /* leaves travel as int4 */
    int64_t stage3_param_persistence_threshold;                                      /* elements */
    dsc_offload offload_optimizer, offload_param; /* in effect: none below the stage that DeepSpeed needs */
    dsc_offload optimizer_named, param_named;     /* as DeepSpeed's class resolves them at every stage */
    dsc_nvme_config nvme_optimizer, nvme_param;
    double offload_ratio;           /* share of the states that are offloaded */
    int64_t offload_buffer_count;   /* offload_optimizer.buffer_count */
    bool pipeline_read, pipeline_write;
    bool pin_optimizer, pin_param;  /* pin_memory of the two sections */
    int64_t max_in_cpu;             /* elements of parameters that stay in memory; resolved */
    bool params_with_states;        /* and those of modules whose states do; resolved */
    int64_t param_buffer_count, param_buffer_size; /* keys of offload_param; size in elements */
    bool param_buffers_given;                      /* one of them is */
} dsc_zero_config;

/* Access to files of offloaded states. */
typedef struct dsc_aio_config {
    int64_t block_size, queue_depth;
    int64_t thread_count; /* 0: not given */
    bool single_submit, overlap_events;
} dsc_aio_config;

typedef enum dsc_reproducible { DSC_REPRODUCIBLE_PLAN, DSC_REPRODUCIBLE_WORLD_SIZE } dsc_reproducible;
/* dsc.fp8. inputs: of products, kept as E4M3 from forward to backward; AUTO until the engine has planned. */
typedef enum dsc_fp8_inputs { DSC_FP8_INPUTS_AUTO, DSC_FP8_INPUTS_KEPT, DSC_FP8_INPUTS_AGAIN } dsc_fp8_inputs;
/* weights: kept in fp8 from one update to the next, or cast at each use. */
typedef enum dsc_fp8_weights { DSC_FP8_WEIGHTS_AUTO, DSC_FP8_WEIGHTS_KEPT, DSC_FP8_WEIGHTS_EACH_USE } dsc_fp8_weights;
/* dsc.nccl; see dsc_nccl_wishes in comm/comm.h. */
typedef struct dsc_nccl_section {
    int64_t min_ctas, max_ctas; /* 0: NCCL's choice */
    dsc_nccl_policy policy;
    bool blocking, symmetric;
    char network[64]; /* "": NCCL's choice */
} dsc_nccl_section;

typedef struct dsc_fp8_section {
    bool enabled, hybrid; /* hybrid: gradients of activations are E5M2, else E4M3 */
    dsc_fp8_fast fast;
    dsc_fp8_weights weights;
    bool blocks;      /* scales of blocks, else of matrices */
    bool gather_bf16; /* stage 3 gathers no weight in fp8 */
    dsc_fp8_inputs inputs;
} dsc_fp8_section;

typedef enum dsc_recompute { /* the less memory the later; AUTO until the engine has planned */
                             DSC_RECOMPUTE_KEPT,
                             DSC_RECOMPUTE_NONE,
                             DSC_RECOMPUTE_SELECTIVE,
                             DSC_RECOMPUTE_FULL,
                             DSC_RECOMPUTE_AUTO
} dsc_recompute;
const char *dsc_recompute_text(dsc_recompute recompute); /* as the config spells it */

/* A section of a monitor: files in output_path/job_name. */
typedef struct dsc_monitor_config {
    bool enabled;
    char output_path[DSC_CONFIG_TEXT], job_name[DSC_CONFIG_TEXT];
} dsc_monitor_config;

typedef struct dsc_wandb_config {
    bool enabled;
    char project[256], group[256], team[256];
} dsc_wandb_config;

typedef struct dsc_comet_config {
    bool enabled;
    int64_t samples_log_interval;
    char project[256], workspace[256], experiment_name[256], experiment_key[64], mode[16];
} dsc_comet_config;

typedef struct dsc_flops_profiler_config {
    bool enabled, detailed;
    int64_t profile_step, top_modules;
    char output_file[DSC_CONFIG_TEXT]; /* "": the log */
} dsc_flops_profiler_config;

typedef struct dsc_comms_logger_config {
    bool enabled, prof_all;
    uint32_t ops; /* bit op of dsc_comm_op: counted also without prof_all */
} dsc_comms_logger_config;

#define DSC_LORA_LAYERS_MAX 1024
#define DSC_LORA_NUMBERS_MAX 64
/* Numbers of layers by regular expressions. */
typedef struct dsc_lora_pattern_config {
    char pattern[DSC_LORA_NUMBERS_MAX][256];
    double value[DSC_LORA_NUMBERS_MAX];
    int count;
} dsc_lora_pattern_config;

/* "dsc.images". Lists without numbers: not given. */
enum { DSC_IMAGE_PLANES_MAX = 64 };
typedef struct dsc_images_section {
    bool enabled, random_crop, skip_broken, dct_scaling;
    double scale[2], ratio[2]; /* of random parts */
    double flip;               /* probability */
    double rand_augment[2];    /* operations and their level; 0: none */
    double jitter[4];          /* brightness, contrast, saturation, hue */
    double mixup, cutmix;      /* alpha of MixUp and CutMix; 0: none */
    double mixup_prob, mixup_switch_prob;
    int64_t resize;            /* shorter side; 0: by preprocessor_config.json or the model */
    int filter;                /* 0: by preprocessor_config.json, 1: bilinear, 2: bicubic */
    double mean[DSC_IMAGE_PLANES_MAX], std[DSC_IMAGE_PLANES_MAX];
    int mean_count, std_count;
    int64_t readers; /* threads; 0: by the device */
    int64_t pixels_max;
} dsc_images_section;

/* "dsc.communication_hook": how gradients travel. */
typedef enum dsc_hook_kind { DSC_HOOK_NONE, DSC_HOOK_FP16, DSC_HOOK_BF16, DSC_HOOK_POWERSGD } dsc_hook_kind;
typedef struct dsc_hook_section {
    dsc_hook_kind kind;
    int64_t rank, start_step;
    double min_rate;
} dsc_hook_section;

/* "dsc.local_sgd": groups of ranks (MiCS) that exchange weights every so many updates. */
typedef struct dsc_local_sgd_section {
    int64_t inner_steps; /* 0: not used */
    double outer_lr, outer_momentum;
    bool nesterov;
} dsc_local_sgd_section;

/* "dsc.spikes": steps whose loss or gradient norm is far above those before. */
typedef enum dsc_spike_policy { DSC_SPIKES_WARN, DSC_SPIKES_SKIP, DSC_SPIKES_REWIND } dsc_spike_policy;
typedef struct dsc_spikes_section {
    bool enabled; /* the section is there */
    dsc_spike_policy policy;
    int64_t window; /* steps of the mean */
    double z_score, loss_ratio, norm_ratio;
    int64_t rewind_steps, skip_batches, rewind_limit;
} dsc_spikes_section;

/* "dsc.ema": moving averages of the weights. */
typedef struct dsc_ema_section {
    bool enabled; /* the section is there */
    double decay;
    bool evaluate; /* evaluations use the averages */
    bool buffers;  /* of buffers too, such as running statistics */
} dsc_ema_section;

/* "dsc.lora". */
typedef struct dsc_lora_section {
    bool enabled; /* the section is there */
    int64_t rank;
    double alpha;
    bool rank_stabilized;
    bool use_dora;
    double dropout;
    char targets[DSC_CONFIG_TEXTS_MAX][DSC_CONFIG_TEXT];
    int target_count;
    char parameters[DSC_CONFIG_TEXTS_MAX][DSC_CONFIG_TEXT]; /* target_parameters */
    int parameter_count;
    bool target_is_regex; /* targets[0] is a regular expression, not a name */
    char exclude[DSC_CONFIG_TEXTS_MAX][DSC_CONFIG_TEXT];
    int exclude_count;
    bool exclude_is_regex;
    int64_t layers[DSC_LORA_LAYERS_MAX]; /* numbers of blocks */
    int layer_count;
    char layers_pattern[DSC_CONFIG_TEXTS_MAX][DSC_CONFIG_TEXT];
    int layers_pattern_count;
    dsc_lora_pattern_config rank_pattern, alpha_pattern;
    char save[DSC_CONFIG_TEXTS_MAX][DSC_CONFIG_TEXT]; /* modules to save */
    int save_count;
    char adapter[DSC_CONFIG_TEXT]; /* "": fresh ones */
} dsc_lora_section;

#define DSC_PARAM_GROUPS_MAX 15
#define DSC_GROUP_PATTERNS_MAX 16
/* Parameters whose names fit one of the patterns, and no pattern of a group before it. */
typedef struct dsc_param_group {
    char pattern[DSC_GROUP_PATTERNS_MAX][128];
    int pattern_count;
    double lr_scale;       /* of every rate */
    bool has_weight_decay; /* else the optimizer's, where the model decays the parameter */
    double weight_decay;
} dsc_param_group;

/* "dsc.quantize_base": frozen weights of linear layers in NF4 (kernels/nf4.h). */
typedef struct dsc_quantize_section {
    bool enabled; /* the section is there */
    bool double_quant;
    bool experts; /* matrices of experts too */
    int64_t block;
} dsc_quantize_section;

/* "dsc.quota": micro-batches of a step for each rank (base/quota.h). */
#define DSC_CONFIG_QUOTAS_MAX 256
typedef enum dsc_quota_kind { DSC_QUOTA_ABSENT, DSC_QUOTA_EVEN, DSC_QUOTA_MEASURED, DSC_QUOTA_LIST } dsc_quota_kind;
typedef struct dsc_quota_section {
    dsc_quota_kind kind; /* ABSENT: gradient_accumulation_steps of every rank */
    int64_t of_rank[DSC_CONFIG_QUOTAS_MAX];
    int count;
} dsc_quota_section;

/* "dsc.grid". */
typedef enum dsc_partition { DSC_PARTITION_FLOPS, DSC_PARTITION_PARAMETERS, DSC_PARTITION_UNIFORM } dsc_partition;
typedef enum dsc_stage_order { DSC_STAGES_1F1B, DSC_STAGES_GPIPE } dsc_stage_order;
typedef struct dsc_grid_section {
    int64_t pipeline; /* stages */
    int64_t data;     /* 0: the rest of the ranks */
    int64_t tensor;   /* ranks that compute each module together */
    dsc_partition partition;
    dsc_stage_order order;
    int key, tensor_key; /* the rows that gave the stages and the tensor ranks */
} dsc_grid_section;

/* "dsc.mlm". */
typedef struct dsc_mlm_section {
    bool enabled; /* the section is there */
    double probability;
    int64_t mask_token; /* -1: the tokenizer's */
    int32_t special[DSC_MASK_SPECIAL_MAX];
    int special_count; /* 0: the tokenizer's */
} dsc_mlm_section;

/* "dsc.labels". */
typedef struct dsc_labels_section {
    bool enabled;    /* the section is there */
    int32_t problem; /* a dsc_label_kind; none: by config.json; one more: classes of tokens */
    int64_t count;   /* 0: by the names, or by config.json */
    char name[DSC_CONFIG_TEXTS_MAX][DSC_CONFIG_TEXT];
    int name_count;
    char text[128], text_pair[128], label[128]; /* columns; "": found by their usual names */
} dsc_labels_section;

/* "dsc.embedding". */
typedef struct dsc_embedding_section {
    bool enabled; /* the section is there */
    dsc_label_kind loss;
    double scale;
    dsc_pooling pooling;
    dsc_unit unit;
    char anchor[128], positive[128], negative[128], score[128]; /* columns; "": found by their usual names */
    char prompt_anchor[DSC_SFT_TEXT_BYTES], prompt_positive[DSC_SFT_TEXT_BYTES];
} dsc_embedding_section;

/* "dsc.dpo". */
typedef struct dsc_dpo_section {
    bool enabled; /* the section is there */
    double beta, smoothing;
} dsc_dpo_section;

/* "dsc.moe". */
typedef struct dsc_moe_section {
    double balance, z; /* factors of the routers' losses; -1: the model's */
    double bias_speed; /* 0: the biases of routers stay as they are */
    bool log_load;
} dsc_moe_section;

/* A list of names: name i is text + at[i]. */
typedef struct dsc_config_paths {
    int count, bytes;
    int32_t at[DSC_DATA_PATHS_MAX];
    char text[DSC_DATA_PATHS_BYTES];
} dsc_config_paths;
static inline const char *dsc_config_path(const dsc_config_paths *paths, int i) { return paths->text + paths->at[i]; }
/* Appends a name; false: there is no room for it. */
bool dsc_config_add_path(dsc_config_paths *paths, const char *name);

/* The "dsc" section. Flags of `train` are overrides of these keys. */
typedef struct dsc_ext_config {
    char model[DSC_CONFIG_TEXT]; /* built-in name or Hugging Face folder; "": not given */
    dsc_config_paths data, eval_data; /* files and patterns of names */
    double data_weights[DSC_DATA_PATHS_MAX];
    int data_weight_count; /* 0: each 1 */
    char freeze[DSC_CONFIG_TEXTS_MAX][DSC_CONFIG_TEXT]; /* patterns of names */
    int freeze_count;
    bool freeze_batch_norm;
    dsc_images_section images;
    dsc_ema_section ema;
    dsc_hook_section hook;
    dsc_local_sgd_section local_sgd;
    dsc_spikes_section spikes;
    int64_t check_replicas;  /* steps between comparisons of what ranks hold alike; 0: never */
    int64_t check_gradients; /* steps between steps that are repeated; 0: never */
    dsc_lora_section lora;
    dsc_quantize_section quantize;
    dsc_mlm_section mlm;
    dsc_sft_section sft;
    dsc_dpo_section dpo;
    dsc_labels_section labels;
    dsc_embedding_section embedding;
    dsc_moe_section moe;
    dsc_param_group group[DSC_PARAM_GROUPS_MAX];
    int group_count;
    bool nvtx;
    char tokenizer[DSC_CONFIG_TEXT]; /* for text data; "": the model folder's, "none": bytes are tokens */
    char data_field[128];            /* member or column with the text; "": not given */
    char data_cache[DSC_CONFIG_TEXT];
    int64_t document_end; /* a token; -1: samples are one document */
    int64_t seq_length; /* 0: the model's */
    int64_t image_size, image_classes; /* of a built-in convolutional network; 0: those of the data, or its own */
    char ensemble[DSC_CONFIG_ENSEMBLE_MAX][DSC_CONFIG_TEXT]; /* architectures of the built-in ensemble's members */
    int ensemble_count;                                      /* 0: its own */
    int64_t image_frames;              /* frames of a sample of cnn_lstm; 0: its own */
    int64_t steps;      /* the step at which the run ends; 0: by epochs */
    int64_t epochs;     /* 1 */
    char save[DSC_CONFIG_TEXT];
    int64_t save_every;         /* 0: at the end */
    int64_t keep_last;          /* newest checkpoints that stay, 0: all */
    int64_t keep_every;         /* steps that stay beside them, 0: none */
    bool save_async;            /* written while training goes on */
    bool node_local;            /* checkpoint.use_node_local_storage: hosts may have folders of their own */
    bool save_failure_stops;    /* "save_failure": "stop"; else the run goes on */
    char load[DSC_CONFIG_TEXT]; /* "", a folder, "latest" or "auto" */
    bool shuffle;
    char device[16];                /* "auto" | "cpu" | "cuda" */
    char log[DSC_CONFIG_TEXT];      /* JSONL file */
    char log_text[DSC_CONFIG_TEXT]; /* plain progress lines, as logs/training.log */
    int64_t prometheus_port;        /* 0: nothing is served */
    char trace[DSC_CONFIG_TEXT];    /* Chrome trace of all ranks */
    char mlflow_uri[DSC_CONFIG_TEXT], mlflow_experiment[DSC_CONFIG_TEXT], mlflow_run_name[DSC_CONFIG_TEXT];
    int64_t trace_steps;            /* the last step in it; 0: all */
    dsc_reproducible reproducible;
    dsc_recompute recompute;
    bool recompute_given;             /* else NONE becomes KEPT on GPUs with room for it */
    dsc_grid_section grid;
    dsc_quota_section quota;
    int64_t min_ranks;                /* the smallest world that the run may come to; 0: any, unchecked */
    int64_t max_ranks;                /* the largest; 0: as many as at the start. Looked at beside min_ranks */
    int64_t mirror_every;             /* steps between copies of states to a neighbour; 0: none */
    int64_t micro_batch_group;        /* pass a module before the next one; of an optimizer step's, at most */
    int64_t norm_group;               /* micro-batches that batch norms normalise together; 0: each by itself */
    bool outputs_on_host;             /* activation_checkpointing.cpu_checkpointing */
    dsc_dtype moments, gradients;     /* F32 or BF16; of moments also U8: codes (kernels/update.h) */
    dsc_quant compression;            /* "gradient_compression": of leaves, with error feedback */
    int64_t eval_every, eval_batches; /* 0: at the end; 0: all */
    int64_t eval_patience;            /* stop after so many evaluations without a lower loss, 0: never */
    double label_smoothing;           /* of classes, 0..1 */
    bool decay_vectors;               /* weights of one dimension decay too */
    bool lr_linear;                   /* "lr_scaling": "linear": every rate times the world size */
    int64_t vocab_multiple;           /* pad a model's vocabulary up to this multiple; 1 */
    bool grow_vocab;                  /* rows for all tokens of the tokenizer */
    int64_t threads;                  /* compute threads of a rank; 0: the machine's cores over the local ranks */
    char comm[32];                    /* "auto" | "self" | "local" | "shm" | "nccl" */
    char aio[16];                     /* "auto" | "io_uring" | "libaio" | "threads" */
    bool early_update;                /* an update away from the device begins before its norm is known */
    double early_update_share;        /* of states in a GPU's host memory, 0..1 */
    bool late_update;                 /* an update on a GPU ends under the next forward pass */
    double gradients_in_memory;       /* share of the gradients of states in files that stays in memory */
    double gradients_on_gpu;          /* of states in host memory, that stays on a GPU between micro-batches */
    bool aio_poll;                    /* io_uring: the kernel's own thread takes requests (SQPOLL) */
    int64_t head_chunk_bytes;         /* logits that exist at once; 0: by the kind of the device */
    dsc_gemm_choice gemm_plans;       /* SAME_BITS */
    dsc_cudnn_use attention, convolutions; /* AUTO */
    char gemm_plans_file[DSC_CONFIG_TEXT]; /* "": none */
    uint32_t gemm_fused;              /* of dsc_gemm_fused */
    dsc_fp8_section fp8;
    bool cuda_graphs;                 /* a module's work on a GPU is started as one graph; false */
    bool nccl_register;               /* register the parameters' memory with NCCL */
    dsc_nccl_section nccl;
    bool native_sums;                 /* "reduce": "native": the transport's own sum; else "exact" */
    int64_t skip_limit;               /* steps skipped in a row that end the run; 0: none */
    double comm_timeout_s;            /* a collective that waits longer ends the job with exit code 5; 600 */
    bool comm_timeout_given;          /* then ranks wait so long for each other at the start too; else a minute */
    bool dropout_model;               /* "dropout": "model" (refused until it is built) */
    bool accumulate_local;            /* "accumulate": "local" (refused until it is built); else "leaf" */
} dsc_ext_config;

/* Values that the file leaves to the run ("auto"); the fields hold the defaults of the run. */
enum {
    DSC_CONFIG_AUTO_PRECISION = 1 << 0,
    DSC_CONFIG_AUTO_CLIPPING = 1 << 1,
    DSC_CONFIG_AUTO_BATCH = 1 << 2, /* no batch size but "auto" */
    DSC_CONFIG_AUTO_LR = 1 << 3
};

/* Line and column of a value, 0 when it is not in the file (a flag, a default). */
typedef struct dsc_source_pos {
    int32_t line, column;
} dsc_source_pos;

/* The "elasticity" section: batch sizes that follow from the world size (elastic.c). */
typedef struct dsc_elastic_config {
    bool enabled, version_2, prefer_larger;
    int64_t max_batch, min_gpus, max_gpus, gpus_per_node, model_parallel;
    int64_t micro[DSC_ELASTIC_MICRO_MAX];
    int micro_count;
    dsc_source_pos place;
} dsc_elastic_config;

/* Input of dsc_config_resolve alone; DSC_AUTO_I64: absent in the config. */
typedef struct dsc_config_unresolved {
    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
    int64_t warmup_num_steps, total_num_steps;
    int64_t reduce_bucket_size, stage3_prefetch_bucket_size; /* DSC_AUTO_I64: "auto" */
    int64_t stage3_param_persistence_threshold, max_in_cpu;  /* DSC_AUTO_I64: absent */
    dsc_source_pos batch, offload_optimizer, offload_param, outputs_on_host, early_update, late_update,
        gradients_in_memory, gradients_on_gpu;
    dsc_source_pos grid, grid_tensor, quota;
    dsc_elastic_config elastic;
    int warning_count, note_count; /* what dsc_config_parse found */
    bool strict, overlap_comm;
    bool batch_auto[3]; /* "auto": train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps */
} dsc_config_unresolved;

/* A plain value of about 600 KB: keep it off small stacks. */
typedef struct dsc_config {
    /* Resolved: > 0, or DSC_AUTO_I64 when dsc_config_resolve was not told the world size that decides it. */
    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
    int32_t norm_each; /* a rank's part of dsc.batch_norm.synchronized; 0: none, or an unknown world size */
    int64_t micro_steps_most; /* most micro-steps of a step; measured quotas may make more than the first step has */
    int64_t eval_batch_size; /* samples that dsc.eval_batches counts by: the same for every world size */
    dsc_precision precision;
    dsc_fp16_config fp16;
    dsc_dtype communication_dtype; /* gradients in messages: F32, BF16 or F16 */
    bool prescale_gradients;       /* leaves are divided by the number of ranks before they are sent */
    double gradient_predivide_factor; /* else by this */
    bool gradient_sum;             /* over the ranks, not their mean */
    dsc_optimizer_config optimizer;
    dsc_schedule_config schedule;
    dsc_curriculum curriculum;
    dsc_zero_config zero;
    dsc_aio_config aio;
    double gradient_clipping; /* 0: off */
    double lr_scale;          /* factor of each learning rate: 1, or the world size after resolve */
    int64_t seed, steps_per_print;
    bool wall_clock_breakdown;
    dsc_monitor_config tensorboard, csv_monitor;
    dsc_wandb_config wandb;
    dsc_comet_config comet;
    dsc_flops_profiler_config flops_profiler;
    dsc_comms_logger_config comms_logger;
    dsc_ext_config own;
    char warnings[DSC_WARNINGS_MAX][DSC_CONFIG_LINE]; /* "key (line 7): what is not as it looks" */
    int warning_count;
    char notes[DSC_NOTES_MAX][DSC_CONFIG_LINE]; /* to print at start: overrides, what "auto" became, defaults */
    int note_count;
    uint64_t note_warns; /* bit i: notes[i] is printed as a warning; --strict accepts it */
    uint32_t auto_mask; /* DSC_CONFIG_AUTO_* */
    dsc_error unbuilt;  /* the first thing asked for that this version cannot run; status DSC_OK: there is none */
    dsc_config_unresolved unresolved;
    char name[DSC_CONFIG_TEXT]; /* file name for messages; "<text>" when parsed from memory */
    char sha256[65];            /* of the text */
} dsc_config;

/* One flag that beats the file: key path and JSON value ("zero_optimization.stage", "2"); messages name `flag`. */
typedef struct dsc_config_override {
    const char *key;
    const char *json_value;
    const char *flag; /* "--seq-len" */
} dsc_config_override;

/* Facts of the model and the machine, for "auto" and defaults; 0: unknown. */
typedef struct dsc_config_facts {
    int64_t world_size;
    int64_t hidden_size;
    int64_t total_steps; /* optimizer steps of the run */
    const char *device;  /* "cpu", "cuda" or NULL; borrowed until return */
} dsc_config_facts;

/* A schedule of torch.optim.lr_scheduler. */
static inline bool dsc_schedule_is_torchs(dsc_schedule_kind kind)
{
    return kind >= DSC_SCHEDULE_STEP && kind <= DSC_SCHEDULE_COSINE_ANNEALING;
}

/* Settings of a resolved config that change the numbers of a run: lines of a key, a tab and a value. The caller owns
 * *out (dsc_alloc_free). */
DSC_MUST_USE dsc_status dsc_config_settings(dsc_alloc *alloc, const dsc_config *config, char **out, dsc_error *err);

/* Parses one text, YAML of the same schema when `name` ends in .yaml or .yml. `name` is borrowed until return.
 * `strict`: warnings are errors. *out is caller memory, plain value. On failure err->where is "name:line:col" (or the
 * flag). */
DSC_MUST_USE dsc_status dsc_config_parse(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                                         const dsc_config_override *overrides, int override_count, bool strict,
                                         dsc_config *out, dsc_error *err);
/* Reads a file (at most 1 MB, regular) and parses it. */
DSC_MUST_USE dsc_status dsc_config_load(dsc_alloc *alloc, const char *path, const dsc_config_override *overrides,
                                        int override_count, bool strict, dsc_config *out, dsc_error *err);
/* Fills the batch triad by DeepSpeed's rules and every "auto". The error of an inconsistent triad prints the equation
 * with its numbers and the world sizes that would work. May be called again, with the same or better facts: it starts
 * from what was given. Without a world size, values that depend on it stay DSC_AUTO_I64, and only a triad that works at
 * no world size is an error. */
DSC_MUST_USE dsc_status dsc_config_resolve(dsc_config *config, const dsc_config_facts *facts, dsc_error *err);
/* Ranks that have other samples, among `world_size`, which the other axes divide (dsc_config_resolve); 0 for 0. */
static inline int64_t dsc_config_data_ranks(const dsc_config *config, int64_t world_size)
{
    return world_size / (config->own.grid.pipeline * config->own.grid.tensor);
}
/* Resolved config: the micro-batches of a step over the ranks of a stage; a list is borrowed from the config. */
dsc_quota dsc_config_quota(const dsc_config *config, int32_t ranks);
/* Resolved config: the largest divisor of gradient_accumulation_steps up to dsc.micro_batches_together. With
 * synchronised batch norms as many as a rank has of a group. */
int32_t dsc_config_micro_batch_group(const dsc_config *config);

/* Fails, by name, where the config sets something that this version has not built. Parsing such a config succeeds with
 * a warning, for `dsc config check`. Each caller that runs a config calls this function first. */
DSC_MUST_USE dsc_status dsc_config_built(const dsc_config *config, dsc_error *err);
static inline dsc_dtype dsc_config_compute_dtype(const dsc_config *config)
{
    static const dsc_dtype dtypes[] = { DSC_F32, DSC_BF16, DSC_F16 };
    return dtypes[config->precision];
}

/* Whether and when the optimizer's ranks come to exchange signs. */
dsc_onebit_policy dsc_config_signs(const dsc_config *config);
static inline bool dsc_optimizer_compresses_signs(dsc_optimizer_kind kind)
{
    return kind == DSC_OPTIMIZER_ONEBIT_ADAM || kind == DSC_OPTIMIZER_ZEROONE_ADAM || kind == DSC_OPTIMIZER_ONEBIT_LAMB;
}

static inline bool dsc_config_compresses_signs(const dsc_config *config)
{
    return dsc_optimizer_compresses_signs(config->optimizer.kind);
}

/* Element type of gradients in messages. */
static inline dsc_quant dsc_config_grad_part_quant(const dsc_config *config)
{
    return config->zero.quantized_gradients ? DSC_QUANT_INT4 : config->own.compression;
}

/* Factor of gradients before they are sent. */
static inline float dsc_config_grad_part_factor(const dsc_config *config, int64_t world_size)
{
    return (float)(1.0 / (config->prescale_gradients ? (double)world_size : config->gradient_predivide_factor));
}

/* Divisor of the sum of a step's `parts` gradient parts of each use, without the loss scale. */
static inline double dsc_config_grad_part_divisor(const dsc_config *config, int64_t parts, int64_t world_size)
{
    const int64_t leaves = config->gradient_sum ? parts / world_size : parts;
    return (double)leaves * (double)dsc_config_grad_part_factor(config, world_size);
}

#ifdef __cplusplus
}
#endif
#endif
