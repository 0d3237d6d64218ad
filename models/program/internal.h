/* internal.h - types and functions that the files of the compiler share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_PROGRAM_INTERNAL_H
#define DSC_MODELS_PROGRAM_INTERNAL_H

#include "models/program.h"

#define DSC_BIT(n) (1u << (n))

struct dsc_exec;

/* One kind of op. Masks have a bit for each operand of dsc_op in order. */
typedef struct dsc_op_info {
    const char *name;
    uint32_t required; /* inputs that are always there */
    bool cheap;        /* backward may make its outputs again instead of reading kept ones */
    /* in_place[o]: inputs whose memory output o may take; each element is read before it is written. */
    uint32_t in_place[DSC_OP_OUTPUTS];
    bool is_view;                     /* outputs and inputs are the same memory: nothing is launched */
    uint32_t strided_in, strided_out; /* operands that may be columns of a wider value */
    dsc_status (*launch)(struct dsc_exec *exec, const dsc_op *op); /* NULL: nothing */
    int64_t (*scratch)(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_dtype dtype); /* or NULL */
    double (*flops)(const dsc_program *program, const dsc_op *op, int64_t batch); /* but for products; or NULL */
} dsc_op_info;
extern const dsc_op_info dsc_op_infos[DSC_OP_KINDS];

/* ---- program.c ---- */
DSC_MUST_USE dsc_op *dsc_program_add_op(dsc_program *program, dsc_op_kind kind, const char *name); /* NULL: full */
int16_t dsc_program_add_value(dsc_program *program, const char *name, const dsc_value *like);
void dsc_program_set_out(dsc_program *program, dsc_op *op, int output, int16_t value);
int16_t dsc_op_number(const dsc_program *program, const dsc_op *op);
void dsc_list_add(dsc_op_list *list, int16_t op);
bool dsc_op_reads(const dsc_op *op, int16_t value);
int32_t dsc_program_readers(const dsc_program *program, int16_t value, int16_t *first); /* forward's */

/* The attention's forward without its tensors, whose operands lie at these places. ops.c */
dsc_attention_fwd_args dsc_op_attention_shape(const dsc_program *program, const dsc_op *op, const dsc_place *places,
                                              int64_t batch, dsc_dtype dtype);

/* ---- Sizes ---- */
int64_t dsc_value_rows(const dsc_value *value, int64_t batch);
int64_t dsc_value_bytes(const dsc_value *value, int64_t batch, dsc_dtype dtype);

/* ---- Steps of the compiler, in order ---- */
void dsc_program_fuse(dsc_program *program, const dsc_lora *lora);                       /* fuse.c */
DSC_MUST_USE dsc_status dsc_program_differentiate(dsc_program *program, dsc_error *err); /* backward.c */
void dsc_program_choose_stores(dsc_program *program);                                    /* store.c */
void dsc_program_make_again(dsc_program *program);                                       /* store.c */
void dsc_program_list_rebuild(dsc_program *program);                                     /* store.c */
/* share.c: the memory of forward, and of backward, whose ops are known later. */
DSC_MUST_USE dsc_status dsc_program_share_forward(dsc_program *program, dsc_error *err);
DSC_MUST_USE dsc_status dsc_program_share_backward(dsc_program *program, dsc_error *err);

/* ---- Addresses, place.c ---- */
typedef struct dsc_layout {
    int64_t saved_bytes, rebuilt_bytes, repeated_bytes, cache_bytes, scratch_bytes;
    int64_t stored[DSC_PROGRAM_VALUES];  /* offset of a forward buffer in its region */
    int64_t scratch[DSC_PROGRAM_VALUES]; /* offset of a buffer of the pass in the scratch; OUT: in ctx->out meanwhile */
    int64_t work[DSC_PROGRAM_OPS];       /* offset of an op's own scratch */
    int64_t cache[2 * DSC_PROGRAM_FORWARD_OPS];
} dsc_layout;
#define DSC_LAYOUT_OUT (-1)
void dsc_program_lay(const dsc_program *program, dsc_pass pass, const dsc_lora *lora, int64_t batch, dsc_dtype dtype,
                     dsc_layout *out);
/* The same, from program->layouts where it is there; else in *own. */
const dsc_layout *dsc_program_layout(const dsc_program *program, dsc_pass pass, const dsc_lora *lora, int64_t batch,
                                     dsc_dtype dtype, dsc_layout *own);

/* ---- One call, run.c ---- */
typedef struct dsc_exec {
    const dsc_program *program;
    dsc_pass pass;
    const dsc_lora *lora;
    dsc_module_ctx *ctx;
    const dsc_layout *layout;
    dsc_error *err;
} dsc_exec;
char *dsc_exec_at(const dsc_exec *exec, int16_t value); /* NULL: no value, or one that is not written here */
const dsc_place *dsc_exec_place(const dsc_exec *exec, int16_t value);
char *dsc_exec_work(const dsc_exec *exec, const dsc_op *op);

#endif
