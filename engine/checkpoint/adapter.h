/* adapter.h - low-rank adapters of a checkpoint. Between the checkpoint's own files.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_ADAPTER_H
#define DSC_ENGINE_CHECKPOINT_ADAPTER_H

#include "base/formats/json.h"
#include "engine/checkpoint/internal.h"

#define DSC_CKPT_PATTERNS_MAX 64
#define DSC_CKPT_EXPERTS_MAX 4
#define DSC_CKPT_EXPERTS_KEY "experts" /* as in models/lora_config.h; no key of PEFT's config */

/* Fields of PEFT's adapter_config.json that adding an adapter needs. */
typedef struct dsc_ckpt_adapter {
    int64_t rank;
    float scale;
    bool in_out; /* the layers' weights are stored [in,out] */
    bool rank_stabilized;
    bool use_dora; /* each output has a magnitude */
    bool of_base;  /* PEFT adapts the base model, whose names lack the first component (FEATURE_EXTRACTION) */
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
    char parameter[DSC_CKPT_PATTERNS_MAX][128]; /* PEFT's target_parameters: ends of names */
    int32_t parameter_count;
    /* Tensors that have an adapter for all experts, in the order of their module, and the weights that they are. */
    struct dsc_ckpt_experts {
        char parameter[96], weight[2][96]; /* ends of names: "mlp.experts.gate_up_proj" */
        int32_t weight_count;
        bool in_out;
    } experts[DSC_CKPT_EXPERTS_MAX];
    int32_t expert_count;
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
/* How PEFT's names of modules differ from those of a checkpoint's tensors. */
typedef struct dsc_ckpt_peft {
    bool vit;         /* ViT's modules have names of their own */
    const char *base; /* the first component, "bert.", which names of the base model lack; NULL: they are whole */
} dsc_ckpt_peft;
/* *out <- the text of a valid adapter.json without the keys that are not PEFT's, and with PEFT's names. Owned by the
 * caller. */
DSC_MUST_USE dsc_status dsc_ckpt_adapter_for_peft(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                                  const dsc_ckpt_peft *peft, char **out, dsc_error *err);

/* A weight and the adapter beside it. */
typedef struct dsc_ckpt_merge_state {
    dsc_ckpt_adapter adapter;
    int64_t in, out;
    float *a, *b;    /* NULL: the weight has none */
    double *factors; /* [out] of outputs with magnitudes; NULL: 1 */
    /* Matrices of experts: a is [experts * rank, in] and b [more, rank * experts]. The rows of b for these outputs
     * begin with `first`. */
    int64_t experts, first;
} dsc_ckpt_merge_state;
/* PEFT's rule: `end` is the whole name, or what follows a point in it. */
bool dsc_ckpt_adapter_names(const char *name, const char *end);
/* adapter_experts.c: reads what adapter.json says of experts; false: it is not valid. Whether a weight is one of
 * experts with an adapter: the name of the adapter's module then, that of its tensor, and the weight's place in it. */
bool dsc_ckpt_adapter_read_experts(const cJSON *root, dsc_ckpt_adapter *out);
typedef struct dsc_ckpt_expert_place {
    char module[DSC_SAFETENSORS_NAME_BYTES_MAX + 1], parameter[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    int32_t index, count; /* of the weights that the tensor consists of */
    bool in_out;
} dsc_ckpt_expert_place;
/* Whether a file has the weight that the adapter of a module, or of a layer, belongs to. */
bool dsc_ckpt_adapter_has_base(const dsc_ckpt_adapter *adapter, const dsc_safetensors *model, const char *module);
bool dsc_ckpt_adapter_find_experts(const dsc_ckpt_adapter *adapter, const char *weight, dsc_ckpt_expert_place *out);
/* buffer: DSC_CKPT_BLOCK_BYTES. To be closed also after a failure. */
DSC_MUST_USE dsc_status dsc_ckpt_merge_open(dsc_ckpt_merge_state *merge, const dsc_ckpt_reader *reader,
                                            const dsc_ckpt_adapter *adapter, const dsc_safetensors_entry *weight,
                                            void *buffer, dsc_error *err);
void dsc_ckpt_merge_close(dsc_ckpt_merge_state *merge, dsc_alloc *alloc);
/* x are elements [first, first + count) of the weight; rounded once. */
void dsc_ckpt_merge_add(const dsc_ckpt_merge_state *merge, int64_t first, int64_t count, float *x);

#endif
