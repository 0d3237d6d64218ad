/* regex_internal.h - a compiled pattern. Only engine/text/regex*.c include it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_REGEX_INTERNAL_H
#define DSC_ENGINE_TEXT_REGEX_INTERNAL_H

#include "engine/text/regex.h"

#define RX_ITEMS_MAX 512
#define RX_CLASSES_MAX 256
#define RX_RANGES_MAX 1024
#define RX_ALTERNATIVES_MAX 256
#define RX_GROUPS_MAX 64
#define RX_DEPTH_MAX 16
#define RX_REPEAT_MAX INT32_MAX

/* A class of characters: ranges, categories, complements of categories, and other classes. */
typedef struct rx_class {
    uint64_t ascii[2]; /* bits of the class for ASCII, negation included */
    uint32_t categories;
    uint32_t outside[4]; /* \P{..} of up to so many */
    int32_t outside_count;
    bool space, not_space, word, not_word, negated, in_brackets;
    int32_t first_range; /* -1: none */
    int32_t first_inner; /* classes in this class, -1: none */
    int32_t next_inner;  /* the next class in the same outer one */
    int32_t both;        /* only characters of this class too ([...&&...]), -1: all */
} rx_class;

typedef struct rx_range {
    uint32_t low, high;
    int32_t next; /* -1: the last of its class */
} rx_range;

typedef enum rx_kind { RX_CHAR, RX_GROUP, RX_LOOK, RX_LINE_END } rx_kind;

typedef struct rx_item {
    rx_kind kind;
    int32_t index; /* index of the class or group */
    int32_t min, max;
    bool possessive, negative;
    int32_t next; /* -1: the last of its alternative */
} rx_item;

typedef struct rx_alternative {
    int32_t item; /* -1: empty */
    int32_t next; /* -1: the last of its group */
    uint64_t first[4]; /* bytes that it may begin with */
} rx_alternative;

struct dsc_regex {
    dsc_alloc *alloc;
    rx_item item[RX_ITEMS_MAX];
    rx_class class[RX_CLASSES_MAX];
    rx_range range[RX_RANGES_MAX];
    rx_alternative alternative[RX_ALTERNATIVES_MAX];
    int32_t group[RX_GROUPS_MAX]; /* its first alternative; group 0 is the pattern */
    int32_t item_count, class_count, range_count, alternative_count, group_count;
    bool cuts_at_lines;
};

bool rx_class_has(const dsc_regex *regex, const rx_class *c, uint32_t code); /* without the table for ASCII */

#endif
