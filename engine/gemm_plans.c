/* gemm_plans.c - choice of an algorithm for each matrix product and of a kernel for each attention and convolution.
 *
 * Rank 0 measures once, all ranks use its choice, and a checkpoint stores the choice. The first rank of each further
 * pipeline stage measures the products that no stage before has. The bits of a run therefore depend neither on the rank
 * nor on the time of the measurement. Choices in the checkpoint that the run loads, or in the user's file
 * (plans_file.c), are not measured again for the same card and library. A rank whose card or library differs from rank
 * 0's uses its library's defaults. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/clock.h"
#include "engine/internal.h"

/* The checkpoint that this run goes on from, as far as the config tells before it is loaded: a restart's is in the
 * folder of saves. "": none. */
static const char *loaded_from(const dsc_engine *engine)
{
    const dsc_ext_config *own = &engine->config.own;
    if (own->load[0] != 0 && strcmp(own->load, "auto") != 0)
        return own->load;
    return strcmp(own->save, "auto") != 0 ? own->save : "";
}

/* *from: the checkpoint that had algorithms, for any card; NULL: none. The load reports a file that cannot be read. */
static dsc_status take_from_checkpoint(dsc_engine *engine, const char **from, dsc_error *err)
{
    const char *dir = loaded_from(engine);
    char *text = NULL;
    int64_t others = 0;
    dsc_status status = DSC_OK;
    *from = NULL;
    if (dir[0] == 0 || dsc_ckpt_gemm_plans(&engine->io, engine->alloc, dir, &text, NULL) != DSC_OK)
        return DSC_OK;
    if (text != NULL) {
        status = dsc_gemm_plans_set(engine->device, text, &others, err);
        *from = dir;
    }
    dsc_alloc_free(engine->alloc, text);
    return status;
}

/* Only cards that have two kernels say anything. */
static void tell_attention(const dsc_engine *engine, const dsc_attention_tried *found)
{
    if (found->cannot_start)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                       "attention: the kernels of warpgroups have fewer registers at "
                       "their start than they share out, so all passes take the slower ones that all GPUs have; build "
                       "the plugin with nvcc 13 and without -G and -maxrregcount");
    if (found->wrong > 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "attention: the kernel of warpgroups gives wrong numbers on this "
                       "GPU for %d of %d passes, which take the one that all GPUs have; please report it",
                       (int)found->wrong, (int)found->shapes);
    if (found->shapes == 0 || found->wrong == found->shapes)
        return;
    dsc_log_printf(&engine->log, DSC_LOG_INFO, "attention: %d of %d passes tried, %d take the kernel of warpgroups",
                   (int)found->tried, (int)found->shapes, (int)found->changed);
    if (found->stored_wrong > 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                       "attention: stored score gradients give wrong numbers on this "
                       "GPU for %d of %d passes, which compute them twice; please report it",
                       (int)found->stored_wrong, (int)found->stored_tried);
    if (found->stored_taken > 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO,
                       "attention: %d of %d backward passes are faster with stored score "
                       "gradients",
                       (int)found->stored_taken, (int)found->stored_tried);
}

/* Only where cuDNN is wanted for a shape. `of`: "attention". */
static void tell_cudnn(const dsc_engine *engine, const char *of, dsc_cudnn_use use, const dsc_cudnn_tried *found)
{
    const long long number = (long long)found->number;
    if (found->note[0] != 0)
        dsc_log_printf(&engine->log, use == DSC_CUDNN_ALWAYS ? DSC_LOG_WARNING : DSC_LOG_INFO,
                       "cuDNN: %s has %s by dsc's own kernels: %.250s", found->shapes > 0 ? "a shape" : "this run", of,
                       found->note);
    if (found->wrong > 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                       "cuDNN %lld.%lld.%lld gives wrong numbers or other bits each "
                       "time on this GPU for %d of %d passes of %s, which take dsc's own kernels",
                       number / 10000, number / 100 % 100, number % 100, (int)found->wrong, (int)found->shapes, of);
    if (found->shapes > 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO,
                       "cuDNN %lld.%lld.%lld: %d of %d passes of %s take it, %d are "
                       "faster without, for %d there is no memory for a trial",
                       number / 10000, number / 100 % 100, number % 100, (int)found->taken, (int)found->shapes, of,
                       (int)found->slower, (int)found->untried);
}

