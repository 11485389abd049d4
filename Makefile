# make demo | make demo-quantization | make check | make test | make chaos | make lint | make site | make packages; each installs what it needs, in this folder alone.
PYTHON ?= python3
BIN := .venv/bin
PYTEST = $(BIN)/python -m pytest $(PYTEST_ARGS)
REAL := vllm or sglang or transformers or llama_cpp
CLOCK := tests/unit/load tests/integration
ENGINES := tests/integration tests/unit/catalog tests/unit/plan
PARTS := test-clock test-engines test-unit test-cluster test-sweeps test-rest test-chaos test-llama_cpp

# into the environment whose programs are in $(1): by uv, which takes a fifth of pip's time; by pip where uv fails, whose
# configuration may name an index that uv does not know
packages = $(BIN)/uv pip install --quiet --python $(1)/python $(2) || $(1)/python -m pip install --quiet --no-compile $(2)

# Tests start thousands of Python processes: where the environment forbids to keep bytecode, each of them would compile
# Ray, pandas and whatever else it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-quantization pictures site packages test $(PARTS) chaos check lint install engines compiled model lock newest clean

install: .venv/installed
.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip uv
	$(call packages,$(BIN),-r requirements.lock)
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

# llama.cpp is compiled on what the tests leave of one core, for answers and not for speed; its own tests are the last,
# wait for it and show its log
compiled: install
	mkdir -p .engines/llama_cpp
	JOBS=1 OPTIMIZE=1 nice -n 19 $(BIN)/python scripts/install_engines.py llama_cpp --into .engines/llama_cpp \
	  > .engines/llama_cpp.log 2>&1 &

engines: install
	nice $(BIN)/python scripts/install_engines.py vllm --into .engines/vllm
	nice $(BIN)/python scripts/install_engines.py sglang --into .engines/sglang
	nice $(BIN)/python scripts/install_engines.py transformers --into .engines/transformers
	nice $(BIN)/python scripts/install_engines.py vllm_router --into .engines/vllm_router
	nice $(BIN)/python scripts/install_engines.py sglang_router --into .engines/sglang_router

# the official TGI client, which tests hold the emulator's TGI side against; it needs an older huggingface-hub than ours
.engines/tgi-client/installed: | install
	$(PYTHON) -m venv .engines/tgi-client
	$(call packages,.engines/tgi-client/bin,text-generation==0.7.0)
	touch $@

model: install
	$(BIN)/python scripts/make_tiny_model.py .demo/model

demo: install
	$(BIN)/python scripts/demo.py

demo-quantization: install
	$(BIN)/python scripts/demo_quantization.py

# of the newest results of `make demo` (RESULTS=... names others), and of the sweeps of the guides
pictures: RESULTS = $(lastword $(sort $(wildcard .demo/results*)))
pictures: install
	$(BIN)/python scripts/pictures.py $(RESULTS)
	$(BIN)/python -m scripts.guide_pictures

# the wheel and the sdist of a release, in dist/; tests/packages checks such ones
packages: install
	rm -rf dist
	$(BIN)/python -m hatchling build

# the documentation, in site/; a dead link is an error
site: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "open site/index.html"

# Three parts side by side; when one ends the next begins, whatever failed. Most of the time they wait, but for unit
# tests, which take what the others leave. Tests of what the clock says are the first, beside installations that give
# way; those of llama.cpp wait for it to be compiled.
test: install compiled model .engines/tgi-client/installed
	$(MAKE) --keep-going -j3 $(PARTS)

test-clock: install model .engines/tgi-client/installed
	$(PYTEST) $(CLOCK) -m "not ($(REAL))"

# engines are no prerequisite: make would go on to the next part, and come back to these tests after all others
test-engines: install model
	$(MAKE) engines
	$(PYTEST) $(ENGINES) -m "($(REAL)) and not llama_cpp"

# `make demo` and other sweeps of real engines, when those are long installed
test-sweeps: install model
	$(MAKE) engines
	$(PYTEST) tests/cluster -m "($(REAL)) and not llama_cpp"

test-cluster test-chaos: test-%: install model
	$(PYTEST) tests/$* -m "not ($(REAL))"

test-unit: install model
	nice -n 10 $(PYTEST) tests/unit --ignore tests/unit/load -m "not ($(REAL))"

test-rest: install model
	$(PYTEST) $(patsubst %,--ignore %,tests/unit tests/integration tests/cluster tests/chaos) -m "not ($(REAL))"

test-llama_cpp: install model
	$(PYTEST) tests/integration -m llama_cpp

# all 100 kill rounds, and what `make test` leaves out: outages of minutes, several hosts, pods (two hours)
chaos: install engines model
	$(PYTEST) -m "chaos or long"

# what a pull request needs before it is opened: two minutes; CI runs `make lint` and `make test`
check: lint
	$(BIN)/python scripts/touched_tests.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# requirements.lock pins every dependency for development; run after changing pyproject.toml
lock: install
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --extra dev --extra docs --extra tables --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-options --output-file requirements.lock pyproject.toml

# which engines have newer releases than are known here, and what their parsers changed
newest:
	$(PYTHON) scripts/newest_engines.py

clean:
	rm -rf .venv .engines .demo site dist
