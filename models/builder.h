/* builder.h - the public builder's state, which builder.c and builder_ops.c share. SPDX-License-Identifier: Apache-2.0
 */
#ifndef DSC_MODELS_BUILDER_H
#define DSC_MODELS_BUILDER_H

#include <stddef.h>

#include <dsc/program.h>

#include "models/lm.h"

enum { BUILDER_BLOCK_ROPES = 8 };

/* Copies that live as long as the model: of texts, rotary positions, custom ops and blocks that differ. A block itself
 * is not needed by a model that is open. */
typedef enum builder_list {
    BUILDER_TEXTS,
    BUILDER_ROPES,
    BUILDER_CUSTOMS,
    BUILDER_PROGRAMS,
    BUILDER_LISTS
} builder_list;
typedef struct builder_kept {
    struct builder_kept *next;
    max_align_t copy[];
} builder_kept;

typedef enum builder_kind { BUILDER_BLOCK, BUILDER_FIRST, BUILDER_LAST } builder_kind;

struct dsc_builder {
    dsc_alloc *alloc;
    dsc_status status; /* the first failure */
    dsc_error err;
    dsc_build_options options; /* name: a copy */
    builder_kept *kept[BUILDER_LISTS];
    const dsc_program *block[DSC_LM_LAYERS_MAX];
    int64_t block_count;
    const dsc_program *first, *last; /* modules in place of embedding and head, or NULL */
    int64_t serial;                  /* modules that were ended, which number nodes */
    builder_kind kind;               /* of the module in hand */
    bool open;                       /* it is begun and not ended */
    dsc_value given;                 /* what the module before gives; rows 0: [B*T,C] of an embedding */
    dsc_program *program; /* the block in hand */
    dsc_program *trial;   /* a copy of it that is compiled, for its errors */
    struct {
        const dsc_rope *rope;
        dsc_program_tables tables;
    } tables[BUILDER_BLOCK_ROPES]; /* tables of the block in hand */
    int32_t table_count;
    uint32_t dropouts;
    void (*close_model)(dsc_model *model); /* the built model's own */
};

/* Keeps the first failure. The formatted text is a message's. */
#define BUILDER_REFUSE(b, status_, ...)                                                                                \
    do {                                                                                                               \
        if ((b)->status == DSC_OK)                                                                                     \
            (b)->status = DSC_FAIL(&(b)->err, (status_), dsc_builder_where((b), (char[32]) { 0 }), __VA_ARGS__);       \
    } while (0)
/* The block in hand, for messages; "" outside of blocks. out[32]. */
const char *dsc_builder_where(const dsc_builder *b, char *out);
/* Takes over a failure of the block in hand. */
void dsc_builder_keep_failure(dsc_builder *b, const dsc_program *program);

/* builder.c: zeroed memory for a copy, which the list has from now on; NULL after a failure. */
void *dsc_builder_keep(dsc_builder *b, builder_list list, size_t bytes);
/* builder.c: begins a module of that kind, with the shape of a sample of its input; false after a failure. */
bool dsc_builder_begin(dsc_builder *b, builder_kind kind, const dsc_value *input);
/* builder.c: [T,C], and what the module before gives. */
dsc_value dsc_builder_plain(const dsc_builder *b);
dsc_value dsc_builder_given(const dsc_builder *b);
/* builder_ops.c: a copy of an op's name, with that of a first or last module before it; NULL after a failure. */
const char *dsc_builder_name(dsc_builder *b, const char *name);
/* builder_ops.c: a value of the block in hand as a node, and back; NONE after a failure. `op` is named by messages. */
dsc_node dsc_builder_node(dsc_builder *b, int16_t value);
int16_t dsc_builder_value(dsc_builder *b, dsc_node node, const char *op);
/* The node of an op that `call` adds, which is not evaluated after a failure. */
#define BUILDER_NODE(b, call) ((b)->status == DSC_OK ? dsc_builder_node((b), (call)) : DSC_NODE_NONE)

#endif
