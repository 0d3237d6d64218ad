/* share.c - which values lie in one memory, one after another or as columns of a wider one, and where that memory is.
 *
 * Values share a buffer where an op may write over its input, that is, where each element is read before it is
 * written, and nobody reads the input afterwards. Slices are columns of the buffer of what they are cut from. The
 * gradient that leaves the module lies in ctx->d_in as early as ctx->d_out, which may be the same memory, is no longer
 * read. SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

typedef struct sharing {
    dsc_program *program;
    int set; /* 0: forward and rebuild, 1: backward */
    const dsc_op_list *list;
    int16_t first[DSC_PROGRAM_VALUES], last[DSC_PROGRAM_VALUES]; /* steps; NONE before the pass, count: after it */
    bool here[DSC_PROGRAM_VALUES];
    int16_t d_out_last; /* backward: the last step that reads what d_in may be the memory of */
} sharing;

static dsc_place *place_of(const sharing *s, int16_t value) { return &s->program->place[s->set][value]; }
static dsc_buffer *buffer_of(const sharing *s, int16_t value)
{
    return &s->program->buffer[s->set][place_of(s, value)->buffer];
}

/* ---- lifetimes --------------------------------------------------------------------------------------------------- */

static void see(sharing *s, int16_t value, int16_t step, bool written)
{
    if (value == DSC_PROGRAM_NONE)
        return;
    if (!s->here[value]) {
        s->here[value] = true;
        s->first[value] = written ? step : DSC_PROGRAM_NONE;
    }
    s->last[value] = step;
}

static void find_lifetimes(sharing *s)
{
    for (int16_t i = 0; i < s->list->count; i++) {
        const dsc_op *op = &s->program->op[s->list->op[i]];
        for (int j = 0; j < DSC_OP_INPUTS; j++)
            see(s, op->in[j], i, false);
        for (int j = 0; j < DSC_OP_OUTPUTS; j++)
            see(s, op->out[j], i, true);
    }
}

static bool is_carried(const dsc_program *program, int16_t value)
{
    return value == program->carried || value == program->carried_out || value == program->d_carried ||
           value == program->d_carried_out;
}

static void add_buffer(sharing *s, int16_t value, dsc_region region)
{
    const int16_t number = s->program->buffer_count[s->set]++;
    s->program->buffer[s->set][number] = (dsc_buffer) { .region = region,
                                                        .value = value,
                                                        .anchor = DSC_PROGRAM_NONE,
                                                        .cache = DSC_PROGRAM_NONE,
                                                        .carried = is_carried(s->program, value) };
    const int64_t columns = s->program->value[value].columns;
    *place_of(s, value) = (dsc_place) { number, 0, columns, columns, 0 };
}

/* ---- sharing ----------------------------------------------------------------------------------------------------- */

/* Whether the op at the end of a's life, which writes b, may write it over a. */
static bool follows_in_place(const sharing *s, int16_t a, int16_t b)
{
    if (s->last[a] != s->first[b] || s->last[a] < 0 || s->last[a] >= s->list->count)
        return false;
    const dsc_op *op = &s->program->op[s->list->op[s->last[a]]];
    const dsc_op_info *info = &dsc_op_infos[op->kind];
    bool may = true, writes = false;
    for (int o = 0; o < DSC_OP_OUTPUTS; o++) {
        writes |= op->out[o] == b;
        for (int i = 0; i < DSC_OP_INPUTS && op->out[o] == b; i++)
            may &= op->in[i] != a || info->is_view || (info->in_place[o] & DSC_BIT(i)) != 0;
    }
    return may && writes;
}

static bool may_share(const sharing *s, int16_t a, int16_t b)
{
    return s->last[a] < s->first[b] || s->last[b] < s->first[a] || follows_in_place(s, a, b) ||
           follows_in_place(s, b, a);
}