/* `file`: of algorithms; "": none. */
static dsc_status measure(dsc_engine *engine, const char *file, dsc_error *err)
{
    dsc_gemm_measured found = { 0 };
    const bool first = engine->config.own.gemm_plans == DSC_GEMM_FIRST;
    const char *from;
    bool is_file;
    const int64_t start_ns = dsc_clock_ns();
    DSC_TRY(dsc_engine_take_plans_file(engine, file, &is_file, err));
    DSC_TRY(take_from_checkpoint(engine, &from, err)); /* the later text counts */
    from = from != NULL ? from : is_file ? file : NULL;
    const dsc_ext_config *own = &engine->config.own;
    if (first && own->attention != DSC_CUDNN_ALWAYS && own->convolutions != DSC_CUDNN_ALWAYS)
        return DSC_OK;
    DSC_TRY(dsc_gemm_measure(engine->compute, engine->config.own.gemm_plans, engine->plan.chunk_bytes, &found, err));
    tell_cudnn(engine, "attention", own->attention, &found.attention.cudnn);
    tell_cudnn(engine, "convolutions", own->convolutions, &found.convolutions);
    if (first)
        return DSC_OK;
    if (found.products == 0 && from != NULL)
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "matrix products: with the algorithms of %.200s, none measured",
                       from);
    else
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "matrix products: %d of %d measured in %.1f s, %d take another "
                       "algorithm than cuBLASLt's first choice%s%.200s", (int)found.measured, (int)found.products,
                       (double)(dsc_clock_ns() - start_ns) * 1e-9, (int)found.changed,
                       from == NULL ? "" : "; not for this GPU, cuBLASLt and shapes in ", from == NULL ? "" : from);
    if (found.unrepeatable > 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "matrix products: %d give other bias gradients each time that they "
                       "run; a kernel of its own computes those", (int)found.unrepeatable);
    tell_attention(engine, &found.attention);
    return DSC_OK;
}

/* Products that run, and much slower than the user would expect. */
static void tell_slow(const dsc_engine *engine)
{
    char text[512];
    for (int64_t i = 0; dsc_gemm_slow(engine->device, i, text, sizeof text); i++)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "matrix products: a plain kernel, tens of times slower than "
                       "cuBLASLt, computes %.300s", text);
}

/* This rank's plans as text, which becomes engine->gemm_plans. */
static dsc_status read_plans(dsc_engine *engine, dsc_error *err)
{
    int64_t bytes = 0;
    char *text = NULL;
    DSC_TRY(dsc_gemm_plans_get(engine->device, NULL, 0, &bytes, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, bytes + 1, 1, &text, err));
    dsc_alloc_free(engine->alloc, engine->gemm_plans);
    engine->gemm_plans = text;
    return dsc_gemm_plans_get(engine->device, text, bytes + 1, &bytes, err);
}

/* Lines that `text` has not are put behind it. */
static dsc_status merge_plans(dsc_engine *engine, const char *text, dsc_error *err)
{
    char *const own = engine->gemm_plans, *all = NULL;
    size_t used = strlen(text);
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, (int64_t)(used + strlen(own) + 2), 1, &all, err));
    memcpy(all, text, used);
    for (const char *line = own, *end; *line != 0; line = end) {
        end = strchr(line, '\n') != NULL ? strchr(line, '\n') + 1 : line + strlen(line);
        char *const at = all + used;
        memcpy(at, line, (size_t)(end - line));
        at[end - line] = 0;
        if (strstr(text, at) == NULL)
            used += (size_t)(end - line);
        at[used - (size_t)(at - all)] = 0;
    }
    dsc_alloc_free(engine->alloc, own);
    engine->gemm_plans = all;
    return DSC_OK;
}

