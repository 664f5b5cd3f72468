# Everything in one place: `make` lists what there is.
#
# The virtual environment in .venv is made by the first target that needs it,
# and brought up to date when requirements.txt or pyproject.toml has changed.

VENV ?= .venv
BIN := $(VENV)/bin
SUPPORTED := import sys; sys.exit(sys.version_info < (3, 11))
# The first Python that is new enough; a newer one than TensorFlow's wheels
# know comes last.
PYTHON ?= $(shell for name in python3.12 python3.13 python3.11 python3; do \
	"$$name" -c "$(SUPPORTED)" 2>/dev/null && echo "$$name" && exit; \
	done; echo python3)
PYTEST_ARGS ?=
# What the benchmark of data creation reads; the demo's text unless told.
BENCH_TEXT ?= demo_output/train.txt
BENCH_VOCAB ?= demo_output/vocab.txt

.DEFAULT_GOAL := help
.PHONY: help venv test test-slow fidelity lint format bench demo clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' Makefile

venv: $(VENV)/.installed  ## make .venv with everything needed

$(VENV)/.installed: requirements.txt pyproject.toml
	@"$(PYTHON)" -c "$(SUPPORTED)" || { \
	echo "error: expected Python 3.11 or newer. Received:" \
	"$$("$(PYTHON)" --version 2>&1) ($(PYTHON)); install one and say" \
	"make PYTHON=/path/to/python3.12" >&2; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"
	"$(BIN)/python" -m pip install --quiet --upgrade pip
	"$(BIN)/python" -m pip install --quiet --requirement requirements.txt
	"$(BIN)/python" -m pip install --quiet --no-deps --editable .
	@touch "$@"

test: venv  ## the default tests, under five minutes on two cores
	"$(BIN)/python" -m pytest -m "not slow" $(PYTEST_ARGS)

test-slow: venv  ## the tests marked slow
	"$(BIN)/python" -m pytest -m slow $(PYTEST_ARGS)

# Other Keras backends have environments of their own, where they were made.
fidelity: venv  ## docs/fidelity.md, every number measured again
	@mkdir -p build/fidelity && rm -f build/fidelity/*.json
	"$(BIN)/python" -m pytest -m fidelity \
	--fidelity_rows=build/fidelity/tensorflow.json $(PYTEST_ARGS)
	for backend in jax torch; do \
	[ ! -x "$(VENV)-$$backend/bin/python" ] || KERAS_BACKEND=$$backend \
	"$(VENV)-$$backend/bin/python" -m pytest -m fidelity \
	--fidelity_rows=build/fidelity/$$backend.json \
	tests/parity tests/backends $(PYTEST_ARGS) || exit 1; done
	"$(BIN)/python" tests/fidelity.py docs/fidelity.md build/fidelity/*.json

lint: venv  ## style and types, nothing changed
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"

format: venv  ## bring the code into the house style
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

bench: venv $(BENCH_VOCAB)  ## the figures of the README, on this machine
	"$(BIN)/python" benchmarks/input_pipeline.py
	"$(BIN)/python" benchmarks/training_step.py
	"$(BIN)/python" benchmarks/training_step.py --mixed_precision=bfloat16
	"$(BIN)/python" benchmarks/data_creation.py \
	--input_file="$(BENCH_TEXT)" --vocab_file="$(BENCH_VOCAB)"

demo_output/vocab.txt:
	$(MAKE) demo

demo: venv  ## a model from raw text to answers, in a few minutes
	"$(BIN)/python" examples/demo.py

clean:  ## remove .venv, caches and builds
	rm -rf "$(VENV)" build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
