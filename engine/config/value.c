/* value.c - the value of a key from JSON: types, ranges, and strings that DeepSpeed accepts as numbers.
 *
 * DeepSpeed's schema (pydantic) accepts "16" for 16 and "false" for false, and so does this file for every key.
 * A string "5e8" or a fraction is refused for an integer. true is not a number here.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* 2^53: a double holds each integer up to it, and sums of a few do not overflow. */
#define INT_LARGEST 9007199254740992.0
#define INT_NO_LIMIT 0x1p63 /* Python's sys.maxsize as a double, DeepSpeed's word for "no limit": read as 2^53 */

bool dsc_value_is_auto(const cJSON *item)
{
    return cJSON_IsString(item) && strcmp(item->valuestring, "auto") == 0;
}

/* strtod with a point, whatever the host program's locale says a decimal point is. `text` has at most 63 bytes. */
static double number(const char *text, size_t *used)
{
    const char *point = localeconv()->decimal_point;
    char local[64], *end;
    snprintf(local, sizeof local, "%s", text);
    char *dot = strchr(local, '.');
    if (dot != NULL)
        *dot = *point; /* a point of several bytes: the text is refused as no number */
    const double value = strtod(local, &end);
    if (used != NULL)
        *used = (size_t)(end - local);
    return value;
}

/* The text without blanks around it, if it is short enough to be a number or a word; else false. */
static bool trimmed(const cJSON *item, char out[64])
{
    if (!cJSON_IsString(item))
        return false;
    const char *from = item->valuestring;
    from += strspn(from, " \t\r\n");
    size_t length = strlen(from);
    while (length > 0 && strchr(" \t\r\n", from[length - 1]) != NULL)
        length--;
    if (length == 0 || length >= 64)
        return false;
    memcpy(out, from, length);
    out[length] = 0;
    return true;
}

