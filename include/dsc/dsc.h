/* dsc.h - the engine: ZeRO-sharded training from a ds_config.json, inside any program.
 *
 *     dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
 *     options.config_path = "ds_config.json";
 *     dsc_engine *engine = NULL;
 *     dsc_error err = DSC_ERROR_INIT;
 *     if (dsc_engine_open(&engine, &options, &err) != DSC_OK) ...
 *     while (...) dsc_engine_train_batch(engine, &result, &err);
 *     dsc_engine_close(&engine);
 *
 * One engine is one rank: a process under dsc-launch, or one of several threads of a process (dsc_world). An engine is
 * used by one thread at a time. "Collective" functions are called by every rank in the same order. After a failed
 * collective call an engine can only be closed. The library has no global state, prints nothing, installs no signal
 * handler and never exits. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_DSC_H
#define DSC_DSC_H

#include <dsc/error.h>
#include <dsc/log.h>
#include <dsc/model.h>
#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

DSC_API const char *dsc_version(void);

/* ---- Worlds of threads ------------------------------------------------------------------------------------------- */

/* `size` ranks as threads of this process. Owned; outlives its engines. */
typedef struct dsc_world dsc_world;
DSC_API DSC_MUST_USE dsc_status dsc_world_open(int32_t size, dsc_world **out, dsc_error *err);
DSC_API void dsc_world_close(dsc_world **world);

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

typedef struct dsc_engine dsc_engine;

/* One value that overrides the config: key path ("zero_optimization.stage"), JSON text ("2"), origin ("--zero"). */
typedef struct dsc_override {
    const char *key;
    const char *json;
    const char *flag;
} dsc_override;

/* Where micro-batches come from, instead of "dsc".data. Called from the engine's reader thread, one call at a time, in
 * order. Sample numbers count from 0 over the whole run, so a resumed run asks for the sample it stopped before. */
typedef struct dsc_data_source {
    /* batch_data[i] has room for `count` samples of the model's batch tensor i; all are to be filled. Token ids of
     * language models are checked against the vocabulary afterwards. A target of -1 or -100 is not counted (see
     * Training). */
    dsc_status (*fill)(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err);
    void *user;
    int64_t sample_count; /* samples in one epoch; 0: endless */
} dsc_data_source;

enum {
    DSC_ENGINE_NO_MODEL = 1u,  /* ranks and collectives alone; config_path and config_text may be NULL */
    DSC_ENGINE_PLAN_ONLY = 2u, /* stop after planning: the table and the resolved config, nothing allocated */
    DSC_ENGINE_STRICT = 4u,    /* config warnings are errors */
    /* The thread that opens it makes all calls of this engine. MPI, which one thread calls, then needs none of its own
     * (dsc.comm "mpi", without overlap_comm or nvme). */
    DSC_ENGINE_ONE_THREAD = 8u,
    /* Parameters get their first values not at open but in the first call that needs them, with its errors; where
     * dsc_engine_load comes before, nobody reads or makes them. */
    DSC_ENGINE_LATE_VALUES = 16u,
    /* The states are those that ranks of this world carry from another one (dsc_engine_carry). A rank that joins
     * carries none. Without new first values and without a checkpoint. */
    DSC_ENGINE_CARRIED = 32u
};

