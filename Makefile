# Every target sets up what it needs, once, in .venv; nothing has to be run first.
#   PYTHON    the interpreter the environment is made with (3.11 or newer)
#   PIP_ARGS  extra arguments for every pip install, for example another package index

PYTHON   ?= python3
PIP_ARGS ?=
EXTRAS   := viz,train,notebooks,dev

BIN       := .venv/bin
INSTALLED := .venv/.installed
NOTEBOOKS := $(wildcard notebooks/*.ipynb notebooks/solutions/*.ipynb)
STRIP     := --keep-output --extra-keys "metadata.widgets cell.metadata.execution"
EXECUTE   := $(BIN)/jupyter nbconvert --to notebook --execute --log-level WARN
THEATRE   := --prompts data/prompts/theatre.jsonl --max-new-tokens 96 --rounds 6 --budget 64

.DEFAULT_GOAL := help
.PHONY: help setup demo lab test check notebooks record site slides figures clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv and install everything into it

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make setup PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e '.[$(EXTRAS)]' $(PIP_ARGS)
	@touch $@

demo: setup ## run every method on a few prompts: a table, and a picture under out/demo
	$(BIN)/dominotree demo

lab: setup ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=notebooks

test: setup ## fetch the embedded model, then run the tests, but for those that execute a notebook
	$(BIN)/dominotree fetch
	$(BIN)/python -m pytest -m "not notebook"

check: setup ## lint, format, types, spelling, and no widget state stored in a notebook
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md notebooks dominotree_lite tests
	$(BIN)/nbstripout --verify $(STRIP) $(NOTEBOOKS)

notebooks: setup ## execute every notebook once, two in FULL too, and report seconds and memory (out/notebooks.json)
	$(BIN)/dominotree fetch
	$(BIN)/python -m pytest -m notebook tests/notebooks

site: setup ## make pages of the notebooks as they are stored, under out/site; they open without a network
	$(BIN)/python -m dominotree_lite.viz.site notebooks out/site

slides: setup ## make slides of the notebooks as they are stored, under out/slides; they open without a network
	$(BIN)/python -m dominotree_lite.viz.slides notebooks out/slides

record: setup ## compute every notebook's results anew, store them under data/traces, and store the outputs
	$(BIN)/dominotree fetch
	$(BIN)/dominotree trace $(THEATRE) --device cpu --out data/traces/theatre.json
	DOMINOTREE_FULL=1 $(EXECUTE) --output-dir out/record $(NOTEBOOKS)
	DOMINOTREE_FULL=0 $(EXECUTE) --inplace $(NOTEBOOKS)
	$(BIN)/nbstripout $(STRIP) $(NOTEBOOKS)

figures: setup ## write the figures again, by executing every notebook in its place (the notebooks write them)
	$(BIN)/dominotree fetch
	$(EXECUTE) --output-dir out/executed $(NOTEBOOKS)

clean: ## remove what was built here; neither data/ nor the models in your cache
	rm -rf .venv out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
