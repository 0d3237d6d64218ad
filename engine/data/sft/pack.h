/* pack.h - examples into samples of T tokens.
 *
 * Packed: whole examples share a sample, by first fit decreasing in a window of examples. The longest example of
 * the window comes first, into the first sample that has space for it. The window bounds the memory, and its samples
 * are closed at its end. So the samples depend on the examples alone. Not packed: an example is a sample. Pairs of
 * preferences are never packed, and their two samples follow each other; a pair is left out whole.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_PACK_H
#define DSC_ENGINE_DATA_SFT_PACK_H

#include "engine/data/sft/examples.h"
#include "engine/data/sft/sample_file.h"

typedef struct dsc_sft_pack_options {
    dsc_alloc *alloc;
    int64_t sequence; /* T */
    bool packing;
    bool drop_long; /* leaves examples of more than T tokens out, instead of cutting them at T */
    int64_t label_words; /* of each sample */
    /* A sample: words [T + label words] of sample_file.h, borrowed until return. */
    dsc_status (*take)(void *user, const uint32_t *words, dsc_error *err);
    void *user;
} dsc_sft_pack_options;

#define DSC_PACK_WINDOW_EXAMPLES 8192
#define DSC_PACK_WINDOW_TOKENS (INT64_C(4) << 20)

typedef struct dsc_sft_pack dsc_sft_pack;
DSC_MUST_USE dsc_status dsc_sft_pack_open(const dsc_sft_pack_options *options, dsc_sft_pack **out, dsc_error *err);
void dsc_sft_pack_close(dsc_sft_pack **pack); /* safe on NULL */
DSC_MUST_USE dsc_status dsc_sft_pack_add(dsc_sft_pack *pack, const dsc_sft_example *example, dsc_error *err);
/* Gives the samples of the last window. */
DSC_MUST_USE dsc_status dsc_sft_pack_end(dsc_sft_pack *pack, dsc_error *err);
/* Counts of what was added; samples and the fields of examples.h are the caller's. */
const dsc_sample_summary *dsc_sft_pack_summary(const dsc_sft_pack *pack);

/* All samples of a file, through a reader and a pack. `summary` may be NULL. DSC_ERR_INPUT: no example is left. */
DSC_MUST_USE dsc_status dsc_sft_pack_file(const dsc_sft_options *data, const dsc_sft_pack_options *options,
                                          dsc_sample_summary *summary, dsc_error *err);
/* The file of samples, FILE.samples, of a data file. */
DSC_MUST_USE dsc_status dsc_sft_pack_write(const dsc_sft_options *data, int64_t sequence, const char *path,
                                           dsc_error *err);
/* "60 examples in 4 samples of 32 tokens, 812 tokens, 240 counted; 2 truncated". Returns out. */
const char *dsc_sample_summary_text(const dsc_sample_summary *summary, char *out, size_t out_bytes);

#endif