struct dsc_io;
typedef struct dsc_carried dsc_carried; /* see "Ranks that leave and join" */
typedef struct dsc_engine_options {
    uint32_t struct_bytes;
    uint32_t flags;
    const char *config_path; /* a ds_config.json; or */
    const char *config_text; /* its text */
    const dsc_override *overrides;
    int32_t override_count;
    const dsc_model *model;  /* borrowed until close; NULL: "dsc".model of the config */
    dsc_data_source data;    /* fill = NULL: "dsc".data of the config, or batches given to forward */
    dsc_world *world;        /* ranks as threads; NULL: the environment (RANK, WORLD_SIZE, ...) decides */
    int32_t rank;            /* with `world` */
    int32_t plan_world_size; /* with DSC_ENGINE_PLAN_ONLY: plan for this many ranks (0: the actual number) */
    dsc_log log;             /* warnings and notes, rank 0's and errors of any */
    /* Test hooks: the n-th allocation or collective of this rank fails (1-based; 0: none). */
    int64_t fail_alloc_at, fail_comm_at;
    uint32_t cpu_caps_mask; /* instruction sets that kernels may use: 0xffffffff all, 0 the portable reference */
    /* Taken when neither the config nor an override names a model or data; each use is one note in the log. Data only
     * for a built-in model without any setting about data; other runs without data are DSC_ERR_INPUT. A model of
     * pictures takes "shapes:train" of the list (drawn ones), other models the rest. */
    const char *default_model;
    const char *const *default_data;
    int32_t default_data_count;
    /* With DSC_ENGINE_PLAN_ONLY: plan for GPUs of which an engine can have so many bytes, whether or not there are any
     * here (0: for the device that the config names). */
    int64_t plan_gpu_bytes;
    /* Test hook: faults and logs of this rank's file operations (base/io.h), copied; what it points at is borrowed
     * until close. NULL: none. */
    const struct dsc_io *io;
    /* With DSC_ENGINE_CARRIED: what this rank carries; NULL, or pointing at NULL: nothing. An engine that opens takes
     * it over and sets it to NULL. It stays the caller's if opening fails. */
    dsc_carried **carried;
} dsc_engine_options;
#define DSC_ENGINE_OPTIONS_INIT                                                                                        \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_engine_options), 0, NULL, NULL, NULL, 0, NULL, { NULL, NULL, 0 }, NULL, 0, 0,             \
            { NULL, NULL }, 0, 0, 0xffffffffu, NULL, NULL, 0, 0, NULL, NULL                                            \
    }

/* Collective. *out is owned by the caller (dsc_engine_close). On failure *out is NULL, nothing stays allocated and
 * *err says why. Everything in options is copied or used before return, but for `model`, `world`, `data.user` and
 * `log.user`, borrowed until close. Parameters come from the model's files or its initialisation; rank 0's are
 * broadcast (DSC_ENGINE_LATE_VALUES: later). */
DSC_API DSC_MUST_USE dsc_status dsc_engine_open(dsc_engine **out, const dsc_engine_options *options, dsc_error *err);
/* Safe on NULL and after any error; sets *engine to NULL. Does not wait for other ranks, but for their part in
 * collectives that this rank has given to its GPU, at most dsc.comm_timeout_s. */
DSC_API void dsc_engine_close(dsc_engine **engine);

/* ---- Training ---------------------------------------------------------------------------------------------------- */

/* Masked targets. A target of -1 or -100 of a language model is not counted: it adds no loss and no gradient. Loss and
 * gradient of a step are divided by its counted targets over all ranks and micro-batches, as transformers does with
 * num_items_in_batch. Batches of a data source and batches given to forward are treated alike. Gradients of whole
 * micro-batches are summed, and the update divides the sum by the count, together with the loss scale. A step without
 * any counted target is skipped on all ranks with a warning, and keeps the loss scale. A static fp16.loss_scale applies
 * before this division, so a larger one suits data with few counted targets. */
typedef enum dsc_exchange {
    DSC_EXCHANGE_GATHER, /* parameters */
    DSC_EXCHANGE_REDUCE, /* gradients, and sums of copies of the states */
    DSC_EXCHANGE_OTHER   /* scalars, verdicts, the optimizer's own */
} dsc_exchange;

