/* checkpoint_internal.h - what the checkpoint's files share: the list of stored tensors, blocks and the manifest.
 *
 * A stored tensor is one entry of a safetensors file. A block is at most 1 MiB of one stored tensor, inside one owner's
 * slice; its hash is taken from memory and covers the tensor's name, the block's position and the step.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_INTERNAL_H
#define DSC_ENGINE_CHECKPOINT_INTERNAL_H

#include "base/hash.h"
#include "base/safetensors.h"
#include "engine/checkpoint.h"

#define CKPT_BLOCK_BYTES (1 << 20)
#define CKPT_PATH_BYTES 4096
#define CKPT_MODEL_FILE "model.safetensors"
#define CKPT_OPTIMIZER_FILE "optimizer.safetensors"
#define CKPT_MANIFEST_FILE "manifest.json"

typedef enum ckpt_file { CKPT_MODEL, CKPT_OPTIMIZER, CKPT_FILE_COUNT } ckpt_file;
typedef enum ckpt_plane { CKPT_WEIGHTS, CKPT_MASTER, CKPT_EXP_AVG, CKPT_EXP_AVG_SQ } ckpt_plane;

extern const char *const ckpt_file_name[CKPT_FILE_COUNT];
extern const char *const ckpt_plane_prefix[]; /* "", "master.", "exp_avg.", "exp_avg_sq." */

typedef struct ckpt_entry {
    char *name; /* owned: prefix + HF name */
    ckpt_file file;
    ckpt_plane plane;
    int32_t tensor; /* of the layout */
    dsc_dtype dtype;
    int64_t index_in_file;
} ckpt_entry;

typedef struct ckpt_entries {
    dsc_alloc *alloc;
    ckpt_entry *entry;
    int32_t count;
    int32_t file_entries[CKPT_FILE_COUNT];
} ckpt_entries;

/* What this model stores in a run of this compute dtype: model entries first, in layout order. */
dsc_status ckpt_entries_open(dsc_alloc *alloc, const dsc_layout *layout, dsc_dtype compute_dtype, ckpt_entries *out,
                             dsc_error *err);
void ckpt_entries_close(ckpt_entries *entries);

typedef struct ckpt_block {
    int32_t entry; /* in entries, or the manifest's tensor */
    int64_t first, count; /* elements of the tensor */
    dsc_hash128 hash;
} ckpt_block;

/* The blocks that rank `rank` owns, in order of entry and position. blocks = NULL only counts. */
int64_t ckpt_blocks_of_rank(const dsc_layout *layout, const ckpt_entries *entries, int32_t rank, ckpt_block *blocks);
dsc_hash128 ckpt_block_hash(const char *name, int64_t first, int64_t count, int64_t step, const void *data,
                            int64_t bytes);

/* ---- manifest ---- */

typedef struct ckpt_manifest_tensor {
    char *name; /* owned by the manifest */
    int32_t file;
    int64_t first_block, block_count; /* in manifest.block: the tensor's blocks, in order, without a gap */
} ckpt_manifest_tensor;

typedef struct ckpt_manifest {
    dsc_alloc *alloc;
    dsc_run_state state;
    int64_t file_bytes[CKPT_FILE_COUNT]; /* -1: not there */
    ckpt_manifest_tensor *tensor;
    int64_t tensor_count;
    ckpt_block *block; /* entry: index of the tensor */
    int64_t block_count;
} ckpt_manifest;

/* Text of a manifest (owned by the caller, dsc_alloc_free). block[i] are all ranks' blocks, sorted by entry and first.
 */
dsc_status ckpt_manifest_write(dsc_alloc *alloc, const dsc_run_state *state, const ckpt_entries *entries,
                               const int64_t *file_bytes, const ckpt_block *block, int64_t block_count, char **text,
                               int64_t *bytes, dsc_error *err);
dsc_status ckpt_manifest_read(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, ckpt_manifest *out,
                              dsc_error *err);
void ckpt_manifest_close(ckpt_manifest *manifest);

/* ---- an open checkpoint ---- */

typedef struct ckpt_reader {
    ckpt_manifest manifest;
    dsc_safetensors *file[CKPT_FILE_COUNT]; /* NULL: not there */
} ckpt_reader;

/* Opens manifest and files; every tensor of the manifest is in its file and the other way round, covered by blocks. */
dsc_status ckpt_reader_open(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, ckpt_reader *out, dsc_error *err);
void ckpt_reader_close(ckpt_reader *reader);
/* NULL when the checkpoint has no such tensor. */
const dsc_safetensors_entry *ckpt_reader_find(const ckpt_reader *reader, ckpt_plane plane, const char *hf_name,
                                              const dsc_safetensors **file);
/* Reads block i of the manifest through `buffer` (CKPT_BLOCK_BYTES) and compares its hash. */
dsc_status ckpt_reader_verify_block(const ckpt_reader *reader, int64_t i, void *buffer, dsc_error *err);

#endif
