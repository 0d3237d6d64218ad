/* buffers.h - the file of a checkpoint that keeps buffers of modules (include/dsc/model.h, dsc_buffer_spec).
 *
 * buffers.safetensors has each buffer under its name: an average as F32 [count] or [1,count], a count of steps as I64
 * without dimensions, as PyTorch has them. "ema.NAME" is the moving average of buffer NAME, of a run that keeps
 * averages of buffers too. The file is small, and the manifest has the SHA-256 of all its bytes. A checkpoint of a
 * model without buffers has no such file. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_BUFFERS_H
#define DSC_ENGINE_CHECKPOINT_BUFFERS_H

#include <dsc/model.h>

#include "base/formats/safetensors.h"
#include "base/hash.h"

/* A buffer of a run. */
typedef struct dsc_ckpt_buffer {
    const dsc_buffer_spec *spec;
    void *value;    /* fp32 [count], or an int64 of STEPS, in host memory; loads write it */
    float *average; /* [count] moving average of the value, likewise; NULL: the run keeps none */
} dsc_ckpt_buffer;
typedef struct dsc_ckpt_buffers {
    const dsc_ckpt_buffer *buffer; /* [count] */
    int32_t count;
    bool averages; /* the averages have values, which a save writes */
} dsc_ckpt_buffers;

/* Upper bound of the file's bytes. */
int64_t dsc_ckpt_buffers_bytes(const dsc_ckpt_buffers *buffers);
/* The file's bytes with the present values; owned by the caller (dsc_alloc_free). *text = NULL: there are no buffers.
 */
DSC_MUST_USE dsc_status dsc_ckpt_buffers_text(dsc_alloc *alloc, const dsc_ckpt_buffers *buffers, char **text,
                                              int64_t *bytes, dsc_error *err);

/* The file of an open checkpoint, whole. */
typedef struct dsc_ckpt_buffer_file {
    char *text;             /* NULL: the checkpoint has none, or it is not here */
    dsc_safetensors *table; /* names, dtypes and places in the text */
    int64_t bytes;
} dsc_ckpt_buffer_file;

/* Reads and checks step_dir's file, of which the manifest says the size and hash. DSC_ERR_INPUT: it is another, or has
 * tensors that are no buffers. */
DSC_MUST_USE dsc_status dsc_ckpt_buffer_file_open(dsc_ckpt_buffer_file *out, const dsc_io *io, dsc_alloc *alloc,
                                                  const char *path, int64_t bytes, const uint8_t sha256[32],
                                                  dsc_error *err);
void dsc_ckpt_buffer_file_close(dsc_ckpt_buffer_file *file, dsc_alloc *alloc); /* safe on a zeroed struct */
int64_t dsc_ckpt_buffer_file_count(const dsc_ckpt_buffer_file *file);
const dsc_safetensors_entry *dsc_ckpt_buffer_file_at(const dsc_ckpt_buffer_file *file, int64_t i); /* by name */
const void *dsc_ckpt_buffer_file_data(const dsc_ckpt_buffer_file *file, const dsc_safetensors_entry *entry);
/* DSC_ERR_INPUT unless the file has exactly the run's buffers; averages may be missing, or be there without a use.
 * `where` is the checkpoint's folder. */
DSC_MUST_USE dsc_status dsc_ckpt_buffer_file_match(const dsc_ckpt_buffer_file *file, const dsc_ckpt_buffers *buffers,
                                                   const char *where, dsc_error *err);
/* The run's values, after a match. An average that the file does not have begins at the value. */
void dsc_ckpt_buffer_file_load(const dsc_ckpt_buffer_file *file, const dsc_ckpt_buffers *buffers);
/* Adds all buffers to a checkpoint's hash. */
void dsc_ckpt_buffer_file_hash(const dsc_ckpt_buffer_file *file, dsc_sha256 *sha);

#endif