typedef struct dsc_step_result {
    uint32_t struct_bytes;
    int64_t step;       /* optimizer steps done, from 1 */
    double loss;        /* global mean over the step's counted targets, before the update; NaN: none is counted */
    double lr;          /* used by this step */
    double grad_norm;   /* global 2-norm before clipping */
    int64_t tokens;     /* loss items of this step over all ranks */
    int64_t step_ns;
    bool skipped;       /* gradient not finite, or no target counted: no update */
    double loss_scale;
    int64_t epoch;      /* epoch of the step's last sample, from 0 */
    uint32_t requests;  /* requests of any rank since the step before, equal on all ranks (dsc_engine_request) */
    bool save_ended;    /* a save that was started has ended: dsc_engine_save_wait now says how without waiting */
    int64_t seq_length; /* tokens of the step's samples: fewer than the model's while a curriculum lasts; 0: none */
    double flops;       /* FLOPs of the step, over all ranks, forward and backward */
    int64_t counted_tokens; /* counted targets of this step over all ranks */
    /* Model with a preference; 0 without one. Means over the step's pairs: beta times the log-probability above the
     * reference's, their difference, and the share of pairs in which it is above 0. The loss is the pairs' mean too. */
    double reward_chosen, reward_rejected, reward_margin, reward_accuracy;
    int64_t data_wait_ns; /* time that the step waited for its batches: of the rank that waited longest */
    /* Mixture of experts (dsc_model_experts), else 0. The routers' losses are here without their factors, and in `loss`
     * with them. The largest load of an expert is in parts of the mean load. experts_idle have no token in the step.
     * Loads are over all ranks and micro-batches. */
    double aux_loss, z_loss, expert_load_ratio;
    int32_t busiest_router, busiest_expert;
    int64_t experts_idle;
    /* This rank's payload of the exchanges that the step gave: indexes are dsc_exchange. exchange_wait_ns is the time
     * that computation stood still for exchanges: the compute stream's waits, and exchanges that the host waits for.
     * Where one stream also reads files or adds sums, a wait for it includes that. 0 with one rank. */
    int64_t sent_bytes[3], received_bytes[3];
    int64_t exchange_wait_ns;
    /* The rank that waited least for exchanges, and so much less than the mean of the others, as a share of the step's
     * time: that is what the others wait for it. 0 with one rank. */
    int32_t slowest_rank;
    double slowest_share;
    bool spike;  /* loss or norm is far above those before ("dsc".spikes); the step was computed twice */
    bool rewind; /* the policy asks for dsc_engine_rewind; without it the run goes on without this update */
} dsc_step_result;
#define DSC_STEP_RESULT_INIT                                                                                           \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_step_result), 0, 0, 0, 0, 0, 0, false, 1, 0, 0, false, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,   \
            0, 0, 0, { 0 }, { 0 }, 0, 0, 0, false, false                                                               \
    }

/* Collective. One optimizer step: gradient_accumulation_steps micro-batches from the data source, forward, backward,
 * update. DSC_ERR_INPUT at the end of a data source that ends. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_train_batch(dsc_engine *engine, dsc_step_result *result, dsc_error *err);

/* One step in parts, as DeepSpeed users know it; refused if "dsc".micro_batches_together is more than one.
 * Collective.
 * forward: one micro-batch; batch[i] is the model's batch tensor i with micro-batch samples (borrowed until backward
 * returns), or batch = NULL: from the data source. *loss (may be NULL): this rank's mean over the micro-batch's counted
 * targets; NaN: none is counted.
 * backward: gradients of the last forward, reduced to their owners.
 * step: called once per micro-batch; updates at the accumulation boundary and does nothing elsewhere. *result is filled
 * when it acted (result->step > 0), else result->step = 0. With states in files the update continues in the background:
 * the next forward, evaluate, generate, save, snapshot or barrier returns its error. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_forward(dsc_engine *engine, const void *const *batch, double *loss,
                                                   dsc_error *err);
DSC_API DSC_MUST_USE dsc_status dsc_engine_backward(dsc_engine *engine, dsc_error *err);
DSC_API DSC_MUST_USE dsc_status dsc_engine_step(dsc_engine *engine, dsc_step_result *result, dsc_error *err);
/* Not collective; safe in a signal handler and from any thread while the engine is open. An event of one rank, such as
 * a signal, reaches all ranks at the same step. The next step that acts has `bits` in its `requests` on every rank;
 * the caller defines their meaning. */
DSC_API void dsc_engine_request(dsc_engine *engine, uint32_t bits);
/* Loads of the last step that acted: slots of each expert over all ranks, [routers * experts] (dsc_model_experts),
 * router by router. NULL: no step acted, or the model has no experts. Borrowed until the next step. */
DSC_API const int64_t *dsc_engine_expert_load(const dsc_engine *engine);
/* True when the next step() acts. */
DSC_API bool dsc_engine_at_boundary(const dsc_engine *engine);