/* ctx->d_in is written only where ctx->d_out is not read any more, which is scratch in a last module. */
static bool may_be_d_in(const sharing *s, int16_t value)
{
    if (s->program->loss)
        return true;
    if (s->first[value] != s->d_out_last)
        return s->first[value] > s->d_out_last;
    const int16_t d_out = s->program->d_output;
    const dsc_op *op = &s->program->op[s->list->op[s->d_out_last]];
    bool may = true;
    for (int o = 0; o < DSC_OP_OUTPUTS; o++)
        for (int i = 0; i < DSC_OP_INPUTS && op->out[o] == value; i++)
            may &= op->in[i] != d_out || (dsc_op_infos[op->kind].in_place[o] & DSC_BIT(i)) != 0;
    return may;
}

/* Whether columns of one buffer meet. Those of heads that lie apart are as those of the first head. */
static bool columns_meet(const dsc_place *x, const dsc_place *y)
{
    return x->column < y->column + y->width && y->column < x->column + x->width;
}

/* A place in buffer `from` when that buffer becomes the columns `to`, which may be all of another buffer. */
static dsc_place moved(dsc_place place, const dsc_place *to)
{
    const bool whole = dsc_place_is_whole(&place);
    return (dsc_place) { to->buffer, to->column + place.column, whole ? to->width : place.width, to->stride,
                         whole ? to->apart : place.apart };
}

/* Whether the columns `to` of another buffer may take up all values of `from`'s. */
static bool may_move(const sharing *s, int16_t from, const dsc_place *to)
{
    const dsc_program *program = s->program;
    for (int16_t a = 0; a < program->value_count; a++) {
        if (!s->here[a] || place_of(s, a)->buffer != from)
            continue;
        const dsc_place x = moved(*place_of(s, a), to);
        if (program->buffer[s->set][to->buffer].region == DSC_REGION_D_IN && !may_be_d_in(s, a))
            return false;
        if (to->apart > 0 && place_of(s, a)->width != place_of(s, a)->stride)
            return false; /* a part of heads that lie apart */
        for (int16_t b = 0; b < program->value_count; b++)
            if (s->here[b] && place_of(s, b)->buffer == to->buffer && columns_meet(&x, place_of(s, b)) &&
                !may_share(s, a, b))
                return false;
    }
    return true;
}

static void move(sharing *s, int16_t from, const dsc_place *to)
{
    const dsc_place target = *to; /* it may be one of those that move */
    for (int16_t i = 0; i < s->program->value_count; i++)
        if (s->here[i] && place_of(s, i)->buffer == from)
            *place_of(s, i) = moved(*place_of(s, i), &target);
}

static bool is_free(const dsc_buffer *buffer) { return buffer->region == DSC_REGION_SCRATCH; }

static bool is_whole(const sharing *s, int16_t value) { return dsc_place_is_whole(place_of(s, value)); }

static bool lie_alike(const dsc_place *x, const dsc_place *y)
{
    return x->column == y->column && x->width == y->width && x->stride == y->stride && x->apart == y->apart;
}

/* Input and output of an op get one memory, if they may. Two of equal columns in buffers of equal width are as good as
 * two whole ones. */
static bool share(sharing *s, int16_t in, int16_t out)
{
    const dsc_place x = *place_of(s, in), y = *place_of(s, out);
    const dsc_place all_x = { x.buffer, 0, x.stride, x.stride, 0 }, all_y = { y.buffer, 0, y.stride, y.stride, 0 };
    const bool alike = lie_alike(&x, &y);
    const dsc_place *to_x = alike ? &all_x : &x, *to_y = alike ? &all_y : &y;
    if (x.buffer == y.buffer)
        return alike;
    if (is_free(buffer_of(s, out)) && (is_whole(s, out) || alike) && may_move(s, y.buffer, to_x)) {
        move(s, y.buffer, to_x);
        return true;
    }
    if (is_free(buffer_of(s, in)) && (is_whole(s, in) || alike) && may_move(s, x.buffer, to_y)) {
        move(s, x.buffer, to_y);
        return true;
    }
    return false;
}

/* A slice is columns of what it is cut from. */
static bool share_columns(sharing *s, int16_t whole, int16_t part, int64_t column, int64_t apart, bool checked)
{
    const dsc_place x = *place_of(s, whole), y = *place_of(s, part);
    const int64_t heads = apart > 0 ? s->program->value[whole].columns / apart : 1;
    const dsc_place to = { x.buffer, x.column + column, s->program->value[part].columns / heads, x.stride, apart };
    if (x.apart > 0)
        return false;
    if (x.buffer == y.buffer)
        return lie_alike(&to, &y);
    if (!is_free(buffer_of(s, part)) || !is_whole(s, part) || (checked && !may_move(s, y.buffer, &to)))
        return false;
    move(s, y.buffer, &to);
    return true;
}

static dsc_status share_views(sharing *s, dsc_error *err)
{
    for (int16_t i = 0; i < s->list->count; i++) {
        const dsc_op *op = &s->program->op[s->list->op[i]];
        int64_t column = op->kind == DSC_OP_SLICE ? op->slice.column : 0;
        bool shared = true;
        if (op->kind == DSC_OP_SLICE)
            shared = share_columns(s, op->in[0], op->out[0], column, op->slice.apart, false);
        for (int j = 0; op->kind == DSC_OP_JOIN && j < DSC_OP_INPUTS && op->in[j] != DSC_PROGRAM_NONE; j++) {
            shared &= share_columns(s, op->out[0], op->in[j], column, op->slice.apart, true);
            column += place_of(s, op->in[j])->width;
        }
        if (!shared)
            return DSC_FAIL(err, DSC_ERR_INPUT, "",
                            "op \"slice\": the gradients of the slices of \"%.60s\" cannot lie "
                            "side by side, since one is used elsewhere too; add a product between",
                            s->program->value[op->out[0]].name);
    }
    return DSC_OK;
}

static void share_in_place(sharing *s)
{
    for (int16_t i = 0; i < s->list->count; i++) {
        const dsc_op *op = &s->program->op[s->list->op[i]];
        for (int o = 0; o < DSC_OP_OUTPUTS; o++)
            for (int j = 0; j < DSC_OP_INPUTS; j++)
                if (op->out[o] != DSC_PROGRAM_NONE && op->in[j] != DSC_PROGRAM_NONE &&
                    (dsc_op_infos[op->kind].in_place[o] & DSC_BIT(j)) != 0 && share(s, op->in[j], op->out[o]))
                    break;
    }
}

/* ---- what kernels can read --------------------------------------------------------------------------------------- */

static bool op_can_run(const sharing *s, const dsc_op *op)
{
    const dsc_op_info *info = &dsc_op_infos[op->kind];
    const int16_t *in = op->in, *out = op->out;
    bool can = true;
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        can &= in[i] == DSC_PROGRAM_NONE || (info->strided_in & DSC_BIT(i)) != 0 || is_whole(s, in[i]);
    for (int i = 0; i < DSC_OP_OUTPUTS; i++)
        can &= out[i] == DSC_PROGRAM_NONE || (info->strided_out & DSC_BIT(i)) != 0 || is_whole(s, out[i]);
    return can && (info->can_lie == NULL || info->can_lie(s->program->place[s->set], op));
}

static dsc_status check_ops(const sharing *s, dsc_error *err)
{
    for (int16_t i = 0; i < s->list->count; i++) {
        const dsc_op *op = &s->program->op[s->list->op[i]];
        if (op_can_run(s, op))
            continue;
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "",
                        "op \"%.60s\" (%s) reads or writes columns of a wider value, or "
                        "inputs that lie differently; slices can be read by rope, attention and gated",
                        op->name, dsc_op_infos[op->kind].name);
    }
    return DSC_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static dsc_region region_of_store(dsc_store store)
{
    switch (store) {
    case DSC_STORE_SAVED:
        return DSC_REGION_SAVED;
    case DSC_STORE_REBUILT:
        return DSC_REGION_REBUILT;
    case DSC_STORE_REPEATED:
        return DSC_REGION_REPEATED;
    default:
        return DSC_REGION_SCRATCH;
    }
}

static bool is_kept(dsc_store store) { return region_of_store(store) != DSC_REGION_SCRATCH; }

