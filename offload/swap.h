/* swap.h - swap space: bytes in files without a name, spread over folders; every block is checked when it is read.
 *
 * The space is allocated in the folders when it is opened, so that DSC_ERR_NOFIT comes then and not in the middle of a
 * run. The files are readable by the owner only, and disappear with the process however it ends. Two jobs in one folder
 * do not share files. A block of DSC_AIO_ALIGN bytes has a CRC-32C over its position, its generation (number of writes)
 * and its bytes, kept in memory. A flipped bit, a lost write or a misplaced block is DSC_ERR_IO before the bytes are
 * used. One thread at a time uses a dsc_aio. Two threads with one dsc_aio each may use a dsc_swap at once, on different
 * blocks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_OFFLOAD_SWAP_H
#define DSC_OFFLOAD_SWAP_H

#include "base/io.h"
#include "offload/aio.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_SWAP_FOLDERS_MAX 8

typedef struct dsc_swap dsc_swap;

typedef struct dsc_swap_options {
    dsc_alloc *alloc;          /* borrowed until close; the space is noted in it as tier NVME */
    dsc_aio *aio;              /* borrowed until the last transfer has been waited for, or its own close */
    const dsc_io *io;          /* for the file operations of open; may be NULL */
    dsc_tag tag;               /* kind of the bytes, for the table of the plan */
    const char *const *folders;
    int32_t folder_count;      /* 1..DSC_SWAP_FOLDERS_MAX */
    int64_t bytes;             /* rounded up to whole stripes */
    int64_t stripe_bytes;      /* neighbouring bytes in one folder before the next one's turn; 0: 4 MiB */
} dsc_swap_options;

/* Memory that open takes beside the files: 8 bytes per 4 KiB. For the planner. */
int64_t dsc_swap_plan_bytes(int64_t bytes);

DSC_MUST_USE dsc_status dsc_swap_open(const dsc_swap_options *options, dsc_swap **out, dsc_error *err);
/* Nothing is under way; or its dsc_aio was closed before, which ends what is. */
void dsc_swap_close(dsc_swap **swap);
bool dsc_swap_is_direct(const dsc_swap *swap); /* false: a folder's file system has no O_DIRECT */
/* One line: settings of a folder that make it slower or less safe; "": none. */
const char *dsc_swap_warning(const dsc_swap *swap);

/* One transfer: parts of at most one stripe each. The caller keeps it and the buffer until it has waited. */
typedef struct dsc_swap_op dsc_swap_op;
/* For transfers of at most `bytes` by `aio` (NULL: the swap's own); to be reused. */
DSC_MUST_USE dsc_status dsc_swap_op_open(dsc_swap *swap, dsc_aio *aio, int64_t bytes, dsc_swap_op **out,
                                         dsc_error *err);
/* Memory of a transfer; stripe_bytes as in dsc_swap_options. */
int64_t dsc_swap_op_plan_bytes(int64_t bytes, int64_t stripe_bytes);
/* Its writes are submitted before those of other transfers. */
void dsc_swap_op_soon(dsc_swap_op *op);
void dsc_swap_op_close(dsc_swap_op **op); /* also after the swap's and the engine's end */

/* Start a transfer of [offset, offset + bytes) from or to buf, all multiples of DSC_AIO_ALIGN. Transfers under way do
 * not overlap. Bytes that were never written read as zeros. */
void dsc_swap_write(dsc_swap_op *op, const void *buf, int64_t bytes, int64_t offset);
void dsc_swap_read(dsc_swap_op *op, void *buf, int64_t bytes, int64_t offset);
/* Handles completions without waiting. True: dsc_swap_wait returns at once. */
bool dsc_swap_test(dsc_swap_op *op);
/* Waits until the transfer is done and, for a read, checked. */
DSC_MUST_USE dsc_status dsc_swap_wait(dsc_swap_op *op, dsc_error *err);

/* Both directions in two halves, for callers that work on a transfer part by part while a part is in the caches. A
 * read: dsc_swap_arrive instead of dsc_swap_wait, then dsc_swap_check of all bytes before they are used; `at` counts
 * from the start of the read. A write: dsc_swap_seal, in any parts, when the bytes are final and no transfer of them
 * is under way, then dsc_swap_write_sealed. `at`, bytes and offset are multiples of DSC_AIO_ALIGN. */
DSC_MUST_USE dsc_status dsc_swap_arrive(dsc_swap_op *op, dsc_error *err);
DSC_MUST_USE dsc_status dsc_swap_check(const dsc_swap_op *op, int64_t at, int64_t bytes, dsc_error *err);
void dsc_swap_seal(dsc_swap *swap, const void *buf, int64_t bytes, int64_t offset);
void dsc_swap_write_sealed(dsc_swap_op *op, const void *buf, int64_t bytes, int64_t offset);

#ifdef __cplusplus
}
#endif
#endif
