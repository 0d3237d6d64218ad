/* internal.h - what the checkpoint's files share: the list of stored tensors, blocks and the manifest.
 *
 * A stored tensor is one entry of a safetensors file. A block is at most 1 MiB of one stored tensor, inside one owner's
 * slice; its hash is taken from memory and covers the tensor's name, the block's position and the step.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_INTERNAL_H
#define DSC_ENGINE_CHECKPOINT_INTERNAL_H

#include "base/formats/safetensors.h"
#include "base/hash.h"
#include "engine/checkpoint/checkpoint.h"

#define DSC_CKPT_BLOCK_BYTES (1 << 20)
#define DSC_CKPT_PATH_BYTES 4096
/* config.json and ds_config.json: read whole to be hashed, so their size must not be the manifest's word alone. */
#define DSC_CKPT_SMALL_BYTES_MAX (16 << 20)
#define DSC_CKPT_MANIFEST_FILE "manifest.json"
/* 32 bytes a block: enough for 2 TB. A sealed manifest of this size can take four times as much memory, not more. */
#define DSC_CKPT_MANIFEST_BYTES_MAX (INT64_C(64) << 20)

typedef enum dsc_ckpt_file {
    DSC_CKPT_MODEL,     /* safetensors */
    DSC_CKPT_OPTIMIZER, /* safetensors */
    DSC_CKPT_CONFIG,    /* the model's, when it has one */
    DSC_CKPT_DS_CONFIG, /* the run's, when it was given */
    DSC_CKPT_ADAPTER,   /* PEFT's adapter_config.json, of a model with adapters */
    DSC_CKPT_FILE_COUNT
} dsc_ckpt_file;
#define DSC_CKPT_TENSOR_FILE_COUNT 2 /* the first ones */
typedef enum dsc_ckpt_plane {
    DSC_CKPT_WEIGHTS,
    DSC_CKPT_MASTER,
    DSC_CKPT_MOMENT1,
    DSC_CKPT_MOMENT2,
    DSC_CKPT_MOMENT3,
    DSC_CKPT_ROWS,
    DSC_CKPT_COLS,   /* of a matrix: the factors of its second moment */
    DSC_CKPT_TENSOR, /* numbers of a whole tensor */
    DSC_CKPT_PLANE_COUNT
} dsc_ckpt_plane;
/* Every rank has all of it, and rank 0 stores it. */
static inline bool dsc_ckpt_is_shared(dsc_ckpt_plane plane)
{
    return plane >= DSC_CKPT_ROWS && plane <= DSC_CKPT_TENSOR;
}

extern const char *const dsc_ckpt_file_name[DSC_CKPT_FILE_COUNT];

/* ---- the folder that checkpoints are saved to ---- */

dsc_status dsc_ckpt_refuse_existing(const char *step_dir, dsc_error *err);

/* ---- what is stored ---- */

typedef struct dsc_ckpt_entry {
    char *name; /* owned: prefix + HF name */
    dsc_ckpt_file file;
    dsc_ckpt_plane plane;
    int32_t tensor; /* of the layout */
    int64_t count;  /* elements */
    dsc_dtype dtype;
    int64_t index_in_file;
} dsc_ckpt_entry;

typedef struct dsc_ckpt_entries {
    dsc_alloc *alloc;
    dsc_ckpt_entry *entry;
    int32_t count;
    int32_t file_entries[DSC_CKPT_TENSOR_FILE_COUNT];
} dsc_ckpt_entries;

