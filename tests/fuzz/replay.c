/* replay.c - the plain main of a fuzz target: feeds it tests/fuzz/corpus/TARGET/ and seeded mutations of each file.
 *
 * X_fuzz            the corpus (run from the repository's root), as `make test` does; TAP. A million inputs with
 *                   DSC_TEST_NIGHT=1.
 * X_fuzz FILE...    these files alone: reproduces a crash
 * Built with clang -fsanitize=fuzzer the same targets search for themselves and do not use this file.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/rng.h"

#define MUTATIONS_PER_FILE 200
#define EXECUTIONS_A_NIGHT 1000000 /* at least so many, with DSC_TEST_NIGHT=1 */
#define FILE_BYTES_MAX (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void die(const dsc_error *err)
{
    char text[800];
    fprintf(stderr, "replay: %s\n", dsc_error_format(err, text, sizeof text));
    exit(1);
}

/* Exactly sized, so that a sanitizer sees a byte read too far. */
static void feed(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL)
        exit(1);
    memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

/* Changes, drops or doubles up to four bytes: `data` has room for as many more. */
static size_t mutate(uint8_t *data, size_t bytes, uint64_t round)
{
    const uint32_t edits = 1 + dsc_rng_u32(1, round, 0) % 4;
    for (uint32_t e = 0; e < edits && bytes > 0; e++) {
        const size_t at = dsc_rng_u32(1, round, 4 * e + 1) % bytes;
        const uint32_t value = dsc_rng_u32(1, round, 4 * e + 2);
        switch (dsc_rng_u32(1, round, 4 * e + 3) % 4) {
        case 0: data[at] = (uint8_t)value; break;
        case 1: data[at] ^= (uint8_t)(1u << value % 8); break;
        case 2: memmove(data + at, data + at + 1, --bytes - at); break;
        default: memmove(data + at + 1, data + at, bytes++ - at); break;
        }
    }
    return bytes;
}

static int64_t mutations_of(int64_t files)
{
    const char *night = getenv("DSC_TEST_NIGHT");
    if (night == NULL || strcmp(night, "1") != 0)
        return MUTATIONS_PER_FILE;
    return dsc_max_i64(MUTATIONS_PER_FILE, dsc_div_ceil(EXECUTIONS_A_NIGHT, dsc_max_i64(1, files)));
}

static void replay(const char *path, dsc_alloc *alloc, int64_t mutations)
{
    dsc_error err = DSC_ERROR_INIT;
    char *text = NULL;
    int64_t bytes = 0;
    if (dsc_io_read_all(NULL, alloc, path, FILE_BYTES_MAX, &text, &bytes, &err) != DSC_OK)
        die(&err);
    feed((const uint8_t *)text, (size_t)bytes);
    uint8_t *changed = malloc((size_t)bytes + 8);
    if (changed == NULL)
        exit(1);
    for (int64_t round = 0; round < mutations; round++) {
        memcpy(changed, text, (size_t)bytes);
        feed(changed, mutate(changed, (size_t)bytes, (uint64_t)round));
    }
    free(changed);
    dsc_alloc_free(alloc, text);
}

int main(int argc, char **argv)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        die(&err);
    for (int i = 1; i < argc; i++)
        replay(argv[i], alloc, 0);
    if (argc > 1) {
        dsc_alloc_close(&alloc);
        return 0;
    }
    const char *slash = strrchr(argv[0], '/');
    char target[128], dir[256], path[600];
    snprintf(target, sizeof target, "%s", slash != NULL ? slash + 1 : argv[0]);
    char *suffix = strstr(target, "_fuzz");
    if (suffix != NULL)
        *suffix = 0;
    snprintf(dir, sizeof dir, "tests/fuzz/corpus/%s", target);
    char **names = NULL;
    int64_t count = 0;
    if (dsc_io_list(NULL, alloc, dir, &names, &count, &err) != DSC_OK)
        die(&err);
    for (int64_t i = 0; i < count; i++) {
        if (dsc_path_join(path, sizeof path, dir, names[i], &err) != DSC_OK)
            die(&err);
        replay(path, alloc, mutations_of(count));
        printf("ok %lld - %s/%s and %lld mutations of it\n", (long long)i + 1, target, names[i],
               (long long)mutations_of(count));
        fflush(stdout);
    }
    printf("1..%lld\n", (long long)count);
    dsc_io_list_free(alloc, names, count);
    dsc_alloc_close(&alloc);
    return 0;
}
