/* checkpoint.h - DIR/step-N: written whole or not at all, verified before anything is changed.
 *
 * Files:
 *   model.safetensors      HF names; master weights in fp32 runs, 16-bit weights in bf16 and fp16 runs
 *   optimizer.safetensors  "master.NAME" (fp32, in bf16 and fp16 runs), "exp_avg.NAME", "exp_avg_sq.NAME" or the
 *                          recipe's other moments, by dsc.moments; "ema.NAME" (fp32) of a run with averages
 *   config.json            if the model has one, with the dtype of model.safetensors
 *   ds_config.json         the text of the config, unchanged
 *   tokenizer.json, ...    the other files of the model's folder (companions.h)
 *   dpo_reference.bin      of a run on preference pairs (reference.h)
 *   buffers.safetensors    of a model with buffers (buffers.h)
 *   carried.tensors        tensors of the model's files that the run does not have (dsc_model_carried)
 *   companions.sha256      hashes of these two
 *   manifest.json          strict JSON: version, state, sizes, header hashes of files, XXH3-128 of blocks; SHA-256 last
 * A block is at most 1 MiB of a tensor; its hash covers name, position and step. Owners write the byte ranges of their
 * slices. docs/checkpoint.md has the format, the order of a commit and the reasons.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_CHECKPOINT_H
#define DSC_ENGINE_CHECKPOINT_CHECKPOINT_H

#include "engine/checkpoint/buffers.h"
#include "engine/checkpoint/companions.h"
#include "engine/checkpoint/reference.h"
#include "base/io.h"
#include "engine/data/skips.h"
#include "engine/schedule/loss_scale.h"
#include "engine/schedule/spike_watch.h"
#include "kernels/nf4.h"
#include "zero/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/* State of a run beside its tensors. */
typedef struct dsc_run_state {
    int64_t step;          /* optimizer steps done */
    int64_t update_count;  /* steps not skipped: Adam's t and the schedule's position */
    int64_t next_sample;   /* data position */
    int64_t seed;
    int64_t train_batch_size, micro_batch, accumulation_steps, world_size;
    int64_t shard_ranks; /* that share a copy of the states: MiCS's groups, or all */
    int64_t samples_per_epoch, seq_length;
    int64_t document_end; /* the token that attention does not cross; -1: none */
    int32_t zero_stage;
    dsc_dtype compute_dtype, moment_dtype;
    dsc_recipe recipe; /* of the optimizer */
    bool averages;     /* moving averages of the weights are stored */
    bool outer;        /* momentum of outer steps (dsc.local_sgd) is stored */
    int32_t tensor_ranks;        /* that compute each module together; 0: one does */
    dsc_loss_scaler loss_scaler; /* fp16 only; all zero else, and if it was not saved */
    dsc_skips skips;             /* batches that the run leaves out */
    dsc_spike_watch spikes;      /* means that dsc.spikes compares with; counts 0: none */
    bool world_size_reproducible, shuffle;
    char cpu_level[32];     /* "avx512-bf16"; on a GPU "sm_90" */
    char versions[128];     /* "dsc 0.1.0, oneDNN 2.6.3" */
    char packed_hash[64];   /* hash of frozen weights in 4 bits, which no checkpoint has; "": none, or unknown */
    /* How the device computes matrix products, lines of text (kernels/device.h); NULL: nothing to say. Borrowed by a
     * save; what a load gives is the caller's (dsc_alloc_free). */
    char *gemm_plans;
    /* Settings of the config that change numbers, lines of a key, a tab and a value (engine/config/config.h); NULL:
     * unknown. Borrowed by a save; a load gives none. */
    char *settings;
} dsc_run_state;

/* Which checkpoints of a folder stay: of those up to the one that `latest` names. */
typedef struct dsc_ckpt_keep {
    int64_t last;    /* so many newest ones, `latest` included; 0: all */
    int64_t every;   /* and every step that is a multiple of this; 0: none of them for that */
    bool unfinished; /* removes the remains of interrupted saves too: only while no save is running */
    bool dry_run;    /* only report */
    void (*on_remove)(void *user, const char *name); /* before each removal; may be NULL */
    void *user;
} dsc_ckpt_keep;

/* Stages of a pipeline: each one's ranks hold other modules. The layout of a context is that of all modules. */
typedef struct dsc_ckpt_stages {
    int32_t count, data_ranks;     /* rank r of the communicator has stage r / data_ranks and slice r % data_ranks */
    const int32_t *first_module;   /* [count + 1] of each stage */
    const int32_t *group, *tensor; /* [of the layout] number in this rank's zero; -1: another stage has it */
} dsc_ckpt_stages;

/* Slices in host memory in place of zero's, of a run whose ranks keep parts of tensors (engine/tensor.h): whole tensors
 * by the context's layout. */
typedef struct dsc_ckpt_memory {
    int32_t slice; /* which one of each group is here */
    dsc_dtype param_dtype, moment_dtype;
    char **plane; /* [group * DSC_PLANE_COUNT + plane] the slice's elements; NULL: none */
} dsc_ckpt_memory;

typedef struct dsc_ckpt_ctx {
    dsc_alloc *alloc;
    const dsc_io *io;
    const dsc_log *log;      /* may be NULL */
    const dsc_model *model;
    const dsc_layout *layout;
    const dsc_ckpt_stages *stages; /* NULL: every rank has all modules */
    dsc_zero *zero;
    const dsc_ckpt_memory *memory; /* NULL: slices are zero's */
    dsc_comm *comm;          /* over host memory, channel DSC_CHANNEL_CONTROL */
    dsc_device *device;
    dsc_stream *stream;      /* compute: slices are copied on it where the host cannot reach them */
    const char *config_text; /* NULL: none */
    int64_t config_bytes;
    dsc_ckpt_companions companions; /* copied into each checkpoint */
    dsc_ckpt_reference reference;   /* of a run on pairs, written into each checkpoint; borrowed until a save ends */
    dsc_ckpt_buffers buffers;       /* of the model; a save copies the values when it starts, a load writes them last */
    dsc_ckpt_keep keep;       /* rule for removal after each save */
    bool node_local;          /* ranks may see other folders under the same name */
    dsc_aio_options aio;      /* alloc and hook are not read */
    int32_t threads;          /* that a load may use, >= 1 */
    dsc_buf buffer;           /* planned PINNED memory, at least DSC_CKPT_BUFFER_BYTES */
} dsc_ckpt_ctx;
#define DSC_CKPT_BUFFER_BYTES (4 << 20)
/* The buffer that keeps a disk busy, as far as a 64th of a rank's states reaches. It is the least one if these are in
 * files, for who has no memory to spare. */
#define DSC_CKPT_BUFFER_BYTES_MOST (24 << 20)
int64_t dsc_ckpt_buffer_bytes(const dsc_layout *layout, bool states_in_files);

/* About what a save or load takes beside the buffer while it runs: lists of tensors and blocks, the manifest's text. */
typedef struct dsc_ckpt_uses {
    bool saves, loads;
    bool node_local; /* as in the context */
    bool averages, outer; /* as in dsc_run_state */
} dsc_ckpt_uses;
int64_t dsc_ckpt_plan_bytes(const dsc_layout *layout, dsc_dtype compute_dtype, dsc_dtype moment_dtype,
                            dsc_recipe recipe, const dsc_ckpt_uses *uses);

/* The first rank's failure becomes every rank's, so that nobody waits for one that gave up. Collective; needs comm,
 * stream and buffer of the context, and uses the buffer's upper half. */
DSC_MUST_USE dsc_status dsc_ckpt_agree(const dsc_ckpt_ctx *ctx, dsc_status mine, const dsc_error *my_error,
                                       dsc_error *err);

/* Collective; every rank returns the same verdict. Writes dir/step-<state.step>, making dir and the folders above it
 * when missing. After a failure nothing of step-N is left, earlier checkpoints and `latest` are as they were, and the
 * engine may go on. (If the disk refuses even the cleanup: step-N.tmp stays and is not a checkpoint, or a whole
 * step-N does.) An existing step-N is DSC_ERR_INPUT, but for these:
 *   - one whose commit was cut short and which `latest` never named is removed;
 *   - the one that this run was loaded from in dir (`resumed_step`, -1: none) is kept, and `latest` names it;
 *   - a later one than that is kept when its tensors are the same, whichever world size or stage wrote it; one that
 *     does not verify is renamed to step-N.damaged with a warning. Other tensors are refused, with what differs.
 * After a success rank 0 removes what ctx->keep does not keep; what cannot be removed is one warning. */
DSC_MUST_USE dsc_status dsc_ckpt_save(const dsc_ckpt_ctx *ctx, const char *dir, const dsc_run_state *state,
                                      int64_t resumed_step, dsc_error *err);
/* A save that is written while training goes on: dsc_ckpt_save in pieces, with the same verdicts. `snapshot` is
 * PINNED memory of dsc_ckpt_snapshot_bytes, borrowed until the end. start: collective; a failure leaves *out NULL
 * and is the save's. From then until dsc_ckpt_snapped has returned the states must not change. */
