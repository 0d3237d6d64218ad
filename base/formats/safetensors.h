/* safetensors.h - reads and writes *.safetensors: 8 bytes of header length, a JSON header, raw little-endian tensors.
 *
 * The reader trusts no byte: the header is strict JSON with limits, and every tensor lies inside the file. Together the
 * tensors cover the data exactly, without a hole, an overlap or a rest. Every refusal is DSC_ERR_INPUT with the file as
 * `where` and the tensor in the message. The writer plans first: offsets depend on the list alone, so several owners
 * can write their byte ranges of one file independently.
 * Format: https://github.com/huggingface/safetensors#format. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_FORMATS_SAFETENSORS_H
#define DSC_BASE_FORMATS_SAFETENSORS_H

#include "base/alloc.h"
#include "base/io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The format allows headers of 100 MB; 32 MiB hold 100,000 tensors and keep a hostile file below 256 MiB of memory. */
#define DSC_SAFETENSORS_HEADER_BYTES_MAX (INT64_C(32) << 20)
#define DSC_SAFETENSORS_NAME_BYTES_MAX 1024

typedef struct dsc_safetensors_entry {
    const char *name;
    const char *dtype_text; /* as in the file: "BF16", "BOOL"; static string */
    dsc_tensor_desc desc;   /* desc.dtype is DSC_DTYPE_COUNT for a dtype of the format that dsc has no name for */
    int64_t count;          /* elements; 0 is allowed */
    int64_t offset;         /* position of the first byte in the file */
    int64_t bytes;
} dsc_safetensors_entry;

typedef struct dsc_safetensors dsc_safetensors;

/* Reads and checks the header; the file stays open until close. `io` (may be NULL) and `alloc` are borrowed until then.
 * Owned by the caller. */
DSC_MUST_USE dsc_status dsc_safetensors_open(dsc_safetensors **out, const dsc_io *io, dsc_alloc *alloc,
                                             const char *path, dsc_error *err);
/* As dsc_safetensors_open, for a file of `file_bytes` bytes known by its first bytes only: names, shapes and offsets,
 * without data. `path` is for messages. */
DSC_MUST_USE dsc_status dsc_safetensors_parse(dsc_safetensors **out, dsc_alloc *alloc, const char *path,
                                              const char *head, int64_t head_bytes, int64_t file_bytes, dsc_error *err);
void dsc_safetensors_close(dsc_safetensors **st); /* safe on NULL */

const char *dsc_safetensors_path(const dsc_safetensors *st);
int64_t dsc_safetensors_count(const dsc_safetensors *st);
/* The i-th tensor in the order of names (bytewise); borrowed until close. */
const dsc_safetensors_entry *dsc_safetensors_at(const dsc_safetensors *st, int64_t i);
/* NULL when there is none of this name. */
const dsc_safetensors_entry *dsc_safetensors_find(const dsc_safetensors *st, const char *name);
/* "ema.NAME" is the moving average of the file's tensor NAME. Whether the entry is one; the average of an entry, NULL
 * when there is none. */
#define DSC_SAFETENSORS_AVERAGE "ema."
bool dsc_safetensors_is_average(const dsc_safetensors *st, const dsc_safetensors_entry *entry);
const dsc_safetensors_entry *dsc_safetensors_average(const dsc_safetensors *st, const dsc_safetensors_entry *entry);
/* Value of a key of __metadata__, NULL when absent; borrowed until close. */
const char *dsc_safetensors_metadata(const dsc_safetensors *st, const char *key);

/* out[count] fp32 <- elements [first, first + count) of a tensor in F32, BF16 or F16 (others: DSC_ERR_UNSUPPORTED).
 * Exact. Needs no memory of its own; may be called from several threads. */
DSC_MUST_USE dsc_status dsc_safetensors_read_f32(const dsc_safetensors *st, const dsc_safetensors_entry *entry,
                                                 int64_t first, int64_t count, float *out, dsc_error *err);
/* Raw bytes [first, first + bytes) of a tensor, as they lie in the file. */
DSC_MUST_USE dsc_status dsc_safetensors_read_bytes(const dsc_safetensors *st, const dsc_safetensors_entry *entry,
                                                   int64_t first, int64_t bytes, void *out, dsc_error *err);

/* These bytes of a tensor will be read soon. */
void dsc_safetensors_expect(const dsc_safetensors *st, const dsc_safetensors_entry *entry, int64_t first,
                            int64_t bytes);

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

typedef struct dsc_safetensors_spec {
    const char *name; /* borrowed until the plan is open */
    dsc_tensor_desc desc; /* F32, BF16, F16, F64, I32, I64 or U8 */
} dsc_safetensors_spec;

/* The name with `index` in place of '*'; `out` holds DSC_SAFETENSORS_NAME_BYTES_MAX + 1 bytes. False: `name` has not
 * one '*', or the result does not fit. */
bool dsc_safetensors_part_name(const char *name, int64_t index, char *out);
/* Tensors with the names of index 0, 1, 2 and so on become one tensor under the name with '*'. They must lie one behind
 * the other in the file, with equal shapes. Nothing changes without a tensor of index 0. */
DSC_MUST_USE dsc_status dsc_safetensors_unite(dsc_safetensors *st, const char *name, dsc_error *err);

typedef struct dsc_safetensors_pair { const char *key, *value; } dsc_safetensors_pair;

/* Offsets of all parts of a file. Tensors with wider elements come first, otherwise in the order given, so that each is
 * aligned to its element. Plain value of dsc_safetensors_plan_open, which owns the arrays. */
typedef struct dsc_safetensors_plan {
    dsc_alloc *alloc;
    char *header;         /* [header_bytes] the length, the JSON text and its padding: the file's first bytes */
    int64_t header_bytes; /* a multiple of 64 */
    int64_t *offset;      /* [count] file offset of the i-th tensor given */
    int64_t count;
    int64_t file_bytes;
} dsc_safetensors_plan;

/* DSC_ERR_STATE for a list that no file can hold (duplicate or bad names, impossible shapes). metadata may be NULL. */
DSC_MUST_USE dsc_status dsc_safetensors_plan_open(dsc_safetensors_plan *out, dsc_alloc *alloc,
                                                  const dsc_safetensors_spec *specs, int64_t count,
                                                  const dsc_safetensors_pair *metadata, int64_t metadata_count,
                                                  dsc_error *err);
/* A plan as above, of which some tensors are parted: the file has one tensor for each index of the first dimension, in
 * order. The index takes the place of the '*' that the name has. parted[count]; NULL: none is. */
DSC_MUST_USE dsc_status dsc_safetensors_plan_parts(dsc_safetensors_plan *out, dsc_alloc *alloc,
                                                   const dsc_safetensors_spec *specs, const bool *parted, int64_t count,
                                                   const dsc_safetensors_pair *metadata, int64_t metadata_count,
                                                   dsc_error *err);
void dsc_safetensors_plan_close(dsc_safetensors_plan *plan); /* safe on a zeroed struct; zeroes it */
/* Sizes the file and writes its header; tensors are then written with dsc_io_write at plan->offset[i], by anybody. */
DSC_MUST_USE dsc_status dsc_safetensors_write_header(const dsc_safetensors_plan *plan, const dsc_io *io, dsc_file *file,
                                                     dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