/* Whether such a run stores a plane of any trainable tensor, or of a frozen one. */
static inline bool dsc_ckpt_is_saved(const dsc_run_state *state, dsc_ckpt_plane plane, bool trainable)
{
    if (plane == DSC_CKPT_WEIGHTS)
        return true;
    if (plane == DSC_CKPT_TENSOR)
        return trainable && dsc_recipes[state->recipe].tensor_state != NULL;
    if (dsc_ckpt_is_shared(plane))
        return trainable && (dsc_recipes[state->recipe].needs & DSC_NEEDS_ROW_COL_STATS) != 0;
    return trainable &&
           (plane == DSC_CKPT_MASTER ? state->compute_dtype != DSC_F32
                                     : (int)plane - DSC_CKPT_MOMENT1 < dsc_recipe_states_most(state->recipe));
}
/* And of this one. */
static inline bool dsc_ckpt_saved_planes(const dsc_run_state *state, dsc_ckpt_plane plane, const dsc_layout *layout,
                                         const dsc_layout_tensor *tensor)
{
    const dsc_recipe recipe = dsc_layout_recipe(layout, tensor->group, state->recipe);
    if (plane == DSC_CKPT_ROWS || plane == DSC_CKPT_COLS)
        return dsc_ckpt_is_saved(state, plane, layout->group[tensor->group].matrices);
    if (plane == DSC_CKPT_TENSOR)
        return dsc_ckpt_is_saved(state, plane, tensor->spec->trainable);
    return dsc_ckpt_is_saved(state, plane, tensor->spec->trainable) &&
           (plane < DSC_CKPT_MOMENT1 || (int)plane - DSC_CKPT_MOMENT1 < dsc_recipes[recipe].state_count);
}
/* What its stored name begins with: "", "master", "exp_avg"; a point follows where it is not empty. */
static inline const char *dsc_ckpt_plane_name(const dsc_run_state *state, dsc_ckpt_plane plane)
{
    if (plane == DSC_CKPT_TENSOR)
        return dsc_recipes[state->recipe].tensor_state;
    if (dsc_ckpt_is_shared(plane)) /* transformers' names */
        return plane == DSC_CKPT_ROWS ? "exp_avg_sq_row" : "exp_avg_sq_col";
    return plane == DSC_CKPT_WEIGHTS  ? ""
           : plane == DSC_CKPT_MASTER ? "master"
                                      : dsc_recipes[state->recipe].state_name[plane - DSC_CKPT_MOMENT1];
}
/* Its stored name; out holds DSC_CKPT_NAME_BYTES. Returns out. */
#define DSC_CKPT_NAME_BYTES (DSC_SAFETENSORS_NAME_BYTES_MAX + 32)
const char *dsc_ckpt_stored_name(const dsc_run_state *state, dsc_ckpt_plane plane, const char *hf_name, char *out);
/* What dtype a run keeps a plane in. */
static inline dsc_dtype dsc_ckpt_dtype(const dsc_run_state *state, dsc_ckpt_plane plane)
{
    switch (plane) {
    case DSC_CKPT_WEIGHTS:
        return state->compute_dtype;
    case DSC_CKPT_MOMENT1:
    case DSC_CKPT_MOMENT2:
    case DSC_CKPT_MOMENT3:
        return state->moment_dtype;
    case DSC_CKPT_MASTER:
    case DSC_CKPT_ROWS:
    case DSC_CKPT_COLS:
    case DSC_CKPT_TENSOR:
    case DSC_CKPT_PLANE_COUNT:
        break;
    }
    return DSC_F32;
}

/* What it has of a tensor. */
static inline int64_t dsc_ckpt_count(dsc_ckpt_plane plane, const dsc_layout_tensor *tensor)
{
    if (plane == DSC_CKPT_TENSOR)
        return DSC_TENSOR_STATES;
    return plane == DSC_CKPT_ROWS   ? dsc_layout_rows(tensor)
           : plane == DSC_CKPT_COLS ? dsc_layout_cols(tensor)
                                    : tensor->count;
}
/* Where it is, if it is shared. */
static inline float *dsc_ckpt_shared(const dsc_zero *zero, dsc_ckpt_plane plane, int32_t tensor)
{
    return plane == DSC_CKPT_TENSOR ? dsc_zero_tensor_state(zero, tensor)
                                    : dsc_zero_adafactor_factors(zero, tensor, plane == DSC_CKPT_COLS);
}

/* What this model stores in such a run: model entries first, in layout order. */
dsc_status dsc_ckpt_entries_open(dsc_alloc *alloc, const dsc_layout *layout, const dsc_run_state *state,
                                 dsc_ckpt_entries *out, dsc_error *err);
void dsc_ckpt_entries_close(dsc_ckpt_entries *entries);

typedef struct dsc_ckpt_block {
    int32_t entry;        /* in entries, or the manifest's tensor */
    int64_t first, count; /* elements of the tensor */
    dsc_hash128 hash;
} dsc_ckpt_block;

