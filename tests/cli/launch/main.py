# main.py - all launcher tests, or those whose name contains the first argument. SPDX-License-Identifier: Apache-2.0
import sys

import harness
import command, death, hang, output, restart, runners, signals  # noqa: F401 (they register their tests)

words = [a for a in sys.argv[1:] if not a.startswith("-")]
sys.exit(harness.run_all(words[0] if words else "", at_once=4))
