/* report.h - how the simulator says that a program is wrong. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIM_REPORT_H
#define DSC_TESTS_SIM_REPORT_H

#include <cstdio>

namespace cusim {

enum { EXIT_VIOLATION = 98 };

/* One line on stderr ("cusim: ..."), with the seed and policy that repeat it; the process ends with EXIT_VIOLATION. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

} // namespace cusim

#endif
