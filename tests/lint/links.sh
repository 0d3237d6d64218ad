#!/bin/sh
# links.sh - no tracked symbolic link that leads outside the checkout. SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$0")/../.." || exit 2
bad=0
for link in $(git ls-files -s | awk '$1 == "120000" { print $4 }'); do
    target=$(readlink "$link")
    case $(realpath -m -- "$(dirname "$link")/$target") in
    "$PWD"/*) case $target in /*) ;; *) continue ;; esac ;;
    esac
    echo "links: $link leads to $target, expected a relative path in the checkout; remove it with \"git rm --cached $link\""
    bad=1
done
exit $bad
