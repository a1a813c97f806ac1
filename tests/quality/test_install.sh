#!/usr/bin/env bash
# Build the wheel and use it as a stranger would: an empty venv, an unrelated directory, no source tree.
# Usage: test_install.sh PYTHON, where PYTHON has the `build` package.
set -euo pipefail
unset PYTHONPATH
python=$(realpath --no-symlinks "$1")
root=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() {
    echo "+ $*" >&2
    "$@"
}

cd "$root"
run "$python" -m build --outdir "$work/dist" . > "$work/build.log" || { cat "$work/build.log"; exit 1; }
wheel=$(echo "$work"/dist/*.whl)

# Every source and data file of the four packages is in the wheel.
packages=(spec/auxout_spec reference/auxout_reference impl/auxout tests/auxout_conformance tests/_auxout_pytest.py)
find "${packages[@]}" -type f -not -name '*.pyc' | cut -d/ -f2- | LC_ALL=C sort > "$work/expected"
"$python" - "$wheel" << 'EOF' | LC_ALL=C sort > "$work/shipped"
import sys, zipfile
print(*(name for name in zipfile.ZipFile(sys.argv[1]).namelist() if ".dist-info/" not in name), sep="\n")
EOF
diff "$work/expected" "$work/shipped"

"$python" -m venv "$work/venv"
PATH="$work/venv/bin:$PATH"
mkdir "$work/elsewhere"
cd "$work/elsewhere"
run pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "auxout[conformance] @ file://$wheel"

run auxout --help > help.txt
run auxout clauses > clauses.txt
grep -q SCHED-META-1 clauses.txt
run auxout smoke reference
run auxout conform reference --suite smoke --report report.jsonl
run auxout report report.jsonl --format html -o report.html
grep -q '<table class="clauses">' report.html
run pytest -q --pyargs auxout_conformance.cases --auxout-target reference
