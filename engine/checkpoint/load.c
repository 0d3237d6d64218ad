/* load.c - collective load: every rank reads what it owns, whatever world size, stage or precision wrote it.
 *
 * Into states that can be made again, one pass verifies each block and then copies it: whoever asked throws the states
 * away when a later block is bad. Into a run's states there are two passes over the same blocks: the first only
 * verifies, and nothing changes before every rank has seen good hashes. The second verifies again what it copies, so a
 * byte that changes in between ends in an error, not in a weight.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/adapter.h"
#include "engine/checkpoint/load_slices.h"

typedef struct load_job {
    const dsc_ckpt_ctx *c;
    dsc_ckpt_reader reader;
    dsc_recipe recipe; /* this run's */
} load_job;

/* ---- does it fit the model? ---- */

static void shape_text(char *out, size_t out_bytes, const int64_t *dim, int32_t dim_count)
{
    DSC_ASSERT(out_bytes > 0);
    size_t at = 0;
    out[0] = 0;
    for (int32_t d = 0; d < dim_count && at < out_bytes; d++)
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%" PRId64, d > 0 ? "," : "", dim[d]);
}

static dsc_status check_tensor(const dsc_ckpt_reader *reader, const dsc_layout_tensor *tensor, dsc_ckpt_plane plane,
                               dsc_error *err)
{
    const dsc_param_spec *spec = tensor->spec;
    DSC_ASSERT(dsc_ckpt_is_saved(&reader->manifest.state, plane, true));
    const dsc_safetensors_entry *entry = dsc_ckpt_reader_find(reader, plane, spec->name, NULL);
    const char *where =
        dsc_safetensors_path(reader->file[plane == DSC_CKPT_WEIGHTS ? DSC_CKPT_MODEL : DSC_CKPT_OPTIMIZER]);
    const char *prefix = dsc_ckpt_plane_name(&reader->manifest.state, plane), *point = *prefix != 0 ? "." : "";
    if (entry == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "the checkpoint has no \"%s%s%.200s\", which the model needs",
                        prefix, point, spec->name);
    const int64_t count = dsc_ckpt_count(plane, tensor);
    DSC_ASSERT(count > 0);
    const bool whole = !dsc_ckpt_is_shared(plane) && !dsc_ckpt_is_absmax(plane);
    const int64_t *dim = whole ? spec->dim : &count;
    const int32_t dim_count = whole ? spec->dim_count : 1;
    bool same = entry->desc.dim_count == dim_count;
    for (int32_t d = 0; same && d < dim_count; d++)
        same = entry->desc.dim[d] == dim[d];
    if (same)
        return DSC_OK;
    char saved[80], wanted[80];
    shape_text(saved, sizeof saved, entry->desc.dim, entry->desc.dim_count);
    shape_text(wanted, sizeof wanted, dim, dim_count);
    return DSC_FAIL(err, DSC_ERR_INPUT, where, "\"%s%s%.200s\" has the shape [%s]; the model's is [%s]", prefix, point,
                    spec->name, saved, wanted);
}

/* Another optimizer's states mean something else, and to begin them at zero would be another run. */
static dsc_status check_optimizer(const load_job *j, dsc_error *err)
{
    const dsc_recipe saved = j->reader.manifest.state.recipe;
    DSC_ASSERT(saved < DSC_RECIPE_COUNT);
    if (saved == j->recipe)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(j->reader.file[DSC_CKPT_OPTIMIZER]),
                    "saved by %s, and this "
                    "run's optimizer is %s; resume with that one, or begin from the weights: --model DIR/step-N",
                    dsc_recipes[saved].name, dsc_recipes[j->recipe].name);
}

/* A conversion works element by element. It cannot make codes with an absmax for each block, nor read them. */
static dsc_status check_moments(const load_job *j, const dsc_run_state *now, dsc_error *err)
{
    const dsc_dtype saved = j->reader.manifest.state.moment_dtype;
    DSC_ASSERT(now->recipe == j->recipe);
    if ((saved == DSC_U8) == (now->moment_dtype == DSC_U8) || dsc_recipe_states_most(j->recipe) == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(j->reader.file[DSC_CKPT_OPTIMIZER]),
                    "moments were saved in %s, and this run keeps them in %s, which are not converted; resume with "
                    "\"moments\": \"%s\" in \"dsc\", or begin from the weights: --model DIR/step-N",
                    dsc_dtype_text(saved), dsc_dtype_text(now->moment_dtype), dsc_dtype_text(saved));
}

