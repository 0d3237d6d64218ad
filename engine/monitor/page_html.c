/* page_html.c - page.html inside the library. SPDX-License-Identifier: Apache-2.0 */
#include "engine/monitor/page.h"

__asm__(".section .rodata\n"
        ".global dsc_page_html\n"
        ".hidden dsc_page_html\n"
        "dsc_page_html:\n"
        ".incbin \"engine/monitor/page.html\"\n"
        ".byte 0\n"
        ".previous\n");
