/* bpe.h - byte-pair encoding: a word's characters or bytes, merged in the order of the learned ranks.
 *
 * A model of bytes (ByteLevel) has its vocabulary under raw bytes here; the printable characters that stand for them in
 * a file are translated when it is read. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_BPE_H
#define DSC_ENGINE_TEXT_BPE_H

#include "engine/text/buffer.h"

typedef struct dsc_bpe {
    dsc_alloc *alloc;
    dsc_names by_raw; /* vocabulary without added tokens */
    dsc_keys merges;  /* left << 32 | right: a = rank, b = the new id */
    bool of_bytes, byte_fallback, fuse_unk, ignore_merges;
    const char *suffix;    /* raw; behind a word's last character in the vocabulary (CLIP: </w>); NULL: none */
    int32_t suffix_bytes;
    int32_t unk;           /* -1: none */
    int32_t byte_id[256];  /* of_bytes: of a byte; byte_fallback: of <0xXX>; -1: none */
    int32_t ascii_id[128]; /* id of a character, unless of_bytes */
    /* Cuts of a text into parts that merge for themselves: */
    bool cuts_before_mark; /* before each run of marks */
    bool cuts_at_lines;    /* behind each line end */
} dsc_bpe;

#define DSC_BPE_SUFFIX_MAX 32 /* bytes */

/* U+2581, which stands for a space. */
#define DSC_SPACE_MARK "\xe2\x96\x81"

/* The printable character that stands for a byte in a ByteLevel vocabulary, and back; -1: none. */
uint32_t dsc_byte_char(uint8_t byte);
int dsc_char_byte(uint32_t code);

/* State of one encoding thread: a cache of words, and a buffer for a long word. */
typedef struct dsc_bpe_work dsc_bpe_work;
dsc_status dsc_bpe_work_open(const dsc_bpe *bpe, dsc_bpe_work **out, dsc_error *err);
void dsc_bpe_work_close(dsc_bpe_work **work);
/* Appends the ids of one word: not empty, valid UTF-8 unless of_bytes. Less than n log n steps for n bytes. */
dsc_status dsc_bpe_encode(const dsc_bpe *bpe, dsc_bpe_work *work, const char *word, int64_t bytes, dsc_ids *out,
                          dsc_error *err);

#endif
