/* messages.c - where a value came from, in the file or on the command line, and the lines that are said about it:
 * failures, warnings, notes. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *dsc_config_where_item(const dsc_config_parse_state *s, const cJSON *item, char *out)
{
    return dsc_json_where(s->json, item, out, 256);
}

const char *dsc_config_where(const dsc_config_parse_state *s, int id, char *out)
{
    if (s->flag[id] != NULL)
        snprintf(out, 256, "%s", s->flag[id]);
    else if (s->given[id] != NULL)
        dsc_json_where(s->source[id], s->given[id], out, 256);
    else
        snprintf(out, 256, "%.255s", s->config->name);
    return out;
}

/* "name:12:9" -> 12, 9. */
static dsc_source_pos place_of_text(const char *where)
{
    dsc_source_pos place = { 0, 0 };
    const char *column = strrchr(where, ':'), *line = column;
    while (line != NULL && line > where && *--line != ':')
        ;
    if (line != NULL && line != column && *line == ':' && strspn(column + 1, "0123456789") == strlen(column + 1) &&
        column[1] != 0) {
        place.line = (int32_t)strtol(line + 1, NULL, 10);
        place.column = (int32_t)strtol(column + 1, NULL, 10);
    }
    return place;
}

const char *dsc_config_source_text(const dsc_config *config, dsc_source_pos place, char out[256])
{
    if (place.line > 0)
        snprintf(out, 256, "%.200s:%d:%d", config->name, (int)place.line, (int)place.column);
    else
        snprintf(out, 256, "%.255s", config->name);
    return out;
}

dsc_source_pos dsc_config_source_pos(const dsc_config_parse_state *s, int id)
{
    char where[256];
    dsc_source_pos nowhere = { 0, 0 };
    if (s->given[id] == NULL || s->flag[id] != NULL)
        return nowhere;
    return place_of_text(dsc_config_where(s, id, where));
}

dsc_status dsc_config_fail(const dsc_config_parse_state *s, int id, dsc_status status, const char *fmt, ...)
{
    char where[256], text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return DSC_FAIL(s->err, status, dsc_config_where(s, id, where), "%s: %s",
                    s->alias[id] != NULL ? s->alias[id] : dsc_config_keys[id].path, text);
}

static void line_print(char *line, const char *fmt, ...) DSC_PRINTF(2, 3);
static void line_print(char *line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, DSC_CONFIG_LINE, fmt, args);
    va_end(args);
    dsc_text_printable(line);
}

static dsc_status add_warning(dsc_config *config, const char *where, int32_t line, const char *path, dsc_error *err,
                              const char *text)
{
    if (config->unresolved.strict)
        return DSC_FAIL(err, DSC_ERR_CONFIG, where, "%s: %s (a warning; --strict makes it an error)", path, text);
    if (config->warning_count == DSC_WARNINGS_MAX) {
        line_print(config->warnings[DSC_WARNINGS_MAX - 1], "and more warnings than fit here");
        return DSC_OK;
    }
    char *to = config->warnings[config->warning_count++];
    if (line > 0)
        line_print(to, "%s (line %d): %s", path, (int)line, text);
    else
        line_print(to, "%s: %s", path, text);
    return DSC_OK;
}

dsc_status dsc_config_warn_at(dsc_config *config, const char *where, int32_t line, const char *path, dsc_error *err,
                              const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return add_warning(config, where, line > 0 ? line : place_of_text(where).line, path, err, text);
}

dsc_status dsc_config_refuse(const dsc_config *config, dsc_source_pos place, const char *path, dsc_error *err,
                             const char *fmt, ...)
{
    char where[256], text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return DSC_FAIL(err, DSC_ERR_CONFIG, dsc_config_source_text(config, place, where), "%s: %s", path, text);
}

dsc_status dsc_config_warn(dsc_config_parse_state *s, int id, const char *fmt, ...)
{
    char where[256], text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dsc_config_where(s, id, where);
    return add_warning(s->config, where, s->flag[id] != NULL ? 0 : place_of_text(where).line,
                       s->alias[id] != NULL ? s->alias[id] : dsc_config_keys[id].path, s->err, text);
}

static dsc_status add_unbuilt(dsc_config_parse_state *s, const char *where, const char *path, const char *text)
{
    if (s->config->unbuilt.status == DSC_OK)
        (void)DSC_FAIL(&s->config->unbuilt, DSC_ERR_UNSUPPORTED, where, "%s: %s", path, text);
    return add_warning(s->config, where, place_of_text(where).line, path, s->err, text);
}

dsc_status dsc_config_not_built_at(dsc_config_parse_state *s, const char *where, const char *path, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return add_unbuilt(s, where, path, text);
}

dsc_status dsc_config_not_built(dsc_config_parse_state *s, int id, const char *fmt, ...)
{
    char where[256], text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return add_unbuilt(s, dsc_config_where(s, id, where),
                       s->alias[id] != NULL ? s->alias[id] : dsc_config_keys[id].path, text);
}

dsc_status dsc_config_built(const dsc_config *config, dsc_error *err)
{
    if (config->unbuilt.status != DSC_OK && err != NULL)
        *err = config->unbuilt;
    return config->unbuilt.status;
}

static void add_note(dsc_config *config, bool warns, const char *fmt, va_list args)
{
    if (config->note_count == DSC_NOTES_MAX)
        return;
    _Static_assert(DSC_NOTES_MAX <= 64, "a bit for each note");
    const uint64_t bit = (uint64_t)1 << config->note_count;
    char *to = config->notes[config->note_count++];
    config->note_warns = warns ? config->note_warns | bit : config->note_warns & ~bit;
    vsnprintf(to, DSC_CONFIG_LINE, fmt, args);
    dsc_text_printable(to);
}

void dsc_config_note(dsc_config *config, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_note(config, false, fmt, args);
    va_end(args);
}

void dsc_config_note_default(dsc_config *config, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_note(config, true, fmt, args);
    va_end(args);
}
