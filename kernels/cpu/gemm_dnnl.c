/* gemm_dnnl.c - one product of a tile by oneDNN, on one thread, with scratch that we give it.
 *
 * The C APIs of 2.x and 3.x differ in the descriptors only. The library decides its blocking when a primitive is
 * made, from the number of threads that it may use then. So primitives are made and run with that number set to 1
 * for the calling task (omp_set_num_threads acts on the calling task alone; the old value is restored). For this
 * reason the bits depend on the shape only. SPDX-License-Identifier: Apache-2.0 */
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/gemm_internal.h"

struct dsc_gemm_lib {
    dsc_alloc *alloc;
    dnnl_engine_t engine;
    int32_t threads;
    dnnl_stream_t stream[]; /* [threads] */
};

enum { MEM_A, MEM_B, MEM_C, MEM_SCRATCH, MEM_COUNT };

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t desc;     /* owned */
typedef const_dnnl_memory_desc_t desc_ref;
#define REF(d) (d)
static dnnl_status_t desc_make(desc *out, int64_t rows, int64_t cols, dnnl_data_type_t type, int64_t ld,
                               bool transposed)
{
    const dnnl_dims_t dims = { rows, cols }, strides = { transposed ? 1 : ld, transposed ? ld : 1 };
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}
static void desc_drop(desc *d)
{
    if (*d != NULL)
        dnnl_memory_desc_destroy(*d);
}
static dnnl_status_t product_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, desc d[3],
                                  dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, d[0], d[1], NULL, d[2], attr);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
#else
typedef dnnl_memory_desc_t desc; /* a value */
typedef const dnnl_memory_desc_t *desc_ref;
#define REF(d) (&(d))
static dnnl_status_t desc_make(desc *out, int64_t rows, int64_t cols, dnnl_data_type_t type, int64_t ld,
                               bool transposed)
{
    dnnl_dims_t dims = { rows, cols }, strides = { transposed ? 1 : ld, transposed ? ld : 1 };
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}
static void desc_drop(desc *d) { (void)d; }
static dnnl_status_t product_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, desc d[3],
                                  dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t product;
    const dnnl_status_t status = dnnl_matmul_desc_init(&product, &d[0], &d[1], NULL, &d[2]);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(out, &product, attr, engine, NULL);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }
#endif

dsc_status dsc_gemm_lib_fail(int status, const char *call, dsc_error *err)
{
    const dnnl_version_t *v = dnnl_version();
    return DSC_FAIL(err, status == (int)dnnl_out_of_memory ? DSC_ERR_NOMEM : DSC_ERR_INTERNAL, "oneDNN",
                    "%s failed with status %d in oneDNN %d.%d.%d", call, status, v->major, v->minor, v->patch);
}

/* oneDNN sets up AMX with the tiles that the CPU names, also none, and its first product is an illegal instruction
 * then. Its limit is the process's, and holds if nobody has used it before. */
static dsc_status leave_out_amx(dsc_error *err)
{
    const bool users = getenv("ONEDNN_MAX_CPU_ISA") != NULL || getenv("DNNL_MAX_CPU_ISA") != NULL;
    if (!dsc_cpu_hides_tiles())
        return DSC_OK;
    if (!users)
        (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16); /* refused also when it is set already */
    if ((dnnl_get_effective_cpu_isa() & ~dnnl_cpu_isa_avx512_core_bf16) == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "oneDNN", "this machine offers AMX without the size of its tiles, which "
                    "ends programs; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16");
}

void dsc_gemm_lib_enter(dsc_gemm_lib_saved *saved)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
    sigset_t held;
    sigfillset(&held);
    for (size_t i = 0; i < DSC_COUNT(faults); i++)
        sigdelset(&held, faults[i]);
    pthread_sigmask(SIG_BLOCK, &held, &saved->signals);
    saved->threads = omp_get_max_threads();
    omp_set_num_threads(1);
}

void dsc_gemm_lib_leave(const dsc_gemm_lib_saved *saved)
{
    omp_set_num_threads(saved->threads);
    pthread_sigmask(SIG_SETMASK, &saved->signals, NULL);
}

dsc_status dsc_gemm_lib_open(dsc_alloc *alloc, int32_t threads, dsc_gemm_lib **out, dsc_error *err)
{
    dsc_gemm_lib *lib;
    *out = NULL;
    DSC_TRY(leave_out_amx(err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1,
                             (int64_t)(sizeof *lib + (size_t)threads * sizeof lib->stream[0]), &lib, err));
    lib->alloc = alloc;
    lib->threads = threads;
    dnnl_status_t status = dnnl_engine_create(&lib->engine, dnnl_cpu, 0);
    for (int32_t t = 0; t < threads && status == dnnl_success; t++)
        status = dnnl_stream_create(&lib->stream[t], lib->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        dsc_gemm_lib_close(&lib);
        return dsc_gemm_lib_fail((int)status, "dnnl_engine_create or dnnl_stream_create", err);
    }
    *out = lib;
    return DSC_OK;
}

