#!/usr/bin/env bash
# commits.sh - commit subjects have the form "area: imperative summary" and at most 65 characters (CONTRIBUTING.md).
# Checked are the commits after the newest change of this script. SPDX-License-Identifier: Apache-2.0
set -u
git rev-parse --git-dir >/dev/null 2>&1 || exit 0
since=$(git log -1 --format=%H -- tests/lint/commits.sh)
[ -n "$since" ] || exit 0
git log --no-merges --format='%h %s' "$since..HEAD" | awk '
    { subject = substr($0, index($0, " ") + 1); why = "" }
    length(subject) > 65 { why = length(subject) " characters, at most 65" }
    subject !~ /^(Revert "|[A-Za-z0-9_.\/-]+(, ?[A-Za-z0-9_.\/-]+)*: [^ ])/ { why = "expected \"area: imperative summary\"" }
    subject ~ /^[^ ]+: ([Tt]he|[Aa]n?|[Ww]hat|[Oo]f|[Ww]here|[Ww]ho|[Ll]ikewise|[Ii]t|[Tt]his|[Tt]hat) / { why = "no imperative" }
    why { bad = 1; print "commits: " $0 ": " why }
    END { exit bad }'
