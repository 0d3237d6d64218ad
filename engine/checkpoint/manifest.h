/* manifest.h - the contract of a checkpoint's manifest: the list of stored tensors, blocks and the text of the
 * manifest.
 *
 * A stored tensor is one entry of a safetensors file. A block is at most 1 MiB of one stored tensor, inside one
 * owner's slice. The hash is taken from memory and covers the tensor's name, the block's position and the step.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_MANIFEST_H
#define DSC_ENGINE_CHECKPOINT_MANIFEST_H

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
    DSC_CKPT_MODEL,      /* safetensors */
    DSC_CKPT_OPTIMIZER,  /* safetensors */
    DSC_CKPT_CONFIG,     /* the model's, when it has one */
    DSC_CKPT_DS_CONFIG,  /* the run's, when it was given */
    DSC_CKPT_ADAPTER,    /* PEFT's adapter_config.json, of a model with adapters */
    DSC_CKPT_COMPANIONS, /* hashes of the companions (companions.h), when there are some */
    DSC_CKPT_BUFFERS,    /* buffers of modules (buffers.h), of a model with some */
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
    DSC_CKPT_COLS,   /* matrix only: the factors of its second moment */
    DSC_CKPT_TENSOR, /* numbers of a whole tensor */
    DSC_CKPT_ABSMAX1,
    DSC_CKPT_ABSMAX2, /* of the blocks of moments in U8 (kernels/update.h), counted from the tensor's start */
    DSC_CKPT_AVERAGE, /* moving averages of the weights */
    DSC_CKPT_OUTER,   /* momentum of the outer steps of local SGD */
    DSC_CKPT_PLANE_COUNT
} dsc_ckpt_plane;
/* Every rank has all of it, and rank 0 stores it. */
static inline bool dsc_ckpt_is_shared(dsc_ckpt_plane plane)
{
    return plane >= DSC_CKPT_ROWS && plane <= DSC_CKPT_TENSOR;
}

static inline bool dsc_ckpt_is_absmax(dsc_ckpt_plane plane)
{
    return plane == DSC_CKPT_ABSMAX1 || plane == DSC_CKPT_ABSMAX2;
}
/* One fp32 number for each weight, in memory of zero/ that has no view. */
static inline bool dsc_ckpt_is_beside(dsc_ckpt_plane plane)
{
    return plane == DSC_CKPT_AVERAGE || plane == DSC_CKPT_OUTER;
}
static inline float *dsc_ckpt_beside(const dsc_zero *zero, dsc_ckpt_plane plane, int32_t group, int64_t first)
{
    DSC_ASSERT(dsc_ckpt_is_beside(plane));
    return plane == DSC_CKPT_AVERAGE ? dsc_zero_average(zero, group, first)
                                     : dsc_zero_outer_momentum(zero, group, first);
}
/* Elements of the tensor for each number of the plane. */
static inline int64_t dsc_ckpt_elements_each(dsc_ckpt_plane plane)
{
    return dsc_ckpt_is_absmax(plane) ? DSC_Q8_BLOCK : 1;
}

extern const char *const dsc_ckpt_file_name[DSC_CKPT_FILE_COUNT];

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
    DSC_ASSERT(plane < DSC_CKPT_PLANE_COUNT);
    DSC_ASSERT(state->recipe < DSC_RECIPE_COUNT);
    if (plane == DSC_CKPT_WEIGHTS)
        return true;
    if (plane == DSC_CKPT_TENSOR)
        return trainable && dsc_recipes[state->recipe].tensor_state != NULL;
    if (dsc_ckpt_is_absmax(plane))
        return trainable && state->moment_dtype == DSC_U8;
    if (plane == DSC_CKPT_AVERAGE)
        return trainable && state->averages;
    if (plane == DSC_CKPT_OUTER)
        return trainable && state->outer;
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
    if (layout->group[tensor->group].packed != DSC_NF4_NONE) /* they never change: a load takes the model's */
        return false;
    if (plane == DSC_CKPT_ROWS || plane == DSC_CKPT_COLS)
        return dsc_ckpt_is_saved(state, plane, layout->group[tensor->group].matrices);
    if (plane == DSC_CKPT_TENSOR || dsc_ckpt_is_beside(plane) || dsc_ckpt_is_absmax(plane))
        return dsc_ckpt_is_saved(state, plane, tensor->spec->trainable);
    return dsc_ckpt_is_saved(state, plane, tensor->spec->trainable) &&
           (plane < DSC_CKPT_MOMENT1 || (int)plane - DSC_CKPT_MOMENT1 < dsc_recipes[recipe].state_count);
}
/* Prefix of its stored name: "", "master", "exp_avg"; a point follows where it is not empty. */
static inline const char *dsc_ckpt_plane_name(const dsc_run_state *state, dsc_ckpt_plane plane)
{
    DSC_ASSERT(plane < DSC_CKPT_PLANE_COUNT);
    if (plane == DSC_CKPT_TENSOR)
        return dsc_recipes[state->recipe].tensor_state;
    if (dsc_ckpt_is_absmax(plane))
        return plane == DSC_CKPT_ABSMAX1 ? "exp_avg_absmax" : "exp_avg_sq_absmax";
    if (dsc_ckpt_is_shared(plane)) /* transformers' names */
        return plane == DSC_CKPT_ROWS ? "exp_avg_sq_row" : "exp_avg_sq_col";
    if (dsc_ckpt_is_beside(plane))
        return plane == DSC_CKPT_AVERAGE ? "ema" : "outer_momentum";
    return plane == DSC_CKPT_WEIGHTS  ? ""
           : plane == DSC_CKPT_MASTER ? "master"
                                      : dsc_recipes[state->recipe].state_name[plane - DSC_CKPT_MOMENT1];
}
/* Its stored name; out holds DSC_CKPT_NAME_BYTES. Returns out. */
#define DSC_CKPT_NAME_BYTES (DSC_SAFETENSORS_NAME_BYTES_MAX + 32)
const char *dsc_ckpt_stored_name(const dsc_run_state *state, dsc_ckpt_plane plane, const char *hf_name, char *out);
/* Dtype in which a run keeps a plane. */
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
    case DSC_CKPT_ABSMAX1:
    case DSC_CKPT_ABSMAX2:
    case DSC_CKPT_AVERAGE:
    case DSC_CKPT_OUTER:
    case DSC_CKPT_PLANE_COUNT:
        break;
    }
    return DSC_F32;
}