/* Collective. Mean loss over the counted targets of samples without gradients, the same number for every world size.
 * source.fill = NULL: "dsc".eval_data. max_batches 0: all samples of the source. Otherwise its first max_batches * M
 * samples, with M the train_micro_batch_size_per_gpu of the config, or its train_batch_size where it gives no
 * micro-batch. Ranks read the samples in turn; an incomplete last micro-batch counts with the samples that it has. No
 * counted target: DSC_ERR_INPUT. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_evaluate(dsc_engine *engine, const dsc_data_source *source,
                                                    int64_t max_batches, double *loss, dsc_error *err);
/* Collective: every rank passes the same. Continues `tokens` (a language model; [token_count]) by `new_count` tokens
 * sampled at `temperature` (0: the most likely) with counter-based randomness from `seed`; out[new_count] on every
 * rank. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_generate(dsc_engine *engine, const int32_t *tokens, int64_t token_count,
                                                    int64_t new_count, double temperature, uint64_t seed, int32_t *out,
                                                    dsc_error *err);

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/* Collective. Writes DIR/step-N whole or not at all, then DIR/latest. An existing step-N that this run did not resume
 * from is refused. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_save(dsc_engine *engine, const char *dir, dsc_error *err);
/* Collective. Names DIR/step-<step>, which this run has saved, as the best checkpoint if `loss` is lower than the loss
 * of the one that DIR/best names. Of equal losses the earlier one stays; a loss that is not finite is never the best.
 * The first one of a run that was not loaded from DIR is the best. The best checkpoint is not removed by
 * "dsc".keep_last. *named (may be NULL): it is the best one now. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_save_best(dsc_engine *engine, const char *dir, int64_t step, double loss,
                                                     bool *named, dsc_error *err);
/* Collective. Begins a save and returns before the states are copied. The next step's update waits for the copy, and
 * the files are written while training goes on. Needs "dsc".save_async, which plans memory for the copy. One save at a
 * time: call dsc_engine_save_wait before the next save and before a load. A run that is closed earlier abandons the
 * save. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_save_start(dsc_engine *engine, const char *dir, dsc_error *err);
/* Collective. Waits for the save that was started and returns its verdict; *step (may be NULL) is the step that it
 * saved, or was to save. None was started: DSC_OK and -1. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_save_wait(dsc_engine *engine, int64_t *step, dsc_error *err);
/* Collective. Checks before the first step whether later saves to DIR would be refused. Reasons are a folder that
 * cannot be made or written, and too little space for one checkpoint. Another is an existing step-N above this
 * engine's step, with N = every, 2 * every, ... (0: none of these) or `last`, unless it was loaded from DIR. Leaves no
 * files. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_save_check(dsc_engine *engine, const char *dir, int64_t every, int64_t last,
                                                      dsc_error *err);
/* Collective. DIR (its `latest`), DIR/best or DIR/step-N; verified before anything of the engine changes. An engine
 * whose config named it ("dsc".load) has taken its algorithms of matrix products at open instead of measuring them. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_load(dsc_engine *engine, const char *dir, dsc_error *err);

/* Collective, after a step whose result has `rewind`. Loads the newest checkpoint of DIR that is at least
 * "dsc".spikes.rewind_steps older, removes the later ones, and leaves out the batches since, at least
 * "dsc".spikes.skip_batches. *step (may be NULL) is its step, after which the run goes on; -1: no checkpoint is old
 * enough, and the run goes on where it is. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_rewind(dsc_engine *engine, const char *dir, int64_t *step, dsc_error *err);

/* ---- Ranks that leave and join ----------------------------------------------------------------------------------- */

/* Collective, at a step boundary. Copies this rank's states and the progress of the run to host memory, and closes the
 * engine. Then each rank opens an engine of another world with DSC_ENGINE_CARRIED and what it carries. The new engines
 * move the states to their owners, and the run continues with the next step. With "dsc".quota the batch is the same,
 * and with "dsc".reproducible "world_size" so are the bits.
 * stays[rank of this world]: false for a rank that leaves. The states of a leaving rank go to one that stays, and the
 * leaving rank gets *out = NULL. `stays` is equal on all ranks; NULL: all stay. On failure the engine stays open, and
 * *out is NULL. *out is owned by the caller.
 * After a call that failed because a peer is gone (DSC_ERR_PEER), each remaining rank calls it alone, and `stays` has
 * no meaning. *out then has the last copies of this rank and of a neighbour ("dsc".elastic.mirror_every), and until the
 * first step is done those that the engine was opened with. The new engines continue after the newest step of which all
 * slices are left. If a rank and the neighbour with its copies are gone, opening fails with DSC_ERR_PEER, and the last
 * checkpoint is what is left. Features whose states do not move are refused by name: pipeline stages, MiCS, optimizers
 * that exchange signs, preference pairs. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_carry(dsc_engine **engine, const bool *stays, dsc_carried **out,
                                                 dsc_error *err);
DSC_API void dsc_carried_close(dsc_carried **carried); /* safe on NULL */

