/* yaml.c - libyaml's events, checked one by one, become cJSON's tree.
 *
 * Invariants: every value gets its position before anything inside it, in document order, as json.c expects. The keys
 * of open mappings lie on one stack, and a mapping's keys are compared when it closes. Depth is checked before the
 * recursion goes deeper, so libyaml reads at most its own look-ahead (1024 characters) more.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/formats/yaml.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "base/formats/json_scan.h"
#include "base/formats/utf8.h"
#include "base/hash.h"

#define NUMBER_BYTES_MAX 63 /* as in JSON */

typedef struct yaml_read {
    dsc_alloc *alloc;
    const char *name;
    dsc_json_limits limits;
    dsc_error *err;
    yaml_parser_t parser;
    yaml_event_t event; /* the one that is looked at; owned while has_event */
    bool has_event;
    locale_t locale;
    dsc_json_pos *places;
    int64_t place_count, place_room;
    dsc_json_key *keys;
    int64_t key_count, key_room;
    char *key_text;
    int64_t key_bytes, key_text_room;
} yaml_read;

static dsc_json_pos place_of(yaml_mark_t mark)
{
    return (dsc_json_pos) { .line = (uint32_t)mark.line + 1, .column = (uint32_t)mark.column + 1 };
}

static dsc_status fail_at(yaml_read *r, dsc_json_pos place, const char *fmt, ...) DSC_PRINTF(3, 4);

static dsc_status fail_at(yaml_read *r, dsc_json_pos place, const char *fmt, ...)
{
    char message[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return dsc_json_fail_at(r->err, DSC_ERR_CONFIG, r->name, place, message);
}

/* Reads the next event into r->event. libyaml's error about an invalid text becomes our error. */
static dsc_status next_event(yaml_read *r)
{
    if (r->has_event)
        yaml_event_delete(&r->event);
    r->has_event = false;
    if (yaml_parser_parse(&r->parser, &r->event)) {
        r->has_event = true;
        return DSC_OK;
    }
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return DSC_FAIL(r->err, DSC_ERR_NOMEM, r->name, "out of host memory: libyaml could not read on");
    return fail_at(r, place_of(p->problem_mark), "not YAML: %s%s%s",
                   p->problem != NULL ? p->problem : "it cannot be read", p->context != NULL ? " " : "",
                   p->context != NULL ? p->context : "");
}

static dsc_status add_place(yaml_read *r, dsc_json_pos place)
{
    if (r->place_count >= r->limits.members)
        return fail_at(r, place, "more than %lld values", (long long)r->limits.members);
    DSC_TRY(dsc_json_reserve(r->alloc, (void **)&r->places, r->place_count, &r->place_room, 1, sizeof *r->places,
                             r->err));
    r->places[r->place_count++] = place;
    return DSC_OK;
}

/* Anchors and tags, which data does not have. */
static dsc_status check_plain_data(yaml_read *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    const dsc_json_pos place = place_of(r->event.start_mark);
    if (anchor != NULL)
        return fail_at(r, place, "anchors (&name) and aliases (*name) are not read; write the value where it is used");
    if (tag != NULL)
        return fail_at(r, place, "tags (!name) are not read; write the value without one");
    return DSC_OK;
}

static bool is_one_of(const char *text, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    return false;
}

/* [-+]? (digits [. digits]? | . digits) ([eE] [-+]? digits)? */
static bool is_number(const char *text)
{
    text += *text == '-' || *text == '+';
    const size_t whole = strspn(text, "0123456789");
    text += whole;
    size_t fraction = 0;
    if (*text == '.') {
        fraction = strspn(++text, "0123456789");
        text += fraction;
    }
    if (whole + fraction == 0)
        return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        text += *text == '-' || *text == '+';
        const size_t exponent = strspn(text, "0123456789");
        if (exponent == 0)
            return false;
        text += exponent;
    }
    return *text == 0;
}

