/* adapter.h - low-rank adapters of a checkpoint. Between the checkpoint's own files.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_ADAPTER_H
#define DSC_ENGINE_CHECKPOINT_ADAPTER_H

#include "engine/checkpoint/internal.h"

#define DSC_CKPT_PATTERNS_MAX 64

/* Fields of PEFT's adapter_config.json that adding an adapter needs. */
typedef struct dsc_ckpt_adapter {
    int64_t rank;
    float scale;
    bool in_out; /* the layers' weights are stored [in,out] */
    bool rank_stabilized;
    bool use_dora; /* each output has a magnitude */
    double alpha;
    struct dsc_ckpt_pattern {
        char name[256];
        double value;
    } pattern[2][DSC_CKPT_PATTERNS_MAX]; /* ranks, then alphas, of the layers that a regular expression fits */
    int32_t pattern_count[2];
    char saved[DSC_CKPT_PATTERNS_MAX][128]; /* modules that are trained whole: the ends of their names */
    int32_t saved_count;
    char table[2][128]; /* tables of tokens that are saved with the adapters and not trained: whole names */
    int32_t table_count;
} dsc_ckpt_adapter;

DSC_MUST_USE dsc_status dsc_ckpt_adapter_parse(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                               dsc_ckpt_adapter *out, dsc_error *err);
/* Reads the text from a checkpoint that has the file. *text is the caller's, also after a failure (then it may be
 * NULL). */
DSC_MUST_USE dsc_status dsc_ckpt_adapter_read(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, char **text,
                                              int64_t *bytes, dsc_ckpt_adapter *out, dsc_error *err);
/* Whether a model with this adapter_config.json goes on as the checkpoint's did: the same factor. */
DSC_MUST_USE dsc_status dsc_ckpt_adapter_check(const dsc_io *io, dsc_alloc *alloc, const char *step_dir,
                                               const char *of_model, dsc_error *err);
bool dsc_ckpt_adapter_is(const char *name); /* the name of an adapter's tensor */
/* Whether a tensor, not an adapter's, is of a module that is trained whole, or a table that is saved all the same. */
bool dsc_ckpt_adapter_saves(const dsc_ckpt_adapter *adapter, const char *name);
/* *out <- the text of a valid adapter.json without the key that is not PEFT's, and with the names that PEFT has of
 * ViT's modules if `vit`. Owned by the caller. */
DSC_MUST_USE dsc_status dsc_ckpt_adapter_for_peft(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                                  bool vit, char **out, dsc_error *err);

/* A weight and the adapter beside it. */
typedef struct dsc_ckpt_merge_state {
    dsc_ckpt_adapter adapter;
    int64_t in, out;
    float *a, *b;    /* NULL: the weight has none */
    double *factors; /* [out] of outputs with magnitudes; NULL: 1 */
} dsc_ckpt_merge_state;
/* buffer: DSC_CKPT_BLOCK_BYTES. To be closed also after a failure. */
DSC_MUST_USE dsc_status dsc_ckpt_merge_open(dsc_ckpt_merge_state *merge, const dsc_ckpt_reader *reader,
                                            const dsc_ckpt_adapter *adapter, const dsc_safetensors_entry *weight,
                                            void *buffer, dsc_error *err);
void dsc_ckpt_merge_close(dsc_ckpt_merge_state *merge, dsc_alloc *alloc);
/* x are elements [first, first + count) of the weight; rounded once. */
void dsc_ckpt_merge_add(const dsc_ckpt_merge_state *merge, int64_t first, int64_t count, float *x);

#endif
