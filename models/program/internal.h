/* internal.h - types and functions that the files of the compiler share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_PROGRAM_INTERNAL_H
#define DSC_MODELS_PROGRAM_INTERNAL_H

#include "models/program.h"

#define DSC_BIT(n) (1u << (n))

struct dsc_exec;
struct dsc_tape;

/* A micro-batch that a pass is planned for. */
typedef struct dsc_op_batch {
    const dsc_lora *lora; /* or NULL */
    int64_t batch;
    dsc_dtype dtype;
    int64_t chunk_bytes; /* as in the context of a call */
    bool stores_score_gradients; /* likewise */
    bool on_gpu;                 /* the context's joins_input_gradients */
} dsc_op_batch;

/* ---- Builder, program.c and program_ops.c ---- */
/* Keeps the first failure. The formatted text is a message's. */
#define REFUSE(program, ...)                                                                                           \
    do {                                                                                                               \
        if ((program)->status == DSC_OK)                                                                               \
            (program)->status = DSC_FAIL(&(program)->err, DSC_ERR_INPUT, "", __VA_ARGS__);                             \
    } while (0)
/* name NULL: the kind's, which messages then do not tell again. A value may be one of the program's; after a failure
 * none is. */
bool dsc_program_is_value(dsc_program *program, dsc_op_kind kind, const char *name, int16_t value);
dsc_op *dsc_program_add_forward(dsc_program *program, dsc_op_kind kind, const char *name); /* NULL: a failure */
/* There is room for every forward op's outputs. */
int16_t dsc_program_add_output(dsc_program *program, dsc_op *op, int output, const char *name, dsc_value shape);
/* Input, output and name of an op with one of each. */
int16_t dsc_program_add_unary(dsc_program *program, dsc_op_kind kind, const char *name, int16_t x, dsc_op **out);

