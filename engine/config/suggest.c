/* suggest.c - how close two keys are: what a misspelled or disguised key was meant to be.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/suggest.h"

#include <string.h>

#define WORD_MAX DSC_STRING_BYTES_MAX /* letters of a key */

bool dsc_string_is_identifier(const char *name)
{
    size_t i = 0;
    for (; name[i] != 0; i++) {
        const char c = name[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && !(i > 0 && ((c >= '0' && c <= '9') || c == '-')))
            return false;
        if (i >= WORD_MAX)
            return false;
    }
    return i > 0;
}

/* Letters of other scripts that a reader takes for a Latin one, by code point, ascending. */
static char latin_look(uint32_t code)
{
    static const struct { uint16_t code; char letter; } alike[] = {
        { 0x0131, 'i' }, { 0x03B1, 'a' }, { 0x03B9, 'i' }, { 0x03BA, 'k' }, { 0x03BD, 'v' }, { 0x03BF, 'o' },
        { 0x03C1, 'p' }, { 0x03C4, 't' }, { 0x03C5, 'u' }, { 0x0410, 'a' }, { 0x0412, 'b' }, { 0x0415, 'e' },
        { 0x041A, 'k' }, { 0x041C, 'm' }, { 0x041D, 'h' }, { 0x041E, 'o' }, { 0x0420, 'p' }, { 0x0421, 'c' },
        { 0x0422, 't' }, { 0x0425, 'x' }, { 0x0430, 'a' }, { 0x0433, 'r' }, { 0x0435, 'e' }, { 0x043A, 'k' },
        { 0x043C, 'm' }, { 0x043E, 'o' }, { 0x0440, 'p' }, { 0x0441, 'c' }, { 0x0442, 't' }, { 0x0443, 'y' },
        { 0x0445, 'x' }, { 0x0455, 's' }, { 0x0456, 'i' }, { 0x0458, 'j' }, { 0x04BB, 'h' }, { 0x0501, 'd' },
        { 0x051B, 'q' }, { 0x051D, 'w' },
    };
    if (code >= 0xFF41 && code <= 0xFF5A) /* full width */
        return (char)('a' + (code - 0xFF41));
    if (code == 0xFF3F)
        return '_';
    for (size_t i = 0; i < DSC_COUNT(alike); i++)
        if (alike[i].code == code)
            return alike[i].letter;
    return '?';
}

/* Two words that a reader could take for one fold to the same text. The scan has checked that `word` is UTF-8. */
static void fold(const char *word, char out[WORD_MAX + 1])
{
    size_t n = 0;
    const unsigned char *c = (const unsigned char *)word;
    while (*c != 0 && n < WORD_MAX) {
        uint32_t code = *c++;
        if (code >= 0x80) {
            int more = code >= 0xF0 ? 3 : code >= 0xE0 ? 2 : 1;
            code &= more == 3 ? 0x07u : more == 2 ? 0x0Fu : 0x1Fu;
            for (; more > 0 && (*c & 0xC0) == 0x80; more--)
                code = (code << 6) | (*c++ & 0x3Fu);
            if (code == 0xAD || (code >= 0x200B && code <= 0x200D) || code == 0x2060 || code == 0xFEFF)
                continue; /* takes no room on a screen */
            code = (unsigned char)latin_look(code);
        }
        if (code >= 'A' && code <= 'Z')
            code += 'a' - 'A';
        switch (code) {
        case '0': code = 'o'; break;
        case '1': case 'i': case '|': code = 'l'; break;
        case '5': code = 's'; break;
        case '-': case ' ': case '.': code = '_'; break;
        default: break;
        }
        out[n++] = (char)code;
    }
    out[n] = 0;
}

bool dsc_string_is_near_miss(const char *a, const char *b)
{
    char folded_a[WORD_MAX + 1], folded_b[WORD_MAX + 1];
    if (dsc_string_distance(a, b, 1) <= 1)
        return true;
    fold(a, folded_a);
    fold(b, folded_b);
    return strcmp(folded_a, folded_b) == 0;
}

const char *dsc_config_nearest_string(const char *word, const char *const *words, size_t count, const char *otherwise)
{
    const char *best = otherwise;
    int best_distance = 3;
    for (size_t i = 0; i < count; i++) {
        const int distance =
            dsc_string_is_near_miss(word, words[i]) ? 0 : dsc_string_distance(word, words[i], best_distance);
        if (distance < best_distance) {
            best = words[i];
            best_distance = distance;
        }
    }
    return best;
}
