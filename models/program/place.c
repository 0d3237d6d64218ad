/* place.c - bytes and offsets of a pass for one micro-batch. SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <string.h>

#include "base/window.h"
#include "models/lora.h"
#include "models/program/internal.h"

typedef struct span {
    int16_t first, last;
    bool here;
} span;

static void see(span *spans, const dsc_place *places, int16_t value, int16_t step)
{
    if (value == DSC_PROGRAM_NONE)
        return;
    span *of = &spans[places[value].buffer];
    if (!of->here)
        *of = (span) { step, step, true };
    of->last = step;
}

/* Whether backward reads a value where forward has put it. */
static bool is_kept(const dsc_program *program, dsc_pass pass, int16_t value)
{
    return program->keeps && pass == DSC_PASS_BACKWARD && value != DSC_PROGRAM_NONE &&
           program->value[value].store == DSC_STORE_REPEATED;
}

/* Steps of a pass between which each buffer is in use. */
static void find_spans(const dsc_program *program, dsc_pass pass, span *spans)
{
    const dsc_op_list *list = &program->list[pass];
    const dsc_place *places = program->place[pass == DSC_PASS_BACKWARD];
    for (int16_t i = 0; i < list->count; i++) {
        const dsc_op *op = &program->op[list->op[i]];
        if (program->keeps && op->unless_kept)
            continue;
        for (int j = 0; j < DSC_OP_INPUTS; j++)
            see(spans, places, is_kept(program, pass, op->in[j]) ? DSC_PROGRAM_NONE : op->in[j], i);
        for (int j = 0; j < DSC_OP_OUTPUTS; j++)
            see(spans, places, op->out[j], i);
    }
}

static int64_t work_bytes(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const dsc_op_info *info = &dsc_op_infos[op->kind];
    return info->scratch != NULL ? info->scratch(program, op, of) : 0;
}

static int64_t piece(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += dsc_align_up(bytes, 256);
    return at;
}

static void lay_stored(const dsc_program *program, int64_t batch, dsc_dtype dtype, dsc_pass_layout *out)
{
    for (int16_t i = 0; i < program->buffer_count[0]; i++) {
        const dsc_buffer *buffer = &program->buffer[0][i];
        const int64_t bytes = dsc_value_bytes(&program->value[buffer->value], batch, dtype);
        if (!program->buffer_used[i])
            continue;
        if (buffer->region == DSC_REGION_SAVED)
            out->stored[i] = piece(&out->saved_bytes, bytes);
        if (buffer->region == DSC_REGION_REBUILT)
            out->stored[i] = piece(&out->rebuilt_bytes, bytes);
        if (buffer->region == DSC_REGION_REPEATED)
            out->stored[i] = piece(&out->repeated_bytes, bytes);
    }
    for (int16_t i = 0; i < program->cache_count; i++) {
        const int64_t row = program->value[program->cache_value[i]].columns * (int64_t)dsc_dtype_bytes(dtype);
        out->cache[i] = piece(&out->cache_bytes, program->cache_tokens * row);
    }
    for (int16_t i = 0; i < program->forward_count && program->cache_tokens > 0; i++) {
        const dsc_op_info *info = &dsc_op_infos[program->op[i].kind];
        if (info->state == NULL)
            continue;
        out->state[i] = piece(&out->cache_bytes, info->state(program, &program->op[i], dtype));
        out->has_state = true;
    }
}

/* Forward and rebuild may use ctx->out until its own value comes: it takes the largest buffers that fit. */
static bool fits_out(const dsc_program *program, const span *spans, const dsc_pass_layout *at, int16_t candidate)
{
    const span *wanted = &spans[candidate];
    bool fits = true;
    for (int16_t i = 0; i < program->buffer_count[0]; i++) {
        const bool there = program->buffer[0][i].region == DSC_REGION_OUT || at->scratch[i] == DSC_LAYOUT_OUT;
        if (i != candidate && spans[i].here && there)
            fits &= spans[i].last < wanted->first || wanted->last < spans[i].first;
    }
    return fits;
}

static bool is_scratch(const dsc_program *program, dsc_region region)
{
    return region == DSC_REGION_SCRATCH || (region == DSC_REGION_REPEATED && !program->keeps);
}

static void use_out(const dsc_program *program, const span *spans, const dsc_op_batch *of, dsc_pass_layout *out)
{
    const int64_t room = dsc_value_bytes(&program->value[program->output], of->batch, of->dtype);
    for (;;) {
        int16_t best = DSC_PROGRAM_NONE;
        int64_t best_bytes = 0;
        for (int16_t i = 0; i < program->buffer_count[0]; i++) {
            const int64_t bytes = dsc_value_bytes(&program->value[program->buffer[0][i].value], of->batch, of->dtype);
            if (spans[i].here && is_scratch(program, program->buffer[0][i].region) &&
                out->scratch[i] != DSC_LAYOUT_OUT && bytes > best_bytes && bytes <= room &&
                fits_out(program, spans, out, i))
                best = i, best_bytes = bytes;
        }
        if (best == DSC_PROGRAM_NONE)
            return;
        out->scratch[best] = DSC_LAYOUT_OUT;
    }
}

