/* read_ahead.c - see read_ahead.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/read_ahead.h"

static dsc_status wait_read(void *user, int32_t slot, dsc_stream *by, dsc_error *err)
{
    dsc_ckpt_read_ahead *a = user;
    DSC_ASSERT(by == NULL);
    return a->slot[slot].op.file != NULL ? dsc_aio_wait(a->direct.aio, &a->slot[slot].op, err) : DSC_OK;
}

void dsc_ckpt_read_ahead_open(dsc_ckpt_read_ahead *a, const dsc_ckpt_reader *reader, const dsc_ckpt_ctx *c,
                              const char *step_dir, void *memory, int64_t bytes)
{
    char *const first = (char *)dsc_align_up((int64_t)(intptr_t)memory, DSC_AIO_ALIGN);
    *a = (dsc_ckpt_read_ahead) { .reader = reader, .step_dir = step_dir };
    dsc_ckpt_direct_open(&a->direct, c->alloc, c->io, &c->aio);
    const int64_t slots = dsc_min_i64(DSC_CKPT_SLOTS_MOST, ((char *)memory + bytes - first) / DSC_CKPT_SLOT_BYTES);
    dsc_staging_open(&a->staging, (int32_t)slots, wait_read, a);
    for (int64_t i = 0; i < slots; i++)
        a->slot[i].memory = first + i * DSC_CKPT_SLOT_BYTES;
}

/* The one that was taken last is still being looked at. */
bool dsc_ckpt_read_ahead_has_room(const dsc_ckpt_read_ahead *a)
{
    return dsc_staging_under_way(&a->staging) < dsc_max_i64(a->staging.slot_count - 1, 1);
}

dsc_status dsc_ckpt_read_ahead_request(dsc_ckpt_read_ahead *a, const dsc_ckpt_block *block, dsc_error *err)
{
    const dsc_ckpt_manifest_tensor *tensor = &a->reader->manifest.tensor[block->entry];
    const int64_t each = (int64_t)dsc_dtype_bytes(tensor->dtype), bytes = block->count * each;
    DSC_ASSERT(block->count > 0);
    DSC_ASSERT(bytes <= DSC_CKPT_BLOCK_BYTES);
    int32_t index;
    DSC_ASSERT(dsc_ckpt_read_ahead_has_room(a));
    DSC_TRY(dsc_staging_acquire(&a->staging, NULL, &index, err));
    dsc_ckpt_slot *slot = &a->slot[index];
    slot->block = block;
    slot->data = slot->memory;
    slot->op = (dsc_aio_op){ .file = NULL };
    if (bytes >= DSC_CKPT_LONG_BYTES) {
        DSC_TRY(dsc_ckpt_direct_file(&a->direct, a->step_dir, tensor->file, DSC_IO_READ_ONLY, err));
        const dsc_aio_file *file = &a->direct.file[tensor->file];
        const int64_t align = file->direct ? DSC_AIO_ALIGN : 1;
        const int64_t first = dsc_ckpt_reader_offset(a->reader, block);
        const int64_t low = first - first % align, high = dsc_align_up(first + bytes, align);
        if (high <= a->reader->file_bytes[tensor->file]) { /* else it is the file's last one */
            slot->data += first - low;
            slot->op = (dsc_aio_op){ .file = file, .buf = slot->memory, .bytes = high - low, .offset = low };
            dsc_aio_submit(a->direct.aio, &slot->op);
        }
    }
    if (slot->op.file == NULL)
        dsc_ckpt_reader_expect(a->reader, block);
    return DSC_OK;
}

dsc_status dsc_ckpt_read_ahead_consume(dsc_ckpt_read_ahead *a, const char **data, dsc_error *err)
{
    DSC_ASSERT(data != NULL);
    int32_t index;
    DSC_TRY(dsc_staging_end_oldest(&a->staging, NULL, &index, err));
    const dsc_ckpt_slot *slot = &a->slot[index];
    *data = slot->data;
    if (slot->op.file == NULL)
        return dsc_ckpt_reader_block(a->reader, slot->block, slot->data, err);
    return dsc_ckpt_reader_check(a->reader, slot->block, slot->data, err);
}

void dsc_ckpt_read_ahead_close(dsc_ckpt_read_ahead *a)
{
    dsc_staging_drain(&a->staging);
    dsc_ckpt_direct_close(&a->direct);
}