static inline int64_t dsc_ckpt_block_elements(dsc_dtype dtype)
{
    return DSC_CKPT_BLOCK_BYTES / (int64_t)dsc_dtype_bytes(dtype);
}

/* The elements of a stored tensor that rank `rank` stores: how many, and the first of them. */
int64_t dsc_ckpt_span_of_rank(const dsc_layout *layout, const dsc_ckpt_entry *entry, int32_t rank, int64_t *first);
/* The blocks that rank `rank` owns, in order of entry and position. blocks = NULL only counts. */
int64_t dsc_ckpt_blocks_of_rank(const dsc_layout *layout, const dsc_ckpt_entries *entries, int32_t rank,
                                dsc_ckpt_block *blocks);
dsc_hash128 dsc_ckpt_block_hash(const char *name, const dsc_ckpt_block *block, int64_t step, const void *data,
                                int64_t bytes);

/* ---- manifest ---- */

/* One file: its size, and the SHA-256 of what blocks do not cover: a safetensors header, or all of a small file. */
typedef struct dsc_ckpt_file_info {
    int64_t bytes; /* -1: not there */
    int64_t head_bytes;
    uint8_t sha256[32];
} dsc_ckpt_file_info;
void dsc_ckpt_sha256(const void *data, int64_t bytes, uint8_t digest[32]);

typedef struct dsc_ckpt_manifest_tensor {
    char *name; /* owned by the manifest */
    int32_t file;
    dsc_dtype dtype;
    int64_t elements;
    int64_t first_block, block_count; /* in manifest.block: the tensor's blocks, in order, without a gap */
} dsc_ckpt_manifest_tensor;

/* Of a checkpoint whose hosts have no folder in common: each has a folder with a part of it. */
#define DSC_CKPT_HOST_BYTES 64
#define DSC_CKPT_PARTS_MOST 65536
typedef struct dsc_ckpt_parts {
    int32_t count;                 /* 1: all of it is here */
    int32_t index;                 /* of the part that is here; -1: none */
    char (*host)[DSC_CKPT_HOST_BYTES]; /* [count] where each was saved; NULL for one */
    int32_t *of_block;             /* [blocks in order] the part that a block is in; NULL for one */
} dsc_ckpt_parts;

typedef struct dsc_ckpt_manifest {
    dsc_alloc *alloc;
    dsc_run_state state;
    dsc_ckpt_parts parts; /* owned */
    dsc_ckpt_file_info file[DSC_CKPT_FILE_COUNT];
    dsc_ckpt_manifest_tensor *tensor;
    int64_t tensor_count;
    dsc_ckpt_block *block; /* entry: index of the tensor */
    int64_t block_count;
} dsc_ckpt_manifest;

#define DSC_CKPT_MANIFEST_VERSION 1
#define DSC_CKPT_SEAL_TEXT "\"sha256\":\""
#define DSC_CKPT_SEAL_BYTES ((int64_t)sizeof DSC_CKPT_SEAL_TEXT - 1 + 64 + 3) /* "sha256":"<64>"}\n */
#define DSC_CKPT_HASH_DIGITS 32
#define DSC_CKPT_PLAN_LINE_BYTES_MAX 512
static inline const char *dsc_ckpt_dtype_text(dsc_dtype dtype)
{
    return dtype == DSC_BF16 ? "BF16" : dtype == DSC_F16 ? "F16" : "F32";
}

/* Whether a manifest of these blocks, whatever their hashes, is one that is read: to be asked before anything is
 * written. Arguments as of dsc_ckpt_manifest_write. */
dsc_status dsc_ckpt_manifest_check(const dsc_run_state *state, const dsc_ckpt_entries *entries,
                                   const dsc_ckpt_file_info *file, const dsc_ckpt_parts *parts,
                                   const dsc_ckpt_block *block, int64_t block_count, dsc_error *err);
/* Text of a manifest (owned by the caller, dsc_alloc_free). block[i] are all ranks' blocks, by entry and position. */
dsc_status dsc_ckpt_manifest_write(dsc_alloc *alloc, const dsc_run_state *state, const dsc_ckpt_entries *entries,
                                   const dsc_ckpt_file_info *file, const dsc_ckpt_parts *parts,
                                   const dsc_ckpt_block *block, int64_t block_count, char **text, int64_t *bytes,
                                   dsc_error *err);
