/* log.h - the library never prints: it hands lines to the program. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LOG_H
#define DSC_LOG_H

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_log_level { DSC_LOG_ERROR, DSC_LOG_WARNING, DSC_LOG_INFO, DSC_LOG_DEBUG } dsc_log_level;

/* `text` is one line without its newline, borrowed until the call returns. May be called from any thread of the
 * engine, never from two at once for one engine. fn = NULL drops every line. */
typedef struct dsc_log {
    void (*fn)(void *user, dsc_log_level level, const char *text);
    void *user;
} dsc_log;

/* Formats and hands over; longer than 1023 bytes is cut. `log` may be NULL. */
DSC_API void dsc_log_printf(const dsc_log *log, dsc_log_level level, const char *fmt, ...) DSC_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif
