/* error.h - errors are values: a status, and one caller-owned object that says what and where.
 *
 * The library never prints and never exits. A program prints dsc_error.message once and ends with
 * dsc_status_exit_code(). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ERROR_H
#define DSC_ERROR_H

#include <stdarg.h>

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, number, exit code of a program that ends with it, text */
#define DSC_STATUS_MAP(X)                                                              \
    X(OK, 0, 0, "success")                                                             \
    X(ERR_CONFIG, 1, 2, "invalid configuration")                                       \
    X(ERR_INPUT, 2, 2, "invalid input file, argument or data")                         \
    X(ERR_UNSUPPORTED, 3, 2, "valid, but not built in this version")                   \
    X(ERR_NOMEM, 4, 3, "out of memory")                                                \
    X(ERR_NOFIT, 5, 3, "the plan does not fit")                                        \
    X(ERR_IO, 6, 1, "a file operation failed")                                         \
    X(ERR_COMM, 7, 1, "a collective failed")                                           \
    X(ERR_PEER, 8, 4, "a peer, host or agent was lost")                                \
    X(ERR_STUCK, 9, 5, "a rank is stuck")                                              \
    X(ERR_STATE, 10, 1, "called in the wrong state or with a wrong argument")          \
    X(ERR_NUMERIC, 11, 1, "a number that cannot be trained with (Inf or NaN)")         \
    X(ERR_CANCELLED, 12, 1, "cancelled")                                               \
    X(ERR_INTERNAL, 13, 1, "a bug in dsc")                                             \
    X(ERR_DEVICE, 14, 1, "a device or its driver failed")

typedef enum dsc_status {
#define DSC_STATUS_ENUM(name, number, exit_code, text) DSC_##name = number,
    DSC_STATUS_MAP(DSC_STATUS_ENUM)
#undef DSC_STATUS_ENUM
} dsc_status;

/* Filled on failure, untouched on success; plain memory, nothing to free; every function takes NULL. */
typedef struct dsc_error {
    dsc_status status;
    int32_t rank;       /* the rank that failed, -1 when not tied to one */
    char where[256];    /* "file:line:col", a config key ("optimizer.params.lr") or "" */
    char message[512];  /* the fault, the expected value, the remedy */
    const char *file;   /* source position of the first report; static string */
    int32_t line;
} dsc_error;

#define DSC_ERROR_INIT { DSC_OK, -1, "", "", NULL, 0 }

DSC_API const char *dsc_status_text(dsc_status status);
/* The exit code of the command-line contract: 0 done, 1 failed, 2 bad input, 3 does not fit, 4 peer lost, 5 stuck. */
DSC_API int dsc_status_exit_code(dsc_status status);
/* Writes "where: message", or the non-empty part, into text[text_bytes], always terminated. Returns text. */
DSC_API const char *dsc_error_format(const dsc_error *err, char *text, size_t text_bytes);

/* Fills *err (when not NULL) and returns `status`. Control bytes in the text are replaced by '?', so that hostile
 * file content cannot reach a terminal. Use DSC_FAIL. */
DSC_API dsc_status dsc_error_set(dsc_error *err, const char *file, int line, dsc_status status, const char *where,
                                 const char *fmt, ...) DSC_PRINTF(6, 7);

#define DSC_FAIL(err, status, where, ...) dsc_error_set((err), __FILE__, __LINE__, (status), (where), __VA_ARGS__)

/* Forwards a failure. */
#define DSC_TRY(call)                                   \
    do {                                                \
        const dsc_status dsc_try_status_ = (call);      \
        if (dsc_try_status_ != DSC_OK)                  \
            return dsc_try_status_;                     \
    } while (0)

/* Forwards a failure to the label `out`, with the local variable `status` set. */
#define DSC_TRY_OUT(call)             \
    do {                              \
        status = (call);              \
        if (status != DSC_OK)         \
            goto out;                 \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