/* A rank that has none of the files compares the manifest. */
static dsc_status check_buffers(const load_job *j, const char *step_dir, dsc_error *err)
{
    const bool there = j->reader.manifest.file[DSC_CKPT_BUFFERS].bytes >= 0;
    DSC_ASSERT(j->reader.far || there == (j->reader.buffers.text != NULL));
    if (!j->reader.far)
        return dsc_ckpt_buffer_file_match(&j->reader.buffers, &j->c->buffers, step_dir, err);
    if (there == (j->c->buffers.count > 0))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, step_dir, "the checkpoint has %s; the model has %d",
                    there ? "buffers" : "no buffers", (int)j->c->buffers.count);
}

/* Every rank has all of them: its own reading, or where hosts have folders of their own the first reader's. */
static dsc_status load_buffers(const load_job *j, const dsc_ckpt_slices_load *t, dsc_error *err)
{
    const dsc_ckpt_buffers *buffers = &j->c->buffers;
    DSC_ASSERT(t->spread != NULL || !j->reader.far);
    if (!j->reader.far && buffers->count > 0)
        dsc_ckpt_buffer_file_load(&j->reader.buffers, buffers);
    for (int32_t b = 0; b < buffers->count && t->spread != NULL; b++) {
        const dsc_ckpt_buffer *buffer = &buffers->buffer[b];
        const int64_t bytes = buffer->spec->count * (buffer->spec->kind == DSC_BUFFER_STEPS ? 8 : 4);
        void *const values[] = { buffer->value, buffer->average };
        for (int k = 0; k < (buffer->average != NULL ? 2 : 1); k++)
            DSC_TRY(dsc_comm_broadcast(j->c->comm, DSC_CHANNEL_CONTROL, values[k], bytes, t->spread->first_with[0],
                                       NULL, err));
    }
    return DSC_OK;
}

static dsc_status check_model(const load_job *j, const char *step_dir, const dsc_run_state *now, dsc_error *err)
{
    const dsc_layout *layout = j->c->layout;
    const dsc_ckpt_reader *reader = &j->reader;
    DSC_ASSERT(j->recipe < DSC_RECIPE_COUNT);
    int64_t wanted = 0;
    DSC_TRY(check_optimizer(j, err));
    DSC_TRY(check_moments(j, now, err));
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        wanted += dsc_ckpt_saved_planes(&reader->manifest.state, DSC_CKPT_WEIGHTS, layout, tensor);
        for (int plane = DSC_CKPT_WEIGHTS; plane < DSC_CKPT_PLANE_COUNT; plane++)
            if (dsc_ckpt_saved_planes(&reader->manifest.state, (dsc_ckpt_plane)plane, layout, tensor))
                DSC_TRY(check_tensor(reader, tensor, (dsc_ckpt_plane)plane, err));
    }
    const int64_t count = dsc_safetensors_count(reader->file[DSC_CKPT_MODEL]);
    if (count != wanted)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[DSC_CKPT_MODEL]),
                        "%lld tensors; the "
                        "model has %lld%s",
                        (long long)count, (long long)wanted,
                        wanted < layout->tensor_count ? " beside weights in 4 bits, which no checkpoint has" : "");
    DSC_TRY(check_buffers(j, step_dir, err));
    const char *adapter = j->c->model->adapter_json;
    if (adapter == NULL || reader->manifest.file[DSC_CKPT_ADAPTER].bytes < 0 || reader->far)
        return DSC_OK;
    return dsc_ckpt_adapter_check(j->c->io, j->c->alloc, step_dir, adapter, err);
}

/* Going on from a step that is not the folder's last: the run will come to the later ones again, maybe in hours. */
static void warn_later_steps(const dsc_ckpt_ctx *c, const char *step_dir, int64_t step)
{
    DSC_ASSERT(step >= 0);
    char dir[DSC_CKPT_PATH_BYTES], **names = NULL;
    int64_t count = 0, later = 0;
    if (dsc_ckpt_step_of(step_dir) < 0)
        return;
    snprintf(dir, sizeof dir, "%s", step_dir);
    for (size_t end = strlen(dir); end > 0 && dir[end - 1] == '/'; end--)
        dir[end - 1] = 0;
    char *slash = strrchr(dir, '/');
    if (slash == NULL)
        snprintf(dir, sizeof dir, ".");
    else
        slash[slash == dir ? 1 : 0] = 0;
    if (dsc_io_list(c->io, c->alloc, dir, &names, &count, NULL) != DSC_OK)
        return; /* only a warning is lost */
    for (int64_t i = 0; i < count; i++)
        if (dsc_ckpt_is_step_name(names[i])) {
            const int64_t other = strtoll(names[i] + 5, NULL, 10);
            later = other > step && (later == 0 || other < later) ? other : later;
        }
    dsc_io_list_free(c->alloc, names, count);
    if (later > 0)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "resume: %s already holds step-%lld; a save of that step into this "
                       "folder keeps it when the tensors come out the same, and is refused otherwise", dir,
                       (long long)later);
}

