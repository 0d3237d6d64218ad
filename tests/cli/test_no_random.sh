#!/usr/bin/env bash
# test_no_random.sh - a launcher that gets no random bytes for the token of its job ends with the reason: at the start and at
# a restart, on one host and through agents. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
if [ -n "${DSC_SAN:-}" ]; then
    skip "no random bytes" "nothing is preloaded into a sanitized program"
    end_of_tests
fi
if ! ${CC:-cc} -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -shared -fPIC -o no_random.so "$root/tests/cli/no_random.c" 2>why; then
    skip "no random bytes" "no C compiler here"
    end_of_tests
fi
without() { # CALLS FLAG...: the program is `false`, and getrandom fails after CALLS tokens
    local calls=$1
    shift
    NO_RANDOM_AFTER=$calls LD_PRELOAD="$tmp/no_random.so" timeout -k 2 20 "$bin/dsc-launch" -np 2 "$@" false >out 2>&1 </dev/null
    code=$?
}
ends() { # CODE
    [ "$code" -eq "$1" ] || fail "exit $code, not $1" || return 1
    [ "$(grep -c "^dsc: error: dsc-launch: no random bytes for the job's token: .*; allow the system call getrandom" out)" = 1 ]
}
without 9
report "with random bytes the job ends for its ranks" eval '[ $code -eq 1 ] && ! grep -q "no random bytes" out'
without 0
report "at the start" ends 1
without 0 --force_multi
report "at the start, with an agent" ends 1
without 1 --max_restarts 2
report "at a restart" ends 1
without 0 --launcher openmpi
report "with another launcher" ends 1
end_of_tests
