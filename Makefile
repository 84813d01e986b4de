# Two commands: `make demo` and `make test`. Both set everything up on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := $(VENV)/.demo

.PHONY: demo test quick coverage lint types layers tests mutants docs clean

demo: $(DEMO)
	$(BIN)/neuralmark demo --output demo-output

# Types and layers are checked while the tests run, which leave a sixth of two cores idle.
test: lint
	$(MAKE) --no-print-directory -j 3 types layers tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

layers: $(INSTALLED)
	$(BIN)/lint-imports

tests: $(INSTALLED)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# Without what takes minutes (folders marked slow in tests/conftest.py).
quick: $(INSTALLED)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m 'not slow'

# Which changes of core and marking no test notices (docs/mutation.md); goes on where it stopped.
mutants: $(INSTALLED)
	$(BIN)/python -m benchmarks.mutants core --sample 300
	$(BIN)/python -m benchmarks.mutants marking --sample 300

# Lines and branches of the packages that a verdict rests on which no test reaches (docs/design.md).
MEASURED := $(addprefix tests/,core keys records anchors marking checkpoints disputes storage cli \
	hostile conformance distributed remote golden reports test_api.py)
coverage: $(INSTALLED)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q --cov --cov-report=term \
		$(MEASURED) src

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@ $(DEMO)

# What the demo needs, and no more: torch and scikit-learn.
$(DEMO): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[demo]'
	touch $@

clean:
	rm -rf $(VENV) demo-output site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
