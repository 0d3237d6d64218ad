/* log.c - formats a line and hands it to the program. SPDX-License-Identifier: Apache-2.0 */
#include <dsc/log.h>

#include <stdarg.h>
#include <stdio.h>

#include "base/base.h"

void dsc_log_printf(const dsc_log *log, dsc_log_level level, const char *fmt, ...)
{
    if (log == NULL || log->fn == NULL)
        return;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dsc_text_printable(text);
    log->fn(log->user, level, text);
}