/* Elements of a tensor in the plane. */
static inline int64_t dsc_ckpt_count(dsc_ckpt_plane plane, const dsc_layout_tensor *tensor)
{
    DSC_ASSERT(plane < DSC_CKPT_PLANE_COUNT);
    if (plane == DSC_CKPT_TENSOR)
        return DSC_TENSOR_STATES;
    if (dsc_ckpt_is_absmax(plane))
        return dsc_div_ceil(tensor->count, DSC_Q8_BLOCK);
    return plane == DSC_CKPT_ROWS   ? dsc_layout_rows(tensor)
           : plane == DSC_CKPT_COLS ? dsc_layout_cols(tensor)
                                    : tensor->count;
}
/* Where it is, if it is shared. */
static inline float *dsc_ckpt_shared(const dsc_zero *zero, dsc_ckpt_plane plane, int32_t tensor)
{
    DSC_ASSERT(dsc_ckpt_is_shared(plane));
    return plane == DSC_CKPT_TENSOR ? dsc_zero_tensor_state(zero, tensor)
                                    : dsc_zero_adafactor_factors(zero, tensor, plane == DSC_CKPT_COLS);
}

/* Tensors that this model stores in such a run: model entries first, in layout order. */
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

/* Numbers in this rank's zero of a group and a tensor of the context's layout; -1: another stage has it. */
static inline int32_t dsc_ckpt_zero_group(const dsc_ckpt_ctx *c, int32_t group)
{
    DSC_ASSERT(group >= 0 && group < c->layout->group_count);
    return c->stages == NULL ? group : c->stages->group[group];
}
static inline int32_t dsc_ckpt_zero_tensor(const dsc_ckpt_ctx *c, int32_t tensor)
{
    DSC_ASSERT(tensor >= 0 && tensor < c->layout->tensor_count);
    return c->stages == NULL ? tensor : c->stages->tensor[tensor];
}
/* The elements of a stored tensor that rank `rank` stores: how many, and the first of them. */
int64_t dsc_ckpt_span_of_rank(const dsc_ckpt_ctx *c, const dsc_ckpt_entry *entry, int32_t rank, int64_t *first);
/* The blocks that rank `rank` owns, in order of entry and position. blocks = NULL only counts. */
int64_t dsc_ckpt_blocks_of_rank(const dsc_ckpt_ctx *c, const dsc_ckpt_entries *entries, int32_t rank,
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

/* Parts of a checkpoint whose hosts have no folder in common: each has a folder with a part of it. */
#define DSC_CKPT_HOST_BYTES 64
#define DSC_CKPT_PARTS_MOST 65536
typedef struct dsc_ckpt_parts {
    int32_t count;                 /* 1: all of it is here */
    int32_t index;                 /* index of the part that is here; -1: none */
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
    return dtype == DSC_BF16 ? "BF16" : dtype == DSC_F16 ? "F16" : dtype == DSC_U8 ? "U8" : "F32";
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
/* Reads a manifest from a text; path is for messages. */
dsc_status dsc_ckpt_manifest_parse(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                   dsc_ckpt_manifest *out, dsc_error *err);
void dsc_ckpt_manifest_close(dsc_ckpt_manifest *manifest);
/* Identity that all parts of one save share and no other save has: every block's place, part and hash, the
 * step, and the hash of buffers. */
void dsc_ckpt_manifest_id(const dsc_ckpt_manifest *manifest, uint8_t id[32]);
static inline int32_t dsc_ckpt_part_of(const dsc_ckpt_manifest *manifest, const dsc_ckpt_block *block)
{
    DSC_ASSERT(block >= manifest->block);
    DSC_ASSERT(block < manifest->block + manifest->block_count);
    return manifest->parts.of_block != NULL ? manifest->parts.of_block[block - manifest->block] : 0;
}

#endif
