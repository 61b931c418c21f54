# fairclaim. `make` lists what there is to do; nothing here asks a question.
#
# Every target works on a clean clone, as root or not, with nothing but Go: what
# a target needs beyond that it looks for, and says in one line what to install.

GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The race detector needs a C compiler; without one the tests run without it.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

# Not cached: a test's result depends on the PostgreSQL that it finds as well.
GOTEST := go test -count=1 -p 2 -timeout 60m $(RACE)

# Installs a package where this user may, and says so; apt-get's steps and errors, too.
# What is there in the end, or is not, whoever needs it says.
define install
if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "installing what is missing: apt-get update; apt-get install $(1)"; \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update -q && apt-get install -qy --no-install-recommends $(1); } 2>&1 | \
		sed -u -n '/^\(Get:.*Packages\|Need to get\|Fetched\|Unpacking $(1)\|Setting up $(1)\|E: \)/s/^/  /p'; \
	fi
endef

# Compiles packages and says how far it is: go build -v names each that is not in the cache.
# go test and go run are silent until they have compiled all.
define compile
go build -v $(1) 2>&1 | { n=0; while read -r line; do \
		case $$line in \
		*' '*) echo "$$line" ;; \
		*) n=$$((n + 1)); [ $$((n % 5)) -gt 0 ] || echo "  $$n packages compiled, the last one is $$line" ;; \
		esac; done; }
endef

# The majors that `make matrix` runs.
MAJORS ?= 15 17 18

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: postgres ## Watch a bursty tenant and twenty quiet ones share an outbox; KEEP=1 leaves the database up
	@echo "compiling the demo, a minute or more on a new machine"
	@$(call compile,./integration/demo ./driver/...)
	@go run ./integration/demo $(if $(KEEP),-keep)

.PHONY: build
build: ## Build bin/sweep
	go build -trimpath -o bin/sweep ./cmd/sweep

.PHONY: image
image: ## Build the container image of sweep; IMAGE=NAME:TAG, BASE=debian:13 to put it on another
	@BASE=$(BASE) integration/images/sweep $(IMAGE)

.PHONY: test
test: postgres pgbouncer prometheus chromium ## Run all tests, those against a real PostgreSQL included
	@echo "compiling, some minutes on a new machine"
	@$(call compile,$(RACE) ./...)
	@echo "testing; each package reports when it ends"
	$(GOTEST) $$(go list ./... | grep -v '/integration$$')
	@echo "compiling the tests of ./integration; they take ten minutes or more, and say every ten seconds how far they are"
	@# Alone and from its own directory: go test passes on at once what it prints.
	cd integration && $(GOTEST)

.PHONY: matrix
matrix: ## Run all tests against PostgreSQL in containers, 15, 17 and 18; MAJORS=17 for one
	@set -e; for major in $(MAJORS); do \
		docker image inspect fairclaim-postgres:$$major >/dev/null 2>&1 || \
			docker image inspect postgres:$$major >/dev/null 2>&1 || \
			timeout 120 docker pull -q postgres:$$major 2>/dev/null || integration/images/build $$major; \
		echo "FAIRCLAIM_PG=docker FAIRCLAIM_PG_MAJOR=$$major $(GOTEST) ./..."; \
		FAIRCLAIM_PG=docker FAIRCLAIM_PG_MAJOR=$$major $(GOTEST) ./...; \
	done

.PHONY: fuzz
fuzz: postgres ## Fuzz everything that parses, FUZZTIME (30s) each; PACKAGE=./cmd/sweep ONLY=DSN for some
	@set -e; for package in $$(go list $(or $(PACKAGE),./...)); do \
		for target in $$(go test -list '^Fuzz.*$(ONLY)' $$package | grep ^Fuzz); do \
			go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(or $(FUZZTIME),30s) $$package; \
		done; \
	done

.PHONY: model
model: ## Check the model of the claim protocol in docs/model, and that it finds planted faults
	@{ command -v spin && command -v cc; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		echo "installing the model checker: apt-get install spin gcc libc6-dev" && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends spin gcc libc6-dev >/dev/null 2>&1; } || \
		{ echo "make model needs spin (https://spinroot.com) and a C compiler: apt-get install spin gcc libc6-dev"; exit 1; }
	@docs/model/check

.PHONY: bench
bench: postgres ## Measure beside River and pgmq: QUICK=1 ONLY=latency,rivals PGMQ_SQL=FILE JSON=FILE MARKDOWN=FILE
	@cd integration/bench && go run . $(if $(QUICK),-quick) $(if $(ONLY),-only '$(ONLY)') \
		$(if $(PGMQ_SQL),-pgmq '$(abspath $(PGMQ_SQL))') $(if $(JSON),-json '$(abspath $(JSON))') \
		$(if $(MARKDOWN),-markdown '$(abspath $(MARKDOWN))')

.PHONY: lint
lint: ## Check the code with gofumpt, go vet and staticcheck
	@unformatted=$$(go run $(GOFUMPT) -l .) && test -z "$$unformatted" || \
		{ echo "gofumpt wants to change:" $$unformatted; echo "make format does it"; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

.PHONY: format
format: ## Format the code with gofumpt
	go run $(GOFUMPT) -l -w .

.PHONY: snapshot
snapshot: ## Copy what changed in sql/functions into a new migration: NAME=short_description
	@test -n "$(NAME)" || { echo "which name? make snapshot NAME=short_description"; exit 2; }
	go run ./sql/migrations/snapshot -name "$(NAME)"

.PHONY: schema
schema: postgres ## Rewrite what is generated from the schema: the dump that tests compare with, docs/sql.md
	go test -count=1 ./integration -run '^TestSchemaGolden$$|^TestSQLReference$$' -update

# Where neither a server nor its binaries are there, apt-get may bring them. What
# will be used, or what to install, is said before anything is compiled.
.PHONY: postgres
postgres:
	@if [ -z "$$FAIRCLAIM_TEST_DSN$$FAIRCLAIM_PG$$FAIRCLAIM_PG_MAJOR$$PGBIN" ] && \
		! FAIRCLAIM_PG=binary integration/pgtest/find.sh >/dev/null 2>&1; then \
		$(call install,postgresql); \
	fi
	@integration/pgtest/find.sh

# The tests behind a pooler are skipped where there is none.
.PHONY: pgbouncer
pgbouncer:
	@if [ -z "$$PGBOUNCER" ] && ! command -v pgbouncer >/dev/null && ! [ -x /usr/sbin/pgbouncer ]; then \
		$(call install,pgbouncer); \
	fi

# So are those of the alert rules and the dashboard.
.PHONY: prometheus
prometheus:
	@if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then \
		$(call install,prometheus); \
	fi

# The tests of the pages in a browser are skipped where there is none.
.PHONY: chromium
chromium:
	@if [ -z "$$CHROMIUM" ] && ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then \
		$(call install,chromium); \
	fi