dsc_status dsc_ckpt_manifest_read(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_ckpt_manifest *out,
                                  dsc_error *err);
/* The same of a text; path is for messages. */
dsc_status dsc_ckpt_manifest_parse(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                   dsc_ckpt_manifest *out, dsc_error *err);
void dsc_ckpt_manifest_close(dsc_ckpt_manifest *manifest);
/* What all parts of one save have in common and no other save has: every block's place, part and hash, and the step. */
void dsc_ckpt_manifest_id(const dsc_ckpt_manifest *manifest, uint8_t id[32]);
static inline int32_t dsc_ckpt_part_of(const dsc_ckpt_manifest *manifest, const dsc_ckpt_block *block)
{
    return manifest->parts.of_block != NULL ? manifest->parts.of_block[block - manifest->block] : 0;
}

/* ---- an open checkpoint ---- */

typedef struct dsc_ckpt_reader {
    dsc_alloc *alloc;
    const dsc_io *io;
    dsc_ckpt_manifest manifest;
    dsc_safetensors *file[DSC_CKPT_TENSOR_FILE_COUNT];
    int64_t *tensor_of[DSC_CKPT_TENSOR_FILE_COUNT]; /* [entry of the file] the manifest's tensor */
    int64_t file_bytes[DSC_CKPT_TENSOR_FILE_COUNT]; /* of what is here */
    bool far; /* none of its files is here */
    /* Of a part: its blocks lie behind the header in the manifest's order. */
    dsc_file *part;    /* [tensor files] */
    int64_t *at;       /* [block] where it begins in its file; -1: it is in another part. NULL: all is here */
} dsc_ckpt_reader;

/* The texts of an open checkpoint, for who has none of its files. */
typedef struct dsc_ckpt_texts {
    char *text[1 + DSC_CKPT_TENSOR_FILE_COUNT]; /* the manifest, and the first head_bytes of each tensor file */
    int64_t bytes[1 + DSC_CKPT_TENSOR_FILE_COUNT];
} dsc_ckpt_texts;
dsc_status dsc_ckpt_texts_read(const dsc_ckpt_reader *reader, const char *step_dir, dsc_ckpt_texts *out,
                               dsc_error *err);
void dsc_ckpt_texts_close(dsc_ckpt_texts *texts, dsc_alloc *alloc);

/* dir/name of a checkpoint's file, which is never a symbolic link: a checkpoint does not reach outside its folder. */
dsc_status dsc_ckpt_file_path(char path[DSC_CKPT_PATH_BYTES], const char *dir, const char *name, dsc_error *err);
/* The N of a path that ends in step-N, -1: another name. */
int64_t dsc_ckpt_step_of(const char *dir);
/* Opens manifest and files: sizes, headers and small files are right; the manifest's tensors are the files', one to
 * one, in the dtypes that the compute dtype asks for. */
dsc_status dsc_ckpt_reader_open(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_ckpt_reader *out,
                                dsc_error *err);
/* The same from its texts: no block of it is here. */
dsc_status dsc_ckpt_reader_open_texts(dsc_alloc *alloc, const char *step_dir, const dsc_ckpt_texts *texts,
                                      dsc_ckpt_reader *out, dsc_error *err);
void dsc_ckpt_reader_close(dsc_ckpt_reader *reader);
/* DSC_ERR_INPUT for a part, with the way to the whole. */
dsc_status dsc_ckpt_refuse_part(const dsc_ckpt_reader *reader, const char *step_dir, dsc_error *err);
static inline bool dsc_ckpt_reader_has(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block)
{
    return reader->at == NULL || reader->at[block - reader->manifest.block] >= 0;
}
/* Where a block that is here begins in its file. */
int64_t dsc_ckpt_reader_offset(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block);
/* NULL when the checkpoint has no such tensor; *tensor (may be NULL) is the manifest's. */
const dsc_safetensors_entry *dsc_ckpt_reader_find(const dsc_ckpt_reader *reader, dsc_ckpt_plane plane,
                                                  const char *hf_name, const dsc_ckpt_manifest_tensor **tensor);