/* ---- Ranks and collectives for the host program -------------------------------------------------------------------
 */

DSC_API int32_t dsc_engine_rank(const dsc_engine *engine);
DSC_API int32_t dsc_engine_size(const dsc_engine *engine);
DSC_API int32_t dsc_engine_local_rank(const dsc_engine *engine);
DSC_API int32_t dsc_engine_local_size(const dsc_engine *engine);
DSC_API DSC_MUST_USE dsc_status dsc_engine_broadcast(dsc_engine *engine, void *buf, int64_t bytes, int32_t root,
                                                     dsc_error *err);
/* buf[count] fp32 <- sum (or mean) over ranks in rank order; `reduce` leaves it on root only (others' are unchanged).
 */
DSC_API DSC_MUST_USE dsc_status dsc_engine_all_reduce(dsc_engine *engine, float *buf, int64_t count, bool mean,
                                                      dsc_error *err);
DSC_API DSC_MUST_USE dsc_status dsc_engine_reduce(dsc_engine *engine, float *buf, int64_t count, bool mean,
                                                  int32_t root, dsc_error *err);
/* All ranks' work is done, also what their last step left on its way to files. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_barrier(dsc_engine *engine, dsc_error *err);

/* ---- A distributed optimizer around the host program's own gradients ------------------------------------------------
 */

typedef struct dsc_host_tensor {
    const char *name;
    float *data; /* [count] the host program's parameter, borrowed until the optimizer is closed */
    int64_t count;
    int64_t columns; /* columns of a matrix with count / columns rows; must divide count; 0: an array without a shape */
} dsc_host_tensor;

/* Collective. Averages gradients over the ranks, clips, updates with the config's optimizer and schedule and writes the
 * new values back into the host program's tensors. Optimizer state is sharded: 12 bytes per parameter over W (with
 * OneBitAdam, ZeroOneAdam and OneBitLamb every rank has all). Rank 0's values are broadcast at open. The engine may be
 * one without a model (its config then gives optimizer and schedule). Owned; close before the engine. */
typedef struct dsc_optimizer dsc_optimizer;
DSC_API DSC_MUST_USE dsc_status dsc_optimizer_open(dsc_optimizer **out, dsc_engine *engine,
                                                   const dsc_host_tensor *tensors, int32_t tensor_count,
                                                   dsc_error *err);
DSC_API void dsc_optimizer_close(dsc_optimizer **optimizer);
/* grads[i] has tensors[i].count fp32 elements: this rank's gradient. */
DSC_API DSC_MUST_USE dsc_status dsc_optimizer_step(dsc_optimizer *optimizer, const float *const *grads,
                                                   dsc_step_result *result, dsc_error *err);

/* ---- Looking inside ---------------------------------------------------------------------------------------------- */

/* The rate the next optimizer step uses; set overrides the schedule until DSC_LR_SCHEDULE (any negative) is set. */
#define DSC_LR_SCHEDULE (-1.0)
DSC_API double dsc_engine_lr(const dsc_engine *engine);
DSC_API DSC_MUST_USE dsc_status dsc_engine_set_lr(dsc_engine *engine, double lr, dsc_error *err);

/* One row of the plan: bytes of one tag in one tier on this rank. */
typedef struct dsc_plan_row {
    const char *tag;  /* "params", static */
    const char *tier; /* "host" */
    int64_t planned_bytes;
    int64_t current_bytes; /* now, measured by the allocator */
    int64_t peak_bytes;    /* since open */
} dsc_plan_row;
DSC_API int32_t dsc_engine_plan_row_count(const dsc_engine *engine);
DSC_API DSC_MUST_USE dsc_status dsc_engine_plan_row(const dsc_engine *engine, int32_t index, dsc_plan_row *row,
                                                    dsc_error *err);

