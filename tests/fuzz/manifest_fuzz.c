/* manifest_fuzz.c - any bytes as a checkpoint's manifest: no crash, and an accepted manifest keeps its promises.
 *
 * The reader ignores a text that does not match its own SHA-256. So every input is read as it is, and once more with
 * the right hash at its end: the corpus holds manifests without their last line. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_tensor(const dsc_ckpt_manifest *m, const dsc_ckpt_manifest_tensor *tensor)
{
    const dsc_ckpt_block *block = m->block + tensor->first_block;
    int64_t at = 0;
    DSC_ASSERT(tensor->name != NULL);
    DSC_ASSERT(tensor->file == DSC_CKPT_MODEL || tensor->file == DSC_CKPT_OPTIMIZER);
    DSC_ASSERT(tensor->first_block + tensor->block_count <= m->block_count);
    for (int64_t b = 0; b < tensor->block_count; b++) {
        DSC_ASSERT(block[b].first == at);
        DSC_ASSERT(block[b].count > 0);
        DSC_ASSERT(block[b].count * (int64_t)dsc_dtype_bytes(tensor->dtype) <= DSC_CKPT_BLOCK_BYTES);
        DSC_ASSERT(&m->tensor[block[b].entry] == tensor);
        DSC_ASSERT(dsc_ckpt_part_of(m, &block[b]) >= 0 && dsc_ckpt_part_of(m, &block[b]) < m->parts.count);
        at += block[b].count;
    }
    DSC_ASSERT(at == tensor->elements);
}

static void read_one(dsc_alloc *alloc, const char *text, int64_t bytes)
{
    dsc_ckpt_manifest m;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = dsc_ckpt_manifest_parse(alloc, "manifest.json", text, bytes, &m, &err);
    DSC_ASSERT(status == DSC_OK || (status == DSC_ERR_INPUT && err.message[0] != 0 && err.where[0] != 0));
    if (status != DSC_OK)
        return;
    DSC_ASSERT(m.state.step >= 0 && m.state.update_count <= m.state.step && m.state.world_size >= 1 &&
               m.state.shard_ranks >= 1);
    DSC_ASSERT(m.parts.index >= 0 && m.parts.index < m.parts.count);
    DSC_ASSERT((m.parts.count > 1) == (m.parts.host != NULL));
    for (int f = 0; f < DSC_CKPT_FILE_COUNT; f++)
        DSC_ASSERT(m.file[f].head_bytes <= dsc_max_i64(m.file[f].bytes, 0));
    for (int64_t t = 0; t < m.tensor_count; t++)
        check_tensor(&m, &m.tensor[t]);
    dsc_ckpt_manifest_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    uint8_t digest[32];
    char hex[65];
    char *sealed = malloc(bytes + 128);
    if (sealed == NULL || dsc_alloc_open(&alloc, &err) != DSC_OK)
        abort();
    read_one(alloc, (const char *)data, (int64_t)bytes);
    memcpy(sealed, data, bytes);
    dsc_ckpt_sha256(data, (int64_t)bytes, digest);
    dsc_hex(hex, digest, sizeof digest);
    const int seal = snprintf(sealed + bytes, 128, "\"sha256\":\"%s\"}\n", hex);
    read_one(alloc, sealed, (int64_t)bytes + seal);
    dsc_alloc_close(&alloc);
    free(sealed);
    return 0;
}