/* Values of one buffer are kept in one way: the one that asks least of backward. */
static void unite_stores(sharing *s)
{
    dsc_program *program = s->program;
    dsc_store store[DSC_PROGRAM_VALUES] = { DSC_STORE_SCRATCH };
    for (int16_t i = 0; i < program->value_count; i++) {
        if (!s->here[i] || !is_kept(program->value[i].store))
            continue;
        dsc_store *of = &store[place_of(s, i)->buffer];
        *of = *of == DSC_STORE_SCRATCH || program->value[i].store < *of ? program->value[i].store : *of;
    }
    for (int16_t i = 0; i < program->value_count; i++) {
        if (s->here[i])
            program->buffer_used[place_of(s, i)->buffer] = true;
        if (!s->here[i] || !is_kept(store[place_of(s, i)->buffer]))
            continue;
        if (is_kept(program->value[i].store))
            program->value[i].store = store[place_of(s, i)->buffer];
        buffer_of(s, i)->region = region_of_store(store[place_of(s, i)->buffer]);
    }
}

/* With a cache, keys and values go where those of the tokens before are. */
static dsc_status find_cache(sharing *s, dsc_error *err)
{
    dsc_program *program = s->program;
    for (int16_t i = 0; i < s->list->count && program->cache_tokens > 0; i++) {
        const dsc_op *op = &program->op[s->list->op[i]];
        for (int j = 0; j < DSC_OP_INPUTS; j++) {
            if ((dsc_op_infos[op->kind].cached & DSC_BIT(j)) == 0)
                continue;
            dsc_buffer *buffer = buffer_of(s, op->in[j]);
            if (buffer->region == DSC_REGION_IN || buffer->region == DSC_REGION_OUT)
                return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "",
                                "op \"%.60s\": its input \"%.60s\" is an input or "
                                "output of the module, which no cache can keep",
                                op->name, program->value[op->in[j]].name);
            if (buffer->cache != DSC_PROGRAM_NONE)
                continue;
            program->cache_value[program->cache_count] = buffer->value;
            buffer->cache = program->cache_count++;
        }
    }
    return DSC_OK;
}

