/* internal.h - parts that the checkpoint's files share beyond the manifest: readers, verification and the commit of a
 * folder. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_INTERNAL_H
#define DSC_ENGINE_CHECKPOINT_INTERNAL_H

#include "engine/checkpoint/manifest.h"

/* ---- the folder that checkpoints are saved to ---- */

dsc_status dsc_ckpt_refuse_existing(const char *step_dir, dsc_error *err);

/* dir/name is a folder step-N, not by a link, with a manifest. */
bool dsc_ckpt_is_checkpoint(const char *dir, const char *name);
/* A small file that must not exist, durable. */
dsc_status dsc_ckpt_write_new(const dsc_io *io, const char *path, const char *text, int64_t bytes, dsc_error *err);

/* ---- an open checkpoint ---- */

typedef struct dsc_ckpt_reader {
    dsc_alloc *alloc;
    const dsc_io *io;
    dsc_ckpt_manifest manifest;
    dsc_safetensors *file[DSC_CKPT_TENSOR_FILE_COUNT];
    int64_t *tensor_of[DSC_CKPT_TENSOR_FILE_COUNT]; /* [entry of the file] the manifest's tensor */
    int64_t file_bytes[DSC_CKPT_TENSOR_FILE_COUNT]; /* bytes that are here */
    dsc_ckpt_buffer_file buffers;                   /* whole; empty if it is not here */
    bool far; /* none of its files is here */
    /* Part only: its blocks lie behind the header in the manifest's order. */
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
 * one, in the dtypes that the compute dtype asks for. States have the shapes of their weights. */
dsc_status dsc_ckpt_reader_open(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_ckpt_reader *out,
                                dsc_error *err);
/* Opens a checkpoint from its texts: no block of it is here. */
dsc_status dsc_ckpt_reader_open_texts(dsc_alloc *alloc, const char *step_dir, const dsc_ckpt_texts *texts,
                                      dsc_ckpt_reader *out, dsc_error *err);
void dsc_ckpt_reader_close(dsc_ckpt_reader *reader);
/* DSC_ERR_INPUT for a part, with the way to the whole. */
dsc_status dsc_ckpt_refuse_part(const dsc_ckpt_reader *reader, const char *step_dir, dsc_error *err);
static inline bool dsc_ckpt_reader_has(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block)
{
    DSC_ASSERT(block >= reader->manifest.block);
    DSC_ASSERT(block < reader->manifest.block + reader->manifest.block_count);
    return reader->at == NULL || reader->at[block - reader->manifest.block] >= 0;
}
/* Offset in its file of a block that is here. */
int64_t dsc_ckpt_reader_offset(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block);
/* NULL when the checkpoint has no such tensor; *tensor (may be NULL) is the manifest's. */
const dsc_safetensors_entry *dsc_ckpt_reader_find(const dsc_ckpt_reader *reader, dsc_ckpt_plane plane,
                                                  const char *hf_name, const dsc_ckpt_manifest_tensor **tensor);
/* Elements of a tensor that is there, as fp32: also the values of moments in U8. `first` begins a block of those;
 * count: at most DSC_CKPT_BLOCK_BYTES / 4. */
dsc_status dsc_ckpt_reader_f32(const dsc_ckpt_reader *reader, dsc_ckpt_plane plane, const char *hf_name, int64_t first,
                               int64_t count, float *out, dsc_error *err);
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

/* One warning line, on rank 0, for each difference of a resumed run from the saved one that may change its numbers. */
void dsc_ckpt_warn_differences(const dsc_ckpt_ctx *c, const dsc_run_state *now, const dsc_run_state *saved);
/* And one for each member of config.json whose value is another in this run's model. */
void dsc_ckpt_warn_model(const dsc_ckpt_ctx *c, const dsc_ckpt_reader *reader, const char *step_dir);

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
    char previous[64]; /* earlier name in `latest`; "": nothing */
    bool had_latest;
    bool made_tmp, made_step, made_latest_tmp, made_latest; /* there now, and to be undone after a failure */
    bool keeps_existing; /* step-N was there with the same tensors */
    bool part;           /* part of the checkpoint: hosts have folders of their own */
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

/* ---- this rank's slices, states.c: as the functions of zero, of a group by its number there ---- */

void dsc_ckpt_slice_get(const dsc_ckpt_ctx *c, int32_t group, dsc_zero_slice *out);
dsc_dtype dsc_ckpt_states_dtype(const dsc_ckpt_ctx *c, dsc_plane plane);
bool dsc_ckpt_states_stay(const dsc_ckpt_ctx *c, int32_t group, dsc_plane plane);
DSC_MUST_USE dsc_status dsc_ckpt_states_view(const dsc_ckpt_ctx *c, int32_t group, dsc_plane plane, int64_t first,
                                             int64_t *count, bool write, void **ptr, dsc_error *err);

#endif