/* `before`: lines of the stages before, which have the same products; NULL: none. */
static dsc_status measure_and_read(dsc_engine *engine, const char *before, dsc_error *err)
{
    char file[DSC_PLANS_PATH_BYTES];
    int64_t others;
    if (before != NULL)
        DSC_TRY(dsc_gemm_plans_set(engine->device, before, &others, err));
    tell_slow(engine);
    DSC_TRY(dsc_engine_name_plans_file(engine, file, err));
    DSC_TRY(measure(engine, file, err));
    DSC_TRY(read_plans(engine, err));
    if (engine->config.own.gemm_plans != DSC_GEMM_FIRST)
        dsc_engine_write_plans_file(engine, file);
    return before != NULL ? merge_plans(engine, before, err) : DSC_OK;
}

/* That rank's text to everyone. */
static dsc_status share(dsc_engine *engine, int32_t from, dsc_error *err)
{
    const bool mine = engine->place.rank == from;
    int64_t bytes = mine ? (int64_t)strlen(engine->gemm_plans) + 1 : 0;
    DSC_TRY(dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, &bytes, sizeof bytes, from, NULL, err));
    if (!mine) {
        dsc_alloc_free(engine->alloc, engine->gemm_plans);
        engine->gemm_plans = NULL;
        DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, bytes, 1, &engine->gemm_plans, err));
    }
    return dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, engine->gemm_plans, bytes, from, NULL, err);
}

/* The first rank of a stage measures the products that no stage before has. */
static dsc_status measure_stage(dsc_engine *engine, int32_t stage, dsc_error *err)
{
    const dsc_ckpt_ctx ctx = { .comm = engine->comms.all, .stream = engine->compute, .buffer = engine->io_buf };
    const int32_t first = stage * engine->stages.grid.data;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    if (engine->place.rank == first) {
        char *const before = engine->gemm_plans;
        engine->gemm_plans = NULL;
        status = measure_and_read(engine, before, &mine);
        dsc_alloc_free(engine->alloc, before);
    }
    DSC_TRY(dsc_ckpt_agree(&ctx, status, &mine, err));
    return engine->place.size > 1 ? share(engine, first, err) : DSC_OK;
}

/* How many products of all ranks do not go by the text. */
static dsc_status count_others(dsc_engine *engine, int64_t mine, int64_t *all, dsc_error *err)
{
    int64_t *of_rank = NULL;
    const int32_t size = engine->place.size;
    *all = 0;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, size, sizeof *of_rank, &of_rank, err));
    const dsc_status status = dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, of_rank, &mine,
                                                  (int64_t)sizeof mine, DSC_U8, NULL, err);
    for (int32_t r = 0; r < size; r++)
        *all += of_rank[r];
    dsc_alloc_free(engine->alloc, of_rank);
    return status;
}

dsc_status dsc_engine_choose_plans(dsc_engine *engine, dsc_error *err)
{
    int64_t others = 0, all = 0;
    if (!dsc_gemm_has_plans(engine->device))
        return DSC_OK;
    for (int32_t s = 0; s < engine->stages.grid.pipeline; s++)
        DSC_TRY(measure_stage(engine, s, err));
    if (engine->place.size == 1)
        return DSC_OK;
    DSC_TRY(dsc_gemm_plans_set(engine->device, engine->gemm_plans, &others, err));
    DSC_TRY(count_others(engine, others, &all, err));
    if (all > 0 && engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "not all ranks have rank 0's GPU and cuBLASLt, so not all take "
                       "its algorithms for matrix products; bits depend on which rank computes what");
    return DSC_OK;
}

dsc_status dsc_engine_set_plans(dsc_engine *engine, const char *text, dsc_error *err)
{
    int64_t others = 0;
    if (!dsc_gemm_has_plans(engine->device))
        return DSC_OK;
    DSC_TRY(dsc_gemm_plans_set(engine->device, text != NULL ? text : "", &others, err));
    if (others > 0 && engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                       "resume: for %lld kind%s of matrix products, attentions or convolutions "
                       "the checkpoint has no algorithm that this GPU and cuBLASLt have; they go on as measured now, "
                       "bits may differ",
                       (long long)others, others == 1 ? "" : "s");
    DSC_TRY(read_plans(engine, err));
    return text != NULL && dsc_stages_are_used(&engine->stages) ? merge_plans(engine, text, err) : DSC_OK;
}