typedef struct dsc_ckpt_async dsc_ckpt_async;
int64_t dsc_ckpt_snapshot_bytes(const dsc_layout *layout, dsc_dtype compute_dtype, dsc_dtype moment_dtype,
                                dsc_recipe recipe, bool averages, int32_t rank);
DSC_MUST_USE dsc_status dsc_ckpt_async_start(const dsc_ckpt_ctx *ctx, const char *dir, const dsc_run_state *state,
                                             int64_t resumed_step, const dsc_buf *snapshot, dsc_ckpt_async **out,
                                             dsc_error *err);
void dsc_ckpt_async_snapped(dsc_ckpt_async *async); /* waits */
/* Not collective: this rank's thread is at work. */
bool dsc_ckpt_async_busy(const dsc_ckpt_async *async);
/* Collective; waits where this rank is busy. True: it has ended, *status and *err are the verdict. */
bool dsc_ckpt_async_advance(dsc_ckpt_async *async, dsc_status *status, dsc_error *err);
/* Not collective. One that has not ended is given up, and rank 0 takes away what there is of it. Sets NULL. */
void dsc_ckpt_async_close(dsc_ckpt_async **async);

/* Saves that a run will make. */
typedef struct dsc_ckpt_saves {
    int64_t after;       /* its steps so far */
    int64_t every, last; /* 0: only last */
    bool resumed;        /* from a checkpoint in dir: a step made again may be there */
    dsc_dtype compute_dtype, moment_dtype;
    dsc_recipe recipe;
    bool averages; /* as in dsc_run_state */
} dsc_ckpt_saves;
/* Collective; every rank returns the same verdict. Checks before the run that later saves can succeed. Errors: a step-N
 * exists, a folder cannot be made or written, or the disk is too full for the first save. Leaves no file. */
DSC_MUST_USE dsc_status dsc_ckpt_check(const dsc_ckpt_ctx *ctx, const char *dir, const dsc_ckpt_saves *saves,
                                       dsc_error *err);
/* Collective; every rank returns the same verdict. dir is a parent (its `latest`) or one step-N. Verifies manifest,
 * sizes, names and shapes against the model, and the hashes of this rank's blocks. After all ranks have verified,
 * writes this rank's slices; the caller publishes them. `once`: reads each byte once, and writes a block after its own
 * hash was equal. *changed: slices were written, so after a failure the states are unusable. One warning line for each
 * difference from *now that ends bit-exactness, and one for a later step in the same folder. DSC_ERR_INPUT: the state
 * cannot be loaded. */
DSC_MUST_USE dsc_status dsc_ckpt_load(const dsc_ckpt_ctx *ctx, const char *dir, bool once, const dsc_run_state *now,
                                      dsc_run_state *out, bool *changed, dsc_error *err);
/* The folder that --load DIR means: DIR/step-N itself, DIR plus its `latest`, or for DIR/best the one that it names.
 * DSC_ERR_INPUT when there is none. */
DSC_MUST_USE dsc_status dsc_ckpt_find(const dsc_io *io, dsc_alloc *alloc, const char *dir, char *out, size_t out_bytes,
                                      dsc_error *err);

/* Not collective. The newest checkpoint of the folder whose step is at most `most`; *step -1: there is none. */
DSC_MUST_USE dsc_status dsc_ckpt_newest_until(const dsc_io *io, dsc_alloc *alloc, const char *dir, int64_t most,
                                              int64_t *step, dsc_error *err);
/* Not collective. `latest` names step-<step>, which is there, and later checkpoints are removed: the run goes on from
 * this one with other samples. */
DSC_MUST_USE dsc_status dsc_ckpt_leave_later(const dsc_io *io, dsc_alloc *alloc, const char *dir, int64_t step,
                                             dsc_error *err);

/* Removes the checkpoints of a folder that `keep` does not keep, but never the one that `best` names. DSC_ERR_INPUT,
 * and nothing is removed, when `latest` names none or `best` cannot be read. */
DSC_MUST_USE dsc_status dsc_ckpt_prune(const dsc_io *io, dsc_alloc *alloc, const char *dir, const dsc_ckpt_keep *keep,
                                       dsc_error *err);

/* Matrix product entry in the manifest of the checkpoint that --load DIR means, verified; owned by the caller
 * (dsc_alloc_free). *out = NULL: nothing. Nothing else of the checkpoint is read. */
DSC_MUST_USE dsc_status dsc_ckpt_gemm_plans(const dsc_io *io, dsc_alloc *alloc, const char *dir, char **out,
                                            dsc_error *err);

