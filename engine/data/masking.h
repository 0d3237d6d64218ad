/* masking.h - predicted tokens of a sample and their replacements, for a masked language model.
 *
 * The rule is that of BERT (Devlin et al. 2019): a fixed number of tokens per sample is predicted. Eight of ten become
 * the mask token, one becomes a random token and one stays. Separators of texts are predicted only if a sample has too
 * few other tokens. Masking is a pure function of (seed, epoch, sample). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_MASKING_H
#define DSC_ENGINE_DATA_MASKING_H

#include <dsc/error.h>
#include <dsc/model.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_MASK_SPECIAL_MAX 256

typedef struct dsc_masking {
    int64_t predictions; /* K of a sample; 0: its tokens are what they are, and targets are the ones behind them */
    int32_t mask_token;
    int32_t special[DSC_MASK_SPECIAL_MAX]; /* tokens that no text has */
    int32_t special_count;
} dsc_masking;

/* K of a masked language model; 0 of another one. */
int64_t dsc_model_predictions(const dsc_model *model);

typedef struct dsc_mask_key {
    uint64_t seed, sample;
    uint32_t epoch;
} dsc_mask_key;

/* tokens [T] become what the model sees; targets and predicted [K] are written. `order` [T] is work space. */
typedef struct dsc_mask_sample {
    int32_t *tokens, *targets, *predicted, *order;
    int64_t sequence, vocab; /* T, V */
} dsc_mask_sample;
void dsc_mask(const dsc_masking *masking, dsc_mask_key key, const dsc_mask_sample *sample);

/* Special tokens, the mask among them, of a tokenizer.json. */
struct dsc_alloc;
struct dsc_io;
DSC_MUST_USE dsc_status dsc_masking_read(dsc_masking *masking, const struct dsc_io *io, struct dsc_alloc *alloc,
                                         const char *path, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
