/* parquet_api.h - functions of lib/dsc/libdsc_parquet.so: rows of a Parquet file as JSON lines, by Apache Arrow's C++
 * library. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_PARQUET_API_H
#define DSC_ENGINE_TEXT_PARQUET_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_PARQUET_API_VERSION 1u
#define DSC_PARQUET_SYMBOL "dsc_parquet_api_get"
#define DSC_PARQUET_TEXT 256

typedef struct dsc_parquet_file dsc_parquet_file;

typedef struct dsc_parquet_api {
    uint32_t version, table_bytes;
    char build[32];
    /* Arrow allocates at most `memory_bytes`. 0 and the number of rows, or 1 and the reason in why[DSC_PARQUET_TEXT].
     */
    int (*open)(const char *path, int64_t memory_bytes, dsc_parquet_file **out, int64_t *rows, char *why);
    /* The next rows, an object on each line; *bytes = 0 behind the last one. Borrowed until the next call. *done counts
     * rows. Returns as open does. */
    int (*next)(dsc_parquet_file *file, const char **text, int64_t *bytes, int64_t *done, char *why);
    void (*close)(dsc_parquet_file *file); /* NULL is fine */
} dsc_parquet_api;
/* DSC_PARQUET_SYMBOL: the one dsc_parquet_api. */
const void *dsc_parquet_api_get(void);

#ifdef __cplusplus
}
#endif
#endif
