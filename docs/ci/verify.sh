#!/usr/bin/env bash
# Verifies what a branch of a vLLM checkout changes in the auxiliary-output connector.
#
#   verify.sh CHECKOUT BASE_REVISION [REVISION]      REVISION defaults to HEAD
#
# Needs `auxout` on the PATH (pip install 'auxout[conformance,torch]': the worker needs torch) and git. Writes verify.jsonl, verify.md and
# verify.html into $AUXOUT_OUT (default: the current folder). $AUXOUT_PROFILE names the protocol version where the
# checkout has no release tags, $AUXOUT_EXPECT a file with what may break, $AUXOUT_SUITE the suite.
# Exit codes are those of `auxout verify`: 0 nothing is broken, 1 broken, 2 not usable, 3 does not run,
# 4 something that changed was not judged, such as lines that no play executed.
set -euo pipefail

checkout=${1:?usage: verify.sh CHECKOUT BASE_REVISION [REVISION]}
base=${2:?usage: verify.sh CHECKOUT BASE_REVISION [REVISION]}
revision=${3:-HEAD}
out=${AUXOUT_OUT:-.}

# What the branch adds, not what the base got since it forked.
fork=$(git -C "$checkout" merge-base "$base" "$revision")

code=0
auxout verify --base "$checkout" --base-rev "$fork" --rev "$revision" --suite "${AUXOUT_SUITE:-default}" \
    ${AUXOUT_PROFILE:+--profile "$AUXOUT_PROFILE"} ${AUXOUT_EXPECT:+--expect "$AUXOUT_EXPECT"} \
    --report "$out/verify.jsonl" || code=$?

if [ -s "$out/verify.jsonl" ]; then
    auxout report "$out/verify.jsonl" --format markdown -o "$out/verify.md"
    auxout report "$out/verify.jsonl" --format html -o "$out/verify.html"
fi
exit "$code"