/* The checkpoint with the lowest validation loss of a folder, by the file DIR/best: "step-N LOSS". */
typedef struct dsc_ckpt_best {
    int64_t step; /* -1: none is named */
    double loss;  /* finite */
    char name[64];
} dsc_ckpt_best;
/* DSC_ERR_INPUT: the file is something else. Whether the checkpoint is there is not looked at. */
DSC_MUST_USE dsc_status dsc_ckpt_read_best(const dsc_io *io, dsc_alloc *alloc, const char *dir, dsc_ckpt_best *out,
                                           dsc_error *err);
/* Collective; every rank returns the same verdict. Names dir/step-<step>, which was saved, if its loss is finite and
 * lower than that of the named one, or if none is named. So of equal losses the earlier one stays. A named checkpoint
 * that is not there does not count; with `anew` no earlier one does. Checkpoints that ctx->keep does not keep any more
 * are removed. */
DSC_MUST_USE dsc_status dsc_ckpt_note_best(const dsc_ckpt_ctx *ctx, const char *dir, int64_t step, double loss,
                                           bool anew, bool *named, dsc_error *err);

/* The name that a `latest` file holds: one line "step-N", nothing else. */
DSC_MUST_USE dsc_status dsc_ckpt_read_latest(const dsc_io *io, dsc_alloc *alloc, const char *path, char name[64],
                                             dsc_error *err);
/* "step-" and 1 to 18 digits. */
bool dsc_ckpt_is_step_name(const char *name);
/* That and ".tmp". */
bool dsc_ckpt_is_unfinished_name(const char *name);

/* Without a model, for `dsc ckpt`. summary: the manifest and every file's size and header are right; the tensors' bytes
 * are not read; *bytes: of the safetensors files. verify: every file, every hash, companions too. hash: DESIGN section
 * 7, 64 hex digits + NUL. */
DSC_MUST_USE dsc_status dsc_ckpt_summary(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_run_state *state,
                                         int64_t *bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_ckpt_verify(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_error *err);
/* text: "part 1 of 2 (host a)" where hosts have folders of their own, "" where all is here. With a part, summary
 * and verify see what is here; hash, diff and export refuse it. */
DSC_MUST_USE dsc_status dsc_ckpt_part(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, char *text,
                                      size_t text_bytes, dsc_error *err);
/* From all parts of one save the whole: out_dir, which must not exist, is made whole or not at all. */
DSC_MUST_USE dsc_status dsc_ckpt_merge(const dsc_io *io, dsc_alloc *alloc, const char *const *step_dir, int32_t count,
                                       const char *out_dir, dsc_error *err);
DSC_MUST_USE dsc_status dsc_ckpt_hash(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, char hex[65],
                                      dsc_error *err);

/* One tensor that two checkpoints do not agree on. Borrowed until the call returns. */
typedef struct dsc_ckpt_diff_row {
    const char *tensor, *plane; /* "weights" (names and shapes), "master", "exp_avg", "exp_avg_sq" */
    const char *what;           /* "only in the first"; NULL: the values */
    int64_t differing;          /* elements whose fp32 bits differ */
    double largest;             /* of their differences */
} dsc_ckpt_diff_row;
typedef struct dsc_ckpt_diff_sink {
    void (*row)(void *user, const dsc_ckpt_diff_row *row);
    void *user;
} dsc_ckpt_diff_sink;
/* Verifies both, then compares what `dsc ckpt hash` covers, but for the step. *differing: rows that the sink got. */
DSC_MUST_USE dsc_status dsc_ckpt_diff(const dsc_io *io, dsc_alloc *alloc, const char *const step_dir[2],
                                      const dsc_ckpt_diff_sink *sink, int64_t *differing, dsc_error *err);

typedef struct dsc_ckpt_export_options {
    const char *out_dir; /* must not exist */
    dsc_dtype dtype;     /* F32, BF16, F16; DSC_DTYPE_COUNT: the run's */
    int64_t shard_bytes; /* limit of a file, unless it has one tensor */
    bool merge;          /* adapters are added to the weights beside them */
    bool averages;       /* the moving averages of weights that have one; not with `merge` */
    dsc_nf4 nf4;         /* how linear weights of blocks are packed; NONE: not at all */
} dsc_ckpt_export_options;
/* Weights and config.json as a Hugging Face folder; fp32 are the master weights. Whole or not there. A checkpoint
 * with adapters gives, but for `merge`, these alone as PEFT's folder, in fp32 unless dtype says else. nf4: of the
 * families in export_nf4.c, values of the dtype packed as bitsandbytes does. */
DSC_MUST_USE dsc_status dsc_ckpt_export(const dsc_io *io, dsc_alloc *alloc, const char *step_dir,
                                        const dsc_ckpt_export_options *options, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
