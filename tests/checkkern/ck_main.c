/* ck_main.c - checkkern [--device cpu|cuda] [--fn GLOB] [--seed N] [--bench [--threads N | --cpu-time]]. TAP
 * on stdout. A program that has simulated GPUs in it checks those.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck_internal.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"

bool ck_matches(const char *name)
{
    return ck_set_up.fn == NULL || strcmp(ck_set_up.fn, name) == 0 || fnmatch(ck_set_up.fn, name, 0) == 0;
}

const char *ck_variant_name(uint32_t caps)
{
    if ((caps & CK_GPU) != 0)
        return "cuda";
    for (int32_t v = 0; v < CK_VARIANTS; v++)
        if (ck_variants[v].caps == caps)
            return ck_variants[v].name;
    return "?";
}

enum { STORE_THREADS = 8 };
static dsc_alloc *gemm_alloc;
static dsc_gemm_store *stores[CK_VARIANTS];

struct dsc_gemm_store *ck_gemm_store(uint32_t caps)
{
    dsc_error err = DSC_ERROR_INIT;
    int32_t v = 0;
    while (ck_variants[v].caps != caps)
        v++;
    if (stores[v] == NULL && (dsc_gemm_store_open(gemm_alloc, STORE_THREADS, caps, &stores[v], &err) != DSC_OK)) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
    return stores[v];
}

static int usage(void)
{
    fprintf(stderr,
            "usage: checkkern [--device cpu|cuda] [--fn GLOB] [--seed N] [--bench [--threads N | --cpu-time]]\n");
    return 2;
}

static void begin_cpu(void)
{
    printf("TAP version 13\n# seed %llu, this CPU runs:", (unsigned long long)ck_set_up.seed);
    for (int32_t v = 0; v < CK_VARIANTS; v++)
        if (ck_variant_runs(v, DSC_KERNEL_GEMM))
            printf(" %s", ck_variants[v].name);
    printf("\n");
}

/* Ends the program when there is no GPU: 77 is a skip with the last line as reason. */
static void begin_gpu(void)
{
    dsc_error err = DSC_ERROR_INIT;
    char text[400];
    if (!ck_device_open(&err)) {
        printf("%s\n", err.message);
        exit(err.status == DSC_ERR_UNSUPPORTED ? 77 : 1);
    }
    ck_device_describe(text, sizeof text);
    printf("TAP version 13\n# seed %llu, on %s\n", (unsigned long long)ck_set_up.seed, text);
}

/* Seconds of CPU time that this process has used. */
static double cpu_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs every op file and prints those of more than a second. The checker's own cases and the vector functions are the
 * CPU's. */
static void run_ops(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } ops[] = {
#define X(name) { #name, ck_##name },
#include "tests/checkkern/ck_ops.def"
#undef X
    };
    double seconds[DSC_COUNT(ops)] = { 0 };
    for (size_t i = 0; i < DSC_COUNT(ops); i++) {
        const double began = cpu_seconds();
        if (!ck_set_up.gpu || (strcmp(ops[i].name, "self") != 0 && strcmp(ops[i].name, "vmath") != 0))
            ops[i].run();
        seconds[i] = cpu_seconds() - began;
    }
    printf("# seconds of CPU time:");
    for (size_t i = 0; i < DSC_COUNT(ops); i++)
        if (seconds[i] > 1)
            printf(" %s %.1f", ops[i].name, seconds[i]);
    printf("\n");
}

int main(int argc, char **argv)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    ck_set_up.threads = cpus > 0 ? (int32_t)cpus : 1;
    const char *device = getenv("CK_DEVICE"); /* for those who run programs without arguments */
    ck_set_up.gpu = device != NULL ? strcmp(device, "cuda") == 0 : ck_device_is_simulated();
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--bench") == 0)
            ck_set_up.bench = true;
        else if (strcmp(argv[i], "--cpu-time") == 0)
            ck_set_up.cpu_time = true;
        else if (strcmp(argv[i], "--device") == 0 && more) {
            ck_set_up.gpu = strcmp(argv[++i], "cuda") == 0;
            if (!ck_set_up.gpu && strcmp(argv[i], "cpu") != 0)
                return usage();
        } else if (strcmp(argv[i], "--fn") == 0 && more)
            ck_set_up.fn = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0 && more)
            ck_set_up.seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--threads") == 0 && more)
            ck_set_up.threads = atoi(argv[++i]);
        else
            return usage();
    }
    if (ck_set_up.threads < 1)
        return usage();
    if (dsc_alloc_open(&gemm_alloc, NULL) != DSC_OK)
        return 1;
    if (ck_set_up.gpu)
        begin_gpu();
    else
        begin_cpu();
    run_ops();
    ck_case_end();
    ck_device_close();
    printf("1..%lld\n", (long long)ck_cases_run);
    if (ck_cases_run == 0)
        printf("# no case matches '%s'\n", ck_set_up.fn);
    for (int32_t v = 0; v < CK_VARIANTS; v++)
        dsc_gemm_store_close(&stores[v]);
    dsc_alloc_close(&gemm_alloc);
    return ck_cases_failed != 0 || ck_cases_run == 0;
}