static dsc_status number_of(yaml_read *r, const char *text, cJSON **out)
{
    const dsc_json_pos place = place_of(r->event.start_mark);
    if (strlen(text) > NUMBER_BYTES_MAX)
        return fail_at(r, place, "a number of %zu characters; at most %d are read", strlen(text), NUMBER_BYTES_MAX);
    const char *digits = text + (*text == '-' || *text == '+');
    if (digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9')
        return fail_at(r, place, "%s starts with 0, which is octal to some; write it without, or in quotes", text);
    const double value = strtod_l(text, NULL, r->locale);
    if (!isfinite(value) || (value == 0 && strcspn(text, "123456789") < strcspn(text, "eE")))
        return fail_at(r, place, "%s is outside the range of a double", text);
    *out = cJSON_CreateNumber(value);
    return DSC_OK;
}

/* The value of a plain scalar: YAML 1.2's core schema. */
static dsc_status plain_value(yaml_read *r, const char *text, cJSON **out)
{
    static const char *const nulls[] = { "", "~", "null", "Null", "NULL" };
    static const char *const yes[] = { "true", "True", "TRUE" };
    static const char *const no[] = { "false", "False", "FALSE" };
    static const char *const no_numbers[] = { ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF" };
    if (is_one_of(text, nulls, DSC_COUNT(nulls)))
        *out = cJSON_CreateNull();
    else if (is_one_of(text, yes, DSC_COUNT(yes)) || is_one_of(text, no, DSC_COUNT(no)))
        *out = cJSON_CreateBool(is_one_of(text, yes, DSC_COUNT(yes)));
    else if (is_one_of(text + (*text == '-' || *text == '+'), no_numbers, DSC_COUNT(no_numbers)))
        return fail_at(r, place_of(r->event.start_mark), "%s is not a number here", text);
    else if (is_number(text))
        return number_of(r, text, out);
    else
        *out = cJSON_CreateString(text);
    return DSC_OK;
}

/* At a scalar: a value of its own. */
static dsc_status scalar_value(yaml_read *r, cJSON **out)
{
    const char *text = (const char *)r->event.data.scalar.value;
    DSC_TRY(check_plain_data(r, r->event.data.scalar.anchor, r->event.data.scalar.tag));
    if (strlen(text) != r->event.data.scalar.length)
        return fail_at(r, place_of(r->event.start_mark), "a string must not hold a NUL");
    if (r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        DSC_TRY(plain_value(r, text, out));
    else
        *out = cJSON_CreateString(text);
    if (*out == NULL)
        return DSC_FAIL(r->err, DSC_ERR_NOMEM, r->name, "out of host memory: cJSON could not hold a value");
    return DSC_OK;
}

/* At the event of a key: puts it on the stack of keys. */
static dsc_status take_key(yaml_read *r)
{
    const yaml_event_t *e = &r->event;
    const dsc_json_pos place = place_of(e->start_mark);
    if (e->type == YAML_ALIAS_EVENT || (e->type == YAML_SCALAR_EVENT && e->data.scalar.anchor != NULL))
        return check_plain_data(r, (const yaml_char_t *)"", NULL);
    if (e->type != YAML_SCALAR_EVENT)
        return fail_at(r, place, "expected a key, which is text, found a list or a mapping");
    DSC_TRY(check_plain_data(r, e->data.scalar.anchor, e->data.scalar.tag));
    const char *text = (const char *)e->data.scalar.value;
    const int64_t bytes = (int64_t)e->data.scalar.length;
    for (int64_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return fail_at(r, place, "a control character in a key");
    if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && strcmp(text, "<<") == 0)
        return fail_at(r, place, "merge keys (<<) are not read; write the values where they are used");
    DSC_TRY(dsc_json_reserve(r->alloc, (void **)&r->keys, r->key_count, &r->key_room, 1, sizeof *r->keys, r->err));
    DSC_TRY(dsc_json_reserve(r->alloc, (void **)&r->key_text, r->key_bytes, &r->key_text_room, bytes + 1, 1, r->err));
    dsc_json_key *key = &r->keys[r->key_count++];
    *key = (dsc_json_key){ .start = (uint32_t)r->key_bytes,
                           .bytes = (uint32_t)bytes,
                           .at = (uint32_t)e->start_mark.index,
                           .place = place };
    memcpy(r->key_text + r->key_bytes, text, (size_t)bytes + 1);
    key->hash = dsc_xxh3_128(text, bytes, 0).low;
    r->key_bytes += bytes + 1;
    return DSC_OK;
}

static dsc_status read_value(yaml_read *r, int64_t depth, cJSON **out);

/* At the start of a mapping or a sequence. *out is owned by the caller even when this fails. */
static dsc_status read_container(yaml_read *r, int64_t depth, cJSON **out)
{
    const bool object = r->event.type == YAML_MAPPING_START_EVENT;
    const yaml_event_type_t end = object ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    const int64_t first_key = r->key_count, first_byte = r->key_bytes;
    if (depth >= r->limits.depth)
        return fail_at(r, place_of(r->event.start_mark), "nested deeper than %lld levels", (long long)r->limits.depth);
    DSC_TRY(object ? check_plain_data(r, r->event.data.mapping_start.anchor, r->event.data.mapping_start.tag)
                   : check_plain_data(r, r->event.data.sequence_start.anchor, r->event.data.sequence_start.tag));
    *out = object ? cJSON_CreateObject() : cJSON_CreateArray();
    if (*out == NULL)
        return DSC_FAIL(r->err, DSC_ERR_NOMEM, r->name, "out of host memory: cJSON could not hold a value");
    for (;;) {
        DSC_TRY(next_event(r));
        if (r->event.type == end)
            break;
        cJSON *item = NULL;
        const uint32_t key_start = (uint32_t)r->key_bytes;
        if (object) {
            DSC_TRY(take_key(r));
            DSC_TRY(next_event(r));
        }
        dsc_status status = read_value(r, depth + 1, &item);
        const char *key = object ? r->key_text + key_start : NULL;
        if (status == DSC_OK && !(object ? cJSON_AddItemToObject(*out, key, item) : cJSON_AddItemToArray(*out, item)))
            status = DSC_FAIL(r->err, DSC_ERR_NOMEM, r->name, "out of host memory: cJSON could not hold a value");
        if (status != DSC_OK) {
            cJSON_Delete(item);
            return status;
        }
    }
    const dsc_json_key *original = NULL;
    const dsc_json_key *repeat =
        object ? dsc_json_find_repeat(r->key_text, r->keys + first_key, r->key_count - first_key, &original) : NULL;
    if (repeat != NULL)
        return dsc_json_fail_repeat(r->err, DSC_ERR_CONFIG, r->name, r->key_text, repeat, original);
    r->key_count = first_key;
    r->key_bytes = first_byte;
    return DSC_OK;
}

/* At the first event of a value; r->event is its last one afterwards. */
static dsc_status read_value(yaml_read *r, int64_t depth, cJSON **out)
{
    DSC_TRY(add_place(r, place_of(r->event.start_mark)));
    switch (r->event.type) {
    case YAML_SCALAR_EVENT: return scalar_value(r, out);
    case YAML_MAPPING_START_EVENT: case YAML_SEQUENCE_START_EVENT: return read_container(r, depth, out);
    default: return check_plain_data(r, (const yaml_char_t *)"", NULL); /* an alias */
    }
}

/* The one document of a stream. */
static dsc_status read_stream(yaml_read *r, cJSON **out)
{
    DSC_TRY(next_event(r));
    DSC_ASSERT(r->event.type == YAML_STREAM_START_EVENT);
    DSC_TRY(next_event(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return fail_at(r, (dsc_json_pos) { .line = 1, .column = 1 }, "is empty; expected a mapping (key: value)");
    DSC_TRY(next_event(r));
    DSC_TRY(read_value(r, 0, out));
    DSC_TRY(next_event(r));
    DSC_ASSERT(r->event.type == YAML_DOCUMENT_END_EVENT);
    DSC_TRY(next_event(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        return fail_at(r, place_of(r->event.start_mark), "a second document; expected one");
    return DSC_OK;
}

/* Refusals of the JSON scan that libyaml would accept, or report without a position. */
static dsc_status check_text(yaml_read *r, const char *text, int64_t bytes)
{
    uint32_t line = 1, column = 1;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return fail_at(r, (dsc_json_pos) { .line = 1, .column = 1 },
                       "starts with a byte order mark; save it as plain UTF-8");
    for (const char *c = text; c < text + bytes; column++) {
        const int each = dsc_utf8_char_bytes(c, text + bytes);
        if (each == 0)
            return fail_at(r, (dsc_json_pos) { .line = line, .column = column }, "not valid UTF-8 (byte 0x%02x)",
                           (unsigned char)*c);
        if ((unsigned char)*c < 0x20 && *c != '\n' && *c != '\r' && *c != '\t')
            return fail_at(r, (dsc_json_pos) { .line = line, .column = column }, "byte 0x%02x", (unsigned char)*c);
        if (*c == '\n') {
            line++;
            column = 0;
        }
        c += each;
    }
    return DSC_OK;
}

static dsc_status read_text(yaml_read *r, const char *text, int64_t bytes, cJSON **root)
{
    if (bytes > r->limits.bytes)
        return fail_at(r, (dsc_json_pos) { .line = 1, .column = 1 }, "%lld bytes are more than the %lld allowed here",
                       (long long)bytes, (long long)r->limits.bytes);
    DSC_TRY(check_text(r, text, bytes));
    r->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (r->locale == (locale_t)0)
        return DSC_FAIL(r->err, DSC_ERR_NOMEM, r->name, "out of host memory: no C locale");
    dsc_status status = DSC_OK;
    if (!yaml_parser_initialize(&r->parser)) {
        status = DSC_FAIL(r->err, DSC_ERR_NOMEM, r->name, "out of host memory: libyaml could not start");
    } else {
        yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, (size_t)bytes);
        status = read_stream(r, root);
        if (r->has_event)
            yaml_event_delete(&r->event);
        yaml_parser_delete(&r->parser);
    }
    freelocale(r->locale);
    return status;
}

dsc_status dsc_yaml_open(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                         const dsc_json_limits *limits, dsc_json **out, dsc_error *err)
{
    yaml_read r = { .alloc = alloc, .name = name, .limits = *limits, .err = err };
    cJSON *root = NULL;
    *out = NULL;
    dsc_status status = read_text(&r, text, bytes, &root);
    dsc_alloc_free(alloc, r.keys);
    dsc_alloc_free(alloc, r.key_text);
    if (status == DSC_OK)
        return dsc_json_adopt(alloc, name, bytes, root, r.places, r.place_count, out, err);
    cJSON_Delete(root);
    dsc_alloc_free(alloc, r.places);
    return status;
}

dsc_status dsc_yaml_to_json(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                            const dsc_json_limits *limits, char **out_text, int64_t *out_bytes, dsc_error *err)
{
    dsc_json *json = NULL;
    *out_text = NULL;
    DSC_TRY(dsc_yaml_open(alloc, name, text, bytes, limits, &json, err));
    char *printed = cJSON_Print(dsc_json_root(json));
    dsc_status status = printed != NULL ? dsc_alloc_strdup(alloc, DSC_TAG_CONTROL, printed, out_text, err)
                                        : DSC_FAIL(err, DSC_ERR_NOMEM, name, "out of host memory: no JSON text");
    *out_bytes = status == DSC_OK ? (int64_t)strlen(printed) : 0;
    cJSON_free(printed);
    dsc_json_close(&json);
    return status;
}

bool dsc_yaml_is_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL && (strcasecmp(dot, ".yaml") == 0 || strcasecmp(dot, ".yml") == 0);
}