dsc_status dsc_program_share_forward(dsc_program *program, dsc_error *err)
{
    sharing s = { .program = program, .list = &program->list[DSC_PASS_FORWARD] };
    find_lifetimes(&s);
    for (int16_t i = 0; i < program->value_count; i++) {
        if (!s.here[i])
            continue;
        const bool comes = i == program->input || i == program->carried;
        const bool leaves = i == program->output || i == program->carried_out;
        add_buffer(&s, i, comes ? DSC_REGION_IN : leaves ? DSC_REGION_OUT : DSC_REGION_SCRATCH);
        if (comes || leaves || is_kept(program->value[i].store))
            s.last[i] = s.list->count;
    }
    DSC_TRY(share_views(&s, err));
    share_in_place(&s);
    unite_stores(&s);
    DSC_TRY(find_cache(&s, err));
    return check_ops(&s, err);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Values that forward stored lie where they were. */
static void add_stored(sharing *s, int16_t value, int16_t *anchors)
{
    const dsc_place place = s->program->place[0][value];
    if (anchors[place.buffer] == DSC_PROGRAM_NONE) {
        const dsc_buffer *buffer = &s->program->buffer[0][place.buffer];
        anchors[place.buffer] = s->program->buffer_count[1];
        add_buffer(s, value, buffer->region);
        s->program->buffer[1][anchors[place.buffer]].anchor = place.buffer;
        s->program->buffer[1][anchors[place.buffer]].value = buffer->value;
    }
    *place_of(s, value) = place;
    place_of(s, value)->buffer = anchors[place.buffer];
}

static void add_buffers(sharing *s)
{
    const dsc_program *program = s->program;
    int16_t anchors[DSC_PROGRAM_VALUES];
    for (int16_t i = 0; i < DSC_PROGRAM_VALUES; i++)
        anchors[i] = DSC_PROGRAM_NONE;
    for (int16_t i = 0; i < program->value_count; i++) {
        const dsc_store store = program->value[i].store;
        if (!s->here[i])
            continue;
        if (store == DSC_STORE_INPUT || store == DSC_STORE_SAVED || store == DSC_STORE_REBUILT)
            add_stored(s, i, anchors);
        else
            add_buffer(s, i,
                       i == program->d_output || i == program->d_carried_out ? DSC_REGION_D_OUT
                       : i == program->d_carried                             ? DSC_REGION_D_IN
                                                                             : DSC_REGION_SCRATCH);
        if (store == DSC_STORE_INPUT || i == program->d_output || i == program->d_carried_out)
            s->last[i] = s->list->count; /* not ours to overwrite, or not yet */
    }
}

/* Whether all that lies in the buffer of the gradient that leaves may lie in ctx->d_in. A gradient that comes from
 * outside and that no op reads has no buffer. */
static bool leaves_in_place(const sharing *s)
{
    const int16_t d_in = s->program->d_input;
    if (!s->here[d_in])
        return false;
    bool may = is_free(buffer_of(s, d_in)) && is_whole(s, d_in);
    for (int16_t i = 0; i < s->program->value_count; i++)
        if (s->here[i] && place_of(s, i)->buffer == place_of(s, d_in)->buffer)
            may &= may_be_d_in(s, i);
    return may;
}

/* The chain of ops that add to the gradient that leaves, from its end on. */
static void share_d_in(sharing *s)
{
    const dsc_program *program = s->program;
    buffer_of(s, program->d_input)->region = DSC_REGION_D_IN;
    for (int16_t i = (int16_t)(s->list->count - 1); i >= 0; i--) {
        const dsc_op *op = &program->op[s->list->op[i]];
        for (int o = 0; o < DSC_OP_OUTPUTS; o++) {
            if (op->out[o] == DSC_PROGRAM_NONE || buffer_of(s, op->out[o])->region != DSC_REGION_D_IN)
                continue;
            for (int j = 0; j < DSC_OP_INPUTS; j++)
                if (op->in[j] != DSC_PROGRAM_NONE && (dsc_op_infos[op->kind].in_place[o] & DSC_BIT(j)) != 0 &&
                    share(s, op->in[j], op->out[o]))
                    break;
        }
    }
}

static void begin_backward(sharing *s, dsc_program *program)
{
    *s = (sharing) { .program = program, .set = 1, .list = &program->list[DSC_PASS_BACKWARD] };
    program->buffer_count[1] = 0;
    find_lifetimes(s);
    s->d_out_last = s->here[program->d_output] ? s->last[program->d_output] : DSC_PROGRAM_NONE;
    /* A carried gradient lies in front of both, or d_in has its place. */
    if (program->d_carried_out != DSC_PROGRAM_NONE && program->carried == DSC_PROGRAM_NONE &&
        s->here[program->d_carried_out])
        s->d_out_last = (int16_t)dsc_max_i64(s->d_out_last, s->last[program->d_carried_out]);
    if (program->d_input != DSC_PROGRAM_NONE)
        s->last[program->d_input] = s->list->count;
    if (program->d_carried != DSC_PROGRAM_NONE)
        s->last[program->d_carried] = s->list->count;
    add_buffers(s);
}

/* d_in as a copy, where the gradient is made too early or in a memory that is another value's. */
static dsc_status copy_d_in(dsc_program *program, dsc_error *err)
{
    const int16_t value = program->d_input;
    dsc_op *op = dsc_program_add_op(program, DSC_OP_COPY, "d_in");
    program->d_input = dsc_program_add_value(program, "d_in", &program->value[value]);
    if (op == NULL || program->d_input == DSC_PROGRAM_NONE)
        return DSC_FAIL(err, DSC_ERR_INPUT, "", "a program of %d ops is too long with its backward; split the module",
                        (int)program->forward_count);
    op->in[0] = value;
    dsc_program_set_out(program, op, 0, program->d_input);
    dsc_list_add(&program->list[DSC_PASS_BACKWARD], dsc_op_number(program, op));
    return DSC_OK;
}

dsc_status dsc_program_share_backward(dsc_program *program, dsc_error *err)
{
    sharing s;
    if (dsc_program_ends_at_input(program)) /* the output is the gradient that leaves */
        return DSC_OK;
    begin_backward(&s, program);
    DSC_TRY(share_views(&s, err));
    if (program->d_input != DSC_PROGRAM_NONE && !leaves_in_place(&s)) {
        DSC_TRY(copy_d_in(program, err));
        begin_backward(&s, program);
        DSC_TRY(share_views(&s, err));
    }
    if (program->d_input != DSC_PROGRAM_NONE)
        share_d_in(&s);
    share_in_place(&s);
    return check_ops(&s, err);
}
