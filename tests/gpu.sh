#!/bin/sh
# Run all that needs a GPU once, in 8 minutes at most: sh tests/gpu.sh [FOLDER OF WHEELS] [TABLE, by default gpu.md]
#
# Missing packages come from the folder, without a network; the environment of PYTHON stays as it is. A row that fails
# does not stop the others, but the script fails at the end. DEVICE=cpu tries all rows on a CPU, with tiny sizes.
set -u
here=$PWD
cd "$(dirname "$0")/.." || exit 1
export DEVICE="${DEVICE:-cuda}" PYTHONPATH="$PWD" HF_HUB_OFFLINE=1
python=${PYTHON:-python3}
wheels=${1:-}
table=${2:-${OUT:-.}/gpu.md}
case $table in /*) ;; *) table=$here/$table ;; esac
case $wheels in "" | /*) ;; *) wheels=$here/$wheels ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

trained=gpt2 precision=bfloat16 decoded=gpt2 rounds=5 new=64 size="" patience=1
if [ "$DEVICE" = cpu ]; then
    trained=gpt precision=float32 decoded=small rounds=1 new=4 patience=4
    size="--set train.steps=2 --set train.evaluate_every=2 --set train.metrics=[perplexity]"
fi
end=$(($(date +%s) + 480 * patience))
status=0

# row NAME SECONDS PATTERN COMMAND...: run a command and write its row; the figure is the lines that match the pattern
row() {
    name=$1 most=$(($2 * patience)) pattern=$3 began=$(date +%s) result=failed
    shift 3
    [ "$most" -le $((end - began)) ] || most=$((end - began))
    : >"$work/log"
    if [ "$most" -le 0 ]; then
        figure="no time was left"
    elif timeout -k 5 "$most" "$@" >"$work/log" 2>&1; then
        figure=$(grep -E "$pattern" "$work/log" | tr -s ' ' | paste -s -d ';' - | sed 's/;/; /g')
        [ -z "$figure" ] || result=ok # a test that was skipped has no figure
    else
        code=$?
        figure=$(tail -n 1 "$work/log" | tr '|' '/')
        [ $code -ne 124 ] || figure="longer than $most s"
    fi
    [ $result = ok ] || status=1
    [ $result = ok ] || tail -n 40 "$work/log" >&2
    echo "| $name | $figure | $(($(date +%s) - began)) | $result |" | tee -a "$table"
}

# tests NAME SECONDS PATTERN WHICH: the row of some tests of test_gpu.py
tests() {
    row "$1" "$2" "$3" "$python" -m pytest -m gpu -n 0 -s -p no:cacheprovider tests/test_gpu.py -k "$4"
}

printf '| row | figure | seconds | result |\n|---|---|---|---|\n' | tee "$table"
missing=$("$python" - <<'END'
import importlib.metadata, re, tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
needed = [*project["dependencies"], *project["optional-dependencies"]["train"]]
needed += [one for one in project["optional-dependencies"]["test"] if one.startswith("pytest")]
installed = {one.name.lower() for one in importlib.metadata.distributions()}
print(*(one for one in needed if re.match(r"[\w-]+", one)[0].lower() not in installed))
END
)
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086
    row "missing packages" 40 installed "$python" -m pip install --no-index ${wheels:+--find-links "$wheels"} \
        --target "$work/packages" $missing
    export PYTHONPATH="$PWD:$work/packages"
fi
row device 30 torch "$python" -c "import torch
print('CPU' if '$DEVICE' == 'cpu' else torch.cuda.get_device_name(), torch.__version__, sep=', torch ')"
# shellcheck disable=SC2086
row translate-numbers 110 "^test:" "$python" -m tfkit train translate-numbers --device "$DEVICE" $size \
    --out "$work/run"
tests "training step" 30 "tokens/s" "training_step and eager"
tests "training step, compiled" 90 "tokens/s" "training_step and compiled"
tests "decoding, growing cache" 30 "tokens/s" "decoding and growing"
tests "decoding, static cache" 30 "tokens/s" "decoding and static"
tests "decoding, CUDA graph" 120 "tokens/s" "decoding and compiled"
tests "FSDP2 on one device" 30 "losses" shards
tests "losses and texts of a CPU, bfloat16" 180 passed "not rate and not shards"
row "bench training" 40 "^ *$trained " "$python" -m tests.benchmarks training --device "$DEVICE" --precision $precision \
    --models "$trained" --dropout 0 --rounds "$rounds"
row "bench decoding" 60 "^ *$decoded " "$python" -m tests.benchmarks decoding --device "$DEVICE" --models "$decoded" \
    --new "$new" --rounds "$rounds"
exit $status
