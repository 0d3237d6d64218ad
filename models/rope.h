/* rope.h - rotary positions of a model: how config.json gives them, and their frequencies.
 *
 * The reader accepts the keys of older versions of Hugging Face's code (at the root, beside "rope_scaling") and of
 * newer ones ("rope_parameters"). The built-in sizes are written in the older form, which both read. Inside models/
 * only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_ROPE_H
#define DSC_MODELS_ROPE_H

#include "models/hf_config.h"
#include "models/linear.h"

typedef enum dsc_rope_kind {
    DSC_ROPE_DEFAULT, DSC_ROPE_LINEAR, DSC_ROPE_DYNAMIC, DSC_ROPE_LLAMA3, DSC_ROPE_YARN, DSC_ROPE_LONG,
    DSC_ROPE_PROPORTIONAL
} dsc_rope_kind;

/* How positions turn heads, by Hugging Face's names. */
typedef struct dsc_rope {
    dsc_rope_kind kind;
    double theta, factor;
    double original_positions;                /* LLAMA3, YARN, LONG: those before the scaling */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    double beta_fast, beta_slow;              /* YARN */
    double attention_factor;                  /* YARN, LONG; 0: from the factor */
    double mscale, mscale_all_dim;            /* YARN; 0: none. Both: they weigh the factor's logarithm */
    bool truncate;                            /* YARN */
    double proportion;                        /* PROPORTIONAL: of the pairs that turn; the others stand still */
    float divisor[2][DSC_ROPE_PAIRS_MAX];     /* LONG: of texts up to original_positions, and of longer ones */
    bool neighbours;                          /* pairs are elements 2i and 2i + 1 of a head, not i and i + pairs */
    /* By dsc_rope_set. */
    int32_t pairs;                       /* pairs of a head's elements that are rotated */
    float frequency[DSC_ROPE_PAIRS_MAX]; /* [pairs] */
    float long_frequency[DSC_ROPE_PAIRS_MAX]; /* LONG: of texts longer than original_positions */
    float scale;                         /* factor of cosines and sines */
} dsc_rope;

/* Defaults and limits of a family's config.json. */
typedef struct dsc_rope_keys {
    const char *theta, *partial;  /* the older keys; partial NULL: the whole head turns, and no key says else */
    double theta_default;         /* 0: 10000 */
    double partial_default;
    int64_t positions, head_size; /* those of the model that is read */
    bool neighbours;              /* the family's pairs */
} dsc_rope_keys;

DSC_MUST_USE dsc_status dsc_rope_read(dsc_hf_config *reader, const dsc_rope_keys *keys, dsc_rope *out);

/* A kind of layers with positions of its own, as "full_attention". */
typedef struct dsc_rope_layer {
    const char *name;  /* its object in "rope_parameters" */
    const char *theta; /* its older key at the root, or NULL */
    double theta_default;
    int64_t head_size; /* 0: that of the keys */
    bool scaled;       /* the root's "rope_scaling", in older files, is this kind's */
} dsc_rope_layer;
#define DSC_ROPE_LAYERS_MAX 8
/* Positions of `count` kinds of layers, out[count]. "rope_parameters" has an object for each; a kind without one has
 * plain positions. The key `theta` of `keys` is not read. */
DSC_MUST_USE dsc_status dsc_rope_read_layers(dsc_hf_config *reader, const dsc_rope_keys *keys,
                                             const dsc_rope_layer *layers, int32_t count, dsc_rope *out);
/* Texts up to this long turn otherwise than longer ones; 0: all turn alike. */
static inline int64_t dsc_rope_short_positions(const dsc_rope *rope)
{
    return rope->kind == DSC_ROPE_LONG ? (int64_t)rope->original_positions : 0;
}
/* The value of "rope_scaling" of a built-in size, whose kind is DEFAULT or LLAMA3; at most DSC_ROPE_TEXT_BYTES with its
 * NUL. */
#define DSC_ROPE_TEXT_BYTES 256
void dsc_rope_write(const dsc_rope *rope, char *out, size_t bytes);
/* pairs, frequency and scale: `size` elements of a head turn, an even number. Rounded as PyTorch rounds them. */
void dsc_rope_set(dsc_rope *rope, int64_t size);

/* ---- For modules ---- */

/* Cosines and sines of `tokens` positions from the call's first token's on, in fp32. */
typedef struct dsc_rope_tables { float *cos, *sin; } dsc_rope_tables; /* [tokens,pairs] */
DSC_MUST_USE dsc_status dsc_rope_make_tables(const dsc_call *call, const dsc_rope *rope, dsc_rope_tables tables,
                                             int64_t tokens);

#endif