static dsc_status find_for_all_ranks(const dsc_ckpt_ctx *c, const char *dir, char step_dir[DSC_CKPT_PATH_BYTES],
                                     dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    memset(step_dir, 0, DSC_CKPT_PATH_BYTES);
    if (dsc_comm_rank(c->comm) == 0)
        status = dsc_ckpt_find(c->io, c->alloc, dir, step_dir, DSC_CKPT_PATH_BYTES, &mine);
    DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
    return dsc_comm_broadcast(c->comm, DSC_CHANNEL_CONTROL, step_dir, DSC_CKPT_PATH_BYTES, 0, NULL, err);
}

/* The reader of a folder that all ranks see; a part of a checkpoint is none to load. */
static dsc_status open_common(const dsc_ckpt_ctx *c, const char *step_dir, dsc_ckpt_reader *reader, bool *open,
                              dsc_error *err)
{
    DSC_ASSERT(!*open);
    DSC_TRY(dsc_ckpt_reader_open(c->io, c->alloc, step_dir, reader, err));
    *open = true;
    return dsc_ckpt_refuse_part(reader, step_dir, err);
}

/* One pass over what this rank takes, after what it has found `before`. */
static dsc_status pass(const dsc_ckpt_slices_load *t, bool copy, dsc_status before, const dsc_error *why,
                       dsc_error *err)
{
    dsc_error mine = *why;
    dsc_status status = before == DSC_OK ? dsc_ckpt_load_slices(t, copy, &mine) : before;
    DSC_TRY(dsc_ckpt_agree(t->c, status, &mine, err));
    if (t->spread == NULL)
        return DSC_OK;
    status = dsc_ckpt_load_sent(t, copy, &mine);
    return dsc_ckpt_agree(t->c, status, &mine, err);
}

/* `before` and `why`: what opening it has come to on this rank. */
static dsc_status load_from(load_job *j, const dsc_ckpt_slices_load *t, bool once, const dsc_run_state *now,
                            dsc_run_state *out, dsc_status before, const dsc_error *why, bool *changed, dsc_error *err)
{
    const dsc_ckpt_ctx *c = j->c;
    DSC_ASSERT(!*changed); /* every check comes before the first write */
    dsc_error mine = *why;
    const dsc_status status = before == DSC_OK ? check_model(j, t->step_dir, now, &mine) : before;
    if (once) { /* no rank writes before all have found the files, the manifest and the shapes good */
        DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
        *changed = true;
    }
    DSC_TRY(pass(t, once, status, &mine, err));
    *out = j->reader.manifest.state;
    out->gemm_plans = out->settings = NULL;
    dsc_ckpt_warn_differences(c, now, &j->reader.manifest.state);
    dsc_ckpt_warn_model(c, &j->reader, t->step_dir);
    if (dsc_comm_rank(c->comm) == 0)
        warn_later_steps(c, t->step_dir, out->step);
    if (!once) {
        *changed = true;
        DSC_TRY(pass(t, true, DSC_OK, &mine, err));
    }
    DSC_TRY(load_buffers(j, t, err));
    out->gemm_plans = j->reader.manifest.state.gemm_plans;
    j->reader.manifest.state.gemm_plans = NULL;
    return DSC_OK;
}

dsc_status dsc_ckpt_load(const dsc_ckpt_ctx *ctx, const char *dir, bool once, const dsc_run_state *now,
                         dsc_run_state *out, bool *changed, dsc_error *err)
{
    DSC_ASSERT(ctx->threads >= 1);
    DSC_ASSERT(ctx->buffer.bytes >= DSC_CKPT_BUFFER_BYTES);
    char step_dir[DSC_CKPT_PATH_BYTES];
    load_job job = { .c = ctx, .recipe = now->recipe };
    dsc_ckpt_spread spread = { 0 };
    dsc_ckpt_slices_load take = {
        .c = ctx, .reader = &job.reader, .step_dir = step_dir, .dtype = now->compute_dtype, .recipe = now->recipe
    };
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    bool open = false;
    *changed = false;
    if (ctx->node_local) {
        DSC_TRY(dsc_ckpt_spread_open(ctx, dir, step_dir, &job.reader, &spread, err));
        open = true;
        take.spread = spread.everywhere ? NULL : &spread;
    } else {
        DSC_TRY(find_for_all_ranks(ctx, dir, step_dir, err));
        status = open_common(ctx, step_dir, &job.reader, &open, &mine);
    }
    status = load_from(&job, &take, once, now, out, status, &mine, changed, err);
    if (open)
        dsc_ckpt_reader_close(&job.reader);
    dsc_ckpt_spread_close(&spread);
    return status;
}