/* One flat parameter group: what a rank keeps of one module. */
typedef struct dsc_group_info {
    const char *module; /* borrowed until close */
    bool trainable;
    int64_t elements; /* used by tensors */
    int64_t padded;   /* a multiple of W * 1024 */
    int64_t slice;    /* padded / W: what this rank owns, from rank * slice on */
} dsc_group_info;
DSC_API int32_t dsc_engine_group_count(const dsc_engine *engine);
DSC_API DSC_MUST_USE dsc_status dsc_engine_group(const dsc_engine *engine, int32_t index, dsc_group_info *info,
                                                 dsc_error *err);

typedef struct dsc_engine_stats {
    uint32_t struct_bytes;
    int64_t step;          /* optimizer steps done */
    int64_t micro_step;    /* inside the current step: 0..GAS-1 */
    int64_t next_sample;   /* data position: global number of the next step's first sample */
    int64_t samples_per_epoch; /* 0: endless or none */
    int64_t parameter_count, trainable_count;
    int64_t planned_bytes; /* sum of the plan's rows */
    int64_t tracked_bytes, tracked_peak_bytes;
    int64_t alloc_calls;   /* allocations since open: does not grow after the first step */
    int64_t forward_ns, backward_ns, step_ns, data_wait_ns; /* times of the last train step */
    int64_t comm_wait_ns;  /* inside collectives since open, also while other work went on */
    double flops_per_step; /* over all ranks, forward and backward */
    int64_t tokens_per_step;
    int64_t threads;
    /* Of the last evaluation: shares of the samples of a model with classes that are classified rightly, and whose
     * class is among the five most likely ones. NAN: there is none, or fewer than six classes. */
    double eval_accuracy, eval_accuracy_top5;
} dsc_engine_stats;
#define DSC_ENGINE_STATS_INIT                                                                                          \
    {                                                                                                                  \
        (uint32_t)sizeof(dsc_engine_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                 \
    }
DSC_API void dsc_engine_stats_get(dsc_engine *engine, dsc_engine_stats *stats);

/* Floating-point operations a second that matrix products of this rank could reach in the run's compute dtype. The
 * value is the data sheet's number on a known GPU, else measured now (about 0.2 s, the best of a few). CPU ranks with
 * fewer cores than threads count only their share of the cores, so that the sum over ranks is the host's limit. Local
 * to the rank; allocates and frees its buffers. */
DSC_API DSC_MUST_USE dsc_status dsc_engine_peak_flops(dsc_engine *engine, double *flops_per_s, dsc_error *err);

/* The resolved config, as far as a program that drives the engine needs it. Strings are borrowed until close. */
typedef struct dsc_run_info {
    uint32_t struct_bytes;
    const char *model_name, *transport, *device, *numerics; /* numerics: "params bf16, grads fp32, ..." */
    int32_t zero_stage;
    int64_t train_batch_size, micro_batch_size, accumulation_steps, seq_length, vocab_size;
    int64_t steps;        /* the step at which the run ends, from steps or epochs; 0: unknown */
    int64_t steps_per_epoch, save_every, eval_every, eval_batches, steps_per_print, seed;
    const char *save_dir, *load_dir, *log_path, *log_text_path; /* "" when not given */
    bool has_data, has_eval_data, overlap_comm;
    const char *recompute;   /* "kept", "none", "selective" or "full" */
    bool save_failure_stops; /* a failed save ends the run; else the caller warns and goes on */
    bool save_async;         /* "dsc".save_async: dsc_engine_save_start can be used */
    int64_t eval_patience;   /* evaluations in a row without a lower loss that end the run, 0: never */
    const char *tokenizer;   /* a tokenizer.json or its folder, which texts are read by; "": a byte is a token */
    bool curriculum;         /* samples of the first steps are shorter */
    bool node_local; /* checkpoint.use_node_local_storage: hosts may have checkpoint folders of their own */
    bool pairs;      /* the model is trained on preference pairs, and steps have rewards */
    int32_t routers, experts; /* numbers in dsc_model_experts; 0: none */
    bool router_losses;       /* steps have aux_loss and z_loss */
    bool log_expert_load;     /* "dsc".moe.log_load */
    bool pictures;            /* samples are pictures: what steps count as tokens are images */
    int32_t stages, data_ranks; /* of a pipeline, 1: none; ranks that share the samples of a step */
} dsc_run_info;
DSC_API void dsc_engine_run_info(const dsc_engine *engine, dsc_run_info *info); /* struct_bytes set by the caller */

#ifdef __cplusplus
}
#endif
#endif