void dsc_gemm_lib_close(dsc_gemm_lib **lib)
{
    if (lib == NULL || *lib == NULL)
        return;
    for (int32_t t = 0; t < (*lib)->threads; t++)
        if ((*lib)->stream[t] != NULL)
            dnnl_stream_destroy((*lib)->stream[t]);
    if ((*lib)->engine != NULL)
        dnnl_engine_destroy((*lib)->engine);
    dsc_alloc_free((*lib)->alloc, *lib);
    *lib = NULL;
}

static dnnl_status_t attributes(dnnl_primitive_attr_t *out, bool accumulate)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && accumulate) {
        status = dnnl_post_ops_create(&ops);
        if (status == dnnl_success)
            status = append_sum(ops);
        if (status == dnnl_success)
            status = dnnl_primitive_attr_set_post_ops(*out, ops);
        if (ops != NULL)
            dnnl_post_ops_destroy(ops);
    }
    return status;
}

/* The primitive, and every thread's four memory objects without data. */
static dnnl_status_t make(dsc_gemm_lib *lib, dsc_gemm_prim *prim, desc d[3], dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_status_t status = product_desc(&pd, lib->engine, d, attr);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&primitive, pd);
    prim->primitive = primitive;
    const desc_ref scratch =
        status == dnnl_success ? dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0) : NULL;
    prim->scratch_bytes = scratch != NULL ? (int64_t)dnnl_memory_desc_get_size(scratch) : 0;
    for (int32_t t = 0; t < lib->threads; t++)
        for (int32_t i = 0; i < MEM_COUNT && status == dnnl_success; i++) {
            dnnl_memory_t memory = NULL;
            status = dnnl_memory_create(&memory, i == MEM_SCRATCH ? scratch : REF(d[i]), lib->engine, DNNL_MEMORY_NONE);
            prim->memory[t * MEM_COUNT + i] = memory;
        }
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    return status;
}

dsc_status dsc_gemm_lib_make(dsc_gemm_lib *lib, dsc_gemm_prim *prim, dsc_error *err)
{
    const dsc_gemm_key *k = &prim->key;
    const dnnl_data_type_t type = k->bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_primitive_attr_t attr = NULL;
    desc d[3];
    memset(d, 0, sizeof d);
    dsc_gemm_lib_saved saved;
    dsc_gemm_lib_enter(&saved);
    dnnl_status_t status = desc_make(&d[MEM_A], k->m, k->k, type, k->lda, k->a_transposed != 0);
    if (status == dnnl_success)
        status = desc_make(&d[MEM_B], k->k, k->n, type, k->ldb, k->b_transposed != 0);
    if (status == dnnl_success)
        status = desc_make(&d[MEM_C], k->m, k->n, dnnl_f32, k->ldc, false);
    if (status == dnnl_success)
        status = attributes(&attr, k->accumulate != 0);
    if (status == dnnl_success)
        status = make(lib, prim, d, attr);
    if (attr != NULL)
        dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 3; i++)
        desc_drop(&d[i]);
    dsc_gemm_lib_leave(&saved);
    if (status == dnnl_success)
        return DSC_OK;
    dsc_gemm_lib_drop(lib, prim);
    return dsc_gemm_lib_fail((int)status, "making a matmul", err);
}

void dsc_gemm_lib_drop(dsc_gemm_lib *lib, dsc_gemm_prim *prim)
{
    for (int32_t i = 0; i < lib->threads * MEM_COUNT; i++) {
        if (prim->memory[i] != NULL)
            dnnl_memory_destroy(prim->memory[i]);
        prim->memory[i] = NULL;
    }
    if (prim->primitive != NULL)
        dnnl_primitive_destroy(prim->primitive);
    prim->primitive = NULL;
}

static dnnl_status_t point(dnnl_memory_t memory, const void *data)
{
    const uintptr_t address = (uintptr_t)data; /* the API has one kind of pointer for what it reads and writes */
    return dnnl_memory_set_data_handle(memory, (void *)address);
}

int dsc_gemm_lib_run(dsc_gemm_lib *lib, const dsc_gemm_prim *prim, int32_t thread, const void *a, const void *b,
                     float *c, void *scratch)
{
    dnnl_memory_t *memory = (dnnl_memory_t *)(void *)&prim->memory[thread * MEM_COUNT];
    const void *data[MEM_COUNT] = { a, b, c, scratch };
    const dnnl_exec_arg_t args[MEM_COUNT] = { { DNNL_ARG_SRC, memory[MEM_A] },
                                              { DNNL_ARG_WEIGHTS, memory[MEM_B] },
                                              { DNNL_ARG_DST, memory[MEM_C] },
                                              { DNNL_ARG_SCRATCHPAD, memory[MEM_SCRATCH] } };
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < MEM_COUNT && status == dnnl_success; i++)
        status = point(memory[i], data[i]);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(prim->primitive, lib->stream[thread], MEM_COUNT, args);
    if (status == dnnl_success)
        status = dnnl_stream_wait(lib->stream[thread]);
    return (int)status;
}