bool dsc_value_bool(const cJSON *item, bool *out, bool *from_text)
{
    static const char *const yes[] = { "true", "1", "on", "t", "y", "yes" };
    static const char *const no[] = { "false", "0", "off", "f", "n", "no" };
    char text[64];
    *from_text = false;
    if (cJSON_IsBool(item)) {
        *out = cJSON_IsTrue(item);
        return true;
    }
    if (cJSON_IsNumber(item) && (item->valuedouble == 0 || item->valuedouble == 1)) {
        *out = item->valuedouble == 1;
        return true;
    }
    if (!trimmed(item, text))
        return false;
    *from_text = true;
    for (size_t i = 0; i < DSC_COUNT(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool whole(double value, int64_t *out)
{
    if (!(fabs(value) <= INT_LARGEST || value == INT_NO_LIMIT) || value != floor(value))
        return false;
    *out = fabs(value) < INT_LARGEST ? (int64_t)value : (int64_t)copysign(INT_LARGEST, value);
    return true;
}

/* [+-]digits, single underscores between digits, at most a fraction of zeros. */
static bool integer_text(const char *text, int64_t *out)
{
    char digits[64];
    size_t n = 0;
    const char *c = text;
    if (*c == '+' || *c == '-')
        digits[n++] = *c++;
    const size_t first = n;
    for (; *c != 0 && *c != '.'; c++) {
        if (*c == '_' && n > first && c[-1] != '_' && c[1] >= '0' && c[1] <= '9')
            continue;
        if (*c < '0' || *c > '9')
            return false;
        digits[n++] = *c;
    }
    if (*c == '.' && (c[1] == 0 || c[1 + strspn(c + 1, "0")] != 0))
        return false;
    digits[n] = 0;
    return n > first && whole(number(digits, NULL), out);
}

bool dsc_value_int(const cJSON *item, int64_t *out, bool *from_text)
{
    char text[64];
    *from_text = false;
    if (cJSON_IsNumber(item))
        return whole(item->valuedouble, out);
    *from_text = true;
    return trimmed(item, text) && integer_text(text, out);
}

bool dsc_value_float(const cJSON *item, double *out, bool *from_text)
{
    char text[64];
    size_t used;
    *from_text = false;
    if (cJSON_IsNumber(item)) {
        *out = item->valuedouble;
        return isfinite(*out);
    }
    *from_text = true;
    if (!trimmed(item, text) || strspn(text, "0123456789+-.eE") != strlen(text)) /* no hex, inf or nan */
        return false;
    *out = number(text, &used);
    return used == strlen(text) && isfinite(*out);
}

const char *dsc_value_text(const cJSON *item, char *out, size_t out_bytes)
{
    if (cJSON_IsString(item)) {
        char quoted[512];
        const size_t length = strlen(item->valuestring);
        if (length > 64) {
            snprintf(out, out_bytes, "a string of %zu bytes", length);
        } else {
            dsc_json_quote(quoted, sizeof quoted, item->valuestring);
            snprintf(out, out_bytes, "%s", quoted);
        }
    } else if (cJSON_IsNumber(item)) {
        snprintf(out, out_bytes, "%.15g", item->valuedouble);
    } else if (cJSON_IsBool(item)) {
        snprintf(out, out_bytes, "%s", cJSON_IsTrue(item) ? "true" : "false");
    } else {
        snprintf(out, out_bytes, "%s", cJSON_IsArray(item) ? "a list" : cJSON_IsObject(item) ? "an object" : "null");
    }
    return out;
}

int dsc_value_choice(const dsc_config_key *key, const char *text)
{
    const char *slash = strchr(key->range, '/');
    const size_t text_length = strlen(text);
    int index = 0;
    for (const char *word = key->range;; index++) {
        const size_t length = strcspn(word, "|/");
        if (length == text_length && (slash != NULL ? strncasecmp : strncmp)(word, text, length) == 0)
            return index;
        if (word[length] != '|')
            return -1;
        word += length + 1;
    }
}

/* "> 0", ">= 0" or "0..3"; an empty range holds everything. */
static bool in_range(const char *range, double value)
{
    if (*range == 0)
        return true;
    if (*range == '>')
        return range[1] == '=' ? value >= number(range + 2, NULL) : value > number(range + 1, NULL);
    const char *dots = strstr(range, "..");
    char least[64];
    DSC_ASSERT(dots != NULL);
    snprintf(least, sizeof least, "%.*s", (int)(dots - range), range);
    return value >= number(least, NULL) && value <= number(dots + 2, NULL);
}

static const cJSON *only_element(const cJSON *item)
{
    return cJSON_IsArray(item) && item->child != NULL && item->child->next == NULL ? item->child : item;
}

/* A path or name has no control bytes and fits where it is kept. */
static bool text_fits(const cJSON *item, int32_t bytes)
{
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= (size_t)(bytes > 0 ? bytes : DSC_CONFIG_TEXT))
        return false;
    for (const unsigned char *c = (const unsigned char *)item->valuestring; *c != 0; c++)
        if (*c < 0x20 || *c == 0x7f)
            return false;
    return true;
}

static bool numbers_fit(const char *range, const cJSON *item, bool *from_text)
{
    double d;
    if (!cJSON_IsArray(item))
        return dsc_value_float(item, &d, from_text) && in_range(range, d);
    for (const cJSON *each = item->child; each != NULL; each = each->next)
        if (!cJSON_IsNull(each) && !(dsc_value_float(each, &d, from_text) && in_range(range, d)))
            return false;
    return true;
}

/* Texts that a list of this key may have. */
static int most_texts(const dsc_config_key *key)
{
    const ptrdiff_t id = key - dsc_config_keys;
    return id == DSC_ID_DATA || id == DSC_ID_EVAL_DATA ? DSC_DATA_PATHS_MAX : DSC_CONFIG_TEXTS_MAX;
}

bool dsc_config_add_path(dsc_config_paths *paths, const char *name)
{
    const size_t bytes = strlen(name) + 1;
    if (paths->count == DSC_DATA_PATHS_MAX || (size_t)paths->bytes + bytes > sizeof paths->text)
        return false;
    paths->at[paths->count++] = paths->bytes;
    memcpy(paths->text + paths->bytes, name, bytes);
    paths->bytes += (int)bytes;
    return true;
}

static bool texts_fit(const cJSON *item, int most)
{
    int count = 0;
    if (!cJSON_IsArray(item))
        return text_fits(item, 0);
    for (const cJSON *each = item->child; each != NULL; each = each->next)
        if (!text_fits(each, 0) || ++count > most)
            return false;
    return true;
}

bool dsc_value_fits(const dsc_config_key *key, const cJSON *item, bool *from_text, char *expected,
                    size_t expected_bytes)
{
    int64_t i = 0;
    double d = 0;
    bool b = false, ok = false;
    const char *join = *key->range != 0 ? ", " : "";
    *from_text = false;
    switch (key->type) {
    case DSC_KEY_SECTION:
        snprintf(expected, expected_bytes, "an object");
        return cJSON_IsObject(item);
    case DSC_KEY_BOOL:
        snprintf(expected, expected_bytes, "true or false");
        return dsc_value_bool(item, &b, from_text);
    case DSC_KEY_INT:
        snprintf(expected, expected_bytes, "an integer%s%s%s", join, key->range,
                 dsc_value_float(item, &d, from_text) && fabs(d) > INT_LARGEST ? ", up to 2^53 or 2^63 - 1 (no limit)"
                                                                               : "");
        return dsc_value_int(item, &i, from_text) && in_range(key->range, (double)i);
    case DSC_KEY_FLOAT:
        snprintf(expected, expected_bytes, "a number%s%s", join, key->range);
        return dsc_value_float(item, &d, from_text) && in_range(key->range, d);
    case DSC_KEY_RATE:
        snprintf(expected, expected_bytes, "a number%s%s (or a list of one: there is one parameter group)", join,
                 key->range);
        return dsc_value_float(only_element(item), &d, from_text) && in_range(key->range, d);
    case DSC_KEY_NUMBERS:
        snprintf(expected, expected_bytes, "a number%s%s (or, of Adafactor, a list of two)", join, key->range);
        return numbers_fit(key->range, item, from_text);
    case DSC_KEY_CHOICE: {
        const size_t length = strcspn(key->range, "/");
        snprintf(expected, expected_bytes, "one of %.*s", (int)length, key->range);
        ok = cJSON_IsString(item) && dsc_value_choice(key, item->valuestring) >= 0;
        break;
    }
    case DSC_KEY_TEXT:
        snprintf(expected, expected_bytes, "a string of at most %d bytes without control characters",
                 key->bytes > 0 ? (int)key->bytes - 1 : DSC_CONFIG_TEXT - 1);
        return text_fits(item, key->bytes);
    case DSC_KEY_TEXTS:
        snprintf(expected, expected_bytes,
                 "a string or a list of at most %d, each of at most %d bytes without control "
                 "characters%s",
                 most_texts(key), DSC_CONFIG_TEXT - 1,
                 most_texts(key) > DSC_CONFIG_TEXTS_MAX ? "; a pattern, such as \"folder/*.bin\", is one" : "");
        return texts_fit(item, most_texts(key));
    case DSC_KEY_LIST:
        snprintf(expected, expected_bytes, "a list");
        return cJSON_IsArray(item);
    case DSC_KEY_ANY:
        return true;
    }
    return ok;
}

/* The length of a default's text when it is a JSON string, else -1. */
static int quoted_length(const char *json)
{
    return json[0] == '"' ? (int)strlen(json) - 2 : -1;
}

bool dsc_value_is_default(const dsc_config_key *key, const cJSON *item)
{
    const char *def = key->default_json;
    int64_t i = 0;
    double d = 0;
    bool b = false, from_text;
    if (*def == 0)
        return false;
    switch (key->type) {
    case DSC_KEY_BOOL:
        return dsc_value_bool(item, &b, &from_text) && b == (strcmp(def, "true") == 0);
    case DSC_KEY_INT: {
        int64_t wanted = 0;
        const bool known = whole(number(def, NULL), &wanted);
        DSC_ASSERT(known);
        return dsc_value_int(item, &i, &from_text) && i == wanted;
    }
    case DSC_KEY_FLOAT: case DSC_KEY_RATE: case DSC_KEY_NUMBERS:
        return dsc_value_float(only_element(item), &d, &from_text) && d == number(def, NULL);
    case DSC_KEY_CHOICE: {
        char word[64];
        snprintf(word, sizeof word, "%.*s", quoted_length(def), def + 1);
        return cJSON_IsString(item) && dsc_value_choice(key, item->valuestring) == dsc_value_choice(key, word);
    }
    case DSC_KEY_TEXT: case DSC_KEY_ANY:
        return quoted_length(def) >= 0 && cJSON_IsString(item) &&
               strlen(item->valuestring) == (size_t)quoted_length(def) &&
               strncmp(item->valuestring, def + 1, (size_t)quoted_length(def)) == 0;
    default:
        return false;
    }
}

void dsc_value_store(const dsc_config_key *key, const cJSON *item, dsc_config *config)
{
    const char *def = key->default_json;
    char *field = (char *)config + key->offset;
    int64_t i = 0;
    double d = 0;
    bool b = false, from_text, ok = true;
    DSC_ASSERT(key->offset >= 0);
    switch (key->type) {
    case DSC_KEY_BOOL:
        if (item != NULL)
            ok = dsc_value_bool(item, &b, &from_text);
        else
            b = strcmp(def, "true") == 0;
        memcpy(field, &b, sizeof b);
        break;
    case DSC_KEY_INT:
        if (item != NULL)
            ok = dsc_value_int(item, &i, &from_text);
        else if (*def != 0)
            ok = whole(number(def, NULL), &i);
        memcpy(field, &i, sizeof i);
        break;
    case DSC_KEY_FLOAT: case DSC_KEY_RATE: case DSC_KEY_NUMBERS:
        if (item != NULL && !(key->type == DSC_KEY_NUMBERS && cJSON_IsArray(item)))
            ok = dsc_value_float(only_element(item), &d, &from_text);
        else if (*def != 0)
            d = number(def, NULL);
        memcpy(field, &d, sizeof d);
        break;
    case DSC_KEY_TEXT: case DSC_KEY_CHOICE: {
        DSC_ASSERT(key->bytes > 0);
        const size_t capacity = (size_t)key->bytes;
        if (item != NULL)
            snprintf(field, capacity, "%s", item->valuestring);
        else
            snprintf(field, capacity, "%.*s", quoted_length(def) > 0 ? quoted_length(def) : 0, def + (*def == '"'));
        break;
    }
    default:
        DSC_ASSERT(!"a field of this type");
    }
    DSC_ASSERT(ok);
}

/* ---- values of a parse ---- */

int64_t dsc_config_int_or(const dsc_config_parse_state *s, int id, int64_t otherwise)
{
    bool from_text;
    if (dsc_config_has(s, id))
        (void)dsc_value_int(s->given[id], &otherwise, &from_text);
    return otherwise;
}

bool dsc_config_bool_or(const dsc_config_parse_state *s, int id, bool otherwise)
{
    bool from_text;
    if (dsc_config_has(s, id))
        (void)dsc_value_bool(s->given[id], &otherwise, &from_text);
    return otherwise;
}

int dsc_config_choice_or(const dsc_config_parse_state *s, int id, int otherwise)
{
    return dsc_config_has(s, id) ? dsc_value_choice(&dsc_config_keys[id], s->given[id]->valuestring) : otherwise;
}

int dsc_config_copy_texts(const cJSON *item, char out[][DSC_CONFIG_TEXT], int most)
{
    int count = 0;
    if (item == NULL)
        return 0;
    for (const cJSON *each = cJSON_IsArray(item) ? item->child : item; each != NULL;
         each = cJSON_IsArray(item) ? each->next : NULL, count++)
        if (count < most)
            snprintf(out[count], DSC_CONFIG_TEXT, "%s", each->valuestring);
    return count;
}