/* Reads a block into buffer (DSC_CKPT_BLOCK_BYTES), as it lies in the file, and compares its hash. */
dsc_status dsc_ckpt_reader_block(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block, void *buffer,
                                 dsc_error *err);
/* Compares the hash of one that lies in memory. */
dsc_status dsc_ckpt_reader_check(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block, const void *data,
                                 dsc_error *err);
/* A block that will be wanted soon, so many before its turn: a disk is fast only when it is asked for several. */
#define DSC_CKPT_BLOCKS_AHEAD 16
void dsc_ckpt_reader_expect(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block);
/* dsc_ckpt_verify with a buffer of DSC_CKPT_BLOCK_BYTES of the caller's. */
dsc_status dsc_ckpt_verify_with(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, void *buffer, dsc_error *err);

/* Takes a checkpoint away: its name first, then its files. Missing, a link or no folder: DSC_OK. */
dsc_status dsc_ckpt_remove_step(const dsc_io *io, const char *dir, const char *name, dsc_error *err);

/* OUT.tmp, in which a folder that must not exist is made; its path. */
dsc_status dsc_ckpt_make_out(const dsc_io *io, const char *out, char tmp_dir[DSC_CKPT_PATH_BYTES], dsc_error *err);

/* ---- the commit of a folder, by one rank ---- */

typedef struct dsc_ckpt_commit {
    const dsc_ckpt_ctx *c;
    const dsc_run_state *state; /* borrowed */
    const char *dir;            /* borrowed */
    int64_t resumed_step;       /* in dir; -1: none */
    char name[64], step_dir[DSC_CKPT_PATH_BYTES], tmp_dir[DSC_CKPT_PATH_BYTES];
    char latest[DSC_CKPT_PATH_BYTES], latest_tmp[DSC_CKPT_PATH_BYTES], latest_new[DSC_CKPT_PATH_BYTES];
    char previous[64]; /* what `latest` named before; "": nothing */
    bool had_latest;
    bool made_tmp, made_step, made_latest_tmp, made_latest; /* there now, and to be undone after a failure */
    bool keeps_existing; /* step-N was there with the same tensors */
    bool part;           /* of the checkpoint: hosts have folders of their own */
} dsc_ckpt_commit;

/* Fills the paths of a zeroed *commit; every rank. All that follows is for the folder's first one. */
dsc_status dsc_ckpt_commit_plan(dsc_ckpt_commit *commit, const dsc_ckpt_ctx *c, const char *dir,
                                const dsc_run_state *state, int64_t resumed_step, dsc_error *err);
/* Tidies up after a life that was cut short, refuses what must not be replaced, makes tmp_dir for `bytes` bytes. */
dsc_status dsc_ckpt_commit_begin(dsc_ckpt_commit *commit, int64_t bytes, dsc_error *err);
/* A small file in tmp_dir, durable. */
dsc_status dsc_ckpt_commit_file(const dsc_ckpt_commit *commit, const char *name, const char *text, int64_t bytes,
                                dsc_error *err);
/* All other files are there and durable: the manifest, and what happens to a step-N that is there already. */
dsc_status dsc_ckpt_commit_prepare(dsc_ckpt_commit *commit, const char *manifest, int64_t bytes, dsc_error *err);
/* Then latest.tmp and the rename to step-N. */
dsc_status dsc_ckpt_commit_name(dsc_ckpt_commit *commit, dsc_error *err);
/* Then `latest`. */
dsc_status dsc_ckpt_commit_announce(dsc_ckpt_commit *commit, dsc_error *err);
/* From here on nothing is undone. */
void dsc_ckpt_commit_settle(dsc_ckpt_commit *commit);
/* After a failure of any of them, as far as the disk still lets it; safe after a mere plan. */
void dsc_ckpt_commit_undo(dsc_ckpt_commit *commit);
/* step-N is what this run was loaded from. *kept: it is still there, is sound as far as its headers, and is now the
 * latest. */
dsc_status dsc_ckpt_commit_keep_resumed(const dsc_ckpt_commit *commit, bool *kept, dsc_error *err);

#endif