/* Everything in the scratch, by the lifetimes in the pass. */
static void lay_scratch(const dsc_program *program, dsc_pass pass, const span *spans, const dsc_op_batch *of,
                        dsc_pass_layout *out)
{
    const int set = pass == DSC_PASS_BACKWARD;
    const dsc_op_list *list = &program->list[pass];
    dsc_window windows[DSC_PROGRAM_VALUES + DSC_PROGRAM_OPS];
    int64_t *offsets[DSC_PROGRAM_VALUES + DSC_PROGRAM_OPS];
    int32_t count = 0;
    for (int16_t i = 0; i < program->buffer_count[set]; i++) {
        if (!spans[i].here || !is_scratch(program, program->buffer[set][i].region) || out->scratch[i] == DSC_LAYOUT_OUT)
            continue;
        const int64_t bytes = dsc_value_bytes(&program->value[program->buffer[set][i].value], of->batch, of->dtype);
        windows[count] = (dsc_window) { .first = spans[i].first, .last = spans[i].last, .bytes = bytes };
        offsets[count++] = &out->scratch[i];
    }
    for (int16_t i = 0; i < list->count; i++) {
        const dsc_op *op = &program->op[list->op[i]];
        const int64_t bytes = program->keeps && op->unless_kept ? 0 : work_bytes(program, op, of);
        if (bytes == 0)
            continue;
        windows[count] = (dsc_window) { .first = i, .last = i, .bytes = bytes };
        offsets[count++] = &out->work[list->op[i]];
    }
    out->scratch_bytes = dsc_window_assign(windows, count, list->count + 1);
    for (int32_t i = 0; i < count; i++)
        *offsets[i] = windows[i].offset;
}

/* Numbers of buffers and other things that have an offset. */
typedef struct offsets {
    int64_t stored, scratch, work, cache, state;
} offsets;

static offsets offsets_of(const dsc_program *program)
{
    return (offsets) { .stored = program->buffer_count[0],
                       .scratch = dsc_max_i64(program->buffer_count[0], program->buffer_count[1]),
                       .work = program->op_count,
                       .cache = program->cache_count,
                       .state = program->cache_tokens > 0 ? program->forward_count : 0 };
}

static int64_t count_of(const offsets *of) { return of->stored + of->scratch + of->work + of->cache + of->state; }

static void lay(const dsc_program *program, dsc_pass pass, const dsc_op_batch *of, dsc_pass_layout *out,
                int64_t *offset)
{
    const offsets counts = offsets_of(program);
    span spans[DSC_PROGRAM_VALUES] = { { 0 } };
    memset(offset, 0, (size_t)count_of(&counts) * sizeof *offset);
    *out = (dsc_pass_layout) { .stored = offset };
    out->scratch = out->stored + counts.stored;
    out->work = out->scratch + counts.scratch;
    out->cache = out->work + counts.work;
    out->state = out->cache + counts.cache;
    lay_stored(program, of->batch, of->dtype, out);
    find_spans(program, pass, spans);
    if (pass != DSC_PASS_BACKWARD)
        use_out(program, spans, of, out);
    lay_scratch(program, pass, spans, of, out);
}

void dsc_program_lay(const dsc_program *program, dsc_pass pass, const dsc_op_batch *of, dsc_any_pass_layout *out)
{
    const offsets counts = offsets_of(program);
    DSC_ASSERT(count_of(&counts) <= (int64_t)DSC_COUNT(out->offset));
    lay(program, pass, of, &out->at, out->offset);
}

/* ---- layouts of passes that ran ---------------------------------------------------------------------------------- */

enum { LAYOUTS = 8 }; /* forward, rebuild and backward of two sizes of a micro-batch, and forward of two more */

typedef struct layout_key {
    int64_t batch, adapter_bytes, chunk_bytes;
    dsc_dtype dtype;
    dsc_pass pass;
    bool stores_score_gradients, on_gpu;
} layout_key;

struct dsc_layouts {
    _Atomic int32_t state[LAYOUTS]; /* 0: free, 1: being written, 2: there */
    layout_key key[LAYOUTS];
    dsc_pass_layout layout[LAYOUTS];
    int64_t offset[]; /* those of each layout, one layout after another */
};

size_t dsc_program_layouts_bytes(const dsc_program *program)
{
    const offsets counts = offsets_of(program);
    return sizeof(struct dsc_layouts) + LAYOUTS * (size_t)count_of(&counts) * sizeof(int64_t);
}

static bool is_key(const layout_key *a, const layout_key *b)
{
    return a->batch == b->batch && a->adapter_bytes == b->adapter_bytes && a->chunk_bytes == b->chunk_bytes &&
           a->dtype == b->dtype && a->pass == b->pass && a->stores_score_gradients == b->stores_score_gradients &&
           a->on_gpu == b->on_gpu;
}

const dsc_pass_layout *dsc_program_layout(const dsc_program *program, dsc_pass pass, const dsc_op_batch *of,
                                          dsc_any_pass_layout *own)
{
    struct dsc_layouts *all = program->layouts;
    const offsets counts = offsets_of(program);
    const bool adapted = of->lora != NULL && of->lora->rank > 0;
    const layout_key key = { of->batch,
                             adapted ? dsc_lora_work_bytes(of->lora, of->batch * program->tokens, of->dtype) : 0,
                             of->chunk_bytes,
                             of->dtype,
                             pass,
                             of->stores_score_gradients,
                             of->on_gpu };
    for (int i = 0; i < LAYOUTS && all != NULL; i++) {
        int32_t state = atomic_load_explicit(&all->state[i], memory_order_acquire);
        if (state == 2 && is_key(&all->key[i], &key))
            return &all->layout[i];
        if (state != 0 || !atomic_compare_exchange_strong(&all->state[i], &state, 1))
            continue;
        all->key[i] = key;
        lay(program, pass, of, &all->layout[i], all->offset + i * count_of(&counts));
        atomic_store_explicit(&all->state[i], 2, memory_order_release);
        return &all->layout[i];
    }
    dsc_program_lay(program, pass, of, own);
    return &own->at;
}
