/* json_out.c - see json_out.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/json_out.h"

#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"

dsc_status dsc_json_out_raw(dsc_text *out, const char *text, dsc_error *err)
{
    return dsc_text_add(out, text, (int64_t)strlen(text), err);
}

dsc_status dsc_json_out_text(dsc_text *out, const char *text, int64_t bytes, dsc_error *err)
{
    int64_t from = 0;
    DSC_TRY(dsc_text_add(out, "\"", 1, err));
    for (int64_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        char escape[8];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        DSC_TRY(dsc_text_add(out, text + from, i - from, err));
        const int length = c >= 0x20 ? snprintf(escape, sizeof escape, "\\%c", c)
                           : c == '\n' ? snprintf(escape, sizeof escape, "\\n")
                                       : snprintf(escape, sizeof escape, "\\u%04x", c);
        DSC_TRY(dsc_text_add(out, escape, length, err));
        from = i + 1;
    }
    DSC_TRY(dsc_text_add(out, text + from, bytes - from, err));
    return dsc_text_add(out, "\"", 1, err);
}

static dsc_status add_number(dsc_text *out, const cJSON *value, dsc_error *err)
{
    char text[64];
    int64_t integer;
    if (dsc_json_integer(value, -DSC_JSON_INTEGER_MAX, DSC_JSON_INTEGER_MAX, &integer)) {
        snprintf(text, sizeof text, "%lld", (long long)integer);
        return dsc_json_out_raw(out, text, err);
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text - 4, "%.*g", digits, value->valuedouble);
        double again = 0;
        if (sscanf(text, "%lf", &again) == 1 && again == value->valuedouble)
            break;
    }
    if (strpbrk(text, ".eE") == NULL)
        strcat(text, ".0");
    return dsc_json_out_raw(out, text, err);
}

/* The parser bounds the depth. */
dsc_status dsc_json_out_value(dsc_text *out, const cJSON *value, dsc_error *err)
{
    const bool object = cJSON_IsObject(value);
    if (cJSON_IsString(value))
        return dsc_json_out_text(out, value->valuestring, (int64_t)strlen(value->valuestring), err);
    if (cJSON_IsNumber(value))
        return add_number(out, value, err);
    if (!object && !cJSON_IsArray(value))
        return dsc_json_out_raw(out, cJSON_IsTrue(value) ? "true" : cJSON_IsFalse(value) ? "false" : "null", err);
    DSC_TRY(dsc_json_out_raw(out, object ? "{" : "[", err));
    for (const cJSON *each = value->child; each != NULL; each = each->next) {
        if (object) {
            DSC_TRY(dsc_json_out_text(out, each->string, (int64_t)strlen(each->string), err));
            DSC_TRY(dsc_json_out_raw(out, ":", err));
        }
        DSC_TRY(dsc_json_out_value(out, each, err));
        if (each->next != NULL)
            DSC_TRY(dsc_json_out_raw(out, ",", err));
    }
    return dsc_json_out_raw(out, object ? "}" : "]", err);
}