/* Functions of a kind of op. */
typedef dsc_status dsc_op_launch(struct dsc_exec *exec, const dsc_op *op);
typedef int64_t dsc_op_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
typedef int64_t dsc_op_state(const dsc_program *program, const dsc_op *op, dsc_dtype dtype);
typedef double dsc_op_flops(const dsc_program *program, const dsc_op *op, int64_t batch);
typedef dsc_status dsc_op_plan(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                               dsc_error *err);
typedef int64_t dsc_op_sent(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
typedef bool dsc_op_can_lie(const dsc_place *places, const dsc_op *op);
typedef dsc_status dsc_op_rule(struct dsc_tape *tape, dsc_op *op, dsc_error *err);
typedef int64_t dsc_op_numbers(const struct dsc_exec *exec, const dsc_op *op);

/* All that is known of one kind of op. Masks have a bit for each operand of dsc_op in order. NULL: it has none. */
typedef struct dsc_op_info {
    const char *name;
    bool cheap;      /* backward may make its outputs again instead of reading kept ones */
    bool is_view;    /* outputs and inputs are the same memory: nothing is launched */
    bool is_table;   /* without an input: nothing need read it, and backward always makes it again */
    bool activates;  /* "selective" rebuilds a product that only such ops read */
    bool is_product; /* the plan of its layer counts its FLOPs, with those of its adapter */

    /* ---- Memory ---- */
    /* in_place[o]: inputs whose memory output o may take; each element is read before it is written. */
    uint32_t in_place[DSC_OP_OUTPUTS];
    uint32_t strided_in, strided_out; /* operands that may be columns of a wider value */
    uint32_t cached;                  /* inputs that the cache keeps */
    /* Bytes of what the op keeps of a text so far in the cache, whatever its length. */
    dsc_op_state *state;
    /* Whether the kernel can read and write operands at these places. */
    dsc_op_can_lie *can_lie;
    dsc_op_scratch *scratch;

    /* ---- Run and plan ---- */
    dsc_op_launch *launch;
    dsc_op_flops *flops;
    dsc_op_plan *plan; /* the launches for a plan's sink */
    dsc_op_sent *sent; /* payload in bytes that a rank sends to the others */

    /* An op whose result can depend on all micro-batches of a group: how many numbers of one are exchanged, 0: none
     * are. `share` writes them, and `finish` reads those of all; both together are `launch` of the whole group. */
    dsc_op_numbers *numbers;
    dsc_op_launch *share, *finish;

    /* ---- Backward ---- */
    /* Emits the ops of the gradients. NULL: no gradient goes through. */
    dsc_op_rule *rule;
    uint32_t gradients; /* inputs that have one */
    /* For the rule dsc_rule_one_op: the kind that it emits, whose inputs are the gradient of output 0, and then these
     * outputs and inputs of forward. */
    dsc_op_kind gradient_kind;
    uint32_t reads_out, reads_in;
} dsc_op_info;
extern const dsc_op_info dsc_op_infos[DSC_OP_KINDS]; /* ops.c */

/* ---- program.c ---- */
DSC_MUST_USE dsc_op *dsc_program_add_op(dsc_program *program, dsc_op_kind kind, const char *name); /* NULL: full */
int16_t dsc_program_add_value(dsc_program *program, const char *name, const dsc_value *like);
void dsc_program_set_out(dsc_program *program, dsc_op *op, int output, int16_t value);
int16_t dsc_op_number(const dsc_program *program, const dsc_op *op);
void dsc_list_add(dsc_op_list *list, int16_t op);
bool dsc_op_reads(const dsc_op *op, int16_t value);
/* Whether the op of losses reads the module's input. */
static inline bool dsc_program_ends_at_input(const dsc_program *program)
{
    return program->loss && program->d_input == program->d_output;
}
int32_t dsc_program_readers(const dsc_program *program, int16_t value, int16_t *first); /* forward's */

/* ---- Sizes ---- */
/* Whether a value is all columns of its buffer. */
static inline bool dsc_place_is_whole(const dsc_place *place) { return place->width == place->stride; }
int64_t dsc_value_rows(const dsc_value *value, int64_t batch);
int64_t dsc_value_bytes(const dsc_value *value, int64_t batch, dsc_dtype dtype);
/* Pictures of a sample, whose pixels are its rows; 0: its rows are none. */
static inline int64_t dsc_value_pictures(const dsc_value *value)
{
    const int64_t pixels = value->height * value->width;
    return pixels > 0 && value->rows % pixels == 0 ? value->rows / pixels : 0;
}

/* ---- Steps of the compiler, in order ---- */
void dsc_program_fuse(dsc_program *program, const dsc_lora *lora);                       /* fuse.c */
DSC_MUST_USE dsc_status dsc_program_differentiate(dsc_program *program, dsc_error *err); /* backward.c */
void dsc_program_choose_stores(dsc_program *program);                                    /* store.c */
void dsc_program_make_again(dsc_program *program);                                       /* store.c */
void dsc_program_list_rebuild(dsc_program *program);                                     /* store.c */
/* share.c: the memory of forward, and of backward, whose ops are known later. */
DSC_MUST_USE dsc_status dsc_program_share_forward(dsc_program *program, dsc_error *err);
DSC_MUST_USE dsc_status dsc_program_share_backward(dsc_program *program, dsc_error *err);

/* ---- Reverse mode: the tape, backward.c ---- */
typedef struct dsc_tape {
    dsc_program *program;
    int16_t gradient[DSC_PROGRAM_VALUES]; /* the sum so far for a forward value, NONE: nothing */
    bool done[DSC_PROGRAM_OPS];
    int16_t weight_later[DSC_PROGRAM_OPS]; /* gated activation: the product whose weight's gradient reads what its
                                            * backward makes again */
    bool full;
    dsc_op spare; /* written where the program is full */
} dsc_tape;
/* An op at the end of backward, with name and parameters of `of`. */
dsc_op *dsc_tape_emit(dsc_tape *tape, dsc_op_kind kind, const dsc_op *of);
/* Output `output` of the op becomes a new value, of the shape of forward's `of`. NONE: the program is full. */
int16_t dsc_tape_emit_value(dsc_tape *tape, dsc_op *op, int output, int16_t of);
/* Adds a gradient to that of a forward value, which an op named as `of` does. */
void dsc_tape_add(dsc_tape *tape, const dsc_op *of, int16_t value, int16_t gradient);

/* ---- Addresses, place.c ---- */
typedef struct dsc_pass_layout {
    int64_t saved_bytes, rebuilt_bytes, repeated_bytes, cache_bytes, scratch_bytes;
    bool has_state;
    int64_t *stored;  /* [forward buffers] offset in its region */
    int64_t *scratch; /* [buffers of the pass] offset in the scratch; OUT: in ctx->out meanwhile */
    int64_t *work;    /* [ops] offset of an op's own scratch */
    int64_t *cache;   /* [parts of the cache] */
    int64_t *state;   /* [forward ops] offset of an op's state in the cache */
} dsc_pass_layout;
#define DSC_LAYOUT_OUT (-1)
/* A layout with offsets for a program of any size. */
typedef struct dsc_any_pass_layout {
    dsc_pass_layout at;
    int64_t offset[2 * DSC_PROGRAM_VALUES + DSC_PROGRAM_OPS + 3 * DSC_PROGRAM_FORWARD_OPS];
} dsc_any_pass_layout;
void dsc_program_lay(const dsc_program *program, dsc_pass pass, const dsc_op_batch *of, dsc_any_pass_layout *out);
/* The same, from program->layouts where it is there; else in *own. */
const dsc_pass_layout *dsc_program_layout(const dsc_program *program, dsc_pass pass, const dsc_op_batch *of,
                                          dsc_any_pass_layout *own);

/* ---- One call, run.c ---- */
typedef struct dsc_exec {
    const dsc_program *program;
    dsc_pass pass;
    const dsc_lora *lora;
    dsc_module_ctx *ctx;
    const dsc_pass_layout *layout;
    dsc_error *err;
    int64_t row; /* the one row of all values that is computed; -1: all rows are */
    int32_t part; /* number of the micro-batch in its group */
} dsc_exec;
char *dsc_exec_at(const dsc_exec *exec, int16_t value); /* NULL: no value, or one that is not written here */
const dsc_place *dsc_exec_place(const dsc_exec *exec, int16_t value);
char *dsc_exec_work(const dsc_exec *exec, const dsc_op *op);
char *dsc_exec_state(const dsc_exec *exec, const dsc_op *op); /* the op's state in the cache; NULL: there is none */

#endif
